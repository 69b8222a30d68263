//! The scripts of `crates/tcp/scripts` on this kernel's TCP, in real time. Needs root.
//!
//! docs/internals/tcp-scripts.md lists the scripts in which Linux 6.18 differs from our TCP, with
//! the RFC's word on each. The test fails if another script differs, or a listed one does not.

mod kernel;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::thread;

use kernel::Kernel;
use netnice_lab::testbed::skip;
use netnice_lab::world;
use netnice_scripts::Script;

fn tree() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// All scripts, those with the longest times first.
fn scripts() -> Vec<Script> {
    let folder = tree().join("crates/tcp/scripts");
    let mut scripts: Vec<Script> = std::fs::read_dir(&folder)
        .expect("the folder of the scripts")
        .map(|entry| entry.expect("an entry of the folder").path())
        .map(|path| {
            let name = path
                .file_stem()
                .expect("a file has a name")
                .to_string_lossy();
            let text = std::fs::read_to_string(&path).expect("a script is text");
            Script::parse(&name, &text).expect("the unit tests parse every script")
        })
        .collect();
    scripts.sort_by_key(|script| (script.shortest_time(), script.name.clone()));
    scripts
}

/// The names in the first column of the document's table.
fn listed() -> BTreeSet<String> {
    let path = tree().join("docs/internals/tcp-scripts.md");
    let text = std::fs::read_to_string(path).expect("the document");
    text.lines()
        .filter_map(|line| line.strip_prefix("| `")?.split('`').next())
        .map(str::to_owned)
        .collect()
}

/// Runs a script on the kernel in namespaces of its own. Returns what differs.
fn differs(script: &Script) -> Option<String> {
    let mut kernel = match Kernel::new(&script.options) {
        Ok(kernel) => kernel,
        Err(error) => return Some(format!("{}: {error:#}", script.name)),
    };
    let failure = netnice_scripts::run(script, &mut kernel).err()?;
    Some(failure.to_string())
}

/// A busy machine delays a step now and then, so a script may have several attempts.
fn differs_each_time(script: &Script) -> Option<String> {
    let mut last = None;
    for _ in 0..ATTEMPTS {
        last = Some(differs(script)?);
    }
    Some(format!("is not listed:\n{}", last?))
}

#[test]
#[ignore = "real times of a kernel; part of make test-long"]
fn the_kernel_differs_where_the_document_says() {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    if !release.starts_with(DOCUMENTED) {
        return skip(format!(
            "the document is about Linux {DOCUMENTED}, this is {release}"
        ));
    }
    world::begin().expect("a clean machine");
    let listed = listed();
    let names: BTreeSet<String> = scripts().into_iter().map(|script| script.name).collect();
    let unknown: Vec<&String> = listed.difference(&names).collect();
    assert!(
        unknown.is_empty(),
        "the document lists no script: {unknown:?}"
    );

    let waiting = Mutex::new(scripts());
    let complaints = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for _ in 0..AT_A_TIME {
            scope.spawn(|| {
                loop {
                    let Some(script) = waiting.lock().expect("no thread panics").pop() else {
                        return;
                    };
                    let complaint = match listed.contains(&script.name) {
                        true => differs(&script).map_or(Some(NOT_DIFFERENT.to_owned()), |_| None),
                        false => differs_each_time(&script),
                    };
                    let Some(complaint) = complaint else {
                        continue;
                    };
                    let complaint = format!("{} {complaint}", script.name);
                    complaints.lock().expect("no thread panics").push(complaint);
                }
            });
        }
    });
    let complaints = complaints.into_inner().expect("no thread panics");
    assert!(
        complaints.is_empty(),
        "{} scripts:\n{}",
        complaints.len(),
        complaints.join("\n\n")
    );
}

/// The version of Linux that the document describes.
const DOCUMENTED: &str = "6.18";
/// The scripts mostly wait.
const AT_A_TIME: usize = 12;
const ATTEMPTS: u32 = 4;
const NOT_DIFFERENT: &str = "is listed and does not differ";
