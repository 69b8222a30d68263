//! Divides a total among sessions. It does no I/O: rates in bit/s go in, rates go out. Only the
//! check of a new session ([`fits`]) can fail.
//!
//! The three configurations of paper NICE, figure 2, are one rule. A session of a service with a
//! rate has that rate (*fixed*). The other sessions divide the rest of the total in proportion to
//! their weights. With equal weights, in Kbyte/s:
//!
//! ```text
//!   [A] every session has a rate    the rates                      128, 32, 32
//!   [B] none has                    total / sessions               512 / 4 = 128
//!   [C] some have                   (total − rates) / the others   (512 − 2 × 32) / 4 = 112
//! ```
//!
//! **Bounds.** A session can have a bound of its own (its part of the limit of its client). The
//! other sessions divide what a bound cuts off, again by weight, until nothing is left or all are
//! at their bounds.
//!
//! **Lending.** An *idle* session uses a small part of its share (`keeper` decides). While another
//! session without a fixed rate is busy, an idle session keeps twice its usage, but at least an
//! eighth of its share and at least the floor, and lends the rest. A session with a fixed rate does
//! not lend, because configuration C reserves the rate.
//!
//! **Groups.** If users or services have equal shares, and not sessions, the same rule divides the
//! total among the users or services, and then the share of each among its sessions
//! ([`divide_groups`]). So a session lends to its own group first. A group whose sessions are all
//! idle lends to the other groups.
//!
//! **The floor.** The share of a session without a fixed rate is at least the floor, unless the
//! session's bound is lower. The super-server refuses a new session if the fixed rates and a floor
//! for each other session exceed the total ([`fits`]). The manager refuses no session: if the
//! floors of its sessions exceed the total, each session has an equal part of the total instead of
//! the floor. So the sum of the shares never exceeds the total, unless the fixed rates alone do.

use netnice_core::units::Amount;

/// The total to divide and the smallest share, in bit/s.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pool {
    /// The total. `None`: only fixed rates apply.
    pub(crate) total: Option<u64>,
    /// The smallest share of a session without a fixed rate.
    pub(crate) floor: u64,
}

/// The demand of one session. Rates are in bit/s.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Demand {
    /// The session's fixed rate. `None`: a share of the rest.
    pub(crate) fixed: Option<u64>,
    /// The session's weight among the sessions without a fixed rate; not 0.
    pub(crate) weight: u64,
    /// The largest share that the session may have. `None`: no bound.
    pub(crate) bound: Option<u64>,
    /// The highest usage of an idle session in its present period of low usage. `None`: the session
    /// is busy.
    pub(crate) idle: Option<u64>,
}

/// Why a new session does not fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum DoesNotFit {
    /// The session's fixed rate exceeds the rest of the total.
    #[error(
        "its rate of {} does not fit: {} are left of the total",
        Amount(*.asked), Amount(*.left)
    )]
    Fixed {
        /// The fixed rate, in bit/s.
        asked: u64,
        /// The rest of the total, in bit/s.
        left: u64,
    },
    /// The mean share of the sessions without a fixed rate would be below the floor.
    #[error("a share would be {}, below the floor of {}", Amount(*.share), Amount(*.floor))]
    Floor {
        /// The mean share that would result, in bit/s.
        share: u64,
        /// The floor, in bit/s.
        floor: u64,
    },
}

/// Checks whether the total suffices for these sessions, the last of which is new.
///
/// # Errors
/// If the fixed rates and a floor for each other session exceed the total.
pub(crate) fn fits(pool: Pool, demands: &[Demand]) -> Result<(), DoesNotFit> {
    let Some(total) = pool.total else {
        return Ok(());
    };
    let fixed: u64 = demands.iter().filter_map(|d| d.fixed).sum();
    let others = demands.iter().filter(|d| d.fixed.is_none()).count() as u64;
    let needed = fixed.saturating_add(others.saturating_mul(pool.floor));
    if needed <= total {
        return Ok(());
    }
    Err(match demands.last().and_then(|new| new.fixed) {
        Some(asked) => DoesNotFit::Fixed {
            asked,
            left: total.saturating_sub(needed - asked),
        },
        None => DoesNotFit::Floor {
            share: total.saturating_sub(fixed) / others.max(1),
            floor: pool.floor,
        },
    })
}

/// The share of each session, in bit/s, in the order of `demands`; `None` if it is unlimited.
pub(crate) fn divide(pool: Pool, demands: &[Demand]) -> Vec<Option<u64>> {
    divide_above(pool.total, demands, &vec![pool.floor; demands.len()])
}

