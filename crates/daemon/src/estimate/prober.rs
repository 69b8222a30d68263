//! The thread that measures one link ([`run`]): it sends the probes that the controller wants,
//! reads replies and counters, and reports the estimates.
//!
//! A reflector is asked for its clock (a timestamp request) and for an echo until it has replied to
//! [`TRIED_REPLIES`] probes; then only for its clock if it reports one, else only for echoes. A
//! reply counts if it comes from the reflector, repeats the identifier and the secret of an awaited
//! probe, and is the first. The secret is a keyed hash of the sequence number with a key of this
//! thread.
//!
//! The time of a probe is the difference of two times of the kernel, of the departure at the
//! interface and of the arrival, so it contains no queue of this host. A driver that reports no
//! departures adds the local queue. At most [`REPLIES_PER_TURN`] replies are read in a turn, and a
//! turn takes at least [`LEAST_TURN`], so a flood of forged replies costs little. The thread ends
//! when it is told to, within [`LONGEST_TURN`].

use std::collections::VecDeque;
use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use netnice_core::units::{Instant, Nanos, Rate};
use netnice_kernel::icmp::{ProbeId, ProbeKind, ProbeReply, ProbeSocket};
use netnice_kernel::netlink::NetlinkClient;
use netnice_kernel::traffic;
use rustix::event::{PollFd, PollFlags, poll};

use super::controller::{Controller, Probe};
use super::delays::Reply;
use super::threads::Mailbox;
use super::{Estimated, EstimatedLink};
use crate::clock::Now;

/// Measures a link until `stop` is true.
pub(super) fn run(
    link: EstimatedLink,
    rates: [Option<Rate>; 2],
    number: u64,
    mailbox: &Mailbox,
    stop: &Arc<AtomicBool>,
) {
    let now = Now::read().monotonic;
    let mut controller = Controller::new(link.bounds, rates, link.reflectors.len(), now);
    let mut probing = Probing::new(&link);
    let mut netlink = None;
    let mut told = None;
    while !stop.load(Ordering::Relaxed) {
        let now = Now::read().monotonic;
        if controller.wants_counts(now) {
            let counts = read_counts(&mut netlink, link.name.as_str());
            controller.handle_counts(counts, now);
        }
        if let Some(probe) = controller.poll_probe(now) {
            match probing.send(probe) {
                Ok(()) => controller.handle_sent(),
                Err(error) => controller.handle_unsent(probe.sequence, error.to_string()),
            }
        }
        let now = Now::read().monotonic;
        probing.receive(&mut controller, now);
        let news = Estimated {
            number,
            name: link.name.clone(),
            rates: controller.rates(),
            state: controller.state(),
        };
        if told.as_ref() != Some(&news) {
            mailbox.post(news.clone());
            told = Some(news);
        }
        probing.wait(controller.poll_timeout());
    }
}

/// The counters of an interface; `None` if it does not exist or the kernel does not report them.
fn read_counts(
    netlink: &mut Option<NetlinkClient>,
    interface: &str,
) -> Option<traffic::ByteCounts> {
    if netlink.is_none() {
        *netlink = NetlinkClient::open().ok();
    }
    let read = traffic::byte_counts_of(netlink.as_mut()?, interface);
    match read {
        Ok(counts) => counts,
        Err(_) => {
            *netlink = None;
            None
        }
    }
}

/// The sockets of a link's reflectors, and the times of probes.
struct Probing {
    interface: String,
    reflectors: Vec<Reflector>,
    identifier: u16,
    secrets: RandomState,
    turn: Instant,
}

struct Reflector {
    host: IpAddr,
    /// `None` until the first probe, and after an error.
    socket: Option<ProbeSocket>,
    kinds: Kinds,
    sent: VecDeque<Sent>,
}

/// What a reflector is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kinds {
    /// Both, until it has replied this number of times, and so often with its clock.
    Both { replies: u32, clocks: u32 },
    /// Its clock.
    Clock,
    /// Echoes.
    Echo,
}

/// A request that was sent.
#[derive(Clone, Copy, Debug)]
struct Sent {
    sequence: u16,
    kind: ProbeKind,
    key: u32,
    /// By the wall clock of this thread, and of the kernel.
    sent_ns: u64,
    departed_ns: Option<u64>,
}

impl Probing {
    fn new(link: &EstimatedLink) -> Probing {
        let secrets = RandomState::new();
        let reflector = |host: &IpAddr| Reflector {
            host: *host,
            socket: None,
            kinds: match host {
                IpAddr::V4(_) => Kinds::Both {
                    replies: 0,
                    clocks: 0,
                },
                IpAddr::V6(_) => Kinds::Echo,
            },
            sent: VecDeque::new(),
        };
        Probing {
            interface: link.name.to_string(),
            reflectors: link.reflectors.iter().map(reflector).collect(),
            identifier: secrets.hash_one("identifier") as u16,
            secrets,
            turn: Instant::default(),
        }
    }

