//! The evidence: one page that shows every figure of the five papers beside ours ([`report`]), made
//! from files of runs without measuring. [`measure`] runs the experiments whose files are missing.
//!
//! A folder of evidence has
//!
//! ```text
//! index.html      the page, with its figures inside
//! remarks.toml    what is said of a result that falls short: ID = "text" (may be missing)
//! runs/ID.json    a run ([`RunFile`])
//! runs/NAME.svg   the figures of the runs
//! runs/other-kernels/     files of the same form, of runs on another kernel (may be missing)
//! parts/          what a broken-off run of some experiments has measured so far
//! ```
//!
//! No figure on the page is typed by hand: all come from the files of runs. What the papers did and
//! saw is in [`papers`].
//!
//! A function fails, and leaves an earlier page as it is, if a file cannot be read or written, if a
//! file of a run is damaged or has another format, or if the remarks name an unknown experiment.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::experiment::{self, Experiment, REGISTRY};

mod page;
mod papers;
mod run_file;
mod values;

pub use run_file::RunFile;

use papers::PAPERS;

/// A run with the SVG text of its figures.
pub(crate) struct Run {
    file: RunFile,
    figures: Vec<String>,
}

/// What the page shows.
pub(crate) struct Evidence {
    /// The runs, by the name of the experiment.
    runs: BTreeMap<&'static str, Run>,
    /// The runs on another kernel, likewise.
    elsewhere: BTreeMap<&'static str, Run>,
    /// What is said of results that fall short, by the name of the experiment.
    remarks: BTreeMap<String, String>,
}

/// What a page says, in numbers of experiments of the papers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Summary {
    /// Experiments that the papers report.
    pub all: usize,
    /// Those that hold in a whole run.
    pub hold: usize,
    /// Those that were run whole and fall short.
    pub short: usize,
}

/// Writes the page of the evidence in `folder` from the files there, and returns what it says.
/// Takes seconds. Fails as the module says.
pub fn report(folder: &Path) -> Result<Summary> {
    let evidence = Evidence::read(folder)?;
    let (page, summary) = page::page(&evidence);
    write_whole(&index(folder), &page)?;
    Ok(summary)
}

/// Measures each experiment that has no file in `folder` yet, or only one of a short form where the
/// whole form is wanted, and writes the page after each. Says what is done and what is left on
/// standard error. Experiments that cannot be measured are named, and do not prevent the others.
/// Returns whether all were measured. Fails as the module says, or if this program cannot be
/// started again.
pub fn measure(folder: &Path) -> Result<bool> {
    let wanted = missing(folder)?;
    std::fs::create_dir_all(runs(folder))
        .with_context(|| format!("cannot make the folder {}", runs(folder).display()))?;
    report(folder)?;
    let tree = run_file::tree();
    let mut left: f64 = wanted.iter().map(|group| longest(group)).sum();
    let count = wanted.iter().flatten().count();
    eprintln!(
        "evidence: {} of {} experiments are in {}; {count} are left, about {left:.0} min",
        REGISTRY.len() - count,
        REGISTRY.len(),
        folder.display()
    );
    let mut failed = Vec::new();
    for group in &wanted {
        let mut started = Vec::new();
        for one in group {
            let mut command = command(one, folder)?;
            command.envs(tree.iter().map(|tree| (run_file::TREE, tree)));
            started.push((one.id, command.spawn()?));
        }
        for (id, mut child) in started {
            let status = child.wait().with_context(|| format!("experiment {id}"))?;
            // Status 1 also means that a check does not hold, which is a result.
            if !status.success() && is_wanted(folder, id)? {
                failed.push(id);
            }
        }
        report(folder)?;
        left -= longest(group);
        eprintln!("evidence: about {left:.0} min are left");
    }
    if !failed.is_empty() {
        eprintln!("evidence: could not be measured: {}", failed.join(", "));
    }
    Ok(failed.is_empty())
}

/// The file of the page.
pub fn index(folder: &Path) -> PathBuf {
    folder.join("index.html")
}

/// The folder of the files of runs.
pub fn runs(folder: &Path) -> PathBuf {
    folder.join("runs")
}

/// All experiments: those of the papers, then the others.
fn in_order() -> impl Iterator<Item = &'static Experiment> {
    let figures = PAPERS.iter().flat_map(|paper| paper.figures);
    let of_papers = figures.flat_map(|figure| figure.ids).copied();
    let others = REGISTRY.iter().filter(|one| !papers::have(one.id));
    of_papers.filter_map(experiment::find).chain(others)
}

/// The experiments that have to be measured, in groups that run at the same time.
fn missing(folder: &Path) -> Result<Vec<Vec<&'static Experiment>>> {
    let mut groups: Vec<Vec<&'static Experiment>> = Vec::new();
    for one in in_order() {
        if !is_wanted(folder, one.id)? {
            continue;
        }
        let together = TOGETHER.contains(&one.id);
        match groups.last_mut() {
            Some(last) if together && last.iter().all(|other| TOGETHER.contains(&other.id)) => {
                last.push(one);
            }
            _ => groups.push(vec![one]),
        }
    }
    Ok(groups)
}

