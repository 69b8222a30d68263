//! Builds the Debian packages in `target/deb`: `netnice` with the programs and the service,
//! `libnetnice0` with the C library, and `libnetnice-dev` with what is needed to build programs
//! with that library. The verb fails if a build or a tool fails, if a file is missing, or if the
//! trial fails.
//!
//! ```text
//! release programs and libraries ──strip──▶┐
//! manual pages, completions, units, ──────▶├─▶ stage ─▶ control file ─▶ md5sums ─▶ dpkg-deb
//! documents, copyright, changelog ────────▶┘
//! ```
//! The stage is a folder with the files of one package. The control file depends on the packages
//! with the shared libraries of the staged programs, which dpkg-shlibdeps finds.
//!
//! cargo-deb 3 does not replace this module: it writes no `shlibs` file, which other packages need
//! to depend on the shared library.
//!
//! `packaging/` has the units, the packages' scripts, the copyright, the changelog and the manual
//! pages of the daemon, the driver and netnice-peer. With `--try`, [`trial`] installs the packages
//! in a fresh chroot, uses them, upgrades them while a limit is in force, and removes them; this
//! needs root.

mod documents;
mod trial;

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::setup::{self, Use};
use crate::step::Step;
use crate::suite;
use crate::tree::Tree;

/// Runs `deb [--try]`: builds the packages and prints their paths; with `--try` builds them also as
/// a later version, tries both, and removes the later ones. Fails if a build fails, or if the trial
/// does.
pub fn run(tree: &Tree, words: &[&str]) -> Result<()> {
    let is_trial = parse(words)?;
    setup::ensure(tree, Use::Package)?;
    suite::release(tree)?;
    let version = env!("CARGO_PKG_VERSION");
    let packages = build(tree, &format!("{version}-1"))?;
    for package in &packages {
        eprintln!("deb: {}", package.display());
    }
    if is_trial {
        let later = build(tree, &format!("{version}-2~trial"))?;
        trial::run(tree, &packages, &later)?;
        for package in later {
            fs::remove_file(package)?;
        }
    }
    Ok(())
}

/// Fails if these arguments are invalid.
pub fn check_args(words: &[&str]) -> Result<()> {
    parse(words).map(drop)
}

/// True if the packages are to be tried.
fn parse(words: &[&str]) -> Result<bool> {
    match words {
        [] => Ok(false),
        ["--try"] => Ok(true),
        _ => bail!("deb takes --try or nothing; got '{}'", words.join(" ")),
    }
}

/// Builds all packages of a version and returns their files.
fn build(tree: &Tree, version: &str) -> Result<Vec<PathBuf>> {
    let folder = tree.target.join("deb");
    let arch = Step::new("dpkg").args(["--print-architecture"]).capture()?;
    let triplet = Step::new("dpkg-architecture")
        .args(["--query", "DEB_HOST_MULTIARCH"])
        .capture()?;
    let libraries = format!("usr/lib/{}", triplet.trim());
    let mut packages = Vec::new();
    for part in &PARTS {
        let stage = Stage {
            root: folder.join("stage").join(part.name),
            source: tree.root.clone(),
        };
        if stage.root.exists() {
            fs::remove_dir_all(&stage.root).context("cannot clear the stage")?;
        }
        stage.copyright(part)?;
        let built = tree.programs();
        let linked = match part.kind {
            Kind::Programs => {
                stage.programs(&built)?;
                stage.pages(&built, &folder)?;
                stage.files()?;
                depends(&stage, &folder, &PROGRAMS.map(|(_, place)| place))?
            }
            Kind::Library => {
                let library = stage.library(&built, &libraries)?;
                depends(&stage, &folder, &[&library])?
            }
            Kind::Development => {
                stage.development(&built, &libraries)?;
                format!("{LIBRARY} (= {version})")
            }
        };
        stage.control(part, version, arch.trim(), &linked)?;
        let package = folder.join(format!("{}_{version}_{}.deb", part.name, arch.trim()));
        Step::new("dpkg-deb")
            .args(["--root-owner-group", "--build"])
            .args([&stage.root, &package])
            .run()?;
        packages.push(package);
    }
    Ok(packages)
}

