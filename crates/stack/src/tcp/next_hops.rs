//! Asks the daemon where a listener's silent peers are: the driver sends a listener's segments to
//! the Ethernet address that the program names, and it may have changed ([`look_up`]).
//!
//! A thread asks, because an answer can take as long as a neighbour is given to answer. At most one
//! runs for each listener, and for [`PAUSE`] (1 s) after its end none is started. It ends with the
//! first question that fails. A peer that sends needs no question: its segments show the address.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Weak;
use std::sync::atomic::Ordering;
use std::time::Duration;

use netnice_tcp::endpoint::ConnectionId;

use super::engine::monotonic;
use super::engine_cell::EngineCell;

/// Looks up the next hops to these peers, and sends the segments of their connections there.
pub(super) fn look_up(cell: &Weak<EngineCell>, silent: Vec<(ConnectionId, SocketAddr)>) {
    let Some(strong) = cell.upgrade() else {
        return;
    };
    let now = monotonic().as_nanos();
    let asking = &strong.asking_until;
    let until = asking.load(Ordering::Relaxed);
    if until > now
        || asking
            .compare_exchange(until, u64::MAX, Ordering::Relaxed, Ordering::Relaxed)
            .is_err()
    {
        return;
    }
    let cell = cell.clone();
    let thread = std::thread::Builder::new().name("netnice-hops".to_string());
    let started = thread.spawn(move || {
        ask(&cell, &silent);
        if let Some(cell) = cell.upgrade() {
            let until = monotonic() + PAUSE;
            cell.asking_until.store(until.as_nanos(), Ordering::Relaxed);
        }
    });
    if started.is_err() {
        let until = monotonic() + PAUSE;
        asking.store(until.as_nanos(), Ordering::Relaxed);
    }
}

fn ask(cell: &Weak<EngineCell>, silent: &[(ConnectionId, SocketAddr)]) {
    let mut known: HashMap<IpAddr, [u8; 6]> = HashMap::new();
    for &(id, remote) in silent {
        let Some(cell) = cell.upgrade() else {
            return;
        };
        let mac = match known.get(&remote.ip()) {
            Some(mac) => *mac,
            None => match cell.ask_next_hop(remote.ip()) {
                Ok(mac) => mac,
                Err(_) => return,
            },
        };
        known.insert(remote.ip(), mac);
        let (_, woken) = cell.enter(|engine| engine.set_next_hop((id, remote), mac));
        drop(woken);
    }
}

/// Time from the end of a thread to the start of the next one.
const PAUSE: Duration = Duration::from_secs(1);