    /// Sends a probe. Fails if none of its requests could be sent; then another socket is opened
    /// for the next probe.
    fn send(&mut self, probe: Probe) -> std::io::Result<()> {
        let Some(reflector) = self.reflectors.get_mut(probe.reflector) else {
            return Ok(());
        };
        let socket = match &mut reflector.socket {
            Some(socket) => socket,
            none => none.insert(ProbeSocket::open(&self.interface, reflector.host)?),
        };
        let kinds: &[ProbeKind] = match reflector.kinds {
            Kinds::Both { .. } => &[ProbeKind::Echo, ProbeKind::Timestamp],
            Kinds::Clock => &[ProbeKind::Timestamp],
            Kinds::Echo => &[ProbeKind::Echo],
        };
        for kind in kinds {
            let id = ProbeId {
                kind: *kind,
                identifier: self.identifier,
                sequence: probe.sequence,
                secret: self.secrets.hash_one(probe.sequence) as u32,
            };
            let sent_ns = Now::read().wall_ns;
            match socket.send(id) {
                Ok(key) => reflector.sent.push_back(Sent {
                    sequence: probe.sequence,
                    kind: *kind,
                    key,
                    sent_ns,
                    departed_ns: None,
                }),
                Err(error) => {
                    reflector.forget_socket();
                    return Err(error);
                }
            }
        }
        while reflector.sent.len() > MOST_SENT {
            reflector.sent.pop_front();
        }
        Ok(())
    }

    /// Reads the departures and replies that have come.
    fn receive(&mut self, controller: &mut Controller, now: Instant) {
        for (n, reflector) in self.reflectors.iter_mut().enumerate() {
            for sequence in reflector.read_departures() {
                controller.handle_departure(sequence, now);
            }
            for _ in 0..REPLIES_PER_TURN {
                let Some(reply) = reflector.read_reply() else {
                    break;
                };
                let sequence = reply.id.sequence;
                let secret = self.secrets.hash_one(sequence) as u32;
                if reply.id.identifier != self.identifier || reply.id.secret != secret {
                    continue;
                }
                if let Some(reply) = reflector.judge(&reply)
                    && controller.awaited(sequence) == Some(n)
                {
                    controller.handle_reply(sequence, reply, now);
                }
            }
        }
    }

    /// Waits until something comes, but not beyond `until`, and at least as long as a turn takes.
    fn wait(&mut self, until: Instant) {
        let now = Now::read().monotonic;
        let rest = LEAST_TURN.0.saturating_sub(now.since(self.turn).0);
        if rest > 0 {
            thread::sleep(Nanos(rest).into());
        }
        let now = Now::read().monotonic;
        let wait = until.since(now).min(LONGEST_TURN);
        let sockets = self.reflectors.iter();
        let sockets = sockets.filter_map(|reflector| reflector.socket.as_ref());
        let mut waited: Vec<PollFd<'_>> = sockets
            .map(|socket| PollFd::new(socket, PollFlags::IN))
            .collect();
        let time = rustix::event::Timespec {
            tv_sec: 0,
            tv_nsec: wait.0.min(999_999_999) as i64,
        };
        // An error, for example a signal, only ends the wait.
        let _ = poll(&mut waited, Some(&time));
        self.turn = Now::read().monotonic;
    }
}

impl Reflector {
    fn forget_socket(&mut self) {
        self.socket = None;
        self.sent.clear();
    }

    /// Reads departures; returns the sequence numbers of the probes.
    fn read_departures(&mut self) -> Vec<u16> {
        let mut departed = Vec::new();
        let Some(socket) = &mut self.socket else {
            return departed;
        };
        for _ in 0..REPLIES_PER_TURN {
            let Ok(Some(departure)) = socket.departure() else {
                break;
            };
            let mut sent = self.sent.iter_mut();
            if let Some(sent) = sent.find(|sent| sent.key == departure.key) {
                sent.departed_ns = Some(departure.sent_ns);
                departed.push(sent.sequence);
            }
        }
        departed
    }

    fn read_reply(&mut self) -> Option<ProbeReply> {
        // An error is that of an earlier probe, for example that a router cannot reach the host.
        self.socket.as_mut()?.receive().ok().flatten()
    }

    /// The times of a reply with a valid secret; `None` if it belongs to no request, or to the kind
    /// that does not count.
    fn judge(&mut self, reply: &ProbeReply) -> Option<Reply> {
        let at = self
            .sent
            .iter()
            .position(|sent| sent.sequence == reply.id.sequence && sent.kind == reply.id.kind)?;
        let sent = self.sent.remove(at)?;
        self.learn_kind(reply);
        let arrived = reply.received_ns.unwrap_or_else(|| Now::read().wall_ns);
        let left = sent
            .departed_ns
            .filter(|left| *left >= sent.sent_ns && *left <= arrived);
        let left = left.unwrap_or(sent.sent_ns);
        let one_way = reply.remote.map(|[there, back]| {
            [
                clock_difference(there, time_of_day(left)),
                clock_difference(time_of_day(arrived), back),
            ]
        });
        Some(Reply {
            round_trip: Nanos(arrived.saturating_sub(left)),
            one_way,
        })
    }

