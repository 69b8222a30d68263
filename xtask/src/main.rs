//! Answers: how to check, build, test, measure and demonstrate this repository; one verb each.
//! May touch: the build, the test machine's packages (only missing ones), and the target folder.
//! Must never: be used by another crate, or hide a failure: a verb's exit status is its result.
//!
//! A verb is a subcommand of `cargo xtask`. The targets of the Makefile only call verbs. These
//! modules contain the verbs:
//!
//! | verb | module | what it does |
//! |---|---|---|
//! | `tidy` | [`tidy`] | the project's own rules: layers, sizes, names, `unsafe`, links |
//! | `check` | [`check`] | formatting, lints, tidy, documentation, dependencies |
//! | `setup` | [`setup`] | installs missing packages by apt, or unpacks them for the tests |
//! | `build`, `demo`, `test`, `bench` | [`suite`] | the release programs and their runs |
//! | `evidence` | [`suite`] | measures what the page of all figures lacks, and writes the page |
//! | `long` | [`long`] | every test (also under Miri and loom, and by fuzzing), every experiment |
//! | `fuzz` | [`fuzz`] | each property for some time; with `--learn` the targets of `fuzz/` |
//! | `miri` | [`miri`] | the tests of core and of the ring under Miri |
//! | `loom` | [`loom`] | the ring's cursors and doorbells under loom |
//! | `vm` | [`vm`] | the system tests on Debian's stock kernel, under qemu without KVM |
//! | `package` | [`package`] | the crates for authors, packaged and tested alone |
//! | `deb` | [`deb`] | the Debian packages, and a trial of them in a fresh chroot |
//! | `bare` | [`bare`] | the two commands of the README in a fresh chroot |
//!
//! Without a verb, for an unknown verb or invalid arguments, and if the verb fails, xtask prints
//! the reason and exits with status 1.
#![forbid(unsafe_code)]

mod args;
mod bare;
mod cargo_tools;
mod check;
mod cpu_latency;
mod deb;
#[cfg(test)]
mod doc_commands;
mod flaky;
mod fuzz;
mod lock;
mod long;
mod loom;
mod miri;
mod nextest;
mod nightly;
mod package;
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
        bail!("a verb is missing\n{USAGE}");
    };
    if matches!(*verb, "help" | "-h" | "--help") {
        println!("{USAGE}");
        return Ok(());
    }
    let found = VERBS.iter().find(|known| known.name == *verb);
    let Some(found) = found else {
        bail!("unknown verb '{verb}'\n{USAGE}");
    };
    (found.check_args)(rest)?;
    (found.run)(&Tree::find()?, rest)
}

/// One verb of the command line.
struct Verb {
    name: &'static str,
    /// Fails if these arguments are invalid; has no other effect.
    check_args: fn(&[&str]) -> Result<()>,
    run: fn(&Tree, &[&str]) -> Result<()>,
}

const fn verb(
    name: &'static str,
    check_args: fn(&[&str]) -> Result<()>,
    run: fn(&Tree, &[&str]) -> Result<()>,
) -> Verb {
    Verb {
        name,
        check_args,
        run,
    }
}

const VERBS: &[Verb] = &[
    verb(
        "tidy",
        |rest| args::none("tidy", rest),
        |tree, _| tidy::run(tree),
    ),
    verb(
        "check",
        |rest| args::none("check", rest),
        |tree, _| check::run(tree),
    ),
    verb("setup", setup::check_args, setup::run),
    verb("deb", deb::check_args, deb::run),
    verb(
        "build",
        |rest| args::none("build", rest),
        |tree, _| suite::build(tree),
    ),
    // netnice-lab parses the arguments.
    verb("demo", |_| Ok(()), suite::demo),
    verb("test", suite::check_args, suite::test),
    verb(
        "bench",
        |rest| args::none("bench", rest),
        |tree, _| suite::bench(tree),
    ),
    verb(
        "evidence",
        |rest| args::none("evidence", rest),
        |tree, _| suite::evidence(tree),
    ),
    verb(
        "long",
        |rest| args::none("long", rest),
        |tree, _| long::run(tree),
    ),
    verb("fuzz", fuzz::check_args, fuzz::run),
    verb(
        "miri",
        |words| args::filter("miri", words).map(drop),
        miri::run,
    ),
    verb(
        "loom",
        |words| args::filter("loom", words).map(drop),
        loom::run,
    ),
    verb("vm", vm::check_args, vm::run),
    verb("bare", bare::check_args, bare::run),
    verb(
        "package",
        |rest| args::none("package", rest),
        |tree, _| package::run(tree),
    ),
];

const USAGE: &str = "\
cargo xtask VERB

  tidy                        check the layers of the crates, sizes and names of files, opening
                              lines, unsafe, machine paths, links and paths in the documents
  check                       cargo fmt --check, clippy with warnings as errors, tidy,
                              documentation, cargo deny
  setup [build|run|vm|bare|bench|fuzz]
                              install by apt the missing packages for that use (default: run)
  build                       build the release programs netnice, netniced, netnice-driver,
                              netnice-peer and netnice-lab
  demo [ARG...]               build, then run netnice-lab demo
  test [--unit|--system] [FILTER...]
                              run every test: unit tests, then system tests on the release
                              programs (root)
  bench                       run the benchmarks of the crates and the lab's cost runs (root)
  evidence                    measure each experiment that docs/evidence/runs lacks, and write the
                              page of all figures, docs/evidence/index.html (root)
  long                        run every test, long ones too, Miri, loom, the package, then every
                              experiment (root)
  fuzz [--for SECONDS] [FILTER]
                              run every property for this time (600 s), with new cases
  fuzz --learn [--for SECONDS] [FILTER]
                              run every target of fuzz/ for this time (600 s) with libFuzzer
                              (nightly, by rustup)
  fuzz --replay TARGET FILE   run a target of fuzz/ on one input
  miri [FILTER]               run the tests of core and of the ring under Miri (nightly, by rustup)
  loom [FILTER]               run the ring's cursors and doorbells in every order of two threads
  package                     package the crates for authors of other programs, and run the tests
                              of each package outside the tree
  deb [--try]                 build the Debian packages in target/deb; --try: install, upgrade and
                              remove them in a chroot (root)
  vm [--shell COMMAND | FILTER...]
                              run the system tests on Debian's stock kernel in qemu (root)
  bare [--keep] [--suite S] [TARGET...]
                              run make demo and make test (or TARGETs) in a fresh debootstrap
                              chroot (root)";
