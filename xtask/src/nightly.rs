//! Finds Rust's nightly toolchain, which Miri and libFuzzer's coverage counters need: a stable
//! compiler does not support them. rustup installs the toolchain and its components if they are
//! missing. Fails without rustup, if rustup cannot install them, or if the compiler does not name
//! its target.

use std::ffi::OsStr;
use std::path::PathBuf;

use anyhow::{Context, Result};

use crate::step::{self, Step};

/// The nightly toolchain of this machine.
pub struct Nightly {
    rustup: PathBuf,
}

impl Nightly {
    /// Finds the toolchain. `probe` is a command that succeeds if the toolchain has everything that
    /// `what`, a name for messages, needs. If it fails, rustup installs the toolchain with these
    /// components.
    ///
    /// # Errors
    /// If there is no rustup, or rustup cannot install the toolchain.
    pub fn ensure(what: &str, probe: &[&str], components: &[&str]) -> Result<Nightly> {
        let rustup = step::find_program("rustup");
        let rustup = rustup.with_context(|| {
            format!("{what} needs a nightly toolchain, and there is no rustup to install it")
        })?;
        let nightly = Nightly { rustup };
        let (program, words) = probe.split_first().context("a probe is a command")?;
        if nightly.step(program).args(words).capture().is_err() {
            let components = components.iter().flat_map(|one| ["--component", one]);
            Step::new(&nightly.rustup)
                .args(["toolchain", "install", NIGHTLY, "--profile", "minimal"])
                .args(components)
                .run()?;
        }
        Ok(nightly)
    }

    /// A step that runs this program with the toolchain's cargo and compiler first on its `PATH`.
    pub fn step(&self, program: impl AsRef<OsStr>) -> Step {
        // The variable names the cargo that runs xtask, which is of another toolchain.
        Step::new(&self.rustup).without_env("CARGO").args([
            "run".as_ref(),
            NIGHTLY.as_ref(),
            program.as_ref(),
        ])
    }

    /// The target triple of the toolchain.
    ///
    /// # Errors
    /// If the output of its compiler does not contain the triple.
    pub fn host(&self) -> Result<String> {
        let output = self
            .step("rustc")
            .args(["--version", "--verbose"])
            .capture()?;
        let host = output.lines().find_map(|line| line.strip_prefix("host: "));
        Ok(host.context("rustc does not print its host")?.to_owned())
    }
}

const NIGHTLY: &str = "nightly";
