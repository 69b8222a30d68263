//! The connection to a link's driver process, and the start of that process ([`run`]).
//!
//! ```text
//!               connected                      the socket ends or fails
//!   connecting ───────────▶ Connected ─▶ open ──────────────────────────▶ Ended, with the reason
//!      │ no driver runs:                  │ ▲
//!      │ start one, try for 10 s          └─┘ calls out, messages in: Message
//!      └───────────────────▶ Ended, with the reason
//! ```
//! Connected, Message and Ended are the reported events ([`ConnectionEvent`]). Without arguments
//! for a start, no driver is started. A driver that ends before it accepts a connection is started
//! again, at most twice.
//!
//! A driver outlives the daemon, and signals of the daemon's terminal do not reach it: it has a
//! process group of its own. Its standard error goes to a file of at most about 256 KiB in the
//! runtime folder; a second file has the output before that ([`bound_output`]). Calls wait until
//! the connection is established. A driver may block until its messages are read before it takes
//! the next call, so messages are read while a call is sent. If a call is too long to be sent, this
//! module makes the answer: an error. When the sender of calls is dropped, the calls before that
//! are sent, and the connection is closed without an Ended event.

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use netnice_api::driver::{DriverCall, DriverMessage, DriverReply};
use netnice_api::frame::{Decoder, LONGEST_DRIVER_MESSAGE};
use netnice_api::{RuntimeDir, WireError, decode_driver_message, encode_driver_call, fds};
use netnice_core::contract::IfName;
use netnice_kernel::trust;
use tokio::io::Interest;
use tokio::net::UnixStream;
use tokio::process::{Child, Command};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

/// The arguments of a driver to be started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Start {
    /// The driver's initial rate, in bit/s.
    pub rate: u64,
    /// Bytes that the wire adds to each packet.
    pub overhead: u64,
    /// True to keep processors awake while packets of `cell` contracts are sent.
    pub keep_awake: bool,
    /// True to write the stops of the packet thread to a file in the runtime folder.
    pub write_stops: bool,
}

/// A call, with the descriptor to send with it.
pub(crate) type Call = (DriverCall, Option<OwnedFd>);

/// An event of a connection to a driver.
#[derive(Debug)]
pub(crate) enum ConnectionEvent {
    /// The driver is connected: its process, if the kernel tells it.
    Connected(Option<u32>),
    /// A message of the driver, with its descriptors.
    Message(DriverMessage, Vec<OwnedFd>),
    /// The driver has ended or could not be started, with the reason.
    Ended(String),
}

/// The link, the number of the connection, and the event.
pub(crate) type FromDriver = (IfName, u64, ConnectionEvent);

/// Serves the connection to the driver of a link until the connection ends. `folder` is the runtime
/// folder, and `connection` the number of the connection in the events. `start` has the arguments
/// of a driver to start if none runs; with `None`, none is started.
pub(crate) async fn run(
    folder: PathBuf,
    (link, connection): (IfName, u64),
    start: Option<Start>,
    mut calls: mpsc::UnboundedReceiver<Call>,
    events: mpsc::UnboundedSender<FromDriver>,
) {
    let iface = link.to_string();
    let report = |what| {
        // The send fails while the daemon stops.
        let _ = events.send((link.clone(), connection, what));
    };
    let (stream, exit) = match connect_or_start(&folder, &iface, start).await {
        Ok(connected) => connected,
        Err(why) => return report(ConnectionEvent::Ended(why)),
    };
    report(ConnectionEvent::Connected(process_of(&stream)));
    let mut messages = Messages {
        decoder: Decoder::new(LONGEST_DRIVER_MESSAGE),
        fds: Vec::new(),
    };
    let mut unsent = None;
    loop {
        let result = tokio::select! {
            message = messages.next(&stream) => match message {
                Ok((message, fds)) => {
                    report(ConnectionEvent::Message(message, fds));
                    Ok(())
                }
                Err(why) => Err(why),
            },
            sent = send(&stream, &mut unsent), if unsent.is_some() => sent,
            call = calls.recv(), if unsent.is_none() => match call {
                Some((call, fd)) => {
                    match encode_driver_call(&call) {
                        Ok(bytes) => unsent = Some(Unsent { bytes, sent_bytes: 0, fd }),
                        Err(why) => {
                            let answer = unsendable(call.id, &why);
                            report(ConnectionEvent::Message(answer, Vec::new()));
                        }
                    }
                    Ok(())
                }
                None => return,
            },
        };
        if let Err(error) = result {
            let status = exit_status(exit).await;
            let why = ending(&error, status, &folder, &iface);
            return report(ConnectionEvent::Ended(why));
        }
    }
}

