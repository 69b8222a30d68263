//! The root qdisc of a managed link: a token bucket filter with netnice's HTB below it. While no
//! deadline is promised on the link, the filter lets everything through ([`OPEN`]); with a deadline
//! it has the parameters of the plan's [`Pacer`]. [`Kernel::prepare_root`] installs it. Fails with
//! [`KernelError::ForeignQdisc`] if the link has the root qdisc of another program, and with the
//! kernel's error if the kernel does not list the qdiscs or refuses a change.
//!
//! A change of the filter's parameters keeps all packets, and fills the bucket. A shorter bucket
//! takes effect when the long packets that wait below it have left. So contracts with
//! deadlines come and go without a loss. A kernel without the filter has HTB alone; so may a link
//! that an earlier version of netnice manages, until its first deadline. Then the classes are made
//! anew, and packets that wait in them are lost, as if their queues were full.

use super::{Kernel, stages::LINK_MAJOR};
use crate::{
    device::Device,
    error::KernelError,
    plan::Pacer,
    tc::{self, FoundClass, FoundQdisc, Handle, Tbf},
};

/// The form of a root qdisc of netnice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Root {
    /// HTB alone.
    Classes,
    /// HTB below a token bucket filter.
    Paced,
}

/// The form of an interface's root qdisc; `None` if netnice has none there.
pub(super) fn of(qdiscs: &[FoundQdisc], ifindex: u32) -> Option<Root> {
    let root = root(qdiscs, ifindex)?;
    match (root.handle.major(), root.kind.as_str()) {
        (LINK_MAJOR, "htb") => Some(Root::Classes),
        (PACER_MAJOR, "tbf") => Some(Root::Paced),
        _ => None,
    }
}

fn root(qdiscs: &[FoundQdisc], ifindex: u32) -> Option<&FoundQdisc> {
    let is_root = |q: &&FoundQdisc| q.ifindex == ifindex && q.parent == Handle::ROOT;
    qdiscs.iter().find(is_root)
}

impl Kernel {
    /// Makes the root qdisc of a link the filter that a plan wants, with HTB below it. Fails with
    /// [`KernelError::ForeignQdisc`] if another program has set the root qdisc (its handle is not
    /// 0).
    pub(super) fn prepare_root(
        &mut self,
        device: &Device,
        pacer: Option<Pacer>,
    ) -> Result<(), KernelError> {
        let wanted = pacer.map_or(OPEN, |pacer| {
            let bucket = pacer.bucket_for(device.mtu);
            Tbf {
                rate: pacer.rate,
                bucket,
                longest: bucket,
                overhead: pacer.overhead,
            }
        });
        let is_known = self.stages.up.get(&device.name) == Some(&device.index);
        let known = self.stages.pacers.get(&device.name).copied();
        match known {
            None if is_known && pacer.is_none() => Ok(()),
            Some(present) if is_known => match present == Some(wanted) {
                true => Ok(()),
                false => self.change_pacer(device, present, wanted),
            },
            _ => self.install_root(device, wanted, pacer.is_some()),
        }
    }

    /// Changes the parameters of the filter. Packets that were let in with a longer bucket may wait
    /// below it, and would never pass a short one. So a shorter bucket comes in two steps: first
    /// the filter lets in short packets only, with a bucket for long ones; when all packets from
    /// before have left, [`Kernel::close_pacers`] sets the bucket.
    fn change_pacer(
        &mut self,
        device: &Device,
        present: Option<Tbf>,
        wanted: Tbf,
    ) -> Result<(), KernelError> {
        let (netlink, name) = (&mut self.netlink, &device.name);
        let unfinished = self.stages.closing.remove(name);
        let longest = present.map_or(u32::MAX, |present| present.longest);
        let longest = longest.max(unfinished.map_or(0, |closing| closing.longest));
        let longest = longest.min(LONGEST_PACKET);
        if wanted.bucket >= longest {
            tc::put_pacer(netlink, device.index, PACER_MAJOR, &wanted)?;
        } else {
            let between = Tbf {
                bucket: longest,
                ..wanted
            };
            tc::put_pacer(netlink, device.index, PACER_MAJOR, &between)?;
            let classes = tc::classes(netlink, device.index)?;
            let waiting = classes.iter().filter(|class| class.counts.backlog > 0);
            let until = waiting.map(|class| (class.id, sent_after_queue(class)));
            let closing = ClosingPacer {
                ifindex: device.index,
                wanted,
                longest,
                until: until.collect(),
            };
            self.stages.closing.insert(name.clone(), closing);
        }
        self.stages.pacers.insert(name.clone(), Some(wanted));
        Ok(())
    }

