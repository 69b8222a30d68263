//! The conditions of admission, implemented as directly as they are stated, from the contracts' own
//! clauses and without the code under test. Links and entries come in; whether they are admissible
//! goes out, without a reason. [`serve`] checks a division of every link among the targets.

use alloc::vec::Vec;

use crate::admission::{TargetEntry, TargetId};
use crate::contract::{Contract, Direction};
use crate::link::Link;

/// Bits per second.
type Bits = u128;

/// The entry's link, if it has or needs one.
pub fn link_of<'l>(links: &'l [Link], entry: &TargetEntry) -> Result<Option<&'l Link>, ()> {
    let contract = &entry.contract;
    if let Some(name) = contract.on() {
        return links.iter().find(|l| l.name == *name).map(Some).ok_or(());
    }
    let needs = contract.min(Direction::Up).is_some()
        || contract.min(Direction::Down).is_some()
        || contract.slice().is_some();
    match (needs, links.len()) {
        (false, _) => Ok(None),
        (true, 1) => Ok(Some(&links[0])),
        (true, _) => Err(()),
    }
}

/// The rate that a link can promise.
fn usable(link: &Link, direction: Direction) -> Option<Bits> {
    let bits = |c: crate::link::Capacity| Bits::from(c.rate.bits_per_second());
    match direction {
        Direction::Up => link.up.map(bits),
        Direction::Down => link.down.map(|c| bits(c) * 97 / 100),
    }
}

/// An entry's own minimum on a link. Fails if that minimum is not a valid rate.
fn min(
    links: &[Link],
    entry: &TargetEntry,
    link: &Link,
    direction: Direction,
) -> Result<Option<Bits>, ()> {
    if link_of(links, entry)?.map(|l| &l.name) != Some(&link.name) {
        return Ok(None);
    }
    let contract = &entry.contract;
    if let (Direction::Up, Some(slice)) = (direction, contract.slice()) {
        let capacity = usable(link, direction).ok_or(())?;
        let share = capacity * Bits::from(slice.slice().0) / Bits::from(slice.period().0);
        return if share < 1000 {
            Err(())
        } else {
            Ok(Some(share))
        };
    }
    match contract.min(direction) {
        None => Ok(None),
        Some(min) => {
            usable(link, direction).ok_or(())?;
            Ok(Some(Bits::from(min.bits_per_second())))
        }
    }
}

fn children(held: &[TargetEntry], id: TargetId) -> Vec<&TargetEntry> {
    held.iter().filter(|e| e.parent == Some(id)).collect()
}

fn demand(
    links: &[Link],
    held: &[TargetEntry],
    entry: &TargetEntry,
    link: &Link,
    d: Direction,
) -> Result<Bits, ()> {
    match min(links, entry, link, d)? {
        Some(own) => Ok(own),
        None => below(links, held, entry, link, d),
    }
}

fn below(
    links: &[Link],
    held: &[TargetEntry],
    entry: &TargetEntry,
    link: &Link,
    d: Direction,
) -> Result<Bits, ()> {
    let mut sum = 0;
    for child in children(held, entry.id) {
        sum += demand(links, held, child, link, d)?;
    }
    Ok(sum)
}

/// An entry and its ancestors, itself first. `None` in a cycle or with an unknown parent.
fn chain<'e>(held: &'e [TargetEntry], entry: &'e TargetEntry) -> Option<Vec<&'e TargetEntry>> {
    let mut chain = alloc::vec![entry];
    while let Some(parent) = chain.last()?.parent {
        let parent = held.iter().find(|e| e.id == parent)?;
        if chain.len() > held.len() {
            return None;
        }
        chain.push(parent);
    }
    Some(chain)
}

/// Whether a set of entries meets all four conditions.
pub fn admissible(links: &[Link], held: &[TargetEntry]) -> bool {
    check_position(held) && sums(links, held) == Ok(true)
}