/// The process at the other end: the one that listens at the socket.
fn process_of(stream: &UnixStream) -> Option<u32> {
    let peer = stream.peer_cred().ok()?.pid()?;
    // 0: a process outside this PID namespace.
    u32::try_from(peer).ok().filter(|pid| *pid != 0)
}

/// The interfaces for which the runtime folder has a driver socket.
pub(crate) fn found(folder: &Path) -> Vec<String> {
    RuntimeDir::choose(Some(folder.to_owned()), None).driver_ifaces()
}

/// The exit status of a driver, which its task reaps; `None` for a driver that this daemon has not
/// started.
type Exit = Option<JoinHandle<io::Result<ExitStatus>>>;

/// Connects to the driver, and starts it if none runs and `start` is given.
async fn connect_or_start(
    folder: &Path,
    iface: &str,
    start: Option<Start>,
) -> Result<(UnixStream, Exit), String> {
    let path = RuntimeDir::choose(Some(folder.to_owned()), None).driver_socket(iface);
    if let Ok(stream) = UnixStream::connect(&path).await {
        return Ok((stream, None));
    }
    let Some(start) = start else {
        return Err(format!("no driver of {iface} answers any more"));
    };
    let mut child = spawn(folder, iface, &start)?;
    let mut restarts_left = RESTARTS;
    let until = Instant::now() + CONNECT_TIMEOUT;
    loop {
        if let Ok(stream) = UnixStream::connect(&path).await {
            // Reaps the process when it ends.
            let exit = tokio::task::spawn_local(async move { child.wait().await });
            return Ok((stream, Some(exit)));
        }
        if let Ok(Some(status)) = child.try_wait() {
            if restarts_left == 0 {
                let last_line = last_output_line(folder, iface);
                return Err(format!(
                    "the driver of {iface} did not start ({status}){last_line}"
                ));
            }
            // The previous driver may still hold the interface.
            restarts_left -= 1;
            sleep(RESTART_PAUSE).await;
            child = spawn(folder, iface, &start)?;
        }
        if Instant::now() > until {
            let _ = child.start_kill();
            return Err(format!(
                "the driver of {iface} did not answer within {CONNECT_TIMEOUT:?}"
            ));
        }
        sleep(CONNECT_PAUSE).await;
    }
}

fn spawn(folder: &Path, iface: &str, start: &Start) -> Result<Child, String> {
    let program = program();
    let output = open_output(&output(folder, iface)).map_err(|error| {
        format!("cannot open the output file of the driver of {iface}: {error}")
    })?;
    let mut command = Command::new(&program);
    command
        .arg("--runtime-dir")
        .arg(folder)
        .args(["--rate", &format!("{}bit", start.rate)])
        .args(["--overhead", &start.overhead.to_string()])
        .args((!start.keep_awake).then_some("--may-sleep"))
        .args(start.write_stops.then_some("--stops"))
        .arg(iface)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(output)
        .process_group(0)
        .kill_on_drop(false);
    command.spawn().map_err(|error| match error.kind() {
        ErrorKind::NotFound => format!(
            "direct flows need netnice-driver, and there is none at {}",
            program.display()
        ),
        _ => format!("cannot start {}: {error}", program.display()),
    })
}

/// The path of the driver's executable: beside the daemon's own, else in `NETNICE_BIN_DIR`; if
/// there is none in either, the path beside the daemon's own. The driver starts as root, so the
/// variable counts only if no user but root and the daemon's own can replace the executable
/// ([`trust::check`]).
pub(crate) fn program() -> PathBuf {
    let beside = std::env::current_exe().ok();
    let beside = beside.and_then(|exe| Some(exe.parent()?.join(PROGRAM)));
    let named = std::env::var_os("NETNICE_BIN_DIR").map(|dir| PathBuf::from(dir).join(PROGRAM));
    let named = named.filter(|path| match trust::check(path) {
        Ok(()) => true,
        Err(why) => {
            tracing::warn!(%why, "NETNICE_BIN_DIR is ignored");
            false
        }
    });
    let there = |path: &PathBuf| path.exists();
    match (beside, named) {
        (Some(beside), _) if there(&beside) => beside,
        (_, Some(named)) if there(&named) => named,
        (Some(beside), _) => beside,
        (None, named) => named.unwrap_or_else(|| PathBuf::from(PROGRAM)),
    }
}

