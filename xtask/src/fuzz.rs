//! Runs every property for a given time, with new cases in each run.
//!
//! A property is a test inside `proptest!`. It tries `PROPTEST_CASES` cases and ends. `make test`
//! gives a property the same seed in every run, so that a new failure comes from the change under
//! test; here it has a new seed in every run. This module starts the test program repeatedly, with
//! as many cases as take [`RUN_TIME`] (30 s), until the time of the property is over. It runs as
//! many properties in parallel as there are processors. The sources show which tests are
//! properties, and cargo names their test programs.
//!
//! The verb fails if a property fails or does not end, and prints the test's output at the end. It
//! also fails if no property has the given filter in its name, or if the tests cannot be built. A
//! property stores its failed case in its crate (in `proptest-regressions`), and every later run
//! begins with that case.
//!
//! [`libfuzzer`] runs the targets of `fuzz/` instead; coverage guides them. Both hold the machine's
//! lock ([`MachineLock`]): they use all processors, and libFuzzer judges the time of each input.

mod libfuzzer;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::lock::MachineLock;
use crate::setup::{self, Use};
use crate::suite;
use crate::tree::{Crate, Tree};

/// A property and its location.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Property {
    package: String,
    folder: PathBuf,
    /// Module path and name, as the test program lists it; in a separate test program only the
    /// name.
    name: String,
    /// The test program, if it is a separate one.
    program: Option<String>,
}

/// The result of one property.
struct PropertyResult {
    property: Property,
    cases: u64,
    took: Duration,
    /// The output of the test if the property fails.
    failed: Option<String>,
}

/// The form of the command that was typed.
#[derive(Debug, PartialEq, Eq)]
enum FuzzCommand<'a> {
    /// All properties, or those whose name contains the filter.
    Properties(Duration, Option<&'a str>),
    /// All targets of `fuzz/`, or those whose name contains the filter.
    Learn(Duration, Option<&'a str>),
    /// One input for a target of `fuzz/`.
    Replay { target: &'a str, file: &'a str },
}

/// Runs `fuzz [--learn] [--for SECONDS] [FILTER]` or `fuzz --replay TARGET FILE`. The time is that
/// of each property or target, 600 s by default. Fails for invalid arguments, for the reasons that
/// this module names, or as [`libfuzzer::run`] and [`libfuzzer::replay`] do.
pub fn run(tree: &Tree, words: &[&str]) -> Result<()> {
    let command = parse(words)?;
    let _lock = match command {
        FuzzCommand::Properties(..) | FuzzCommand::Learn(..) => Some(MachineLock::take()?),
        FuzzCommand::Replay { .. } => None,
    };
    match command {
        FuzzCommand::Properties(time, filter) => properties(tree, time, filter),
        FuzzCommand::Learn(time, filter) => libfuzzer::run(tree, time, filter),
        FuzzCommand::Replay { target, file } => libfuzzer::replay(tree, target, Path::new(file)),
    }
}

/// Fails if these arguments are invalid.
pub fn check_args(words: &[&str]) -> Result<()> {
    parse(words).map(drop)
}

fn parse<'a>(words: &[&'a str]) -> Result<FuzzCommand<'a>> {
    let (learns, rest) = match words {
        ["--replay", target, file] => return Ok(FuzzCommand::Replay { target, file }),
        ["--replay", ..] => bail!("--replay takes a target of fuzz/ and a file"),
        ["--learn", rest @ ..] => (true, rest),
        rest => (false, rest),
    };
    let (time, rest) = match rest {
        ["--for", seconds, rest @ ..] => {
            let seconds = seconds.parse().ok().filter(|seconds| *seconds > 0);
            let seconds = seconds.context("--for takes seconds, a whole number above 0")?;
            (Duration::from_secs(seconds), rest)
        }
        rest => (DEFAULT_TIME, rest),
    };
    let filter = match rest {
        [] => None,
        [filter] if !filter.starts_with('-') => Some(*filter),
        _ => bail!(
            "fuzz takes --learn, --for SECONDS and one filter, in this order; got '{}'",
            words.join(" ")
        ),
    };
    Ok(match learns {
        false => FuzzCommand::Properties(time, filter),
        true => FuzzCommand::Learn(time, filter),
    })
}

