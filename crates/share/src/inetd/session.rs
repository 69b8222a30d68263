//! One session of the super-server: its process, and its gate (see [`super`]). A service and a
//! connected socket come in; the process and a [`Member`] go out, with which the keeper sets the
//! session's share. Starting fails if the gate, the helper process or its pidfd cannot be made.
//! Opening the gate fails if the helper has ended.

use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};

use rustix::process::{Signal, pidfd_send_signal};

use super::StartGateCommand;
use crate::config::Service;
use crate::keeper::Member;

/// A session of the super-server.
pub(super) struct Session {
    /// Index of the service in the configuration.
    pub service: usize,
    /// The client's address; `None` if the program serves the socket itself.
    pub client: Option<IpAddr>,
    child: Child,
    gate: Option<io::PipeWriter>,
}

impl Session {
    /// Starts a program behind its gate. Also returns the member by which the keeper sets its
    /// share.
    ///
    /// # Errors
    /// If the gate, the helper process or its pidfd cannot be made.
    pub(super) fn start(
        index: usize,
        service: &Service,
        gate: &StartGateCommand,
        socket: OwnedFd,
        client: Option<IpAddr>,
    ) -> io::Result<(Session, Member)> {
        let (closed, opener) = io::pipe()?;
        let user = &service.user;
        let groups: Vec<String> = user.groups.iter().map(u32::to_string).collect();
        let mut command = Command::new(&gate.helper);
        command
            .args(&gate.args)
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
        let member = match Member::open(child.id()) {
            Ok(member) => member,
            Err(error) => {
                // The child ends by itself when the gate's writer is closed.
                drop(opener);
                let _ = child.wait();
                return Err(error.into());
            }
        };
        let session = Session {
            service: index,
            client,
            child,
            gate: Some(opener),
        };
        Ok((session, member))
    }

    /// Opens the gate, so that the program runs. Does nothing if the gate is open, or closed for
    /// good. Fails if the helper has ended.
    pub(super) fn open_gate(&mut self) -> io::Result<()> {
        match self.gate.take() {
            Some(mut gate) => io::Write::write_all(&mut gate, b"\n"),
            None => Ok(()),
        }
    }

    /// Ends the session: sends SIGTERM to its process, `member`, and closes the gate for good.
    pub(super) fn stop(&mut self, member: Option<&Member>) {
        self.gate = None;
        if let Some(member) = member {
            // The process may have ended already.
            let _ = pidfd_send_signal(&member.pidfd, Signal::TERM);
        }
    }

    /// Reaps the process, which has ended. Returns a message for the operator if the helper could
    /// not take the rights and limits of the program (exit status 126) or not execute the program
    /// (127), or if the exit status cannot be read; else `None`.
    pub(super) fn ended(&mut self) -> Option<String> {
        self.gate = None;
        let failed = match self.child.wait().map(|status| status.code()) {
            Ok(Some(126)) => {
                "a session ended with status 126: its program cannot be executed, or its rights and \
                 limits cannot be taken"
            }
            Ok(Some(127)) => "cannot execute the program of a session",
            Ok(_) => return None,
            Err(error) => {
                return Some(format!("cannot read the exit status of a session: {error}"));
            }
        };
        Some(failed.to_string())
    }
}

#[cfg(test)]
mod tests;
