//! The program `netnice-lab traffic direct` opens one flow of the direct path, and sends under a
//! contract, receives, or echoes.
//!
//! A datagram counts as sent when the driver has returned its record as sent. Records that the
//! driver returned unsent are counted as refused, by status. If a call for the flow fails, for
//! example because the daemon or the driver has closed the flow, the program prints `{"closed":
//! reason}` and stops using the flow. At its end it prints a [`super::Report`]. The program fails
//! if it cannot attach to a driver, or if its flow cannot be opened.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use netnice_stack::udp::{Buffers, Remote, UdpOptions};
use netnice_stack::{Program, RuntimeDir, Socket, StackError, Status};

use super::run::{RunArgs, Tally, frame_overhead, run_until_end, send_paced};
use super::stop_watch::StopWatch;
use crate::sys;

/// The arguments of `netnice-lab traffic direct`.
#[derive(Debug, Clone, clap::Args)]
#[group(id = "role", args = ["source", "sink", "echo"], required = true, multiple = false)]
pub struct DirectArgs {
    /// The local endpoint; port 0 and an unspecified address are chosen by the stack.
    #[arg(long)]
    local: SocketAddr,
    /// The remote endpoint; the default is any host.
    #[arg(long, required_if_eq("source", "true"))]
    remote: Option<SocketAddr>,
    /// Receive what is sent to this group.
    #[arg(long, conflicts_with_all = ["remote", "source", "echo"])]
    group: Option<SocketAddr>,
    /// The interface; without it the only one that is managed.
    #[arg(long)]
    iface: Option<String>,
    /// The contract; without it best effort.
    #[arg(long)]
    contract: Option<String>,
    /// Change to this contract and back every 100 ms, while there is a daemon.
    #[arg(long, requires = "contract")]
    alternate: Option<String>,
    /// The daemon's folder.
    #[arg(long)]
    runtime_dir: Option<PathBuf>,
    /// Send.
    #[arg(long)]
    source: bool,
    /// Receive.
    #[arg(long)]
    sink: bool,
    /// Send back what comes.
    #[arg(long)]
    echo: bool,
    /// Wire bits per second to offer; without it there is always something to send.
    #[arg(long, conflicts_with_all = ["sink", "echo"])]
    rate: Option<u64>,
    /// Payload bytes per datagram; without it the most that the link carries.
    #[arg(long, conflicts_with_all = ["sink", "echo"])]
    size: Option<usize>,
    /// Datagrams to send; without it there is no end.
    #[arg(long, conflicts_with_all = ["sink", "echo"], default_value_t = u64::MAX, hide_default_value = true)]
    count: u64,
    /// Fill all buffers, pause for so many microseconds, and begin again; without it the program
    /// waits for each buffer that the driver returns.
    #[arg(long, requires = "source")]
    refill_us: Option<u64>,
    /// Write a line for each received datagram: time (wall clock, ns) and payload bytes.
    #[arg(long, requires = "sink")]
    log: Option<PathBuf>,
    /// Copy all bytes of each datagram; without it the first 16.
    #[arg(long, requires = "sink")]
    copy_all: bool,
    /// Burn so many microseconds of processor time for each received datagram, times the number of
    /// steps so far.
    #[arg(long, requires = "work_step", requires = "sink")]
    work_us: Option<u64>,
    /// Datagrams in a step.
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    work_step: Option<u64>,
    /// Buffers each way.
    #[arg(long, default_value_t = 128)]
    buffers: u32,
    #[command(flatten)]
    run: RunArgs,
}

