//! Looks up what an unprivileged user's request names, if that may take long: the path of an
//! executable, or a user that only the name service has.
//!
//! The daemon itself may read every path, and a file system or the name service may block for long.
//! So a thread looks it up, a path with the user's rights only, and the request waits outside the
//! event loop. A thread that waits cannot be ended, so the number of threads is limited:
//! [`MAX_OF_USER`] (4) for a user, and [`MAX_THREADS`] (64) for all users together. A request that
//! would need one more is refused. A request without a result fails after [`LOOKUP_TIMEOUT`] (one
//! second), and one for which the name service reports an error fails at once.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::thread;

use netnice_api::{ClearWhat, Request, Response};
use netnice_core::target::Target;
use netnice_kernel::executable::{self, LOOKUP_TIMEOUT, Rights};
use tokio::sync::{mpsc, oneshot};
use tokio::task::spawn_local;
use tokio::time::timeout;

use crate::host::LookupRights;
use crate::ledger::AppKey;
use crate::server::PendingRequest;
use crate::{name_files, name_service};

/// The look-up threads.
pub(crate) struct PathLookups {
    /// By user: an `Arc` with one reference for each running thread of the user, and one more.
    threads: BTreeMap<u32, Arc<()>>,
    done: mpsc::Sender<(PendingRequest, LookupRights)>,
}

impl PathLookups {
    /// Starts with no thread; the receiver gets the requests for which a look-up has ended.
    pub(crate) fn new() -> (PathLookups, mpsc::Receiver<(PendingRequest, LookupRights)>) {
        let (done, results) = mpsc::channel(MAX_THREADS);
        let threads = BTreeMap::new();
        (PathLookups { threads, done }, results)
    }

    /// Returns a request that needs no look-up, with the rights for it. Returns `None` for a
    /// request that needs one: it is refused at once if too many threads run or the thread cannot
    /// be started, it fails after [`LOOKUP_TIMEOUT`] without a reply, and else it comes through the
    /// receiver with the result.
    pub(crate) fn submit(
        &mut self,
        pending: PendingRequest,
    ) -> Option<(PendingRequest, LookupRights)> {
        if pending.peer.privileged {
            return Some((pending, LookupRights::AsRoot));
        }
        let Some(sought) = sought_by(&pending.request) else {
            return Some((pending, LookupRights::NoLookup));
        };
        self.threads
            .retain(|_, of_user| Arc::strong_count(of_user) > 1);
        let all: usize = self
            .threads
            .values()
            .map(|user| Arc::strong_count(user) - 1)
            .sum();
        let of_user = self.threads.entry(pending.peer.uid).or_default();
        if Arc::strong_count(of_user) > MAX_OF_USER || all >= MAX_THREADS {
            let why = "earlier look-ups of yours still wait for an answer";
            refuse(pending, &sought, why);
            return None;
        }
        let held = Arc::clone(of_user);
        let rights = Rights {
            uid: pending.peer.uid,
            groups: pending.peer.groups.clone(),
        };
        let (send_found, found) = oneshot::channel();
        let named = sought.clone();
        let started = thread::Builder::new()
            .name("looks".to_owned())
            .spawn(move || {
                let _held = held;
                // The request may have timed out.
                let _ = send_found.send(named.look_up(&rights));
            });
        if let Err(error) = started {
            refuse(pending, &sought, &error.to_string());
            return None;
        }
        let done = self.done.clone();
        spawn_local(async move {
            let found = match timeout(LOOKUP_TIMEOUT, found).await {
                Ok(Ok(found)) => found,
                Ok(Err(_)) | Err(_) => Err(sought.timed_out()),
            };
            match found {
                // The receiver is dropped while the daemon stops.
                Ok(rights) => drop(done.send((pending, rights)).await),
                Err(error) => refuse(pending, &sought, &error.to_string()),
            }
        });
        None
    }
}

/// What a request names that is to be looked up.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Sought {
    /// The path of an executable.
    Path(String),
    /// The name of a user who is not in `/etc/passwd`.
    User(String),
}

impl Sought {
    /// Looks it up, a path with these rights. May block without limit; the calling thread serves no
    /// other purpose.
    ///
    /// # Errors
    /// If the file system or the name service does not reply. Other errors of a path are part of
    /// the result.
    fn look_up(self, rights: &Rights) -> io::Result<LookupRights> {
        match self {
            Sought::Path(path) => {
                let found = match executable::lookup_as(&path, rights) {
                    Ok(key) => Ok(AppKey {
                        inode: key.inode,
                        dev: key.dev,
                    }),
                    Err(error) if error.kind() == io::ErrorKind::TimedOut => return Err(error),
                    Err(error) => Err(error.to_string()),
                };
                Ok(LookupRights::AsUser(path, found))
            }
            Sought::User(name) => {
                let found = name_service::wait_for_user(&name)?;
                let uid = found.map(|user| user.uid.as_raw());
                Ok(LookupRights::NamedUser(name, uid))
            }
        }
    }

    fn timed_out(&self) -> io::Error {
        match self {
            Sought::Path(_) => executable::timed_out(),
            Sought::User(_) => name_service::timed_out(),
        }
    }
}

impl fmt::Display for Sought {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Sought::Path(path) => f.write_str(path),
            Sought::User(name) => write!(f, "user {name}"),
        }
    }
}

/// What is to be looked up for a request; `None` if nothing is.
fn sought_by(request: &Request) -> Option<Sought> {
    let text = match request {
        Request::Clear(clear) => match &clear.what {
            ClearWhat::Target(target) => target,
            ClearWhat::All => return None,
        },
        Request::Show(show) => show.target.as_ref()?,
        Request::Connections(of) => &of.target,
        Request::History(of) => of.target.as_ref()?,
        Request::Explain(explain) => &explain.target,
        Request::Find(find) => &find.target,
        _ => return None,
    };
    match text.parse() {
        Ok(Target::App(path)) => Some(Sought::Path(path.to_string())),
        Ok(Target::User(name)) if name_files::number_of_user(name.as_str()).is_none() => {
            Some(Sought::User(name.as_str().to_owned()))
        }
        _ => None,
    }
}

fn refuse(pending: PendingRequest, sought: &Sought, why: &str) {
    let text = format!("cannot look up {sought}: {why}");
    // The send fails if the peer has closed its connection.
    let _ = pending.reply.send(Response::failed(text).into());
}

/// Largest number of concurrent look-up threads of one user.
const MAX_OF_USER: usize = 4;
/// Largest number of concurrent look-up threads.
const MAX_THREADS: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;
    use netnice_api::{Explain, Find};

    #[test]
    fn paths_of_programs_and_names_of_users_are_found_in_requests() {
        let find = |target: &str| {
            let target = target.to_owned();
            sought_by(&Request::Find(Find { target }))
        };
        let path = |path: &str| Some(Sought::Path(path.to_owned()));
        assert_eq!(find("app:/usr/bin/rsync"), path("/usr/bin/rsync"));
        // No user is in the file in unit tests.
        assert_eq!(find("user:ann"), Some(Sought::User("ann".to_owned())));
        assert_eq!(find("user:1000"), None, "a number needs no look-up");
        assert_eq!(find("nonsense"), None);
        let explain = Request::Explain(Explain {
            target: "app:/bin/x".to_owned(),
        });
        assert_eq!(sought_by(&explain), path("/bin/x"));
    }
}
