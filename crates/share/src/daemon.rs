//! The daemon, asked over one connection that is renewed when it breaks.

use std::fmt;
use std::os::fd::BorrowedFd;

use netnice_api::{
    Clear, ClearWhat, Client, ClientError, Exit, Find, Found, Request, Response, RuntimeDir, Set,
    Show, ShowDoc, Until,
};
use netnice_core::units::{Nanos, Rate};

/// A connection to it.
pub(crate) struct Daemon {
    dir: RuntimeDir,
    client: Option<Client>,
    /// Limits are set until this process ends, and then what was there before comes back; none: they last.
    until: Option<Until>,
}

/// Why something was not done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Denial {
    /// In words.
    pub text: String,
    /// How a process ends that can do nothing without it.
    pub exit: Exit,
}

impl fmt::Display for Denial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// A target that is limited, with its process where it is one.
#[derive(Clone, Copy)]
pub(crate) struct Whom<'a> {
    /// The target.
    pub target: &'a str,
    /// A pidfd of its process.
    pub pidfd: Option<BorrowedFd<'a>>,
}

impl Daemon {
    pub(crate) fn connect(dir: &RuntimeDir, until: Option<Until>) -> Result<Daemon, ClientError> {
        let client = Some(Client::connect(dir)?);
        let dir = dir.clone();
        Ok(Daemon { dir, client, until })
    }

    /// Limits a target, in the short form's way; `rate` is text, and other clauses may follow it.
    pub(crate) fn limit(&mut self, whom: Whom<'_>, rate: &str) -> Result<(), Denial> {
        let until = self.until;
        self.set(whom, rate, |set| set.until = until)
    }

    /// Only asks whether it could be limited.
    pub(crate) fn try_limit(&mut self, whom: Whom<'_>, rate: &str) -> Result<(), Denial> {
        self.set(whom, rate, |set| set.dry_run = true)
    }

    /// Brings back what was there before the first limit that was set until an end. `rate` is that of the last.
    pub(crate) fn lift(&mut self, whom: Whom<'_>, rate: &str) -> Result<(), Denial> {
        // Whatever is set for a time gives way, when its time is over, to what was there before the first such change.
        self.set(whom, rate, |set| set.for_ns = Some(1))
    }

    fn set(
        &mut self,
        whom: Whom<'_>,
        rate: &str,
        terms: impl FnOnce(&mut Set),
    ) -> Result<(), Denial> {
        let mut set = Set {
            target: whom.target.to_string(),
            change: Some(format!("both {rate}")),
            short: true,
            ..Set::default()
        };
        terms(&mut set);
        match self.call(&Request::Set(set), whom.pidfd) {
            Ok(Response::Done(_)) => Ok(()),
            other => Err(denial(other)),
        }
    }

    /// Takes back what was set for a target. If that fails, it is shown as it is.
    pub(crate) fn clear(&mut self, target: String) {
        let clear = Request::Clear(Clear {
            what: ClearWhat::Target(target),
            dry_run: false,
            confirm_ns: None,
            for_ns: None,
            until: None,
        });
        let _ = self.call(&clear, None);
    }

    /// The state.
    pub(crate) fn show(&mut self) -> Result<ShowDoc, ClientError> {
        match self.call(&Request::Show(Show { target: None }), None)? {
            Response::Shown(doc) => Ok(doc),
            _ => Err(ClientError::HungUp),
        }
    }

    /// What a target is made of.
    pub(crate) fn find(&mut self, target: &str) -> Result<Found, Denial> {
        let target = target.to_string();
        match self.call(&Request::Find(Find { target }), None) {
            Ok(Response::Found(found)) => Ok(found),
            other => Err(denial(other)),
        }
    }

    /// Asks; once more where the connection was closed meanwhile (an idle one may be).
    fn call(
        &mut self,
        request: &Request,
        about: Option<BorrowedFd<'_>>,
    ) -> Result<Response, ClientError> {
        let had = self.client.is_some();
        match self.call_once(request, about) {
            Err(ClientError::HungUp | ClientError::Io(_)) if had => self.call_once(request, about),
            other => other,
        }
    }

    fn call_once(
        &mut self,
        request: &Request,
        about: Option<BorrowedFd<'_>>,
    ) -> Result<Response, ClientError> {
        let mut client = match self.client.take() {
            Some(client) => client,
            None => Client::connect(&self.dir)?,
        };
        let answer = client.call(request, about)?;
        self.client = Some(client);
        Ok(answer)
    }
}

/// What a total is limited to, as [`Daemon::limit`] takes it. Where a packet takes longer than a millisecond, the packets of
/// all sessions leave one after another, however long some of them were silent before: a slow wire carries others too, and
/// two packets together are twice as long a wait.
pub(crate) fn evenly(rate: Rate) -> String {
    let text = rate.compact();
    match rate.bits_per_second() < EVENLY_BELOW {
        true => format!("{text} burst {EVENLY}"),
        false => text,
    }
}

/// A full packet takes a millisecond at this rate, in bit/s.
const EVENLY_BELOW: u64 = 12_000_000;

/// How early a packet may be: less than it takes, and more than a timer is late.
const EVENLY: Nanos = Nanos::from_millis(1);

/// Why an answer is not the one that was asked for.
fn denial(answer: Result<Response, ClientError>) -> Denial {
    let exit = answer.as_ref().map_or_else(Exit::from, Exit::from);
    let text = match answer {
        Ok(Response::Refused(refused)) => refused.text,
        Ok(Response::Failed(failed)) => failed.text,
        Ok(_) => "the daemon's answer is not understood".to_string(),
        Err(error) => error.to_string(),
    };
    Denial { text, exit }
}