fn output(folder: &Path, iface: &str) -> PathBuf {
    folder.join(format!("driver-{iface}.log"))
}

/// Opens a new output file for a driver. The output of the previous driver is kept beside it.
fn open_output(path: &Path) -> io::Result<File> {
    if fs::metadata(path).is_ok_and(|before| before.len() > 0) {
        fs::rename(path, older_output(path))?;
    }
    // In append mode the driver continues at the end of the file after a truncation.
    File::options().create(true).append(true).open(path)
}

/// Bounds a driver's output: copies a file of more than 256 KiB to the one beside it, and truncates
/// it. A driver cannot do so itself, because it cannot open files. A failure is logged.
pub(crate) fn bound_output(folder: &Path, iface: &str) {
    let path = output(folder, iface);
    let is_long = fs::metadata(&path).is_ok_and(|file| file.len() > MAX_OUTPUT);
    if !is_long {
        return;
    }
    let cut = || -> io::Result<()> {
        fs::copy(&path, older_output(&path))?;
        File::options().write(true).open(&path)?.set_len(0)
    };
    if let Err(error) = cut() {
        tracing::warn!(%error, file = %path.display(), "cannot bound the output of a driver");
    }
}

/// The file with the earlier part of a driver's output.
fn older_output(path: &Path) -> PathBuf {
    path.with_extension("log.1")
}

/// `: ` and the last line of a driver's output; empty if there is no output.
fn last_output_line(folder: &Path, iface: &str) -> String {
    let path = output(folder, iface);
    let read = |path: &Path| fs::read_to_string(path).unwrap_or_default();
    // The file may have been truncated just now.
    let text = Some(read(&path)).filter(|text| !text.is_empty());
    let text = text.unwrap_or_else(|| read(&older_output(&path)));
    let last = text.lines().rev().find(|line| !line.trim().is_empty());
    last.map_or_else(String::new, |line| format!(": {}", line.trim()))
}

/// The exit status of a driver whose connection has ended; `None` if the daemon has not started it,
/// or if its process stays.
async fn exit_status(exit: Exit) -> Option<ExitStatus> {
    let reaped = tokio::time::timeout(EXIT_TIMEOUT, exit?).await;
    reaped.ok()?.ok()?.ok()
}

/// The reason why a connection to a driver has ended. Only a driver that failed has written the
/// reason as the last line of its output; that of any other driver is about something else.
fn ending(error: &io::Error, status: Option<ExitStatus>, folder: &Path, iface: &str) -> String {
    let closed = matches!(
        error.kind(),
        ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset | ErrorKind::BrokenPipe
    );
    match status {
        Some(status) if let Some(signal) = status.signal() => {
            let name = signal_name(signal);
            format!("the driver of {iface} has ended: signal {signal}{name} killed it")
        }
        Some(status) if !status.success() => {
            let last_line = last_output_line(folder, iface);
            format!("the driver of {iface} has ended ({status}){last_line}")
        }
        _ if closed => format!("the driver of {iface} has ended"),
        _ => format!("the connection to the driver of {iface} failed: {error}"),
    }
}

/// The name of a signal that ends processes, in parentheses; empty for others.
fn signal_name(signal: i32) -> &'static str {
    match signal {
        6 => " (SIGABRT)",
        7 => " (SIGBUS)",
        9 => " (SIGKILL)",
        11 => " (SIGSEGV)",
        15 => " (SIGTERM)",
        24 => " (SIGXCPU)",
        31 => " (SIGSYS)",
        _ => "",
    }
}

/// Received bytes and descriptors.
struct Messages {
    decoder: Decoder,
    /// Received descriptors, in order. Those of a message may arrive with the end of the message
    /// before it.
    fds: Vec<OwnedFd>,
}

