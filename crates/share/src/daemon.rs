//! Requests to the daemon over one connection ([`Daemon`]), which is opened again if it was closed.
//! A request fails with a [`RequestError`] if the daemon refuses it, if the daemon is not reached,
//! or if its response is lost or invalid. Opening the connection and [`Daemon::show`] fail with a
//! [`ClientError`].

use std::fmt;
use std::os::fd::BorrowedFd;

use netnice_api::{
    Client, ClientError, Exit, Find, Found, Request, Response, RuntimeDir, Set, Show, ShowDoc,
    Until,
};
use netnice_core::units::{Nanos, Rate};

/// A connection to the daemon.
pub(crate) struct Daemon {
    dir: RuntimeDir,
    client: Option<Client>,
    /// The process until whose end limits last; then the previous limits return. `None`: limits are
    /// permanent.
    until: Option<Until>,
}

/// Why the daemon did not carry out a request: it refused, failed, or could not be reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestError {
    /// The message.
    pub text: String,
    /// The exit status of a process that cannot continue without the request.
    pub exit: Exit,
}

impl fmt::Display for RequestError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// A target to limit, with its process if it is one.
#[derive(Clone, Copy)]
pub(crate) struct LimitTarget<'a> {
    /// The target as text.
    pub target: &'a str,
    /// A pidfd of the target's process.
    pub pidfd: Option<BorrowedFd<'a>>,
}

impl Daemon {
    /// Opens the connection. The limits that are set over it last until the exit `until`, if there
    /// is one. Fails if no daemon listens, or if connecting fails in another way.
    pub(crate) fn connect(dir: &RuntimeDir, until: Option<Until>) -> Result<Daemon, ClientError> {
        let client = Some(Client::connect(dir)?);
        let dir = dir.clone();
        Ok(Daemon { dir, client, until })
    }

    /// Limits a target as the short form `netnice TARGET RATE` does. `rate` is text, and other
    /// clauses may follow the rate.
    ///
    /// # Errors
    /// If the daemon refuses the limit or is not reached.
    pub(crate) fn limit(
        &mut self,
        target: LimitTarget<'_>,
        rate: &str,
    ) -> Result<(), RequestError> {
        let until = self.until;
        self.set(target, rate, |set| set.until = until)
    }

    /// Asks the daemon whether the target could be limited (dry run).
    ///
    /// # Errors
    /// If it could not, or the daemon is not reached.
    pub(crate) fn try_limit(
        &mut self,
        target: LimitTarget<'_>,
        rate: &str,
    ) -> Result<(), RequestError> {
        self.set(target, rate, |set| set.dry_run = true)
    }

    /// Restores the limits from before the first temporary limit. `rate` is that of the last limit.
    ///
    /// # Errors
    /// If the daemon refuses or is not reached.
    pub(crate) fn restore(
        &mut self,
        target: LimitTarget<'_>,
        rate: &str,
    ) -> Result<(), RequestError> {
        // When a temporary change expires, the state from before the first temporary change
        // returns. So set a change that expires at once.
        self.set(target, rate, |set| set.for_ns = Some(1))
    }

    fn set(
        &mut self,
        target: LimitTarget<'_>,
        rate: &str,
        adjust: impl FnOnce(&mut Set),
    ) -> Result<(), RequestError> {
        let mut set = Set {
            target: target.target.to_string(),
            change: Some(format!("both {rate}")),
            short: true,
            ..Set::default()
        };
        adjust(&mut set);
        match self.call(&Request::Set(set), target.pidfd) {
            Ok(Response::Done(_)) => Ok(()),
            other => Err(request_error(other)),
        }
    }

    /// The state of the daemon, as `netnice show --json` prints it. Fails with
    /// [`ClientError::HungUp`] also if the response is of another kind.
    pub(crate) fn show(&mut self) -> Result<ShowDoc, ClientError> {
        match self.call(&Request::Show(Show { target: None }), None)? {
            Response::Shown(doc) => Ok(doc),
            _ => Err(ClientError::HungUp),
        }
    }

    /// The composition of a target on this machine. Fails if the target does not exist, or the
    /// daemon refuses or is not reached.
    pub(crate) fn find(&mut self, target: &str) -> Result<Found, RequestError> {
        let target = target.to_string();
        match self.call(&Request::Find(Find { target }), None) {
            Ok(Response::Found(found)) => Ok(found),
            other => Err(request_error(other)),
        }
    }

    /// Sends a request. Repeats it once if an existing connection fails, because the daemon may
    /// close idle connections.
    fn call(
        &mut self,
        request: &Request,
        pidfd: Option<BorrowedFd<'_>>,
    ) -> Result<Response, ClientError> {
        let was_connected = self.client.is_some();
        match self.call_once(request, pidfd) {
            Err(ClientError::HungUp | ClientError::Io(_)) if was_connected => {
                self.call_once(request, pidfd)
            }
            other => other,
        }
    }

    fn call_once(
        &mut self,
        request: &Request,
        pidfd: Option<BorrowedFd<'_>>,
    ) -> Result<Response, ClientError> {
        let mut client = match self.client.take() {
            Some(client) => client,
            None => Client::connect(&self.dir)?,
        };
        let response = client.call(request, pidfd)?;
        self.client = Some(client);
        Ok(response)
    }
}

/// The limit for a total, as [`Daemon::limit`] takes it. If a packet of 1500 bytes takes longer
/// than a millisecond (below 12 Mbit/s), the limit has a burst of a millisecond. Then the packets
/// of all sessions leave one after another, even after a pause. Two such packets in succession
/// would double the time for which other traffic on a slow wire waits.
pub(crate) fn total_limit(rate: Rate) -> String {
    let text = rate.compact();
    match rate.bits_per_second() < SPACED_BELOW {
        true => format!("{text} burst {SPACING_BURST}"),
        false => text,
    }
}

/// The rate at which a packet of 1500 bytes takes a millisecond, in bit/s.
const SPACED_BELOW: u64 = 12_000_000;

/// How much earlier than scheduled a packet may leave: less than a packet takes, and more than the
/// timer error.
const SPACING_BURST: Nanos = Nanos::from_millis(1);

/// The reason in a response that the request did not expect.
fn request_error(response: Result<Response, ClientError>) -> RequestError {
    let exit = response.as_ref().map_or_else(Exit::from, Exit::from);
    let text = match response {
        Ok(Response::Refused(refused)) => refused.text,
        Ok(Response::Failed(failed)) => failed.text,
        Ok(_) => "the daemon sent a response of an unexpected kind".to_string(),
        Err(error) => error.to_string(),
    };
    RequestError { text, exit }
}
