//! The two phases of establishment, forward and back, as methods of [`Signalling`], and the
//! messages of neighbours. No function fails; what is wrong is told to a program or a neighbour.

use std::num::NonZeroU16;

use netnice_channel::ChannelId;
use netnice_core::admission::timing::share_slack;
use netnice_core::contract::IfName;
use netnice_core::units::{Instant, Nanos};

use super::clock::OffsetMeasurement;
use super::events::{Action, Arrival, HoldId, HoldRequest, NextHop, Open};
use super::neighbour::Connection;
use super::state::{ChannelState, Stage, Upstream};
use super::{HELD, Neighbour, REFRESH, Signalling, Timer, UNREFRESHED};
use crate::message::{
    Attempt, ClockAnswer, Close, Establish, Established, Hello, HopBound, Hops, HostName, Message,
    Reason, Refresh, Refusal, Refused, check_addresses,
};

impl Signalling {
    /// Creates a channel that is within its quota, and asks the host for a bound.
    pub(super) fn begin(
        &mut self,
        open: Open,
        upstream: Upstream,
        arrival: Option<Arrival>,
        before: Vec<HopBound>,
        now: Instant,
    ) {
        let hold = HoldId(self.next_hold);
        self.next_hold += 1;
        let mut entry = ChannelState {
            channel: open.channel,
            hold,
            contract: open.contract,
            service: open.service,
            sink: open.sink,
            sink_address: open.sink_address,
            packet: open.packet,
            upstream,
            arrival,
            before,
            bound: Nanos(0),
            unguarded: None,
            next: None,
            stage: Stage::Holding,
            timer: now,
            refreshed_before: now,
            refreshed_next: now,
        };
        Signalling::set_timer(&mut self.timers, &mut entry, now.after(HELD));
        let request = HoldRequest {
            channel: entry.channel,
            part: entry.part(&self.host),
            service: entry.service.clone(),
            sink: entry.sink.clone(),
            sink_address: entry.sink_address,
            contract: entry.contract,
            packet: entry.packet,
            previous: entry.previous().cloned(),
            arrival: entry.arrival,
        };
        self.actions.push_back(Action::Hold { hold, request });
        if let Some(previous) = entry.previous()
            && let Some(neighbour) = self.neighbours.get_mut(previous)
        {
            neighbour.channels.insert(entry.channel);
        }
        self.holds.insert(hold, entry.channel);
        self.channels.insert(entry.channel, entry);
    }

    pub(super) fn handle_held(
        &mut self,
        hold: HoldId,
        (bound, unguarded): (Nanos, Option<IfName>),
        next: Option<NextHop>,
        now: Instant,
    ) {
        let Some(channel) = self.channel_in(hold, |stage| *stage == Stage::Holding) else {
            return;
        };
        let Some(entry) = self.channels.get_mut(&channel) else {
            return;
        };
        entry.bound = bound;
        entry.unguarded = unguarded;
        let hops = match Hops::new(entry.hops_so_far(&self.host)) {
            Ok(hops) => hops,
            Err(fault) => {
                let refusal = self.own_refusal(&fault.to_string(), None);
                return self.end(channel, None, refusal);
            }
        };
        match (entry.sink == self.host, next) {
            (true, _) => self.share(channel, &hops),
            (false, None) => {
                let text = format!("no route leads to {}", entry.sink);
                self.end(channel, None, self.own_refusal(&text, None));
            }
            (false, Some(next)) => self.pass_on(channel, &hops, next, now),
        }
    }

    /// At the sink: divides the slack, or refuses.
    fn share(&mut self, channel: ChannelId, hops: &Hops) {
        let Some(entry) = self.channels.get_mut(&channel) else {
            return;
        };
        let least: Vec<Nanos> = hops.as_slice().iter().map(|hop| hop.bound).collect();
        match share_slack(&least, entry.contract.deadline()) {
            Ok(bounds) => {
                let hops = hops.as_slice().iter().cloned().zip(bounds);
                let hops = hops.map(|(hop, bound)| HopBound { bound, ..hop });
                match Hops::new(hops.collect()) {
                    Ok(hops) => self.relax(channel, hops, None),
                    Err(fault) => {
                        let refusal = self.own_refusal(&fault.to_string(), None);
                        self.end(channel, None, refusal);
                    }
                }
            }
            Err(too_long) => {
                // A sum that is longer than any deadline can be is no deadline to ask for.
                let best = Some(too_long.least).filter(|least| *least <= HopBound::LONGEST);
                let refusal = self.own_refusal(&too_long.to_string(), best);
                self.end(channel, None, refusal);
            }
        }
    }

