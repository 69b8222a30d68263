//! The functional system tests on another kernel: Debian's stock 6.1 cloud kernel, in qemu, without KVM.
//!
//! ```text
//! ensure kernel, virtme-ng, virtiofsd (cached under target/vm)
//!   → build programs and tests here → put them in target/vm/share
//!   → boot; the guest's root is this machine's, read-only, with throw-away layers on top
//!   → inside.sh: modules, bpffs, a systemd for unit targets, then each test program
//!   → its last words are the exit status, left in share/status
//! ```
//!
//! Without KVM every instruction is translated, so clocks and rates in there are poor: only tests that do
//! not judge rates mean anything, and `NETNICE_FUNCTIONAL=1` tells them so. What the guest has that this
//! machine may not: fq_codel, netem and every other module of a distribution's kernel.
//!
//! The systemd in the guest is the machine's own program, started in a process namespace of its own at the
//! root of the cgroup tree, so units have the cgroups that they have everywhere
//! (`/system.slice/x.service`), and no service of the machine is started. `systemctl` and `systemd-run`
//! on the tests' `PATH` reach it, and `NETNICE_SYSTEMD=1` says that it is there.

mod assets;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::closing::Ledger;
use crate::setup::{self, Use};
use crate::step::{self, Step};
use crate::suite;
use crate::tree::Tree;
use crate::vm::assets::Assets;

/// `vm [--shell COMMAND… | FILTER]`.
pub fn run(tree: &Tree, words: &[&str]) -> Result<()> {
    let job = Job::parse(words)?;
    step::require_root("make test-vm", "the guest's root user is this one")?;
    setup::ensure(tree, Use::Vm)?;
    let folder = tree.target.join("vm");
    let assets = Assets::ensure(&folder)?;
    let share = Share::fresh(&folder.join("share"))?;
    if let Job::Tests { .. } = job {
        share.put_programs(tree)?;
    }
    share.put("job", job.script(tree))?;
    share.put("inside.sh", INSIDE.to_owned())?;
    boot(&assets, &share)
}

/// Fails if these arguments make no sense.
pub fn reads(words: &[&str]) -> Result<()> {
    Job::parse(words).map(drop)
}

/// What to do inside.
enum Job<'a> {
    /// Run the system tests whose names hold the filter.
    Tests { filter: &'a str },
    /// Run one shell command; for looking around.
    Shell { command: String },
}

