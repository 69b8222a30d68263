//! Makes the page of the evidence as HTML ([`page`]). No call fails.
//!
//! The page is one file without scripts: its figures are inside, and its colours follow the
//! reader's choice of light or dark.

use std::collections::{BTreeMap, BTreeSet};

use maud::{DOCTYPE, Markup, PreEscaped, html};

use super::papers::{self, Figure, PAPERS, Paper};
use super::run_file::Machine;
use super::values::{grouped, show};
use super::{Evidence, Run, Summary, in_order};
use crate::experiment::{Bound, Check, Experiment, REGISTRY, figure};

/// The experiments of our own that have a run, and a list of the others.
fn own_section(evidence: &Evidence) -> Markup {
    let (measured, others) = own(evidence);
    html! {
        section id="own" {
            h2 { "Experiments of our own" }
            p.about { "These experiments test promises of netnice's documents that the papers do not make." }
            @for one in measured {
                article id=(one.id) {
                    h3 { code { (one.id) } " " (evidence.verdict(&[one.id]).badge()) }
                    p { (one.what) }
                    (evidence.run(one.id))
                }
            }
            @if !others.is_empty() {
                article {
                    h3 { "Not measured here" }
                    p { "No run of these is kept. " code { "netnice-lab run NAME" } " measures one." }
                    div.wide { table.checks {
                        thead { tr { th { "name" } th { "what it measures" } th { "minutes" } } }
                        tbody {
                            @for one in others {
                                tr { td { code { (one.id) } } td { (one.what) } td.number { (figure(one.minutes.0)) } }
                            }
                        }
                    } }
                }
            }
        }
    }
}

/// What the runs of an experiment say.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Verdict {
    /// All hold, in whole runs.
    Holds,
    /// One that was run whole does not hold.
    Short,
    /// Only short forms were run, and hold.
    ShortForm,
    /// One was not run.
    Missing,
}

impl Verdict {
    fn words(self) -> (&'static str, &'static str) {
        match self {
            Verdict::Holds => ("holds", "yes"),
            Verdict::Short => ("falls short", "no"),
            Verdict::ShortForm => ("short form holds", "part"),
            Verdict::Missing => ("not measured", "part"),
        }
    }

    fn badge(self) -> Markup {
        let (words, class) = self.words();
        html! { span.badge.(class) { (words) } }
    }
}

/// The page, and what it says.
pub(super) fn page(evidence: &Evidence) -> (String, Summary) {
    let verdicts = || {
        let figures = PAPERS.iter().flat_map(|paper| paper.figures);
        figures.map(|figure| evidence.verdict(figure.ids))
    };
    let count = |wanted: Verdict| verdicts().filter(|verdict| *verdict == wanted).count();
    let summary = Summary {
        all: verdicts().count(),
        hold: count(Verdict::Holds),
        short: count(Verdict::Short),
    };
    let markup = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                title { "netnice: the evidence" }
                style { (PreEscaped(STYLE)) }
            }
            body { main {
                (head(evidence, summary))
                @for paper in PAPERS { (section(evidence, paper)) }
                (own_section(evidence))
            } }
        }
    };
    (markup.into_string() + "\n", summary)
}

/// Title, summary, what falls short, how to read the page, and the list of all figures.
fn head(evidence: &Evidence, summary: Summary) -> Markup {
    let Summary { all, hold, short } = summary;
    let missing = all - hold - short;
    html! {
        p.kicker { "netnice · evidence" }
        h1 { "The figures of five papers, repeated on today's Linux" }
        p.lead {
            "netnice limits, guarantees and schedules the network traffic of the programs of a Linux host. "
            "This page repeats " (all) " figures, tables and claims of the five papers that it follows. "
            b { (hold) " of " (all) " meet all their bounds in a whole run" }
            @if short > 0 { "; " (short) " " (if short == 1 { "misses" } else { "miss" }) " at least one" }
            @if missing > 0 { "; " (missing) " " (if missing == 1 { "has" } else { "have" }) " no whole run here" }
            "."
        }
        (machines(evidence))
        (short_ones(evidence))
        (overview(evidence))
        (how_to_read())
    }
}

