//! The Debian package: `target/deb/netnice_VERSION_ARCH.deb`.
//!
//! ```text
//! release programs ─strip─> tree of files ─> control (dpkg-shlibdeps finds what the programs are linked with)
//!                           pages, completions, units, documents         ─> md5sums ─> dpkg-deb
//! ```
//!
//! The files that are no Rust are in `packaging/`. [`trial`] installs the package on a fresh machine, uses it, upgrades
//! it while a limit is in force, and removes it.

mod trial;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::setup::{self, Use};
use crate::step::Step;
use crate::suite;
use crate::tree::Tree;

/// `deb [--try]`.
pub fn run(tree: &Tree, words: &[&str]) -> Result<()> {
    let is_trial = match words {
        [] => false,
        ["--try"] => true,
        _ => bail!("deb takes --try or nothing; got '{}'", words.join(" ")),
    };
    setup::ensure(tree, Use::Package)?;
    suite::release(tree)?;
    let version = env!("CARGO_PKG_VERSION");
    let package = build(tree, &format!("{version}-1"))?;
    eprintln!("deb: {}", package.display());
    if is_trial {
        let later = build(tree, &format!("{version}-2~trial"))?;
        trial::run(tree, &package, &later)?;
        fs::remove_file(later)?;
    }
    Ok(())
}

fn build(tree: &Tree, version: &str) -> Result<PathBuf> {
    let folder = tree.target.join("deb");
    let stage = Stage {
        root: folder.join("stage"),
        source: tree.root.clone(),
    };
    if stage.root.exists() {
        fs::remove_dir_all(&stage.root).context("cannot clear the stage")?;
    }
    stage.programs(&tree.programs())?;
    stage.pages(&tree.programs(), &folder)?;
    stage.files()?;
    let arch = Step::new("dpkg").args(["--print-architecture"]).capture()?;
    let arch = arch.trim();
    stage.control(version, arch, &depends(&stage, &folder)?)?;
    let package = folder.join(format!("netnice_{version}_{arch}.deb"));
    Step::new("dpkg-deb")
        .args(["--root-owner-group", "--build"])
        .args([&stage.root, &package])
        .run()?;
    Ok(package)
}

/// The tree of files that the package holds.
struct Stage {
    root: PathBuf,
    source: PathBuf,
}

impl Stage {
    fn programs(&self, built: &Path) -> Result<()> {
        for (name, place) in PROGRAMS {
            let to = self.make(place, 0o755)?;
            Step::new("strip")
                .args(["--strip-unneeded", "-o"])
                .args([&to, &built.join(name)])
                .run()?;
            set_mode(&to, 0o755)?;
        }
        Ok(())
    }

    /// What the program itself can write: manual pages and completions.
    fn pages(&self, built: &Path, folder: &Path) -> Result<()> {
        let program = built.join("netnice");
        let pages = folder.join("man");
        if pages.exists() {
            fs::remove_dir_all(&pages)?;
        }
        Step::new(&program).args(["man"]).args([&pages]).run()?;
        for entry in fs::read_dir(&pages)? {
            let page = entry?;
            let name = page.file_name().to_string_lossy().into_owned();
            self.compressed(
                &fs::read(page.path())?,
                &format!("usr/share/man/man1/{name}"),
            )?;
        }
        for (shell, place) in COMPLETIONS {
            let text = Step::new(&program).args(["completions", shell]).capture()?;
            self.write(text.as_bytes(), place, 0o644)?;
        }
        Ok(())
    }

    fn files(&self) -> Result<()> {
        for (from, to, mode) in FILES {
            let bytes =
                fs::read(self.source.join(from)).with_context(|| format!("cannot read {from}"))?;
            self.write(&bytes, to, mode)?;
        }
        for (from, to) in COMPRESSED {
            let bytes =
                fs::read(self.source.join(from)).with_context(|| format!("cannot read {from}"))?;
            self.compressed(&bytes, to)?;
        }
        Ok(())
    }

    fn control(&self, version: &str, arch: &str, depends: &str) -> Result<()> {
        let size = Step::new("du")
            .args(["--summarize", "--block-size=1024"])
            .args([&self.root])
            .capture()?;
        let size = size.split_whitespace().next().unwrap_or("0");
        self.write(
            control(version, arch, size, depends).as_bytes(),
            "DEBIAN/control",
            0o644,
        )?;
        self.write(b"/etc/netnice/policy.toml\n", "DEBIAN/conffiles", 0o644)?;
        let sums = Step::new("sh")
            .args([
                "-c",
                "find etc usr -type f -print0 | sort -z | xargs -0 md5sum",
            ])
            .folder(&self.root)
            .capture()?;
        self.write(sums.as_bytes(), "DEBIAN/md5sums", 0o644)
    }

    fn make(&self, place: &str, mode: u32) -> Result<PathBuf> {
        let to = self.root.join(place);
        let folder = to.parent().context("a file has a folder")?;
        fs::create_dir_all(folder)?;
        // A folder is made with whatever mask this process has; a package must not depend on it.
        for above in folder.ancestors().take_while(|a| *a != self.root) {
            set_mode(above, 0o755)?;
        }
        set_mode(&self.root, 0o755)?;
        fs::write(&to, [])?;
        set_mode(&to, mode)?;
        Ok(to)
    }

