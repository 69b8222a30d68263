//! Reads and sets the netnice value of a [`Subject`], in bytes per second, by requests to the
//! daemon. Fails if the value is out of range, the daemon is not there, refuses, fails or sends no
//! valid response, or if the process, or every process of a group, has ended.
//!
//! | subject | target of the limit |
//! |---|---|
//! | a process | `pid:N`: the process and its descendants |
//! | a process group | `name:pgrp-N`: all present members and their descendants, together |
//! | a user | `user:N`: all processes of the user, together |
//!
//! The value is the one of paper NICE (4.2): the limit on both directions together, or on sending
//! alone if the host's policy sets `input_meter = false`. The short form `netnice PID RATE` sets
//! the same limit. What is read is the smaller of the target's effective limits `both` and `up`.

use std::os::fd::AsFd;

use netnice_api::{Client, Request, Response, RuntimeDir, Set, Show, ShowDoc};
use netnice_core::target::Target;
use netnice_core::units::Rate;

use crate::error::CallError;
use crate::subject::{Process, Subject};

/// The change that sets the limit to `bytes_per_second`, as contract text; 0 removes the limit.
/// Fails if the value is negative, or is no valid [`Rate`].
pub(crate) fn change(bytes_per_second: i64) -> Result<String, CallError> {
    let bytes = u64::try_from(bytes_per_second).map_err(|_| CallError::Invalid)?;
    if bytes == 0 {
        return Ok("both none".to_string());
    }
    let rate = bytes.checked_mul(8).and_then(Rate::new);
    Ok(format!(
        "both {}",
        rate.ok_or(CallError::Invalid)?.compact()
    ))
}

/// Sends the requests that apply `change` to the processes of `subject`. Fails if the daemon is not
/// there or refuses, or if the process, or every process of the group, has ended.
pub(crate) fn set(dir: &RuntimeDir, subject: &Subject, change: &str) -> Result<(), CallError> {
    match subject {
        Subject::Process(process) => {
            let target = Target::pid(process.pid)
                .ok_or(CallError::NoSuchProcess)?
                .to_string();
            call_set(dir, &set_request(target, change), Some(process))
        }
        Subject::User(user) => call_set(dir, &set_request(format!("user:{user}"), change), None),
        Subject::Group(number, members) => set_group(dir, *number, members, change),
    }
}

/// The value in bytes per second, rounded down; 0 without a limit. For a process group, the
/// smallest value of its members that have a limit. Fails if the daemon is not there or refuses, or
/// if the process has ended; members of a group that have ended are skipped.
pub(crate) fn get(dir: &RuntimeDir, subject: &Subject) -> Result<i64, CallError> {
    let smallest = match subject {
        Subject::Process(process) => value_of(dir, process)?,
        Subject::User(user) => show_held(dir, &format!("user:{user}"))?
            .as_ref()
            .and_then(value),
        Subject::Group(_, members) => {
            let mut smallest = None;
            for member in members {
                let own = match value_of(dir, member) {
                    Err(CallError::NoSuchProcess) => None,
                    other => other?,
                };
                smallest = smallest.into_iter().chain(own).min();
            }
            smallest
        }
    };
    Ok(smallest.map_or(0, |bits| i64::try_from(bits / 8).unwrap_or(i64::MAX)))
}

/// Adds every member of a group to one target and limits the target. Members that have ended are
/// skipped. If members may not be limited, the call limits the others and then fails, as
/// setpriority(2) does. Also fails if all members have ended, or if the daemon is not there or
/// refuses the change. If `change` removes the limit, it only changes the target.
fn set_group(
    dir: &RuntimeDir,
    number: u32,
    members: &[Process],
    change: &str,
) -> Result<(), CallError> {
    let name = group_target(number);
    if change.ends_with(" none") {
        return match show_held(dir, &name)? {
            Some(_) => call_set(dir, &set_request(name, change), None),
            None => Ok(()),
        };
    }
    let (mut limited, mut refused) = (false, None);
    for member in members {
        let set = Set {
            pid: Some(member.pid),
            ..set_request(name.clone(), change)
        };
        match call_set(dir, &set, Some(member)) {
            Ok(()) => limited = true,
            Err(CallError::NoSuchProcess) => {}
            Err(fault @ (CallError::NotPermitted | CallError::NotAdmitted)) => {
                refused = Some(fault)
            }
            Err(other) => return Err(other),
        }
    }
    match refused {
        Some(fault) => Err(fault),
        None if limited => Ok(()),
        None => Err(CallError::NoSuchProcess),
    }
}

fn set_request(target: String, change: &str) -> Set {
    Set {
        target,
        change: Some(change.to_string()),
        short: true,
        ..Set::default()
    }
}

fn call_set(dir: &RuntimeDir, set: &Set, process: Option<&Process>) -> Result<(), CallError> {
    let fd = process.map(Process::as_fd);
    let response = Client::connect(dir)?.call(&Request::Set(set.clone()), fd)?;
    match response {
        Response::Done(_) => Ok(()),
        _ if process.is_some_and(Process::ended) => Err(CallError::NoSuchProcess),
        other => Err(other.into()),
    }
}

