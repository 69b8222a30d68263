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

/// The number of long writes, each with this processor time and so long after the one before, after
/// which a user is slow. At most 100.
fn writes_until_slow(used: Option<Nanos>, apart: Nanos) -> usize {
    let (mut doorbells, second) = Doorbells::with_thread(|| {}).unwrap();
    let program = client();
    let mut doorbell = doorbells.doorbell(program.notifier(), 1000);
    let now = monotonic();
    let mut is_slow = |number: &u64| {
        let at = Instant(now.0 + number * apart.0);
        doorbells.judge_slow_write(&mut doorbell, used, at);
        !doorbell.by_packet_thread
    };
    let number = (0..100).take_while(|number| !is_slow(number)).count();
    drop(doorbells);
    second.join();
    number + 1
}

/// A stop of the machine makes a write long too, and uses no processor time if the kernel knows it.
#[test]
fn a_user_is_slow_after_writes_that_used_processor_time_or_many_long_ones() {
    let millisecond = Nanos::from_millis(1);
    let slow = Some(Nanos(SLOW_WRITE.0 + 1));
    assert_eq!(writes_until_slow(slow, millisecond), SLOW_WRITES as usize);
    // Paced ones are counted, since each prolongs the suspicion.
    let paced = Nanos(SUSPECT_PERIOD.0 - 1);
    assert_eq!(writes_until_slow(slow, paced), SLOW_WRITES as usize);
    assert_eq!(writes_until_slow(Some(SLOW_TOTAL), millisecond), 1);
    let short = Some(Nanos(2_000));
    assert_eq!(writes_until_slow(short, millisecond), LONG_WRITES as usize);
    assert!(writes_until_slow(short, Nanos(SUSPECT_PERIOD.0 / 20)) > 100);
    assert!(writes_until_slow(None, Nanos(SUSPECT_PERIOD.0 + 1)) > 100);
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
