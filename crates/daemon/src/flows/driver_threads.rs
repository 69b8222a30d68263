//! The packet threads of the drivers, and the processor time that they use, for their reservations
//! ([`super::driver_reservation`]). The use comes with the driver's counts of sent bytes, several
//! times a second. No call fails; what a driver does not state is unknown.

use std::collections::VecDeque;

use netnice_api::driver::{PacketThreadDoc, ThreadTimeDoc};
use netnice_core::contract::IfName;
use netnice_core::units::Nanos;

use super::Flows;
use super::network::Network;
use super::packet_costs::LEAST_PACKETS;

/// The packet thread of a driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DriverThread {
    /// The driver's link.
    pub link: IfName,
    /// The driver's process.
    pub process: u32,
    /// The thread's id, in the daemon's PID namespace.
    pub thread: u32,
    /// The largest part of a processor that it used lately, in parts of a million. It includes
    /// waiting awake before departures: a budget without room for that stops the thread when the
    /// next packet is due.
    pub used_ppm: u32,
    /// The processor that the driver bound the thread to at its start; `None`: it may run on each.
    pub processor: Option<u32>,
}

/// What is known of a driver's packet thread.
#[derive(Debug, Default)]
pub(super) struct PacketThread {
    /// The driver's process, in the daemon's PID namespace.
    pub(super) process: Option<u32>,
    /// The thread's id there, once a thread of that process was found to have it.
    id: Option<u32>,
    processor: Option<u32>,
    last: Option<(ThreadTimeDoc, u64)>,
    /// Uses of the last [`WINDOW`], each with the time of its end, the earliest first.
    uses: VecDeque<(u64, Use)>,
    /// The work of a packet when there were enough of them last.
    packet_cost: Option<Nanos>,
}

/// What a stretch of time took of a processor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Use {
    /// The part of it that the thread used, in parts of a million.
    ppm: u32,
    /// Processor time in ns without waiting awake, and the packets that were sent and delivered
    /// with it.
    for_packets: (u64, u64),
}

impl PacketThread {
    /// Takes the thread's times, and the packets that it has sent and delivered, later than before.
    pub(super) fn record(&mut self, time: ThreadTimeDoc, packets: u64) {
        let Some((last, packets_before)) = self.last else {
            self.last = Some((time, packets));
            return;
        };
        let passed = time.at_ns.saturating_sub(last.at_ns);
        if passed < SHORTEST {
            return;
        }
        let all = time.processor_ns.saturating_sub(last.processor_ns);
        let waited = time.waiting_ns.saturating_sub(last.waiting_ns);
        // The wait is measured by the clock, so stops of the thread count in it.
        let work = all.saturating_sub(waited);
        let used = Use {
            ppm: ppm(all, passed),
            for_packets: (work, packets.saturating_sub(packets_before)),
        };
        self.last = Some((time, packets));
        self.uses.push_back((time.at_ns, used));
        let oldest = time.at_ns.saturating_sub(WINDOW);
        while self.uses.front().is_some_and(|(at, _)| *at < oldest) {
            self.uses.pop_front();
        }
        let each = self.uses.iter().map(|(_, used)| used.for_packets);
        let (work, packets) = each.fold((0_u64, 0_u64), |sum, one| (sum.0 + one.0, sum.1 + one.1));
        if packets >= LEAST_PACKETS {
            self.packet_cost = Some(Nanos(work / packets));
        }
    }

    /// The thread's work for each packet, the last time it had enough of them; `None` if it never
    /// had.
    pub(super) fn packet_cost(&self) -> Option<Nanos> {
        self.packet_cost
    }

    /// The largest use lately, in parts of a million; 0 if it is unknown.
    pub(super) fn most_used(&self) -> u32 {
        let uses = self.uses.iter().map(|(_, used)| used.ppm);
        uses.max().unwrap_or(0)
    }

    /// The thread's id in the daemon's PID namespace; `None` if it is unknown.
    pub(super) fn id(&self) -> Option<u32> {
        self.id
    }
}

