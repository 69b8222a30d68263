//! A network of hosts in virtual time: their machines, their ledgers (the real admission of core),
//! connections that delay, lose messages and break, and hosts that crash or stop.

use std::collections::{BTreeMap, BTreeSet};

use netnice_core::admission::timing::{Promise, Resolution, Transmitter};
use netnice_core::units::Rate;

use super::*;

/// What can go wrong.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Faults {
    /// Of 1,000 messages, how many are lost although the connection stays.
    pub(super) lost: u64,
    /// Of 1,000 requests for a hold, how many the host refuses.
    pub(super) not_held: u64,
    /// Of 1,000 requests for a longer bound, how many the host refuses.
    pub(super) not_relaxed: u64,
    /// The longest delay of a message.
    pub(super) delay: Nanos,
}

/// A line of hosts `h0`, `h1`, … with a link from each to the next.
pub(super) struct Network {
    pub(super) now: Instant,
    pub(super) hosts: Vec<TestHost>,
    pub(super) faults: Faults,
    /// Why hosts disconnected others.
    pub(super) violations: Vec<String>,
    connections: BTreeMap<(usize, usize), Connection>,
    queue: BTreeMap<(Instant, u64), (usize, Delivery)>,
    /// The port that the second host has reported to the first one, in the attempt of this hold of
    /// the first one.
    reported: BTreeMap<(usize, usize, HoldId), NonZeroU16>,
    sequence: u64,
    random: u64,
}

/// One host.
pub(super) struct TestHost {
    pub(super) machine: Signalling,
    /// The promises of the host's link.
    pub(super) ledger: BTreeMap<HoldId, Hold>,
    pub(super) link: Transmitter,
    /// What the programs of this host were told.
    pub(super) told: BTreeMap<ChannelId, Vec<Told>>,
    /// The questions of its programs, and the answers.
    asked: BTreeSet<QuestionId>,
    pub(super) answers: BTreeMap<QuestionId, Result<Vec<HopReport>, Reason>>,
    /// Counts the starts of the host: what an earlier life asked for does not reach this one.
    life: u64,
    /// The connection to each neighbour, by its number.
    connected: BTreeMap<usize, u64>,
    /// When a neighbour last named a channel in a refresh that arrived.
    named: BTreeMap<(usize, ChannelId), Instant>,
    pub(super) state: State,
    /// What arrives while the host is stopped.
    waiting: Vec<Delivery>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Running,
    Stopped,
    Crashed,
}

/// A hold in a ledger.
#[derive(Clone, Copy, Debug)]
pub(super) struct Hold {
    pub(super) contract: Channel,
    pub(super) bound: Nanos,
    /// Since when it is held, or confirmed.
    pub(super) since: Instant,
    pub(super) is_confirmed: bool,
    /// The port at which the host receives the channel's packets; `None` at the source, and before
    /// the hold is confirmed.
    pub(super) port: Option<NonZeroU16>,
    is_source: bool,
}

/// What a program was told about its channel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Told {
    Opened(Hops),
    Refused(Refusal),
    Accepted,
    Ended(End),
}

#[derive(Clone, Copy, Debug, Default)]
struct Connection {
    number: u64,
    is_up: bool,
    /// When the last message arrives, from the first host and from the second.
    arrives: [Instant; 2],
}

#[derive(Clone, Debug)]
enum Delivery {
    /// From a host, on the connection with this number.
    Message(usize, u64, Message),
    Connected(usize, u64),
    /// A connection has ended; 0: it could not be made.
    Disconnected(usize, u64),
    /// The host's own reply, in this life.
    Reply(u64, Event),
}

impl Network {
    pub(super) fn new(count: usize, faults: Faults, seed: u64) -> Network {
        let host = |at: usize| TestHost {
            machine: Signalling::new(name(at), Policy::default()),
            ledger: BTreeMap::new(),
            link: link(),
            told: BTreeMap::new(),
            asked: BTreeSet::new(),
            answers: BTreeMap::new(),
            life: 0,
            connected: BTreeMap::new(),
            named: BTreeMap::new(),
            state: State::Running,
            waiting: Vec::new(),
        };
        Network {
            now: Instant(1_000_000_000),
            hosts: (0..count).map(host).collect(),
            faults,
            violations: Vec::new(),
            connections: BTreeMap::new(),
            queue: BTreeMap::new(),
            reported: BTreeMap::new(),
            sequence: 0,
            random: seed,
        }
    }