/// Runs the program, and ends the process. Returns only if it fails: if its options are invalid, if
/// it cannot attach to a driver, or if its flow cannot be opened.
pub fn main(args: &DirectArgs) -> Result<()> {
    let dir = RuntimeDir::choose(
        args.runtime_dir.clone(),
        std::env::var_os(RuntimeDir::VARIABLE),
    );
    let options = args.options();
    let bytes = options.buffers.region_bytes()?;
    let program = Program::attach(&dir, args.iface.as_deref(), 1, bytes)
        .context("cannot attach to the direct path")?;
    let socket = program.open_udp(&options).context("cannot open a flow")?;
    let tally = Arc::new(Tally::default());
    let (args, counts) = (args.clone(), tally.clone());
    let run = args.run.clone();
    let thread = std::thread::Builder::new().name("flow".to_owned());
    thread.spawn(move || {
        let end = match (args.source, args.echo) {
            (true, _) => {
                counts.await_go();
                send(socket, &args, &counts)
            }
            (_, true) => echo(socket, &counts),
            _ => receive(socket, &args, &counts),
        };
        if let Err(error) = end {
            counts.count_refused(&error.to_string());
            println!("{}", serde_json::json!({"closed": error.to_string()}));
        }
    })?;
    run_until_end(&run, &tally, || 0)
}

impl DirectArgs {
    fn options(&self) -> UdpOptions {
        UdpOptions {
            remote: match (self.remote, self.group) {
                (Some(remote), _) => Remote::One(remote),
                (None, Some(group)) => Remote::Group(group),
                (None, None) => Remote::Any,
            },
            contract: self.contract.clone(),
            buffers: Buffers {
                sending: self.buffers,
                receiving: if self.source { 0 } else { self.buffers },
                ..Buffers::default()
            },
            ..UdpOptions::at(self.local)
        }
    }
}

/// Sends numbered datagrams, and counts them when the driver returns them.
fn send(mut socket: Socket, args: &DirectArgs, tally: &Tally) -> Result<(), StackError> {
    let size = args.size.unwrap_or_else(|| socket.longest());
    let frame = size as u64 + 8 + frame_overhead(socket.local().is_ipv6());
    let mut datagram = vec![0; size];
    let mut number = 0u64;
    let mut end = Ok(());
    let contracts = [&args.alternate, &args.contract].map(|text| text.clone().unwrap_or_default());
    let mut changes = 0;
    let mut changed_at = Instant::now();
    let mut stops = StopWatch::new();
    let mut one = || {
        if args.alternate.is_some() && changed_at.elapsed() >= ALTERNATE_INTERVAL {
            changed_at = Instant::now();
            match socket.change(&contracts[changes % 2]) {
                Ok(()) => changes += 1,
                // There is no daemon at present.
                Err(StackError::NoDaemon | StackError::Daemon(_)) => {}
                Err(error) => tally.count_refused(&error.to_string()),
            }
        }
        let place = datagram.first_chunk_mut();
        if let Some(place) = place {
            *place = number.to_be_bytes();
        }
        number += 1;
        tally.sends.fetch_add(1, Relaxed);
        let sent = match args.refill_us {
            Some(pause) => refill(&mut socket, &datagram, Duration::from_micros(pause)),
            None => socket.send(&datagram, None).map(drop),
        };
        if number == 1 {
            tally.first_ns.store(sys::now_ns(), Relaxed);
        }
        if number.is_multiple_of(STOP_CHECK) {
            stops.check(tally);
        }
        end = sent.and_then(|()| count(&mut socket, size, tally));
        end.is_ok()
    };
    match args.rate {
        Some(bits) => send_paced(frame, bits, args.count, one),
        None => {
            let mut left = args.count;
            while left > 0 && one() {
                left -= 1;
            }
        }
    }
    end?;
    socket.drain(Some(DRAIN_TIMEOUT))?;
    count(&mut socket, size, tally)
}

/// Counts the returned packets, of `size` bytes each.
fn count(socket: &mut Socket, size: usize, tally: &Tally) -> Result<(), StackError> {
    count_returned(socket, tally, |_| size)
}

/// Counts the returned packets. `length_of` has the payload's length of each by its number.
fn count_returned(
    socket: &mut Socket,
    tally: &Tally,
    mut length_of: impl FnMut(u64) -> usize,
) -> Result<(), StackError> {
    while let Some(outcome) = socket.outcome()? {
        let length = length_of(outcome.number);
        match outcome.status {
            Status::DONE => {
                tally.sent.fetch_add(length as u64, Relaxed);
            }
            other => tally.count_refused(&format!("status {}", other.0)),
        }
    }
    Ok(())
}

