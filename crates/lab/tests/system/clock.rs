//! Tests a change of the machine's clock, forward and back, as a person or a time server may make
//! it: nothing may happen early, nothing may wait for ever, and a schedule follows it. The tests
//! only run in the guest of `make test-vm`, because they change the clock of the whole machine.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use netnice_lab::experiment::bench::{R4M, pause};
use netnice_lab::testbed::{TestBed, becomes_true, skip};
use netnice_lab::traffic::{self, Tcp};
use rustix::time::{ClockId, Timespec, clock_settime};

/// The machine's clock. Dropping it restores the right time.
struct Clock {
    began: (Instant, SystemTime),
}

impl Clock {
    fn new() -> Clock {
        Clock {
            began: (Instant::now(), SystemTime::now()),
        }
    }

    /// Sets the clock to the right time plus `off` seconds.
    fn set(&self, off: i64) {
        let right = self.began.1 + self.began.0.elapsed();
        let since = right.duration_since(UNIX_EPOCH).expect("after 1970");
        let seconds = since.as_secs() as i64 + off;
        let time = Timespec {
            tv_sec: seconds,
            tv_nsec: i64::from(since.subsec_nanos()),
        };
        clock_settime(ClockId::Realtime, time).expect("the clock can be set");
    }
}

impl Drop for Clock {
    fn drop(&mut self) {
        self.set(0);
    }
}

#[test]
fn setting_the_clock_neither_ends_nor_prolongs_a_limit() {
    if std::env::var_os("NETNICE_GUEST").is_none_or(|v| v != "1") {
        return skip("the clock is not this test's own (`make test-vm` has a guest)");
    }
    let mut bed = TestBed::new().expect("a test bed");
    let to = bed.sink(5001).expect("a sink");
    let source = Tcp::connect(to, 2).source();
    let program = traffic::start_now(bed.world.client(), &source).expect("a program");
    let target = format!("pid:{}", program.pid());
    let clock = Clock::new();
    for off in [HOUR, -HOUR, 400 * 24 * HOUR] {
        let begun = Instant::now();
        bed.run_ok(&format!("set {target} --up 4mbit --for 30s"));
        clock.set(off);
        pause(2.0);
        assert!(!bed.target(&target).is_null(), "{off} s: it ended early");
        bed.await_limited(|| bed.sent_rate(0.3, 1.0).expect("a rate"), R4M, "then");
        // A daemon that starts at another time of day computes the same remaining time.
        bed.netnice.kill_daemon();
        bed.netnice.start_daemon().expect("it starts again");
        clock.set(0);
        let over = becomes_true(|| bed.target(&target).is_null());
        let lasted = begun.elapsed();
        assert!(over, "{off} s: it has not ended after {lasted:?}");
        assert!(lasted >= Duration::from_secs(30), "{off} s: {lasted:?}");
    }
}

#[test]
fn a_schedule_follows_the_clock_that_is_set() {
    if std::env::var_os("NETNICE_GUEST").is_none_or(|v| v != "1") {
        return skip("the clock is not this test's own (`make test-vm` has a guest)");
    }
    let bed = TestBed::new().expect("a test bed");
    let clock = Clock::new();
    let since = clock.began.1.duration_since(UNIX_EPOCH);
    let minute = since.expect("after 1970").as_secs() / 60;
    let time = |minute: u64| format!("{:02}:{:02}", minute / 60 % 24, minute % 60);
    // From an hour ago until in two hours, each day.
    let hours = format!("{}-{}", time(minute + 23 * 60), time(minute + 120));
    bed.run_ok(&format!("set user:61234 --up 4mbit --when {hours}@UTC"));
    let holds = || bed.target("user:61234")["effective"]["up"] == 4_000_000;
    assert!(holds(), "{}", bed.target("user:61234"));
    for (off, expected) in [
        (5 * HOUR, false),
        (0, true),
        (-5 * HOUR, false),
        (400 * 24 * HOUR, true),
        (400 * 24 * HOUR + 5 * HOUR, false),
        (0, true),
    ] {
        clock.set(off);
        let follows = becomes_true(|| holds() == expected);
        assert!(follows, "{off} s: {}", bed.target("user:61234"));
    }
}

const HOUR: i64 = 3_600;
