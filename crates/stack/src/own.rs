//! What the calling process has on this host: its contract ([`change`]), and parts of its processor
//! time for threads that it names ([`reserve`]). The calls are those of `netnice set` for the own
//! process, and need no flow. They connect to the daemon, wait for its response, at most
//! [`Client::TIMEOUT`], and keep nothing.
//!
//! A program that transmits from one thread and computes in others reserves processor time for all,
//! and gives the transmitting thread its part of each period exactly (SCHED_DEADLINE, sched(7)):
//!
//! ```no_run
//! use std::time::Duration;
//!
//! use netnice_stack::{RuntimeDir, StackError, own};
//!
//! fn transmit(dir: &RuntimeDir) -> Result<(), StackError> {
//!     // Root or the group netnice may do this, also from outside: netnice run --cpu 6ms/10ms …
//!     own::change(dir, "cpu 6ms/10ms")?;
//!     let sender = std::thread::spawn({
//!         let dir = dir.clone();
//!         move || {
//!             own::reserve(&dir, None, Some(Duration::from_millis(2)))?;
//!             // … sends, with 2 ms of processor time in every 10 ms.
//!             own::reserve(&dir, None, None)
//!         }
//!     });
//!     // All other threads share the other 4 ms.
//!     sender.join().expect("it does not panic")
//! }
//! ```
//! The rules are in `docs/reference/contracts.md`, "Parts of a reservation for threads".

use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use netnice_api::{Client, Done, Request, Reserve, Response, RuntimeDir, Set};
use rustix::process::{PidfdFlags, getpid, pidfd_open};

use crate::control::unexpected_response;
use crate::error::StackError;

/// Changes the contract of the calling process, with the same meaning and rights as `netnice set
/// pid:N`: `change` is contract text, for example `cpu 2ms/10ms` or `up 4mbit`, and the clauses
/// that it does not name stay. Returns the contract that is in force then.
///
/// # Errors
/// [`StackError::Refused`] if the process may not name a clause (`cpu` is for root and the group
/// `netnice`), or the result does not fit; [`StackError::Failed`] if the text is no valid change or
/// the daemon cannot carry it out; [`StackError::Daemon`] without a daemon.
pub fn change(dir: &RuntimeDir, change: &str) -> Result<String, StackError> {
    let set = Set {
        target: format!("pid:{}", std::process::id()),
        change: Some(change.to_owned()),
        ..Set::default()
    };
    let done = call(dir, &Request::Set(set), "set")?;
    Ok(done.effective.unwrap_or_default())
}

/// Gives a thread of the calling process a part of the processor time that is reserved for it:
/// `time` in each period of the reservation, exactly, in place of the part that it has. `None`: the
/// thread gives its part back. `thread` is a thread id (gettid(2)); `None`: the calling thread.
///
/// A part ends with its thread, with the reservation, and if the thread's scheduling policy is
/// changed by others. A thread that a thread with a part starts has none.
///
/// # Errors
/// [`StackError::Refused`] if no processor time is reserved for the process, the reservation has
/// extra, or the part does not fit beside those of other threads; if the thread is not one of the
/// process, has a policy of its own, or the time is for processes of several users; or if the
/// kernel admits no more. [`StackError::Failed`] if the time is below 10 µs, and
/// [`StackError::Daemon`] without a daemon.
pub fn reserve(
    dir: &RuntimeDir,
    thread: Option<u32>,
    time: Option<Duration>,
) -> Result<(), StackError> {
    let own = || {
        rustix::thread::gettid()
            .as_raw_nonzero()
            .get()
            .unsigned_abs()
    };
    let reserve = Reserve {
        thread: thread.unwrap_or_else(own),
        time_ns: time.map(|time| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)),
    };
    call(dir, &Request::Reserve(reserve), "reserve").map(drop)
}

