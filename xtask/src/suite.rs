//! Builds the release programs, and runs the demo, the tests and the measurements.
//!
//! There are two kinds of tests. **Unit tests** are all tests outside the lab's `tests` folder, and
//! the examples in documentation. They run in a debug build, with overflow checks and invariants.
//! **System tests** (`crates/lab/tests`) build worlds of network namespaces and use the release
//! programs, which they find by `NETNICE_BIN_DIR`. cargo-nextest ([`crate::nextest`]) runs both
//! kinds, each test in a process of its own (cargo itself runs the examples in documentation);
//! `.config/nextest.toml` defines which system tests run in parallel.
//!
//! The demo, the system tests and the measurements need root, and hold the machine's lock
//! ([`MachineLock`]) from before the build to the end. A verb fails without root where it needs
//! root, if a package cannot be installed, if a build fails, if the run of the tests does not pass
//! ([`crate::results`]), or if a measured value is outside its bound.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::cpu_latency;
use crate::flaky::KnownFlaky;
use crate::lock::MachineLock;
use crate::nextest::{self, Run};
use crate::results::{Outcome, Results, TestResult};
use crate::setup::{self, Use};
use crate::step::{self, Step};
use crate::tree::Tree;

/// Installs missing packages and builds the release programs. Fails if one of these fails.
pub fn build(tree: &Tree) -> Result<()> {
    setup::ensure(tree, Use::Build)?;
    release(tree)?;
    link_soname(&tree.programs())
}

/// Makes a link with the soname of the C library beside the library, which programs that are linked
/// with it load.
fn link_soname(programs: &Path) -> Result<()> {
    let link = programs.join("libnetnice.so.0");
    match fs::remove_file(&link) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => symlink("libnetnice.so", &link),
    }
    .with_context(|| format!("cannot make the link {}", link.display()))
}

/// Builds and runs the demo; further arguments go to the demo. Without `--out` the report is
/// `demo.html` in cargo's target folder. Fails without root, or if the demo fails.
pub fn demo(tree: &Tree, words: &[&str]) -> Result<()> {
    let _lock = prepare(tree, "make demo", release)?;
    let report = tree.target.join("demo.html");
    let mut lab = lab(tree)?.args(["demo"]).args(words);
    if !words.iter().any(|word| word.starts_with("--out")) {
        lab = lab.args(["--out".into(), report.into_os_string()]);
    }
    lab.run()
}

/// Runs the tests: `test [--unit|--system] [FILTER…]`: all, or those whose names contain one of the
/// filters. The last line has the number of tests of each
/// outcome. Fails if the run does not pass ([`crate::results`]), if a build fails, or without root
/// unless `--unit` is given.
pub fn test(tree: &Tree, words: &[&str]) -> Result<()> {
    let (scope, filters) = Scope::parse(words)?;
    let known = KnownFlaky::read(&tree.root)?;
    let started = Instant::now();
    let _lock = match scope {
        Scope::Unit => {
            nextest::ensure(tree)?;
            None
        }
        Scope::All | Scope::System => Some(prepare(tree, "make test", release_and_tests)?),
    };
    let mut results = Results::default();
    results.add_step("packages and release build", started.elapsed());
    if scope != Scope::System {
        unit_tests(tree, filters, &mut results)?;
    }
    if scope != Scope::Unit {
        let _awake = cpu_latency::forbid_deep_sleep();
        system_tests(tree, filters, &mut results)?;
    }
    report(&results, &known, started)
}

/// Prints the summary of a run, and fails if the run does not pass.
pub fn report(results: &Results, known: &KnownFlaky, started: Instant) -> Result<()> {
    println!("\n{:6.0} s  total", started.elapsed().as_secs_f64());
    println!("{}", results.summary(known));
    let faults = results.faults(known);
    match faults.is_empty() {
        true => Ok(()),
        false => bail!("the tests do not pass: {}", faults.join("; ")),
    }
}

/// Fails if these arguments of `test` are invalid.
pub fn check_args(words: &[&str]) -> Result<()> {
    Scope::parse(words).map(drop)
}

/// Runs the benchmarks of the crates, then the lab's experiments about cost, then the quick form of
/// those about exact rates, times and shares. All of them run; the verb fails if one of them fails
/// or reports a value outside its bound, and as [`prepare`] does.
pub fn bench(tree: &Tree) -> Result<()> {
    let _lock = prepare(tree, "make bench", release)?;
    setup::ensure(tree, Use::Bench)?;
    let mut exceeded = Vec::new();
    for one in tree.crates.iter().filter(|one| one.has("bench")) {
        let step =
            with_test_env(tree, cargo(tree))?.args(["bench", "--package", &one.name, "--benches"]);
        if !step.status()?.success() {
            exceeded.push(format!("the benchmarks of {}", one.name));
        }
    }
    let full = COST_RUNS.map(|id| (id, None));
    let quick = EXACT_RUNS.map(|id| (id, Some("--quick")));
    for (id, form) in full.into_iter().chain(quick) {
        if !lab(tree)?.args(["run", id]).args(form).status()?.success() {
            exceeded.push(id.to_owned());
        }
    }
    match exceeded.is_empty() {
        true => Ok(()),
        false => bail!("outside a bound: {}", exceeded.join(", ")),
    }
}

