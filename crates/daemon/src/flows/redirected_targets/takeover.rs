//! Takes over the redirected targets of an earlier daemon: first the places of the state file,
//! which are in force, then the census of each driver. A target that the driver has at the same
//! place continues. A place that only one side knows is given up. Nothing here fails.

use std::rc::Rc;

use netnice_api::driver::{DriverRequest, RedirectedDoc};
use netnice_core::contract::{Contract, Direction, IfName};
use netnice_core::units::Amount;

use super::{Phase, Place};
use crate::clock::Now;
use crate::flows::network::Network;
use crate::flows::promises::Promises;
use crate::flows::{CallPurpose, Flows};
use crate::ledger::redirects::RedirectPhase;

impl<N: Network> Flows<N> {
    /// Takes in the places of the state file, as far as their link has a driver.
    pub(super) fn restore_places(&mut self, promises: &mut impl Promises) {
        self.redirects.restored = true;
        for (number, stored) in promises.redirects().clone() {
            if !self.link_states.contains_key(&stored.link) {
                continue;
            }
            let place = Place {
                link: stored.link,
                target: stored.target,
                contract: Rc::default(),
                rate: stored.rate,
                starts_driver: true,
                phase: Phase::Restored(stored.phase),
                open_until: None,
                is_end_asked: false,
            };
            self.redirects.places.entry(number).or_insert(place);
        }
        if let Err(why) = self.store_places(promises) {
            tracing::warn!(
                why,
                "the places of redirected targets cannot be put into force"
            );
        }
    }

    /// Takes over the redirected targets in the census of a driver.
    pub(in crate::flows) fn adopt_redirects(
        &mut self,
        promises: &mut impl Promises,
        link: &IfName,
        census: Vec<RedirectedDoc>,
        now: Now,
    ) {
        if !self.redirects.restored {
            self.restore_places(promises);
        }
        let mut continued = 0;
        for doc in census {
            continued += usize::from(self.adopt_redirect(promises, link, &doc, now));
        }
        let places = self.redirects.places.iter();
        let unknown = places
            .filter(|(_, place)| place.link == *link && matches!(place.phase, Phase::Restored(_)));
        let unknown: Vec<u16> = unknown.map(|(number, _)| *number).collect();
        for number in &unknown {
            self.remove_place(*number);
        }
        self.store_fewer_places(promises, now);
        if continued > 0 {
            let noun = if continued == 1 { "target" } else { "targets" };
            let text = format!("took over {continued} redirected {noun} of {link}");
            promises.journal().note(now, text);
            // The driver has the pair from the earlier daemon.
            let pair = promises.redirect_pair(link).ok().flatten();
            if let (Some(pair), Some(state)) = (pair, self.link_states.get_mut(link)) {
                state.redirect_pair = Some((pair.map_id, pair.far_index));
            }
            self.settle_link(promises, link, now);
        }
    }

    /// Takes over one place of a driver. Returns true if its target continues.
    fn adopt_redirect(
        &mut self,
        promises: &impl Promises,
        link: &IfName,
        doc: &RedirectedDoc,
        now: Now,
    ) -> bool {
        let Ok(number) = u16::try_from(doc.place) else {
            return false;
        };
        let contract: Rc<Contract> = Rc::new(doc.contract.parse().unwrap_or_default());
        let usable = promises
            .link(link)
            .and_then(|link| link.usable(Direction::Up));
        let rate = usable.and_then(|usable| contract.link_min(Direction::Up, usable).flatten());
        if let Some(place) = self.redirects.places.get_mut(&number)
            && place.link == *link
        {
            let same = place.target == doc.target;
            match place.phase {
                Phase::Restored(RedirectPhase::Prepared | RedirectPhase::Active) if same => {
                    place.phase = Phase::Active;
                    place.contract = Rc::clone(&contract);
                    place.rate = rate.map_or(Amount(0), Amount::from);
                    place.starts_driver = contract.min(Direction::Up).is_none();
                    self.set_target_promise(link, doc.target, Some(&contract));
                    return true;
                }
                Phase::Restored(_) => {
                    place.phase = Phase::Ending;
                    place.target = doc.target;
                }
                Phase::Asked | Phase::Active | Phase::Ending => return false,
            }
        }
        let ending = Place {
            link: link.clone(),
            target: doc.target,
            contract,
            rate: Amount(0),
            starts_driver: true,
            phase: Phase::Ending,
            open_until: None,
            is_end_asked: false,
        };
        let place = self.redirects.places.entry(number).or_insert(ending);
        if place.link == *link {
            self.ask_end(number, now);
        } else {
            // The records have the number for another link.
            let ask = DriverRequest::EndRedirect { place: doc.place };
            self.call(link, ask, None, CallPurpose::Nothing, now);
        }
        false
    }
}