    /// A number below `end`, by SplitMix64.
    pub(super) fn below(&mut self, end: u64) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.random;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % end.max(1)
    }

    pub(super) fn open(&mut self, at: usize, open: Open) {
        let now = self.now;
        if self.hosts[at].state == State::Running {
            let opened = self.hosts[at].machine.open(open, now);
            let is_new = !matches!(opened, Err(OpenError::Exists(_)));
            assert!(opened.is_ok() || !is_new, "{opened:?}");
            self.act(at);
        }
    }

    /// Asks for the reports of a channel at a running host.
    pub(super) fn explain(&mut self, at: usize, channel: ChannelId) -> Option<QuestionId> {
        let now = self.now;
        if self.hosts[at].state != State::Running {
            return None;
        }
        let question = self.hosts[at].machine.explain(channel, now).ok();
        self.hosts[at].asked.extend(question);
        self.act(at);
        question
    }

    pub(super) fn close(&mut self, at: usize, channel: ChannelId) {
        let reason = Reason::new("the program has ended");
        if self.hosts[at].state == State::Running {
            self.handle(at, Event::Close { channel, reason });
        }
    }

    /// Breaks the connection between a host and the next one.
    pub(super) fn cut(&mut self, at: usize) {
        self.disconnect(at, at + 1);
    }

    /// A new connection replaces the one between a host and the next one, if there is one.
    pub(super) fn replace(&mut self, at: usize) {
        let connection = self.connections.entry(pair(at, at + 1)).or_default();
        if std::mem::replace(&mut connection.is_up, false) {
            self.connect(at, at + 1);
        }
    }

    /// The host loses everything: its machine, its ledger, its connections.
    pub(super) fn crash(&mut self, at: usize) {
        for other in 0..self.hosts.len() {
            self.disconnect(at, other);
        }
        let host = &mut self.hosts[at];
        host.machine = Signalling::new(name(at), Policy::default());
        host.ledger.clear();
        host.told.clear();
        host.asked.clear();
        host.answers.clear();
        host.connected.clear();
        host.named.clear();
        host.waiting.clear();
        host.life += 1;
        host.state = State::Crashed;
    }

    pub(super) fn stop(&mut self, at: usize) {
        let host = &mut self.hosts[at];
        if host.state == State::Running {
            host.state = State::Stopped;
        }
    }

    /// A stopped host continues, a crashed one starts.
    pub(super) fn resume(&mut self, at: usize) {
        if self.hosts[at].state == State::Running {
            return;
        }
        self.hosts[at].state = State::Running;
        // Whether it looks at the clock or at its sockets first is not known.
        if self.below(2) == 0 {
            self.time_out(at);
        }
        for delivery in std::mem::take(&mut self.hosts[at].waiting) {
            self.deliver(at, delivery);
        }
        self.time_out(at);
    }

    /// Lets time pass.
    pub(super) fn run(&mut self, time: Nanos) {
        let until = self.now.after(time);
        loop {
            let delivery = self.queue.keys().next().map(|(at, _)| *at);
            let timer = (0..self.hosts.len())
                .filter(|at| self.hosts[*at].state == State::Running)
                .filter_map(|at| Some((self.hosts[at].machine.poll_timeout()?, at)))
                .min();
            let due = |at: &Instant| *at <= until;
            match (delivery.filter(due), timer.filter(|(at, _)| due(at))) {
                (None, None) => break,
                (Some(at), timer) if timer.is_none_or(|(other, _)| at <= other) => {
                    let (_, (host, delivery)) = self.queue.pop_first().expect("an entry");
                    self.now = self.now.max(at);
                    self.deliver(host, delivery);
                }
                (_, Some((at, host))) => {
                    self.now = self.now.max(at);
                    self.time_out(host);
                }
                (Some(_), None) => unreachable!("the delivery is first"),
            }
        }
        self.now = until;
        (0..self.hosts.len()).for_each(|at| self.check_refreshed(at));
    }

    /// Checks that every established channel of a running host was confirmed or named by each of
    /// its neighbours in the last 15 s.
    fn check_refreshed(&self, at: usize) {
        let host = &self.hosts[at];
        if host.state != State::Running {
            return;
        }
        for one in host.machine.channels().filter(|one| one.hops.is_some()) {
            let since = host.ledger[&one.hold].since;
            for neighbour in one.previous.iter().chain(&one.next) {
                let named = host.named.get(&(number(neighbour), one.channel));
                let latest = named.map_or(since, |named| since.max(*named));
                // A reply of the host takes up to 0.52 ms, and the time counts from the reply.
                let silent = self.now.since(latest);
                assert!(
                    silent.0 < UNREFRESHED.0 + 600_000,
                    "h{at}: {one:?}: {silent}"
                );
            }
        }
    }

    fn time_out(&mut self, at: usize) {
        let now = self.now;
        self.hosts[at].machine.handle_timeout(now);
        self.act(at);
        let host = &self.hosts[at];
        for hold in host.ledger.values().filter(|hold| !hold.is_confirmed) {
            assert!(now.since(hold.since) < HELD, "h{at}: {hold:?}");
        }
        self.check_refreshed(at);
    }

    fn deliver(&mut self, at: usize, delivery: Delivery) {
        match self.hosts[at].state {
            State::Running => {}
            State::Stopped => return self.hosts[at].waiting.push(delivery),
            State::Crashed => return,
        }
        let host = &self.hosts[at];
        let current = |host: &TestHost, other: &usize| host.connected.get(other).copied();
        let event = match delivery {
            Delivery::Reply(life, event) if life == host.life => event,
            Delivery::Message(from, number, message) if current(host, &from) == Some(number) => {
                if let Message::Refresh(refresh) = &message {
                    let now = self.now;
                    let named = refresh.channels.iter().map(|one| ((from, *one), now));
                    self.hosts[at].named.extend(named);
                }
                let neighbour = name(from);
                Event::Received { neighbour, message }
            }
            Delivery::Connected(other, number) if self.is_up(at, other, number) => {
                self.hosts[at].connected.insert(other, number);
                let neighbour = name(other);
                Event::Connected { neighbour }
            }
            Delivery::Disconnected(other, number)
                if current(host, &other).unwrap_or(0) == number =>
            {
                self.hosts[at].connected.remove(&other);
                let (neighbour, reason) = (name(other), Reason::new("it broke"));
                Event::Disconnected { neighbour, reason }
            }
            // Of an earlier life, or of an earlier connection.
            _ => return,
        };
        self.handle(at, event);
    }

    fn handle(&mut self, at: usize, event: Event) {
        let now = self.now;
        self.hosts[at].machine.handle(event, now);
        self.act(at);
    }

    fn act(&mut self, at: usize) {
        while let Some(action) = self.hosts[at].machine.poll_action() {
            match action {
                Action::Hold { hold, request } => self.hold(at, hold, &request),
                Action::Relax { hold, bound, port } => self.relax(at, hold, bound, port),
                Action::Release { hold } => drop(self.hosts[at].ledger.remove(&hold)),
                Action::Connect { neighbour } => self.connect(at, number(&neighbour)),
                Action::Disconnect { neighbour, reason } => {
                    self.violations
                        .push(format!("h{at} at {}: {reason}", self.now.0));
                    let other = number(&neighbour);
                    self.hosts[at].connected.remove(&other);
                    self.disconnect(at, other);
                }
                Action::Send { neighbour, message } => self.send(at, number(&neighbour), message),
                Action::Opened { channel, hops } => self.tell(at, channel, Told::Opened(hops)),
                Action::OpenRefused { channel, refusal } => {
                    self.tell(at, channel, Told::Refused(refusal));
                }
                Action::Accepted { channel, .. } => self.tell(at, channel, Told::Accepted),
                Action::Ended { channel, end, .. } => self.tell(at, channel, Told::Ended(end)),
                Action::Count { question, .. } => {
                    let counted = Counted::Counts(counts_of(at));
                    self.reply(at, Event::Counted { question, counted });
                }
                Action::Explained { question, hops, .. } => {
                    let before = self.hosts[at].answers.insert(question, Ok(hops));
                    assert_eq!(before, None, "{question:?} is answered twice");
                }
                Action::NotExplained { question, reason } => {
                    let before = self.hosts[at].answers.insert(question, Err(reason));
                    assert_eq!(before, None, "{question:?} is answered twice");
                }
            }
        }
    }

    fn tell(&mut self, at: usize, channel: ChannelId, told: Told) {
        self.hosts[at].told.entry(channel).or_default().push(told);
    }

    /// The host's admission: the shortest bound beside what the link has promised.
    fn hold(&mut self, at: usize, hold: HoldId, request: &HoldRequest) {
        let next = match number(&request.sink).cmp(&at) {
            std::cmp::Ordering::Less => Some(at - 1),
            std::cmp::Ordering::Equal => None,
            std::cmp::Ordering::Greater => Some(at + 1),
        };
        let next = next.map(|next| NextHop {
            host: name(next),
            from: link_address(at, next),
            to: link_address(next, at),
        });
        let arrival = request.previous.as_ref().map(|previous| Arrival {
            from: link_address(number(previous), at),
            to: link_address(at, number(previous)),
        });
        assert_eq!(request.arrival, arrival);
        assert_eq!(request.sink_address, address(request.sink.as_str()));
        assert_eq!(request.packet, PACKET);
        let refuses = self.below(1_000) < self.faults.not_held;
        let since = self.now;
        let host = &mut self.hosts[at];
        let least = host
            .link
            .least_deadline(&host.promises(), &request.contract);
        let event = match least.filter(|_| !refuses) {
            Some(bound) => {
                let entry = Hold {
                    contract: request.contract,
                    bound,
                    since,
                    is_confirmed: false,
                    port: None,
                    is_source: request.previous.is_none(),
                };
                assert!(host.ledger.insert(hold, entry).is_none(), "{hold:?}");
                // Nothing is declared about the ports before half of the hosts.
                let is_marked = at % 2 == 1 && request.previous.is_some();
                let unguarded = is_marked.then(|| "eth0".parse().expect("a name"));
                Event::Held {
                    hold,
                    bound,
                    next,
                    unguarded,
                }
            }
            None => Event::NotHeld {
                hold,
                reason: Reason::new("the link is full"),
                best: None,
            },
        };
        self.reply(at, event);
    }

    /// Relaxes a hold. `next_port` is the port that the next host has reported, and must be the one
    /// of this attempt.
    fn relax(&mut self, at: usize, hold: HoldId, bound: Nanos, next_port: Option<NonZeroU16>) {
        let refuses = self.below(1_000) < self.faults.not_relaxed;
        let port = NonZeroU16::new(1 + self.below(65_535) as u16);
        let now = self.now;
        let mut channels = self.hosts[at].machine.channels();
        let channel = channels.find(|one| one.hold == hold).expect("a channel");
        drop(channels);
        let next = channel.next.as_ref().map(number);
        let reported = next.map(|next| self.reported[&(at, next, hold)]);
        assert_eq!(next_port, reported, "h{at}: {channel:?}");
        let host = &mut self.hosts[at];
        let entry = host.ledger.get_mut(&hold).expect("it is held");
        assert!(bound >= entry.bound, "{bound} is less than {entry:?}");
        let event = match refuses {
            true => Event::NotRelaxed {
                hold,
                reason: Reason::new("the horizon"),
            },
            false => {
                (entry.bound, entry.is_confirmed, entry.since) = (bound, true, now);
                entry.port = port.filter(|_| !entry.is_source);
                let port = entry.port;
                // While the horizon is 0, no relaxation can be refused.
                let promises = host.promises();
                assert!(host.link.carries_at_once(&promises), "{promises:?}");
                Event::Relaxed { hold, port }
            }
        };
        self.reply(at, event);
    }

    fn reply(&mut self, at: usize, event: Event) {
        let delivery = Delivery::Reply(self.hosts[at].life, event);
        let delay = Nanos::from_micros(20 + self.below(500));
        self.schedule(self.now.after(delay), at, delivery);
    }

    fn schedule(&mut self, time: Instant, at: usize, delivery: Delivery) {
        self.sequence += 1;
        self.queue.insert((time, self.sequence), (at, delivery));
    }

    fn send(&mut self, at: usize, other: usize, message: Message) {
        let Some(number) = self.hosts[at].connected.get(&other).copied() else {
            return;
        };
        self.note_port(at, other, &message);
        let is_lost = self.below(1_000) < self.faults.lost;
        let delay = Nanos(50_000 + self.below(self.faults.delay.0));
        let connection = self.connections.entry(pair(at, other)).or_default();
        if is_lost || !connection.is_up || connection.number != number {
            return;
        }
        let arrives = &mut connection.arrives[usize::from(at > other)];
        *arrives = self.now.after(delay).max(*arrives);
        let arrives = *arrives;
        // Keys of one instant are in the order of sending.
        self.schedule(arrives, other, Delivery::Message(at, number, message));
    }

    /// Records the port that a host reports, which must be the one that it has.
    fn note_port(&mut self, at: usize, other: usize, message: &Message) {
        let Message::Established(established) = message else {
            return;
        };
        let mut channels = self.hosts[at].machine.channels();
        let same = |one: &ChannelStatus| one.channel == established.channel;
        let hold = channels.find(same).expect("the channel").hold;
        let own = self.hosts[at].ledger[&hold].port;
        assert_eq!(own, Some(established.port), "h{at}: {established:?}");
        drop(channels);
        let attempt = HoldId(established.attempt);
        self.reported.insert((other, at, attempt), established.port);
    }

    fn connect(&mut self, at: usize, other: usize) {
        let delay = Nanos(100_000 + self.below(self.faults.delay.0));
        let then = self.now.after(delay);
        if self.hosts[other].state == State::Crashed {
            return self.schedule(then, at, Delivery::Disconnected(other, 0));
        }
        let connection = self.connections.entry(pair(at, other)).or_default();
        if connection.is_up {
            return;
        }
        let number = connection.number + 1;
        *connection = Connection {
            number,
            is_up: true,
            arrives: [then; 2],
        };
        self.schedule(then, at, Delivery::Connected(other, number));
        self.schedule(then, other, Delivery::Connected(at, number));
    }

    fn disconnect(&mut self, at: usize, other: usize) {
        let Some(connection) = self.connections.get_mut(&pair(at, other)) else {
            return;
        };
        if !std::mem::replace(&mut connection.is_up, false) {
            return;
        }
        let number = connection.number;
        for (one, its_other) in [(at, other), (other, at)] {
            // The end may be noticed before the connection was: then it could not be made.
            let delay = Nanos(100_000_000 + self.below(self.faults.delay.0));
            let noticed = self.now.after(delay);
            let known = self.hosts[one].connected.get(&its_other) == Some(&number);
            let delivery = Delivery::Disconnected(its_other, if known { number } else { 0 });
            self.schedule(noticed, one, delivery);
        }
    }

    fn is_up(&self, at: usize, other: usize, number: u64) -> bool {
        let connection = self.connections.get(&pair(at, other));
        connection.is_some_and(|one| one.is_up && one.number == number)
    }

    /// Checks after a time without faults that every ledger has exactly the established channels,
    /// that all hosts of a channel agree, and that the programs were told.
    pub(super) fn check_quiet(&self) {
        let seen = self.check_ledgers();
        for (at, host) in self.hosts.iter().enumerate() {
            for (channel, told) in &host.told {
                let exists = seen.get(channel).is_some_and(|hosts| hosts.contains(&at));
                check_told(told, exists);
            }
        }
    }

    /// As [`Network::check_quiet`], without the programs. Returns the hosts of each channel.
    pub(super) fn check_ledgers(&self) -> BTreeMap<ChannelId, Vec<usize>> {
        let mut seen: BTreeMap<ChannelId, Vec<usize>> = BTreeMap::new();
        for (at, host) in self.hosts.iter().enumerate() {
            host.machine.invariants();
            assert_eq!(host.machine.questions(), 0, "h{at}");
            assert!(host.asked.iter().eq(host.answers.keys()), "h{at}");
            let channels: Vec<ChannelStatus> = host.machine.channels().collect();
            let holds: Vec<HoldId> = host.ledger.keys().copied().collect();
            let mut known: Vec<HoldId> = channels.iter().map(|one| one.hold).collect();
            known.sort();
            assert_eq!(holds, known, "h{at}");
            for one in channels {
                let hops = one.hops.clone().expect("established");
                assert_eq!(hops.sum(), one.contract.deadline());
                let own = hops.as_slice().iter().find(|hop| hop.host == name(at));
                let hold = &host.ledger[&one.hold];
                assert_eq!(Some(hold.bound), own.map(|hop| hop.bound));
                assert!(hold.is_confirmed);
                seen.entry(one.channel).or_default().push(at);
                for hop in hops.as_slice() {
                    let there = &self.hosts[number(&hop.host)].machine;
                    let there = there.channels().find(|other| other.channel == one.channel);
                    assert_eq!(there.and_then(|other| other.hops), Some(hops.clone()));
                }
            }
        }
        seen
    }

    /// The number of established channels, at their sources.
    pub(super) fn established(&self) -> usize {
        let sources = self.hosts.iter().flat_map(|host| host.machine.channels());
        sources.filter(|one| one.previous.is_none()).count()
    }
}

