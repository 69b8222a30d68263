//! What one neighbour may have of this host: [`Quota`], [`Policy`]. [`Usage::admit`] fails with the
//! limit and the value that exceeds it, and then changes nothing.

use std::collections::BTreeMap;

use netnice_core::contract::Channel;
use netnice_core::units::{Amount, Bytes, Instant, Nanos};

use crate::message::HostName;

/// The limits of a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// For the channels that one neighbour opens through or to this host.
    pub neighbour: Quota,
    /// The quotas of these neighbours, in place of `neighbour`.
    pub named: BTreeMap<HostName, Quota>,
    /// For the channels that the programs of this host open, together.
    pub programs: Quota,
    /// Largest number of neighbours.
    pub neighbours: usize,
}

/// The limits of the channels that one neighbour, or the programs of this host, open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    /// Number of channels, those that are not established yet included.
    pub channels: usize,
    /// Number of channels that are not established yet.
    pub in_progress: usize,
    /// New channels in a second, in the long run; as many at once. Above zero.
    pub opens_per_second: u32,
    /// Mmax of one channel.
    pub mmax: Bytes,
    /// Sum of Mmax · Rmax.
    pub rate: Amount,
    /// Sum of Mmax · Bmax: the messages that can wait at once.
    pub burst: Bytes,
}

impl Default for Policy {
    fn default() -> Policy {
        let neighbour = Quota {
            channels: 2_000,
            in_progress: 256,
            opens_per_second: 1_000,
            mmax: Bytes(1 << 24),
            rate: Amount(10_000_000_000),
            burst: Bytes(1 << 30),
        };
        let programs = Quota {
            channels: 8_000,
            in_progress: 8_000,
            opens_per_second: 8_000,
            ..neighbour
        };
        Policy {
            neighbour,
            named: BTreeMap::new(),
            programs,
            neighbours: 1_024,
        }
    }
}

impl Policy {
    /// The quota of a neighbour.
    pub fn quota_of(&self, neighbour: &HostName) -> &Quota {
        self.named.get(neighbour).unwrap_or(&self.neighbour)
    }
}

/// What a neighbour, or the programs of this host, have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Usage {
    pub(super) channels: usize,
    pub(super) in_progress: usize,
    rate: Amount,
    burst: u64,
    /// When the opens so far would have come if they had come at the quota's rate.
    opens_until: Instant,
}

impl Usage {
    /// Counts one more channel that is not established yet.
    ///
    /// # Errors
    /// A sentence with the limit that the channel would exceed, its key in the policy file, and the
    /// value.
    pub(super) fn admit(
        &mut self,
        quota: &Quota,
        contract: &Channel,
        now: Instant,
    ) -> Result<(), String> {
        let rate = self.rate.plus(contract.rate());
        let burst = self.burst.saturating_add(burst_of(contract));
        let behind = self.opens_until.since(now);
        let fault = if self.channels >= quota.channels {
            let most = quota.channels;
            format!("at most {most} channels are allowed (quota channels)")
        } else if self.in_progress >= quota.in_progress {
            let most = quota.in_progress;
            format!("at most {most} channels may be in establishment at once (quota in-progress)")
        } else if behind > Nanos::from_secs(1) {
            let most = quota.opens_per_second;
            format!("at most {most} channels may be opened in a second (quota set-ups)")
        } else if contract.mmax() > quota.mmax {
            let (most, mmax) = (quota.mmax, contract.mmax());
            format!("mmax is at most {most}, not {mmax} (quota mmax)")
        } else if rate > quota.rate {
            let most = quota.rate;
            format!("all channels together have at most {most}, and would have {rate} (quota rate)")
        } else if burst > quota.burst.0 {
            let (most, burst) = (quota.burst, Bytes(burst));
            format!(
                "the bursts of all channels have at most {most}, and would have {burst} (quota \
                 burst)"
            )
        } else {
            self.channels += 1;
            self.in_progress += 1;
            self.rate = rate;
            self.burst = burst;
            let apart = 1_000_000_000 / u64::from(quota.opens_per_second.max(1));
            self.opens_until = self.opens_until.max(now).after(Nanos(apart));
            return Ok(());
        };
        Err(fault)
    }

    /// Counts a channel as established.
    pub(super) fn establish(&mut self) {
        self.in_progress -= 1;
    }

    /// Counts a channel as ended.
    pub(super) fn release(&mut self, contract: &Channel, was_established: bool) {
        self.channels -= 1;
        self.in_progress -= usize::from(!was_established);
        self.rate = self.rate.less(contract.rate());
        self.burst -= burst_of(contract);
    }
}

/// Mmax · Bmax, in bytes. Mmax is at most 2^24 and Bmax below 2^32.
fn burst_of(contract: &Channel) -> u64 {
    contract.mmax().0 * u64::from(contract.bmax())
}
