//! The release programs, and what runs them: the demo, the tests, the measurements.
//!
//! Tests come in two kinds. **Unit tests** stand beside the code, run in parallel and in a debug build, so
//! that overflow checks and invariants are on. **System tests** (`crates/lab/tests`) build worlds of network
//! namespaces and talk to the release programs, which they find by `NETNICE_BIN_DIR`; they run one at a
//! time, since two of them would measure each other.
//!
//! Whatever measures holds the machine's lock from before the build to the end.

use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Result, bail};

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
    let _lock = ready(tree, "make demo")?;
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
        Scope::All | Scope::System => Some(ready(tree, "make test")?),
    };
    let mut ledger = Ledger::default();
    if scope != Scope::System {
        unit_tests(tree, filter, &mut ledger)?;
    }
    if scope != Scope::Unit {
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

/// Benchmarks of the crates, then the lab's runs about cost.
pub fn bench(tree: &Tree) -> Result<()> {
    let _lock = ready(tree, "make bench")?;
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
    let _lock = ready(tree, "make test-long")?;
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

/// `fuzz [CASES]`: the property tests of every crate that has some, with many more cases, optimised.
pub fn fuzz(tree: &Tree, words: &[&str]) -> Result<()> {
    let cases = match words {
        [] => FUZZ_CASES,
        [cases] if cases.parse::<u32>().is_ok() => cases,
        _ => bail!("fuzz takes one number: how many cases for each property"),
    };
    setup::ensure(tree, Use::Build)?;
    let packages = tree
        .crates
        .iter()
        .filter(|one| one.uses.iter().any(|used| used == "proptest"));
    let packages: Vec<&str> = packages
        .flat_map(|one| ["--package", one.name.as_str()])
        .collect();
    if packages.is_empty() {
        bail!("no crate has property tests");
    }
    let status = under_test(tree, cargo(tree))?
        .args(["test", "--release", "--lib", "--no-fail-fast"])
        .args(packages)
        .env("PROPTEST_CASES", cases)
        .watch(|_| {})?;
    match status.success() {
        true => Ok(()),
        false => bail!(
            "a property does not hold; its case is kept beside the test in proptest-regressions"
        ),
    }
}

/// The programs that a user gets, and the lab.
pub const PROGRAMS: [&str; 4] = ["netnice", "netniced", "netnice-driver", "netnice-lab"];

/// Builds the release programs and the C library, with everything for it there already.
pub fn release(tree: &Tree) -> Result<()> {
    cargo(tree)
        .args(["build", "--release", "--workspace", "--lib"])
        .args(PROGRAMS.iter().flat_map(|name| ["--bin", name]))
        .run()
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
    let names = system_test_names(tree);
    ["test", "--release", "--workspace"]
        .into_iter()
        .chain(names.into_iter().flat_map(|name| ["--test", name]))
        .collect()
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
    let step = under_test(tree, cargo(tree))?
        .args(system_test_words(tree))
        .args(["--no-fail-fast", "--"])
        .args(["--test-threads=1"])
        .args(filter);
    watched("system tests", step, ledger)
}

fn watched(what: &str, step: Step, ledger: &mut Ledger) -> Result<()> {
    let status = step.watch(|line| ledger.line(line))?;
    if !status.success() {
        ledger.broke(&format!("{what}: {status}"));
    }
    Ok(())
}

/// Root, packages, the lock and the release programs: what every run of a world needs.
fn ready(tree: &Tree, what: &str) -> Result<MachineLock> {
    step::require_root(what, "it makes network namespaces and loads eBPF programs")?;
    setup::ensure(tree, Use::Run)?;
    let lock = MachineLock::take()?;
    release(tree)?;
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
/// The lab's experiments about what enforcement costs.
const COST_RUNS: [&str; 4] = ["nice-tab1", "cost", "burning", "scale"];
const FUZZ_CASES: &str = "100000";

#[cfg(test)]
mod tests;
