//! Runs the fuzz targets of `fuzz/` with libFuzzer, a coverage-guided fuzzer.
//!
//! A target calls the same function on bytes as a test of some crate, and begins with the corpus of
//! that test: a folder of inputs, each named after its outcome, which is the text that the function
//! returns. Inputs that reach new code are kept in cargo's target folder, and the next run begins
//! with them too:
//! ```text
//!  target/fuzz/build             the programs
//!  target/fuzz/NAME/kept         inputs that reached something new, of all runs
//!  target/fuzz/NAME/found        findings: inputs with which the target failed or exceeded a limit
//!  target/fuzz/NAME/outcomes     the first input of each outcome, of the last run
//!  target/fuzz/NAME/log          libFuzzer's output of the last run
//! ```
//! A run changes no source file. The author of a fix adds the finding to the corpus, named after
//! its outcome with the fix. An input whose outcome the corpus lacks is printed, and is added in
//! the same way. From then on `make test` checks both. A run fails if a target has a finding or
//! cannot be built or run.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::{print_duration, run_parallel};
use crate::cargo_tools::CargoTool;
use crate::nightly::Nightly;
use crate::setup::{self, Use};
use crate::tree::Tree;

/// A target: its name, and the folder of its corpus.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Target {
    name: String,
    corpus: PathBuf,
}

/// The result of a run.
struct RunResult {
    name: String,
    took: Duration,
    log: Log,
    /// Number of inputs kept in this run.
    kept: usize,
    /// Inputs with an outcome that the corpus lacks.
    outcomes: Vec<PathBuf>,
    /// False if libFuzzer ended with an error.
    succeeded: bool,
}

/// The parsed output of libFuzzer.
#[derive(Debug, Default, PartialEq, Eq)]
struct Log {
    runs: u64,
    /// Coverage of the inputs that the run began with.
    first: Coverage,
    last: Coverage,
    /// The file of a finding.
    finding: Option<PathBuf>,
    /// The first [`MAX_TEXT_LINES`] lines after the last progress line, without those that begin
    /// with `INFO:`.
    text: String,
}

/// The coverage that a run reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Coverage {
    /// Edges of the control flow.
    edges: u64,
    /// Edges by how often they were taken, and values that were compared.
    features: u64,
}

/// Runs every target, or those whose name contains the filter, each for this time, as many at a
/// time as there are processors. Prints the coverage and the findings.
///
/// # Errors
/// If no target's name contains the filter, or a target has a finding, or cannot be built or run.
pub fn run(tree: &Tree, time: Duration, filter: Option<&str>) -> Result<()> {
    let mut targets = targets(tree)?;
    targets.retain(|one| filter.is_none_or(|filter| one.name.contains(filter)));
    if targets.is_empty() {
        let filter = filter.unwrap_or_default();
        bail!("no target of fuzz/ has '{filter}' in its name");
    }
    let programs = build(tree, &targets)?;
    print_duration("targets", targets.len(), time);
    let results = run_parallel(targets, |target| {
        let result = run_target(tree, &target, &programs.join(&target.name), time)?;
        println!("{}", result.line());
        Ok(result)
    })?;
    report(tree, &results)
}

/// Builds the target `name` and runs it once, on the input in `file`.
///
/// # Errors
/// If there is no such target or file, the target cannot be built, or the input is a finding.
pub fn replay(tree: &Tree, name: &str, file: &Path) -> Result<()> {
    let targets = targets(tree)?;
    let names: Vec<&str> = targets.iter().map(|one| one.name.as_str()).collect();
    let target = targets.iter().find(|one| one.name == name);
    let target =
        target.with_context(|| format!("no target {name}; one of: {}", names.join(", ")))?;
    let file = file
        .canonicalize()
        .with_context(|| format!("no input {}", file.display()))?;
    let programs = build(tree, std::slice::from_ref(target))?;
    let status = Command::new(programs.join(name))
        .args(LIMITS)
        .arg(&file)
        .status()?;
    match status.success() {
        true => Ok(()),
        false => bail!("{name} has a finding in {}", file.display()),
    }
}