/// Sends a datagram. If all buffers are in use, pauses first, until one is free.
fn refill(socket: &mut Socket, datagram: &[u8], pause: Duration) -> Result<(), StackError> {
    loop {
        match socket.try_send(datagram) {
            Err(StackError::WouldBlock) => std::thread::sleep(pause),
            other => return other.map(drop),
        }
    }
}

fn receive(mut socket: Socket, args: &DirectArgs, tally: &Tally) -> Result<(), StackError> {
    let overhead = 8 + frame_overhead(socket.local().is_ipv6());
    let mut buffer = vec![0; if args.copy_all { LONGEST_DATAGRAM } else { 16 }];
    let mut log = args
        .log
        .as_deref()
        .and_then(|path| match File::create(path) {
            Ok(file) => Some(BufWriter::new(file)),
            Err(error) => {
                tally.count_refused(&format!("cannot write the log: {error}"));
                None
            }
        });
    let mut stops = StopWatch::new();
    let mut number = 0;
    loop {
        match socket.recv(&mut buffer, Some(RECEIVE_TIMEOUT)) {
            Ok(received) => {
                number += 1;
                tally.received.fetch_add(received.whole as u64, Relaxed);
                let wire = received.whole as u64 + overhead;
                tally.received_wire.fetch_add(wire, Relaxed);
                if let Some(log) = &mut log {
                    // A file that is cut short shows: it has fewer lines than packets came.
                    let _ = writeln!(log, "{} {}", sys::now_ns(), received.whole);
                }
                if let (Some(work), Some(step)) = (args.work_us, args.work_step) {
                    sys::burn(Duration::from_micros(work * (number / step)));
                }
            }
            Err(StackError::WouldBlock) => {
                if let Some(log) = &mut log {
                    let _ = log.flush();
                }
            }
            Err(error) => return Err(error),
        }
        tally.lost.store(socket.lost_total(), Relaxed);
        if number.is_multiple_of(STOP_CHECK) {
            stops.check(tally);
        }
    }
}

/// Sends each datagram back whole. One that is longer than the flow can send counts as refused.
fn echo(mut socket: Socket, tally: &Tally) -> Result<(), StackError> {
    let any = socket.remote().is_none();
    let overhead = 8 + frame_overhead(socket.local().is_ipv6());
    let mut bytes = vec![0; LONGEST_DATAGRAM];
    // Lengths of the packets that the driver has not returned, by number.
    let mut lengths = HashMap::new();
    loop {
        let received = socket.recv(&mut bytes, Some(RECEIVE_TIMEOUT));
        tally.lost.store(socket.lost_total(), Relaxed);
        match received {
            Ok(received) => {
                let length = received.whole;
                tally.received.fetch_add(length as u64, Relaxed);
                let wire = length as u64 + overhead;
                tally.received_wire.fetch_add(wire, Relaxed);
                if length > socket.longest() {
                    tally.count_refused("longer than the flow can send");
                    continue;
                }
                let answer = &bytes[..length];
                let number = match any {
                    true => socket.send_to(answer, received.from, Some(DRAIN_TIMEOUT))?,
                    false => socket.send(answer, Some(DRAIN_TIMEOUT))?,
                };
                lengths.insert(number, length);
                tally.sends.fetch_add(1, Relaxed);
            }
            // Packets are returned although nothing arrives.
            Err(StackError::WouldBlock) => {}
            Err(error) => return Err(error),
        }
        count_returned(&mut socket, tally, |number| {
            lengths.remove(&number).unwrap_or(0)
        })?;
    }
}

/// Interval between two changes of the contract.
const ALTERNATE_INTERVAL: Duration = Duration::from_millis(100);
/// Packets between two looks at the thread's stops.
const STOP_CHECK: u64 = 16;
/// The longest payload of a datagram, in bytes.
const LONGEST_DATAGRAM: usize = 65_535;
/// Time limit for the last packets to be sent.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);
/// Interval at which a receiver updates its count of lost packets.
const RECEIVE_TIMEOUT: Duration = Duration::from_millis(50);
