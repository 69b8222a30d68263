//! Runs the scripts of `crates/tcp/scripts` on a connection in virtual time.
//!
//! [`Host`] is the connection with its program and a driver that sends at once. The scripts are in
//! files, so that the lab runs the same ones on the kernel.

use std::collections::HashMap;
use std::path::PathBuf;
use std::time::Duration;

use netnice_scripts::{
    Action, Error, Icmp, Options, Peer, Script, Segment, Sent, State, Tolerance, pattern_bytes,
};

use crate::buffer::{Handle, Slice};
use crate::config::{Config, Keepalive};
use crate::congestion::Algorithm;
use crate::connection::{self, CloseReason, Connection, Identity};
use crate::header::{Header, Seq};
use crate::time::Instant;

/// A connection under test, its program and its driver.
struct Host {
    now: Duration,
    config: Config,
    /// Bytes of receive buffer.
    capacity: u64,
    listens: bool,
    /// The handshake was complete.
    was_open: bool,
    connection: Option<Connection>,
    written: HashMap<Handle, Vec<u8>>,
    received: HashMap<Handle, Vec<u8>>,
    next_handle: u32,
    /// Positions of the streams.
    wrote: u32,
    read: u32,
}

impl Host {
    fn new(options: &Options) -> Host {
        Host {
            now: Duration::ZERO,
            config: config(options),
            capacity: u64::from(options.window),
            listens: false,
            was_open: false,
            connection: None,
            written: HashMap::new(),
            received: HashMap::new(),
            next_handle: 0,
            wrote: 0,
            read: 0,
        }
    }

    fn instant(&self) -> Instant {
        // The clock does not start at 0, where timestamps would not wrap.
        Instant::from_nanos(START) + self.now
    }

    fn handle(&mut self) -> Handle {
        self.next_handle += 1;
        Handle(self.next_handle)
    }

    fn connection(&mut self) -> Result<&mut Connection, String> {
        self.connection
            .as_mut()
            .ok_or_else(|| "no connection".to_owned())
    }

    fn write(&mut self, mut length: u32) -> Result<(), String> {
        while length > 0 {
            let wrote = self.wrote;
            let connection = self.connection()?;
            let last = connection.last_unsent();
            let room = connection.mss() - last.map_or(0, |last| last.length);
            let more = length.min(room);
            let bytes = pattern_bytes(wrote, more);
            if let Some(last) = last {
                connection.extend(more).map_err(|error| error.to_string())?;
                self.written.entry(last.handle).or_default().extend(bytes);
            } else {
                let handle = self.handle();
                let connection = self.connection()?;
                let written = connection.write(handle, more);
                written.map_err(|error| error.to_string())?;
                self.written.insert(handle, bytes);
            }
            self.wrote += more;
            length -= more;
        }
        Ok(())
    }

    fn read(&mut self, length: u32) -> Result<(), String> {
        let mut left = length;
        while left > 0 {
            let readable = length - left;
            let Some(part) = self.connection()?.front() else {
                return Err(format!("only {readable} bytes can be read"));
            };
            let count = part.length.min(left);
            let bytes = &self.received[&part.handle];
            let bytes = &bytes[part.offset as usize..(part.offset + count) as usize];
            if *bytes != pattern_bytes(self.read, count) {
                return Err(format!("wrong bytes behind {}", self.read));
            }
            self.read += count;
            self.connection()?.consume(count);
            left -= count;
        }
        Ok(())
    }

    /// Takes back what is free, and tells the connection how much that is.
    fn take_released(&mut self) {
        let Some(connection) = &mut self.connection else {
            return;
        };
        while let Some(handle) = connection.poll_released() {
            let known = self
                .written
                .remove(&handle)
                .or(self.received.remove(&handle));
            assert!(known.is_some(), "{handle:?} was released twice");
        }
        let held: usize = self.received.values().map(Vec::len).sum();
        let room = self.capacity.saturating_sub(held as u64);
        // A connection that has no news does not look at its window.
        connection.set_room(room);
        connection.invariants();
    }

    fn open(&mut self) {
        let identity = identity();
        self.connection = Some(Connection::connect(self.instant(), identity, self.config));
    }
}

impl Peer for Host {
    fn now(&self) -> Duration {
        self.now
    }

