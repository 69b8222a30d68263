//! Formats what is shown about flows and drivers, in `netnice show`, `netnice explain` and `netnice
//! doctor`: endpoints, counts, how a driver reaches its interface (the *mode*), and the features of
//! NICs. Nothing here reads or sends anything, except that [`program_item`] looks for the driver's
//! executable. No function fails.

use std::path::Path;

use netnice_api::direct::Endpoint;
use netnice_api::driver::{
    CodePointsDoc, DriverFlowDoc, FlowCounts, FramesDoc, StopsDoc, TimeAccountingDoc,
};
use netnice_api::{DoctorItem, Status};
use netnice_core::contract::Dscp;
use netnice_core::units::Nanos;
use netnice_kernel::direct::MAX_QUEUES;
use netnice_kernel::nic::{NicFeatures, ReceiveQueues, XdpAttachment};

use crate::flows::driver_reservation::driver_reservation;
use crate::flows::driver_threads::PacketThread;
use crate::flows::receive_shares::RECEIVE_BUDGET;
use crate::page::Page;

/// A flow's endpoint as text: the protocol, the local address, and the remote address, the group or
/// `any host`; for an EtherType, only its number.
pub(super) fn endpoint(endpoint: &Endpoint) -> String {
    match endpoint {
        Endpoint::Udp {
            local,
            remote: Some(remote),
        } => format!("udp {local} > {remote}"),
        Endpoint::Udp {
            local,
            remote: None,
        } => format!("udp {local} > any host"),
        Endpoint::Group { local, group } => format!("udp {local} > group {group}"),
        Endpoint::Tcp { local, remote } => format!("tcp {local} > {remote}"),
        Endpoint::TcpSyn { local } => format!("tcp {local} connection requests of any host"),
        Endpoint::TcpListener { local } => format!("tcp {local} > any host"),
        Endpoint::Protocol {
            number,
            local,
            remote,
            ..
        } => match remote {
            Some(remote) => format!("protocol {number} {local} > {remote}"),
            None => format!("protocol {number} {local} > any host"),
        },
        Endpoint::EtherType { number, .. } => format!("EtherType {number:#06x}"),
    }
}

/// An Ethernet address as text, for example `02:00:00:00:00:01`.
pub(super) fn mac(mac: [u8; 6]) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}

/// A driver's mode (`native`, `generic` or `fallback`) in words, with the reason why it is not
/// native.
pub(super) fn mode(mode: &str, why_not_native: Option<&str>) -> String {
    let text = match mode {
        "native" => "native: AF_XDP, in the interface's own driver",
        "generic" => "generic: AF_XDP behind the interface's driver, with one more copy",
        "fallback" => "fallback: AF_PACKET, for AF_XDP is refused here",
        other => other,
    };
    match why_not_native {
        Some(why) => format!("{text} ({why})"),
        None => text.to_owned(),
    }
}

/// Adds a flow's counts to a page: packets sent, received, and lost with the cause; the driver's
/// time for received packets; waiting times and lateness. `budget` is the flow's share of that time
/// in millionths.
pub(super) fn counts(counts: &FlowCounts, budget: u32, page: &mut Page) {
    page.row(
        "sent",
        &format!("{} packets, {} bytes", counts.sent, counts.sent_bytes),
    );
    let unsent = [
        (
            counts.forbidden,
            "by the program's fault: its headers were not the flow's",
        ),
        (
            counts.too_long,
            "by the program's fault: longer than the way allows",
        ),
        (
            counts.no_link,
            "the link was down, or the next hop did not answer",
        ),
    ];
    for (count, why) in unsent.into_iter().filter(|(count, _)| *count > 0) {
        page.row("not sent", &format!("{count} packets, {why}"));
    }
    page.row(
        "received",
        &format!(
            "{} packets, {} delivered, {} bytes",
            counts.received, counts.delivered, counts.delivered_bytes
        ),
    );
    let lost = [
        (counts.no_buffer, "by the program: it had no empty buffer"),
        (
            counts.buffer_too_short,
            "by the program: its buffer was too short",
        ),
        (
            counts.over_share,
            "by the driver: the flow had taken what it may of its time",
        ),
    ];
    for (count, why) in lost.into_iter().filter(|(count, _)| *count > 0) {
        page.row("lost", &format!("{count} packets, {why}"));
    }
    if counts.out_of_order > 0 {
        page.row(
            "lost",
            &format!(
                "{} parts of datagrams, by the flow's own wish: one before them was missing",
                counts.out_of_order
            ),
        );
    }
    if counts.receiving_ns > 0 {
        page.row(
            "takes",
            &format!(
                "{} of the driver's time so far for what it received; it may take {} % of it, \
                 and all flows together {} %",
                Nanos(counts.receiving_ns),
                budget / 10_000,
                RECEIVE_BUDGET / 10_000
            ),
        );
    }
    if let Some(mean) = counts.queue_delay_sum.checked_div(counts.sent) {
        page.row(
            "waited",
            &format!(
                "{} on average, {} at most",
                Nanos(mean),
                Nanos(counts.queue_delay_max)
            ),
        );
    }
    let late: Vec<String> = lateness(&counts.lateness);
    if !late.is_empty() {
        page.row("late", &late.join(", "));
    }
}

