//! Divides a total among sessions. It does no I/O: rates in bit/s go in, rates go out.
//!
//! The three configurations of NICE Fig 2 are one rule. A session of a service with a rate has that
//! rate. The other sessions divide the rest of the total in proportion to their weights:
//!
//! ```text
//!   [A] every session has a rate                 128, 32, 32 Kbyte/s
//!   [B] none has                                 total / n:            512 / 4 = 128
//!   [C] some have                                (total − Σ rates) / n: (512 − 2 × 32) / 4 = 112
//! ```
//!
//! **Bounds.** A session can have a bound of its own (its part of the limit of its client). The
//! other sessions divide what a bound cuts off, again by weight, until nothing is left or all are
//! at their bounds.
//!
//! **Lending.** A session that uses a small part of its share while another session is busy keeps
//! the larger of twice its usage and an eighth of its share, and lends the rest. It counts as busy
//! again, and gets its whole share back, when it uses half of what it kept. A session with a fixed
//! rate does not lend, because configuration C reserves the rate.
//!
//! **Groups.** If users or services have equal shares, and not sessions, the same rule divides the
//! total among the users or services, and then the share of each among its sessions
//! ([`divide_groups`]). So a session lends to its own group first. A group whose sessions are all
//! idle lends to the other groups.
//!
//! **Refusal.** A share is at least the floor, unless the session's bound is lower. A new session
//! is refused if it would reduce a share below the floor, or if its fixed rate exceeds the rest of
//! the total ([`fits`]).

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
    /// Its fixed rate. `None`: a share of the rest.
    pub(crate) fixed: Option<u64>,
    /// Its weight among the sessions without a fixed rate; not 0.
    pub(crate) weight: u64,
    /// The largest share that it may have. `None`: no bound.
    pub(crate) bound: Option<u64>,
    /// The highest usage of an idle session in its present period of low usage. `None`: the session
    /// is busy.
    pub(crate) idle: Option<u64>,
}

/// Why a new session does not fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum DoesNotFit {
    /// Its fixed rate exceeds the rest of the total.
    #[error(
        "its rate of {} does not fit: {} are left of the total",
        Amount(*.asked), Amount(*.left)
    )]
    Fixed {
        /// The fixed rate.
        asked: u64,
        /// The rest of the total.
        left: u64,
    },
    /// A share would fall below the floor.
    #[error("a share would be {}, below the floor of {}", Amount(*.share), Amount(*.floor))]
    Floor {
        /// The share that would result.
        share: u64,
        /// The floor.
        floor: u64,
    },
}

/// Checks whether the total suffices for these sessions, the last of which is new.
///
/// # Errors
/// If the total does not suffice.
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
    let at_most = |rate: u64, demand: &Demand| rate.min(demand.bound.unwrap_or(u64::MAX));
    let fixed: u64 = demands.iter().filter_map(|d| d.fixed).sum();
    let mut shares: Vec<Option<u64>> = demands
        .iter()
        .map(|d| d.fixed.map(|rate| at_most(rate, d)).or(d.bound))
        .collect();
    let Some(total) = pool.total else {
        return shares;
    };
    let open: Vec<usize> = (0..demands.len())
        .filter(|i| demands[*i].fixed.is_none())
        .collect();
    let left = total.saturating_sub(fixed);
    let bounds: Vec<u64> = {
        let own: Vec<u64> = open
            .iter()
            .map(|i| at_most(u64::MAX, &demands[*i]))
            .collect();
        let weights: Vec<u64> = open.iter().map(|i| demands[*i].weight).collect();
        let nominal = divide_by_weight(left, &weights, &own);
        let lends = open.iter().any(|i| demands[*i].idle.is_none());
        let keeps = |(at, i): (usize, &usize)| match demands[*i].idle {
            Some(used) if lends => own[at].min(retained(nominal[at], used, pool.floor)),
            _ => own[at],
        };
        open.iter().enumerate().map(keeps).collect()
    };
    let weights: Vec<u64> = open.iter().map(|i| demands[*i].weight).collect();
    for (i, share) in open.iter().zip(divide_by_weight(left, &weights, &bounds)) {
        shares[*i] = Some(share.max(pool.floor).min(at_most(u64::MAX, &demands[*i])));
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
    let shares = divide(pool, &whole);
    let inside = shares.into_iter().zip(groups);
    inside
        .map(|(total, (_, members))| divide(Pool { total, ..pool }, members))
        .collect()
}

/// The part of `share` that an idle session with usage `used` keeps, in bit/s.
pub(crate) fn retained(share: u64, used: u64, floor: u64) -> u64 {
    let keeps = used.saturating_mul(2).max(share / 8).max(floor);
    keeps.min(share)
}

/// Divides an amount by weight, each part up to its bound.
fn divide_by_weight(amount: u64, weights: &[u64], bounds: &[u64]) -> Vec<u64> {
    let mut parts = vec![0; weights.len()];
    let mut open: Vec<usize> = (0..weights.len()).collect();
    let mut left = amount;
    loop {
        let sum: u128 = open.iter().map(|i| u128::from(weights[*i])).sum();
        if sum == 0 {
            return parts;
        }
        let part = |i: usize| {
            let part = u128::from(left) * u128::from(weights[i]) / sum;
            u64::try_from(part).unwrap_or(u64::MAX)
        };
        let (bound, free): (Vec<usize>, Vec<usize>) =
            open.iter().copied().partition(|i| bounds[*i] < part(*i));
        if bound.is_empty() {
            for i in free {
                parts[i] = part(i);
            }
            return parts;
        }
        for i in &bound {
            parts[*i] = bounds[*i];
        }
        left -= bound.iter().map(|i| bounds[*i]).sum::<u64>();
        open = free;
    }
}

#[cfg(test)]
mod tests;