impl<N: Network> Flows<N> {
    /// The packet threads of all drivers that state theirs.
    pub(crate) fn driver_threads(&self) -> Vec<DriverThread> {
        let states = self.link_states.iter().filter(|(_, state)| state.connected);
        let threads = states.filter_map(|(link, state)| {
            Some(DriverThread {
                link: link.clone(),
                process: state.thread.process?,
                thread: state.thread.id?,
                used_ppm: state.thread.most_used(),
                processor: state.thread.processor,
            })
        });
        threads.collect()
    }

    /// Takes the packet thread that a driver states. A driver is not trusted with it: the thread
    /// counts only if it belongs to the process that has the driver's socket.
    pub(super) fn identify_thread(&mut self, link: &IfName, stated: Option<PacketThreadDoc>) {
        let (Some(state), Some(stated)) = (self.link_states.get_mut(link), stated) else {
            return;
        };
        let process = state.thread.process;
        state.thread.id = process.and_then(|process| self.network.thread(process, stated.id));
        state.thread.processor = stated.processor;
    }
}

fn ppm(part: u64, whole: u64) -> u32 {
    let ppm = u128::from(part) * 1_000_000 / u128::from(whole.max(1));
    u32::try_from(ppm).unwrap_or(u32::MAX).min(1_000_000)
}

/// For how long a use counts, in ns.
const WINDOW: u64 = 5_000_000_000;
/// The shortest stretch of time over which a use is measured, in ns.
const SHORTEST: u64 = 50_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    fn time(at_ms: u64, processor_ms: u64, waiting_ms: u64) -> ThreadTimeDoc {
        let ns = |ms: u64| ms * 1_000_000;
        ThreadTimeDoc {
            at_ns: ns(at_ms),
            processor_ns: ns(processor_ms),
            waiting_ns: ns(waiting_ms),
        }
    }

    #[test]
    fn the_highest_use_of_the_last_seconds_counts() {
        let mut thread = PacketThread::default();
        assert_eq!(thread.most_used(), 0);
        thread.record(time(1_000, 500, 100), 0);
        assert_eq!(thread.most_used(), 0);
        thread.record(time(1_200, 600, 150), 0);
        assert_eq!(thread.most_used(), 500_000);
        // Too soon after the one before.
        thread.record(time(1_201, 601, 150), 0);
        thread.record(time(2_200, 700, 150), 0);
        assert_eq!(thread.most_used(), 500_000);
        thread.record(time(6_200, 720, 1_000), 0);
        assert_eq!(thread.most_used(), 500_000);
        thread.record(time(6_300, 740, 1_010), 0);
        assert_eq!(thread.most_used(), 200_000);
    }

    #[test]
    fn times_that_go_back_or_lead_too_far_give_no_impossible_use() {
        let mut thread = PacketThread::default();
        for at in [time(1_000, 500, 400), time(2_000, 400, 0), time(500, 0, 0)] {
            thread.record(at, 0);
        }
        assert_eq!(thread.most_used(), 0);
        thread.record(time(3_000, 90_000, 0), 0);
        assert_eq!(thread.most_used(), 1_000_000);
    }

    #[test]
    fn a_packet_costs_the_work_of_the_last_seconds_with_enough_packets() {
        let mut thread = PacketThread::default();
        thread.record(time(0, 0, 0), 500);
        thread.record(time(1_000, 20, 10), 500 + LEAST_PACKETS - 1);
        assert_eq!(thread.packet_cost(), None);
        thread.record(time(2_000, 40, 20), 500 + 2 * LEAST_PACKETS);
        assert_eq!(thread.packet_cost(), Some(Nanos(20_000_000 / 200)));
        // Few packets later, the former cost stays.
        thread.record(time(60_000, 50, 20), 501 + 2 * LEAST_PACKETS);
        assert_eq!(thread.packet_cost(), Some(Nanos(20_000_000 / 200)));
    }
}
