//! Remarks in the response to a change of a target: tighter limits around it ([`remarks()`]), and
//! open sockets to which it does not apply, or not yet, or in another way ([`socket_remarks`]).
//! The ledger and the result of an adoption come in, texts go out. No function fails.

use netnice_core::admission::TargetId;
use netnice_kernel::enforce::Adoption;

use crate::ledger::{HeldTarget, Ledger};

/// Remarks about a target that was just set.
pub(super) fn remarks(ledger: &Ledger, slot: TargetId, adoption: &Adoption) -> Vec<String> {
    let mut remarks = Vec::new();
    if let Some(held) = ledger.get(slot) {
        remarks.extend(tighter_outer_limits(ledger, held));
        let needs_nothing = held.auto.unknown.is_none() && held.auto.needed.is_none();
        let has_nothing = needs_nothing && held.reserved().is_none();
        if held.entry.contract.has_auto_time() && has_nothing {
            remarks.push(
                "it has no direct flow that is promised a rate, so no processor time is reserved \
                 before it opens one"
                    .to_owned(),
            );
        }
    }
    remarks.extend(socket_remarks(adoption));
    remarks
}

/// Remarks about open sockets of new members: those that are not held, are held later, or are held
/// by their number instead of a tag.
pub(in crate::service) fn socket_remarks(adoption: &Adoption) -> Vec<String> {
    let mut remarks = Vec::new();
    if adoption.shared_listeners > 0 {
        remarks.push(format!(
            "{} listening sockets are shared with processes outside and were left alone",
            adoption.shared_listeners
        ));
    }
    if adoption.unfinished {
        remarks.push(
            "it has so many open sockets that some of them are held a moment later".to_owned(),
        );
    }
    if adoption.by_cookie > 0 {
        remarks.push(format!(
            "{} open sockets have used up their option memory (net.core.optmem_max) and have no \
             room for a tag: they are \
             held by their number",
            adoption.by_cookie
        ));
    }
    if adoption.untracked > 0 {
        remarks.push(format!(
            "{} open sockets without room for a tag are not held: the table of such sockets is \
             full",
            adoption.untracked
        ));
    }
    if adoption.hidden_mptcp > 0 {
        remarks.push(format!(
            "{} open MPTCP sockets hide their connections from the kernel's owner; limit their \
             unit or cgroup to \
             hold them",
            adoption.hidden_mptcp
        ));
    }
    remarks
}

/// Remarks about limits of the targets around a target that are below the target's own.
fn tighter_outer_limits(ledger: &Ledger, held: &HeldTarget) -> Vec<String> {
    let own = &*held.in_force();
    let effective = held.effective(ledger);
    let pairs = [
        ("up", own.up(), effective.up()),
        ("down", own.down(), effective.down()),
        ("both", own.both(), effective.both()),
    ];
    let tighter = pairs
        .into_iter()
        .filter(|(_, own, effective)| own.is_some() && effective < own);
    tighter
        .filter_map(|(word, _, effective)| {
            Some(format!(
                "{word} is held at {} by what is around it",
                effective?
            ))
        })
        .collect()
}