    /// At every other host: asks the next one.
    fn pass_on(&mut self, channel: ChannelId, hops: &Hops, hop: NextHop, now: Instant) {
        let next = &hop.host;
        let Some(sink_address) = self.channels.get(&channel).map(|entry| entry.sink_address) else {
            return;
        };
        let fault = if hops.contains(next) {
            Some(format!("the route leads from here back to {next}"))
        } else if hops.as_slice().len() == Hops::MOST {
            Some(format!("the route has more than {} hosts", Hops::MOST))
        } else if let Err(fault) = check_addresses(sink_address, hop.from, hop.to) {
            Some(fault.to_string())
        } else {
            self.neighbour_fault(next)
        };
        if let Some(fault) = fault {
            return self.end(channel, None, self.own_refusal(&fault, None));
        }
        let known = self.neighbours.entry(next.clone());
        let neighbour = known.or_insert_with(|| {
            let neighbour = next.clone();
            self.actions.push_back(Action::Connect { neighbour });
            Neighbour::new(Connection::Connecting)
        });
        neighbour.channels.insert(channel);
        let is_ready = neighbour.connection == Connection::Ready;
        if let Some(entry) = self.channels.get_mut(&channel) {
            entry.next = Some(hop);
            entry.stage = Stage::Connecting;
            entry.refreshed_next = now;
        }
        if is_ready {
            self.forward(channel);
        }
    }

    /// Why a channel cannot have this next host; `None` if it can.
    fn neighbour_fault(&self, next: &HostName) -> Option<String> {
        match self.neighbours.get(next) {
            Some(neighbour) if neighbour.channels.len() >= Refresh::MOST => {
                let most = Refresh::MOST;
                Some(format!("there are {most} channels between here and {next}"))
            }
            None if self.neighbours.len() >= self.policy.neighbours => {
                let most = self.policy.neighbours;
                Some(format!("there are {most} neighbours already"))
            }
            _ => None,
        }
    }

    /// Asks the next host, whose connection is ready.
    fn forward(&mut self, channel: ChannelId) {
        let Some(entry) = self.channels.get_mut(&channel) else {
            return;
        };
        let hops = Hops::new(entry.hops_so_far(&self.host));
        let (Some(next), Ok(hops)) = (&entry.next, hops) else {
            return;
        };
        debug_assert_eq!(entry.stage, Stage::Connecting);
        entry.stage = Stage::Forwarded;
        let message = Message::Establish(Establish {
            channel,
            attempt: entry.hold.0,
            service: entry.service.clone(),
            sink: entry.sink.clone(),
            sink_address: entry.sink_address,
            contract: entry.contract,
            packet: entry.packet,
            from: next.from,
            to: next.to,
            hops,
        });
        let neighbour = next.host.clone();
        self.actions.push_back(Action::Send { neighbour, message });
    }

    /// Asks the host to relax its hold to its part of the final bounds. `port` is that of the next
    /// host.
    fn relax(&mut self, channel: ChannelId, hops: Hops, port: Option<NonZeroU16>) {
        let own = hops.as_slice().iter().find(|hop| hop.host == self.host);
        let (Some(own), Some(entry)) = (own, self.channels.get_mut(&channel)) else {
            return;
        };
        let (hold, bound) = (entry.hold, own.bound);
        entry.stage = Stage::Relaxing(hops);
        self.actions.push_back(Action::Relax { hold, bound, port });
    }

