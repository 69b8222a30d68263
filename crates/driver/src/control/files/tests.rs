use std::fs::File;

use rustix::fs::{MemfdFlags, Mode, OFlags};

use super::*;

const MOST: u64 = 64 << 20;

fn memory() -> OwnedFd {
    rustix::fs::memfd_create("test", MemfdFlags::CLOEXEC).unwrap()
}

#[test]
fn a_file_counts_until_nobody_has_it_in_any_way() {
    let mut files = Files::new().unwrap();
    let memory = memory();
    files.keep(7, memory.as_fd(), MOST).unwrap();
    let own = format!("/proc/self/fd/{}", memory.as_raw_fd());
    let path = rustix::fs::open(own, OFlags::PATH, Mode::empty()).unwrap();
    let copy = memory.try_clone().unwrap();
    let hold = |files: &mut Files, gone: Box<dyn std::any::Any>| {
        drop(gone);
        files.forget_gone();
        files.of(7)
    };
    let all = Has {
        files: 1,
        bytes: MOST,
    };
    assert_eq!(hold(&mut files, Box::new(memory)), all);
    assert_eq!(hold(&mut files, Box::new(File::from(copy))), all, "a path");
    assert_eq!(hold(&mut files, Box::new(path)), Has::default());
    assert_eq!(files.users().count(), 0);
}

#[test]
fn a_user_has_so_many_bytes_at_most_and_others_are_not_touched() {
    let mut files = Files::new().unwrap();
    let all: Vec<OwnedFd> = (0..16).map(|_| memory()).collect();
    for one in &all {
        files.admit(1000, 4 << 20, MOST).unwrap();
        files.keep(1000, one.as_fd(), 4 << 20).unwrap();
    }
    let refused = files.admit(1000, 4096, MOST).unwrap_err().to_string();
    assert_eq!(
        refused,
        "ring bytes of user 1000: 64 MiB at most, 64 MiB in use by 16 files that still exist, and \
         4 KiB more are asked for"
    );
    files.admit(1001, MOST, MOST).unwrap();
    assert!(files.admit(1001, u64::MAX, MOST).is_err());
    // `admit` notices files that have ended without a call of `forget_gone`.
    drop(all);
    files.admit(1000, MOST, MOST).unwrap();
}