    fn deliver(&mut self, segment: &Segment, marked: bool) {
        let now = self.instant();
        let bytes = segment.to_bytes();
        let (header, offset) = Header::parse(&bytes).expect("the interpreter's segments are valid");
        let Some(connection) = &mut self.connection else {
            if self.listens {
                let accepted = Connection::accept(now, identity(), self.config, &header);
                self.connection = Some(accepted);
            }
            return;
        };
        let payload = &bytes[offset..];
        self.next_handle += 1;
        let handle = Handle(self.next_handle);
        let slice = Slice {
            handle,
            offset: 0,
            length: payload.len() as u32,
        };
        let slice = (!payload.is_empty()).then_some(slice);
        if connection.handle_segment(now, &header, slice, marked) {
            self.received.insert(handle, payload.to_vec());
        }
        self.was_open |= connection.state() == connection::State::Established;
        self.take_released();
    }

    fn report(&mut self, icmp: Icmp, quoted: &Segment) {
        let Some(connection) = &mut self.connection else {
            return;
        };
        let seq = Seq(quoted.seq);
        match icmp {
            Icmp::Unreachable => connection.handle_unreachable(seq),
            Icmp::TooBig(mtu) => {
                if connection.is_in_flight(seq) {
                    connection.set_path_mss(u32::from(mtu) - 40);
                }
            }
        }
    }

    fn next_sent(&mut self, until: Duration) -> Option<Sent> {
        loop {
            let now = self.instant();
            let connection = self.connection.as_mut()?;
            connection.handle_timeout(now);
            if let Some(transmit) = connection.poll_transmit(now) {
                if let Some(token) = transmit.token {
                    connection.handle_departure(token, now);
                }
                let mut bytes = vec![0; transmit.header.length()];
                transmit.header.write(&mut bytes);
                if let Some(part) = transmit.payload {
                    let written = &self.written[&part.handle];
                    bytes.extend(&written[part.offset as usize..part.end() as usize]);
                }
                self.take_released();
                return Some(Sent {
                    at: self.now,
                    segment: Segment::parse(&bytes).expect("the connection's header is valid"),
                    ecn_capable: transmit.ecn_capable,
                });
            }
            let next = connection.poll_timeout();
            self.take_released();
            let next = next.map(|next| next.since(Instant::from_nanos(START)));
            match next.filter(|next| *next <= until) {
                Some(next) => self.now = self.now.max(next),
                None => {
                    self.now = self.now.max(until);
                    return None;
                }
            }
        }
    }

    fn act(&mut self, action: &Action) -> Result<(), String> {
        let now = self.instant();
        match action {
            Action::Connect => self.open(),
            Action::Listen => self.listens = true,
            Action::Accept => match self.state() {
                State::Established | State::CloseWait => {}
                state => return Err(format!("no connection to accept: state {state}")),
            },
            Action::Write(length) => self.write(*length)?,
            Action::WriteFails => match self.write(1) {
                Err(_) => {}
                Ok(()) => return Err("the write succeeds".to_owned()),
            },
            Action::Read(length) => self.read(*length)?,
            Action::Readable(expected) => match self.connection()?.readable() {
                readable if readable == u64::from(*expected) => {}
                readable => return Err(format!("{readable} bytes can be read")),
            },
            Action::ReadEnd => match self.connection()?.is_finished() {
                true => {}
                false => return Err("the peer has not shut down, or data is left".to_owned()),
            },
            Action::Shutdown => self.connection()?.shut_down(),
            Action::Close => self.connection()?.close(now),
            Action::Abort => self.connection()?.abort(),
            Action::NoDelay(on) => self.connection()?.set_no_delay(*on),
        }
        self.take_released();
        Ok(())
    }

    fn state(&mut self) -> State {
        match &self.connection {
            None if self.listens => State::Listen,
            None => State::Closed,
            // The listener is there still.
            Some(connection) if !self.was_open && self.listens && connection.is_closed() => {
                State::Listen
            }
            Some(connection) => state(connection.state()),
        }
    }

    fn error(&mut self) -> Error {
        match self.connection.as_ref().and_then(Connection::reason) {
            None => Error::None,
            Some(CloseReason::Refused) => Error::Refused,
            Some(CloseReason::Reset) => Error::Reset,
            Some(CloseReason::TimedOut(_) | CloseReason::KeepaliveFailed(_)) => Error::TimedOut,
            Some(CloseReason::Unreachable) => Error::Unreachable,
            Some(CloseReason::Aborted) => Error::Aborted,
        }
    }