fn properties(tree: &Tree, time: Duration, filter: Option<&str>) -> Result<()> {
    setup::ensure(tree, Use::Build)?;
    let mut properties = Vec::new();
    for one in &tree.crates {
        properties.extend(properties_of(one)?);
    }
    properties.retain(|one| filter.is_none_or(|filter| one.full_name().contains(filter)));
    if properties.is_empty() {
        bail!(
            "no property has '{}' in its name",
            filter.unwrap_or_default()
        );
    }
    let programs = build(tree, &properties)?;
    print_duration("properties", properties.len(), time);
    let mut queue = Vec::new();
    for one in properties {
        let program = program_of(&programs, &one)?;
        queue.push((one, program));
    }
    let results = run_parallel(queue, |(property, program)| {
        let result = try_property(tree, property, program, time)?;
        let verdict = if result.failed.is_some() {
            "FAILED"
        } else {
            "holds"
        };
        let (cases, took) = (result.cases, result.took.as_secs());
        let name = result.property.full_name();
        println!("{name}: {verdict}, {cases} cases in {took} s");
        Ok(result)
    })?;
    report(&results)
}

impl Property {
    /// Package, test program and name, separated by blanks.
    fn full_name(&self) -> String {
        let program = self.program.as_deref().unwrap_or_default();
        [&self.package, program, &self.name]
            .into_iter()
            .filter(|part| !part.is_empty())
            .collect::<Vec<_>>()
            .join(" ")
    }
}

/// Finds the properties of a crate in its sources.
fn properties_of(one: &Crate) -> Result<Vec<Property>> {
    let mut found = Vec::new();
    if !one.dependencies.iter().any(|used| used == "proptest") {
        return Ok(found);
    }
    for root in ["src", "tests"] {
        let mut files = Vec::new();
        sources(&one.folder.join(root), &mut files)?;
        for file in files {
            let inside = file.strip_prefix(one.folder.join(root))?;
            let text = std::fs::read_to_string(&file)?;
            for (inner, name) in properties_in(&text) {
                let mut path = modules(inside);
                let program = (root == "tests").then(|| path.remove(0));
                path.extend(inner.map(str::to_owned));
                path.push(name.to_owned());
                found.push(Property {
                    package: one.name.clone(),
                    folder: one.folder.clone(),
                    name: path.join("::"),
                    program,
                });
            }
        }
    }
    Ok(found)
}

fn sources(folder: &Path, found: &mut Vec<PathBuf>) -> Result<()> {
    if !folder.is_dir() {
        return Ok(());
    }
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        match path.extension() {
            _ if path.is_dir() => sources(&path, found)?,
            Some(kind) if kind == "rs" => found.push(path),
            _ => {}
        }
    }
    found.sort();
    Ok(())
}

/// The module path of a file: `sched/tests/cells.rs` is `sched::tests::cells`.
fn modules(file: &Path) -> Vec<String> {
    let path = file.with_extension("");
    let parts = path.iter().map(|part| part.to_string_lossy().into_owned());
    parts
        .filter(|part| part != "lib" && part != "main")
        .collect()
}

/// The names of the tests inside `proptest!`, each with its module inside the file. The text must
/// be formatted by rustfmt, which ends a block at the indentation where it begins.
fn properties_in(text: &str) -> Vec<(Option<&str>, &str)> {
    let mut found = Vec::new();
    let (mut module, mut block, mut is_test) = (None, None, false);
    for line in text.lines() {
        let trimmed = line.trim_start();
        let margin = line.len() - trimmed.len();
        match block {
            None if trimmed.starts_with("proptest! {") => block = Some(margin),
            None if margin == 0 && trimmed.starts_with("mod ") && trimmed.ends_with(" {") => {
                module = trimmed["mod ".len()..].strip_suffix(" {");
            }
            None if margin == 0 && trimmed == "}" => module = None,
            Some(from) if margin == from && trimmed.starts_with('}') => block = None,
            Some(_) if trimmed.starts_with("#[test]") => is_test = true,
            Some(_) if is_test && trimmed.starts_with("fn ") => {
                let name = trimmed["fn ".len()..].split('(').next();
                found.extend(name.map(|name| (module, name)));
                is_test = false;
            }
            _ => {}
        }
    }
    found
}

