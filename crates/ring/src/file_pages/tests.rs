use rustix::thread::CapabilitySet;

use super::*;
use crate::region::MemoryFile;

fn file(bytes: u64) -> (MemoryFile, Arc<Region>) {
    let file = MemoryFile::create(bytes).unwrap();
    let region = Arc::new(file.map().unwrap());
    (file, region)
}

/// Bytes in the pipes.
fn held(pages: &FilePages) -> u64 {
    let extents = pages.extents.lock().unwrap();
    let kept = |pipe| rustix::io::ioctl_fionread(pipe).unwrap();
    extents.holders.pipes.iter().map(kept).sum()
}

#[test]
#[cfg_attr(miri, ignore = "makes a memory file")]
fn the_first_page_of_each_extent_has_one_extra_reference() {
    let (_file, region) = file(6 * HUGE_PAGE + PAGE);
    let pages = FilePages::new(&region);
    assert_eq!(held(&pages), 0);
    pages.prepare(0, PAGE).unwrap();
    assert_eq!(held(&pages), PAGE);
    // Over the end of an extent, twice, and in the part at the end, which is no whole extent.
    pages.prepare(3 * HUGE_PAGE - PAGE, 2 * PAGE).unwrap();
    pages.prepare(3 * HUGE_PAGE - PAGE, 2 * PAGE).unwrap();
    pages.prepare(6 * HUGE_PAGE, PAGE).unwrap();
    assert_eq!(held(&pages), 3 * PAGE);
}

#[test]
#[cfg_attr(miri, ignore = "makes a memory file")]
fn a_small_file_has_no_extent() {
    let (_file, region) = file(8192);
    let pages = FilePages::new(&region);
    pages.prepare(0, 8192).unwrap();
    assert_eq!(held(&pages), 0);
}

#[test]
#[cfg_attr(miri, ignore = "makes a memory file")]
fn a_full_pipe_is_followed_by_another() {
    let no_privilege = CapabilitySet::SYS_RESOURCE;
    let mut sets = rustix::thread::capabilities(None).unwrap();
    sets.effective.remove(no_privilege);
    rustix::thread::set_capabilities(None, sets).unwrap();
    let (_file, region) = file(1200 << 20);
    let mut holders = Holders::default();
    // A pipe holds 256 pages by default.
    for number in 0..600 {
        let left = 600 - number as usize;
        holders.hold(&region, number * HUGE_PAGE, left).unwrap();
    }
    let kept = |pipe| rustix::io::ioctl_fionread(pipe).unwrap();
    let kept: u64 = holders.pipes.iter().map(kept).sum();
    assert_eq!(kept, 600 * PAGE);
    assert!(holders.pipes.len() > 1);
}

#[test]
#[cfg_attr(miri, ignore = "makes a memory file")]
fn an_extent_in_use_is_not_collapsed_through_another_mapping() {
    let (file, region) = file(2 * HUGE_PAGE);
    // Small pages, as where the kernel refuses huge ones.
    region.populate(0, 2 * HUGE_PAGE).unwrap();
    let mut holders = Holders::default();
    holders.hold(&region, 0, 1).unwrap();
    let others = file.map().unwrap();
    others.populate(0, 2 * HUGE_PAGE).unwrap();
    assert!(!others.make_huge(0).unwrap());
    // The second extent has no extra reference. A kernel without the call refuses both.
    let _ = others.make_huge(HUGE_PAGE).unwrap();
}
