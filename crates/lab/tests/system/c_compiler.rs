//! Installs libnetnice in a folder and compiles C programs against it. The functions panic if that
//! fails.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use netnice_lab::process::{self, binary};

/// Installs headers, libraries (also by the name `libnetnice.so.0`) and pkg-config file below
/// `root`.
pub fn install(root: &Path) {
    for (from, to) in [
        (crate_file("include/netnice.h"), "include"),
        (crate_file("include/netnice_channel.h"), "include"),
        (crate_file("netnice.pc"), "lib/pkgconfig"),
        (binary("libnetnice.a").expect("built"), "lib"),
        (binary("libnetnice.so").expect("built"), "lib"),
    ] {
        let folder = root.join(to);
        fs::create_dir_all(&folder).expect("a folder");
        fs::copy(&from, folder.join(from.file_name().expect("a file"))).expect("copied");
    }
    std::os::unix::fs::symlink("libnetnice.so", root.join("lib/libnetnice.so.0")).expect("a link");
}

/// How a program is linked with the library.
#[derive(Clone, Copy)]
pub enum Link {
    /// Statically.
    Static,
    /// Dynamically.
    Shared,
}

/// The path of a file of the library's crate.
pub fn crate_file(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../capi")
        .join(path)
}

/// Compiles `source`, a path relative to the library's crate, against the library installed below
/// `root`, to the program `out`: as C99, with the warnings of `-pedantic -Wall -Wextra` as errors.
pub fn compile(root: &Path, source: &str, out: &Path, link: Link) {
    let lib = root.join("lib");
    let mut cc = Command::new("cc");
    cc.args(["-std=c99", "-pedantic", "-Wall", "-Wextra", "-Werror"])
        .args(["-D_XOPEN_SOURCE=700", "-I"])
        .arg(root.join("include"))
        .arg(crate_file(source))
        .arg("-o")
        .arg(out);
    match link {
        Link::Static => cc.arg(lib.join("libnetnice.a")).args([
            "-lgcc_s",
            "-lutil",
            "-lrt",
            "-lpthread",
            "-lm",
            "-ldl",
        ]),
        Link::Shared => cc
            .arg("-L")
            .arg(&lib)
            .arg("-lnetnice")
            .arg(format!("-Wl,-rpath,{}", lib.display())),
    };
    process::run(&mut cc).expect("it compiles");
}