/// The code points that a driver writes, in words; `None` if it writes none.
pub(super) fn code_points(written: &CodePointsDoc) -> Option<String> {
    let kinds = [
        ("cell", written.cell),
        ("channel", written.channel),
        ("slice", written.slice),
        ("min", written.min),
        ("best effort", written.best_effort),
    ];
    let kinds = kinds
        .into_iter()
        .filter_map(|(kind, number)| Some(format!("{} for {kind}", Dscp::new(number?)?)));
    let kinds: Vec<String> = kinds.collect();
    (!kinds.is_empty()).then(|| format!("the driver writes {}", kinds.join(", ")))
}

/// A link's horizon in words; `None` if it has none.
pub(super) fn horizon(horizon: Nanos) -> Option<String> {
    (horizon.0 > 0)
        .then(|| format!("packets of channels leave up to {horizon} early if nothing else is sent"))
}

/// A driver's time accounting in words.
pub(super) fn time(spent: &TimeAccountingDoc) -> String {
    format!(
        "{} for what came in, {} for what was sent, {} before departures, so as to be in time",
        Nanos(spent.receiving_ns),
        Nanos(spent.sending_ns),
        Nanos(spent.waiting_ns)
    )
}

/// A driver's packet thread and its use of a processor, in words; `None` if the thread is unknown.
pub(super) fn packet_thread(thread: &PacketThread) -> Option<String> {
    let (id, used) = (thread.id()?, thread.most_used());
    let reserved = driver_reservation(used);
    Some(format!(
        "{id} sends and receives; in the last seconds it used up to {} % of a processor; beside \
         programs that have exact reservations of processor time it gets {} in each {}",
        used / 10_000,
        reserved.slice(),
        reserved.period()
    ))
}

/// How often and how long a driver's packet thread was stopped, in words.
pub(super) fn stops(stops: &StopsDoc) -> String {
    format!(
        "{} times by the machine, {} in all, {} at most: {} woken late, {} while it waited awake, \
         {} at work (from 20 us on)",
        stops.number(),
        Nanos(stops.total_ns),
        Nanos(stops.longest_ns),
        stops.late,
        stops.still,
        stops.slow
    )
}

/// How many of a driver's frames each owner has, and how many chunks of these flows, of `all`, the
/// driver has, in words.
pub(super) fn frames(frames: &FramesDoc, flows: &[DriverFlowDoc], all: usize) -> String {
    let held: u64 = flows.iter().map(|flow| u64::from(flow.held)).sum();
    let chunks: u64 = flows
        .iter()
        .map(|flow| u64::from(flow.setup.shape.chunks))
        .sum();
    let counted = match flows.len() < all {
        true => format!(" ({} of {all} flows are counted)", flows.len()),
        false => String::new(),
    };
    format!(
        "{} of {} free, {} with the kernel to be filled, {} to be sent, {} with the driver, and \
         {held} of the flows' {chunks} chunks{counted}",
        frames.free, frames.total, frames.filling, frames.sending, frames.driver
    )
}

/// The text that is shown while a driver keeps processors awake.
pub(super) const AWAKE: &str =
    "no processor falls asleep while packets of cell contracts leave (direct_awake of the policy)";

