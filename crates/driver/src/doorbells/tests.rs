use netnice_ring::driver::ProgramMemory;
use netnice_ring::layout::Budget;

use super::*;

fn client() -> ProgramMemory {
    ProgramMemory::create(Budget {
        flows: 1,
        bytes: 4096,
    })
    .unwrap()
}

/// Whether the program's doorbell becomes readable within ten seconds.
fn was_notified(client: &ProgramMemory) -> bool {
    let doorbell = client.handles().to_program;
    let mut ready = [rustix::event::PollFd::new(
        &doorbell,
        rustix::event::PollFlags::IN,
    )];
    let timeout = rustix::event::Timespec {
        tv_sec: 10,
        tv_nsec: 0,
    };
    rustix::event::poll(&mut ready, Some(&timeout)).unwrap() > 0
}

#[test]
fn the_second_thread_notifies_programs_of_a_user_with_a_slow_write() {
    let (mut doorbells, second) = Doorbells::with_thread(|| {}).unwrap();
    let (slow, other) = (client(), client());
    let mut doorbell = doorbells.doorbell(slow.notifier(), 1000);
    assert!(doorbell.by_packet_thread);
    doorbells.mark_slow(&mut doorbell, monotonic());
    assert!(
        !doorbells.doorbell(other.notifier(), 1000).by_packet_thread,
        "all programs"
    );
    assert!(
        doorbells.doorbell(other.notifier(), 1001).by_packet_thread,
        "of this user"
    );
    doorbells.write(&mut doorbell);
    assert!(was_notified(&slow));
    // The user stays with the second thread although its writes are short now.
    for _ in 0..2 * SHORT_WRITES {
        while doorbell.state.queued.load(Ordering::Acquire) {
            thread::yield_now();
        }
        doorbells.write(&mut doorbell);
    }
    assert!(!doorbell.by_packet_thread);
    doorbells.slow_users.insert(1000, Instant(0));
    doorbells.write(&mut doorbell);
    assert!(doorbell.by_packet_thread);
    // The second thread serves requests from before the end.
    let mut last = doorbells.doorbell(other.notifier(), 1002);
    last.by_packet_thread = false;
    doorbells.write(&mut last);
    drop(doorbells);
    second.join();
    assert!(was_notified(&other));
}

/// A stop of the machine makes a write long too, but does not use processor time.
#[test]
fn a_user_is_slow_after_three_writes_that_used_processor_time() {
    let (mut doorbells, second) = Doorbells::with_thread(|| {}).unwrap();
    let program = client();
    let mut doorbell = doorbells.doorbell(program.notifier(), 1000);
    let (short, long) = (Nanos(2_000), Nanos(SLOW_WRITE.0 + 1));
    let now = monotonic();
    let judge = |doorbells: &mut Doorbells, doorbell: &mut ProgramDoorbell, used, at: Nanos| {
        doorbells.judge_slow_write(doorbell, used, Instant(now.0 + at.0));
        doorbell.by_packet_thread
    };
    assert!(judge(&mut doorbells, &mut doorbell, None, Nanos(0)));
    for _ in 0..100 {
        assert!(judge(&mut doorbells, &mut doorbell, Some(short), Nanos(1)));
    }
    for _ in 1..SLOW_WRITES {
        assert!(judge(&mut doorbells, &mut doorbell, Some(long), Nanos(2)));
    }
    // The suspicion has ended, and a new one begins.
    let later = Nanos(SUSPECT_PERIOD.0 + 3);
    assert!(judge(&mut doorbells, &mut doorbell, None, later));
    for _ in 1..SLOW_WRITES {
        assert!(judge(&mut doorbells, &mut doorbell, Some(long), later));
    }
    assert!(!judge(&mut doorbells, &mut doorbell, Some(long), later));
    drop(doorbells);
    second.join();
}

#[test]
fn a_slow_write_is_followed_by_a_pause_of_nine_times_its_duration() {
    let (mut back_off, now) = (BackOff::default(), Instant(1_000_000_000));
    back_off.pause(7, Nanos(5_000_000), now);
    assert!(back_off.is_paused(7, Instant(now.0 + 44_999_999)));
    assert!(!back_off.is_paused(8, now), "others do not wait");
    assert!(!back_off.is_paused(7, Instant(now.0 + 45_000_000)));
    back_off.pause(7, Nanos(SLOW_WRITE.0 + 1), now);
    assert!(back_off.is_paused(7, Instant(now.0 + MIN_PAUSE.0 - 1)));
}
