//! The connection to a link's driver process, and the process itself where it has to be started.
//!
//! ```text
//!            socket answers                             socket ends
//!   seeking ────────────────▶ told: it came ──▶ open ───────────────▶ told: it ended, and why
//!      │ nobody there: start it, seek for 5 s   │ ▲
//!      └──▶ told: it ended, and why             └─┘ calls out, words in
//! ```
//! A driver outlives the daemon and everything that the daemon's terminal does: it has a process group of its own, and what it
//! says goes to a file in the runtime folder. Calls that are made while it is sought wait for it. A driver may want its words read
//! before it takes the next call, so words are read while a call goes out. A call that is too long to be made is answered here.

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use netnice_api::driver::{DriverAnswer, DriverCall, DriverWord};
use netnice_api::frame::{Decoder, LONGEST_WORD};
use netnice_api::{RuntimeDir, WireError, decode_word, encode_call, fds};
use netnice_core::contract::IfName;
use netnice_kernel::trust;
use tokio::io::Interest;
use tokio::net::UnixStream;
use tokio::process::{Child, Command};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep};

/// How a driver is started, where there is none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Start {
    /// Its rate at first, in bit/s.
    pub rate: u64,
    /// Bytes that the wire adds to each packet.
    pub overhead: u64,
    /// Processors are kept awake while packets of `cell` contracts leave.
    pub keep_awake: bool,
}

/// A call, with the descriptor that travels with it.
pub(crate) type Call = (DriverCall, Option<OwnedFd>);

/// What is heard of a driver.
#[derive(Debug)]
pub(crate) enum Heard {
    /// It is there.
    Came,
    /// It says something.
    Said(DriverWord, Vec<OwnedFd>),
    /// It is gone, or could not be started, and why.
    Ended(String),
}

/// What is heard, on which connection to the driver of which link.
pub(crate) type From = (IfName, u64, Heard);

/// Speaks to the driver of a link, over a connection of this number, until it ends; `start` says how to start one if there is
/// none.
pub(crate) async fn run(
    folder: PathBuf,
    (link, connection): (IfName, u64),
    start: Option<Start>,
    mut calls: mpsc::UnboundedReceiver<Call>,
    heard: mpsc::UnboundedSender<From>,
) {
    let iface = link.to_string();
    let tell = |what| {
        // Nobody hears it any more when the daemon stops.
        let _ = heard.send((link.clone(), connection, what));
    };
    let stream = match seek(&folder, &iface, start).await {
        Ok(stream) => stream,
        Err(why) => return tell(Heard::Ended(why)),
    };
    tell(Heard::Came);
    let mut words = Words {
        decoder: Decoder::new(LONGEST_WORD),
        fds: Vec::new(),
    };
    let mut unsent = None;
    loop {
        let went = tokio::select! {
            word = words.next(&stream) => match word {
                Ok((word, fds)) => {
                    tell(Heard::Said(word, fds));
                    Ok(())
                }
                Err(why) => Err(why),
            },
            sent = send(&stream, &mut unsent), if unsent.is_some() => sent,
            call = calls.recv(), if unsent.is_none() => match call {
                Some((call, fd)) => {
                    match encode_call(&call) {
                        Ok(bytes) => unsent = Some(Unsent { bytes, gone: 0, fd }),
                        Err(why) => tell(Heard::Said(not_made(call.id, &why), Vec::new())),
                    }
                    Ok(())
                }
                None => return,
            },
        };
        if let Err(error) = went {
            return tell(Heard::Ended(ending(&error, &folder, &iface)));
        }
    }
}

/// The interfaces for which there may be a driver already.
pub(crate) fn found(folder: &Path) -> Vec<String> {
    RuntimeDir::choose(Some(folder.to_owned()), None).driver_ifaces()
}

/// A connection to the driver, which is started if need be.
async fn seek(folder: &Path, iface: &str, start: Option<Start>) -> Result<UnixStream, String> {
    let path = RuntimeDir::choose(Some(folder.to_owned()), None).driver_socket(iface);
    if let Ok(stream) = UnixStream::connect(&path).await {
        return Ok(stream);
    }
    let Some(start) = start else {
        return Err(format!("no driver of {iface} answers any more"));
    };
    let mut child = spawn(folder, iface, &start)?;
    let mut again = TRIES;
    let until = Instant::now() + PATIENCE;
    loop {
        if let Ok(stream) = UnixStream::connect(&path).await {
            // It is waited for, so that nothing is left of it when it has ended.
            tokio::task::spawn_local(async move { child.wait().await });
            return Ok(stream);
        }
        if let Ok(Some(status)) = child.try_wait() {
            if again == 0 {
                let said = last_words(folder, iface);
                return Err(format!(
                    "the driver of {iface} did not start ({status}){said}"
                ));
            }
            // The one before it may not have let go of the interface yet.
            again -= 1;
            sleep(BETWEEN_TRIES).await;
            child = spawn(folder, iface, &start)?;
        }
        if Instant::now() > until {
            let _ = child.start_kill();
            return Err(format!(
                "the driver of {iface} did not answer within {PATIENCE:?}"
            ));
        }
        sleep(PAUSE).await;
    }
}

