use rustix::fs::FallocateFlags;

use super::*;

#[test]
#[cfg_attr(miri, ignore = "makes a memory file")]
fn a_memory_file_cannot_be_resized() {
    let file = MemoryFile::create(8192).unwrap();
    for bytes in [0, 4096, 16_384] {
        assert_eq!(rustix::fs::ftruncate(file.fd(), bytes), Err(Errno::PERM));
    }
}

#[test]
#[cfg_attr(miri, ignore = "makes a memory file")]
fn a_sealed_file_refuses_holes_and_existing_mappings_stay_writable() {
    let file = MemoryFile::create(8192).unwrap();
    let (here, there) = (file.map().unwrap(), file.map().unwrap());
    let punch = || {
        let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(file.fd(), how, 0, 4096)
    };
    // SAFETY: the range belongs to a mapping of its own, and no code borrows from it.
    let remove = || unsafe {
        let begin = there.at(0, 4096, 4096).as_ptr().cast();
        rustix::mm::madvise(begin, 4096, rustix::mm::Advice::LinuxRemove)
    };
    assert_eq!((punch(), remove()), (Ok(()), Ok(())));
    file.seal().unwrap();
    file.seal().unwrap();
    assert_eq!((punch(), remove()), (Err(Errno::PERM), Err(Errno::PERM)));
    let fresh = file.map().unwrap_err().to_string();
    assert!(fresh.starts_with("cannot map the memory file"), "{fresh}");
    here.populate(0, 8192).unwrap();
    for (from, to) in [(&here, &there), (&there, &here)] {
        from.copy_in(4090, b"over two pages");
        let mut bytes = [0; 14];
        to.copy_out(4090, &mut bytes);
        assert_eq!(&bytes, b"over two pages");
        to.clear(4090, 14);
        from.copy_out(4090, &mut bytes);
        assert_eq!(bytes, [0; 14]);
    }
}

#[test]
#[cfg_attr(miri, ignore = "makes a memory file")]
fn a_file_of_two_mebibytes_or_more_begins_at_a_multiple_of_that() {
    for bytes in [HUGE_PAGE, HUGE_PAGE + 4096, 5 * HUGE_PAGE] {
        let region = MemoryFile::create(bytes).unwrap().map().unwrap();
        let begin = region.at(0, bytes, 4096).as_ptr() as u64;
        assert_eq!(begin % HUGE_PAGE, 0, "{bytes} bytes");
        region.make_huge(0).unwrap();
        region.copy_in(bytes - 3, b"end");
        assert_eq!(region.bytes(), bytes);
    }
}

#[test]
#[cfg_attr(miri, ignore = "makes a memory file")]
fn a_file_with_other_seals_of_the_program_is_refused() {
    let file = MemoryFile::create(8192).unwrap();
    let _driver = file.map().unwrap();
    // The driver's own writable mapping prevents this seal.
    let write = rustix::fs::fcntl_add_seals(file.fd(), SealFlags::WRITE);
    assert_eq!(write, Err(Errno::BUSY));
    rustix::fs::fcntl_add_seals(file.fd(), SealFlags::SEAL).unwrap();
    assert_eq!(
        file.seal().unwrap_err().to_string(),
        "the program has sealed its memory file: its seals are 0x7, and 0x17 are needed"
    );
}

#[test]
#[cfg_attr(miri, ignore = "makes a memory file")]
fn a_file_that_can_shrink_is_refused() {
    let fd = rustix::fs::memfd_create("open", MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&fd, 8192).unwrap();
    let refused = MemoryFile::receive(fd).unwrap_err().to_string();
    assert_eq!(
        refused,
        "not a memory file of version 1: its set of seals is 0x0, not 0x6"
    );
}

#[test]
#[should_panic(expected = "8 bytes at 4089 of a region of 4096")]
fn an_access_past_the_end_panics() {
    Region::private(4096).copy_in(4089, &[0; 8]);
}

#[test]
#[should_panic(expected = "4 bytes at 18446744073709551614 of a region of 4096")]
fn an_access_whose_end_wraps_panics() {
    Region::private(4096).copy_out(u64::MAX - 1, &mut [0; 4]);
}