/// The effective limit of a process, in bit/s; `None` if it has none. Fails if the process has
/// ended.
fn value_of(dir: &RuntimeDir, process: &Process) -> Result<Option<u64>, CallError> {
    let target = Target::pid(process.pid)
        .ok_or(CallError::NoSuchProcess)?
        .to_string();
    let own = show(dir, &target);
    // A process with its own target may also be in its group's target, which is then inside its
    // own.
    let has_own = |doc: &ShowDoc| doc.targets.first().is_some_and(|t| t.target == target);
    let inner = match (process.group(), &own) {
        (Some(group), Ok(doc)) if has_own(doc) => show_held(dir, &group_target(group)),
        _ => Ok(None),
    };
    // If the process has ended, the result may belong to another process with its number.
    match process.ended() {
        true => Err(CallError::NoSuchProcess),
        false => Ok([Some(own?), inner?]
            .iter()
            .flatten()
            .filter_map(value)
            .min()),
    }
}

/// The name of the target for a process group.
fn group_target(group: u32) -> String {
    format!("name:pgrp-{group}")
}

/// The daemon's state of a target other than a process; `None` if the daemon does not hold it. The
/// response to a request for one target is the same if the daemon cannot read the machine, so then
/// the list of all targets decides.
fn show_held(dir: &RuntimeDir, target: &str) -> Result<Option<ShowDoc>, CallError> {
    let mut doc = match call_show(dir, Some(target))? {
        Response::Failed(failed) if !failed.bad_usage => shown(call_show(dir, None)?)?,
        response => return shown(response).map(Some),
    };
    doc.targets.retain(|held| held.target == target);
    Ok((!doc.targets.is_empty()).then_some(doc))
}

/// The daemon's state of a target. For a process, the state of the target that contains it, without
/// targets if none does.
fn show(dir: &RuntimeDir, target: &str) -> Result<ShowDoc, CallError> {
    shown(call_show(dir, Some(target))?)
}

fn call_show(dir: &RuntimeDir, target: Option<&str>) -> Result<Response, CallError> {
    let target = target.map(str::to_string);
    Ok(Client::connect(dir)?.call(&Request::Show(Show { target }), None)?)
}

fn shown(response: Response) -> Result<ShowDoc, CallError> {
    match response {
        Response::Shown(doc) => Ok(doc),
        other => Err(other.into()),
    }
}

/// The smaller of a target's effective limits `both` and `up`, in bit/s; `None` if it has neither.
fn value(doc: &ShowDoc) -> Option<u64> {
    let effective = &doc.targets.first()?.effective;
    effective.both.into_iter().chain(effective.up).min()
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixListener;
    use std::path::PathBuf;
    use std::thread;

    use netnice_api::frame::{Decoder, LONGEST_REQUEST};
    use netnice_api::{Response, RuntimeDir, ShowDoc, decode_client_call, encode_response};

    use super::{CallError, Request, Subject, change, get};

    /// Calls [`get`] for PRIO_PROCESS or PRIO_USER of this process, with a daemon that gives these
    /// responses, one for each connection.
    fn value_from(which: libc::c_int, responses: Vec<Response>) -> Result<i64, CallError> {
        let name = format!(
            "netnice-value-{}-{which}-{}",
            std::process::id(),
            responses.len()
        );
        let folder: PathBuf = std::env::temp_dir().join(name);
        std::fs::create_dir(&folder).expect("a folder");
        let dir = RuntimeDir::choose(Some(folder.clone()), None);
        let listener = UnixListener::bind(dir.socket()).expect("a socket");
        let daemon = thread::spawn(move || {
            for response in responses {
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
                let call = decode_client_call(&body).expect("a request");
                assert!(matches!(call.request, Request::Show(_)));
                let response = encode_response(&response).expect("it fits");
                stream.write_all(&response).expect("a response");
            }
        });
        let subject = Subject::find(which, 0).expect("this process");
        let value = get(&dir, &subject);
        daemon.join().expect("all responses are given");
        std::fs::remove_dir_all(&folder).expect("it was ours");
        value
    }

    #[test]
    fn a_daemon_that_cannot_read_the_machine_is_an_error() {
        let failed = || Response::failed("cannot read the counters");
        let nothing = || Response::Shown(ShowDoc::default());
        let errno = |value: Result<i64, CallError>| value.map_err(|error| error.errno());
        let process = |responses| errno(value_from(libc::PRIO_PROCESS as _, responses));
        assert_eq!(process(vec![failed()]), Err(libc::EIO));
        assert_eq!(process(vec![nothing()]), Ok(0));
        let user = |responses| errno(value_from(libc::PRIO_USER as _, responses));
        assert_eq!(user(vec![failed(), failed()]), Err(libc::EIO));
        assert_eq!(user(vec![failed(), nothing()]), Ok(0), "it is not held");
    }

    #[test]
    fn a_value_is_bytes_per_second_and_zero_removes_the_limit() {
        let text = |value| change(value).ok();
        assert_eq!(text(128 * 1024).as_deref(), Some("both 1048576bit"));
        assert_eq!(text(0).as_deref(), Some("both none"));
        assert_eq!(text(125).as_deref(), Some("both 1kbit"));
        assert_eq!(text(125_000_000_000).as_deref(), Some("both 1000gbit"));
        for wrong in [-1, 124, 125_000_000_001, i64::MAX, i64::MIN] {
            assert_eq!(text(wrong), None, "{wrong}");
        }
    }
}