struct Part {
    name: &'static str,
    kind: Kind,
    section: &'static str,
    /// Further fields of its control file, one per line.
    fields: &'static str,
    description: &'static str,
}

/// The content of a package.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Programs,
    Library,
    Development,
}

/// The tree of files of one package.
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
        // netnice called by this name is `netnice at-rate`.
        symlink("netnice", self.root.join("usr/bin/at-rate"))?;
        Ok(())
    }

    /// Adds the files that the program generates: manual pages and completions.
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
        let pages = self.root.join("usr/share/man/man1");
        symlink("netnice-at-rate.1.gz", pages.join("at-rate.1.gz"))?;
        for (shell, place) in COMPLETIONS {
            let text = Step::new(&program).args(["completions", shell]).capture()?;
            self.write(text.as_bytes(), place, 0o644)?;
        }
        Ok(())
    }

    /// Adds files of the tree: units, scripts of the package, licences, manual pages, documents.
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
        for document in documents::read(&self.source)? {
            let to = format!("usr/share/doc/netnice/{}", document.place);
            self.write(&document.bytes, &to, 0o644)?;
        }
        Ok(())
    }

    /// Adds the copyright and the changelog, which every package has.
    fn copyright(&self, part: &Part) -> Result<()> {
        let read = |from: &str| {
            fs::read(self.source.join(from)).with_context(|| format!("cannot read {from}"))
        };
        let folder = format!("usr/share/doc/{}", part.name);
        let copyright = read("packaging/copyright")?;
        self.write(&copyright, &format!("{folder}/copyright"), 0o644)?;
        let changelog = read("packaging/changelog")?;
        self.compressed(&changelog, &format!("{folder}/changelog.Debian"))
    }

    /// Adds the shared library and its name for the dynamic linker. Returns the path of the
    /// library.
    fn library(&self, built: &Path, libraries: &str) -> Result<String> {
        let place = format!("{libraries}/{SONAME}.{}", env!("CARGO_PKG_VERSION"));
        let to = self.make(&place, 0o644)?;
        Step::new("strip")
            .args(["--strip-unneeded", "-o"])
            .args([&to, &built.join("libnetnice.so")])
            .run()?;
        set_mode(&to, 0o644)?;
        let file = to.file_name().context("a file has a name")?;
        symlink(file, to.with_file_name(SONAME))?;
        let (name, number) = SONAME.rsplit_once(".so.").context("a versioned name")?;
        let shlibs = format!(
            "{name} {number} {LIBRARY} (>= {})\n",
            env!("CARGO_PKG_VERSION")
        );
        self.write(shlibs.as_bytes(), "DEBIAN/shlibs", 0o644)?;
        self.write(b"activate-noawait ldconfig\n", "DEBIAN/triggers", 0o644)?;
        Ok(place)
    }

    /// Adds the headers, static library, link, pkg-config file, manual pages and example.
    fn development(&self, built: &Path, libraries: &str) -> Result<()> {
        let archive = self.make(&format!("{libraries}/libnetnice.a"), 0o644)?;
        Step::new("strip")
            .args(["--strip-debug", "-o"])
            .args([&archive, &built.join("libnetnice.a")])
            .run()?;
        set_mode(&archive, 0o644)?;
        symlink(SONAME, archive.with_file_name("libnetnice.so"))?;
        let capi = self.source.join("crates/capi");
        for (name, text) in files(&capi.join("include"))? {
            self.write(&text, &format!("usr/include/{name}"), 0o644)?;
        }
        for (name, text) in files(&capi.join("examples"))? {
            let place = format!("usr/share/doc/libnetnice-dev/examples/{name}");
            self.write(&text, &place, 0o644)?;
        }
        for (name, text) in files(&capi.join("man"))? {
            self.compressed(&text, &format!("usr/share/man/man3/{name}"))?;
        }
        let text = fs::read_to_string(capi.join("netnice.pc"))?;
        let place = format!("{libraries}/pkgconfig/netnice.pc");
        self.write(pkgconfig(&text, libraries).as_bytes(), &place, 0o644)
    }

    fn control(&self, part: &Part, version: &str, arch: &str, depends: &str) -> Result<()> {
        let size = Step::new("du")
            .args(["--summarize", "--block-size=1024"])
            .args([&self.root])
            .capture()?;
        let size = size.split_whitespace().next().unwrap_or("0");
        self.write(
            control(part, version, arch, size, depends).as_bytes(),
            "DEBIAN/control",
            0o644,
        )?;
        if part.kind == Kind::Programs {
            let files = b"/etc/netnice/peer.toml\n/etc/netnice/policy.toml\n";
            self.write(files, "DEBIAN/conffiles", 0o644)?;
        }
        let sums = Step::new("sh")
            .args([
                "-c",
                "find . -path ./DEBIAN -prune -o -type f -printf '%P\\0' | sort -z |
                 xargs -0 md5sum",
            ])
            .folder(&self.root)
            .capture()?;
        self.write(sums.as_bytes(), "DEBIAN/md5sums", 0o644)
    }

    fn make(&self, place: &str, mode: u32) -> Result<PathBuf> {
        let to = self.root.join(place);
        let folder = to.parent().context("a file has a folder")?;
        fs::create_dir_all(folder)?;
        // The process's umask must not change the modes in the package.
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

    /// Adds a file compressed with gzip as Debian policy demands for pages and changelogs. The file
    /// has no time stamp, so the same tree gives the same package.
    fn compressed(&self, bytes: &[u8], place: &str) -> Result<()> {
        self.write(bytes, place, 0o644)?;
        Step::new("gzip")
            .args(["-9", "--no-name", "--force"])
            .args([self.root.join(place)])
            .run()
    }
}

