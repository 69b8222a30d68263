//! Answers: how to check, build, test, measure and demonstrate this repository; one verb each.
//! May touch: the build, the test machine's packages (only missing ones), and the target folder.
//! Must never: be used by another crate, or hide a failure: a verb's exit status is its result.
//!
//! The Makefile only names these verbs; all logic is here, in Rust, with tests. Each verb is one
//! module:
//!
//! | verb | module | what it does |
//! |---|---|---|
//! | `tidy` | [`tidy`] | the project's own rules: layers, sizes, names, `unsafe`, links |
//! | `check` | [`check`] | formatting, lints, tidy, documentation, dependencies |
//! | `setup` | [`setup`] | installs missing packages by apt, and nothing else |
//! | `build`, `demo`, `test`, `bench`, `long` | [`suite`] | the release programs and their runs |
//! | `fuzz` | [`fuzz`] | each property for a time; with `--learn` the targets of `fuzz/` |
//! | `miri` | [`miri`] | the tests of core and of the ring under Miri |
//! | `loom` | [`model`] | the ring's cursors and doorbells under loom |
//! | `vm` | [`vm`] | the system tests on Debian's stock kernel, under qemu without KVM |
//! | `deb` | [`deb`] | the Debian packages, and a trial of them on a fresh machine |
//! | `bare` | [`bare`] | the two commands of the README on a fresh machine |
#![forbid(unsafe_code)]

mod awake;
mod bare;
mod cargo_tools;
mod check;
mod deb;
#[cfg(test)]
mod documented;
mod flaky;
mod fuzz;
mod lock;
mod miri;
mod model;
mod nextest;
mod nightly;
mod results;
mod setup;
mod step;
mod suite;
mod tidy;
mod tree;
mod vm;

use std::process::ExitCode;

use anyhow::{Result, bail};

use crate::tree::Tree;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match dispatch(&words) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn dispatch(words: &[&str]) -> Result<()> {
    let Some((verb, rest)) = words.split_first() else {
        bail!("which verb?\n{USAGE}");
    };
    if matches!(*verb, "help" | "-h" | "--help") {
        println!("{USAGE}");
        return Ok(());
    }
    let found = VERBS.iter().find(|one| one.name == *verb);
    let Some(found) = found else {
        bail!("no verb '{verb}'\n{USAGE}");
    };
    (found.reads)(rest)?;
    (found.run)(&Tree::find()?, rest)
}

/// One verb of the command line.
struct Verb {
    name: &'static str,
    /// Fails if these arguments are invalid; has no other effect.
    reads: fn(&[&str]) -> Result<()>,
    run: fn(&Tree, &[&str]) -> Result<()>,
}

const fn verb(
    name: &'static str,
    reads: fn(&[&str]) -> Result<()>,
    run: fn(&Tree, &[&str]) -> Result<()>,
) -> Verb {
    Verb { name, reads, run }
}

const VERBS: &[Verb] = &[
    verb(
        "tidy",
        |rest| no_more("tidy", rest),
        |tree, _| tidy::run(tree),
    ),
    verb(
        "check",
        |rest| no_more("check", rest),
        |tree, _| check::run(tree),
    ),
    verb("setup", setup::reads, setup::run),
    verb("deb", deb::reads, deb::run),
    verb(
        "build",
        |rest| no_more("build", rest),
        |tree, _| suite::build(tree),
    ),
    // netnice-lab parses the arguments.
    verb("demo", |_| Ok(()), suite::demo),
    verb("test", suite::reads, suite::test),
    verb(
        "bench",
        |rest| no_more("bench", rest),
        |tree, _| suite::bench(tree),
    ),
    verb(
        "long",
        |rest| no_more("long", rest),
        |tree, _| suite::long(tree),
    ),
    verb("fuzz", fuzz::reads, fuzz::run),
    verb("miri", miri::reads, miri::run),
    verb("loom", model::reads, model::run),
    verb("vm", vm::reads, vm::run),
    verb("bare", bare::reads, bare::run),
];

/// Refuses arguments of a verb that takes none.
fn no_more(verb: &str, rest: &[&str]) -> Result<()> {
    match rest.first() {
        None => Ok(()),
        Some(word) => bail!("{verb} takes no arguments, but got '{word}'"),
    }
}

const USAGE: &str = "\
cargo xtask VERB

  tidy                        ranks of the crates, file sizes and names, opening lines, unsafe, machine paths,
                              links and paths in the documents
  check                       cargo fmt --check, clippy with warnings as errors, tidy, documentation, cargo deny
  setup [build|run|vm|bare]   install by apt what that needs and is missing (default: run)
  build                       release programs netnice, netniced, netnice-driver, netnice-lab
  demo [ARG...]               build, then netnice-lab demo
  test [--unit|--system] [FILTER]
                              every test: unit tests, then system tests on the release programs (root)
  bench                       benchmarks of the crates and the lab's cost runs (root)
  long                        every test, long ones too, Miri, loom, the package, then every experiment (root)
  fuzz [--for SECONDS] [FILTER]
                              every property, each for so long (600), with new cases all the while
  fuzz --learn [--for SECONDS] [FILTER]
                              every target of fuzz/, each for so long (600), by coverage (nightly, by rustup)
  fuzz --replay TARGET FILE   one input of a target of fuzz/, once
  miri [FILTER]               the tests of core and of the ring under Miri (nightly, by rustup)
  loom [FILTER]               the ring's cursors and doorbells in every order of two threads
  deb [--try]                 the Debian package in target/deb; --try: installed, upgraded, removed in a chroot (root)
  vm [--shell COMMAND | FILTER]
                              the system tests on Debian's stock kernel in qemu (root)
  bare [--keep] [--suite S] [TARGET...]
                              make demo and make test (or TARGETs) in a fresh debootstrap chroot (root)";
