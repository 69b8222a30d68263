//! The program `netnice-lab traffic messages` has one flow of the direct path with a `channel`
//! contract, and sends messages on command. [`Commanded::messages`] starts it.
//!
//! Each line of its standard input is a command. The program answers each with one line of JSON:
//!
//! - `try N`: offers N messages without waiting: `sent`, `held_back`, `dropped`, `took_ns`.
//! - `send N`: sends N messages, and waits for each to be accepted: `sent`, `took_ns`.
//! - `begin K`: queues the first K packets of a message. `continue K`: queues K more packets of the
//!   last message. Both answer with the time, `queued_ns`.
//! - `periodic EVERY COUNT`: sends COUNT messages, one each EVERY ns, whose arrivals are these
//!   times: `first_ns`, `sent`, `held_back`, and `wall_ns`, the wall clock less `CLOCK_MONOTONIC`
//!   before every hundredth message. For each message `queued_ns`, when it was offered,
//!   `waited_ns`, for how long the thread waited for a processor during the call, and
//!   `accepted_ns`, when the call returned.
//! - `outcomes`: waits until the driver has returned all packets: `status` and `stamp_ns` of each,
//!   in order, and `counts` of messages.
//!
//! All times are in ns of `CLOCK_MONOTONIC`. The program ends with its input. It fails if its flow
//! cannot be opened or is closed, for a message that does not fit, and for an unknown command.

use std::io::BufRead;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use netnice_stack::udp::{Buffers, Remote, UdpOptions};
use netnice_stack::{Program, RuntimeDir, Socket, StackError, monotonic_ns};
use serde_json::{Value, json};

use super::Commanded;
use super::stop_watch::StopWatch;
use crate::process::EVENT_TIMEOUT;
use crate::sys;
use crate::world::Host;

/// The arguments of `netnice-lab traffic messages`.
#[derive(Debug, Clone, clap::Args)]
pub struct MessagesArgs {
    /// The local endpoint.
    #[arg(long)]
    local: SocketAddr,
    /// The remote endpoint.
    #[arg(long)]
    remote: SocketAddr,
    /// The daemon's folder.
    #[arg(long)]
    runtime_dir: PathBuf,
    /// The contract, with a `channel`.
    #[arg(long)]
    contract: String,
    /// Packets of a whole message.
    #[arg(long, default_value_t = 1)]
    parts: usize,
    /// Payload bytes of each packet.
    #[arg(long, default_value_t = 1400)]
    size: usize,
    /// Buffers for sending.
    #[arg(long, default_value_t = 256)]
    buffers: u32,
}

/// Runs the program until its input ends. Fails as the module says.
pub fn main(args: &MessagesArgs) -> Result<()> {
    let dir = RuntimeDir::choose(Some(args.runtime_dir.clone()), None);
    let options = UdpOptions {
        remote: Remote::One(args.remote),
        contract: Some(args.contract.clone()),
        buffers: Buffers {
            sending: args.buffers,
            receiving: 0,
            ..Buffers::default()
        },
        ..UdpOptions::at(args.local)
    };
    let bytes = options.buffers.region_bytes()?;
    let program =
        Program::attach(&dir, None, 1, bytes).context("cannot attach to the direct path")?;
    let mut sender = Sender {
        socket: program.open_udp(&options).context("cannot open a flow")?,
        payload: vec![0; args.size],
        parts: args.parts,
        outcomes: Vec::new(),
    };
    println!("{}", json!({"ready": true}));
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let words: Vec<&str> = line.split_whitespace().collect();
        let number = |at: usize| -> Result<u64> {
            let word = words.get(at).context("a number is missing")?;
            word.parse().with_context(|| format!("{word} is no number"))
        };
        let answer = match words.first() {
            Some(&"try") => sender.offer(number(1)?)?,
            Some(&"send") => sender.send(number(1)?)?,
            Some(&"begin") => sender.queue(number(1)?, false)?,
            Some(&"continue") => sender.queue(number(1)?, true)?,
            Some(&"periodic") => sender.periodic(number(1)?, number(2)?)?,
            Some(&"outcomes") => sender.outcomes()?,
            _ => bail!("{line:?} is no command"),
        };
        println!("{answer}");
    }
    Ok(())
}

struct Sender {
    socket: Socket,
    payload: Vec<u8>,
    parts: usize,
    /// Status and stamp of each packet that the driver returned.
    outcomes: Vec<(u32, u64)>,
}

