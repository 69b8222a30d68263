//! One session: its process, its gate, its share, and what it uses.

use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::Gate;
use crate::config::Service;
use crate::divide;

/// A session.
pub(super) struct Session {
    /// The service, by its place in the configuration.
    pub service: usize,
    /// Who is served; none where the program serves a socket.
    pub client: Option<IpAddr>,
    /// Its process.
    pub pidfd: OwnedFd,
    /// The daemon's target of it.
    pub target: String,
    /// Its share that is in force, in bit/s; none: unlimited.
    pub share: Option<u64>,
    /// Whether a share has been set.
    pub is_set: bool,
    child: Child,
    gate: Option<io::PipeWriter>,
    use_: Use,
}

/// What a session uses.
#[derive(Default)]
struct Use {
    /// The last reading: time in ns, bytes.
    last: Option<(u64, u64)>,
    /// Since when it has used little, in ns, and the most that it used since, in bit/s.
    little: Option<(u64, u64)>,
    /// It is idle, and uses at most so much.
    idle: Option<u64>,
    /// The largest share that it had while it was not idle.
    whole: u64,
}

impl Session {
    /// Starts a program behind its gate.
    pub(super) fn start(
        index: usize,
        service: &Service,
        gate: &Gate,
        socket: OwnedFd,
        client: Option<IpAddr>,
    ) -> io::Result<Session> {
        let (closed, opener) = io::pipe()?;
        let user = &service.user;
        let groups: Vec<String> = user.groups.iter().map(u32::to_string).collect();
        let mut command = Command::new(&gate.helper);
        command
            .args(&gate.words)
            .args([user.uid.to_string(), user.gid.to_string()])
            .arg(format!("groups={}", groups.join(",")))
            .arg(&service.program)
            .arg(&service.argv0)
            .args(&service.args)
            .current_dir("/")
            .stdin(Stdio::from(socket.try_clone()?))
            .stdout(Stdio::from(socket))
            .stderr(Stdio::from(closed));
        if let Some(client) = client {
            command.env("REMOTE_HOST", client.to_string());
        }
        let mut child = command.spawn()?;
        let pid = child.id();
        let opened = i32::try_from(pid).ok().and_then(Pid::from_raw);
        let pidfd = opened.map(|pid| pidfd_open(pid, PidfdFlags::empty()));
        let pidfd = match pidfd {
            Some(Ok(pidfd)) => pidfd,
            other => {
                // Without the gate's writer it ends by itself.
                drop(opener);
                let _ = child.wait();
                let why = other.and_then(Result::err);
                return Err(why.map_or(io::ErrorKind::InvalidData.into(), io::Error::from));
            }
        };
        Ok(Session {
            service: index,
            client,
            pidfd,
            target: format!("pid:{pid}"),
            share: None,
            is_set: false,
            child,
            gate: Some(opener),
            use_: Use::default(),
        })
    }

    /// Lets the program run.
    pub(super) fn open_gate(&mut self) -> io::Result<()> {
        match self.gate.take() {
            Some(mut gate) => io::Write::write_all(&mut gate, b"\n"),
            None => Ok(()),
        }
    }

    /// Ends it.
    pub(super) fn stop(&mut self) {
        self.gate = None;
        // It may have ended by itself.
        let _ = pidfd_send_signal(&self.pidfd, Signal::TERM);
    }

    /// Whether it has ended.
    pub(super) fn has_ended(&self) -> bool {
        let mut fds = [PollFd::new(&self.pidfd, PollFlags::IN)];
        matches!(
            rustix::event::poll(&mut fds, Some(&Timespec::default())),
            Ok(1..)
        )
    }

    /// Waits for its end, which has come; says how if a person should know.
    pub(super) fn ended(&mut self) -> Option<String> {
        self.gate = None;
        match self.child.wait() {
            Ok(status) if status.code() == Some(127) => {
                Some("its program could not be run".to_string())
            }
            Ok(_) => None,
            Err(error) => Some(format!("a session is lost: {error}")),
        }
    }

    /// How much it uses, if it is idle.
    pub(super) fn idle(&self) -> Option<u64> {
        self.use_.idle
    }

    /// Takes in a reading of its counter; returns whether it became idle or busy by it.
    pub(super) fn used(&mut self, at_ns: u64, bytes: u64) -> bool {
        let Some(share) = self.share else {
            return false;
        };
        if self.use_.idle.is_none() {
            self.use_.whole = share;
        }
        self.use_.read(at_ns, bytes, share)
    }
}

impl Use {
    fn read(&mut self, at_ns: u64, bytes: u64, share: u64) -> bool {
        let before = self.last.replace((at_ns, bytes));
        let Some((then, had)) = before.filter(|(then, had)| *then < at_ns && *had <= bytes) else {
            return false;
        };
        let bits = u128::from(bytes - had) * 8_000_000_000 / u128::from(at_ns - then);
        let rate = u64::try_from(bits).unwrap_or(u64::MAX);
        let was = self.idle;
        match was {
            // Half of what it kept: it may want more than that.
            Some(_) if rate >= share / 2 => *self = self.busy(),
            Some(most) => self.idle = Some(most.max(rate)),
            None if rate > self.whole / LITTLE => self.little = None,
            None => {
                let (since, most) = self.little.unwrap_or((then, 0));
                let most = most.max(rate);
                self.little = Some((since, most));
                if at_ns - since >= IDLE_NS {
                    self.idle = Some(most);
                }
            }
        }
        // What an idle session keeps follows what it uses, but not every little.
        let kept = |used: Option<u64>| used.map(|used| divide::kept(self.whole, used, 0));
        kept(was) != kept(self.idle)
    }

    fn busy(&self) -> Use {
        Use {
            last: self.last,
            whole: self.whole,
            ..Use::default()
        }
    }
}

/// A session that uses less than this part of its share uses little.
const LITTLE: u64 = 10;

/// How long it must have used little to be idle: a pause between two files is none.
const IDLE_NS: u64 = 2_000_000_000;

#[cfg(test)]
mod tests;
