use std::path::{Path, PathBuf};

use serde_json::json;

use super::*;
use crate::experiment::{Bound, Check, Outcome, Subject, figure};

/// A folder of evidence that is removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let name = format!("netnice-evidence-{}-{name}", std::process::id());
        let folder = Folder(std::env::temp_dir().join(name));
        std::fs::create_dir_all(runs(&folder.0)).expect("a folder");
        folder
    }

    fn keep(&self, outcome: Outcome, quick: bool) {
        let began = jiff::Timestamp::from_second(1_764_000_000).expect("in range");
        let file = RunFile::new(outcome, began, quick).expect("a machine");
        file.write(&runs(&self.0)).expect("written");
    }

    fn page(&self) -> String {
        report(&self.0).expect("a page");
        std::fs::read_to_string(index(&self.0)).expect("there")
    }

    fn refusal(&self) -> String {
        format!("{:#}", report(&self.0).expect_err("refused"))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn outcome(id: &'static str, value: f64) -> Outcome {
    let bound = Bound::AtMost(7.5);
    let check = Check {
        what: "a <rate>".into(),
        value,
        unit: "Mbit/s".into(),
        bound,
        holds: value <= 7.5,
    };
    Outcome {
        id: id.into(),
        subject: Subject::Netnice,
        paper: json!({"rate": 7}),
        ours: json!({"rows": [{"slice, ms": 1.25, "packets": 17}, {"slice, ms": 2.5, "packets": 34}]}),
        holds: value <= 7.5,
        checks: vec![check],
        notes: vec!["what the reader must know".into()],
        plots: Vec::new(),
        seconds: 61.0,
    }
}

#[test]
fn a_page_has_what_the_files_have() {
    let folder = Folder::new("page");
    let plot = runs(&folder.0).join("ntcp-rate.svg");
    std::fs::write(&plot, "<svg><text>a figure</text></svg>").expect("written");
    let drawn = Outcome {
        plots: vec![plot.display().to_string()],
        ..outcome("ntcp-rate", 3.25)
    };
    folder.keep(drawn, false);
    folder.keep(outcome("rtc-fig7a", 9.125), false);
    folder.keep(outcome("rtc-p", 1.5), true);
    let remarks = "rtc-fig7a = \"Bursts come together.\"\nntcp-rate = \"Not shown.\"\n";
    std::fs::write(folder.0.join("remarks.toml"), remarks).expect("written");
    let said = report(&folder.0).expect("a page");
    assert_eq!((said.all, said.hold, said.short), (28, 1, 1));
    let page = folder.page();
    for text in [
        "3.25 Mbit/s",
        "9.12 Mbit/s",
        "≤ 7.50 Mbit/s",
        "a &lt;rate&gt;",
        "<svg><text>a figure</text></svg>",
        "Bursts come together.",
        "what the reader must know",
        "<td>1.25</td><td>17</td>",
        "netnice-lab run ntcp-rate",
        "short form holds",
        "1 of 28 meet all their bounds in a whole run</b>; 1 misses at least one; 26 have no whole run here",
        "2025-11-24T16:00:00Z",
    ] {
        assert!(page.contains(text), "{text}");
    }
    assert!(
        !page.contains("Not shown."),
        "a remark of a result that holds"
    );
    // The same files make the same page.
    assert_eq!(page, folder.page());
}

/// The page of this tree is what the files of this tree make.
#[test]
fn the_page_of_the_tree_has_the_numbers_of_its_files() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/evidence");
    let evidence = Evidence::read(&folder).expect("the files of runs are valid");
    let (page, _) = page::page(&evidence);
    let kept = std::fs::read_to_string(index(&folder)).expect("there is a page");
    assert!(page == kept, "run `netnice-lab report docs/evidence` again");
    for run in evidence.runs.values() {
        for check in &run.file.outcome.checks {
            let number = values::grouped(&figure(check.value));
            assert!(page.contains(&number), "{}: {number}", run.file.outcome.id);
        }
    }
}

