use super::*;

#[test]
#[cfg_attr(miri, ignore = "makes a memory file")]
fn a_memory_file_keeps_its_size() {
    let file = MemoryFile::create(8192).unwrap();
    for bytes in [0, 4096, 16_384] {
        assert_eq!(rustix::fs::ftruncate(file.fd(), bytes), Err(Errno::PERM));
    }
    // Nor can anybody put another seal on it, which could keep the driver from writing.
    let more = rustix::fs::fcntl_add_seals(file.fd(), SealFlags::FUTURE_WRITE);
    assert_eq!(more, Err(Errno::PERM));
}

#[test]
#[cfg_attr(miri, ignore = "makes a memory file")]
fn pages_given_back_read_as_zeros() {
    let file = MemoryFile::create(8192).unwrap();
    let region = file.map().unwrap();
    region.copy_in(4090, b"over two pages");
    let mut bytes = [0; 14];
    region.copy_out(4090, &mut bytes);
    assert_eq!(&bytes, b"over two pages");
    file.punch(4096, 4096).unwrap();
    region.copy_out(4090, &mut bytes);
    assert_eq!(&bytes, b"over t\0\0\0\0\0\0\0\0");
}

#[test]
#[cfg_attr(miri, ignore = "makes a memory file")]
fn a_file_that_can_shrink_is_refused() {
    let fd = rustix::fs::memfd_create("open", MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&fd, 8192).unwrap();
    let refused = MemoryFile::receive(fd).unwrap_err().to_string();
    assert_eq!(
        refused,
        "not a memory file of version 1: its set of seals is 0x0, not 0x7"
    );
}

#[test]
#[should_panic(expected = "8 bytes at 4089 of a region of 4096")]
fn there_is_no_way_past_the_end() {
    Region::private(4096).copy_in(4089, &[0; 8]);
}

#[test]
#[should_panic(expected = "4 bytes at 18446744073709551614 of a region of 4096")]
fn nor_around_it() {
    Region::private(4096).copy_out(u64::MAX - 1, &mut [0; 4]);
}