/// A test program: the folder of its package, its name if it is a separate one, and its path.
struct Program {
    folder: PathBuf,
    name: Option<String>,
    path: PathBuf,
}

/// Builds the test programs of these properties, optimised.
fn build(tree: &Tree, properties: &[Property]) -> Result<Vec<Program>> {
    let mut packages: Vec<&str> = properties.iter().map(|one| &*one.package).collect();
    packages.dedup();
    let mut programs: Vec<&str> = properties
        .iter()
        .flat_map(|one| one.program.as_deref())
        .collect();
    programs.dedup();
    let text = suite::cargo(tree)
        .args([
            "test",
            "--release",
            "--no-run",
            "--message-format=json",
            "--lib",
            "--bins",
        ])
        .args(packages.iter().flat_map(|name| ["--package", name]))
        .args(programs.iter().flat_map(|name| ["--test", name]))
        .capture()?;
    let mut all = Vec::new();
    for line in text.lines() {
        let message: Value = serde_json::from_str(line).context("cargo did not print JSON")?;
        let (Some(path), Some(manifest)) = (
            message["executable"].as_str(),
            message["manifest_path"].as_str(),
        ) else {
            continue;
        };
        if message["profile"]["test"] != true {
            continue;
        }
        let is_own = message["target"]["kind"][0] == "test";
        let name = message["target"]["name"].as_str().filter(|_| is_own);
        all.push(Program {
            folder: Path::new(manifest).with_file_name(""),
            name: name.map(str::to_owned),
            path: path.into(),
        });
    }
    Ok(all)
}

/// The program that contains a property. A crate may have several: those of its library and of its
/// programs.
fn program_of<'a>(programs: &'a [Program], property: &Property) -> Result<&'a Path> {
    let of_crate = programs
        .iter()
        .filter(|one| one.folder == property.folder.join("") && one.name == property.program);
    for one in of_crate {
        let listed = Command::new(&one.path)
            .args(["--list", "--exact", &property.name])
            .current_dir(&property.folder)
            .output()
            .with_context(|| format!("cannot start {}", one.path.display()))?;
        if String::from_utf8_lossy(&listed.stdout).contains(&format!("{}: test", property.name)) {
            return Ok(&one.path);
        }
    }
    bail!("no test program has '{}'", property.full_name())
}

/// Number of parallel runs: the number of processors.
fn parallel_runs() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

fn print_duration(what: &str, count: usize, time: Duration) {
    let rounds = count.div_ceil(parallel_runs()) as u64;
    println!(
        "{count} {what} for {} s each, {} at a time: {} min",
        time.as_secs(),
        parallel_runs().min(count),
        (rounds * time.as_secs()).div_ceil(60)
    );
}

/// Applies `work` to the elements in order, in [`parallel_runs`] threads. Returns the results in
/// the order in which they were ready. A thread ends at its first error, while the others go on
/// with the remaining elements; then one of the errors is returned.
fn run_parallel<T: Send, R: Send>(
    all: Vec<T>,
    work: impl Fn(T) -> Result<R> + Sync,
) -> Result<Vec<R>> {
    let (queue, done) = (Mutex::new(all.into_iter()), Mutex::new(Vec::new()));
    let works = || -> Result<()> {
        loop {
            let next = queue
                .lock()
                .expect("no thread panics while it holds the lock")
                .next();
            let Some(next) = next else {
                return Ok(());
            };
            let one = work(next)?;
            done.lock()
                .expect("no thread panics while it holds the lock")
                .push(one);
        }
    };
    std::thread::scope(|scope| {
        let all: Vec<_> = (0..parallel_runs()).map(|_| scope.spawn(works)).collect();
        all.into_iter()
            .try_for_each(|one| one.join().expect("it does not panic"))
    })?;
    Ok(done
        .into_inner()
        .expect("no thread panics while it holds the lock"))
}