#[test]
fn a_number_that_was_not_measured_is_kept() {
    let folder = Folder::new("nan");
    folder.keep(outcome("rtc-p", f64::NAN), false);
    let file = RunFile::read(&RunFile::path(&runs(&folder.0), "rtc-p")).expect("readable");
    assert!(file.outcome.checks[0].value.is_nan());
    assert!(folder.page().contains("NaN Mbit/s"));
}

#[test]
fn a_file_that_is_no_run_is_named_and_the_page_stays() {
    let folder = Folder::new("damaged");
    folder.keep(outcome("rtc-p", 1.0), false);
    let before = folder.page();
    let path = RunFile::path(&runs(&folder.0), "rtc-p");
    let good = std::fs::read_to_string(&path).expect("there");
    let damaged = |text: String, problem: &str| {
        std::fs::write(&path, text).expect("written");
        let refusal = folder.refusal();
        assert!(refusal.contains("runs/rtc-p.json"), "{refusal}");
        assert!(refusal.contains(problem), "{refusal}");
        let after = std::fs::read_to_string(index(&folder.0)).expect("it stays");
        assert_eq!(before, after);
    };
    damaged(good[..good.len() / 2].to_owned(), "is no run");
    damaged(String::new(), "is no run");
    damaged(
        good.replacen("\"format\": 1", "\"format\": 2", 1),
        "has the format 2; this program reads 1",
    );
    damaged(good.replacen("\"quick\"", "\"short\"", 1), "is no run");
    damaged(
        good.replacen("\"id\": \"rtc-p\"", "\"id\": \"rtc-fig5\"", 1),
        "is a run of rtc-fig5",
    );
    damaged(
        good.replacen("\"plots\": []", "\"plots\": [\"../a.svg\"]", 1),
        "has a figure in another folder: ../a.svg",
    );
    // Else the next run of rtc-p would remove the run of another experiment.
    damaged(
        good.replacen("\"plots\": []", "\"plots\": [\"nice-fig3.json\"]", 1),
        "has a figure of another name: nice-fig3.json",
    );
}

#[test]
fn a_new_run_removes_the_figures_that_it_does_not_have() {
    let folder = Folder::new("figures");
    let runs = runs(&folder.0);
    let with = |names: &[&str]| {
        let plots = names.iter().map(|name| {
            let path = runs.join(name);
            std::fs::write(&path, "<svg></svg>").expect("written");
            path.display().to_string()
        });
        let plots = plots.collect();
        folder.keep(
            Outcome {
                plots,
                ..outcome("rtc-p", 1.0)
            },
            false,
        );
    };
    with(&["rtc-p-old.svg", "rtc-p.svg"]);
    std::fs::write(runs.join("rtc-fig5.svg"), "<svg></svg>").expect("written");
    with(&["rtc-p.svg"]);
    let there = |name: &str| runs.join(name).exists();
    assert!(!there("rtc-p-old.svg") && there("rtc-p.svg") && there("rtc-fig5.svg"));
}

#[test]
fn a_run_on_another_kernel_stands_below_that_on_this_one() {
    let folder = Folder::new("kernels");
    folder.keep(outcome("other-tools", 9.5), false);
    let elsewhere = runs(&folder.0).join("other-kernels");
    std::fs::create_dir(&elsewhere).expect("a folder");
    let began = jiff::Timestamp::from_second(1_764_000_000).expect("in range");
    let mut file = RunFile::new(outcome("other-tools", 8.25), began, true).expect("a machine");
    file.machine.kernel = "6.1.0-other".into();
    file.write(&elsewhere).expect("written");
    std::fs::write(folder.0.join("remarks.toml"), "other-tools = \"Why.\"\n").expect("written");
    let page = folder.page();
    let at = |text: &str| page.find(text).unwrap_or_else(|| panic!("{text}"));
    assert!(at("9.50 Mbit/s") < at("On another kernel: Linux 6.1.0-other"));
    assert!(at("On another kernel") < at("8.25 Mbit/s"));
    assert_eq!(
        page.matches("Why.").count(),
        1,
        "it is said of this kernel's run"
    );
}

