//! Sends a driver what the policy says about its link: the discard patterns of received frames, and
//! the code points of sent packets. Also limits how long it may wait awake while processor time is
//! promised to programs. Nothing is sent before the driver's first census, or while the driver has
//! what is wanted. No function fails.

use netnice_api::driver::DriverRequest;
use netnice_core::contract::IfName;

use super::network::Network;
use super::promises::Promises;
use super::{CallPurpose, Flows, driver_reservation};
use crate::clock::Now;

impl<N: Network> Flows<N> {
    /// Sends the driver of a link what has changed in the policy.
    pub(super) fn update_policy(&mut self, promises: &impl Promises, link: &IfName, now: Now) {
        self.update_discards(promises, link, now);
        self.update_code_points(promises, link, now);
        self.update_awake_limit(promises, link, now);
    }

    /// Sends the driver its discard patterns if they have changed and the driver's first census has
    /// arrived.
    fn update_discards(&mut self, promises: &impl Promises, link: &IfName, now: Now) {
        let (Some(patterns), Some(state)) =
            (promises.discards(link), self.link_states.get_mut(link))
        else {
            return;
        };
        if state.mode.is_empty() || state.discards.as_deref() == Some(patterns) {
            return;
        }
        let patterns = patterns.to_vec();
        state.discards = Some(patterns.clone());
        let ask = DriverRequest::Discard { patterns };
        self.call(link, ask, None, CallPurpose::Discard, now);
    }

    /// Sends the driver the code points if they have changed and the driver's first census has
    /// arrived.
    fn update_code_points(&mut self, promises: &impl Promises, link: &IfName, now: Now) {
        let (Some(wanted), Some(state)) = (promises.code_points(), self.link_states.get_mut(link))
        else {
            return;
        };
        if state.mode.is_empty() || state.code_points == Some(wanted) {
            return;
        }
        state.code_points = Some(wanted);
        let ask = DriverRequest::CodePoints(wanted);
        self.call(link, ask, None, CallPurpose::Discard, now);
    }

    /// Limits the driver's time awake while a reservation of processor time is in force: admission
    /// counts so much for it at most. Drivers of earlier versions do not know the request.
    fn update_awake_limit(&mut self, promises: &impl Promises, link: &IfName, now: Now) {
        let most_ppm = match promises.reserves_processors() {
            true => driver_reservation::MOST_PPM,
            false => NO_LIMIT,
        };
        let Some(state) = self.link_states.get_mut(link) else {
            return;
        };
        if state.awake_limit_ppm.is_none_or(|has| has == most_ppm) {
            return;
        }
        state.awake_limit_ppm = Some(most_ppm);
        let ask = DriverRequest::AwakeLimit { most_ppm };
        self.call(link, ask, None, CallPurpose::Discard, now);
    }
}

/// The driver may always wait awake, in parts of a million.
const NO_LIMIT: u32 = 1_000_000;