impl Messages {
    /// The next message. Cancel safe.
    async fn next(&mut self, stream: &UnixStream) -> io::Result<(DriverMessage, Vec<OwnedFd>)> {
        loop {
            if let Some(body) = self.decoder.poll().map_err(io::Error::other)? {
                let message = decode_driver_message(&body).map_err(io::Error::other)?;
                let attached = matches!(
                    message,
                    DriverMessage::Reply {
                        reply: DriverReply::Attached { .. },
                        ..
                    }
                );
                let theirs = if attached { fds::MAX_FDS } else { 0 };
                let fds = self.fds.drain(..theirs.min(self.fds.len())).collect();
                return Ok((message, fds));
            }
            stream.readable().await?;
            let mut bytes = [0; 64 * 1024];
            let received = stream.try_io(Interest::READABLE, || {
                fds::receive(stream.as_fd(), &mut bytes, fds::MAX_FDS)
            });
            match received {
                Ok(received) if received.bytes == 0 => {
                    return Err(ErrorKind::UnexpectedEof.into());
                }
                Ok(received) => {
                    self.fds.extend(received.fds);
                    self.decoder.push(&bytes[..received.bytes]);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
    }
}

/// A call that is partly sent.
struct Unsent {
    bytes: Vec<u8>,
    sent_bytes: usize,
    /// Sent with the first bytes.
    fd: Option<OwnedFd>,
}

/// Sends as much as the socket takes. Cancel safe.
async fn send(stream: &UnixStream, unsent: &mut Option<Unsent>) -> io::Result<()> {
    let Some(call) = unsent else {
        return Ok(());
    };
    stream.writable().await?;
    let beside: Vec<BorrowedFd<'_>> = call.fd.iter().map(AsFd::as_fd).collect();
    let sent = stream.try_io(Interest::WRITABLE, || {
        fds::send(stream.as_fd(), &call.bytes[call.sent_bytes..], &beside)
    });
    match sent {
        Ok(sent) => {
            call.sent_bytes += sent;
            call.fd = None;
        }
        Err(error) if error.kind() == ErrorKind::WouldBlock => {}
        Err(error) => return Err(error),
    }
    if call.sent_bytes == call.bytes.len() {
        *unsent = None;
    }
    Ok(())
}

/// The answer to a call that cannot be sent.
fn unsendable(id: u64, why: &WireError) -> DriverMessage {
    DriverMessage::Reply {
        id,
        reply: DriverReply::Failed {
            why: format!("the call cannot be sent: {why}"),
        },
    }
}

/// Time limit for a started driver to accept a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Time limit for a driver to end after its connection has ended.
const EXIT_TIMEOUT: Duration = Duration::from_secs(2);
/// How many times a driver that ends before it accepts a connection is started again.
const RESTARTS: usize = 2;
/// The pause before it is started again.
const RESTART_PAUSE: Duration = Duration::from_millis(300);
/// The pause between two attempts to connect.
const CONNECT_PAUSE: Duration = Duration::from_millis(10);
/// Largest size of an output file, in bytes, before it is copied and truncated.
const MAX_OUTPUT: u64 = 256 * 1024;
/// The name of the executable.
const PROGRAM: &str = "netnice-driver";

#[cfg(test)]
mod tests {
    use super::*;

    /// The last line of a log counts only for a driver that failed: it is not the reason if a
    /// signal ended the driver, or if nothing about its end is known.
    #[test]
    fn the_reason_for_the_end_of_a_driver_is_its_own() {
        let name = format!("netnice-driver-log-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        fs::create_dir_all(&folder).expect("a folder");
        let line = "a record of pid 7 broke rule R32";
        fs::write(output(&folder, "eth0"), line).expect("written");
        let error = ErrorKind::UnexpectedEof.into();
        let text = |raw: Option<i32>| {
            let status = raw.map(ExitStatus::from_raw);
            ending(&error, status, &folder, "eth0")
        };
        let ended = "the driver of eth0 has ended";
        assert_eq!(
            text(Some(9)),
            format!("{ended}: signal 9 (SIGKILL) killed it")
        );
        assert_eq!(text(None), ended);
        assert_eq!(text(Some(0)), ended);
        assert_eq!(
            text(Some(1 << 8)),
            format!("{ended} (exit status: 1): {line}")
        );
    }
}
