//! Adapts the division of a link between its driver and the kernel's classes to what each of them
//! sends. [`Flows::balance`] asks the drivers for their counts of sent bytes. At each answer, the
//! counts of the driver and the classes give the rates since the last answer, and from these rates
//! [`super::division`] computes the next division. If the kernel refuses the new rate of the
//! classes, the division stays, and the journal gets a warning.

use netnice_api::driver::{DriverRequest, TotalsDoc};
use netnice_core::contract::IfName;
use netnice_core::units::{Amount, Instant};

use super::division::{LinkNeeds, SplitUse};
use super::network::Network;
use super::promises::Promises;
use super::{CallPurpose, Flows};
use crate::clock::Now;

impl<N: Network> Flows<N> {
    /// Asks the drivers for their counts of sent bytes. The caller calls it every 200 ms while
    /// there are managed links.
    pub(crate) fn balance(&mut self, now: Now) {
        let due: Vec<IfName> = self
            .link_states
            .iter()
            .filter(|(_, state)| state.connected && state.split.is_some() && !state.totals_pending)
            .map(|(link, _)| link.clone())
            .collect();
        for link in due {
            if let Some(state) = self.link_states.get_mut(&link) {
                state.totals_pending = true;
            }
            self.call(&link, DriverRequest::Totals, None, CallPurpose::Totals, now);
        }
    }

    /// Takes a driver's count of sent bytes, and adapts the division.
    pub(super) fn handle_totals(
        &mut self,
        promises: &mut impl Promises,
        link: &IfName,
        totals: TotalsDoc,
        now: Now,
    ) {
        let by_classes = promises.sent_by_classes(link);
        let Some(state) = self.link_states.get_mut(link) else {
            return;
        };
        state.totals_pending = false;
        if let Some(time) = totals.thread {
            let packets = totals.sent.saturating_add(totals.delivered);
            state.thread.record(time, packets);
        }
        let overhead = state.capacity.map_or(0, |capacity| capacity.overhead());
        let bytes = totals.sent_bytes + totals.sent * overhead;
        let seen = state
            .last_totals
            .replace((now.monotonic, bytes, by_classes));
        let (Some((at, flows, classes)), Some(split)) = (seen, state.split) else {
            return;
        };
        let (Some(need), Some(capacity)) = (state.need, state.capacity) else {
            return;
        };
        let rate = |before: u64, after: u64| per_second(after.saturating_sub(before), at, now);
        let used = SplitUse {
            driver: rate(flows, bytes),
            tree: match (classes, by_classes) {
                (Some(before), Some(after)) => rate(before, after),
                _ => Amount(0),
            },
        };
        state.sending_rate = used.driver.0;
        if self.renew_redirects(promises, link, now) {
            return;
        }
        let whole = LinkNeeds {
            capacity: capacity.link_rate,
            tree: capacity.tree,
            need,
        };
        let next = whole.next(split, used);
        if next != split
            && let Err(error) = self.apply_split(promises, link, next, now)
        {
            promises
                .journal()
                .warn(now, format!("cannot divide {link}: {error}"));
        }
    }
}

fn per_second(bytes: u64, since: Instant, now: Now) -> Amount {
    let passed = u128::from(now.monotonic.since(since).0.max(1));
    let bits = u128::from(bytes) * 8 * 1_000_000_000 / passed;
    Amount(u64::try_from(bits).unwrap_or(u64::MAX))
}
