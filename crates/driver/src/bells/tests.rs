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
fn is_rung(client: &ProgramMemory) -> bool {
    let ear = client.handles().to_program;
    let mut ready = [rustix::event::PollFd::new(
        &ear,
        rustix::event::PollFlags::IN,
    )];
    let patience = rustix::event::Timespec {
        tv_sec: 10,
        tv_nsec: 0,
    };
    rustix::event::poll(&mut ready, Some(&patience)).unwrap() > 0
}

#[test]
fn a_user_whose_ring_took_long_is_rung_for_by_the_other_thread() {
    let (mut bells, belfry) = Bells::with_thread(|| {}).unwrap();
    let (dear, other) = (client(), client());
    let mut bell = bells.bell(dear.notifier(), 1000);
    assert!(bell.itself);
    bells.was_dear(&mut bell, monotonic());
    assert!(!bells.bell(other.notifier(), 1000).itself, "all programs");
    assert!(bells.bell(other.notifier(), 1001).itself, "of this user");
    bells.strike(&mut bell);
    assert!(is_rung(&dear));
    // The user stays with the second thread although its writes are short now.
    for _ in 0..2 * PROOF {
        while bell.mark.waits.load(Ordering::Acquire) {
            thread::yield_now();
        }
        bells.strike(&mut bell);
    }
    assert!(!bell.itself);
    bells.dear.insert(1000, Instant(0));
    bells.strike(&mut bell);
    assert!(bell.itself);
    // The second thread serves requests from before the end.
    let mut last = bells.bell(other.notifier(), 1002);
    last.itself = false;
    bells.strike(&mut last);
    drop(bells);
    belfry.join();
    assert!(is_rung(&other));
}

#[test]
fn who_takes_long_waits_nine_times_as_long() {
    let (mut pauses, now) = (Pauses::default(), Instant(1_000_000_000));
    pauses.pause(7, Nanos(5_000_000), now);
    assert!(pauses.rests(7, Instant(now.0 + 44_999_999)));
    assert!(!pauses.rests(8, now), "others do not wait");
    assert!(!pauses.rests(7, Instant(now.0 + 45_000_000)));
    pauses.pause(7, Nanos(DEAR.0 + 1), now);
    assert!(pauses.rests(7, Instant(now.0 + PAUSE.0 - 1)));
}