fn spawn(folder: &Path, iface: &str, start: &Start) -> Result<Child, String> {
    let program = program();
    let output = begin_output(&output(folder, iface))
        .map_err(|error| format!("cannot keep what the driver of {iface} says: {error}"))?;
    let mut command = Command::new(&program);
    command
        .arg("--runtime-dir")
        .arg(folder)
        .args(["--rate", &format!("{}bit", start.rate)])
        .args(["--overhead", &start.overhead.to_string()])
        .args((!start.keep_awake).then_some("--may-sleep"))
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

/// Where the program is: beside our own executable, else where the environment says. It runs with root's rights, so what the
/// environment says counts if that folder and the program are root's alone.
pub(crate) fn program() -> PathBuf {
    let beside = std::env::current_exe().ok();
    let beside = beside.and_then(|exe| Some(exe.parent()?.join(PROGRAM)));
    let named = std::env::var_os("NETNICE_BIN_DIR").map(|dir| PathBuf::from(dir).join(PROGRAM));
    let named = named.filter(|path| match trust::check(path) {
        Ok(()) => true,
        Err(why) => {
            tracing::warn!(%why, "NETNICE_BIN_DIR is passed over");
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

/// A new file for what a driver says. What the driver before it said is kept beside it.
fn begin_output(path: &Path) -> io::Result<File> {
    if fs::metadata(path).is_ok_and(|before| before.len() > 0) {
        fs::rename(path, before(path))?;
    }
    // The driver goes on writing where the file ends, wherever that is after it was cut.
    File::options().create(true).append(true).open(path)
}

/// Keeps what a driver says below a bound: where the file has become long, it becomes the one that is kept beside it, and
/// the driver goes on in an empty one. A driver cannot do so itself, for it can open no file.
pub fn bound_output(folder: &Path, iface: &str) {
    let path = output(folder, iface);
    let is_long = fs::metadata(&path).is_ok_and(|file| file.len() > LONGEST_OUTPUT);
    if !is_long {
        return;
    }
    let cut = || -> io::Result<()> {
        fs::copy(&path, before(&path))?;
        File::options().write(true).open(&path)?.set_len(0)
    };
    if let Err(error) = cut() {
        tracing::warn!(%error, file = %path.display(), "what a driver says becomes longer than it should");
    }
}

/// Where the earlier part is kept of what a driver says.
fn before(path: &Path) -> PathBuf {
    path.with_extension("log.1")
}

/// The last line that a driver has said, if it has said any.
fn last_words(folder: &Path, iface: &str) -> String {
    let path = output(folder, iface);
    let read = |path: &Path| fs::read_to_string(path).unwrap_or_default();
    // It may have been cut just now.
    let text = Some(read(&path)).filter(|text| !text.is_empty());
    let text = text.unwrap_or_else(|| read(&before(&path)));
    let last = text.lines().rev().find(|line| !line.trim().is_empty());
    last.map_or_else(String::new, |line| format!(": {}", line.trim()))
}

fn ending(error: &io::Error, folder: &Path, iface: &str) -> String {
    match error.kind() {
        ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => {
            let said = last_words(folder, iface);
            format!("the driver of {iface} has ended{said}")
        }
        _ => format!("the driver of {iface} is not understood: {error}"),
    }
}

/// What has come so far.
struct Words {
    decoder: Decoder,
    /// Those that have come, in order. They may come with the end of the word before theirs.
    fds: Vec<OwnedFd>,
}

impl Words {
    /// The next word. Given up in between it loses nothing.
    async fn next(&mut self, stream: &UnixStream) -> io::Result<(DriverWord, Vec<OwnedFd>)> {
        loop {
            if let Some(body) = self.decoder.poll().map_err(io::Error::other)? {
                let word = decode_word(&body).map_err(io::Error::other)?;
                let attached = matches!(
                    word,
                    DriverWord::Answer {
                        answer: DriverAnswer::Attached { .. },
                        ..
                    }
                );
                let theirs = if attached { fds::MOST } else { 0 };
                let fds = self.fds.drain(..theirs.min(self.fds.len())).collect();
                return Ok((word, fds));
            }
            stream.readable().await?;
            let mut bytes = [0; 64 * 1024];
            let received = stream.try_io(Interest::READABLE, || {
                fds::receive(stream.as_fd(), &mut bytes, fds::MOST)
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

/// A call that is under way.
struct Unsent {
    bytes: Vec<u8>,
    gone: usize,
    /// Travels with the first bytes.
    fd: Option<OwnedFd>,
}

/// Sends what the socket takes. Given up in between it loses nothing.
async fn send(stream: &UnixStream, unsent: &mut Option<Unsent>) -> io::Result<()> {
    let Some(call) = unsent else {
        return Ok(());
    };
    stream.writable().await?;
    let beside: Vec<BorrowedFd<'_>> = call.fd.iter().map(AsFd::as_fd).collect();
    let sent = stream.try_io(Interest::WRITABLE, || {
        fds::send(stream.as_fd(), &call.bytes[call.gone..], &beside)
    });
    match sent {
        Ok(sent) => {
            call.gone += sent;
            call.fd = None;
        }
        Err(error) if error.kind() == ErrorKind::WouldBlock => {}
        Err(error) => return Err(error),
    }
    if call.gone == call.bytes.len() {
        *unsent = None;
    }
    Ok(())
}

/// The answer to a call that the driver never hears of.
fn not_made(id: u64, why: &WireError) -> DriverWord {
    DriverWord::Answer {
        id,
        answer: DriverAnswer::Failed {
            why: format!("it cannot be asked: {why}"),
        },
    }
}

/// How long a driver may take to listen.
const PATIENCE: Duration = Duration::from_secs(10);
/// How often it is started again if it ends at once.
const TRIES: usize = 2;
/// How long after.
const BETWEEN_TRIES: Duration = Duration::from_millis(300);
/// Between two looks whether it does.
const PAUSE: Duration = Duration::from_millis(10);
/// Of what a driver says so much is kept in one file, and as much beside it.
const LONGEST_OUTPUT: u64 = 256 * 1024;
/// The program's name.
const PROGRAM: &str = "netnice-driver";
