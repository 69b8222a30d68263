//! The release programs, and what runs them: the demo, the tests, the measurements.
//!
//! Tests come in two kinds. **Unit tests** stand beside the code, run in parallel and in a debug build, so
//! that overflow checks and invariants are on. **System tests** (`crates/lab/tests`) build worlds of network
//! namespaces and talk to the release programs, which they find by `NETNICE_BIN_DIR`. Those of
//! [`SIDE_BY_SIDE`] mostly wait for slow traffic: [`AT_ONCE`] of them run at a time, each in a world of its
//! own. All others run one at a time, since two of them would measure each other.
//!
//! Whatever measures holds the machine's lock from before the build to the end.

use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Result, bail};

use crate::awake;
use crate::closing::Ledger;
use crate::deb;
use crate::lock::MachineLock;
use crate::miri;
use crate::model;
use crate::setup::{self, Use};
use crate::step::{self, Step};
use crate::tree::Tree;

/// Builds the release programs.
pub fn build(tree: &Tree) -> Result<()> {
    setup::ensure(tree, Use::Build)?;
    release(tree)
}

/// Builds and runs the demo; further words go to it.
pub fn demo(tree: &Tree, words: &[&str]) -> Result<()> {
    let _lock = ready(tree, "make demo", release)?;
    let report = tree.target.join("demo.html");
    let mut lab = lab(tree)?.args(["demo"]).args(words);
    if !words.iter().any(|word| word.starts_with("--out")) {
        lab = lab.args(["--out".into(), report.into_os_string()]);
    }
    lab.run()
}

/// `test [--unit|--system] [FILTER]`: runs the tests and ends with their closing lines and one sum.
pub fn test(tree: &Tree, words: &[&str]) -> Result<()> {
    let (scope, filter) = Scope::parse(words)?;
    let started = Instant::now();
    let _lock = match scope {
        Scope::Unit => None,
        Scope::All | Scope::System => Some(ready(tree, "make test", release_and_tests)?),
    };
    let mut ledger = Ledger::default();
    ledger.took("packages and release build", started.elapsed());
    if scope != Scope::System {
        unit_tests(tree, filter, &mut ledger)?;
    }
    if scope != Scope::Unit {
        let _awake = awake::keep();
        system_tests(tree, filter, &mut ledger)?;
    }
    println!(
        "\n{ledger}; finished in {:.0} s",
        started.elapsed().as_secs_f64()
    );
    match ledger.total().failed_runner {
        true => bail!("the tests do not pass"),
        false => Ok(()),
    }
}

/// Fails if these arguments of `test` make no sense.
pub fn reads(words: &[&str]) -> Result<()> {
    Scope::parse(words).map(drop)
}

/// Benchmarks of the crates, then the lab's runs about cost.
pub fn bench(tree: &Tree) -> Result<()> {
    let _lock = ready(tree, "make bench", release)?;
    setup::ensure(tree, Use::Bench)?;
    for one in tree.crates.iter().filter(|one| one.has("bench")) {
        under_test(tree, cargo(tree))?
            .args(["bench", "--package", &one.name, "--benches"])
            .run()?;
    }
    for id in COST_RUNS {
        lab(tree)?.args(["run", id]).run()?;
    }
    Ok(())
}

/// Every test, those of core and of the ring under Miri, the ring under loom, then those that are too long for every
/// day (`#[ignore]`, optimised), then the package, then every experiment of the lab.
pub fn long(tree: &Tree) -> Result<()> {
    test(tree, &[])?;
    miri::run(tree, &[])?;
    model::run(tree, &[])?;
    deb::run(tree, &["--try"])?;
    let _lock = ready(tree, "make test-long", release)?;
    let started = Instant::now();
    let mut ledger = Ledger::default();
    // No documentation tests: there `ignore` means that a text is no program.
    let step = under_test(tree, cargo(tree))?
        .args(["test", "--release", "--workspace", "--no-fail-fast"])
        .args(["--lib", "--bins", "--tests", "--"])
        .args(["--ignored", "--test-threads=1"]);
    watched("long tests", step, &mut ledger)?;
    println!(
        "\n{ledger}; finished in {:.0} s",
        started.elapsed().as_secs_f64()
    );
    if ledger.total().failed_runner {
        bail!("the long tests do not pass");
    }
    lab(tree)?.args(["all"]).run()
}

/// The programs that a user gets, and the lab.
pub const PROGRAMS: [&str; 4] = ["netnice", "netniced", "netnice-driver", "netnice-lab"];

/// Builds the release programs and the C library, with everything for it there already.
pub fn release(tree: &Tree) -> Result<()> {
    release_words(tree).run()
}

/// The same, and the system tests in one go with them: built after them, what both use would be built once more where
/// the tests want another feature of it.
fn release_and_tests(tree: &Tree) -> Result<()> {
    release_words(tree)
        .args(test_words(system_test_names(tree)))
        .run()
}

fn release_words(tree: &Tree) -> Step {
    cargo(tree)
        .args(["build", "--release", "--workspace", "--lib"])
        // No program is made of these, and the first brings proptest.
        .args(["--exclude", CASES, "--exclude", DOCUMENTS])
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

/// The arguments that build or run the system tests. Of the whole workspace, so that what the release programs are
/// built of serves here too.
pub fn system_test_words(tree: &Tree) -> Vec<&str> {
    ["test", "--release", "--workspace"]
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
    fn parse<'a>(words: &[&'a str]) -> Result<(Scope, Option<&'a str>)> {
        let (scope, rest) = match words {
            ["--unit", rest @ ..] => (Scope::Unit, rest),
            ["--system", rest @ ..] => (Scope::System, rest),
            rest => (Scope::All, rest),
        };
        match rest {
            [] => Ok((scope, None)),
            [filter] if !filter.starts_with('-') => Ok((scope, Some(filter))),
            _ => bail!(
                "test takes --unit or --system, and one filter; got '{}'",
                rest.join(" ")
            ),
        }
    }
}