impl<'a> Job<'a> {
    fn parse(words: &[&'a str]) -> Result<Job<'a>> {
        match words {
            [] => Ok(Job::Tests { filter: "" }),
            ["--shell", command @ ..] if !command.is_empty() => Ok(Job::Shell {
                command: command.join(" "),
            }),
            [filter] if !filter.starts_with('-') => Ok(Job::Tests { filter }),
            _ => bail!(
                "vm takes --shell COMMAND, or one filter for test names; got '{}'",
                words.join(" ")
            ),
        }
    }

    /// The shell lines that `inside.sh` sources once the guest is ready.
    fn script(&self, tree: &Tree) -> String {
        let tools = quoted(&setup::web_server_programs(tree).display().to_string());
        let path = format!("PATH=$PATH:{tools}\n");
        match self {
            Job::Shell { command } => format!("{path}{command}\n"),
            Job::Tests { filter } => {
                let folder = tree.root.join("crates/lab");
                format!(
                    "{path}run_tests {} {}\n",
                    quoted(&folder.display().to_string()),
                    quoted(filter)
                )
            }
        }
    }
}

/// The folder that the guest sees as `/mnt`.
struct Share {
    folder: PathBuf,
}

impl Share {
    fn fresh(folder: &Path) -> Result<Share> {
        if folder.exists() {
            std::fs::remove_dir_all(folder)
                .with_context(|| format!("cannot empty {}", folder.display()))?;
        }
        for name in ["programs", "tests"] {
            let inner = folder.join(name);
            std::fs::create_dir_all(&inner)
                .with_context(|| format!("cannot make {}", inner.display()))?;
        }
        Ok(Share {
            folder: folder.to_owned(),
        })
    }

    fn put(&self, name: &str, text: String) -> Result<()> {
        std::fs::write(self.folder.join(name), text).with_context(|| format!("cannot write {name}"))
    }

    /// Builds the release programs and the system tests, and copies them here.
    fn put_programs(&self, tree: &Tree) -> Result<()> {
        suite::release(tree)?;
        for program in suite::PROGRAMS {
            self.copy(&tree.programs().join(program), "programs", program)?;
        }
        if suite::system_test_names(tree).is_empty() {
            bail!("there are no system tests in crates/lab/tests to run");
        }
        let built = suite::cargo(tree)
            .args(suite::system_test_words(tree))
            .args(["--no-run", "--message-format=json-render-diagnostics"])
            .capture()?;
        for (name, program) in test_programs(&built)? {
            self.copy(&program, "tests", &name)?;
        }
        Ok(())
    }

    fn copy(&self, from: &Path, folder: &str, name: &str) -> Result<()> {
        let to = self.folder.join(folder).join(name);
        std::fs::copy(from, &to).with_context(|| format!("cannot copy {}", from.display()))?;
        Ok(())
    }

    /// The exit status that the guest left, if it came that far.
    fn status(&self) -> Option<i32> {
        std::fs::read_to_string(self.folder.join("status"))
            .ok()?
            .trim()
            .parse()
            .ok()
    }
}

/// Names and files of the test programs in cargo's JSON messages.
fn test_programs(messages: &str) -> Result<Vec<(String, PathBuf)>> {
    let mut found = Vec::new();
    for line in messages.lines() {
        let message: Value =
            serde_json::from_str(line).context("cargo wrote a line that is not JSON")?;
        let target = &message["target"];
        let is_test = target["kind"]
            .as_array()
            .is_some_and(|kinds| kinds.iter().any(|kind| kind == "test"));
        if let (true, Some(name), Some(file)) = (
            is_test,
            target["name"].as_str(),
            message["executable"].as_str(),
        ) {
            found.push((name.to_owned(), PathBuf::from(file)));
        }
    }
    Ok(found)
}

fn boot(assets: &Assets, share: &Share) -> Result<()> {
    let started = Instant::now();
    let mut ledger = Ledger::default();
    // setpriv: if this process dies, `timeout` hears of it, and takes the whole guest with it.
    let step = Step::new("setpriv")
        .args(["--pdeathsig", "TERM", "timeout", "--kill-after=10"])
        .args([LIMIT.as_secs().to_string()])
        .args(["vng", "--run"])
        .args([assets.kernel()])
        .args([
            "--disable-kvm",
            "--cpus",
            "2",
            "--memory",
            "2G",
            "--cwd",
            "/",
        ])
        .args([format!("--qemu-opts={EMULATOR}")])
        .args([format!("--rwdir=/mnt={}", share.folder.display())])
        .args(["--append", CLOCK])
        .args(["--exec", "sh /mnt/inside.sh"])
        .env("PATH", assets.path()?)
        .no_input();
    // The guest names each test program as cargo would, before it runs it.
    let status = step.watch(|line| ledger.line(line))?;
    let took = started.elapsed().as_secs();
    if !ledger.is_empty() {
        println!("\n{ledger}; on {} in {took} s", assets.release());
    }
    match share.status() {
        None => bail!(
            "the guest ended after {took} s without leaving its status ({status}; the limit is {} s)",
            LIMIT.as_secs()
        ),
        Some(0) if ledger.is_empty() || !ledger.total().failed_runner => Ok(()),
        Some(0) => bail!("tests failed in the guest"),
        Some(code) => bail!("the guest ended with status {code}"),
    }
}

/// A word that a shell reads back as it is.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// The emulated processor's counter is the host's, and sound. Left alone the kernel would distrust it and read the time
/// from an emulated device instead, which costs microseconds and, with timers that come often, takes all the time there is.
const CLOCK: &str = "clocksource=tsc tsc=reliable";
/// Both processors in turn, by one thread: with a thread of its own each, one may go on with code that the kernel has
/// changed (a jump label, by its breakpoint), and then takes the breakpoint for ever.
const EMULATOR: &str = "-accel tcg,thread=single";
const INSIDE: &str = include_str!("vm/inside.sh");
/// Translated code is some 10 to 30 times slower; a guest that takes longer than this hangs.
const LIMIT: Duration = Duration::from_secs(90 * 60);

#[cfg(test)]
mod tests;