/// The checks that do not hold, in one table.
fn short_ones(evidence: &Evidence) -> Markup {
    let broken: Vec<(&str, &Check)> = in_order()
        .filter_map(|one| Some((one.id, evidence.runs.get(one.id)?)))
        .flat_map(|(id, run)| run.file.outcome.checks.iter().map(move |check| (id, check)))
        .filter(|(_, check)| !check.holds)
        .collect();
    html! {
        @if !broken.is_empty() {
            h2 { "What falls short" }
            div.wide { table.checks {
                thead { tr { th { "experiment" } th { "measured" } th { "value" } th { "must be" } } }
                tbody {
                    @for (id, check) in broken {
                        tr {
                            td { a href={ "#" (anchor(id)) } { (id) } }
                            td { (check.what) }
                            td.number.no { (quantity(check)) }
                            td.number { (bound(check)) }
                        }
                    }
                }
            } }
            p.about { "The reason, as far as it is known, and what was tried stand at each experiment." }
        }
    }
}

/// The list of all experiments with their verdicts.
fn overview(evidence: &Evidence) -> Markup {
    let (measured, others) = own(evidence);
    let entry = |href: &str, name: &str, verdict: Verdict| {
        html! {
            li.(verdict.words().1) {
                a href={ "#" (href) } { (name) }
                span { (verdict.words().0) }
            }
        }
    };
    html! {
        div.overview {
            @for paper in PAPERS {
                div {
                    h2 { a href={ "#" (paper.name) } { (paper.name) } }
                    ul {
                        @for figure in paper.figures {
                            (entry(figure.ids[0], figure.name, evidence.verdict(figure.ids)))
                        }
                    }
                }
            }
            div {
                h2 { a href="#own" { "Our own" } }
                ul {
                    @for one in measured { (entry(one.id, one.id, evidence.verdict(&[one.id]))) }
                }
                @if !others.is_empty() { p.machine { (others.len()) " more are not measured here" } }
            }
        }
    }
}

fn how_to_read() -> Markup {
    html! {
        h2 { "How to read it" }
        p.about {
            "A table of checks has what was measured, its value, and the bound that it must meet. A "
            em { "control" } " is a run in which a fault must appear, because otherwise the experiment could not "
            "show that netnice prevents it. A " em { "whole run" } " is the experiment in its full length; the short "
            "form is a test. The experiments run the shipped daemon, driver and library, with programs as ordinary "
            "processes and packets between network namespaces, unless a line says " em { "simulated" } ". Rates count "
            "bytes on the wire, if nothing else is said."
        }
        p.about {
            "A machine can stop the driver, especially a virtual one whose processors have other users. The driver "
            "records each stop of its own thread of 20 us and more: "
            em { "late" } " (a sleep ended too late), " em { "still" } " (the thread was awake, and did nothing between "
            "two readings of the clock) and " em { "slow" } " (its work does not explain the time; it counts only as far "
            "as the kernel says that the host took time from the processors). A packet that is late is " em { "excused" }
            " if recorded stops explain it: those between the time when it was due and the time when it left, and what "
            "was not yet caught up of earlier ones. A message of a channel is excused if the stops between its logical "
            "arrival and its end, of the driver and of the handlers, took as much as it is late. What is excused is "
            "counted and shown; everything else is judged."
        }
        p.about {
            "The page is made again by " code { "netnice-lab report docs/evidence" } " from the files of runs, and measured "
            "again by " code { "make evidence" } "."
        }
    }
}

/// The experiments that no paper has: those with a run, on this kernel or another, and the others.
fn own(evidence: &Evidence) -> (Vec<&'static Experiment>, Vec<&'static Experiment>) {
    let own = REGISTRY.iter().filter(|one| !papers::have(one.id));
    own.partition(|one| {
        evidence.runs.contains_key(one.id) || evidence.elsewhere.contains_key(one.id)
    })
}

