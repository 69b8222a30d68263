//! The program `netnice-lab traffic unruly` has one flow of the direct path, sends at the maximum
//! rate and receives. On command it ends while it sends, forks, or executes another program.
//!
//! The program has one thread, so that a forked child is a complete copy. Each line of its standard
//! input is a command to the program:
//!
//! - `exit`, or the end of input: the program ends, with packets in the driver and without closing
//!   anything.
//! - `fork`: a child ends at once; the parent continues.
//! - `twin`: a child does the same as the parent, on the same rings. When the flow is closed, the
//!   child writes into the memory that it shares with the driver, until the child is killed.
//! - `orphan`: a child holds all descriptors of the parent. When the parent is dead, the child
//!   writes into the memory that it shares with the driver.
//! - `exec`: the program executes another program, which inherits all descriptors.
//!
//! The program fails if the flow cannot be opened, is closed by the daemon or the driver, or
//! breaks; for an unknown command; and if it cannot fork or execute another program.

use std::fs::{self, File};
use std::io::BufRead;
use std::net::SocketAddr;
use std::os::unix::fs::FileExt;
use std::os::unix::process::{CommandExt, parent_id};
use std::path::{Path, PathBuf};
use std::process::{Command, exit};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use netnice_stack::udp::{Buffers, Remote, UdpOptions};
use netnice_stack::{Program, RuntimeDir, Socket, StackError};

use super::run::RunArgs;
use super::words;
use crate::sys;

/// The arguments of `netnice-lab traffic unruly`.
#[derive(Debug, Clone, clap::Args)]
pub struct UnrulyArgs {
    /// The local endpoint.
    #[arg(long)]
    local: SocketAddr,
    /// The remote endpoint.
    #[arg(long)]
    remote: SocketAddr,
    /// The daemon's folder.
    #[arg(long)]
    runtime_dir: PathBuf,
    /// Accepted and ignored: the program begins at once and ends on command.
    #[command(flatten)]
    _run: RunArgs,
}

/// A process on the direct path that sends to one endpoint at the maximum rate, receives from that
/// endpoint, and on command forks, ends or executes another program: see the module.
#[derive(Debug, Clone)]
pub struct Unruly {
    pub(super) args: Vec<String>,
}

impl Unruly {
    /// A flow from `from` to `to`, opened by the daemon of this runtime folder.
    pub fn new(from: SocketAddr, to: SocketAddr, runtime: &Path) -> Unruly {
        let (from, to) = (from.to_string(), to.to_string());
        let runtime = runtime.display().to_string();
        Unruly {
            args: words(&[
                "unruly",
                "--local",
                &from,
                "--remote",
                &to,
                "--runtime-dir",
                &runtime,
            ]),
        }
    }
}

/// Runs the program. Fails if the flow cannot be opened, is closed by the daemon or the driver, or
/// breaks; also for an unknown command, and if the program cannot fork or execute another one.
pub fn main(args: &UnrulyArgs) -> Result<()> {
    let dir = RuntimeDir::choose(Some(args.runtime_dir.clone()), None);
    let options = UdpOptions {
        remote: Remote::One(args.remote),
        buffers: Buffers {
            sending: BUFFERS,
            receiving: BUFFERS,
            ..Buffers::default()
        },
        ..UdpOptions::at(args.local)
    };
    let bytes = options.buffers.region_bytes()?;
    let program =
        Program::attach(&dir, None, 1, bytes).context("cannot attach to the direct path")?;
    let mut socket = program.open_udp(&options).context("cannot open a flow")?;
    println!(
        "{}",
        serde_json::json!({"ready": true, "pid": std::process::id()})
    );
    let mut child = false;
    loop {
        match send_and_receive(&mut socket) {
            Ok(()) => {}
            Err(_) if child => overwrite_shared_memory()?,
            Err(error) => return Err(error.into()),
        }
        // Commands are for the parent only.
        if child || !sys::readable(rustix::stdio::stdin(), Duration::ZERO) {
            continue;
        }
        let mut command = String::new();
        std::io::stdin().lock().read_line(&mut command)?;
        match command.trim() {
            "" | "exit" => exit(0),
            "fork" => {
                if sys::fork()? {
                    exit(0);
                }
            }
            "twin" => child = sys::fork()?,
            "orphan" => {
                let parent = std::process::id();
                if sys::fork()? {
                    while parent_id() == parent {
                        std::thread::sleep(SEND_TIMEOUT);
                    }
                    overwrite_shared_memory()?;
                }
            }
            "exec" => {
                sys::clear_close_on_exec()?;
                return Err(Command::new("sleep").arg("600").exec().into());
            }
            other => bail!("`{other}` is no command"),
        }
    }
}

/// Fills the free send buffers, and receives all waiting packets.
fn send_and_receive(socket: &mut Socket) -> Result<(), StackError> {
    let payload = vec![0x5a; socket.longest()];
    match socket.send(&payload, Some(SEND_TIMEOUT)) {
        Ok(_) | Err(StackError::WouldBlock) => {}
        Err(error) => return Err(error),
    }
    for _ in 0..BUFFERS {
        let more = match socket.try_send(&payload) {
            Ok(_) => true,
            Err(StackError::WouldBlock) => false,
            Err(error) => return Err(error),
        };
        match socket.try_recv(&mut [0; 64]) {
            Ok(_) => {}
            Err(StackError::WouldBlock) if !more => break,
            Err(StackError::WouldBlock) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Writes pseudorandom values into the memory that this process shares with the driver, without
/// end.
fn overwrite_shared_memory() -> Result<()> {
    let maps = fs::read_to_string("/proc/self/maps")?;
    let shared = maps.lines().filter(|line| line.contains("/memfd:"));
    let mappings: Option<Vec<(u64, u64)>> = shared
        .map(|line| {
            let (begin, end) = line.split(' ').next()?.split_once('-')?;
            let number = |text| u64::from_str_radix(text, 16).ok();
            Some((number(begin)?, number(end)?))
        })
        .collect();
    let mappings = mappings.context("the mappings")?;
    let memory = File::options().write(true).open("/proc/self/mem")?;
    for round in 0..=u64::MAX {
        for (begin, end) in &mappings {
            let value = round.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            // Headers and rings are at the start of the memory.
            let at = begin + value % (end - begin).min(RINGS_BYTES) / 8 * 8;
            memory.write_all_at(&value.to_ne_bytes(), at)?;
        }
        if round % 64 == 0 {
            std::thread::sleep(SEND_TIMEOUT);
        }
    }
    Ok(())
}

/// Buffers in each direction.
const BUFFERS: u32 = 64;
/// Time limit of a wait for a buffer; then it receives and reads commands.
const SEND_TIMEOUT: Duration = Duration::from_millis(2);
/// Bytes at the start of the memory that contain all rings.
const RINGS_BYTES: u64 = 16_384;
