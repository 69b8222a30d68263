//! Makes a cable without layer 2 between two hosts: two tun devices, and two threads that carry
//! packets between them. [`Tunnel::between`] returns `None` without `/dev/net/tun`, and fails if a
//! device or a thread cannot be made.
//!
//! A tun device passes bare IP packets, as WireGuard and PPP do: no Ethernet header, no neighbours.
//! Each thread carries one direction and counts the IP bytes.

use std::fs::File;
use std::io::{Read, Write};
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result};

use super::{Host, Netns};
use crate::sys;

/// Two tun devices called `tun0`, 10.79.0.1 in the first namespace and 10.79.0.2 in the second.
/// Dropping this value removes both.
pub struct Tunnel {
    stop: Arc<AtomicBool>,
    carriers: Vec<JoinHandle<()>>,
    carried: [Arc<AtomicU64>; 2],
}

impl Tunnel {
    /// The address of the first end.
    pub const FIRST: Ipv4Addr = Ipv4Addr::new(10, 79, 0, 1);
    /// The address of the second end.
    pub const SECOND: Ipv4Addr = Ipv4Addr::new(10, 79, 0, 2);

    /// Makes a tunnel between two hosts; `None` if there is no `/dev/net/tun`. Fails if a device
    /// cannot be made or set up, or if a thread cannot start.
    pub fn between(first: &Host, second: &Host) -> Result<Option<Tunnel>> {
        if !std::path::Path::new(DEVICE).exists() {
            return Ok(None);
        }
        let ends = [
            open(&first.ns, Tunnel::FIRST)?,
            open(&second.ns, Tunnel::SECOND)?,
        ];
        let stop = Arc::new(AtomicBool::new(false));
        let carried = [Arc::default(), Arc::default()];
        let mut carriers = Vec::new();
        for (from, counter) in carried.iter().enumerate() {
            let (source, sink) = (ends[from].clone(), ends[1 - from].clone());
            let (stop, counter) = (stop.clone(), Arc::clone(counter));
            let carrier = std::thread::Builder::new()
                .name("tunnel".into())
                .spawn(move || carry(&source, &sink, &stop, &counter))?;
            carriers.push(carrier);
        }
        Ok(Some(Tunnel {
            stop,
            carriers,
            carried,
        }))
    }

    /// IP bytes that were carried so far: those that the first end sent, and those that the second
    /// end sent.
    pub fn carried(&self) -> [u64; 2] {
        [self.carried[0].load(Relaxed), self.carried[1].load(Relaxed)]
    }
}

impl Drop for Tunnel {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        for carrier in self.carriers.drain(..) {
            let _ = carrier.join();
        }
    }
}

fn open(ns: &Netns, address: Ipv4Addr) -> Result<Arc<File>> {
    let end = ns
        .enter(|| Ok(sys::open_tun("tun0")?))
        .context("cannot make a tun device")?;
    ns.ip(&format!("addr add {address}/24 dev tun0"))?;
    ns.ip("link set tun0 up")?;
    Ok(Arc::new(end))
}

/// Reads packets at one end and writes them at the other until `stop` is set.
fn carry(source: &File, sink: &File, stop: &AtomicBool, carried: &AtomicU64) {
    let mut packet = vec![0u8; 1 << 16];
    let (mut source, mut sink) = (source, sink);
    while !stop.load(Relaxed) {
        if !sys::readable(source, POLL_INTERVAL) {
            continue;
        }
        // A device that is down or full loses packets, as a cable does.
        if let Ok(length) = source.read(&mut packet)
            && sink.write(&packet[..length]).is_ok()
        {
            carried.fetch_add(length as u64, Relaxed);
        }
    }
}

/// The device file of tun.
const DEVICE: &str = "/dev/net/tun";
/// Time after which a thread without packets checks `stop`.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
