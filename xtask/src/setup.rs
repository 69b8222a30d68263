//! Installs with apt the packages that a verb needs and the machine lacks. It requests no upgrade
//! (apt may upgrade what a new package depends on), and it starts no service.
//!
//! Each row of [`NEEDS`] is one need: the program, file or Python module that shows its presence,
//! the package of Debian and Ubuntu, and the uses that need it. On a complete machine no package
//! manager runs. If a package that is not optional is missing and this process is not root (or
//! there is no apt), the verb fails with one message that lists the missing packages. It also fails
//! if an installation fails, or if such a need is still missing afterwards.
//!
//! The web server is a special case, because its package would start it now and at every boot. The
//! tests need only the program. So its packages are downloaded and unpacked under the target
//! folder, and that folder is on the `PATH` of what the tests run ([`program_path`]). The verb
//! fails if they cannot be unpacked. The FTP server of an experiment is unpacked in the same way;
//! if that fails, the verb prints a notice and continues.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result, bail};

use crate::step::{self, Step};
use crate::tree::Tree;

/// A purpose for which packages are needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// Building the release programs.
    Build,
    /// Running the demo, the tests and the experiments.
    Run,
    /// Booting another kernel.
    Vm,
    /// Making a fresh chroot.
    Bare,
    /// Making the Debian package.
    Package,
    /// Counting instructions, in addition to [`Use::Run`].
    Bench,
    /// Building the targets of `fuzz/`, in addition to [`Use::Build`].
    Fuzz,
}

/// Runs `cargo xtask setup [WHAT]`: [`ensure`] for the named use, or for [`Use::Run`]. Fails for
/// another word, and as [`ensure`] does.
pub fn run(tree: &Tree, words: &[&str]) -> Result<()> {
    ensure(tree, parse(words)?)?;
    eprintln!("setup: ok");
    Ok(())
}

/// Fails if these arguments are invalid.
pub fn check_args(words: &[&str]) -> Result<()> {
    parse(words).map(drop)
}

fn parse(words: &[&str]) -> Result<Use> {
    Ok(match words {
        [] | ["run"] => Use::Run,
        ["build"] => Use::Build,
        ["vm"] => Use::Vm,
        ["bare"] => Use::Bare,
        ["bench"] => Use::Bench,
        ["fuzz"] => Use::Fuzz,
        _ => bail!("setup takes one of: build, run, vm, bare, bench, fuzz"),
    })
}

/// Installs the packages of [`NEEDS`] that this use needs and the machine lacks.
///
/// # Errors
/// If a need that is not optional is missing and this process is not root or there is no apt; if an
/// installation fails; if such a need is still missing afterwards; or if nginx is needed and cannot
/// be unpacked.
pub fn ensure(tree: &Tree, what: Use) -> Result<()> {
    let absent = missing(what, Need::is_there);
    if !absent.is_empty() {
        install(&absent)?;
        let still = missing(what, Need::is_there);
        if let Some(need) = still.iter().find(|need| !need.optional) {
            bail!(
                "{} was installed, but {} is still missing",
                need.package,
                need.probe
            );
        }
    }
    if matches!(what, Use::Run | Use::Vm) {
        web_server(tree)?;
    }
    if what == Use::Run {
        ftp_server(tree);
    }
    Ok(())
}

/// The `PATH` for programs under test: the folders of this process's `PATH`, then those of the
/// unpacked nginx and of TrafficToll, then the system's folders with `tc`, which the `PATH` of a
/// normal user lacks. Fails if the name of a folder contains a colon.
pub fn program_path(tree: &Tree) -> Result<OsString> {
    let own = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&own)
        .chain([
            web_server_programs(tree),
            traffic_toll_folder(tree).join("bin"),
        ])
        .chain(["/usr/local/sbin", "/usr/sbin", "/sbin"].map(PathBuf::from));
    std::env::join_paths(folders).context("a folder of PATH has a colon in its name")
}

