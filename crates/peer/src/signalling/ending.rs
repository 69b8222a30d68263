//! The ends of channels and of connections, as methods of [`Signalling`]. Every end releases the
//! hold of this host and tells both directions why. No function fails.

use netnice_channel::{ChannelId, End};
use netnice_core::units::{Instant, Nanos};

use super::events::{Action, HoldId};
use super::state::{ChannelState, Stage, Upstream};
use super::{HELD, Signalling, Timer, UNREFRESHED};
use crate::message::{Attempt, Close, HostName, Message, Reason, Refusal, Refused};

impl Signalling {
    /// Ends a channel. `told_by` is the neighbour that reported the end: it gets no
    /// message.
    pub(super) fn end(&mut self, channel: ChannelId, told_by: Option<&HostName>, why: Refusal) {
        let Some(entry) = self.channels.remove(&channel) else {
            return;
        };
        let hold = entry.hold;
        self.holds.remove(&hold);
        self.timers.remove(&(entry.timer, Timer::Channel(hold)));
        self.actions.push_back(Action::Release { hold });
        let neighbours = entry.previous().into_iter().chain(entry.next_host());
        for neighbour in neighbours {
            if let Some(known) = self.neighbours.get_mut(neighbour) {
                known.channels.remove(&channel);
            }
        }
        let was_established = entry.is_established();
        let usage = match &entry.upstream {
            Upstream::Program => Some(&mut self.programs),
            Upstream::Neighbour(previous, _) => {
                let known = self.neighbours.get_mut(previous);
                known.map(|known| &mut known.usage)
            }
        };
        if let Some(usage) = usage {
            usage.release(&entry.contract, was_established);
        }
        self.end_questions(hold, &why);
        self.tell_programs(&entry, &why);
        let close = |attempt: Attempt, why: &Refusal| {
            Message::Close(Close {
                channel,
                attempt: Some(attempt),
                host: why.host.clone(),
                reason: why.reason.clone(),
            })
        };
        if let Some(next) = entry.next_host()
            && entry.is_forwarded()
            && told_by != Some(next)
        {
            self.send(next, close(Attempt::Sender(hold.0), &why));
        }
        if let Upstream::Neighbour(previous, attempt) = &entry.upstream
            && told_by != Some(previous)
        {
            let message = match was_established {
                true => close(Attempt::Receiver(*attempt), &why),
                false => Message::Refused(Refused {
                    channel,
                    attempt: *attempt,
                    refusal: why,
                }),
            };
            self.send(previous, message);
        }
    }

    /// Tells the programs of this host that a channel has ended.
    fn tell_programs(&mut self, entry: &ChannelState, why: &Refusal) {
        let channel = entry.channel;
        let is_source = entry.upstream == Upstream::Program;
        let is_sink = entry.sink == self.host;
        let ended = |end| Action::Ended {
            channel,
            end,
            host: why.host.clone(),
            reason: why.reason.clone(),
        };
        match (entry.is_established(), is_source) {
            (true, true) => self.actions.push_back(ended(End::Source)),
            (false, true) => self.actions.push_back(Action::OpenRefused {
                channel,
                refusal: why.clone(),
            }),
            (_, false) => {}
        }
        if entry.is_established() && is_sink {
            self.actions.push_back(ended(End::Sink));
        }
    }

    /// Ends a channel whose time is over, or sets its timer anew.
    pub(super) fn examine(&mut self, hold: HoldId, now: Instant) {
        let channel = self.holds.get(&hold).copied();
        let Some(entry) = channel.and_then(|channel| self.channels.get_mut(&channel)) else {
            return;
        };
        let channel = entry.channel;
        let text = match (&entry.stage, entry.silent()) {
            (Stage::Established(_), Some((silent, until))) if until <= now => {
                format!("{silent} has not refreshed it for {UNREFRESHED}")
            }
            (Stage::Established(_), silent) => {
                // Without neighbours no time ends the channel.
                let at = silent.map_or(Instant(u64::MAX), |(_, until)| until);
                entry.timer = at;
                self.timers.insert((at, Timer::Channel(hold)));
                return;
            }
            (Stage::Holding, _) => format!("this host did not find a bound within {HELD}"),
            (Stage::Relaxing(_), _) => format!("this host did not change its bound within {HELD}"),
            (Stage::Connecting | Stage::Forwarded, _) => {
                let next = entry.next_host().map_or("", HostName::as_str);
                format!("{next} did not answer within {HELD}")
            }
        };
        self.end(channel, None, self.own_refusal(&text, None));
    }

    /// Forgets a neighbour whose connection has ended, and ends its channels.
    pub(super) fn drop_neighbour(&mut self, neighbour: &HostName, text: &str) {
        let Some(known) = self.neighbours.get_mut(neighbour) else {
            return;
        };
        let refresh_at = known.refresh_at.take();
        let channels: Vec<ChannelId> = known.channels.iter().copied().collect();
        if let Some(at) = refresh_at {
            self.timers.remove(&(at, Timer::Refresh(neighbour.clone())));
        }
        for channel in channels {
            self.end(channel, Some(neighbour), self.own_refusal(text, None));
        }
        self.neighbours.remove(neighbour);
    }

    /// Disconnects a neighbour that breaks the protocol. `text` continues "NEIGHBOUR breaks the
    /// protocol: ".
    pub(super) fn violate(&mut self, neighbour: &HostName, text: &str) {
        let text = format!("{neighbour} breaks the protocol: {text}");
        self.disconnect(neighbour, &text);
        self.drop_neighbour(neighbour, &text);
    }

    pub(super) fn disconnect(&mut self, neighbour: &HostName, text: &str) {
        self.actions.push_back(Action::Disconnect {
            neighbour: neighbour.clone(),
            reason: Reason::new(text),
        });
    }

    pub(super) fn send(&mut self, neighbour: &HostName, message: Message) {
        let neighbour = neighbour.clone();
        self.actions.push_back(Action::Send { neighbour, message });
    }

    /// A refusal of this host.
    pub(super) fn own_refusal(&self, text: &str, best: Option<Nanos>) -> Refusal {
        Refusal {
            host: self.host.clone(),
            reason: Reason::new(text),
            best_deadline_ns: best.map(|best| best.0),
        }
    }
}