#[test]
fn the_head_of_the_page_has_what_falls_short_and_the_versions() {
    let folder = Folder::new("head");
    folder.keep(outcome("rtc-p", 9.5), false);
    folder.keep(outcome("cell-fig3-sim", 8.25), false);
    folder.keep(outcome("rtc-fig7a", 1.0), false);
    let page = folder.page();
    let head = &page[..page.find("How to read it").expect("a heading")];
    assert!(head.contains("<a href=\"#rtc-p\">rtc-p</a>") && head.contains("9.50 Mbit/s"));
    assert!(
        head.contains("<a href=\"#cell-fig3\">cell-fig3-sim</a>"),
        "the article of both"
    );
    assert!(!head.contains("1.00 Mbit/s"), "it holds");
    assert!(head.contains(": 3 experiments"), "all are of one version");
}

#[test]
fn what_is_missing_or_unknown_is_named() {
    let folder = Folder::new("missing");
    let plot = runs(&folder.0).join("rtc-p-gone.svg").display().to_string();
    let drawn = Outcome {
        plots: vec![plot],
        ..outcome("rtc-p", 1.0)
    };
    folder.keep(drawn, false);
    assert!(folder.refusal().contains("gone.svg"), "a figure");
    folder.keep(outcome("rtc-p", 1.0), false);
    std::fs::write(folder.0.join("remarks.toml"), "rtc-q = \"x\"\n").expect("written");
    let refusal = folder.refusal();
    assert!(
        refusal.ends_with("remarks.toml: there is no experiment rtc-q"),
        "{refusal}"
    );
    std::fs::write(folder.0.join("remarks.toml"), "rtc-p = 3\n").expect("written");
    assert!(folder.refusal().contains("has no lines ID = \"text\""));
    let nowhere = report(Path::new("/nonexistent")).expect_err("no folder");
    let text = "/nonexistent is no folder of evidence: it has no folder runs";
    assert_eq!(nowhere.to_string(), text);
}

#[test]
fn a_folder_that_cannot_be_written_is_named() {
    let folder = Folder::new("unwritable");
    folder.keep(outcome("rtc-p", 1.0), false);
    // A folder is in the way of the file.
    std::fs::create_dir(folder.0.join("index.html.new")).expect("a folder");
    let refusal = folder.refusal();
    assert!(refusal.contains("cannot write"), "{refusal}");
    assert!(refusal.contains("index.html"), "{refusal}");
}

#[test]
fn what_has_a_whole_run_is_not_measured_again() {
    let folder = Folder::new("again");
    let wanted = |folder: &Folder| -> Vec<&str> {
        let groups = missing(&folder.0).expect("readable");
        groups.into_iter().flatten().map(|one| one.id).collect()
    };
    assert_eq!(wanted(&folder).len(), REGISTRY.len());
    folder.keep(outcome("rtc-p", 1.0), false);
    folder.keep(outcome("rtc-fig5", 1.0), true);
    folder.keep(outcome("queue", 1.0), true);
    let left = wanted(&folder);
    assert_eq!(left.len(), REGISTRY.len() - 2);
    assert!(!left.contains(&"rtc-p") && !left.contains(&"queue"));
    assert!(left.contains(&"rtc-fig5"), "only its short form is there");
}

#[test]
fn experiments_on_slow_links_run_together() {
    let folder = Folder::new("together");
    let groups = missing(&folder.0).expect("readable");
    let ids = |group: &Vec<&'static Experiment>| group.iter().map(|one| one.id).collect();
    let long: Vec<Vec<&str>> = groups.iter().filter(|one| one.len() > 1).map(ids).collect();
    assert_eq!(long, [TOGETHER.to_vec()]);
    assert_eq!(groups.iter().flatten().count(), REGISTRY.len());
    let whole: f64 = groups.iter().map(|group| longest(group)).sum();
    assert!(whole <= 180.0, "make evidence takes {whole} min");
}