/// A package that a verb needs.
#[derive(Debug)]
struct Need {
    probe: Probe,
    package: &'static str,
    uses: &'static [Use],
    /// Whether the package may stay missing: then some test checks less, and prints that. Not every
    /// distribution has the package.
    optional: bool,
}

/// The way to find out whether a package is installed.
#[derive(Debug)]
enum Probe {
    Program(&'static str),
    /// Any one of these files.
    File(&'static [&'static str]),
    /// A module that Python finds.
    Python(&'static str),
}

impl Need {
    fn is_there(&self) -> bool {
        match self.probe {
            Probe::Program(name) => step::find_program(name).is_some(),
            Probe::File(paths) => paths.iter().any(|path| Path::new(path).exists()),
            Probe::Python(module) => std::process::Command::new("python3")
                .args(["-c", &format!("import {module}")])
                .stderr(std::process::Stdio::null())
                .status()
                .is_ok_and(|status| status.success()),
        }
    }
}

impl std::fmt::Display for Probe {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Probe::Program(name) => write!(f, "the program {name}"),
            Probe::File(paths) => write!(f, "{}", paths.join(" or ")),
            Probe::Python(module) => write!(f, "Python's module {module}"),
        }
    }
}

fn missing(what: Use, is_there: impl Fn(&Need) -> bool) -> Vec<&'static Need> {
    NEEDS
        .iter()
        .filter(|need| need.uses.contains(&what) && !is_there(need))
        .collect()
}

fn packages(needs: &[&Need]) -> Vec<&'static str> {
    let mut names: Vec<_> = needs.iter().map(|need| need.package).collect();
    names.sort_unstable();
    names.dedup();
    names
}

fn install(needs: &[&Need]) -> Result<()> {
    let (optional, required): (Vec<_>, Vec<_>) = needs.iter().partition(|need| need.optional);
    let mut names = packages(&required);
    if !names.is_empty() {
        refuse_without_apt_or_root(&required)?;
    } else if refuse_without_apt_or_root(&optional).is_err() {
        return Ok(());
    }
    refresh_lists()?;
    for need in optional {
        match has_candidate(need.package)? {
            true => names.push(need.package),
            false => eprintln!(
                "xtask: this distribution has no package {}: continuing without it",
                need.package
            ),
        }
    }
    if names.is_empty() {
        return Ok(());
    }
    apt()
        .args(["install", "--yes", "--no-install-recommends"])
        .args(names)
        .run_quietly()
}

fn refuse_without_apt_or_root(needs: &[&Need]) -> Result<()> {
    let list = packages(needs).join(" ");
    if step::find_program("apt-get").is_none() {
        let missing: Vec<_> = needs.iter().map(|need| need.probe.to_string()).collect();
        bail!(
            "missing: {}. There is no apt-get to install the packages (on Debian: {list}): install \
             them by hand",
            missing.join(", ")
        );
    }
    if !step::is_root() {
        bail!("missing packages: {list}. As root: apt-get install --no-install-recommends {list}");
    }
    Ok(())
}

fn has_candidate(package: &str) -> Result<bool> {
    let policy = Step::new("apt-cache")
        .args(["policy", package])
        .env("LC_ALL", "C")
        .capture()?;
    Ok(policy.lines().any(|line| {
        line.trim()
            .strip_prefix("Candidate: ")
            .is_some_and(|version| version != "(none)")
    }))
}

/// Fetches the package lists, unless this run of xtask has fetched them before. Fails if apt-get
/// fails.
pub fn refresh_lists() -> Result<()> {
    static FRESH: Mutex<bool> = Mutex::new(false);
    let mut fresh = FRESH.lock().unwrap_or_else(PoisonError::into_inner);
    if !*fresh {
        apt().args(["--quiet", "update"]).run_quietly()?;
        *fresh = true;
    }
    Ok(())
}

fn apt() -> Step {
    Step::new("apt-get")
        .env("DEBIAN_FRONTEND", "noninteractive")
        .no_input()
}