/// How many times programs notified the driver without need, in words.
pub(super) fn needless_doorbells(unasked: u64) -> String {
    format!(
        "{unasked} times by programs while the driver was awake and had not asked for it (rule R52 \
         of the ring)"
    )
}

/// The lateness histogram ([`FlowCounts::lateness`]) as bounds: those below which the lateness of
/// 50 %, 99 %, 99.9 % and all of the packets is, as far as these packets are not in the last entry,
/// which has no upper bound; and the number of packets in the last entry.
fn lateness(histogram: &[u64]) -> Vec<String> {
    let total: u64 = histogram.iter().sum();
    if total == 0 {
        return Vec::new();
    }
    let end_of = |k: usize| Nanos(1_000 << k);
    // The first step that covers so many thousandths of the packets.
    let step = |thousandths: u128| {
        let mut seen = 0;
        histogram.iter().position(|count| {
            seen += u128::from(*count);
            seen * 1_000 >= u128::from(total) * thousandths
        })
    };
    let rows = [
        (500, "half"),
        (990, "99 %"),
        (999, "99.9 %"),
        (1_000, "all"),
    ];
    let bounded = rows
        .into_iter()
        .filter_map(|(thousandths, word)| Some((word, step(thousandths)?)))
        .filter(|(_, k)| *k < LAST_ENTRY)
        .map(|(word, k)| format!("{word} less than {}", end_of(k)));
    let beyond: u64 = histogram.iter().skip(LAST_ENTRY).sum();
    let beyond = (beyond > 0).then(|| {
        let packets = plural(beyond as usize, "packet");
        format!("{packets} by {} or more", end_of(LAST_ENTRY - 1))
    });
    bounded.chain(beyond).collect()
}

/// The last entry of [`FlowCounts::lateness`], which also counts all greater latenesses.
const LAST_ENTRY: usize = 20;

/// A count with its noun, in the plural unless the count is 1.
pub(super) fn plural(count: usize, what: &str) -> String {
    match count {
        1 => format!("1 {what}"),
        _ => format!("{count} {what}s"),
    }
}

/// Reports whether the driver's executable exists.
pub(super) fn program_item(path: &Path) -> DoctorItem {
    match path.exists() {
        true => item(
            "direct path",
            Status::Good,
            format!("drivers are {}", path.display()),
            None,
        ),
        false => item(
            "direct path",
            Status::Missing,
            format!("there is no {}: direct flows are refused", path.display()),
            Some("install netnice-driver beside netniced"),
        ),
    }
}

/// Reports whether AF_XDP is available.
pub(super) fn af_xdp_item(found: Result<(), String>) -> DoctorItem {
    match found {
        Ok(()) => item(
            "AF_XDP",
            Status::Good,
            "sockets of it can be made".to_owned(),
            None,
        ),
        Err(why) => item(
            "AF_XDP",
            Status::Fallback,
            format!("{why}: direct flows use AF_PACKET, which takes more time for each packet"),
            Some("a kernel with CONFIG_XDP_SOCKETS"),
        ),
    }
}