/// Sends a request about the calling process. `name` names the request in an error.
fn call(dir: &RuntimeDir, request: &Request, name: &'static str) -> Result<Done, StackError> {
    let pidfd = pidfd_open(getpid(), PidfdFlags::empty()).map_err(io::Error::from)?;
    match Client::connect(dir)?.call(request, Some(pidfd.as_fd()))? {
        Response::Done(done) => Ok(done),
        other => Err(unexpected_response(other, name)),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixListener;
    use std::thread;

    use netnice_api::frame::{Decoder, LONGEST_REQUEST};
    use netnice_api::{ClientCall, RefusedBy, decode_client_call, encode_response};

    use super::*;

    /// What `work` sends to a daemon that gives this response, and its result.
    fn sent<T>(
        name: &str,
        response: Response,
        work: impl FnOnce(&RuntimeDir) -> T,
    ) -> (ClientCall, T) {
        let name = format!("netnice-own-{}-{name}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir(&folder).expect("a folder");
        let dir = RuntimeDir::choose(Some(folder.clone()), None);
        let listener = UnixListener::bind(dir.socket()).expect("a socket");
        let daemon = thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("a client");
            let mut decoder = Decoder::new(LONGEST_REQUEST);
            let mut byte = [0];
            let body = loop {
                if let Some(body) = decoder.poll().expect("a frame") {
                    break body;
                }
                stream.read_exact(&mut byte).expect("a request");
                decoder.push(&byte);
            };
            let response = encode_response(&response).expect("it fits");
            stream.write_all(&response).expect("a response");
            decode_client_call(&body).expect("a request")
        });
        let result = work(&dir);
        let call = daemon.join().expect("a request came");
        std::fs::remove_dir_all(&folder).expect("it was ours");
        (call, result)
    }

    #[test]
    fn the_own_contract_is_changed_and_the_one_in_force_returned() {
        let done = Response::Done(Done {
            effective: Some("cpu 2ms/10ms up 4mbit".to_owned()),
            ..Done::default()
        });
        let (call, result) = sent("change", done, |dir| change(dir, "cpu 2ms/10ms"));
        assert_eq!(result.expect("done"), "cpu 2ms/10ms up 4mbit");
        let pid = std::process::id();
        assert_eq!(call.process.map(|process| process.pid), Some(pid));
        let Request::Set(set) = call.request else {
            panic!("{:?}", call.request);
        };
        assert_eq!(set.target, format!("pid:{pid}"));
        assert_eq!(set.change.as_deref(), Some("cpu 2ms/10ms"));
    }

    #[test]
    fn a_part_is_requested_for_the_calling_thread_or_a_named_one() {
        let done = || Response::Done(Done::default());
        let time = Some(Duration::from_millis(2));
        let (call, result) = sent("named", done(), |dir| reserve(dir, Some(7), time));
        result.expect("done");
        assert_eq!(
            call.request,
            Request::Reserve(Reserve {
                thread: 7,
                time_ns: Some(2_000_000),
            })
        );
        assert_eq!(call.process.map(|one| one.pid), Some(std::process::id()));
        let (call, result) = sent("calling", done(), |dir| reserve(dir, None, None));
        result.expect("done");
        let Request::Reserve(Reserve {
            thread,
            time_ns: None,
        }) = call.request
        else {
            panic!("{:?}", call.request);
        };
        assert!(std::fs::exists(format!("/proc/self/task/{thread}")).expect("/proc"));
        assert_ne!(thread, std::process::id(), "a test is not the first thread");
    }

    #[test]
    fn a_refusal_has_the_text_of_the_daemon() {
        let refused = Response::not_admitted("refused: no".to_owned());
        let (_, result) = sent("refused", refused, |dir| reserve(dir, None, None));
        let Err(StackError::Refused { by, text }) = result else {
            panic!("{result:?}");
        };
        assert_eq!((by, &*text), (RefusedBy::Admission, "refused: no"));
    }
}