/// As [`divide`], with a floor for each demand.
fn divide_above(total: Option<u64>, demands: &[Demand], floors: &[u64]) -> Vec<Option<u64>> {
    let at_most = |rate: u64, demand: &Demand| rate.min(demand.bound.unwrap_or(u64::MAX));
    let fixed: u64 = demands.iter().filter_map(|d| d.fixed).sum();
    let mut shares: Vec<Option<u64>> = demands
        .iter()
        .map(|d| d.fixed.map(|rate| at_most(rate, d)).or(d.bound))
        .collect();
    let Some(total) = total else {
        return shares;
    };
    let open: Vec<usize> = (0..demands.len())
        .filter(|i| demands[*i].fixed.is_none())
        .collect();
    let left = total.saturating_sub(fixed);
    let weights: Vec<u64> = open.iter().map(|i| demands[*i].weight).collect();
    let own: Vec<u64> = open
        .iter()
        .map(|i| at_most(u64::MAX, &demands[*i]))
        .collect();
    let all_floors: u128 = open.iter().map(|i| u128::from(floors[*i])).sum();
    let least: Vec<u64> = open
        .iter()
        .map(|i| match all_floors > u128::from(left) {
            true => proportion(left, floors[*i], all_floors),
            false => floors[*i],
        })
        .zip(&own)
        .map(|(floor, own)| floor.min(*own))
        .collect();
    let nominal = divide_by_weight(left, &weights, &least, &own);
    let lends = open.iter().any(|i| demands[*i].idle.is_none());
    let keeps = |(at, i): (usize, &usize)| match demands[*i].idle {
        Some(used) if lends => own[at].min(retained(nominal[at], used, floors[*i])),
        _ => own[at],
    };
    let most: Vec<u64> = open.iter().enumerate().map(keeps).collect();
    let divided = divide_by_weight(left, &weights, &least, &most);
    for (i, share) in open.iter().zip(divided) {
        shares[*i] = Some(share);
    }
    shares
}

/// The shares of the sessions of each group, as [`divide`] gives them. A group is a weight and its
/// sessions.
pub(crate) fn divide_groups(pool: Pool, groups: &[(u64, Vec<Demand>)]) -> Vec<Vec<Option<u64>>> {
    let as_one = |(weight, members): &(u64, Vec<Demand>)| Demand {
        fixed: None,
        weight: *weight,
        bound: None,
        idle: members.iter().map(|member| member.idle).sum(),
    };
    let whole: Vec<Demand> = groups.iter().map(as_one).collect();
    let floor = |(_, members): &(u64, Vec<Demand>)| pool.floor.saturating_mul(members.len() as u64);
    let floors: Vec<u64> = groups.iter().map(floor).collect();
    let shares = divide_above(pool.total, &whole, &floors);
    let inside = shares.into_iter().zip(groups);
    inside
        .map(|(total, (_, members))| divide(Pool { total, ..pool }, members))
        .collect()
}

/// The part of `share` that an idle session with usage `used` keeps while it lends, in bit/s.
pub(crate) fn retained(share: u64, used: u64, floor: u64) -> u64 {
    let keeps = used.saturating_mul(2).max(share / 8).max(floor);
    keeps.min(share)
}

/// Divides an amount by weight, each part within its bounds. The sum of `least` is at most the
/// amount, and no bound in `most` is below that in `least`. The sum of the parts is at most the
/// amount.
fn divide_by_weight(amount: u64, weights: &[u64], least: &[u64], most: &[u64]) -> Vec<u64> {
    let mut parts = vec![0; weights.len()];
    let mut open: Vec<usize> = (0..weights.len()).collect();
    let mut left = amount;
    loop {
        let sum: u128 = open.iter().map(|i| u128::from(weights[*i])).sum();
        if sum == 0 {
            return parts;
        }
        let part = |i: usize| proportion(left, weights[i], sum);
        let within = |i: usize| part(i).clamp(least[i], most[i]);
        // If the parts within their bounds exceed the amount, those at their lower bounds are
        // final, because the other parts shrink. Otherwise those at their upper bounds are final.
        let all: u128 = open.iter().map(|i| u128::from(within(*i))).sum();
        let is_final = |i: &usize| match all > u128::from(left) {
            true => part(*i) < least[*i],
            false => part(*i) > most[*i],
        };
        let (bound, free): (Vec<usize>, Vec<usize>) = open.iter().partition(|i| is_final(i));
        if bound.is_empty() {
            for i in free {
                parts[i] = within(i);
            }
            return parts;
        }
        for i in &bound {
            parts[*i] = within(*i);
        }
        left -= bound.iter().map(|i| parts[*i]).sum::<u64>();
        open = free;
    }
}

/// The part of `amount` for `weight` of `sum`.
fn proportion(amount: u64, weight: u64, sum: u128) -> u64 {
    let part = u128::from(amount) * u128::from(weight) / sum;
    u64::try_from(part).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