/// Whether an experiment has no file that serves.
fn is_wanted(folder: &Path, id: &'static str) -> Result<bool> {
    let file = RunFile::path(&runs(folder), id);
    if !file.exists() {
        return Ok(true);
    }
    let run = RunFile::read(&file)?;
    Ok(run.quick && !SHORT.contains(&id))
}

/// How long experiments that run together take here, in minutes.
fn longest(group: &[&Experiment]) -> f64 {
    let minutes = |one: &&Experiment| match SHORT.contains(&one.id) {
        true => one.minutes.1,
        false => one.minutes.0,
    };
    group.iter().map(minutes).fold(0.0, f64::max)
}

/// The command that measures an experiment and keeps it.
fn command(one: &Experiment, folder: &Path) -> Result<Command> {
    let program = std::env::current_exe().context("the running executable has no path")?;
    let mut command = Command::new(program);
    command.args(["run", one.id, "--record"]).arg(folder);
    match SHORT.contains(&one.id) {
        true => command.arg("--quick"),
        false => command.arg("--keep").arg(folder.join("parts")),
    };
    Ok(command)
}

impl Evidence {
    fn read(folder: &Path) -> Result<Evidence> {
        let runs = runs(folder);
        if !runs.is_dir() {
            bail!(
                "{} is no folder of evidence: it has no folder runs",
                folder.display()
            );
        }
        let elsewhere = runs.join("other-kernels");
        Ok(Evidence {
            runs: read_runs(&runs)?,
            elsewhere: match elsewhere.is_dir() {
                true => read_runs(&elsewhere)?,
                false => BTreeMap::new(),
            },
            remarks: remarks(&folder.join("remarks.toml"))?,
        })
    }
}

/// All runs whose files are in a folder.
fn read_runs(folder: &Path) -> Result<BTreeMap<&'static str, Run>> {
    let cannot = || format!("cannot read {}", folder.display());
    let mut runs = BTreeMap::new();
    for entry in std::fs::read_dir(folder).with_context(cannot)? {
        let path = entry.with_context(cannot)?.path();
        if path.extension().is_some_and(|ending| ending == "json") {
            let run = Run::read(&path)?;
            runs.insert(run.id()?, run);
        }
    }
    Ok(runs)
}

impl Run {
    fn read(path: &Path) -> Result<Run> {
        let file = RunFile::read(path)?;
        let folder = path.parent().unwrap_or(Path::new("."));
        let figure = |name: &String| {
            let path = folder.join(name);
            let text = std::fs::read_to_string(&path)
                .with_context(|| format!("cannot read {}", path.display()))?;
            if !text.starts_with("<svg") {
                bail!("{} is no figure", path.display());
            }
            Ok(text)
        };
        let figures = file.outcome.plots.iter().map(figure);
        let figures = figures.collect::<Result<_>>()?;
        Ok(Run { file, figures })
    }

    fn id(&self) -> Result<&'static str> {
        let id = &self.file.outcome.id;
        let found = experiment::find(id);
        Ok(found
            .with_context(|| format!("there is no experiment {id}"))?
            .id)
    }

    /// Whether it is a whole run, or one whose short form is wanted.
    fn is_whole(&self) -> bool {
        !self.file.quick || SHORT.contains(&&*self.file.outcome.id)
    }
}

/// Reads the remarks; none if there is no file.
fn remarks(path: &Path) -> Result<BTreeMap<String, String>> {
    if !path.exists() {
        return Ok(BTreeMap::new());
    }
    let text =
        std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let remarks: BTreeMap<String, String> = toml::from_str(&text)
        .with_context(|| format!("{} has no lines ID = \"text\"", path.display()))?;
    let unknown = remarks.keys().find(|id| experiment::find(id).is_none());
    match unknown {
        Some(id) => bail!("{}: there is no experiment {id}", path.display()),
        None => Ok(remarks),
    }
}

/// Writes a file as a whole: it has the old text or the new one at any time.
fn write_whole(path: &Path, text: &str) -> Result<()> {
    let cannot = || format!("cannot write {}", path.display());
    let mut beside = path.as_os_str().to_owned();
    beside.push(".new");
    let beside = PathBuf::from(beside);
    let write = || {
        let mut file = std::fs::File::create(&beside)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        std::fs::rename(&beside, path)
    };
    write().with_context(cannot)
}

/// Experiments of our own whose whole forms take more than two hours together; the page has their
/// short forms.
const SHORT: [&str; 4] = ["accuracy", "queue", "latency", "direct-channel"];

/// Experiments on slow links, which load the machine so little that they run at the same time.
const TOGETHER: [&str; 3] = ["nice-fig6", "nice-fig7", "nice-fig8"];

#[cfg(test)]
mod tests;