    fn tolerance(&self, _wait: Duration) -> Tolerance {
        // The scripts round to milliseconds.
        let millisecond = Duration::from_millis(1);
        Tolerance {
            early: millisecond,
            late: millisecond,
        }
    }

    fn ports(&self) -> (u16, u16) {
        let identity = identity();
        (identity.remote_port, identity.local_port)
    }
}

fn state(state: connection::State) -> State {
    match state {
        connection::State::SynSent => State::SynSent,
        connection::State::SynReceived => State::SynReceived,
        connection::State::Established => State::Established,
        connection::State::FinWait1 => State::FinWait1,
        connection::State::FinWait2 => State::FinWait2,
        connection::State::CloseWait => State::CloseWait,
        connection::State::Closing => State::Closing,
        connection::State::LastAck => State::LastAck,
        connection::State::TimeWait => State::TimeWait,
        connection::State::Closed => State::Closed,
    }
}

fn identity() -> Identity {
    Identity {
        local_port: 2000,
        remote_port: 3000,
        // The sequence numbers wrap early in the stream.
        initial_seq: Seq(u32::MAX - 2500),
        timestamp_offset: u32::MAX - START_MILLIS - 3000,
    }
}

fn config(options: &Options) -> Config {
    let usual = Config::default();
    let scale = options.scale.unwrap_or(0);
    Config {
        mss: u32::from(options.mss),
        room: options.window,
        largest_window: options.window.max(u32::from(u16::MAX) << scale),
        algorithm: match options.reno {
            true => Algorithm::Reno,
            false => Algorithm::Cubic,
        },
        no_delay: options.no_delay,
        quick: options.quick,
        keepalive: options.keepalive.map(|keepalive| Keepalive {
            idle: keepalive.idle,
            interval: keepalive.interval,
            probes: keepalive.probes,
        }),
        user_timeout: options.user_timeout.unwrap_or(usual.user_timeout),
        connect_timeout: options.connect_timeout.unwrap_or(usual.connect_timeout),
        fin_wait_2: options.fin_wait_2.unwrap_or(usual.fin_wait_2),
        sack: options.sack,
        timestamps: options.timestamps,
        window_scaling: options.scale.is_some(),
        ecn: options.ecn,
        ..usual
    }
}

/// The script files: names without the ending, and texts.
fn files() -> Vec<(String, String)> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("scripts");
    let entries = std::fs::read_dir(&folder).expect("the folder of the scripts");
    let mut files: Vec<(String, String)> = entries
        .map(|entry| entry.expect("an entry of the folder").path())
        .filter(|path| path.extension().is_some_and(|ending| ending == "script"))
        .map(|path| {
            let name = path
                .file_stem()
                .expect("a file has a name")
                .to_string_lossy();
            let text = std::fs::read_to_string(&path).expect("a script is text");
            (name.into_owned(), text)
        })
        .collect();
    files.sort();
    files
}

#[test]
fn every_script_runs_as_it_says() {
    let mut failures = Vec::new();
    for (name, text) in files() {
        match Script::parse(&name, &text) {
            Err(error) => failures.push(error.to_string()),
            Ok(script) => {
                // A panic of the connection is reported with the name of the script.
                let result = std::panic::catch_unwind(|| {
                    let mut host = Host::new(&script.options);
                    netnice_scripts::run(&script, &mut host)
                });
                match result {
                    Ok(Ok(())) => {}
                    Ok(Err(failure)) => failures.push(failure.to_string()),
                    Err(_) => failures.push(format!("{name}.script: the connection panics")),
                }
            }
        }
    }
    assert!(
        failures.is_empty(),
        "{} scripts fail:\n{}",
        failures.len(),
        failures.join("\n")
    );
}

#[test]
fn there_are_at_least_80_scripts() {
    assert!(files().len() >= 80, "{} scripts", files().len());
}

/// The connection's clock at the start of a script, in nanoseconds and in milliseconds.
const START: u64 = 1_000_000_000_000;
const START_MILLIS: u32 = 1_000_000;
