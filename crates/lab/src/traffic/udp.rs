//! The UDP program of the traffic generator. It sends at a given rate or as fast as possible,
//! receives and counts, or both on one socket. At its end it prints a [`super::Report`]. It fails
//! for invalid arguments, or if a socket cannot be opened, bound, set up or connected. A send that
//! fails is counted by its error.

use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use anyhow::{Context, Result, bail};
use rustix::net::sockopt;
use socket2::{Domain, Protocol, Socket, Type};

use super::run::{RunArgs, Tally, frame_overhead, run_until_end, send_paced};
use crate::sys;

/// The arguments of `netnice-lab traffic udp`.
#[derive(Debug, Clone, clap::Args)]
pub struct UdpArgs {
    /// Where to receive, or from where to send.
    #[arg(long)]
    local: SocketAddr,
    /// The peer; needed to send.
    #[arg(long, required_if_eq("source", "true"))]
    remote: Option<SocketAddr>,
    /// Send.
    #[arg(long)]
    source: bool,
    /// Receive.
    #[arg(long)]
    sink: bool,
    /// Wire bits per second to offer; without it as fast as it goes.
    #[arg(long)]
    rate: Option<u64>,
    /// Payload bytes per datagram; without it a full frame of MTU 1500.
    #[arg(long)]
    size: Option<usize>,
    /// Put a destination option into every packet (IPv6).
    #[arg(long)]
    option: bool,
    /// Datagrams to send; without it there is no end.
    #[arg(long, default_value_t = u64::MAX, hide_default_value = true)]
    count: u64,
    #[command(flatten)]
    run: RunArgs,
}

/// Runs the program, and ends the process. Returns only for invalid arguments, or if a socket
/// cannot be opened, bound, set up or connected.
pub fn main(args: &UdpArgs) -> Result<()> {
    if !args.source && !args.sink {
        bail!("a udp program needs --source, --sink or both");
    }
    let overhead = frame_overhead(args.local.is_ipv6()) + 8;
    let size = args.size.unwrap_or(1514 - overhead as usize);
    let socket = Socket::new(
        Domain::for_address(args.local),
        Type::DGRAM,
        Some(Protocol::UDP),
    )?;
    socket
        .bind(&args.local.into())
        .with_context(|| format!("cannot bind to {}", args.local))?;
    if args.option {
        sys::pad_with_option(&socket).context("cannot send destination options")?;
    }
    let socket = Arc::new(socket);
    let tally = Arc::new(Tally::default());
    if args.sink {
        // Beyond the host's limit, so that a sink short of processor time does not lose datagrams
        // that the limiter let through. Errors are ignored: a sink without CAP_NET_ADMIN keeps the
        // host's default.
        let _ = sockopt::set_socket_recv_buffer_size_force(&*socket, 16 << 20);
        let (socket, tally) = (socket.clone(), tally.clone());
        std::thread::spawn(move || receive(&socket, &tally, overhead));
    }
    if args.source {
        let peer = args.remote.context("--source needs --remote")?;
        socket.connect(&peer.into())?;
        let (tally, rate, count) = (tally.clone(), args.rate, args.count);
        std::thread::spawn(move || {
            tally.await_go();
            match rate {
                Some(bits) => {
                    let datagram = vec![0u8; size];
                    send_paced(size as u64 + overhead, bits, count, || {
                        send(&socket, &tally, &datagram);
                        true
                    });
                }
                None => flood(&socket, &tally, size, count),
            }
        });
    }
    run_until_end(&args.run, &tally, || 0)
}

/// MSG_TRUNC makes recv return the datagram's whole length although only a few bytes are copied.
fn receive(socket: &Socket, tally: &Tally, overhead: u64) {
    let mut buffer = [MaybeUninit::uninit(); 16];
    loop {
        // recv reports an ICMP error of a peer that does not listen yet; the sink goes on.
        if let Ok(n) = socket.recv_with_flags(&mut buffer, libc::MSG_TRUNC) {
            tally.received.fetch_add(n as u64, Relaxed);
            tally.received_wire.fetch_add(n as u64 + overhead, Relaxed);
        }
    }
}

fn send(socket: &Socket, tally: &Tally, datagram: &[u8]) {
    match socket.send(datagram) {
        Ok(n) => {
            tally.sent.fetch_add(n as u64, Relaxed);
        }
        Err(e) => tally.count_error(&e),
    }
    tally.sends.fetch_add(1, Relaxed);
}

fn flood(socket: &Socket, tally: &Tally, size: usize, count: u64) {
    let datagram = vec![0u8; size];
    for _ in 0..count {
        send(socket, tally, &datagram);
    }
}