/// Tries one property until its time is over or it fails.
fn try_property(
    tree: &Tree,
    property: Property,
    program: &Path,
    time: Duration,
) -> Result<PropertyResult> {
    let started = Instant::now();
    let (mut cases, mut next) = (0, FIRST_CASES);
    let mut failed = None;
    while failed.is_none() && started.elapsed() < time {
        let run = Instant::now();
        failed = run_once(tree, &property, program, next, time * 2 + RUN_TIME)?;
        cases += next;
        // As many cases as take one run, or the rest of the time.
        let left = time.saturating_sub(started.elapsed()).min(RUN_TIME);
        let took = run.elapsed().as_secs_f64().max(0.001);
        let fit = next as f64 * left.as_secs_f64() / took;
        next = (fit as u64).clamp(1, (next * 10).min(MAX_CASES));
    }
    Ok(PropertyResult {
        property,
        cases,
        took: started.elapsed(),
        failed,
    })
}

/// Runs one property with this number of cases. Returns its output if it failed or did not end in
/// time.
fn run_once(
    tree: &Tree,
    property: &Property,
    program: &Path,
    cases: u64,
    most: Duration,
) -> Result<Option<String>> {
    let log = log_file(tree, property)?;
    let mut child = Command::new(program)
        .args(["--exact", &property.name, "--test-threads=1", "--nocapture"])
        .current_dir(&property.folder)
        .env("PROPTEST_CASES", cases.to_string())
        .env("NETNICE_BIN_DIR", tree.programs())
        .env_remove("NETNICE_RUNTIME_DIR")
        .env_remove("PROPTEST_RNG_SEED")
        .stdin(Stdio::null())
        .stdout(std::fs::File::create(&log)?)
        .stderr(std::fs::File::options().append(true).open(&log)?)
        .spawn()
        .with_context(|| format!("cannot start {}", program.display()))?;
    let started = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break Some(status);
        }
        if started.elapsed() > most {
            child.kill()?;
            child.wait()?;
            break None;
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    let text = std::fs::read(&log)?;
    std::fs::remove_file(&log)?;
    Ok(match status {
        Some(status) if status.success() => None,
        Some(_) => Some(String::from_utf8_lossy(&text).into_owned()),
        None => Some(format!(
            "{cases} cases did not end within {} s",
            most.as_secs()
        )),
    })
}

fn log_file(tree: &Tree, property: &Property) -> Result<PathBuf> {
    let folder = tree.target.join("fuzz");
    std::fs::create_dir_all(&folder)?;
    let name = property.full_name().replace([' ', ':'], "-");
    Ok(folder.join(format!("{name}-{}.log", std::process::id())))
}

fn report(results: &[PropertyResult]) -> Result<()> {
    let failed: Vec<&PropertyResult> = results.iter().filter(|one| one.failed.is_some()).collect();
    for one in &failed {
        println!(
            "\n{}:\n{}",
            one.property.full_name(),
            one.failed.as_deref().unwrap_or_default()
        );
    }
    let cases: u64 = results.iter().map(|one| one.cases).sum();
    println!(
        "\n{} properties, {cases} cases, {} failed",
        results.len(),
        failed.len()
    );
    match failed.len() {
        0 => Ok(()),
        _ => {
            bail!("a property does not hold; its case is in proptest-regressions beside its source")
        }
    }
}

/// Default time of each property or target.
const DEFAULT_TIME: Duration = Duration::from_secs(600);
/// Time of one run: long compared to its start, and short enough to report a failure in time.
const RUN_TIME: Duration = Duration::from_secs(30);
/// Cases of the first run.
const FIRST_CASES: u64 = 64;
/// Largest number of cases in one run; proptest counts in 32 bits.
const MAX_CASES: u64 = u32::MAX as u64;

#[cfg(test)]
mod tests;
