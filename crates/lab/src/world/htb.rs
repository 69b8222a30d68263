//! Sets up HTB by hand on a device: the baseline without netnice.
//!
//! The lab measures HTB beside netnice and calibrates its experiments by HTB: HTB's rate is known
//! to be correct, so an experiment that measures another rate is wrong. A limit or a change of one
//! fails if tc(8) fails; a removal never fails.

use anyhow::Result;

use super::Netns;

/// The queue inside the HTB class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Leaf {
    /// HTB's default: as many packets as the device's txqueuelen.
    Default,
    /// A FIFO of this many bytes.
    Bytes(u32),
    /// fq_codel with its default settings.
    FqCodel,
}

/// Limits all packets that leave `device` to `bits` bit/s by one HTB class with a burst of 1.2 ms
/// (at least 3028 bytes); replaces an earlier root qdisc. Fails if tc(8) fails.
pub fn limit(ns: &Netns, device: &str, bits: u64, leaf: Leaf) -> Result<()> {
    clear(ns, device);
    let burst = (bits * 12 / 80_000).max(3028);
    ns.tc(&format!(
        "qdisc add dev {device} root handle 1: htb default 10"
    ))?;
    ns.tc(&format!(
        "class add dev {device} parent 1: classid 1:10 htb rate {bits}bit burst {burst} cburst {burst} quantum 15140"
    ))?;
    let queue = match leaf {
        Leaf::Default => return Ok(()),
        Leaf::Bytes(bytes) => format!("bfifo limit {bytes}"),
        Leaf::FqCodel => "fq_codel".to_owned(),
    };
    ns.tc(&format!(
        "qdisc add dev {device} parent 1:10 handle 10: {queue}"
    ))?;
    Ok(())
}

/// Limits all packets that leave `device` to `bits` bit/s by CAKE; replaces an earlier root qdisc.
/// Fails if tc(8) fails, as it does if the kernel has no CAKE.
pub(crate) fn limit_by_cake(ns: &Netns, device: &str, bits: u64) -> Result<()> {
    clear(ns, device);
    ns.tc(&format!(
        "qdisc add dev {device} root cake bandwidth {bits}bit"
    ))?;
    Ok(())
}

/// Changes the rate of the class that [`limit`] made to `bits` bit/s. Fails if there is none.
pub(crate) fn change(ns: &Netns, device: &str, bits: u64) -> Result<()> {
    let burst = (bits * 12 / 80_000).max(3028);
    ns.tc(&format!(
        "class change dev {device} parent 1: classid 1:10 htb rate {bits}bit burst {burst} cburst {burst} quantum 15140"
    ))?;
    Ok(())
}

/// Removes the device's root qdisc, if there is one.
pub(crate) fn clear(ns: &Netns, device: &str) {
    let _ = ns.tc(&format!("qdisc del dev {device} root"));
}