/// The targets that the manifest of `fuzz/` names.
fn targets(tree: &Tree) -> Result<Vec<Target>> {
    let file = tree.root.join("fuzz/Cargo.toml");
    let text = fs::read_to_string(&file).with_context(|| format!("no {}", file.display()))?;
    let manifest: toml::Table = text.parse().context("fuzz/Cargo.toml")?;
    let corpora = ["package", "metadata", "corpus"]
        .iter()
        .try_fold(&manifest, |table, key| table.get(*key)?.as_table())
        .context("fuzz/Cargo.toml: no table package.metadata.corpus")?;
    let target = |(name, folder): (&String, &toml::Value)| {
        let folder = folder.as_str().context("a corpus is a folder's path")?;
        let (name, corpus) = (name.clone(), tree.root.join(folder));
        Ok(Target { name, corpus })
    };
    corpora.iter().map(target).collect()
}

/// Builds these targets, and returns the folder with their programs.
fn build(tree: &Tree, targets: &[Target]) -> Result<PathBuf> {
    setup::ensure(tree, Use::Build)?;
    setup::ensure(tree, Use::Fuzz)?;
    let nightly = Nightly::ensure("libFuzzer", &["cargo", "--version"], &[])?;
    let cargo_fuzz = CARGO_FUZZ.ensure(tree)?;
    let folder = folder(tree).join("build");
    let host = nightly.host()?;
    let step = || {
        nightly
            .step(&cargo_fuzz)
            .folder(&tree.root)
            .args(["fuzz", "build", "--fuzz-dir", "fuzz", "--target", &host])
            .args(["--target-dir".as_ref(), folder.as_os_str()])
    };
    match targets {
        [one] => step().args([&one.name]).run()?,
        _ => step().run()?,
    }
    Ok(folder.join(host).join("release"))
}

fn run_target(tree: &Tree, target: &Target, program: &Path, time: Duration) -> Result<RunResult> {
    let own = folder(tree).join(&target.name);
    let [kept, found, outcomes] = ["kept", "found", "outcomes"].map(|name| own.join(name));
    if outcomes.is_dir() {
        fs::remove_dir_all(&outcomes)?;
    }
    for folder in [&kept, &found, &outcomes] {
        fs::create_dir_all(folder)?;
    }
    let (log, before) = (own.join("log"), files(&kept)?.len());
    let started = Instant::now();
    let status = Command::new(program)
        .arg(format!("-max_total_time={}", time.as_secs()))
        .arg(format!("-artifact_prefix={}/", found.display()))
        .arg("-print_final_stats=1")
        .args(LIMITS)
        // libFuzzer writes new inputs into the first folder.
        .args([&kept, &target.corpus])
        .env("NETNICE_FUZZ_OUTCOMES", &outcomes)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(fs::File::create(&log)?)
        .status()
        .with_context(|| format!("cannot start {}", program.display()))?;
    let took = started.elapsed();
    let text = fs::read(&log)?;
    let known: BTreeSet<String> = files(&target.corpus)?.iter().map(outcome).collect();
    let mut others = files(&outcomes)?;
    others.retain(|file| !known.contains(&outcome(file)));
    Ok(RunResult {
        name: target.name.clone(),
        took,
        log: Log::read(&String::from_utf8_lossy(&text)),
        kept: files(&kept)?.len().saturating_sub(before),
        outcomes: others,
        succeeded: status.success(),
    })
}

impl RunResult {
    fn line(&self) -> String {
        let Log { first, last, .. } = &self.log;
        format!(
            "{}: {}, {} runs in {} s, edges {} at the start and {} at the end, features {} and {}, \
             {} more inputs kept",
            self.name,
            if self.succeeded {
                "no finding"
            } else {
                "FAILED"
            },
            self.log.runs,
            self.took.as_secs(),
            first.edges,
            last.edges,
            first.features,
            last.features,
            self.kept
        )
    }
}

