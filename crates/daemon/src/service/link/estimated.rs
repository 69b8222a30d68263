//! The part of a `netnice link` request that is about estimated rates: the bounds, and the hosts
//! that are probed. Fails if a bound is missing, is no rate or is in the wrong order, if bounds or
//! hosts are given for a link without an estimated rate, if a host is no address that can be
//! probed, or if the link has no estimate yet, no host is named and the hosts that are used by
//! default are not behind the interface.

use std::net::IpAddr;

use netnice_api::LinkChange;
use netnice_core::contract::Direction;
use netnice_core::link::{Capacity, CapacitySource, EstimateBounds, Link};
use netnice_core::units::Rate;

use super::capacity;
use crate::error::RequestError;
use crate::estimate::{DEFAULT_REFLECTORS, MAX_REFLECTORS};
use crate::host::Inventory;
use crate::ledger::ManagedLink;

/// The part of a request for one direction.
struct Asked<'a> {
    rate: Option<&'a str>,
    min: Option<&'a str>,
    max: Option<&'a str>,
    /// The options of the command line, for messages.
    options: [&'static str; 3],
}

impl<'a> Asked<'a> {
    fn of(change: &'a LinkChange, direction: Direction) -> Asked<'a> {
        let (rate, min, max, options) = match direction {
            Direction::Up => (
                &change.rate,
                &change.min,
                &change.max,
                ["--rate", "--min", "--max"],
            ),
            Direction::Down => (
                &change.down_rate,
                &change.min_down,
                &change.max_down,
                ["--down-rate", "--min-down", "--max-down"],
            ),
        };
        Asked {
            rate: rate.as_deref(),
            min: min.as_deref(),
            max: max.as_deref(),
            options,
        }
    }
}

/// True if the request has no option for estimates.
pub(super) fn is_plain(change: &LinkChange) -> bool {
    let bounds = [&change.min, &change.max, &change.min_down, &change.max_down];
    bounds.iter().all(|bound| bound.is_none()) && change.probes.is_none()
}

/// The capacity of a direction after the change; `old` is the present one.
///
/// # Errors
/// If a text is no rate, a bound is missing or above the other one, or bounds are given for a rate
/// that is no estimate.
pub(super) fn changed(
    change: &LinkChange,
    direction: Direction,
    old: Option<Capacity>,
) -> Result<Option<Capacity>, RequestError> {
    let asked = Asked::of(change, direction);
    let [rate, min, max] = asked.options;
    let present = old.and_then(|old| old.bounds());
    let names_bound = asked.min.is_some() || asked.max.is_some();
    let is_estimated = match asked.rate {
        Some(text) => text == LinkChange::AUTO,
        None => names_bound && present.is_some(),
    };
    if !is_estimated {
        if names_bound {
            return Err(RequestError::BadUsage(format!(
                "{min} and {max} are the bounds of an estimated rate: give them with {rate} auto"
            )));
        }
        return asked.rate.map_or(Ok(old), capacity);
    }
    let bound = |text: Option<&str>, present: Option<Rate>| match text {
        Some(text) => Ok(Some(text.parse::<Rate>()?)),
        None => Ok::<_, RequestError>(present),
    };
    let least = bound(asked.min, present.map(EstimateBounds::min))?;
    let most = bound(asked.max, present.map(EstimateBounds::max))?;
    let (Some(least), Some(most)) = (least, most) else {
        return Err(RequestError::BadUsage(format!(
            "{rate} auto needs {min} R and {max} R: what the link carries at any time, which is \
             also what of it can be promised, and the most that it carries"
        )));
    };
    let Some(bounds) = EstimateBounds::new(least, most) else {
        return Err(RequestError::BadUsage(format!(
            "{min} {least:#} is above {max} {most:#}"
        )));
    };
    let now = old.filter(|_| present.is_some()).map(|old| old.rate);
    Ok(Some(Capacity {
        rate: bounds.clamp(now.unwrap_or(least)),
        source: CapacitySource::Estimate(bounds),
    }))
}

/// The hosts that are probed for a link after the change; none if no rate of it is an estimate.
///
/// # Errors
/// If hosts are named for a link without an estimate, or are no addresses that can be probed; if
/// none is named and those that are used by default are not behind the interface.
pub(super) fn reflectors(
    machine: &mut impl Inventory,
    change: &LinkChange,
    link: &Link,
    old: Option<&ManagedLink>,
) -> Result<Vec<IpAddr>, RequestError> {
    let name = &link.name;
    if !link.is_estimated() {
        return match &change.probes {
            None => Ok(Vec::new()),
            Some(_) => Err(RequestError::BadUsage(
                "--probe names the hosts for an estimated rate: give it with --rate auto or \
                 --down-rate auto"
                    .to_owned(),
            )),
        };
    }
    if name.as_str() == "lo" {
        return Err(RequestError::BadUsage(
            "lo leads to no other host, so its rate cannot be estimated: --rate auto is for the \
             interface to the internet"
                .to_owned(),
        ));
    }
    if let Some(texts) = &change.probes {
        return named(texts);
    }
    let present = old.map_or(&[][..], |old| &old.reflectors);
    if !present.is_empty() {
        return Ok(present.to_vec());
    }
    let is_behind = machine.leads_to(name.as_str(), DEFAULT_REFLECTORS[0])?;
    match is_behind {
        true => Ok(DEFAULT_REFLECTORS.to_vec()),
        false => Err(RequestError::BadUsage(format!(
            "{name} does not lead to {}, which is probed by default: name hosts beyond the slowest \
             part of the way that answer ping, better three than one, with --probe HOST[,HOST...]",
            DEFAULT_REFLECTORS[0]
        ))),
    }
}

fn named(texts: &[String]) -> Result<Vec<IpAddr>, RequestError> {
    let mut hosts = Vec::new();
    for text in texts {
        let Ok(host) = text.parse::<IpAddr>() else {
            return Err(RequestError::BadUsage(format!(
                "--probe: `{text}` is not the address of a host"
            )));
        };
        let is_link_local = match host {
            IpAddr::V4(v4) => v4.is_broadcast(),
            IpAddr::V6(v6) => v6.is_unicast_link_local(),
        };
        if host.is_loopback() || host.is_unspecified() || host.is_multicast() || is_link_local {
            return Err(RequestError::BadUsage(format!(
                "--probe: {host} is not the address of one host beyond the link"
            )));
        }
        if !hosts.contains(&host) {
            hosts.push(host);
        }
    }
    match hosts.len() {
        0 => Err(RequestError::BadUsage(
            "--probe names no host: write --probe HOST[,HOST...]".to_owned(),
        )),
        1..=MAX_REFLECTORS => Ok(hosts),
        count => Err(RequestError::BadUsage(format!(
            "--probe names {count} hosts: {MAX_REFLECTORS} at most"
        ))),
    }
}