    fn write(&self, bytes: &[u8], place: &str, mode: u32) -> Result<()> {
        let to = self.make(place, mode)?;
        fs::write(&to, bytes).with_context(|| format!("cannot write {}", to.display()))
    }

    /// As policy wants pages and changelogs; without a time stamp, so that the same tree gives the same package.
    fn compressed(&self, bytes: &[u8], place: &str) -> Result<()> {
        self.write(bytes, place, 0o644)?;
        Step::new("gzip")
            .args(["-9", "--no-name", "--force"])
            .args([self.root.join(place)])
            .run()
    }
}

/// The packages whose libraries the programs are linked with, in the versions that they need.
fn depends(stage: &Stage, folder: &Path) -> Result<String> {
    let desk = folder.join("shlibdeps");
    fs::create_dir_all(desk.join("debian"))?;
    fs::write(desk.join("debian/control"), "Source: netnice\n")?;
    let found = Step::new("dpkg-shlibdeps")
        .args(["-O"])
        .args(PROGRAMS.map(|(_, place)| stage.root.join(place)))
        .folder(&desk)
        .capture()?;
    parse_depends(&found)
}

fn parse_depends(found: &str) -> Result<String> {
    found
        .lines()
        .find_map(|line| line.strip_prefix("shlibs:Depends="))
        .map(str::to_owned)
        .with_context(|| format!("dpkg-shlibdeps found no libraries: {found}"))
}

fn control(version: &str, arch: &str, size: &str, depends: &str) -> String {
    format!(
        "Package: netnice\n\
         Version: {version}\n\
         Architecture: {arch}\n\
         Maintainer: The netnice authors <netnice@localhost>\n\
         Installed-Size: {size}\n\
         Depends: {depends}, passwd\n\
         Suggests: bash-completion, iproute2\n\
         Section: net\n\
         Priority: optional\n\
         Description: network service for programs, promised and kept\n \
         One line limits what a running program, its children and all their\n \
         connections send and receive together, or reserves a part of a link for\n \
         it. What does not fit is refused, with the reason and what would still fit.\n \
         .\n \
         Wants Linux 6.1 or newer.\n"
    )
}

fn set_mode(path: &Path, mode: u32) -> Result<()> {
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
        .with_context(|| format!("cannot set the mode of {}", path.display()))
}

const PROGRAMS: [(&str, &str); 2] = [
    ("netnice", "usr/bin/netnice"),
    ("netniced", "usr/sbin/netniced"),
];
const COMPLETIONS: [(&str, &str); 3] = [
    ("bash", "usr/share/bash-completion/completions/netnice"),
    ("zsh", "usr/share/zsh/vendor-completions/_netnice"),
    ("fish", "usr/share/fish/vendor_completions.d/netnice.fish"),
];
const FILES: [(&str, &str, u32); 11] = [
    ("packaging/postinst", "DEBIAN/postinst", 0o755),
    ("packaging/prerm", "DEBIAN/prerm", 0o755),
    ("packaging/postrm", "DEBIAN/postrm", 0o755),
    (
        "packaging/netniced.service",
        "usr/lib/systemd/system/netniced.service",
        0o644,
    ),
    (
        "packaging/netniced.socket",
        "usr/lib/systemd/system/netniced.socket",
        0o644,
    ),
    ("docs/policy.toml", "etc/netnice/policy.toml", 0o644),
    (
        "packaging/copyright",
        "usr/share/doc/netnice/copyright",
        0o644,
    ),
    ("LICENSE-MIT", "usr/share/doc/netnice/LICENSE-MIT", 0o644),
    (
        "LICENSE-BSD-2-CLAUSE",
        "usr/share/doc/netnice/LICENSE-BSD-2-CLAUSE",
        0o644,
    ),
    (
        "docs/operations.md",
        "usr/share/doc/netnice/operations.md",
        0o644,
    ),
    ("docs/policy.md", "usr/share/doc/netnice/policy.md", 0o644),
];
const COMPRESSED: [(&str, &str); 2] = [
    (
        "packaging/changelog",
        "usr/share/doc/netnice/changelog.Debian",
    ),
    ("packaging/netniced.8", "usr/share/man/man8/netniced.8"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_control_file_says_what_the_package_needs() {
        let text = control("1.2-3", "amd64", "4711", "libc6 (>= 2.34)");
        assert!(
            text.contains("\nDepends: libc6 (>= 2.34), passwd\n"),
            "{text}"
        );
        let known: Vec<_> = text
            .lines()
            .filter(|line| !line.starts_with(' '))
            .map(|line| line.split_once(": ").expect("a field").0)
            .collect();
        assert_eq!(known.len(), 10, "{known:?}");
        assert!(text.ends_with('\n') && !text.contains("\n\n"), "{text:?}");
    }

    #[test]
    fn what_the_linker_wants_is_read_or_missed() {
        let found = "shlibs:Depends=libc6 (>= 2.34), libgcc-s1 (>= 4.2)\n";
        assert_eq!(
            parse_depends(found).expect("there"),
            "libc6 (>= 2.34), libgcc-s1 (>= 4.2)"
        );
        assert!(parse_depends("warning: nothing\n").is_err());
    }

    #[test]
    fn every_file_of_the_package_is_in_the_tree() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let files = FILES.iter().map(|(from, ..)| from);
        for from in files.chain(COMPRESSED.iter().map(|(from, _)| from)) {
            assert!(root.join(from).is_file(), "{from}");
        }
    }
}