fn unit_tests(tree: &Tree, filter: Option<&str>, ledger: &mut Ledger) -> Result<()> {
    // All in one go: with another choice of packages cargo would build what they share anew, with other features.
    let crates = tree.crates.iter().filter(|one| one.name != LAB);
    let beside = crates.flat_map(|one| &one.targets);
    let beside = beside.filter(|(kind, _)| kind == "test");
    let beside = beside.flat_map(|(_, name)| ["--test", name.as_str()]);
    let code: Vec<&str> = ["--lib", "--bins", "--examples"]
        .into_iter()
        .chain(beside)
        .collect();
    for (what, targets) in [("unit tests", &code[..]), ("documentation", &["--doc"])] {
        let step = under_test(tree, cargo(tree))?
            .args(["test", "--workspace", "--no-fail-fast"])
            .args(targets)
            .args(filter);
        watched(what, step, ledger)?;
    }
    Ok(())
}

fn system_tests(tree: &Tree, filter: Option<&str>, ledger: &mut Ledger) -> Result<()> {
    if system_test_names(tree).is_empty() {
        eprintln!("xtask: there are no system tests in crates/lab/tests");
        return Ok(());
    }
    let names = system_test_names(tree).into_iter();
    let (together, alone): (Vec<_>, Vec<_>) = names.partition(|name| SIDE_BY_SIDE.contains(name));
    let mut own = Ledger::default();
    let [few, one] = [AT_ONCE, 1].map(|threads| format!("--test-threads={threads}"));
    for (what, names, threads) in [
        ("system tests side by side", together, few),
        ("system tests one at a time", alone, one),
    ] {
        let step = under_test(tree, cargo(tree))?
            .args(["test", "--release", "--workspace"])
            .args(test_words(names))
            .args(["--no-fail-fast", "--", &threads])
            .args(filter);
        watched(what, step, &mut own)?;
    }
    once_more(tree, &mut own)?;
    ledger.add(own);
    Ok(())
}

fn watched(what: &str, step: Step, ledger: &mut Ledger) -> Result<()> {
    let started = Instant::now();
    let status = step.watch(|line| ledger.line(line))?;
    ledger.took(what, started.elapsed());
    ledger.ended(what, status);
    Ok(())
}

/// Runs each system test that failed once more, alone. They measure a machine that others use too, and a burst of
/// their work is no fault of ours, while a fault of ours shows again. Who passes now is told of in the closing line;
/// more than [`FEW`] are no accident.
fn once_more(tree: &Tree, ledger: &mut Ledger) -> Result<()> {
    let failures = ledger.failures();
    if failures.is_empty() || failures.len() > FEW {
        return Ok(());
    }
    let started = Instant::now();
    for (program, test) in failures {
        println!("\n{program}: {test} failed; once more, alone");
        let step = under_test(tree, cargo(tree))?
            .args(["test", "--release", "--workspace", "--test", &program])
            .args(["--", "--exact", &test, "--test-threads=1"]);
        let mut own = Ledger::default();
        let status = step.watch(|line| own.line(line))?;
        if status.success() && own.total().passed == 1 {
            ledger.forgive(&program, &test);
        }
    }
    ledger.took("what failed, once more", started.elapsed());
    Ok(())
}

/// Root, packages, the lock and what `build` builds: what every run of a world needs. What only running needs is
/// installed while cargo builds.
fn ready(tree: &Tree, what: &str, build: fn(&Tree) -> Result<()>) -> Result<MachineLock> {
    step::require_root(what, "it makes network namespaces and loads eBPF programs")?;
    setup::ensure(tree, Use::Build)?;
    let lock = MachineLock::take()?;
    let (built, installed) = std::thread::scope(|scope| {
        let install = scope.spawn(|| setup::ensure(tree, Use::Run));
        (build(tree), install.join().expect("it does not panic"))
    });
    built.and(installed)?;
    Ok(lock)
}

fn lab(tree: &Tree) -> Result<Step> {
    let program: PathBuf = tree.programs().join(LAB);
    under_test(tree, Step::new(program))
}

/// The environment of everything that runs our programs: they are found by `NETNICE_BIN_DIR` alone, and the
/// machine's own daemon, if there is one, is not theirs.
fn under_test(tree: &Tree, step: Step) -> Result<Step> {
    Ok(step
        .env("NETNICE_BIN_DIR", tree.programs())
        .env("PATH", setup::program_path(tree)?)
        .without_env("NETNICE_RUNTIME_DIR"))
}

const LAB: &str = "netnice-lab";
const CASES: &str = "netnice-cases";
const DOCUMENTS: &str = "netnice-documents";
/// System tests that mostly wait, judge no latency to the millisecond and nothing of the whole machine (as what netnice
/// leaves of eBPF and control groups): they may run beside others of this list.
const SIDE_BY_SIDE: [&str; 18] = [
    "capi",
    "containers",
    "groups",
    "inetd",
    "input",
    "interfaces",
    "people",
    "policy",
    "programs",
    "refusals",
    "repairs",
    "safety",
    "seeing",
    "share",
    "shell",
    "stays",
    "top",
    "units",
];
/// How many tests of one program run at a time there. Enough that two processors are seldom idle, and few enough that
/// a rate is what it is alone.
const AT_ONCE: u32 = 3;
/// So many system tests that failed may run once more.
const FEW: usize = 3;
/// The lab's experiments about what enforcement costs.
const COST_RUNS: [&str; 4] = ["nice-tab1", "cost", "burning", "scale"];

#[cfg(test)]
mod tests;
