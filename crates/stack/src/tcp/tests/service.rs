//! Tests of the thread that serves a program's connections.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::{Bed, await_true};
use crate::service::Served;

/// Something to be served at once, until it was.
struct Due {
    slots: Vec<u32>,
    is_served: AtomicBool,
}

impl Served for Due {
    fn slots(&self) -> &[u32] {
        &self.slots
    }

    fn due(&self) -> u64 {
        match self.is_served.load(Ordering::SeqCst) {
            true => u64::MAX,
            false => 0,
        }
    }

    fn serve(&self) {
        self.is_served.store(true, Ordering::SeqCst);
    }

    fn is_over(&self) -> bool {
        false
    }
}

/// While all connections are idle the service thread sleeps for a minute. A further one must not
/// wait for that: its handshake would go on only then.
#[test]
fn what_is_added_while_the_service_thread_sleeps_is_served_at_once() {
    let bed = Bed::new("tcp-added");
    let slot = 31;
    let added = Arc::new(Due {
        slots: vec![slot],
        is_served: AtomicBool::new(false),
    });
    await_true("the thread sleeps", || {
        bed.program.shared.service.sleeps_beyond(1)
    });
    std::thread::sleep(Duration::from_millis(50));
    bed.program
        .shared
        .service
        .add(added.clone(), || panic!("the thread runs"));
    bed.program.shared.report(slot);
    await_true("it is served", || added.is_served.load(Ordering::SeqCst));
}