/// The packages with the shared libraries that these files need, with versions.
fn depends(stage: &Stage, folder: &Path, places: &[&str]) -> Result<String> {
    let work = folder.join("shlibdeps");
    fs::create_dir_all(work.join("debian"))?;
    fs::write(work.join("debian/control"), "Source: netnice\n")?;
    let found = Step::new("dpkg-shlibdeps")
        .args(["-O"])
        .args(places.iter().map(|place| stage.root.join(place)))
        .folder(&work)
        .capture()?;
    parse_depends(&found)
}

/// The pkg-config file for a library in Debian's library folder.
fn pkgconfig(text: &str, libraries: &str) -> String {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let placed = lines.map(|line| match line.split_once('=') {
        Some(("prefix", _)) => "prefix=/usr\n".to_owned(),
        Some(("libdir", _)) => format!("libdir=/{libraries}\n"),
        _ => format!("{line}\n"),
    });
    placed.collect()
}

fn parse_depends(found: &str) -> Result<String> {
    found
        .lines()
        .find_map(|line| line.strip_prefix("shlibs:Depends="))
        .map(str::to_owned)
        .with_context(|| format!("dpkg-shlibdeps found no libraries: {found}"))
}

fn control(part: &Part, version: &str, arch: &str, size: &str, depends: &str) -> String {
    let Part {
        name,
        section,
        fields,
        description,
        ..
    } = part;
    let also = match part.kind {
        Kind::Programs => ", passwd",
        Kind::Library | Kind::Development => "",
    };
    format!(
        "Package: {name}\n\
         Source: netnice\n\
         Version: {version}\n\
         Architecture: {arch}\n\
         Maintainer: The netnice authors <netnice@localhost>\n\
         Installed-Size: {size}\n\
         Depends: {depends}{also}\n\
         {fields}\
         Section: {section}\n\
         Priority: optional\n\
         Description: {description}"
    )
}

/// Names and contents of the files in a folder, sorted.
fn files(folder: &Path) -> Result<Vec<(String, Vec<u8>)>> {
    let entries = fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()));
    let mut found = Vec::new();
    for entry in entries? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        found.push((name, fs::read(entry.path())?));
    }
    found.sort();
    Ok(found)
}

fn set_mode(path: &Path, mode: u32) -> Result<()> {
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
        .with_context(|| format!("cannot set the mode of {}", path.display()))
}

