//! The processes of a measurement of costs: one that measures, one that sends as fast as it can,
//! one that receives, and one that always runs. A part that serves others prints a line when it is
//! ready. Each fails with a [`CommandError`].

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::thread;

use netnice_api::{Exit, RuntimeDir};
use netnice_stack::tcp::TcpOptions;
use netnice_stack::udp::{Buffers, UdpOptions};
use netnice_stack::{Program, StackError};

use super::world::PORT;
use crate::error::CommandError;

/// A process of a measurement.
#[derive(Debug)]
pub(crate) enum Part {
    /// Makes the hosts, measures, and prints the costs.
    Measure,
    /// Receives.
    Receive,
    /// Uses all processor time that it gets.
    Spin,
    /// Sends to a receiver, as fast as it can.
    Send {
        /// Whether by TCP.
        tcp: bool,
        to: SocketAddr,
        /// The contract of its flow.
        contract: String,
    },
}

/// Runs a part until it ends or is ended. Fails as the module says.
pub(crate) fn run(dir: &RuntimeDir, part: &Part) -> Result<Exit, CommandError> {
    match part {
        Part::Measure => super::measure_here(dir)?,
        Part::Receive => receive().map_err(|error| CommandError::io("the receiver", error))?,
        Part::Spin => loop {
            std::hint::spin_loop();
        },
        Part::Send {
            tcp: true,
            to,
            contract,
        } => send_tcp(dir, *to, contract)?,
        Part::Send {
            tcp: false,
            to,
            contract,
        } => send_udp(dir, *to, contract)?,
    }
    Ok(Exit::Done)
}

/// Accepts connections and reads them. Datagrams are dropped by the full queue of a socket.
fn receive() -> io::Result<()> {
    let listener = TcpListener::bind(("0.0.0.0", PORT))?;
    let _datagrams = UdpSocket::bind(("0.0.0.0", PORT))?;
    ready()?;
    for stream in listener.incoming() {
        let mut stream = stream?;
        thread::spawn(move || {
            let mut bytes = vec![0; 1 << 18];
            // A sender that is killed resets its connection.
            while stream.read(&mut bytes).is_ok_and(|read| read > 0) {}
        });
    }
    Ok(())
}

fn send_udp(dir: &RuntimeDir, to: SocketAddr, contract: &str) -> Result<(), CommandError> {
    let buffers = Buffers::default();
    let bytes = buffers.region_bytes().map_err(StackError::from)?;
    let program = Program::attach(dir, None, 1, bytes)?;
    let options = UdpOptions {
        buffers,
        contract: Some(contract.to_owned()),
        ..UdpOptions::to(to)
    };
    let mut socket = program.open_udp(&options)?;
    let payload = vec![0x6e; socket.longest()];
    socket.send(&payload, None)?;
    ready().map_err(|error| CommandError::io("standard output", error))?;
    loop {
        socket.send(&payload, None)?;
    }
}

fn send_tcp(dir: &RuntimeDir, to: SocketAddr, contract: &str) -> Result<(), CommandError> {
    let options = TcpOptions {
        contract: Some(contract.to_owned()),
        ..TcpOptions::to(to)
    };
    let bytes = options.buffers.region_bytes().map_err(StackError::from)?;
    let program = Program::attach(dir, None, 1, bytes)?;
    let stream = program.connect(&options, None)?;
    ready().map_err(|error| CommandError::io("standard output", error))?;
    let bytes = vec![0x6e; 1 << 16];
    loop {
        stream.write(&bytes, None)?;
    }
}

fn ready() -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(b"ready\n")?;
    out.flush()
}