/// Measures each experiment that the evidence lacks, and writes its page. It can be broken off, and
/// goes on when it is run again. Fails if the programs cannot be built, if an experiment cannot be
/// measured, or if a file of the evidence cannot be read or written.
pub fn evidence(tree: &Tree) -> Result<()> {
    let _lock = prepare(tree, "make evidence", release)?;
    setup::traffic_toll(tree);
    let folder = tree.root.join("docs/evidence");
    lab(tree)?
        .args(["report", "--measure"])
        .args([folder])
        .run()
}

/// The programs that a user installs, and the lab.
pub const PROGRAMS: [&str; 5] = [
    "netnice",
    "netniced",
    "netnice-driver",
    "netnice-peer",
    "netnice-lab",
];

/// Builds the release programs and the C library. The packages of [`Use::Build`] must be installed.
/// Fails if cargo fails.
pub fn release(tree: &Tree) -> Result<()> {
    release_words(tree).run()
}

/// As [`release`], and builds the system tests in the same call. A later call would build shared
/// crates again if the tests need other features of them. Fails if cargo fails.
pub fn release_and_tests(tree: &Tree) -> Result<()> {
    release_words(tree)
        .args(test_words(system_test_names(tree)))
        .run()
}

fn release_words(tree: &Tree) -> Step {
    cargo(tree)
        .args(["build", "--release", "--workspace", "--lib"])
        // These crates are part of no program, and the first one depends on proptest.
        .args(["--exclude", CASES, "--exclude", DOCUMENTS])
        .args(["--exclude", SCRIPTS])
        .args(PROGRAMS.iter().flat_map(|name| ["--bin", name]))
}

/// Names of the lab's test programs.
pub fn system_test_names(tree: &Tree) -> Vec<&str> {
    let lab = tree.crates.iter().filter(|one| one.name == LAB);
    let targets = lab.flat_map(|one| &one.targets);
    targets
        .filter(|(kind, _)| kind == "test")
        .map(|(_, name)| name.as_str())
        .collect()
}

/// The arguments that select the system tests. They name the whole workspace, so that the crates of
/// the release programs are used here too.
pub fn system_test_words(tree: &Tree) -> Vec<&str> {
    ["--release", "--workspace"]
        .into_iter()
        .chain(test_words(system_test_names(tree)))
        .collect()
}

fn test_words(names: Vec<&str>) -> impl Iterator<Item = &str> {
    names.into_iter().flat_map(|name| ["--test", name])
}

/// A cargo step in the root of the tree.
pub fn cargo(tree: &Tree) -> Step {
    Step::new(step::cargo()).folder(&tree.root)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scope {
    All,
    Unit,
    System,
}

impl Scope {
    fn parse<'a, 'w>(words: &'w [&'a str]) -> Result<(Scope, &'w [&'a str])> {
        let (scope, rest) = match words {
            ["--unit", rest @ ..] => (Scope::Unit, rest),
            ["--system", rest @ ..] => (Scope::System, rest),
            rest => (Scope::All, rest),
        };
        match rest.iter().any(|word| word.starts_with('-')) {
            false => Ok((scope, rest)),
            true => bail!(
                "test takes --unit or --system, and filters; got '{}'",
                rest.join(" ")
            ),
        }
    }
}

fn unit_tests(tree: &Tree, filters: &[&str], results: &mut Results) -> Result<()> {
    // One call for all packages: with another set of packages cargo would build shared crates again
    // with other features.
    let crates = tree.crates.iter().filter(|one| one.name != LAB);
    let programs = crates.flat_map(|one| &one.targets);
    let programs = programs.filter(|(kind, _)| kind == "test");
    let programs = programs.flat_map(|(_, name)| ["--test".to_owned(), name.clone()]);
    let unit = Run {
        what: "unit tests",
        profile: "default",
        words: words("--workspace --lib --bins --examples")
            .into_iter()
            .chain(programs)
            .chain(filters.iter().map(|&filter| filter.to_owned()))
            .collect(),
    };
    run_timed(tree, &unit, results)?;
    doc_tests(tree, filters, results)
}

/// Runs the examples in documentation, which cargo-nextest does not run.
fn doc_tests(tree: &Tree, filters: &[&str], results: &mut Results) -> Result<()> {
    let started = Instant::now();
    let step = with_test_env(tree, cargo(tree))?
        .args(["test", "--workspace", "--doc", "--no-fail-fast", "--"])
        .args(filters);
    let mut tests = Vec::new();
    let status = step.watch("", |line| tests.extend(parse_doc_test(line)))?;
    if !status.success() && tests.iter().all(|test| test.outcome != Outcome::Failed) {
        results.add_broken("documentation");
    }
    results.add(tests);
    results.add_step("documentation", started.elapsed());
    Ok(())
}