impl Log {
    /// Parses the output. Progress lines are `#123 NEW cov: 45 ft: 67 corp: …`, with a word for the
    /// event.
    fn read(text: &str) -> Log {
        let (mut log, mut is_begun) = (Log::default(), false);
        for line in text.lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            let behind = |word: &str| {
                let at = words.iter().position(|one| *one == word)?;
                words.get(at + 1)?.parse().ok()
            };
            let number = words.first().and_then(|word| word.strip_prefix('#'));
            let progress = number.filter(|_| line.starts_with('#'));
            if let Some(runs) = progress.and_then(|runs| runs.parse().ok()) {
                log.runs = runs;
                let reached = (behind("cov:"), behind("ft:"));
                if let (Some(edges), Some(features)) = reached {
                    log.last = Coverage { edges, features };
                }
                if !is_begun {
                    log.first = log.last;
                    is_begun = words.get(1) == Some(&"INITED");
                }
                log.text.clear();
                continue;
            }
            if let Some(runs) = behind("stat::number_of_executed_units:") {
                log.runs = runs;
            }
            if let Some((_, file)) = line.split_once(FINDING_MARK) {
                log.finding = Some(PathBuf::from(file.trim()));
            }
            if !line.starts_with("INFO:") && log.text.lines().count() < MAX_TEXT_LINES {
                log.text.push_str(line);
                log.text.push('\n');
            }
        }
        log
    }
}

/// Prints the findings and how to reproduce them.
fn report(tree: &Tree, results: &[RunResult]) -> Result<()> {
    let shown = |file: &Path| match file.strip_prefix(&tree.root) {
        Ok(inside) => inside.display().to_string(),
        Err(_) => file.display().to_string(),
    };
    for one in results {
        for file in &one.outcomes {
            let (name, outcome, file) = (&one.name, outcome(file), shown(file));
            println!("{name}: no input of the corpus has the outcome {outcome}; one is {file}");
        }
    }
    let failed: Vec<&RunResult> = results.iter().filter(|one| !one.succeeded).collect();
    for one in &failed {
        println!("\n{}:\n{}", one.name, one.log.text.trim_end());
        if let Some(file) = &one.log.finding {
            let file = shown(file);
            println!(
                "\nto reproduce: cargo xtask fuzz --replay {} {file}",
                one.name
            );
        }
    }
    let runs: u64 = results.iter().map(|one| one.log.runs).sum();
    let (count, wrong) = (results.len(), failed.len());
    println!("\n{count} targets, {runs} runs, {wrong} with a finding");
    match wrong {
        0 => Ok(()),
        _ => bail!("a target has a finding; fix it, and add the input to the corpus"),
    }
}

/// The outcome in an input's file name: `checksum` for `checksum-2.bin`.
fn outcome(file: impl AsRef<Path>) -> String {
    let stem = file
        .as_ref()
        .file_stem()
        .unwrap_or_default()
        .to_string_lossy();
    let outcome = stem.rsplit_once('-').map(|(outcome, _)| outcome);
    outcome.unwrap_or(&stem).to_owned()
}

fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let list = fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))?;
    let mut files = Vec::new();
    for file in list {
        files.push(file?.path());
    }
    files.sort();
    Ok(files)
}

fn folder(tree: &Tree) -> PathBuf {
    tree.target.join("fuzz")
}

const CARGO_FUZZ: CargoTool = CargoTool {
    name: "cargo-fuzz",
    version: "0.13.2",
    build: &[],
};
/// An input that takes longer than ten seconds is a finding, and so is more than this memory for
/// all inputs together.
const LIMITS: [&str; 2] = ["-timeout=10", "-rss_limit_mb=2048"];
/// The text of libFuzzer before the file name of a finding.
const FINDING_MARK: &str = "Test unit written to ";
/// Largest number of lines shown of a finding's text.
const MAX_TEXT_LINES: usize = 40;

#[cfg(test)]
mod tests;