    /// Learns whether the reflector reports its clock.
    fn learn_kind(&mut self, reply: &ProbeReply) {
        let Kinds::Both { replies, clocks } = &mut self.kinds else {
            return;
        };
        *replies += u32::from(reply.id.kind == ProbeKind::Echo);
        *clocks += u32::from(reply.remote.is_some());
        if *clocks >= TRIED_REPLIES {
            self.kinds = Kinds::Clock;
        } else if *replies >= TRIED_REPLIES + *clocks {
            self.kinds = Kinds::Echo;
        }
    }
}

/// The time of day in ms (UTC) of a time since 1970.
fn time_of_day(wall_ns: u64) -> u32 {
    ((wall_ns / 1_000_000) % u64::from(DAY_MS)) as u32
}

/// `a - b` in ns, where both are times of day in ms: the difference of the smallest amount.
fn clock_difference(a: u32, b: u32) -> i64 {
    let (day, half) = (i64::from(DAY_MS), i64::from(DAY_MS / 2));
    let millis = (i64::from(a) - i64::from(b) + half).rem_euclid(day) - half;
    millis * 1_000_000
}

/// After so many replies it is known whether a reflector reports its clock.
const TRIED_REPLIES: u32 = 5;
/// Requests whose replies are awaited at most, of each reflector.
const MOST_SENT: usize = 256;
/// Replies and departures that are read in a turn, of each reflector.
const REPLIES_PER_TURN: usize = 32;
/// The shortest and the longest turn.
const LEAST_TURN: Nanos = Nanos::from_millis(2);
const LONGEST_TURN: Nanos = Nanos::from_millis(250);
/// Milliseconds of a day.
const DAY_MS: u32 = 86_400_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_differ_by_the_shorter_way_around_midnight() {
        for (a, b, millis) in [
            (10, 5, 5),
            (5, 10, -5),
            (3, DAY_MS - 4, 7),
            (DAY_MS - 4, 3, -7),
        ] {
            assert_eq!(clock_difference(a, b), millis * 1_000_000, "{a} - {b}");
        }
        assert_eq!(time_of_day(86_400_001_000_000), 1);
    }

    fn reflector() -> Reflector {
        Reflector {
            host: IpAddr::from([192, 0, 2, 1]),
            socket: None,
            kinds: Kinds::Both {
                replies: 0,
                clocks: 0,
            },
            sent: VecDeque::new(),
        }
    }

    fn sent(sequence: u16, kind: ProbeKind) -> Sent {
        Sent {
            sequence,
            kind,
            key: 0,
            sent_ns: 1_000_000,
            departed_ns: Some(3_000_000),
        }
    }

    fn reply(sequence: u16, kind: ProbeKind) -> ProbeReply {
        ProbeReply {
            id: ProbeId {
                kind,
                identifier: 0,
                sequence,
                secret: 0,
            },
            received_ns: Some(13_000_000),
            remote: (kind == ProbeKind::Timestamp).then_some([1005, 1006]),
        }
    }

    #[test]
    fn a_reply_is_taken_once_and_measured_from_the_departure() {
        let mut reflector = reflector();
        reflector.sent.push_back(sent(7, ProbeKind::Timestamp));
        let other = reply(8, ProbeKind::Timestamp);
        assert_eq!(reflector.judge(&other), None, "another sequence number");
        assert_eq!(reflector.judge(&reply(7, ProbeKind::Echo)), None);
        let judged = reflector.judge(&reply(7, ProbeKind::Timestamp));
        let judged = judged.expect("the reply");
        assert_eq!(judged.round_trip, Nanos::from_millis(10));
        assert_eq!(judged.one_way, Some([1_002_000_000, -993_000_000]));
        assert_eq!(
            reflector.judge(&reply(7, ProbeKind::Timestamp)),
            None,
            "a second reply"
        );
    }

    #[test]
    fn a_reflector_without_a_clock_is_asked_for_echoes_only() {
        for (kinds, expected) in [
            (&[ProbeKind::Echo][..], Kinds::Echo),
            (&[ProbeKind::Echo, ProbeKind::Timestamp][..], Kinds::Clock),
        ] {
            let mut reflector = reflector();
            for sequence in 0..5 {
                for kind in kinds {
                    reflector.sent.push_back(sent(sequence, *kind));
                    let _ = reflector.judge(&reply(sequence, *kind));
                }
            }
            assert_eq!(reflector.kinds, expected);
        }
    }
}