/// Parses a line of the documentation tests, such as `test crates/core/src/rate.rs - rate::Rate
/// (line 12) ... ok`.
fn parse_doc_test(line: &str) -> Option<TestResult> {
    let (name, outcome) = line.strip_prefix("test ")?.rsplit_once(" ... ")?;
    let outcome = match outcome {
        "ok" => Outcome::Passed,
        "FAILED" => Outcome::Failed,
        // An example that is no program is reported as ignored.
        _ => return None,
    };
    Some(TestResult {
        program: "documentation".to_owned(),
        name: name.to_owned(),
        outcome,
        took: Duration::ZERO,
    })
}

fn system_tests(tree: &Tree, filters: &[&str], results: &mut Results) -> Result<()> {
    let system = Run {
        what: "system tests",
        profile: "default",
        words: system_test_words(tree)
            .into_iter()
            .map(str::to_owned)
            .chain(filters.iter().map(|&filter| filter.to_owned()))
            .collect(),
    };
    run_timed(tree, &system, results)
}

/// Runs tests with the environment of a test, and adds their outcomes and the time that they took
/// to `results`. Fails as [`Run::run`] does.
pub fn run_timed(tree: &Tree, run: &Run<'_>, results: &mut Results) -> Result<()> {
    let started = Instant::now();
    run.run(tree, |step| with_test_env(tree, step), results)?;
    results.add_step(run.what, started.elapsed());
    Ok(())
}

/// Splits a command line at blanks.
pub fn words(line: &str) -> Vec<String> {
    line.split_whitespace().map(str::to_owned).collect()
}

/// Prepares a verb that makes network namespaces: checks that this process is root, installs
/// packages, takes the machine's lock, and runs `build`. The packages that only a run needs are
/// installed while cargo builds. Returns the lock, which the caller keeps until the run has ended.
/// `what` names the verb in messages. Fails if one of these steps fails.
pub fn prepare(tree: &Tree, what: &str, build: fn(&Tree) -> Result<()>) -> Result<MachineLock> {
    step::require_root(what, "it makes network namespaces and loads eBPF programs")?;
    setup::ensure(tree, Use::Build)?;
    let lock = MachineLock::take()?;
    let (built, installed) = std::thread::scope(|scope| {
        let install = scope.spawn(|| {
            setup::ensure(tree, Use::Run)?;
            nextest::ensure(tree).map(drop)
        });
        (build(tree), install.join().expect("it does not panic"))
    });
    built.and(installed)?;
    Ok(lock)
}

/// A step that runs `netnice-lab` of this tree's release programs. Fails as
/// [`setup::program_path`] does.
pub fn lab(tree: &Tree) -> Result<Step> {
    let program: PathBuf = tree.programs().join(LAB);
    with_test_env(tree, Step::new(program))
}

/// Sets the environment of a step that runs the project's programs: `NETNICE_BIN_DIR` alone locates
/// them, and a daemon of the machine itself is not used. Properties try the same cases in every
/// run, unless the caller has set another seed; [`crate::fuzz`] tries new ones.
fn with_test_env(tree: &Tree, step: Step) -> Result<Step> {
    let seed = std::env::var(PROPERTY_SEED.0);
    Ok(step
        .env("NETNICE_BIN_DIR", tree.programs())
        .env("PATH", setup::program_path(tree)?)
        .env(PROPERTY_SEED.0, seed.as_deref().unwrap_or(PROPERTY_SEED.1))
        .without_env("NETNICE_RUNTIME_DIR"))
}

/// The variable from which proptest reads the seed of its cases, and the seed of a test run.
const PROPERTY_SEED: (&str, &str) = ("PROPTEST_RNG_SEED", "1");
const LAB: &str = "netnice-lab";
const CASES: &str = "netnice-cases";
const DOCUMENTS: &str = "netnice-documents";
const SCRIPTS: &str = "netnice-scripts";
/// The lab's experiments about the cost of enforcement.
const COST_RUNS: [&str; 6] = [
    "nice-tab1",
    "cost",
    "burning",
    "scale",
    "programs",
    "programs-cost",
];
/// Experiments about exact rates, times and shares. A busy machine disturbs them, so no test judges
/// them.
const EXACT_RUNS: [&str; 16] = [
    "accuracy",
    "change",
    "latency",
    "queue",
    "guarantees",
    "weights",
    "estimate",
    "receive",
    "two-interfaces",
    "death",
    "nice-fig3",
    "nice-fig4",
    "vert-fig5b",
    "vert-fig7",
    "cell-fig3",
    "cell-fig4",
];

#[cfg(test)]
mod tests;
