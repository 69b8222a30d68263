//! Reads and sets the netnice value through the daemon. Fails with the daemon's reason.
//!
//! | argument | target of the limit |
//! |---|---|
//! | a process | `pid:N`: the process and its descendants |
//! | a process group | `name:pgrp-N`: all present members and their descendants, together |
//! | a user | `user:N`: all processes of the user, together |
//!
//! The value is that of the paper: the limit on both directions together (or on sending alone, if
//! the host's policy says so), as the short form `netnice PID RATE` sets it.

use std::os::fd::AsFd;

use netnice_api::{Client, Request, Response, RuntimeDir, Set, Show, ShowDoc};
use netnice_core::target::Target;
use netnice_core::units::Rate;

use crate::fault::Fault;
use crate::whom::{Process, Whom};

/// The change of a claim for a value, as contract text.
pub(crate) fn change(bytes_per_second: i64) -> Result<String, Fault> {
    let bytes = u64::try_from(bytes_per_second).map_err(|_| Fault::Invalid)?;
    if bytes == 0 {
        return Ok("both none".to_string());
    }
    let rate = bytes.checked_mul(8).and_then(Rate::new);
    Ok(format!("both {}", rate.ok_or(Fault::Invalid)?.compact()))
}

/// Sets the value.
pub(crate) fn set(dir: &RuntimeDir, whom: &Whom, change: &str) -> Result<(), Fault> {
    match whom {
        Whom::Process(process) => {
            let target = Target::pid(process.pid).ok_or(Fault::Nobody)?.to_string();
            ask(dir, &asked(target, change), Some(process))
        }
        Whom::User(user) => ask(dir, &asked(format!("user:{user}"), change), None),
        Whom::Group(number, members) => set_group(dir, *number, members, change),
    }
}

/// Reads the value; the smallest one if several apply.
pub(crate) fn get(dir: &RuntimeDir, whom: &Whom) -> Result<i64, Fault> {
    let smallest = match whom {
        Whom::Process(process) => value_of(dir, process)?,
        Whom::User(user) => shown(dir, &format!("user:{user}"))?
            .as_ref()
            .and_then(value),
        Whom::Group(_, members) => {
            let mut smallest = None;
            for member in members {
                let own = match value_of(dir, member) {
                    Err(Fault::Nobody) => None,
                    other => other?,
                };
                smallest = smallest.into_iter().chain(own).min();
            }
            smallest
        }
    };
    Ok(smallest.map_or(0, |bits| i64::try_from(bits / 8).unwrap_or(i64::MAX)))
}

/// Adds every member of a group to one target. Members that have ended are skipped. If members may
/// not be limited, the call limits the others and then fails, as setpriority(2) does.
fn set_group(
    dir: &RuntimeDir,
    number: u32,
    members: &[Process],
    change: &str,
) -> Result<(), Fault> {
    let name = name_of(number);
    if change.ends_with(" none") {
        return match shown(dir, &name)? {
            Some(_) => ask(dir, &asked(name, change), None),
            None => Ok(()),
        };
    }
    let (mut limited, mut refused) = (false, None);
    for member in members {
        let set = Set {
            pid: Some(member.pid),
            ..asked(name.clone(), change)
        };
        match ask(dir, &set, Some(member)) {
            Ok(()) => limited = true,
            Err(Fault::Nobody) => {}
            Err(fault @ (Fault::NotPermitted | Fault::NotAdmitted)) => refused = Some(fault),
            Err(other) => return Err(other),
        }
    }
    match refused {
        Some(fault) => Err(fault),
        None if limited => Ok(()),
        None => Err(Fault::Nobody),
    }
}

fn asked(target: String, change: &str) -> Set {
    Set {
        target,
        change: Some(change.to_string()),
        short: true,
        ..Set::default()
    }
}

fn ask(dir: &RuntimeDir, set: &Set, process: Option<&Process>) -> Result<(), Fault> {
    let fd = process.map(Process::as_fd);
    let response = Client::connect(dir)?.call(&Request::Set(set.clone()), fd)?;
    match response {
        Response::Done(_) => Ok(()),
        _ if process.is_some_and(Process::ended) => Err(Fault::Nobody),
        other => Err(other.into()),
    }
}

/// The effective limit of a process, in bit/s.
fn value_of(dir: &RuntimeDir, process: &Process) -> Result<Option<u64>, Fault> {
    let target = Target::pid(process.pid).ok_or(Fault::Nobody)?.to_string();
    let own = shown(dir, &target);
    // A process with its own target may also be in its group's target, which is then inside its
    // own.
    let has_own = |doc: &ShowDoc| doc.targets.first().is_some_and(|t| t.target == target);
    let inner = match (process.group(), &own) {
        (Some(group), Ok(Some(doc))) if has_own(doc) => shown(dir, &name_of(group)),
        _ => Ok(None),
    };
    // If the process has ended, the result may belong to another process with its number.
    match process.ended() {
        true => Err(Fault::Nobody),
        false => Ok([own?, inner?].iter().flatten().filter_map(value).min()),
    }
}

/// The target of a process group.
fn name_of(group: u32) -> String {
    format!("name:pgrp-{group}")
}

/// The daemon's state of a target; `None` if it has no contract.
fn shown(dir: &RuntimeDir, target: &str) -> Result<Option<ShowDoc>, Fault> {
    let show = Show {
        target: Some(target.to_string()),
    };
    match Client::connect(dir)?.call(&Request::Show(show), None)? {
        Response::Shown(doc) => Ok(Some(doc)),
        Response::Failed(failed) if !failed.bad_usage => Ok(None),
        other => Err(other.into()),
    }
}

/// The smaller of the limits that form the value.
fn value(doc: &ShowDoc) -> Option<u64> {
    let holds = &doc.targets.first()?.effective;
    holds.both.into_iter().chain(holds.up).min()
}

#[cfg(test)]
mod tests {
    use super::change;

    #[test]
    fn a_value_is_bytes_per_second_and_zero_is_none() {
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
