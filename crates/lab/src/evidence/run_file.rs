//! The file of a run ([`RunFile`]): an outcome, with the machine, the time and the command. JSON,
//! written as a whole. Its figures are beside it.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use serde::{Deserialize, Serialize};

use super::write_whole;
use crate::experiment::Outcome;

/// A run of an experiment, as it is kept.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunFile {
    /// [`FORMAT`].
    format: u32,
    /// The version of netnice.
    pub netnice: String,
    /// The commit of the tree, with `-dirty` if files differ from it. `None` if it is not known.
    pub tree: Option<String>,
    /// When the run began, UTC, RFC 3339.
    pub began: String,
    /// The command that runs the experiment again.
    pub command: String,
    /// Whether it was the short form.
    pub quick: bool,
    /// Where it ran.
    pub machine: Machine,
    /// The result. Its plots are names of files in the same folder.
    pub outcome: Outcome,
}

/// The machine of a run.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Machine {
    /// The release of the kernel.
    pub kernel: String,
    /// The processors' name.
    pub processor: String,
    /// Number of processors.
    pub processors: usize,
}

/// The part of a file that every format has.
#[derive(Deserialize)]
struct Header {
    format: u32,
}

impl RunFile {
    /// A run of now. The plots of `outcome` are made names of files. Fails if the machine cannot be
    /// read from /proc.
    pub fn new(mut outcome: Outcome, began: jiff::Timestamp, quick: bool) -> Result<RunFile> {
        let form = if quick { " --quick" } else { "" };
        let command = format!("netnice-lab run {}{form}", outcome.id);
        for plot in &mut outcome.plots {
            let name = Path::new(plot.as_str()).file_name();
            *plot = name.context("a plot without a name")?.display().to_string();
        }
        Ok(RunFile {
            format: FORMAT,
            netnice: env!("CARGO_PKG_VERSION").to_owned(),
            tree: std::env::var(TREE).ok().or_else(tree),
            began: began.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
            command,
            quick,
            machine: Machine::here()?,
            outcome,
        })
    }

    /// The file of an experiment in a folder of runs.
    pub fn path(folder: &Path, id: &str) -> PathBuf {
        folder.join(format!("{id}.json"))
    }

    /// Writes it as a whole into a folder of runs, and removes the figures of an earlier run that
    /// it does not have. Fails if the file cannot be written.
    pub fn write(&self, folder: &Path) -> Result<()> {
        let path = RunFile::path(folder, &self.outcome.id);
        let earlier = RunFile::read(&path).map_or(Vec::new(), |run| run.outcome.plots);
        let text = serde_json::to_string_pretty(self)? + "\n";
        write_whole(&path, &text)?;
        for name in earlier {
            if !self.outcome.plots.contains(&name) {
                // A figure that cannot be removed is not shown.
                let _ = std::fs::remove_file(folder.join(name));
            }
        }
        Ok(())
    }

    /// Reads one. Fails if the file cannot be read, is no run, has another format, or has the name
    /// of another experiment.
    pub fn read(path: &Path) -> Result<RunFile> {
        let shown = path.display();
        let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {shown}"))?;
        let damaged = || format!("{shown} is no run");
        let Header { format } = serde_json::from_str(&text).with_context(damaged)?;
        if format != FORMAT {
            bail!("{shown} has the format {format}; this program reads {FORMAT}");
        }
        let file: RunFile = serde_json::from_str(&text).with_context(damaged)?;
        let id = &file.outcome.id;
        if path.file_stem().is_none_or(|name| name != &**id) {
            bail!("{shown} is a run of {id}");
        }
        let elsewhere = |name: &&String| Path::new(name).file_name().is_none_or(|n| n != &***name);
        if let Some(name) = file.outcome.plots.iter().find(elsewhere) {
            bail!("{shown} has a figure in another folder: {name}");
        }
        // Names of figures begin with that of their experiment, so one run never removes what
        // belongs to another.
        let other = |name: &&String| !(name.starts_with(&**id) && name.ends_with(".svg"));
        if let Some(name) = file.outcome.plots.iter().find(other) {
            bail!("{shown} has a figure of another name: {name}");
        }
        Ok(file)
    }
}

impl Machine {
    fn here() -> Result<Machine> {
        let read = |path: &str| {
            std::fs::read_to_string(path).with_context(|| format!("cannot read {path}"))
        };
        let processors = read("/proc/cpuinfo")?;
        let name = processors.lines().find_map(|line| {
            let (key, value) = line.split_once(':')?;
            (key.trim() == "model name").then(|| value.trim().to_owned())
        });
        Ok(Machine {
            kernel: read("/proc/sys/kernel/osrelease")?.trim().to_owned(),
            processor: name.unwrap_or_else(|| std::env::consts::ARCH.to_owned()),
            processors: std::thread::available_parallelism()?.get(),
        })
    }
}

/// The environment variable with the commit of the tree. A tree can change during a measurement of
/// hours, so the first process reads it for all.
pub(super) const TREE: &str = "NETNICE_TREE";

/// The commit of the tree from which this program was built, if it is still there, with `-dirty` if
/// sources differ from it.
pub(super) fn tree() -> Option<String> {
    let git = |words: &[&str]| {
        let mut git = std::process::Command::new("git");
        git.args(["-C", concat!(env!("CARGO_MANIFEST_DIR"), "/../..")]);
        let said = git.args(words).output().ok()?;
        let text = said
            .status
            .success()
            .then(|| String::from_utf8(said.stdout))?;
        Some(text.ok()?.trim().to_owned())
    };
    let commit = git(&["rev-parse", "--short=12", "HEAD"])?;
    let changed = git(&["status", "--porcelain", "--", "crates", "Cargo.lock"])?;
    Some(match changed.is_empty() {
        true => commit,
        false => commit + "-dirty",
    })
}

/// The format of the files that this program writes and reads.
const FORMAT: u32 = 1;
