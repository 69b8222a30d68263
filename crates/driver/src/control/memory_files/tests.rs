use std::fs::File;

use rustix::fs::{MemfdFlags, Mode, OFlags};

use super::*;

const LIMIT: u64 = 64 << 20;

fn memory() -> OwnedFd {
    rustix::fs::memfd_create("test", MemfdFlags::CLOEXEC).unwrap()
}

#[test]
fn a_file_counts_until_its_last_reference_is_gone() {
    let mut files = MemoryFiles::new().unwrap();
    let memory = memory();
    files.keep(7, memory.as_fd(), LIMIT).unwrap();
    let own = format!("/proc/self/fd/{}", memory.as_raw_fd());
    let path = rustix::fs::open(own, OFlags::PATH, Mode::empty()).unwrap();
    let copy = memory.try_clone().unwrap();
    let hold = |files: &mut MemoryFiles, ended: Box<dyn std::any::Any>| {
        drop(ended);
        files.forget_ended();
        files.of(7)
    };
    let all = MemoryUse {
        files: 1,
        bytes: LIMIT,
    };
    assert_eq!(hold(&mut files, Box::new(memory)), all);
    assert_eq!(hold(&mut files, Box::new(File::from(copy))), all, "a path");
    assert_eq!(hold(&mut files, Box::new(path)), MemoryUse::default());
    assert_eq!(files.users().count(), 0);
}

#[test]
fn the_limit_of_a_user_does_not_affect_others() {
    let mut files = MemoryFiles::new().unwrap();
    let all: Vec<OwnedFd> = (0..16).map(|_| memory()).collect();
    for one in &all {
        files.admit(1000, 4 << 20, LIMIT).unwrap();
        files.keep(1000, one.as_fd(), 4 << 20).unwrap();
    }
    let refused = files.admit(1000, 4096, LIMIT).unwrap_err().to_string();
    assert_eq!(
        refused,
        "ring bytes of user 1000: 64 MiB at most, 64 MiB in use by 16 files that still exist, and \
         4 KiB more are asked for"
    );
    files.admit(1001, LIMIT, LIMIT).unwrap();
    assert!(files.admit(1001, u64::MAX, LIMIT).is_err());
    // `admit` notices files that have ended without a call of `forget_ended`.
    drop(all);
    files.admit(1000, LIMIT, LIMIT).unwrap();
}