/// The name of the place on the page where an experiment stands.
fn anchor(id: &str) -> &str {
    let figures = PAPERS.iter().flat_map(|paper| paper.figures);
    let figure = figures.into_iter().find(|figure| figure.ids.contains(&id));
    figure.map_or(id, |figure| figure.ids[0])
}

/// A text in which names of commands stand between backquotes.
fn prose(text: &str) -> Markup {
    html! {
        @for (at, part) in text.split('`').enumerate() {
            @if at % 2 == 1 { code { (part) } } @else { (part) }
        }
    }
}

/// The value of a check with its unit.
fn quantity(check: &Check) -> String {
    with_unit(&grouped(&figure(check.value)), &check.unit)
}

/// The bound of a check with the unit of its value.
fn bound(check: &Check) -> String {
    let bound = match check.bound {
        Bound::Near { aim, share } => {
            let aim = with_unit(&grouped(&figure(aim)), &check.unit);
            return format!("{aim} ± {} %", figure(share * 100.0));
        }
        _ => check.bound.to_string(),
    };
    let bound: Vec<String> = bound.split(' ').map(grouped).collect();
    with_unit(&bound.join(" "), &check.unit)
}

fn with_unit(number: &str, unit: &str) -> String {
    format!("{number} {unit}").trim_end().to_owned()
}

/// The machines and the versions of all runs.
fn machines(evidence: &Evidence) -> Markup {
    let all: BTreeSet<&Machine> = evidence
        .runs
        .values()
        .map(|run| &run.file.machine)
        .collect();
    html! {
        @for one in all {
            p.machine {
                (one.processors) " × " (one.processor) ", Linux " (one.kernel)
            }
        }
        (versions(evidence))
    }
}

/// The versions of the runs, the one with the most first, with the experiments of all others.
fn versions(evidence: &Evidence) -> Markup {
    let mut by_tree: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (id, run) in &evidence.runs {
        let tree = run.file.tree.as_deref().unwrap_or("that is not known");
        by_tree.entry(tree).or_default().push(id);
    }
    let mut all: Vec<(&str, Vec<&str>)> = by_tree.into_iter().collect();
    all.sort_by_key(|(_, ids)| std::cmp::Reverse(ids.len()));
    html! {
        @for (at, (tree, ids)) in all.iter().enumerate() {
            p.machine {
                @if at == 0 { "Measured with commit " code { (tree) } ": " (ids.len()) " experiments" }
                @else { "With commit " code { (tree) } ": " (ids.join(", ")) }
            }
        }
    }
}

fn section(evidence: &Evidence, paper: &Paper) -> Markup {
    html! {
        section id=(paper.name) {
            h2 { (paper.name) ": " (paper.title) }
            p.authors { (paper.authors) }
            p.about { (paper.about) }
            @if !paper.terms.is_empty() {
                dl.terms { @for (word, means) in paper.terms { dt { (word) } dd { (means) } } }
            }
            @for figure in paper.figures { (row(evidence, figure)) }
        }
    }
}

/// A figure of a paper, with the runs that repeat it.
fn row(evidence: &Evidence, figure: &Figure) -> Markup {
    html! {
        article id=(figure.ids[0]) {
            div.top {
                h3 { (figure.name) " " (evidence.verdict(figure.ids).badge()) }
                p { (prose(figure.setup)) }
                div.pair {
                    div {
                        h4 { "The paper saw" }
                        p { (prose(figure.saw)) }
                        @if !figure.drawn.is_empty() { p { (prose(figure.drawn)) } }
                    }
                    div { h4 { "Must hold for us" } p { (prose(figure.holds)) } }
                }
                @if !figure.differs.is_empty() {
                    h4 { "What differs from the paper" }
                    p { (prose(figure.differs)) }
                }
            }
            @for id in figure.ids {
                @if figure.ids.len() > 1 {
                    h4 { (if id.ends_with("-sim") { "Simulated" } else { "On packets" }) }
                }
                (evidence.run(id))
            }
        }
    }
}