/// Unpacks nginx under the target folder if the machine has none.
fn web_server(tree: &Tree) -> Result<()> {
    let folder = web_server_folder(tree);
    if step::find_program("nginx").is_some() || folder.join("usr/sbin/nginx").is_file() {
        return Ok(());
    }
    if step::find_program("apt-get").is_none() {
        bail!(
            "the program nginx is missing, and there is no apt-get to download it: \
             install it by hand"
        );
    }
    std::fs::create_dir_all(&folder)
        .with_context(|| format!("cannot make {}", folder.display()))?;
    if step::is_root() {
        refresh_lists()?;
    }
    // The package with the program differs between releases of Debian and Ubuntu.
    for package in ["nginx", "nginx-light"] {
        download(package, &folder)?;
    }
    match folder.join("usr/sbin/nginx").is_file() {
        true => Ok(()),
        false => bail!("neither nginx nor nginx-light of this distribution holds usr/sbin/nginx"),
    }
}

/// Unpacks the FTP server in the same way. Only an experiment needs it, and prints a notice without
/// it.
fn ftp_server(tree: &Tree) {
    let folder = web_server_folder(tree);
    let there = folder.join("usr/sbin/vsftpd").is_file();
    if there || step::find_program("vsftpd").is_some() || step::find_program("apt-get").is_none() {
        return;
    }
    let fetched = std::fs::create_dir_all(&folder)
        .map_err(anyhow::Error::from)
        .and_then(|()| download("vsftpd", &folder));
    if let Err(error) = fetched {
        eprintln!("setup: vsftpd is missing, and nice-fig5 to nice-fig8 with it: {error:#}");
    }
}

/// Installs TrafficToll from PyPI in a folder of its own. Only the experiment `other-tools` uses
/// it, and says so without it.
pub fn traffic_toll(tree: &Tree) {
    let folder = traffic_toll_folder(tree);
    if folder.join("bin/tt").is_file() || step::find_program("tt").is_some() {
        return;
    }
    let pip = folder.join("bin/pip");
    let made = Step::new("python3")
        .args(["-m", "venv"])
        .args([&folder])
        .run_quietly()
        .and_then(|()| {
            Step::new(pip)
                .args(["install", "traffictoll"])
                .run_quietly()
        });
    if let Err(error) = made {
        eprintln!("setup: TrafficToll is missing, and other-tools measures without it: {error:#}");
    }
}

fn traffic_toll_folder(tree: &Tree) -> PathBuf {
    tree.target.join("tools").join("traffictoll")
}

/// Downloads a package and unpacks it in `folder`, which must exist, without installing it. Fails
/// if apt-get or dpkg fails.
pub fn download(package: &str, folder: &Path) -> Result<()> {
    apt()
        .args([
            "--quiet",
            "--option",
            "APT::Sandbox::User=root",
            "download",
            package,
        ])
        .folder(folder)
        .run_quietly()?;
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_some_and(|end| end == "deb") {
            unpack(&path, folder)?;
            std::fs::remove_file(&path)?;
        }
    }
    Ok(())
}

/// Unpacks a package file in `folder`, without installing it. Fails if dpkg fails.
pub fn unpack(file: &Path, folder: &Path) -> Result<()> {
    Step::new("dpkg")
        .args([Path::new("-x"), file, folder])
        .run()
}

/// The folder with the program of the unpacked nginx.
pub fn web_server_programs(tree: &Tree) -> PathBuf {
    web_server_folder(tree).join("usr/sbin")
}

fn web_server_folder(tree: &Tree) -> PathBuf {
    tree.target.join("tools").join("nginx")
}

use Probe::{File, Program, Python};
use Use::{Bare, Bench, Build, Fuzz, Package, Run, Vm};

const fn need(probe: Probe, package: &'static str, uses: &'static [Use]) -> Need {
    Need {
        probe,
        package,
        uses,
        optional: false,
    }
}

const fn optional(probe: Probe, package: &'static str, uses: &'static [Use]) -> Need {
    Need {
        probe,
        package,
        uses,
        optional: true,
    }
}

