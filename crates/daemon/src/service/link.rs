//! `netnice link`: manages a link, changes its capacity, or stops managing it. Fails if the request
//! is invalid, the peer is not privileged, there is no such interface, no rate is named and the
//! interface's driver reports none, a direction or a link that shall no longer be managed has
//! promises or is not managed, a slice would exceed a limit because the link becomes faster, the
//! kernel refuses the classes, or the state file cannot be written. If it fails, nothing has
//! changed. If the link becomes too slow for the promises on it, targets become degraded, and the
//! answer names them. Estimated rates are in `estimated`, and the classes of the link's overbooked
//! server in `classes`.

pub(super) mod classes;
mod estimated;

use std::net::IpAddr;

use netnice_api::{Done, LinkChange};
use netnice_core::contract::{Direction, IfName};
use netnice_core::link::{Capacity, CapacitySource, Link};
use netnice_core::units::{Bytes, Nanos, Rate};

use crate::authority;
use crate::clock::Now;
use crate::error::RequestError;
use crate::host::{Host, Inventory};
use crate::ledger::describe_link;
use crate::ledger::rollbacks::Undo;
use crate::peer::Peer;
use crate::reconcile::{ChangeDuration, Reconciler};
use crate::user_names::user_name;

/// Carries out a change of a link. In a dry run, only describes what would be done.
///
/// # Errors
/// For the reasons in the module's documentation.
pub(super) fn change_link<H: Host>(
    reconciler: &mut Reconciler<H>,
    peer: &Peer,
    change: &LinkChange,
    now: Now,
) -> Result<Done, RequestError> {
    authority::may_manage(peer, "managing a link")?;
    let name: IfName = change.iface.parse()?;
    let duration = ChangeDuration {
        confirm_ns: change.confirm_ns,
        for_ns: change.for_ns,
        until: change.until,
    };
    reconciler.check_duration(duration)?;
    let mut draft = reconciler.draft();
    let before = draft.ledger.link(name.as_str()).cloned();
    let message = match change.unmanage {
        true => {
            draft.ledger.unmanage(&name)?;
            format!("{name} is no longer managed")
        }
        false => {
            let (link, reflectors) = wanted_link(reconciler, &name, change)?;
            let present = before.as_ref().map(|before| before.classes);
            let classes = classes::changed(present.unwrap_or_default(), change)?;
            let mut message = describe_link(&link);
            if change.names_classes() {
                message.push_str(&format!("; {classes}"));
            }
            if !reflectors.is_empty() {
                let hosts: Vec<String> = reflectors.iter().map(IpAddr::to_string).collect();
                message.push_str(&format!("; probes go to {}", hosts.join(", ")));
            }
            draft.ledger.manage_or_degrade(link, peer.uid)?;
            draft.ledger.set_reflectors(&name, reflectors);
            draft.ledger.set_classes(&name, classes);
            message
        }
    };
    let first = draft.rollbacks.forget_link(&name);
    let undo = Undo::Link {
        name: name.clone(),
        before: first.unwrap_or(before.map(Box::new)),
    };
    let confirm = draft.add_rollback(duration, peer, undo, now);
    if change.dry_run {
        return Ok(Done {
            plan: Some(reconciler.preview(&draft)),
            messages: vec![message],
            ..Done::default()
        });
    }
    // The change may remove the cause of the fault, so the link is tried again.
    let was_broken = reconciler.deviations.broken.remove(&name);
    let ledger = reconciler.books.ledger.clone();
    if let Err(error) = reconciler.install(draft) {
        reconciler
            .deviations
            .broken
            .extend(was_broken.map(|why| (name, why)));
        return Err(error);
    }
    let who = user_name(peer.uid);
    reconciler.journal.note(now, format!("{who}: {message}"));
    let guarantees = reconciler.note_guarantees(&ledger, now);
    let messages = [message].into_iter().chain(guarantees);
    Ok(Done {
        messages: messages.chain(duration.remarks()).collect(),
        confirm,
        ..Done::default()
    })
}

