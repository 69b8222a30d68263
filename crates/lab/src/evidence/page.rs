//! Makes the page of the evidence as HTML ([`page`]). No call fails.
//!
//! The page is one file without scripts: its figures are inside, and its colours follow the
//! reader's choice of light or dark.

use std::collections::BTreeSet;

use maud::{DOCTYPE, Markup, PreEscaped, html};

use super::papers::{self, Figure, PAPERS, Paper};
use super::run_file::Machine;
use super::values::show;
use super::{Evidence, Run, Summary};
use crate::experiment::{Check, REGISTRY, figure};

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
            Verdict::ShortForm => ("holds in its short form", "part"),
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
    let others: Vec<_> = REGISTRY
        .iter()
        .filter(|one| !papers::have(one.id))
        .collect();
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
                section id="own" {
                    h2 { "Experiments of our own" }
                    p.about { "What the papers do not ask: the promises of netnice's documents." }
                    @for one in &others {
                        article id=(one.id) {
                            h3 { code { (one.id) } " " (evidence.verdict(&[one.id]).badge()) }
                            p { (one.what) }
                            (evidence.run(one.id))
                        }
                    }
                }
            } }
        }
    };
    (markup.into_string() + "\n", summary)
}

/// Title, summary and the list of all figures.
fn head(evidence: &Evidence, summary: Summary) -> Markup {
    let Summary { all, hold, short } = summary;
    html! {
        p.kicker { "netnice · evidence" }
        h1 { "The figures of five papers, repeated on today's Linux" }
        p.lead {
            (hold) " of " (all) " hold in a whole run"
            @if short > 0 { "; " (short) " " (if short == 1 { "falls" } else { "fall" }) " short" }
            @if hold + short < all { "; " (all - hold - short) " have no whole run here" }
            ". Each stands below with what its paper saw, what must hold for us, and what was measured. "
            "What is measured is what is shipped: packets between network namespaces, through the daemon, "
            "the driver and the library, with programs as ordinary processes, unless a line says "
            em { "simulated" } ". Figures 5 and 6 of CELL count the cycles of the scheduler alone."
        }
        (machines(evidence))
        div.overview {
            @for paper in PAPERS {
                div {
                    h2 { a href={ "#" (paper.name) } { (paper.name) } }
                    ul {
                        @for figure in paper.figures {
                            @let verdict = evidence.verdict(figure.ids);
                            li.(verdict.words().1) {
                                a href={ "#" (figure.ids[0]) } { (figure.name) }
                                span { (verdict.words().0) }
                            }
                        }
                    }
                }
            }
        }
        p.about {
            "Limits of rates count bytes on the wire. A packet or message that a stop of the machine made "
            "late is excused only by a recorded stop that covers its lateness, and is counted. "
            "The same page is made again by " code { "netnice-lab report" } ", and measured again by "
            code { "make evidence" } "."
        }
    }
}

/// The machines of all runs.
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
    }
}

fn section(evidence: &Evidence, paper: &Paper) -> Markup {
    html! {
        section id=(paper.name) {
            h2 { (paper.name) ": " (paper.title) }
            p.authors { (paper.authors) }
            p.about { (paper.about) }
            @for figure in paper.figures { (row(evidence, figure)) }
        }
    }
}

/// A figure of a paper, with the runs that repeat it.
fn row(evidence: &Evidence, figure: &Figure) -> Markup {
    html! {
        article id=(figure.ids[0]) {
            h3 { (figure.name) " " (evidence.verdict(figure.ids).badge()) }
            p { (figure.setup) }
            div.pair {
                div { h4 { "The paper saw" } p { (figure.saw) } }
                div { h4 { "Must hold for us" } p { (figure.holds) } }
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

    /// What was measured by an experiment.
    fn run(&self, id: &str) -> Markup {
        let Some(run) = self.runs.get(id) else {
            return html! { p.machine { code { "netnice-lab run " (id) } " has no file of a run here." } };
        };
        let outcome = &run.file.outcome;
        let remark = self.remarks.get(id).filter(|_| !outcome.holds);
        html! {
            @for figure in &run.figures {
                div.figure { (PreEscaped(figure)) }
            }
            @if let Some(text) = remark { p.remark { b { "Falls short: " } (text) } }
            (checks(&outcome.checks))
            @for note in &outcome.notes { p.note { (note) } }
            details {
                summary { "All measured values" }
                @if !outcome.paper.is_null() { h4 { "The paper, or the promise" } (show(&outcome.paper)) }
                h4 { "Measured" }
                (show(&outcome.ours))
            }
            p.machine {
                code { (run.file.command) }
                " · " (run.file.began) " · " (figure(outcome.seconds.round())) " s"
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
                            td.number { (figure(check.value)) " " (check.unit) }
                            td.number { (check.bound) }
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