const PROMETHEUS: &[&str] = &["/usr/lib/python3/dist-packages/prometheus_client/parser.py"];
const LIBWRAP: &[&str] = &[
    "/lib/x86_64-linux-gnu/libwrap.so.0",
    "/lib/aarch64-linux-gnu/libwrap.so.0",
];

/// Everything except git, a C compiler and Rust, which a running xtask proves.
const NEEDS: &[Need] = &[
    // Compiles the eBPF programs.
    need(Program("clang"), "clang", &[Build, Run, Vm, Package]),
    need(
        File(&["/usr/include/bpf/bpf_helpers.h"]),
        "libbpf-dev",
        &[Build, Run, Vm, Package],
    ),
    // Counts instructions.
    optional(Program("valgrind"), "valgrind", &[Bench]),
    // Compiles libFuzzer.
    need(Program("c++"), "g++", &[Fuzz]),
    // Test worlds.
    need(Program("tc"), "iproute2", &[Run, Vm]),
    need(Program("ethtool"), "ethtool", &[Run, Vm]),
    need(Program("sysctl"), "procps", &[Run, Vm]),
    optional(Program("bpftool"), "bpftool", &[Run, Vm]),
    // Address translation for a container.
    optional(Program("nft"), "nftables", &[Run, Vm]),
    // Traffic of real programs.
    need(Program("ping"), "iputils-ping", &[Run, Vm]),
    need(Program("iperf3"), "iperf3", &[Run, Vm]),
    // Experiments only.
    optional(Program("ddsperf"), "cyclonedds-tools", &[Run]),
    optional(Program("trickle"), "trickle", &[Run]),
    optional(Program("wondershaper"), "wondershaper", &[Run]),
    optional(Python("ensurepip"), "python3-venv", &[Run]),
    need(Program("curl"), "curl", &[Run, Vm]),
    need(Program("wget"), "wget", &[Run, Vm]),
    need(Program("rsync"), "rsync", &[Run, Vm]),
    // An SSH server and client. This package starts no service.
    need(Program("dbclient"), "dropbear-bin", &[Run, Vm]),
    // Shells with `cmd @rate`, in a terminal.
    need(Program("bash"), "bash", &[Run, Vm]),
    need(Program("zsh"), "zsh", &[Run, Vm]),
    need(Program("fish"), "fish", &[Run, Vm]),
    need(Program("script"), "bsdutils", &[Run, Vm]),
    // Reads the exported metrics.
    need(File(PROMETHEUS), "python3-prometheus-client", &[Run]),
    // A shared library of the FTP server of an experiment.
    optional(File(LIBWRAP), "libwrap0", &[Run]),
    // Gives programs the flags for the C library.
    optional(Program("pkg-config"), "pkgconf", &[Run]),
    // Builds a statically linked client that makes its system calls itself.
    need(Program("go"), "golang-go", &[Run, Vm]),
    // The package.
    need(Program("dpkg-shlibdeps"), "dpkg-dev", &[Package]),
    // Another kernel.
    need(Program("qemu-system-x86_64"), "qemu-system-x86", &[Vm]),
    need(Program("depmod"), "kmod", &[Vm]),
    need(Program("busybox"), "busybox-static", &[Vm]),
    need(Program("udevadm"), "udev", &[Vm]),
    need(
        File(&["/usr/lib/systemd/systemd", "/lib/systemd/systemd"]),
        "systemd",
        &[Vm],
    ),
    need(Program("python3"), "python3", &[Vm]),
    need(Python("ensurepip"), "python3-venv", &[Vm]),
    need(File(&["/usr/include/seccomp.h"]), "libseccomp-dev", &[Vm]),
    need(File(&["/usr/include/cap-ng.h"]), "libcap-ng-dev", &[Vm]),
    // A fresh machine.
    need(Program("debootstrap"), "debootstrap", &[Bare]),
    need(Program("git"), "git", &[Bare]),
];

#[cfg(test)]
mod tests;
