//! What a careful administrator has today: HTB by hand, on the device itself.
//!
//! The lab measures it beside netnice, and calibrates itself with it: HTB's rate is known to be
//! right, so an experiment that cannot see that is wrong itself.

use anyhow::Result;

use super::Netns;

/// What waits inside the class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Leaf {
    /// HTB's own: as many packets as the device's txqueuelen.
    Default,
    /// A FIFO of so many bytes.
    Bytes(u32),
}

/// A single class that everything leaving `device` passes; replaces an earlier one.
pub fn limit(ns: &Netns, device: &str, bits: u64, leaf: Leaf) -> Result<()> {
    clear(ns, device);
    let burst = (bits * 12 / 80_000).max(3028);
    ns.tc(&format!(
        "qdisc add dev {device} root handle 1: htb default 10"
    ))?;
    ns.tc(&format!(
        "class add dev {device} parent 1: classid 1:10 htb rate {bits}bit burst {burst} cburst {burst} quantum 15140"
    ))?;
    if let Leaf::Bytes(bytes) = leaf {
        ns.tc(&format!(
            "qdisc add dev {device} parent 1:10 handle 10: bfifo limit {bytes}"
        ))?;
    }
    Ok(())
}

/// Changes the rate of the class that [`limit`] made.
pub fn change(ns: &Netns, device: &str, bits: u64) -> Result<()> {
    let burst = (bits * 12 / 80_000).max(3028);
    ns.tc(&format!(
        "class change dev {device} parent 1: classid 1:10 htb rate {bits}bit burst {burst} cburst {burst} quantum 15140"
    ))?;
    Ok(())
}

/// Takes the device's root queue away, if there is one.
pub fn clear(ns: &Netns, device: &str) {
    let _ = ns.tc(&format!("qdisc del dev {device} root"));
}