/// Condition 4.
fn check_position(held: &[TargetEntry]) -> bool {
    held.iter().all(|entry| {
        let Some(chain) = chain(held, entry) else {
            return false;
        };
        let both = chain.iter().any(|e| e.contract.both().is_some());
        let one_way = chain
            .iter()
            .any(|e| e.contract.up().is_some() || e.contract.down().is_some());
        let requested = chain.iter().filter(|e| e.contract != Contract::default());
        requested.count() <= 5 && !(both && one_way)
    })
}

/// Conditions 1 to 3.
fn sums(links: &[Link], held: &[TargetEntry]) -> Result<bool, ()> {
    let mut fits = true;
    for link in links {
        for d in Direction::ALL {
            let mut top = 0;
            for entry in held {
                let demand = demand(links, held, entry, link, d)?;
                if entry.parent.is_none() {
                    top += demand;
                }
                if let Some(own) = min(links, entry, link, d)? {
                    fits &= below(links, held, entry, link, d)? <= own;
                }
            }
            fits &= top <= usable(link, d).unwrap_or(0);
        }
    }
    for entry in held {
        let mut total = [0; 2];
        for link in links {
            for d in Direction::ALL {
                total[d as usize] += demand(links, held, entry, link, d)?;
            }
        }
        let bits = |r: crate::units::Rate| Bits::from(r.bits_per_second());
        let within = |limit: Option<crate::units::Rate>, sum| limit.is_none_or(|l| sum <= bits(l));
        fits &= within(entry.contract.up(), total[0]);
        fits &= within(entry.contract.down(), total[1]);
        fits &= within(entry.contract.both(), total[0] + total[1]);
    }
    Ok(fits)
}

/// Divides every link among all targets, each sending exactly its guaranteed minimum, and checks
/// the division by the paths of packets, not by demands. Each target itself sends its minimum less
/// the minimums of its members inside it.
pub fn serve(links: &[Link], held: &[TargetEntry]) -> Result<(), &'static str> {
    let mut sent: Vec<(TargetId, usize, Direction, Bits)> = Vec::new();
    for (n, link) in links.iter().enumerate() {
        for d in Direction::ALL {
            for entry in held {
                let Ok(Some(own)) = min(links, entry, link, d) else {
                    continue;
                };
                let inside = below(links, held, entry, link, d).map_err(|()| "no demand")?;
                let itself = own
                    .checked_sub(inside)
                    .ok_or("members have more than the whole")?;
                sent.push((entry.id, n, d, itself));
            }
        }
    }
    let carried = |id: TargetId, n: Option<usize>, d: Option<Direction>| -> Bits {
        let through = |from: TargetId| {
            let entry = held.iter().find(|e| e.id == from);
            let chain = entry.and_then(|entry| chain(held, entry));
            chain.is_some_and(|chain| chain.iter().any(|e| e.id == id))
        };
        sent.iter()
            .filter(|(from, on, way, _)| {
                n.is_none_or(|n| n == *on) && d.is_none_or(|d| d == *way) && through(*from)
            })
            .map(|(.., bits)| bits)
            .sum()
    };
    for (n, link) in links.iter().enumerate() {
        for d in Direction::ALL {
            let all = sent.iter().filter(|(_, on, way, _)| *on == n && *way == d);
            let all: Bits = all.map(|(.., bits)| bits).sum();
            if all > usable(link, d).unwrap_or(0) {
                return Err("a link carries more than it can promise");
            }
            for entry in held {
                let own = min(links, entry, link, d).map_err(|()| "no minimum")?;
                if own.is_some_and(|own| carried(entry.id, Some(n), Some(d)) != own) {
                    return Err("a target has less or more than its minimum");
                }
            }
        }
    }
    for entry in held {
        let bits = |r: crate::units::Rate| Bits::from(r.bits_per_second());
        let above = |limit: Option<crate::units::Rate>, sum| limit.is_some_and(|l| sum > bits(l));
        if above(
            entry.contract.up(),
            carried(entry.id, None, Some(Direction::Up)),
        ) || above(
            entry.contract.down(),
            carried(entry.id, None, Some(Direction::Down)),
        ) || above(entry.contract.both(), carried(entry.id, None, None))
        {
            return Err("a target is above its limit");
        }
    }
    Ok(())
}
