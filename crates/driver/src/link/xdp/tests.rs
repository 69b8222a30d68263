use super::*;

/// A send ring with `frames` frames in it, and the kernel's index of it.
fn ring(frames: u32) -> (Ring<u64>, *const AtomicU32) {
    let offsets = XdpRingOffset {
        producer: 0,
        consumer: 64,
        desc: 128,
        flags: None,
    };
    let length = offsets.desc as usize + RING_ENTRIES as usize * size_of::<u64>();
    let mut ring = Ring {
        mapping: Mapping::anonymous(length).unwrap(),
        offsets,
        own: 0,
        other: 0,
        published: 0,
        entry: std::marker::PhantomData,
    };
    (0..frames).for_each(|frame| ring.push(frame.into()));
    assert_eq!(ring.publish(), frames);
    let taken = std::ptr::from_ref(ring.index(offsets.consumer));
    (ring, taken)
}

/// The result of a flush and the number of calls. `taken` gives the number of frames that the
/// kernel shows as taken after so many calls.
fn flush(frames: u32, taken: impl Fn(u32) -> u32) -> (Flushed, u32) {
    let (mut ring, index) = ring(frames);
    let mut calls = 0;
    let done = ring.drain(|| {
        calls += 1;
        // SAFETY: the ring and its memory outlive the call.
        unsafe { &*index }.store(taken(calls).min(frames), Ordering::Release);
        Ok(false)
    });
    (done.unwrap(), calls)
}

#[test]
fn a_flush_repeats_until_the_kernel_has_taken_all_frames() {
    assert_eq!(flush(0, |_| 0), (Flushed::All, 0));
    assert_eq!(flush(64, |calls| 32 * calls), (Flushed::All, 2));
    assert_eq!(flush(2048, |calls| 32 * calls), (Flushed::All, 64));
}

#[test]
fn a_flush_repeats_if_the_kernel_shows_progress_only_at_the_end() {
    let at_the_end = |calls| if calls == 4 { 64 } else { 0 };
    assert_eq!(flush(64, at_the_end), (Flushed::All, 4));
}

#[test]
fn a_flush_ends_if_the_kernel_makes_no_progress() {
    assert_eq!(flush(2048, |_| 0), (Flushed::Partly, MAX_IDLE_CALLS));
    let (some, calls) = flush(2048, |calls| calls.min(10));
    assert_eq!((some, calls), (Flushed::Partly, 10 + MAX_IDLE_CALLS));
}

#[test]
fn completed_frames_count_as_progress_of_a_flush() {
    let (mut ring, _) = ring(2048);
    let mut calls = 0;
    let done = ring.drain(|| {
        calls += 1;
        Ok(calls < 20)
    });
    assert_eq!(
        (done.unwrap(), calls),
        (Flushed::Partly, 19 + MAX_IDLE_CALLS)
    );
    let refused = ring.drain(|| Err(io::Error::from_raw_os_error(libc::ENETDOWN)));
    assert_eq!(refused.unwrap_err().raw_os_error(), Some(libc::ENETDOWN));
}

#[test]
fn the_frames_of_any_number_of_queues_fit_into_the_memory() {
    let few = [1, 2, 4, 5, 8, 9, 64].map(fill_frames);
    assert_eq!(few, [2048, 2048, 2048, 1024, 1024, 512, 256]);
    for queues in 1..=MAX_QUEUES {
        let all = queues * fill_frames(queues);
        assert_eq!(most_fill_frames(queues, queues), all);
        assert!((queues..=MAX_QUEUES).all(|most| most_fill_frames(1, most) >= all));
    }
}
