//! Tests that a lookup returns what the kernel reports for a mapping of the same file.

use std::{ffi::CString, os::unix::fs::PermissionsExt, path::Path};

use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::mm::{MapFlags, ProtFlags, mmap};
use rustix::mount::{MountFlags, MountPropagationFlags};
use rustix::thread::{UnshareFlags, unshare_unsafe};

use super::*;

/// Inode and device of a mapped file, from the kernel's own inode (/proc/self/maps).
fn mapped(path: &Path) -> (u64, u32) {
    let file = fs::File::open(path).expect("the file is there");
    let (read, private) = (ProtFlags::READ, MapFlags::PRIVATE);
    // SAFETY: a new read-only mapping of one page that is never read; it stays until the test ends.
    let at = unsafe { mmap(std::ptr::null_mut(), 4096, read, private, &file, 0) };
    let at = at.expect("mapped");
    let maps = fs::read_to_string("/proc/thread-self/maps").expect("the maps can be read");
    let start = format!("{:x}-", at as usize);
    let line = maps
        .lines()
        .find(|l| l.starts_with(&start))
        .expect("mapped");
    let words: Vec<&str> = line.split_whitespace().collect();
    let (major, minor) = words[3].split_once(':').expect("major:minor");
    let number = |hex| u32::from_str_radix(hex, 16).expect("a number");
    let inode = words[4].parse().expect("an inode");
    (inode, number(major) << 20 | number(minor))
}

fn looked_up(path: &Path) -> (u64, u32) {
    let key = lookup(path.to_str().expect("plain")).expect("the file is there");
    (key.inode, key.dev)
}

#[test]
fn the_key_of_an_executable_is_the_kernels() {
    let own = fs::canonicalize("/proc/self/exe").expect("this test is a file");
    assert_eq!(looked_up(&own), mapped(&own));
    assert_eq!(
        of_process(std::process::id()),
        lookup(own.to_str().expect("plain")).ok()
    );
}

#[test]
fn a_file_that_cannot_be_executed_is_refused() {
    let folder = std::env::temp_dir().join(format!("netnice-app-{}", std::process::id()));
    fs::create_dir_all(&folder).expect("a folder");
    let refusal = |name: &str, text: &str, mode: u32| {
        let path = folder.join(name);
        fs::write(&path, text).expect("a file");
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("its mode is set");
        let found = lookup(path.to_str().expect("plain"));
        found
            .err()
            .map(|error| error.to_string())
            .unwrap_or_default()
    };
    assert!(refusal("script", "#!/bin/sh\n", 0o755).contains("script"));
    assert!(refusal("text", "hello", 0o644).contains("execute"));
    assert_eq!(refusal("program", "\x7fELF", 0o755), "");
    let error = lookup(folder.to_str().expect("plain")).expect_err("a folder");
    assert!(error.to_string().contains("not a file"));
    fs::remove_dir_all(&folder).expect("it was ours");
}

/// Mounts a file system. Returns false if this user may not, or the kernel does not support it.
fn mount(kind: &str, at: &Path, options: &str) -> bool {
    let options = CString::new(options).expect("no zero inside");
    rustix::mount::mount(kind, at, kind, MountFlags::empty(), options.as_c_str()).is_ok()
}

/// On an overlay of two file systems, stat(2) returns a device that belongs to neither.
#[test]
fn the_key_of_an_executable_on_an_overlay_is_the_kernels() {
    let folder = std::env::temp_dir().join(format!("netnice-overlay-{}", std::process::id()));
    let place = |name: &str| folder.join(name);
    let work = || {
        // SAFETY: only this thread gets its own mounts, which end with it.
        let alone = unsafe { unshare_unsafe(UnshareFlags::NEWNS | UnshareFlags::FS) };
        let private = MountPropagationFlags::REC | MountPropagationFlags::PRIVATE;
        let private = alone.and_then(|()| rustix::mount::mount_change("/", private));
        if private.is_err() || !mount("tmpfs", &folder, "") {
            return None; // not root: cannot be tested
        }
        for name in ["lower", "upper", "work", "all"] {
            fs::create_dir(place(name)).expect("a folder");
        }
        assert!(mount("tmpfs", &place("lower"), ""));
        fs::write(place("lower").join("program"), "#!").expect("a file");
        let [lower, upper, work] =
            ["lower", "upper", "work"].map(|n| place(n).display().to_string());
        let options = format!("lowerdir={lower},upperdir={upper},workdir={work}");
        if !mount("overlay", &place("all"), &options) {
            return None; // this kernel has no overlayfs
        }
        let program = place("all").join("program");
        Some((looked_up_by_thread(&program), mapped(&program)))
    };
    fs::create_dir_all(&folder).expect("a folder");
    let found = std::thread::scope(|scope| scope.spawn(work).join());
    fs::remove_dir(&folder).expect("the mounts went with their thread");
    if let Some((seen, mapped)) = found.expect("no panic inside") {
        assert_eq!(seen, mapped);
    }
}

/// As [`looked_up`], with the mounts of this thread.
fn looked_up_by_thread(path: &Path) -> (u64, u32) {
    let tables = ["/proc/thread-self/mountinfo".to_owned()];
    let file = open(path.to_str().expect("plain")).expect("the file is there");
    let key = key_of(&file, &tables).expect("it has a key");
    (key.inode, key.dev)
}

#[test]
fn a_fifo_is_not_opened_and_a_lookup_as_a_user_hides_files_of_root() {
    let folder = std::env::temp_dir().join(format!("netnice-eyes-{}", std::process::id()));
    fs::create_dir_all(folder.join("closed")).expect("a folder");
    let place = |name: &str| folder.join(name).to_str().expect("plain").to_owned();
    let made = mknodat(CWD, place("fifo"), FileType::Fifo, Mode::RWXU, 0);
    assert_eq!(made, Ok(()));
    fs::set_permissions(place("fifo"), fs::Permissions::from_mode(0o777)).expect("ours");
    let error = lookup(&place("fifo")).expect_err("a FIFO");
    assert_eq!(error.to_string(), "it is not a file");

    for name in ["open", "closed/program"] {
        fs::write(place(name), "\x7fELF").expect("a file");
        fs::set_permissions(place(name), fs::Permissions::from_mode(0o755)).expect("ours");
    }
    for (name, mode) in [("", 0o755), ("closed", 0o700)] {
        fs::set_permissions(place(name), fs::Permissions::from_mode(mode)).expect("ours");
    }
    let as_user = |path: String| {
        let rights = Rights {
            uid: 61_234,
            groups: vec![61_234],
        };
        let found = thread::spawn(move || lookup_as(&path, &rights)).join();
        found.expect("no panic").map_err(|error| error.to_string())
    };
    if let Ok(key) = as_user(place("open")) {
        assert_eq!(Some(key), lookup(&place("open")).ok());
        let (hidden, missing) = (
            as_user(place("closed/program")),
            as_user(place("closed/no")),
        );
        assert!(hidden.is_err(), "{hidden:?}");
        assert_eq!(hidden, missing);
    } // else not root: this process cannot take another user's rights
    let mut executables = Executables::default();
    for _ in 0..2 {
        assert!(executables.lookup(&place("open")).is_ok());
        assert!(executables.lookup(&place("none")).is_err());
    }
    fs::remove_dir_all(&folder).expect("it was ours");
}