    pub(super) fn handle_relaxed(&mut self, hold: HoldId, port: Option<NonZeroU16>, now: Instant) {
        let relaxing = |stage: &Stage| matches!(stage, Stage::Relaxing(_));
        let channel = self.channel_in(hold, relaxing);
        let Some(entry) = channel.and_then(|channel| self.channels.get_mut(&channel)) else {
            return;
        };
        let Stage::Relaxing(hops) = &entry.stage else {
            return;
        };
        let (channel, hops) = (entry.channel, hops.clone());
        let upstream = match (&entry.upstream, port) {
            (Upstream::Program, _) => None,
            (Upstream::Neighbour(previous, attempt), Some(port)) => {
                let message = Message::Established(Established {
                    channel,
                    attempt: *attempt,
                    port,
                    hops: hops.clone(),
                });
                Some((previous.clone(), message))
            }
            (Upstream::Neighbour(..), None) => {
                let text = "this host has no port at which it receives the channel's packets";
                return self.end(channel, None, self.own_refusal(text, None));
            }
        };
        let own = hops.as_slice().iter().find(|hop| hop.host == self.host);
        entry.bound = own.map_or(entry.bound, |hop| hop.bound);
        entry.stage = Stage::Established(hops.clone());
        (entry.refreshed_before, entry.refreshed_next) = (now, now);
        Signalling::set_timer(&mut self.timers, entry, now.after(UNREFRESHED));
        if entry.sink == self.host {
            self.actions.push_back(Action::Accepted {
                channel,
                service: entry.service.clone(),
                contract: entry.contract,
                hops: hops.clone(),
            });
        }
        match upstream {
            None => {
                self.programs.establish();
                self.actions.push_back(Action::Opened { channel, hops });
            }
            Some((previous, message)) => {
                if let Some(known) = self.neighbours.get_mut(&previous) {
                    known.usage.establish();
                }
                self.send(&previous, message);
            }
        }
    }

    pub(super) fn handle_connected(&mut self, neighbour: &HostName, now: Instant) {
        // What expired just now was to be told on the connection before.
        let is_old = |action: &Action| matches!(action, Action::Send { neighbour: to, .. } if to == neighbour);
        self.actions.retain(|action| !is_old(action));
        self.replace_connection(neighbour);
        let is_new = !self.neighbours.contains_key(neighbour);
        let fault = match neighbour == &self.host {
            true => Some("a host is not its own neighbour".to_owned()),
            false if is_new => self.neighbour_fault(neighbour),
            false => None,
        };
        if let Some(fault) = fault {
            return self.disconnect(neighbour, &fault);
        }
        let known = self.neighbours.entry(neighbour.clone());
        let known = known.or_insert_with(|| Neighbour::new(Connection::Connecting));
        known.connection = Connection::Connected;
        let refresh_at = now.after(REFRESH);
        known.refresh_at = Some(refresh_at);
        let timer = Timer::Refresh(neighbour.clone());
        self.timers.insert((refresh_at, timer));
        let host = self.host.clone();
        self.send(neighbour, Message::Hello(Hello { host }));
    }

    /// A new connection replaces one that exists: two hosts connected to each other at once, or the
    /// neighbour has started again. The channels that this host has asked for and that are not
    /// answered are asked for again; all others end.
    fn replace_connection(&mut self, neighbour: &HostName) {
        let Some(known) = self.neighbours.get_mut(neighbour) else {
            return;
        };
        if let Some(at) = known.refresh_at.take() {
            self.timers.remove(&(at, Timer::Refresh(neighbour.clone())));
        }
        known.clock = OffsetMeasurement::default();
        known.connection = Connection::Connecting;
        let channels: Vec<ChannelId> = known.channels.iter().copied().collect();
        let text = format!("{neighbour} has made a new connection");
        for channel in channels {
            match self.channels.get_mut(&channel) {
                Some(state) if state.previous() == Some(neighbour) => {
                    self.end(channel, Some(neighbour), self.own_refusal(&text, None));
                }
                Some(state) if state.stage == Stage::Forwarded => state.stage = Stage::Connecting,
                Some(state) if state.stage == Stage::Connecting => {}
                _ => self.end(channel, Some(neighbour), self.own_refusal(&text, None)),
            }
        }
    }

    pub(super) fn handle_message(&mut self, from: &HostName, message: Message, now: Instant) {
        // A neighbour that was disconnected can have sent more before it noticed.
        let Some(neighbour) = self.neighbours.get_mut(from) else {
            self.ignored += 1;
            return;
        };
        match (neighbour.connection, message) {
            (Connection::Connecting, _) => self.ignored += 1,
            (Connection::Connected, Message::Hello(hello)) if hello.host == *from => {
                neighbour.connection = Connection::Ready;
                let waiting: Vec<ChannelId> = neighbour.channels.iter().copied().collect();
                for channel in waiting {
                    self.forward(channel);
                }
            }
            (Connection::Connected, Message::Hello(hello)) => {
                let text = format!("its certificate names {from}, and its hello {}", hello.host);
                self.violate(from, &text);
            }
            (Connection::Connected, _) => self.violate(from, "its first message is no hello"),
            (Connection::Ready, message) => self.handle_ready(from, message, now),
        }
    }

