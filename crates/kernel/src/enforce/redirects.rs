//! Makes and removes the redirect pair of each link whose driver carries packets of targets, and
//! gives the driver the map that both sides count in ([`Kernel::redirects`]). The driver receives
//! at the far end by AF_XDP, which takes whole frames with their checksums. So the near end has no
//! offload, and the kernel segments and sums each packet before it enters. Fails with the kernel's
//! error if it refuses the pair or the map.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, OwnedFd};

use netnice_core::units::Nanos;

use super::{Kernel, LINK_MAJOR, find_device};
use crate::{
    abi,
    device::{self, Device, Pair},
    error::KernelError,
    ethtool,
    plan::Plan,
    programs::Programs,
    tc,
};

/// The redirect pair of a link, and the map of redirects.
#[derive(Debug)]
pub struct Redirects {
    /// The name of the far end, where the driver receives.
    pub far: String,
    /// The interface index of the far end, which tells a pair from one that was made later.
    pub far_index: u32,
    /// The kernel's number of the map. It tells a map from one that was made later.
    pub map_id: u32,
    /// The map, an array of [`Redirect`] for mmap(2).
    pub map: OwnedFd,
}

pub use crate::abi::{Redirect, RedirectFlow};

impl Kernel {
    /// The redirect pair of a link, and the map; `None` if the link has no pair.
    ///
    /// # Errors
    /// If the descriptor cannot be duplicated.
    pub fn redirects(&self, link: &str) -> Result<Option<Redirects>, KernelError> {
        let (Some(programs), Some(pair)) = (&self.programs, self.stages.redirects.get(link)) else {
            return Ok(None);
        };
        let redirects = programs.array(Programs::REDIRECTS)?;
        let what = "read the map of redirects";
        let info = redirects.info().map_err(|e| KernelError::bpf(what, e))?;
        let map = redirects.fd().as_fd().try_clone_to_owned();
        let index = self.interfaces.iter().find(|(_, a)| a.name == link);
        let index = index.map_or(0, |(index, _)| *index);
        Ok(Some(Redirects {
            far: names(index).1,
            far_index: pair.far,
            map_id: info.id(),
            map: map.map_err(|e| KernelError::bpf(what, e))?,
        }))
    }

    /// The time in which the classes of a link send what they have queued of a target, at the
    /// highest rate of its class. A target without a class of its own or of a target around it has
    /// its packets in the leaves for traffic without a target.
    ///
    /// # Errors
    /// If the kernel does not list the classes.
    pub fn drain_time(&mut self, link: &str, id: u32) -> Result<Nanos, KernelError> {
        let trees = self.installed.links.get(link);
        let leaves = trees.and_then(|trees| {
            let own = trees.leaves.get(&id).and_then(|leaves| leaves[0]);
            own.or(trees.rest[0])
        });
        let (Some(leaves), Some(index)) = (leaves, self.stages.up.get(link)) else {
            return Ok(Nanos(0));
        };
        let numbers = BTreeSet::from([leaves.sparse, leaves.bulk, leaves.local, leaves.patient]);
        let classes = tc::classes(&mut self.netlink, *index)?;
        let own = classes
            .iter()
            .filter(|class| class.id.major() == LINK_MAJOR && numbers.contains(&class.id.minor()));
        let queued: u64 = own.clone().map(|c| u64::from(c.counts.backlog)).sum();
        let rate = own.filter_map(|class| Some(class.htb?.ceil)).max();
        let time = u128::from(queued) * 1_000_000_000 / u128::from(rate.unwrap_or(1).max(1));
        Ok(Nanos(u64::try_from(time).unwrap_or(u64::MAX)))
    }

    /// Makes the missing redirect pairs of a plan. Fails if a link does not exist, or the kernel
    /// refuses a pair.
    pub(super) fn prepare_redirects(
        &mut self,
        plan: &Plan,
        devices: &[Device],
    ) -> Result<(), KernelError> {
        for (name, trees) in &plan.links {
            if !trees.has_redirects || self.stages.redirects.contains_key(name) {
                continue;
            }
            let device =
                find_device(devices, name).ok_or_else(|| KernelError::NoInterface(name.clone()))?;
            let (near, far) = names(device.index);
            let pair = device::ensure_pair(&mut self.netlink, &near, &far)?;
            ethtool::disable_send_offloads(&near)
                .map_err(KernelError::file("switch off the offloads of", near))?;
            self.stages.redirects.insert(name.clone(), pair);
        }
        Ok(())
    }

    /// Removes the redirect pairs that a plan no longer needs. A pair whose removal fails stays
    /// known, so that the next try removes it. Fails if the kernel refuses a removal.
    pub(super) fn drop_redirects(&mut self, plan: &Plan) -> Result<(), KernelError> {
        let is_needed = |name: &String| plan.links.get(name).is_some_and(|l| l.has_redirects);
        let unneeded = self.stages.redirects.keys().filter(|name| !is_needed(name));
        for name in unneeded.cloned().collect::<Vec<String>>() {
            if let Some(pair) = self.stages.redirects.get(&name) {
                device::remove(&mut self.netlink, pair.near)?;
                self.stages.redirects.remove(&name);
            }
        }
        Ok(())
    }

    /// Finds the redirect pairs of an earlier daemon.
    pub(super) fn find_redirects(&mut self, devices: &[Device]) {
        for device in devices {
            let (near, far) = names(device.index);
            let index = |name: &str| find_device(devices, name).map(|d| d.index);
            if let (Some(near), Some(far)) = (index(&near), index(&far)) {
                let pair = Pair { near, far };
                self.stages.redirects.insert(device.name.clone(), pair);
            }
        }
    }

    /// Forgets the pairs of which an end is gone, so that they are made again.
    pub(super) fn forget_lost_redirects(&mut self, devices: &[Device]) {
        let exists = |index: u32| devices.iter().any(|device| device.index == index);
        let pairs = &mut self.stages.redirects;
        pairs.retain(|_, pair| exists(pair.near) && exists(pair.far));
    }
}

/// The names of the two ends of a link's redirect pair. They contain the index, since a link's name
/// may already have the maximum length.
fn names(index: u32) -> (String, String) {
    (format!("nnr{index}"), format!("nns{index}"))
}

/// The number of places in the map of redirects.
pub const MAX_REDIRECTS: usize = abi::MAX_REDIRECTS as usize;
/// The buckets by which a place counts its flows.
pub const REDIRECT_BUCKETS: usize = abi::REDIRECT_GROUPS as usize * 32;
/// What a packet that waits counts beyond its length, in bytes.
pub const REDIRECT_OVERHEAD: u32 = abi::REDIRECT_OVERHEAD;
