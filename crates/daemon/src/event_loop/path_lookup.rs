//! Looks up a program's path with the rights of the unprivileged user who named it.
//!
//! The daemon itself may read every path, and a file system may block for long. So a thread with
//! the user's rights alone looks up the path, and the request waits outside the event loop. A
//! thread that waits for a file system cannot be ended. So a user has at most [`MAX_OF_USER`] (4)
//! threads, all users together have at most [`MAX_THREADS`] (64), and the request fails after
//! [`LOOKUP_TIMEOUT`] (1 s).

use std::collections::BTreeMap;
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

/// The look-up threads.
pub(crate) struct PathLookups {
    /// By user: an `Arc` with one reference for each running thread of the user, and one more.
    threads: BTreeMap<u32, Arc<()>>,
    done: mpsc::Sender<(PendingRequest, LookupRights)>,
}

impl PathLookups {
    /// Starts with no thread; the receiver gets the requests whose path was looked up.
    pub(crate) fn new() -> (PathLookups, mpsc::Receiver<(PendingRequest, LookupRights)>) {
        let (done, results) = mpsc::channel(MAX_THREADS);
        let threads = BTreeMap::new();
        (PathLookups { threads, done }, results)
    }

    /// Returns a request that needs no look-up. A request that needs one is refused at once if too
    /// many threads run or the thread cannot be started, after [`LOOKUP_TIMEOUT`] if the file
    /// system does not reply, and else comes through the receiver with the result.
    pub(crate) fn submit(
        &mut self,
        pending: PendingRequest,
    ) -> Option<(PendingRequest, LookupRights)> {
        if pending.peer.privileged {
            return Some((pending, LookupRights::AsRoot));
        }
        let Some(path) = path_of(&pending.request) else {
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
            refuse(
                pending,
                &path,
                "earlier look-ups of yours still wait for a file system",
            );
            return None;
        }
        let held = Arc::clone(of_user);
        let rights = Rights {
            uid: pending.peer.uid,
            groups: pending.peer.groups.clone(),
        };
        let (send_found, found_key) = oneshot::channel();
        let name = path.clone();
        let started = thread::Builder::new()
            .name("looks".to_owned())
            .spawn(move || {
                let _held = held;
                // The request may have timed out.
                let _ = send_found.send(executable::lookup_as(&name, &rights));
            });
        if let Err(error) = started {
            refuse(pending, &path, &error.to_string());
            return None;
        }
        let done = self.done.clone();
        spawn_local(async move {
            let found = match timeout(LOOKUP_TIMEOUT, found_key).await {
                Ok(Ok(found)) => found,
                Ok(Err(_)) | Err(_) => Err(executable::timed_out()),
            };
            let rights = match found {
                Ok(key) => Ok(AppKey {
                    inode: key.inode,
                    dev: key.dev,
                }),
                Err(error) if error.kind() == std::io::ErrorKind::TimedOut => {
                    return refuse(pending, &path, &error.to_string());
                }
                Err(error) => Err(error.to_string()),
            };
            // The receiver is dropped while the daemon stops.
            let _ = done
                .send((pending, LookupRights::AsUser(path, rights)))
                .await;
        });
        None
    }
}

/// The path of the program that a request names, if it names one.
fn path_of(request: &Request) -> Option<String> {
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
        Ok(Target::App(path)) => Some(path.to_string()),
        _ => None,
    }
}

fn refuse(pending: PendingRequest, path: &str, why: &str) {
    let text = format!("cannot look up {path}: {why}");
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
    fn paths_of_programs_are_found_in_requests() {
        let find = |target: &str| {
            let target = target.to_owned();
            path_of(&Request::Find(Find { target }))
        };
        assert_eq!(
            find("app:/usr/bin/rsync").as_deref(),
            Some("/usr/bin/rsync")
        );
        assert_eq!(find("user:ann"), None);
        assert_eq!(find("nonsense"), None);
        let explain = Request::Explain(Explain {
            target: "app:/bin/x".to_owned(),
        });
        assert_eq!(path_of(&explain).as_deref(), Some("/bin/x"));
    }
}
