//! Runs the system tests on another kernel: Debian's stock 6.1 cloud kernel, in qemu, without KVM.
//! This needs root. The verb fails if a guest cannot be prepared or started, if a guest does not
//! end with status 0, or if the run does not pass ([`crate::results`]).
//!
//! ```text
//! ensure kernel, virtme-ng, virtiofsd (cached under target/vm)
//!   → build programs and tests here → put them in target/vm/share
//!   → boot; the guest's root folder is this machine's, read-only, with temporary layers on top
//!   → inside.sh: modules, bpffs, a systemd for tests of units, then cargo-nextest on the tests
//!   → inside.sh writes its exit status to share/guest-N/status, nextest its report to
//!     share/guest-N/nextest
//! ```
//!
//! The emulator uses one of this machine's processors for a guest. So there are as many guests as
//! processors, at most [`MAX_GUESTS`], and each runs a part of the tests. A run with a filter has
//! one guest. With `--shell` one guest runs a shell command in place of the tests. The verb holds
//! the machine's lock ([`MachineLock`]): guests use all processors, and all runs share one folder.
//!
//! Without KVM qemu translates every instruction, so everything takes 10 to 30 times as long. The
//! tests are the same as on the host, with the same bounds. The guest has fq_codel, netem and every
//! other module of a distribution's kernel, which this machine may lack.
//!
//! The systemd in the guest is this machine's program in a process namespace of its own at the root
//! of the cgroup tree. So units have their usual cgroups (`/system.slice/x.service`), and no
//! service of the machine starts. `systemctl` and `systemd-run` on the tests' `PATH` use that
//! systemd. `NETNICE_SYSTEMD=1` tells the tests that there should be one, so that they fail without
//! it.

mod assets;

use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::flaky::KnownFlaky;
use crate::lock::MachineLock;
use crate::nextest;
use crate::results::{self, Outcome, Results, TestResult};
use crate::setup::{self, Use};
use crate::step::{self, Step};
use crate::suite;
use crate::tree::Tree;
use crate::vm::assets::Assets;

/// Runs `vm [--shell COMMAND… | FILTER…]`: the tests whose names contain one of the filters, or one
/// shell command in a guest. Fails without root, if a guest cannot be prepared or started, and for
/// the reasons that the module names.
pub fn run(tree: &Tree, words: &[&str]) -> Result<()> {
    let job = Job::parse(words)?;
    step::require_root("make test-vm", "the guest's root user is this one")?;
    setup::ensure(tree, Use::Vm)?;
    let _lock = MachineLock::take()?;
    let folder = tree.target.join("vm");
    let assets = Assets::ensure(&folder)?;
    let guests = job.guests();
    let share = Share::fresh(&folder.join("share"), guests)?;
    if let Job::Tests { .. } = job {
        share.put_programs(tree)?;
    }
    share.put("job", job.script(tree, guests)?)?;
    share.put("inside.sh", INSIDE.to_owned())?;
    let ended: Result<Vec<GuestResult>> = std::thread::scope(|scope| {
        let (assets, share) = (&assets, &share);
        let boots: Vec<_> = (1..=guests)
            .map(|number| scope.spawn(move || boot(assets, share, number)))
            .collect();
        let ended = boots.into_iter();
        ended
            .map(|boot| boot.join().expect("it does not panic"))
            .collect()
    });
    match job {
        Job::Shell { .. } => ended?.iter().try_for_each(GuestResult::check),
        Job::Tests { .. } => report(tree, &assets, &share, &ended?),
    }
}

/// Prints the outcomes of the tests, and fails if the run does not pass.
fn report(tree: &Tree, assets: &Assets, share: &Share, guests: &[GuestResult]) -> Result<()> {
    let known = KnownFlaky::read(&tree.root)?;
    let mut results = Results::default();
    for (ended, number) in guests.iter().zip(1..) {
        let report = nextest::report_in(&share.of_guest(number).join(STORE), PROFILE);
        let tests = match std::fs::read_to_string(report) {
            Ok(text) => results::read_junit(&text)?,
            Err(_) => Vec::new(),
        };
        let failed = |test: &TestResult| test.outcome == Outcome::Failed;
        // If a test failed, the guest's status contains no further information.
        if !tests.iter().any(failed)
            && let Err(error) = ended.check()
        {
            results.add_broken(format!("{error:#}"));
        }
        results.add(tests);
        results.add_step(
            &format!("guest {number}, Linux {}", assets.release()),
            ended.took,
        );
    }
    println!("\n{}", results.summary(&known));
    let faults = results.faults(&known);
    match faults.is_empty() {
        true => Ok(()),
        false => bail!("the tests do not pass: {}", faults.join("; ")),
    }
}

