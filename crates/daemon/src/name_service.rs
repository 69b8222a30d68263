//! Asks the name service (nsswitch.conf(5)) for users and groups that [`crate::name_files`] does
//! not find.
//!
//! An answer may take minutes, for example while a directory server cannot be reached. So threads
//! ask for it: the event loop waits for at most [`TIMEOUT`] (one second), or uses the last answer.
//! The start of the daemon waits for at most 15 s. A call fails if the name service reports an
//! error or does not answer in time, if an earlier call has no answer yet, or if no thread starts.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::unistd::User;

/// The user of this name; `None` if there is none. An answer of the last minute counts, also one
/// that came too late for an earlier call.
///
/// # Errors
/// If the name service reports an error, or does not answer within [`TIMEOUT`]; before
/// [`begin_to_serve`], within [`START_TIMEOUT`]. At once if it has not answered an earlier call, or
/// if no thread can be started.
pub(crate) fn user(name: &str) -> io::Result<Option<User>> {
    static IS_ASKED: AtomicBool = AtomicBool::new(false);
    static ANSWERS: Mutex<BTreeMap<String, (Instant, Option<User>)>> = Mutex::new(BTreeMap::new());
    let answers = || ANSWERS.lock().unwrap_or_else(PoisonError::into_inner);
    answers().retain(|_, (at, _)| at.elapsed() < LIFETIME);
    if let Some((_, answer)) = answers().get(name) {
        return Ok(answer.clone());
    }
    let limit = match SERVES.load(Ordering::Acquire) {
        true => TIMEOUT,
        false => START_TIMEOUT,
    };
    let name = name.to_owned();
    ask_within(limit, &IS_ASKED, move || {
        let answer = wait_for_user(&name)?;
        let mut answers = ANSWERS.lock().unwrap_or_else(PoisonError::into_inner);
        answers.insert(name, (Instant::now(), answer.clone()));
        Ok(answer)
    })
}

/// Records that the daemon serves requests now, which must not wait for long.
pub(crate) fn begin_to_serve() {
    SERVES.store(true, Ordering::Release);
}

static SERVES: AtomicBool = AtomicBool::new(false);

/// As [`user`], but waits without limit: only for threads that serve no other purpose.
///
/// # Errors
/// If the name service reports an error.
pub(crate) fn wait_for_user(name: &str) -> io::Result<Option<User>> {
    match User::from_name(name) {
        // Some services report so that there is none; see getpwnam(3).
        Err(Errno::ENOENT | Errno::ESRCH | Errno::EBADF | Errno::EPERM) => Ok(None),
        found => Ok(found?),
    }
}

/// The error for a name service that does not answer.
pub(crate) fn timed_out() -> io::Error {
    let text = "the name service did not answer in time".to_owned();
    io::Error::new(io::ErrorKind::TimedOut, text)
}

/// The answer of a thread to `ask`. `is_asked` is true until the thread has it.
fn ask_within<T: Send + 'static>(
    limit: Duration,
    is_asked: &'static AtomicBool,
    ask: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    if is_asked.swap(true, Ordering::AcqRel) {
        return Err(timed_out());
    }
    let (send, answer) = mpsc::channel();
    let started = start_thread(move || {
        let answer = ask();
        is_asked.store(false, Ordering::Release);
        // The caller may have stopped waiting.
        let _ = send.send(answer);
    });
    if let Err(error) = started {
        is_asked.store(false, Ordering::Release);
        return Err(error);
    }
    answer
        .recv_timeout(limit)
        .unwrap_or_else(|_| Err(timed_out()))
}

/// The last answer to one question.
pub(crate) struct LastAnswer<T>(Mutex<Answered<T>>);

struct Answered<T> {
    last: Option<T>,
    at: Option<Instant>,
    is_asked: bool,
}

impl<T: Copy + Send> LastAnswer<T> {
    /// No answer yet.
    pub(crate) const fn new() -> LastAnswer<T> {
        LastAnswer(Mutex::new(Answered {
            last: None,
            at: None,
            is_asked: false,
        }))
    }

    /// The last answer; `None` if there is none so far or it was that nothing is found. Never
    /// waits. If the last answer is older than `lifetime`, a thread asks again; after an error the
    /// former answer stays.
    pub(crate) fn get(
        &'static self,
        lifetime: Duration,
        ask: impl FnOnce() -> io::Result<Option<T>> + Send + 'static,
    ) -> Option<T> {
        let mut answered = self.lock();
        let is_fresh = answered.at.is_some_and(|at| at.elapsed() < lifetime);
        if !is_fresh && !answered.is_asked {
            let started = start_thread(move || {
                let answer = ask();
                let mut answered = self.lock();
                match answer {
                    Ok(answer) => answered.last = answer,
                    Err(error) => tracing::debug!(%error, "the name service failed"),
                }
                answered.at = Some(Instant::now());
                answered.is_asked = false;
            });
            answered.is_asked = started.is_ok();
        }
        answered.last
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Answered<T>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn start_thread(run: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let thread = thread::Builder::new().name("names".to_owned());
    thread.spawn(run).map(drop)
}

/// The longest time that the event loop waits for an answer.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(1);

/// The longest time that the start of the daemon waits for an answer: a directory server may be
/// slow after a boot, and a policy with an unknown user is not in force.
const START_TIMEOUT: Duration = Duration::from_secs(15);

/// How long an answer counts.
const LIFETIME: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_service_that_does_not_answer_is_waited_for_once() {
        static IS_ASKED: AtomicBool = AtomicBool::new(false);
        let limit = Duration::from_millis(50);
        let (answer, wait) = mpsc::channel();
        let slow = ask_within(limit, &IS_ASKED, move || Ok(wait.recv().ok()));
        assert_eq!(slow.expect_err("no answer").kind(), io::ErrorKind::TimedOut);
        let at_once = ask_within(Duration::MAX, &IS_ASKED, || Ok(2));
        at_once.expect_err("the earlier call has no answer yet");
        answer.send(1).expect("the thread waits");
        while IS_ASKED.load(Ordering::Acquire) {
            thread::yield_now();
        }
        let next = ask_within(Duration::MAX, &IS_ASKED, || Ok(3));
        assert_eq!(next.expect("an answer"), 3);
    }

    #[test]
    fn the_last_answer_is_returned_until_the_next_one_comes() {
        static ANSWER: LastAnswer<u32> = LastAnswer::new();
        let (answer, wait) = mpsc::channel();
        let get = |lifetime, ask| ANSWER.get(lifetime, ask);
        let never = || -> io::Result<Option<u32>> { panic!("it is asked already") };
        let first = ANSWER.get(Duration::MAX, move || Ok(wait.recv().ok()));
        assert_eq!(first, None, "no answer yet");
        assert_eq!(get(Duration::ZERO, never), None);
        answer.send(100).expect("the thread waits");
        while ANSWER.lock().is_asked {
            thread::yield_now();
        }
        assert_eq!(get(Duration::MAX, never), Some(100));
        let failed = || Err(io::ErrorKind::NotConnected.into());
        ANSWER.get(Duration::ZERO, failed);
        while ANSWER.lock().is_asked {
            thread::yield_now();
        }
        assert_eq!(get(Duration::MAX, never), Some(100), "after an error");
    }
}