/// Reports what a managed link offers direct flows. `used` describes its driver; `None` if none
/// runs.
pub(super) fn nic_item(link: &str, card: &NicFeatures, used: Option<String>) -> DoctorItem {
    let mut text = vec![format!(
        "{link}: {}",
        used.unwrap_or_else(|| "no direct flows".to_owned())
    )];
    let (status, xdp) = match card.native {
        Some(true) => (Status::Good, "its driver has XDP"),
        Some(false) => (
            Status::Fallback,
            "its driver has no XDP, frames are looked at behind it",
        ),
        None => (
            Status::Good,
            "this kernel does not say whether its driver has XDP",
        ),
    };
    text.push(xdp.to_owned());
    text.push(
        match card.attached {
            XdpAttachment::No => "none is on it now",
            XdpAttachment::Native => "XDP is on it now, in its driver",
            XdpAttachment::Generic => "XDP is on it now, behind its driver",
            XdpAttachment::Other => "XDP is on it now, in the card or in several places",
        }
        .to_owned(),
    );
    if card.zero_copy == Some(true) {
        text.push("it could do without copies, which are not dispensed with here".to_owned());
    }
    let unrequested = match (card.launch_time, card.flow_steering) {
        (true, true) => "the card could pace frames and steer flows by itself",
        (true, false) => "the card could pace frames by itself, and steers no flows",
        (false, true) => "the card could steer flows to queues, and cannot pace frames",
        (false, false) => "the card can neither pace frames nor steer flows",
    };
    text.push(unrequested.to_owned());
    let mut hint = None;
    let (status, queues) = match card.queues {
        Some(ReceiveQueues::Exactly(count)) if count > MAX_QUEUES => {
            hint = Some(format!("ethtool -L {link} combined {MAX_QUEUES}"));
            let text = format!("it has {count} receive queues, AF_XDP is used up to {MAX_QUEUES}");
            (Status::Fallback, Some(text))
        }
        Some(ReceiveQueues::Exactly(count)) => (
            status,
            Some(format!(
                "frames come by {}",
                plural(count as usize, "queue")
            )),
        ),
        _ => (status, None),
    };
    text.extend(queues);
    item("direct link", status, text.join("; "), hint.as_deref())
}

fn item(name: &str, status: Status, detail: String, hint: Option<&str>) -> DoctorItem {
    DoctorItem {
        name: name.to_owned(),
        status,
        detail,
        hint: hint.map(ToOwned::to_owned),
    }
}

#[cfg(test)]
mod tests {
    use netnice_api::Explained;

    use super::*;

    /// The rows of a page about these counts.
    fn rows(counted: &FlowCounts) -> Vec<String> {
        let mut page = Page::after(Explained::default());
        counts(counted, RECEIVE_BUDGET, &mut page);
        Explained::from(page).lines
    }

    #[test]
    fn lost_packets_are_shown_with_their_cause() {
        let counted = FlowCounts {
            received: 9,
            no_buffer: 2,
            out_of_order: 3,
            ..FlowCounts::default()
        };
        let rows = rows(&counted);
        let lost: Vec<&String> = rows.iter().filter(|row| row.contains("lost")).collect();
        assert_eq!(lost.len(), 2, "{rows:?}");
        assert!(lost[0].contains("2 packets, by the program"), "{lost:?}");
        assert!(lost[1].contains("3 parts of datagrams"), "{lost:?}");
    }

    #[test]
    fn a_nic_with_too_many_queues_gets_a_hint() {
        let queues = |count| NicFeatures {
            queues: Some(ReceiveQueues::Exactly(count)),
            ..NicFeatures::default()
        };
        let few = nic_item("eth0", &queues(4), None);
        assert!(few.detail.ends_with("frames come by 4 queues"), "{few:?}");
        assert_eq!((few.status, few.hint), (Status::Good, None));
        let many = nic_item("eth0", &queues(MAX_QUEUES + 1), None);
        assert_eq!(many.status, Status::Fallback);
        assert_eq!(many.hint.as_deref(), Some("ethtool -L eth0 combined 64"));
    }

    #[test]
    fn the_lateness_histogram_becomes_four_bounds() {
        assert!(lateness(&[0, 0]).is_empty());
        let rows = lateness(&[500, 0, 489, 0, 0, 10, 0, 0, 0, 0, 1]);
        let expected = [
            "half less than 1us",
            "99 % less than 32us",
            "99.9 % less than 32us",
            "all less than 1.024ms",
        ];
        assert_eq!(rows, expected);
    }

    #[test]
    fn the_last_entry_of_the_lateness_histogram_has_no_upper_bound() {
        let mut histogram = vec![0; 21];
        histogram[20] = 1;
        assert_eq!(lateness(&histogram), ["1 packet by 524.288ms or more"]);
        (histogram[0], histogram[19]) = (997, 2);
        let expected = [
            "half less than 1us",
            "99 % less than 1us",
            "99.9 % less than 524.288ms",
            "1 packet by 524.288ms or more",
        ];
        assert_eq!(lateness(&histogram), expected);
        histogram[20] = 20;
        let expected = ["half less than 1us", "20 packets by 524.288ms or more"];
        assert_eq!(lateness(&histogram), expected);
    }
}