const PARTS: [Part; 3] = [
    Part {
        name: "netnice",
        kind: Kind::Programs,
        section: "net",
        fields: "Suggests: bash-completion, iproute2\n",
        description: "network service for programs, promised and kept\n \
         One line limits what a running program, its children and all their\n \
         connections send and receive together, or reserves a part of a link for\n \
         it. What does not fit is refused, with the reason and what would still fit.\n \
         .\n \
         Wants Linux 6.1 or newer.\n",
    },
    Part {
        name: LIBRARY,
        kind: Kind::Library,
        section: "libs",
        fields: "Multi-Arch: same\nRecommends: netnice\n",
        description: "network limits of processes, groups and users, from C\n \
         netnice_get and netnice_set are to what programs send and receive what\n \
         getpriority and setpriority are to their processor time. netnice_attach and\n \
         its like send UDP past the kernel. They ask the daemon of the package netnice.\n",
    },
    Part {
        name: "libnetnice-dev",
        kind: Kind::Development,
        section: "libdevel",
        fields: "Multi-Arch: same\n",
        description: "network limits of processes, groups and users, from C (development)\n \
         Headers, static library, pkg-config file, manual pages and examples of\n \
         libnetnice.\n",
    },
];
/// The package of the library, and the library's name for the dynamic linker. crates/capi/build.rs
/// sets that name.
const LIBRARY: &str = "libnetnice0";
const SONAME: &str = "libnetnice.so.0";
const PROGRAMS: [(&str, &str); 4] = [
    ("netnice", "usr/bin/netnice"),
    ("netniced", "usr/sbin/netniced"),
    ("netnice-driver", "usr/sbin/netnice-driver"),
    ("netnice-peer", "usr/sbin/netnice-peer"),
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
    (
        "packaging/netnice-driver@.service",
        "usr/lib/systemd/system/netnice-driver@.service",
        0o644,
    ),
    (
        "packaging/netnice-peer.service",
        "usr/lib/systemd/system/netnice-peer.service",
        0o644,
    ),
    ("docs/manual/peer.toml", "etc/netnice/peer.toml", 0o644),
    ("docs/manual/policy.toml", "etc/netnice/policy.toml", 0o644),
    ("LICENSE-MIT", "usr/share/doc/netnice/LICENSE-MIT", 0o644),
    (
        "LICENSE-BSD-2-CLAUSE",
        "usr/share/doc/netnice/LICENSE-BSD-2-CLAUSE",
        0o644,
    ),
];
const COMPRESSED: [(&str, &str); 3] = [
    ("packaging/netniced.8", "usr/share/man/man8/netniced.8"),
    (
        "packaging/netnice-driver.8",
        "usr/share/man/man8/netnice-driver.8",
    ),
    (
        "packaging/netnice-peer.8",
        "usr/share/man/man8/netnice-peer.8",
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_control_file_has_the_fields_of_its_package() {
        for (part, fields) in PARTS.iter().zip([11, 12, 11]) {
            let text = control(part, "1.2-3", "amd64", "4711", "libc6 (>= 2.34)");
            assert!(text.contains("\nDepends: libc6 (>= 2.34)"), "{text}");
            let known: Vec<_> = text
                .lines()
                .filter(|line| !line.starts_with(' '))
                .map(|line| line.split_once(": ").expect("a field").0)
                .collect();
            assert_eq!(known.len(), fields, "{known:?}");
            assert!(text.ends_with('\n') && !text.contains("\n\n"), "{text:?}");
        }
    }

    #[test]
    fn the_pkg_config_file_names_debians_library_folder() {
        let text =
            "# by hand\nprefix=${pcfiledir}/../..\nlibdir=${prefix}/lib\n\nLibs: -L${libdir}\n";
        let placed = pkgconfig(text, "usr/lib/x86_64-linux-gnu");
        assert_eq!(
            placed,
            "prefix=/usr\nlibdir=/usr/lib/x86_64-linux-gnu\n\nLibs: -L${libdir}\n"
        );
    }

    #[test]
    fn the_dependencies_are_read_from_dpkg_shlibdeps() {
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
