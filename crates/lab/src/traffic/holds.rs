//! The program `netnice-lab traffic holds` has netniced hold promises of a link, and opens flows
//! with them, on command. [`Commanded::holds`] starts it.
//!
//! Each line of its standard input is a command. The program answers each with one line of JSON. If
//! the daemon refuses a request, the answer has `refused` with the text of the refusal instead.
//!
//! - `route`: the link over which the remote host is reached: `iface`, `via`, `from`.
//! - `hold CONTRACT`: holds a promise, besides those that the program has: its number `hold`, its
//!   `contract`, `via`, `from` and `mtu`.
//! - `release`: releases all promises: `released`, their number.
//! - `open CONTRACT`: opens a flow with the promise held first, `open`; the former flow is closed.
//!   Without a promise an ordinary flow.
//! - `send N`: sends N messages of one packet over the flow, and waits until the driver has sent
//!   them: `sent`.
//!
//! The program ends with its input. It fails if it cannot attach or loses the daemon, and for an
//! unknown command.

use std::io::BufRead;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use netnice_stack::udp::{Buffers, Remote, UdpOptions};
use netnice_stack::{HeldPromise, Program, RuntimeDir, Socket, StackError, route_to};
use serde_json::{Value, json};

use super::Commanded;
use crate::process::EVENT_TIMEOUT;
use crate::world::Host;

/// The arguments of `netnice-lab traffic holds`.
#[derive(Debug, Clone, clap::Args)]
pub struct HoldsArgs {
    /// The local endpoint.
    #[arg(long)]
    local: SocketAddr,
    /// The remote endpoint.
    #[arg(long)]
    remote: SocketAddr,
    /// The daemon's folder.
    #[arg(long)]
    runtime_dir: PathBuf,
}

/// Runs the program until its input ends. Fails as the module says.
pub fn main(args: &HoldsArgs) -> Result<()> {
    let dir = RuntimeDir::choose(Some(args.runtime_dir.clone()), None);
    let options = UdpOptions {
        remote: Remote::One(args.remote),
        buffers: Buffers {
            receiving: 0,
            ..Buffers::default()
        },
        ..UdpOptions::at(args.local)
    };
    let bytes = options.buffers.region_bytes()?;
    let program = Program::attach(&dir, None, FLOWS, u64::from(FLOWS) * bytes)
        .context("cannot attach to the direct path")?;
    let mut holder = Holder {
        dir,
        program,
        options,
        held: Vec::new(),
        socket: None,
    };
    println!("{}", json!({"ready": true}));
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let (command, rest) = line.split_once(' ').unwrap_or((&line, ""));
        let answer = match holder.run(command, rest) {
            Err(StackError::Refused { text, .. } | StackError::Failed { text, .. }) => {
                json!({"refused": text})
            }
            answer => answer?.with_context(|| format!("{line:?} is no command"))?,
        };
        println!("{answer}");
    }
    Ok(())
}

struct Holder {
    dir: RuntimeDir,
    program: Program,
    options: UdpOptions,
    /// The held promises, in their order.
    held: Vec<HeldPromise>,
    socket: Option<Socket>,
}

impl Holder {
    /// The answer to a command; `None` if there is no such command.
    fn run(&mut self, command: &str, rest: &str) -> Result<Option<Value>, StackError> {
        let Remote::One(remote) = self.options.remote else {
            return Ok(None);
        };
        Ok(Some(match (command, rest.parse()) {
            ("route", _) => {
                let route = route_to(&self.dir, remote.ip())?;
                json!({"iface": route.iface, "via": route.via, "from": route.from})
            }
            ("hold", _) => {
                let held = self.program.hold(remote.ip(), rest)?;
                let answer = json!({
                    "hold": held.number(), "contract": held.contract(),
                    "via": held.via(), "from": held.from(), "mtu": held.mtu(),
                });
                self.held.push(held);
                answer
            }
            ("release", _) => json!({"released": self.held.drain(..).count()}),
            ("open", _) => {
                self.socket = None;
                let held = self.held.first();
                let socket = self.program.open_udp(&UdpOptions {
                    contract: Some(rest.to_owned()),
                    hold: held.map(HeldPromise::number),
                    ..self.options.clone()
                })?;
                let contract = socket.contract().to_owned();
                self.socket = Some(socket);
                self.held = self.held.drain(..).skip(1).collect();
                json!({"open": contract})
            }
            ("send", Ok(count)) => json!({"sent": self.send(count)?}),
            _ => return Ok(None),
        }))
    }

    fn send(&mut self, count: u64) -> Result<u64, StackError> {
        let Some(socket) = &mut self.socket else {
            return Ok(0);
        };
        let payload = [0; PAYLOAD];
        for _ in 0..count {
            socket.send_message(&[&payload], Some(EVENT_TIMEOUT))?;
        }
        socket.drain(Some(EVENT_TIMEOUT))?;
        Ok(socket.messages().queued)
    }
}

impl Commanded {
    /// Starts `netnice-lab traffic holds` on `host`, attached to the only managed link of the
    /// daemon with this runtime folder. Fails if the program is not ready within 60 s.
    pub fn holds(host: &Host, runtime: &Path, ends: (SocketAddr, SocketAddr)) -> Result<Commanded> {
        Commanded::start(host, ("holds", runtime), ends, &[], EVENT_TIMEOUT)
    }
}

/// The number of flows and held promises that the program attaches for.
const FLOWS: u32 = 4;
/// Payload bytes of each message.
const PAYLOAD: usize = 1_000;