impl Sender {
    fn offer(&mut self, count: u64) -> Result<Value> {
        let (mut sent, mut held_back, mut dropped) = (0, 0, 0);
        let begin = monotonic_ns();
        for _ in 0..count {
            let message = vec![&self.payload[..]; self.parts];
            match self.socket.try_send_message(&message) {
                Ok(_) => sent += 1,
                Err(StackError::WouldBlock) => held_back += 1,
                Err(StackError::MessageDropped { .. }) => dropped += 1,
                Err(error) => return Err(error.into()),
            }
        }
        let took = monotonic_ns() - begin;
        Ok(json!({"sent": sent, "held_back": held_back, "dropped": dropped, "took_ns": took}))
    }

    fn send(&mut self, count: u64) -> Result<Value> {
        let begin = monotonic_ns();
        for _ in 0..count {
            let message = vec![&self.payload[..]; self.parts];
            self.socket.send_message(&message, None)?;
        }
        Ok(json!({"sent": count, "took_ns": monotonic_ns() - begin}))
    }

    fn queue(&mut self, packets: u64, continues: bool) -> Result<Value> {
        for number in 0..packets {
            let packet = self.socket.packet()?;
            self.socket.payload_mut(&packet)?[..self.payload.len()].fill(0);
            let length = self.payload.len();
            let queued = match continues || number > 0 {
                true => self.socket.queue_continuation(packet, length),
                false => self.socket.queue(packet, length),
            };
            queued.map_err(|(_, error)| error)?;
        }
        let at = monotonic_ns();
        self.socket.flush();
        Ok(json!({"queued_ns": at}))
    }

    fn periodic(&mut self, every: u64, count: u64) -> Result<Value> {
        let first = monotonic_ns() + LEAD_NS;
        let before = self.socket.messages();
        let (mut wall, mut queued) = (Vec::new(), Vec::new());
        let (mut waited, mut accepted) = (Vec::new(), Vec::new());
        let mut watch = StopWatch::new();
        for number in 0..count {
            let at = first + number * every;
            if number % 100 == 0 {
                wall.push(sys::now_ns() as i64 - monotonic_ns() as i64);
            }
            sys::sleep_until(at);
            self.socket.set_arrival(Some(at));
            let message = vec![&self.payload[..]; self.parts];
            watch.waited_since();
            queued.push(monotonic_ns());
            self.socket.send_message(&message, None)?;
            accepted.push(monotonic_ns());
            waited.push(watch.waited_since());
            self.collect()?;
        }
        let counts = self.socket.messages();
        Ok(json!({
            "first_ns": first,
            "sent": counts.queued - before.queued,
            "held_back": counts.held_back - before.held_back,
            "wall_ns": wall,
            "queued_ns": queued,
            "waited_ns": waited,
            "accepted_ns": accepted,
        }))
    }

    fn outcomes(&mut self) -> Result<Value> {
        self.socket.drain(Some(EVENT_TIMEOUT / 2))?;
        self.collect()?;
        let counts = self.socket.messages();
        let (status, stamps): (Vec<u32>, Vec<u64>) = self.outcomes.drain(..).unzip();
        Ok(json!({
            "status": status,
            "stamp_ns": stamps,
            "counts": {
                "queued": counts.queued, "waiting": counts.waiting,
                "held_back": counts.held_back, "dropped": counts.dropped,
            },
        }))
    }

    /// Keeps the results of returned packets before the socket drops them.
    fn collect(&mut self) -> Result<()> {
        while let Some(outcome) = self.socket.outcome()? {
            self.outcomes.push((outcome.status.0, outcome.stamp));
        }
        Ok(())
    }
}

/// Time from the command to the first periodic message.
const LEAD_NS: u64 = 20_000_000;

/// The messages of [`Commanded::messages`].
#[derive(Debug, Clone, Copy)]
pub struct MessageShape {
    /// Packets of a whole message.
    pub parts: u32,
    /// Payload bytes of each packet.
    pub size: u32,
}

impl Commanded {
    /// Starts `netnice-lab traffic messages` on `host`, with a flow of the daemon with this runtime
    /// folder. Fails if the program is not ready within 60 s, for example because the contract does
    /// not fit.
    pub fn messages(
        host: &Host,
        runtime: &Path,
        ends: (SocketAddr, SocketAddr),
        contract: &str,
        shape: MessageShape,
    ) -> Result<Commanded> {
        let more = [
            ("--contract", contract.to_owned()),
            ("--parts", shape.parts.to_string()),
            ("--size", shape.size.to_string()),
        ];
        Commanded::start(host, ("messages", runtime), ends, &more, EVENT_TIMEOUT)
    }
}
