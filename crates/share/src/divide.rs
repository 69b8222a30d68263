//! Who gets how much of a total. Pure: rates in bit/s in, rates out.
//!
//! The three configurations of NICE Fig 2 are one rule. A session of a service with a rate has that rate. What is left of the
//! total is divided among the others, in proportion to their weights:
//!
//! ```text
//!   [A] every session has a rate                 128, 32, 32 Kbyte/s
//!   [B] none has                                 total / n:            512 / 4 = 128
//!   [C] some have                                (total − Σ rates) / n: (512 − 2 × 32) / 4 = 112
//! ```
//!
//! **Bounds.** A session may have a bound of its own (its part of what its client may use). What a bound cuts off goes
//! to the others, again by weight, until nothing is left or all are at their bounds.
//!
//! **Lending.** A session that uses a small part of its share while another uses all of its own keeps what it uses twice
//! over and an eighth of its share, and the rest is lent. It counts as busy again, and has its whole share back, as soon as it uses
//! half of what it kept. A fixed rate is not lent: configuration C reserves it.
//!
//! **Groups.** Where users or services are to be equal, and not sessions, the total is divided among them by the same rule, and
//! the share of each among its sessions ([`divide_groups`]). So what a session lends goes to its own group first; a group of which
//! all are idle lends to the others.
//!
//! **What does not fit.** No share falls below the floor. A session whose coming would make one fall below it, or whose fixed
//! rate is more than what is left, is refused ([`fits`]).

use netnice_core::units::Amount;

/// What is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pool {
    /// The total; none: only fixed rates are set.
    pub total: Option<u64>,
    /// The least that a session without a fixed rate gets.
    pub floor: u64,
}

/// What one session asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Demand {
    /// Its fixed rate; none: a part of what is left.
    pub fixed: Option<u64>,
    /// Its weight among those without a fixed rate; not zero.
    pub weight: u64,
    /// The most that it may have.
    pub most: Option<u64>,
    /// It has used little for a while: what it kept would be enough for so much.
    pub idle: Option<u64>,
}

/// Why a session does not fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Full {
    /// Its fixed rate does not fit.
    #[error("its rate of {} does not fit: {} are left of the total", Amount(*.asked), Amount(*.left))]
    Fixed {
        /// The rate.
        asked: u64,
        /// What no other session needs.
        left: u64,
    },
    /// Shares would fall below the floor.
    #[error("a share would be {}, below the floor of {}", Amount(*.share), Amount(*.floor))]
    Floor {
        /// The share that there would be.
        share: u64,
        /// The floor.
        floor: u64,
    },
}

/// Whether these sessions, the last of which is new, can be served.
pub fn fits(pool: Pool, demands: &[Demand]) -> Result<(), Full> {
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
        Some(asked) => Full::Fixed {
            asked,
            left: total.saturating_sub(needed - asked),
        },
        None => Full::Floor {
            share: total.saturating_sub(fixed) / others.max(1),
            floor: pool.floor,
        },
    })
}

/// The share of each session; none where nothing limits it.
pub fn divide(pool: Pool, demands: &[Demand]) -> Vec<Option<u64>> {
    let at_most = |rate: u64, demand: &Demand| rate.min(demand.most.unwrap_or(u64::MAX));
    let fixed: u64 = demands.iter().filter_map(|d| d.fixed).sum();
    let mut shares: Vec<Option<u64>> = demands
        .iter()
        .map(|d| d.fixed.map(|rate| at_most(rate, d)).or(d.most))
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
        let nominal = fill(left, &weights, &own);
        let lends = open.iter().any(|i| demands[*i].idle.is_none());
        let keeps = |(at, i): (usize, &usize)| match demands[*i].idle {
            Some(used) if lends => own[at].min(kept(nominal[at], used, pool.floor)),
            _ => own[at],
        };
        open.iter().enumerate().map(keeps).collect()
    };
    let weights: Vec<u64> = open.iter().map(|i| demands[*i].weight).collect();
    for (i, share) in open.iter().zip(fill(left, &weights, &bounds)) {
        shares[*i] = Some(share.max(pool.floor).min(at_most(u64::MAX, &demands[*i])));
    }
    shares
}

/// The shares of the sessions of each group; each group has a weight.
pub fn divide_groups(pool: Pool, groups: &[(u64, Vec<Demand>)]) -> Vec<Vec<Option<u64>>> {
    let as_one = |(weight, members): &(u64, Vec<Demand>)| Demand {
        fixed: None,
        weight: *weight,
        most: None,
        idle: members.iter().map(|member| member.idle).sum(),
    };
    let whole: Vec<Demand> = groups.iter().map(as_one).collect();
    let shares = divide(pool, &whole);
    let inside = shares.into_iter().zip(groups);
    inside
        .map(|(total, (_, members))| divide(Pool { total, ..pool }, members))
        .collect()
}

/// What an idle session keeps of its share.
pub fn kept(share: u64, used: u64, floor: u64) -> u64 {
    let keeps = used.saturating_mul(2).max(share / 8).max(floor);
    keeps.min(share)
}

/// Divides an amount by weight, each part up to its bound.
fn fill(amount: u64, weights: &[u64], bounds: &[u64]) -> Vec<u64> {
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
