//! Runs the README's two commands, `make demo` and `make test`, or other targets of make, in a
//! chroot that has only a minimal Debian, git, the package build-essential (C compiler and make),
//! CA certificates and Rust. This needs root. The verb fails if the chroot cannot be made, or if a
//! target fails or leaves a process running.
//!
//! ```text
//! debootstrap makes a base system (kept under target/bare/SUITE)
//!   →  a copy of the base system: the chroot
//!   →  in the chroot a clone of this repository's HEAD
//!   →  for each TARGET enter.sh: mounts in a mount namespace of its own, chroot, make TARGET
//!   →  after each TARGET: processes that still run in the chroot are ended, and fail the run
//!   →  the chroot is removed (not after a failure, or with --keep)
//! ```
//!
//! Rust is this machine's toolchain, mounted read-only, because not every machine can reach the
//! source of toolchains; cargo's configuration of registries is copied in, if there is one. The
//! chroot uses this machine's network, because packages and crates have to be downloaded. Changes
//! that are not committed are not tested.

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, bail};

use crate::cargo_tools;
use crate::lock::MachineLock;
use crate::setup::{self, Use};
use crate::step::{self, Step};
use crate::tree::Tree;

/// Runs `bare [--keep] [--suite S] [TARGET…]`: each target of make in a clone of the tree, in a new
/// chroot with Debian's minimal system (suite bookworm unless named). Fails without root, if the
/// chroot cannot be made, or if a target fails or leaves a process running.
pub fn run(tree: &Tree, words: &[&str]) -> Result<()> {
    let options = Options::parse(words)?;
    step::require_root("cargo xtask bare", "it makes a chroot and mounts in it")?;
    setup::ensure(tree, Use::Bare)?;
    let _lock = MachineLock::take()?;
    let machine = Machine::new(tree, options.suite)?;
    machine.clone_tree(tree)?;
    for target in &options.targets {
        let started = Instant::now();
        machine.run(CLONE, &["make", target])?;
        eprintln!("bare: make {target}: ok, {} s", started.elapsed().as_secs());
    }
    if options.keep {
        eprintln!("bare: kept in {}", machine.root.display());
        return Ok(());
    }
    machine.remove()
}

/// Fails if these arguments are invalid.
pub fn check_args(words: &[&str]) -> Result<()> {
    Options::parse(words).map(drop)
}

#[derive(Debug, PartialEq, Eq)]
struct Options<'a> {
    keep: bool,
    suite: &'a str,
    targets: Vec<&'a str>,
}