/// The link after the change. What the change does not name stays as it is. A change without rates
/// sets both rates to the speed that the interface's driver reports, unless it only sets the
/// overhead, the horizon or the classes of a managed link. The second result are the hosts that are
/// probed.
fn wanted_link<H: Host>(
    reconciler: &mut Reconciler<H>,
    name: &IfName,
    change: &LinkChange,
) -> Result<(Link, Vec<IpAddr>), RequestError> {
    let interfaces = reconciler.host.interfaces()?;
    if !interfaces.iter().any(|i| i.name == name.as_str()) {
        return Err(netnice_kernel::KernelError::NoInterface(name.to_string()).into());
    }
    let overhead = match change.overhead {
        Some(bytes) if bytes > Link::MAX_OVERHEAD.0 => {
            return Err(RequestError::BadUsage(format!(
                "an overhead of {bytes} bytes per packet is more than the {} allowed; Ethernet's \
                 is 24",
                Link::MAX_OVERHEAD.0
            )));
        }
        other => other.map(Bytes),
    };
    let old = reconciler.books.ledger.link(name.as_str()).cloned();
    let mut link = old.as_ref().map(|old| old.link.clone()).unwrap_or(Link {
        name: name.clone(),
        up: None,
        down: None,
        overhead: Bytes(0),
        horizon: Nanos(0),
    });
    link.overhead = overhead.unwrap_or(link.overhead);
    link.horizon = horizon(change)?.unwrap_or(link.horizon);
    link.up = estimated::changed(change, Direction::Up, link.up)?;
    link.down = estimated::changed(change, Direction::Down, link.down)?;
    let asks_driver = change.rate.is_none()
        && change.down_rate.is_none()
        && estimated::is_plain(change)
        && (old.is_none()
            || !(change.overhead.is_some()
                || change.horizon_ns.is_some()
                || change.names_classes()));
    if asks_driver {
        let reported = reported_capacity(&mut reconciler.host, name)?;
        (link.up, link.down) = (Some(reported), Some(reported));
    }
    if Direction::ALL.iter().all(|d| link.usable(*d).is_none()) {
        return Err(RequestError::BadUsage(format!(
            "{name} would have no rate in either direction: netnice link {name} --unmanage gives \
             it back"
        )));
    }
    let machine = &mut reconciler.host;
    let reflectors = estimated::reflectors(machine, change, &link, old.as_ref())?;
    Ok((link, reflectors))
}

/// The requested horizon. Fails if it is above [`Link::MAX_HORIZON`].
fn horizon(change: &LinkChange) -> Result<Option<Nanos>, RequestError> {
    match change.horizon_ns.map(Nanos) {
        Some(time) if time > Link::MAX_HORIZON => Err(RequestError::BadUsage(format!(
            "a horizon of {time} is more than the {} allowed",
            Link::MAX_HORIZON
        ))),
        time => Ok(time),
    }
}

/// The speed that an interface's driver reports. Fails if the driver reports none.
pub(super) fn reported_capacity(
    machine: &mut impl Inventory,
    name: &IfName,
) -> Result<Capacity, RequestError> {
    let rate = machine.speed(name.as_str())?.ok_or_else(|| {
        RequestError::Failed(format!(
            "the driver of {name} reports no speed: set what it carries with netnice link {name} \
             --rate R"
        ))
    })?;
    Ok(Capacity {
        rate,
        source: CapacitySource::Driver,
    })
}

/// Parses a rate that the operator gives; `None` for `none` and `0`: the direction is not managed.
///
/// # Errors
/// If the text is not a rate.
pub(super) fn capacity(text: &str) -> Result<Option<Capacity>, RequestError> {
    if matches!(text, "none" | "0") {
        return Ok(None);
    }
    let rate: Rate = text.parse()?;
    Ok(Some(Capacity {
        rate,
        source: CapacitySource::Operator,
    }))
}
