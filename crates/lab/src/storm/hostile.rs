//! A hostile user: a program that attacks a daemon with the rights of an unprivileged user, in a
//! random order, until its time is over.
//!
//! [`super::attacks::ATTACKS`] has the attacks. The daemon may refuse an attack in any way, but it
//! must not grant what the user must not have. If the daemon grants it, the attack reports a
//! finding (`HostileUser::report_finding`). At its end the program prints, for each attack, how
//! often it was tried, the longest duration in ms and the last error, and then all findings. The
//! storm test fails if there is a finding. The program fails if there is no attack of the name that
//! `--only` gives, if it cannot raise its limit of open files, or if it cannot start the process
//! that it limits.

use std::collections::BTreeMap;
use std::io::{self, IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use netnice_api::{Client, Request, Response, RuntimeDir};
use netnice_sim::Random;
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType,
};

use super::attacks::{ATTACKS, Attack};
use super::{Common, set_request};

/// The arguments of `netnice-lab storm hostile`.
#[derive(Debug, Clone, clap::Args)]
pub struct HostileArgs {
    #[command(flatten)]
    common: Common,
    /// Processes of others.
    #[arg(long, value_delimiter = ',')]
    others: Vec<u32>,
    /// An own address for flows of the direct path; its port is the first of a hundred that are
    /// used.
    #[arg(long)]
    local: SocketAddr,
    /// Where such flows go.
    #[arg(long)]
    remote: SocketAddr,
    /// Only the attack of this name.
    #[arg(long)]
    only: Option<String>,
}

/// The user's state during the attacks.
pub struct HostileUser {
    /// The daemon's folder.
    pub dir: RuntimeDir,
    /// The random numbers of this user.
    pub random: Random,
    /// Processes of other users.
    pub others: Vec<u32>,
    /// A local address for flows of the direct path; its port and the next 99 are used.
    pub local: SocketAddr,
    /// The address to which such flows send, on another host.
    pub remote: SocketAddr,
    /// A process that the user may limit.
    pub own: Child,
    /// Connections that are kept open over several attacks.
    pub kept_connections: Vec<UnixStream>,
    findings: Vec<String>,
}

/// Runs the program until its time is over. Fails for the reasons that the module names.
pub(crate) fn main(args: &HostileArgs) -> Result<()> {
    let named = |(name, _): &&(&str, Attack)| args.only.as_deref().is_none_or(|only| only == *name);
    let attacks: Vec<_> = ATTACKS.iter().filter(named).collect();
    if attacks.is_empty() {
        bail!("there is no attack {}", args.only.as_deref().unwrap_or(""));
    }
    crate::sys::raise_file_limit().context("descriptors")?;
    let mut hostile = HostileUser {
        dir: args.common.dir(),
        random: Random::new(args.common.seed),
        others: args.others.clone(),
        local: args.local,
        remote: args.remote,
        own: sleeper()?,
        kept_connections: Vec::new(),
        findings: Vec::new(),
    };
    println!("{}", serde_json::json!({"ready": std::process::id()}));
    let until = Instant::now() + args.common.duration();
    let mut tried: BTreeMap<&str, u64> = BTreeMap::new();
    let mut failed: BTreeMap<&str, String> = BTreeMap::new();
    let mut longest: BTreeMap<&str, u128> = BTreeMap::new();
    while Instant::now() < until {
        let (name, attack) = attacks[hostile.random.below(attacks.len() as u64) as usize];
        let begun = Instant::now();
        if let Err(error) = attack(&mut hostile) {
            failed.insert(name, format!("{error:#}"));
        }
        *tried.entry(name).or_default() += 1;
        let took = longest.entry(name).or_default();
        *took = (*took).max(begun.elapsed().as_millis());
    }
    hostile.kept_connections.clear();
    let _ = hostile.own.kill();
    let _ = hostile.own.wait();
    let report = serde_json::json!({
        "tried": tried, "failed": failed, "longest_ms": longest, "findings": hostile.findings,
    });
    println!("{report}");
    Ok(())
}

