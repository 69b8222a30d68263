//! Paces ten thousand UDP flows, each to its own rate, from one timer and one thread.
//!
//! `cargo run --release -p netnice-core --example pace_udp [FLOWS [SECONDS]]`
//!
//! Every flow sends packets of 100 bytes at 8 kbit/s, which is ten packets per second. All go from
//! one socket of this process to another. FLOWS is 10,000 and SECONDS is 3 if not named. A policer
//! for each flow, which shares no code with the pacer, checks every packet at the time that the
//! pacer got. The program prints how late the timer was and how much memory a flow takes. It fails
//! if a packet does not conform, if an argument is no number, or with more than 2^20 flows.

use std::error::Error;
use std::net::UdpSocket;
use std::time::Duration;

use netnice_core::contract;
use netnice_core::policer::{Observation, Policer};
use netnice_core::sched::Pacer;
use netnice_core::units::{Bytes, Instant, Nanos, Rate};

const LENGTH: usize = 100;

fn main() -> Result<(), Box<dyn Error>> {
    let mut words = std::env::args().skip(1);
    let flows: usize = words.next().map_or(Ok(10_000), |word| word.parse())?;
    let seconds: u64 = words.next().map_or(Ok(3), |word| word.parse())?;

    let rate = Rate::new(8_000).ok_or("8 kbit/s is a rate")?;
    let contract = contract::Cell::new(rate, Nanos::from_millis(5), None)?;
    let receiver = UdpSocket::bind("127.0.0.1:0")?;
    let sender = UdpSocket::bind("127.0.0.1:0")?;
    sender.connect(receiver.local_addr()?)?;

    // The program reads the clock and passes the time to the pacer.
    let begin = std::time::Instant::now();
    let clock = || Instant(begin.elapsed().as_nanos() as u64);

    let mut pacer = Pacer::with_capacity(flows);
    let fixed = pacer.memory();
    for _ in 0..flows {
        let flow = pacer.insert(contract)?;
        pacer.handle_head(flow, Bytes(LENGTH as u64), clock())?;
    }
    let mut policers = vec![Policer::cell(contract); flows];
    let mut late = Vec::new();
    let (mut packets, mut violations) = (0_u64, 0_u64);
    while clock().0 < seconds * 1_000_000_000 {
        let due = pacer.poll_timeout();
        let now = clock();
        // Send all packets that may go now. Every queue has one more packet behind its head.
        while let Some((flow, length)) = pacer.poll(now, |_| Some(Bytes(LENGTH as u64))) {
            // A full receive buffer loses packets, as UDP does.
            let _ = sender.send(&[flow.index() as u8; LENGTH]);
            let seen = Observation { at: now, length };
            violations += u64::from(policers[flow.index()].handle(seen).is_err());
            packets += 1;
        }
        if let Some(due) = due.filter(|due| *due <= now) {
            late.push(now.since(due).0);
        }
        if let Some(wake) = pacer.poll_timeout() {
            std::thread::sleep(Duration::from(wake.since(clock())));
        }
    }

    late.sort_unstable();
    let at = |part: usize| late.get(late.len() * part / 100).copied().unwrap_or(0) / 1000;
    let most = flows as u64 * (10 * seconds + 1);
    println!("{flows} flows, {packets} packets in {seconds} s (their contracts allow {most})");
    println!(
        "the timer was late by {} us in the median, {} us at 99 %",
        at(50),
        at(99)
    );
    println!("{violations} packets did not conform");
    let each = (pacer.memory() - fixed) / flows.max(1);
    println!("{each} bytes of memory per flow, and {fixed} bytes whatever there is");
    match violations {
        0 => Ok(()),
        _ => Err("the policer found packets that do not conform".into()),
    }
}