    /// Handles a message of a neighbour whose `hello` has arrived.
    fn handle_ready(&mut self, from: &HostName, message: Message, now: Instant) {
        match message {
            Message::Hello(_) => self.violate(from, "it sends hello twice"),
            Message::Establish(establish) => self.handle_establish(from, establish, now),
            Message::Refused(refused) => self.handle_refused(from, refused),
            Message::Established(established) => self.handle_established(from, established),
            Message::Close(close) => match self.has(from, close.channel, close.attempt) {
                true => {
                    let refusal = Refusal {
                        host: close.host,
                        reason: close.reason,
                        best_deadline_ns: None,
                    };
                    self.end(close.channel, Some(from), refusal);
                }
                false => self.ignored += 1,
            },
            Message::Refresh(refresh) => self.handle_refresh(from, &refresh, now),
            Message::ClockAsk(ask) => {
                let answer = ClockAnswer {
                    asked_ns: ask.sent_ns,
                    received_ns: now.0,
                    answered_ns: now.0,
                    kernel: self.kernel_clock,
                };
                self.send(from, Message::ClockAnswer(answer));
            }
            Message::ReportAsk(ask) => self.handle_report_ask(from, ask, now),
            Message::ReportAnswer(answer) => self.handle_report_answer(from, answer),
            Message::ClockAnswer(answer) => {
                let own = self.kernel_clock;
                let neighbour = self.neighbours.get_mut(from);
                if !neighbour.is_some_and(|one| one.clock.handle(answer, own, now)) {
                    self.violate(
                        from,
                        "it replies to a question about its clock that is not open",
                    );
                }
            }
        }
    }

    fn handle_establish(&mut self, from: &HostName, establish: Establish, now: Instant) {
        let channel = establish.channel;
        let last = establish.hops.last().map(|hop| &hop.host);
        if last != Some(from) {
            let last = last.map_or("", HostName::as_str);
            let text = format!("it asks for channel {channel} as if it were {last}");
            return self.violate(from, &text);
        }
        let known = self.channels.get(&channel);
        if known.is_some_and(|entry| entry.previous() == Some(from)) {
            let text = format!("it asks for channel {channel}, which it has already");
            return self.violate(from, &text);
        }
        if let Err(fault) = self.admit(from, &establish, now) {
            let refusal = self.own_refusal(&fault, None);
            let attempt = establish.attempt;
            let refused = Refused {
                channel,
                attempt,
                refusal,
            };
            return self.send(from, Message::Refused(refused));
        }
        let open = Open {
            channel,
            service: establish.service,
            sink: establish.sink,
            sink_address: establish.sink_address,
            contract: establish.contract,
            packet: establish.packet,
        };
        let arrival = Some(Arrival {
            from: establish.from,
            to: establish.to,
        });
        let before = establish.hops.as_slice().to_vec();
        self.begin(
            open,
            Upstream::Neighbour(from.clone(), establish.attempt),
            arrival,
            before,
            now,
        );
    }

    /// Decides whether a neighbour's channel is tried, and counts it then. The error is the reason
    /// for people.
    fn admit(
        &mut self,
        from: &HostName,
        establish: &Establish,
        now: Instant,
    ) -> Result<(), String> {
        let hops = &establish.hops;
        if self.channels.contains_key(&establish.channel) {
            return Err("the identifier of the channel is in use: draw another one".to_owned());
        }
        if hops.contains(&self.host) {
            return Err("the route passes this host twice".to_owned());
        }
        if hops.as_slice().len() == Hops::MOST {
            return Err(format!("the route has more than {} hosts", Hops::MOST));
        }
        if let Some(fault) = self.neighbour_fault(from) {
            return Err(fault);
        }
        let Some(neighbour) = self.neighbours.get_mut(from) else {
            return Err(format!("{from} is no neighbour"));
        };
        let quota = self.policy.quota_of(from);
        let admitted = neighbour.usage.admit(quota, &establish.contract, now);
        admitted.map_err(|fault| format!("the channels that {from} opens: {fault}"))
    }