impl HostileUser {
    /// Records that the daemon granted something that an unprivileged user must not have.
    pub(crate) fn report_finding(&mut self, what: impl Into<String>) {
        self.findings.push(what.into());
    }

    /// Connects to the daemon. Fails if the daemon does not listen, and, instead of waiting, if its
    /// backlog is full.
    pub(crate) fn connect(&self) -> Result<UnixStream> {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        let address = SocketAddrUnix::new(self.dir.socket())?;
        rustix::net::connect(&socket, &address).context("connect")?;
        let stream = UnixStream::from(socket);
        stream.set_nonblocking(false)?;
        stream.set_read_timeout(Some(IO_TIMEOUT))?;
        stream.set_write_timeout(Some(IO_TIMEOUT))?;
        Ok(stream)
    }

    /// Sends a valid request over a new connection; returns any response. Fails if the daemon
    /// cannot be connected to ([`HostileUser::connect`]), if it closes the connection, or if no
    /// response comes within [`IO_TIMEOUT`].
    pub(crate) fn ask(
        &self,
        request: &Request,
        process: Option<BorrowedFd<'_>>,
    ) -> Result<Response> {
        let mut client = Client::over(self.connect()?);
        Ok(client.call_within(IO_TIMEOUT, request, process)?)
    }

    /// Requests a limit of a process and returns any response. Fails if the process has ended, or
    /// as [`HostileUser::ask`] does.
    pub(crate) fn set(&self, pid: u32, change: &str) -> Result<Response> {
        let pidfd = super::pidfd(pid)?;
        self.ask(&set_request(pid, change), Some(pidfd.as_fd()))
    }
}

/// Starts a process that sleeps for 600 s. Fails if sleep(1) cannot start.
pub(crate) fn sleeper() -> Result<Child> {
    let mut sleep = Command::new("sleep");
    sleep.arg("600").stdin(Stdio::null()).stdout(Stdio::null());
    sleep.spawn().context("start a process")
}

/// Bytes as a frame of the daemon's protocol: their number as 4 bytes (big-endian), then the bytes.
pub(crate) fn frame(body: &[u8]) -> Vec<u8> {
    let mut frame = (body.len() as u32).to_be_bytes().to_vec();
    frame.extend(body);
    frame
}

/// Sends all bytes. Fails if the daemon does not take them within the write timeout, or has closed
/// the connection.
pub(crate) fn send(stream: &mut UnixStream, bytes: &[u8]) -> Result<()> {
    Ok(stream.write_all(bytes)?)
}

/// Bytes that the daemon sends until it closes the connection, until nothing comes for the read
/// timeout, or until they are more than 1 MiB.
pub(crate) fn read_response(stream: &mut UnixStream) -> Vec<u8> {
    let (mut said, mut buffer) = (Vec::new(), [0; 4096]);
    while let Ok(count @ 1..) = stream.read(&mut buffer) {
        said.extend(&buffer[..count]);
        if said.len() > MAX_RESPONSE_BYTES {
            break;
        }
    }
    said
}

/// Sends bytes with up to [`MAX_DESCRIPTORS`] descriptors in one message; returns the number of
/// bytes sent. Fails for more descriptors, and with the error of sendmsg(2).
pub(crate) fn send_with_descriptors(
    stream: &UnixStream,
    bytes: &[u8],
    fds: &[BorrowedFd<'_>],
) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut beside = SendAncillaryBuffer::new(&mut space);
    if !beside.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(io::Error::other("too many descriptors for one message"));
    }
    let bytes = [IoSlice::new(bytes)];
    Ok(rustix::net::sendmsg(
        stream,
        &bytes,
        &mut beside,
        SendFlags::NOSIGNAL,
    )?)
}

/// The most descriptors that the kernel passes with one message (SCM_MAX_FD).
pub(crate) const MAX_DESCRIPTORS: usize = 253;
/// Time limit of an attack for each response and each write.
pub(crate) const IO_TIMEOUT: Duration = Duration::from_secs(2);
const MAX_RESPONSE_BYTES: usize = 1 << 20;