impl Evidence {
    fn verdict(&self, ids: &[&str]) -> Verdict {
        let runs: Vec<Option<&Run>> = ids.iter().map(|id| self.runs.get(id)).collect();
        let broken = |run: &&Run| !run.file.outcome.holds;
        if runs.iter().flatten().any(broken) {
            return Verdict::Short;
        }
        if runs.iter().any(Option::is_none) {
            return Verdict::Missing;
        }
        match runs.iter().flatten().all(|run| run.is_whole()) {
            true => Verdict::Holds,
            false => Verdict::ShortForm,
        }
    }

    /// What was measured by an experiment, and what on another kernel.
    fn run(&self, id: &str) -> Markup {
        let remark = self.remarks.get(id).map(String::as_str);
        html! {
            @match self.runs.get(id) {
                Some(run) => (self.one(id, run, remark)),
                None => p.machine { code { "netnice-lab run " (id) } " has no file of a run here." },
            }
            @if let Some(run) = self.elsewhere.get(id) {
                h4 { "On another kernel: Linux " (run.file.machine.kernel) ", " (run.file.machine.processor) }
                (self.one(id, run, None))
            }
        }
    }

    /// A run, with what is said of it if it falls short.
    fn one(&self, id: &str, run: &Run, remark: Option<&str>) -> Markup {
        let outcome = &run.file.outcome;
        let remark = remark.filter(|_| !outcome.holds);
        // The comparison with other tools is what its reader looks for.
        let is_open = id == "other-tools";
        html! {
            @for figure in &run.figures {
                div.figure { (PreEscaped(figure)) }
            }
            @if let Some(text) = remark { p.remark { b { "Falls short: " } (prose(text)) } }
            (checks(&outcome.checks))
            @for note in &outcome.notes { p.note { (prose(note)) } }
            details open[is_open] {
                summary { "All measured values" }
                @if !outcome.paper.is_null() {
                    h4 { (if papers::have(id) { "The paper" } else { "The promise" }) }
                    (show(&outcome.paper))
                }
                h4 { "Measured" }
                (show(&outcome.ours))
            }
            p.machine {
                code { (run.file.command) }
                " · " (run.file.began) " · "
                @if outcome.seconds < 0.5 { "less than 1 s" } @else { (figure(outcome.seconds.round())) " s" }
                @if run.file.quick { " · short form" }
                " · netnice " (run.file.netnice)
                @if let Some(tree) = &run.file.tree { " (" (tree) ")" }
            }
        }
    }
}

/// The checks as a table, those that do not hold first. Many are folded.
fn checks(all: &[Check]) -> Markup {
    let (good, bad): (Vec<&Check>, Vec<&Check>) = all.iter().partition(|check| check.holds);
    let table = |checks: &[&Check]| {
        html! {
            div.wide { table.checks {
                thead { tr { th { "measured" } th { "value" } th { "must be" } th { "" } } }
                tbody {
                    @for check in checks {
                        tr {
                            td { (check.what) }
                            td.number { (quantity(check)) }
                            td.number { (bound(check)) }
                            td.(if check.holds { "yes" } else { "no" }) {
                                (if check.holds { "holds" } else { "falls short" })
                            }
                        }
                    }
                }
            } }
        }
    };
    if all.len() <= FEW {
        let checks: Vec<&Check> = bad.into_iter().chain(good).collect();
        return table(&checks);
    }
    html! {
        @if !bad.is_empty() { (table(&bad)) }
        details {
            summary { (good.len()) " of " (all.len()) " checks hold" }
            (table(&good))
        }
    }
}

/// More checks than this are folded.
const FEW: usize = 14;

const STYLE: &str = include_str!("page.css");

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment;

    #[test]
    fn every_figure_has_experiments_and_none_is_there_twice() {
        let mut ids = BTreeSet::new();
        for figure in PAPERS.iter().flat_map(|paper| paper.figures) {
            for id in figure.ids {
                assert!(experiment::find(id).is_some(), "{id}");
                assert!(ids.insert(*id), "{id}");
            }
        }
        let figures = PAPERS.iter().map(|paper| paper.figures.len());
        assert_eq!(figures.sum::<usize>(), 28, "the experiments of the papers");
    }
}