    fn handle_refused(&mut self, from: &HostName, refused: Refused) {
        let Refused {
            channel,
            attempt,
            refusal,
        } = refused;
        match self.stage_asked(from, channel, attempt) {
            Some(Stage::Forwarded) => self.end(channel, Some(from), refusal),
            Some(_) => {
                let text = format!("it refuses channel {channel}, which it has established");
                self.violate(from, &text);
            }
            None => self.ignored += 1,
        }
    }

    fn handle_established(&mut self, from: &HostName, established: Established) {
        let Established {
            channel,
            attempt,
            port,
            hops,
        } = established;
        let stage = self.stage_asked(from, channel, attempt);
        let fault = match (stage, self.channels.get(&channel)) {
            (Some(Stage::Forwarded), Some(entry)) => entry.fault_of(&hops, &self.host),
            (Some(_), Some(_)) => Some("it was established already".to_owned()),
            // The hold here has ended meanwhile, or there never was one.
            _ => {
                self.ignored += 1;
                return self.tell_unknown(from, channel, Some(Attempt::Sender(attempt)));
            }
        };
        match fault {
            None => self.relax(channel, hops, Some(port)),
            Some(fault) => {
                let text = format!("it establishes channel {channel} wrongly: {fault}");
                self.violate(from, &text);
            }
        }
    }

    /// The stage of a channel for which this host has asked this neighbour, in this attempt; `None`
    /// if it has not. A reply to an earlier attempt has no stage: it has crossed the end of it.
    fn stage_asked(&self, from: &HostName, channel: ChannelId, attempt: u64) -> Option<&Stage> {
        let entry = self.channels.get(&channel)?;
        let is_asked = entry.next_host() == Some(from) && entry.is_forwarded();
        (is_asked && entry.hold.0 == attempt).then_some(&entry.stage)
    }

    fn handle_refresh(&mut self, from: &HostName, refresh: &Refresh, now: Instant) {
        let mut unknown = 0;
        for channel in &refresh.channels {
            if !self.has(from, *channel, None) {
                self.ignored += 1;
                unknown += 1;
                if unknown <= MOST_UNKNOWN {
                    self.tell_unknown(from, *channel, None);
                }
            } else if let Some(entry) = self.channels.get_mut(channel) {
                entry.note_refresh(from, now);
            }
        }
    }

    /// Names the established channels to a neighbour, and asks for its clock.
    pub(super) fn refresh(&mut self, neighbour: &HostName, now: Instant) {
        let Some(known) = self.neighbours.get_mut(neighbour) else {
            return;
        };
        let next = now.after(REFRESH);
        known.refresh_at = Some(next);
        self.timers
            .insert((next, Timer::Refresh(neighbour.clone())));
        let is_ready = known.connection == Connection::Ready;
        let established = |channel: &&ChannelId| {
            let entry = self.channels.get(channel);
            entry.is_some_and(ChannelState::is_established)
        };
        let channels = known.channels.iter().filter(established).copied();
        let channels: Vec<ChannelId> = channels.collect();
        if !is_ready || channels.is_empty() {
            return;
        }
        let ask = known.clock.ask(now);
        self.send(neighbour, Message::Refresh(Refresh { channels }));
        if let Some(ask) = ask {
            self.send(neighbour, Message::ClockAsk(ask));
        }
    }

    /// True if a channel passes from or to this neighbour in this attempt; without one, if it is
    /// established, since a refresh and the reply to one name established channels only.
    pub(super) fn has(
        &self,
        neighbour: &HostName,
        channel: ChannelId,
        attempt: Option<Attempt>,
    ) -> bool {
        self.channels.get(&channel).is_some_and(|entry| {
            let own = entry.attempt_with(neighbour);
            own.is_some() && (attempt == own || attempt.is_none() && entry.is_established())
        })
    }

    /// Tells a neighbour that it has no such channel here.
    fn tell_unknown(&mut self, neighbour: &HostName, channel: ChannelId, attempt: Option<Attempt>) {
        let close = Close {
            channel,
            attempt,
            host: self.host.clone(),
            reason: Reason::new("the channel does not exist here, or has ended"),
        };
        self.send(neighbour, Message::Close(close));
    }
}

/// The most unknown channels of one refresh that are replied to. The others are replied to after
/// the next refreshes, or end because nothing names them.
const MOST_UNKNOWN: usize = 64;