impl<'a> Options<'a> {
    fn parse(words: &[&'a str]) -> Result<Options<'a>> {
        let mut options = Options {
            keep: false,
            suite: "bookworm",
            targets: Vec::new(),
        };
        let mut words = words.iter();
        while let Some(word) = words.next() {
            match *word {
                "--keep" => options.keep = true,
                "--suite" => options.suite = words.next().context("--suite needs a name")?,
                flag if flag.starts_with('-') => {
                    bail!("bare takes --keep, --suite S and targets of make; got '{flag}'")
                }
                target => options.targets.push(target),
            }
        }
        if options.targets.is_empty() {
            options.targets = vec!["demo", "test"];
        }
        Ok(options)
    }
}

/// Installs the base system of a suite, once per suite, and returns its folder.
fn base(folder: &Path, suite: &str) -> Result<PathBuf> {
    let base = folder.join(suite);
    if base.is_dir() {
        return Ok(base);
    }
    std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let part = base.with_extension("part");
    remove_tree(&part)?;
    Step::new("debootstrap")
        .args([
            "--variant=minbase",
            "--include=git,build-essential,ca-certificates",
            suite,
        ])
        .args([&part])
        .no_input()
        .run()?;
    std::fs::rename(&part, &base).context("cannot put the fresh system in its place")?;
    Ok(base)
}

/// A chroot: a copy of the base system.
pub struct Machine {
    /// The root folder of the copy.
    pub root: PathBuf,
}

impl Machine {
    /// Makes a fresh chroot of a Debian suite, with this machine's access to the network. An
    /// earlier chroot is removed. Fails if debootstrap fails, or if something is still mounted in
    /// the earlier chroot.
    pub fn new(tree: &Tree, suite: &str) -> Result<Machine> {
        let folder = tree.target.join("bare");
        let machine = Machine::fresh(&base(&folder, suite)?, folder.join("root"))?;
        machine.copy_network_settings()?;
        Ok(machine)
    }

    fn fresh(base: &Path, root: PathBuf) -> Result<Machine> {
        remove_tree(&root)?;
        Step::new("cp")
            .args(["--archive", "--reflink=auto"])
            .args([base, &root])
            .run()?;
        for name in ["opt/rust", "src"] {
            std::fs::create_dir_all(root.join(name))?;
        }
        Ok(Machine { root })
    }

    fn clone_tree(&self, tree: &Tree) -> Result<()> {
        Step::new("git")
            .args(["clone", "--quiet", "--no-hardlinks"])
            .args([&tree.root, &self.root.join(CLONE)])
            .run()
    }

    /// Copies the host names, certificates and registries that this machine uses to reach the
    /// network.
    fn copy_network_settings(&self) -> Result<()> {
        let copies = [
            ("/etc/resolv.conf".into(), "etc/resolv.conf"),
            ("/etc/hosts".into(), "etc/hosts"),
            (
                "/etc/ssl/certs/ca-certificates.crt".into(),
                "etc/ssl/certs/ca-certificates.crt",
            ),
            (
                cargo_tools::cargo_home().join("config.toml"),
                "root/.cargo/config.toml",
            ),
        ];
        for (from, to) in copies {
            let to = self.root.join(to);
            if from.is_file() {
                std::fs::create_dir_all(to.parent().context("a file has a folder")?)?;
                std::fs::copy(&from, &to)
                    .with_context(|| format!("cannot copy {}", from.display()))?;
            }
        }
        Ok(())
    }

    /// Runs a command in a folder of the chroot, whose path is relative to the chroot's root. Fails
    /// if the command fails or leaves a process running.
    pub fn run(&self, folder: &str, words: &[&str]) -> Result<()> {
        let sysroot = Step::new("rustc").args(["--print", "sysroot"]).capture()?;
        let enter = self.root.with_file_name("enter.sh");
        std::fs::write(&enter, ENTER)
            .with_context(|| format!("cannot write {}", enter.display()))?;
        let mut step = Step::new("unshare")
            .args(["--mount", "--uts", "--ipc", "sh"])
            .args([&enter, &self.root])
            .args([sysroot.trim(), folder])
            .args(words)
            .no_input();
        // The chroot has an environment of its own, without the variables that `make` and cargo set
        // here.
        for (key, _) in std::env::vars_os() {
            let key = key.to_string_lossy();
            if !KEPT_VARIABLES.contains(&key.to_ascii_lowercase().as_str()) {
                step = step.without_env(&key);
            }
        }
        let outcome = step
            .env(
                "PATH",
                "/opt/rust/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            )
            .env("HOME", "/root")
            .env("LANG", "C.UTF-8")
            .run();
        let left = self.kill_leftovers()?;
        outcome?;
        match left.is_empty() {
            true => Ok(()),
            false => bail!(
                "{} left processes behind: {}",
                words.join(" "),
                left.join(", ")
            ),
        }
    }

    /// Ends every process whose root folder is the chroot, and returns their names.
    fn kill_leftovers(&self) -> Result<Vec<String>> {
        let mut left = Vec::new();
        for entry in std::fs::read_dir("/proc")? {
            let entry = entry?;
            let pid = entry.file_name().to_string_lossy().into_owned();
            let is_inside =
                std::fs::read_link(entry.path().join("root")).is_ok_and(|root| root == self.root);
            if pid.bytes().all(|byte| byte.is_ascii_digit()) && is_inside {
                let name = std::fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
                left.push(format!("{pid} ({})", name.trim()));
                Step::new("kill").args(["-KILL", &pid]).run().ok();
            }
        }
        Ok(left)
    }

    /// Removes the chroot. Fails if something is still mounted in it.
    pub fn remove(self) -> Result<()> {
        remove_tree(&self.root)
    }
}

/// Removes a chroot. Fails if something is still mounted in it.
fn remove_tree(root: &Path) -> Result<()> {
    if !root.exists() {
        return Ok(());
    }
    let mounts = std::fs::read_to_string("/proc/self/mounts").context("cannot read the mounts")?;
    let inside = format!(" {}/", root.display());
    if let Some(mount) = mounts.lines().find(|line| line.contains(&inside)) {
        bail!(
            "not removing {}: something is mounted in it ({mount})",
            root.display()
        );
    }
    Step::new("rm")
        .args(["--recursive", "--one-file-system", "--force", "--"])
        .args([root])
        .run()
}

/// The folder of the clone, relative to the chroot's root folder.
const CLONE: &str = "src/netnice";
const ENTER: &str = include_str!("bare/enter.sh");
/// The variables that the chroot gets: the terminal, and the access to the network.
const KEPT_VARIABLES: [&str; 5] = ["term", "http_proxy", "https_proxy", "no_proxy", "all_proxy"];

#[cfg(test)]
mod tests;