/// Checks what the programs of one host were told about a channel: the source one answer, and an
/// end if the channel was opened and does not exist any more. The sink is told one end for each
/// time that the channel was established there, except for the one that exists: more than once if
/// the connection was replaced before the source had its answer.
fn check_told(told: &[Told], exists: bool) {
    let count = |wanted: fn(&Told) -> bool| told.iter().filter(|one| wanted(one)).count();
    let opened = count(|one| matches!(one, Told::Opened(_)));
    let refused = count(|one| matches!(one, Told::Refused(_)));
    let accepted = count(|one| *one == Told::Accepted);
    assert!(opened + refused <= 1, "{told:?}");
    let ended = [End::Source, End::Sink]
        .map(|end| told.iter().filter(|one| **one == Told::Ended(end)).count());
    let left = |begun: usize| begun.saturating_sub(usize::from(exists));
    assert_eq!(ended, [left(opened), left(accepted)], "{told:?}");
    let of_sink: Vec<bool> = told
        .iter()
        .filter(|one| matches!(one, Told::Accepted | Told::Ended(End::Sink)))
        .map(|one| *one == Told::Accepted)
        .collect();
    let alternates = of_sink
        .iter()
        .enumerate()
        .all(|(at, is_begin)| (at % 2 == 0) == *is_begin);
    assert!(alternates, "{told:?}");
}