    /// Sets the buckets of filters that were to become shorter, where all packets from before have
    /// left. Fails if the kernel does not list the classes, or refuses the change.
    pub(super) fn close_pacers(&mut self) -> Result<(), KernelError> {
        for (name, mut closing) in std::mem::take(&mut self.stages.closing) {
            let classes = tc::classes(&mut self.netlink, closing.ifindex)?;
            closing.until.retain(|(id, until)| {
                let class = classes.iter().find(|class| class.id == *id);
                class.is_some_and(|c| c.counts.backlog > 0 && c.counts.bytes < *until)
            });
            match closing.until.is_empty() {
                true => tc::put_pacer(
                    &mut self.netlink,
                    closing.ifindex,
                    PACER_MAJOR,
                    &closing.wanted,
                )?,
                false => drop(self.stages.closing.insert(name, closing)),
            }
        }
        Ok(())
    }

    /// Installs the root qdisc. If the filter is not `needed`, a kernel without it gets HTB alone.
    fn install_root(
        &mut self,
        device: &Device,
        wanted: Tbf,
        needed: bool,
    ) -> Result<(), KernelError> {
        let index = device.index;
        let qdiscs = tc::qdiscs(&mut self.netlink)?;
        let present = of(&qdiscs, index);
        if let Some(found) = root(&qdiscs, index)
            && found.handle.major() != 0
            && present.is_none()
        {
            return Err(KernelError::ForeignQdisc {
                interface: device.name.clone(),
                kind: found.kind.clone(),
                handle: format!("{:x}:", found.handle.major()),
            });
        }
        let classes = Handle::new(LINK_MAJOR, 0);
        let has_classes = qdiscs
            .iter()
            .any(|q| q.ifindex == index && q.handle == classes);
        let netlink = &mut self.netlink;
        let keeps_classes = (present == Some(Root::Classes) && !needed)
            || (present == Some(Root::Paced) && has_classes);
        let is_paced = match present {
            Some(Root::Classes) if !needed => false,
            _ => match tc::put_pacer(netlink, index, PACER_MAJOR, &wanted) {
                Ok(()) => true,
                Err(error) if !needed && error.is_gone() => false,
                Err(error) => return Err(error.into()),
            },
        };
        if !keeps_classes {
            match is_paced {
                true => tc::add_htb_below(netlink, index, LINK_MAJOR, PACER_MAJOR)?,
                false => tc::add_htb(netlink, index, LINK_MAJOR)?,
            }
            let trees = self.installed.links.entry(device.name.clone()).or_default();
            trees.trees[0] = None;
        }
        self.stages.up.insert(device.name.clone(), index);
        match is_paced {
            true => self.stages.pacers.insert(device.name.clone(), Some(wanted)),
            false => self.stages.pacers.remove(&device.name),
        };
        Ok(())
    }

    /// Removes the root qdisc of netnice from an interface, in whichever form it is.
    pub(super) fn remove_root(&mut self, ifindex: u32) -> Result<(), KernelError> {
        let qdiscs = tc::qdiscs(&mut self.netlink)?;
        let major = match of(&qdiscs, ifindex) {
            Some(Root::Paced) => PACER_MAJOR,
            _ => LINK_MAJOR,
        };
        Ok(tc::remove_root(&mut self.netlink, ifindex, major)?)
    }
}

/// A filter whose bucket becomes shorter.
#[derive(Debug)]
pub(super) struct ClosingPacer {
    ifindex: u32,
    wanted: Tbf,
    /// The longest packet that may wait below it.
    longest: u32,
    /// The classes that had packets, with the bytes that each has sent when these have left.
    until: Vec<(Handle, u64)>,
}

/// The bytes that a class has sent when all that it has queued now has left.
fn sent_after_queue(class: &FoundClass) -> u64 {
    let counts = &class.counts;
    counts.bytes.saturating_add(u64::from(counts.backlog))
}

/// More than the longest packet of segmentation offload, as qdiscs count it: in bytes, with the
/// headers of all segments that it becomes. (64 KiB with segments of 1448 bytes count as 68,130
/// bytes, and BIG TCP has packets of 512 KiB.) A waiting packet longer than the bucket would stop
/// the link.
const LONGEST_PACKET: u32 = 1 << 20;
/// A filter that delays nothing: 1 Tbit/s, with a bucket above the longest packet of segmentation
/// offload.
const OPEN: Tbf = Tbf {
    rate: 125_000_000_000,
    bucket: 1 << 20,
    longest: 1 << 20,
    overhead: 0,
};
/// The handle of the filter above the classes of a link. Its remainder by the classes of a slot is
/// that of no leaf, because segmenting filters have the numbers of their leaves as handles.
pub(crate) const PACER_MAJOR: u16 = 0x4e42;