/// Fails if these arguments are invalid.
pub fn check_args(words: &[&str]) -> Result<()> {
    Job::parse(words).map(drop)
}

/// The work of the guests.
enum Job<'a> {
    /// Run the system tests whose names contain one of the filters; all without a filter.
    Tests { filters: Vec<&'a str> },
    /// Run one shell command, to inspect a guest.
    Shell { command: String },
}

impl<'a> Job<'a> {
    fn parse(words: &[&'a str]) -> Result<Job<'a>> {
        match words {
            ["--shell", command @ ..] if !command.is_empty() => Ok(Job::Shell {
                command: command.join(" "),
            }),
            filters if !filters.iter().any(|word| word.starts_with('-')) => Ok(Job::Tests {
                filters: filters.to_vec(),
            }),
            _ => bail!(
                "vm takes --shell COMMAND, or filters for test names; got '{}'",
                words.join(" ")
            ),
        }
    }

    /// Number of guests. The emulator uses one processor for each. A filtered run has one guest,
    /// because few tests are faster than two boots.
    fn guests(&self) -> usize {
        match self {
            Job::Tests { filters } if filters.is_empty() => {
                std::thread::available_parallelism().map_or(1, |n| n.get().min(MAX_GUESTS))
            }
            _ => 1,
        }
    }

    /// The shell lines that `inside.sh` sources once the guest is ready.
    fn script(&self, tree: &Tree, guests: usize) -> Result<String> {
        // The guest uses the host's programs from the same folders, for example Go.
        let folders = setup::program_path(tree)?;
        let path = format!("PATH=$PATH:{}\n", shell_quoted(&folders.to_string_lossy()));
        match self {
            Job::Shell { command } => Ok(format!("{path}{command}\n")),
            Job::Tests { filters } => {
                let own = [
                    guests.to_string(),
                    PROFILE.to_owned(),
                    tree.root.display().to_string(),
                    nextest::store(&tree.root).display().to_string(),
                ];
                let words = own
                    .iter()
                    .map(String::as_str)
                    .chain(filters.iter().copied());
                let words: Vec<String> = words.map(shell_quoted).collect();
                let words = words.join(" ");
                Ok(format!("{path}run_tests {words}\n"))
            }
        }
    }
}

/// The folder that the guest has as `/mnt`.
struct Share {
    folder: PathBuf,
}

impl Share {
    fn fresh(folder: &Path, guests: usize) -> Result<Share> {
        if folder.exists() {
            std::fs::remove_dir_all(folder)
                .with_context(|| format!("cannot empty {}", folder.display()))?;
        }
        let share = Share {
            folder: folder.to_owned(),
        };
        for number in 1..=guests {
            let store = share.of_guest(number).join(STORE);
            std::fs::create_dir_all(&store)
                .with_context(|| format!("cannot make {}", store.display()))?;
        }
        Ok(share)
    }

    /// The folder that one guest writes to.
    fn of_guest(&self, number: usize) -> PathBuf {
        self.folder.join(format!("guest-{number}"))
    }

    fn put(&self, name: &str, text: String) -> Result<()> {
        std::fs::write(self.folder.join(name), text).with_context(|| format!("cannot write {name}"))
    }

    /// Builds the release programs and the system tests, and copies them here.
    fn put_programs(&self, tree: &Tree) -> Result<()> {
        // cargo-nextest writes its report below the workspace, which the guest cannot write. So the
        // guest mounts its own folder over this one.
        let store = nextest::store(&tree.root);
        std::fs::create_dir_all(&store)
            .with_context(|| format!("cannot make {}", store.display()))?;
        suite::release_and_tests(tree)?;
        // Tests of the C library link programs with it.
        let libraries = ["libnetnice.a", "libnetnice.so"];
        for program in suite::PROGRAMS.into_iter().chain(libraries) {
            self.copy(
                &tree.programs().join(program),
                &format!("programs/{program}"),
            )?;
        }
        let nextest = nextest::ensure(tree)?;
        self.copy(&nextest, "cargo-nextest")?;
        let listed = Step::new(&nextest)
            .folder(&tree.root)
            .args(["nextest", "list", "--list-type", "binaries-only"])
            .args(["--message-format", "json"])
            .args(suite::system_test_words(tree))
            .capture()?;
        for program in test_programs(&listed)? {
            // cargo-nextest looks here for the program, with this folder as the target folder.
            let inside = program.strip_prefix(&tree.target);
            let inside = inside.context("a test program lies outside the target folder")?;
            self.copy(&program, &format!("target/{}", inside.display()))?;
        }
        self.put("binaries.json", listed)?;
        let metadata = suite::cargo(tree)
            .args(["metadata", "--format-version", "1"])
            .capture()?;
        self.put("metadata.json", metadata)
    }

    fn copy(&self, from: &Path, to: &str) -> Result<()> {
        let to = self.folder.join(to);
        let folder = to.parent().context("a file has a folder")?;
        std::fs::create_dir_all(folder)
            .with_context(|| format!("cannot make {}", folder.display()))?;
        std::fs::copy(from, &to).with_context(|| format!("cannot copy {}", from.display()))?;
        Ok(())
    }

    /// The exit status that a guest wrote; `None` if it did not come that far.
    fn status(&self, number: usize) -> Option<i32> {
        std::fs::read_to_string(self.of_guest(number).join("status"))
            .ok()?
            .trim()
            .parse()
            .ok()
    }
}

/// The files of the test programs in cargo-nextest's list.
fn test_programs(list: &str) -> Result<Vec<PathBuf>> {
    let list: Value = serde_json::from_str(list).context("cargo-nextest wrote no JSON")?;
    let programs = list["rust-binaries"].as_object();
    let programs = programs.context("cargo-nextest lists no 'rust-binaries'")?;
    let path = |one: &Value| one["binary-path"].as_str().map(PathBuf::from);
    programs
        .values()
        .map(|one| path(one).context("a test program without a 'binary-path'"))
        .collect()
}

/// The result of a guest.
struct GuestResult {
    /// The exit status of the emulator.
    emulator: ExitStatus,
    /// The exit status that the guest wrote; `None` if it did not come that far.
    guest: Option<i32>,
    took: Duration,
}

impl GuestResult {
    fn check(&self) -> Result<()> {
        let took = self.took.as_secs();
        match self.guest {
            Some(0) => Ok(()),
            Some(code) => bail!("the guest ended with status {code}"),
            None => bail!(
                "the guest ended after {took} s without leaving its status ({}; the limit is {} s)",
                self.emulator,
                GUEST_TIMEOUT.as_secs()
            ),
        }
    }
}

fn boot(assets: &Assets, share: &Share, number: usize) -> Result<GuestResult> {
    let started = Instant::now();
    // setpriv: if this process dies, `timeout` gets a signal and ends the whole guest.
    let step = Step::new("setpriv")
        .args(["--pdeathsig", "TERM", "timeout", "--kill-after=10"])
        .args([GUEST_TIMEOUT.as_secs().to_string()])
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
        .args(["--exec".to_owned(), format!("sh /mnt/inside.sh {number}")])
        .env("PATH", assets.path()?)
        .no_input();
    // Uses a pipe because vng opens its outputs again, and guests that share a file would overwrite
    // each other's lines.
    let emulator = step.watch(&format!("{number} | "), |_| {})?;
    Ok(GuestResult {
        emulator,
        guest: share.status(number),
        took: started.elapsed(),
    })
}

/// Quotes a word for a shell.
fn shell_quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// The emulated processor has the host's time stamp counter, which is reliable. By default the
/// kernel would distrust it and read the time from an emulated device. That takes microseconds, and
/// with frequent timers all of the processor's time.
const CLOCK: &str = "clocksource=tsc tsc=reliable";
/// One thread emulates both processors in turn. With a thread each, one processor may continue with
/// code that the kernel has changed (a jump label, through its breakpoint), and then hits the
/// breakpoint for ever. The processor has no wide registers, because the C library's functions for
/// those are slow here, and a program takes twice as long to start.
const EMULATOR: &str = "-accel tcg,thread=single -cpu qemu64";
/// Largest number of guests; each has 2 GiB of memory.
const MAX_GUESTS: usize = 4;
/// The profile of `.config/nextest.toml` for the guest.
const PROFILE: &str = "vm";
/// The folder of a guest that replaces nextest's folder.
const STORE: &str = "nextest";
const INSIDE: &str = include_str!("vm/inside.sh");
/// Longest time of a guest. Translated code is some 10 to 30 times slower; a guest that takes
/// longer hangs.
const GUEST_TIMEOUT: Duration = Duration::from_secs(90 * 60);

#[cfg(test)]
mod tests;