impl TestHost {
    fn promises(&self) -> Vec<Promise> {
        let promises = self.ledger.values().map(|hold| {
            let contract = hold.contract;
            let (mmax, rmax) = (contract.mmax(), contract.rmax());
            let channel = contract.resized(mmax, rmax, hold.bound);
            Promise::Channel(channel.expect("a bound above zero"))
        });
        promises.collect()
    }
}

/// 100 Mbit/s without a horizon, with a packet of best effort in the way.
fn link() -> Transmitter {
    Transmitter {
        rate: Rate::new(100_000_000).expect("a rate"),
        framing: Bytes(0),
        per_packet: Nanos(0),
        largest: Bytes(1_500),
        leftover: Bytes(1_500),
        ahead: Nanos(0),
        horizon: Nanos(0),
        resolution: Resolution::NONE,
        stops: None,
    }
}

pub(super) fn name(at: usize) -> HostName {
    host(&format!("h{at}"))
}

/// The address of a host on the link to another one.
fn link_address(at: usize, other: usize) -> IpAddr {
    IpAddr::from([10, 1, at as u8, other as u8])
}

fn number(name: &HostName) -> usize {
    name.as_str()[1..].parse().expect("a number")
}

fn pair(one: usize, other: usize) -> (usize, usize) {
    (one.min(other), one.max(other))
}

/// What a host of the network has counted: as many messages as its number.
pub(super) fn counts_of(at: usize) -> HopCounts {
    let messages = at as u64;
    HopCounts {
        messages,
        least_laxity_ns: (messages > 0).then_some(1),
        laxities: [0, 0, messages, 0, 0, 0, 0, 0, 0, 0],
        ..HopCounts::default()
    }
}
