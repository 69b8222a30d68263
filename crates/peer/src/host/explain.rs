//! Answers `explain` of programs, and asks the ends of channels for their counts, as methods of
//! [`Host`]. Only root and the user of a channel's end at this host may ask. What cannot be told is
//! a reply with the reason.

use netnice_api::channels::{
    CountHop, CountedHop, ExplainChannel, ExplainedChannel, ExplainedHop, NotExplained, ToProgram,
};
use netnice_channel::ChannelId;

use super::list::SHOWN_DIGITS;
use super::{Host, contract_doc};
use crate::message::{Counted, HopReport, Reason};
use crate::programs::ProgramId;
use crate::signalling::{Action, Event, HoldId, QuestionId};

/// Why a channel is not explained.
struct NotTold {
    reason: String,
    is_forbidden: bool,
}

impl NotTold {
    fn new(reason: impl ToString) -> NotTold {
        NotTold {
            reason: reason.to_string(),
            is_forbidden: false,
        }
    }
}

impl Host {
    /// Begins to explain a channel to a program of a user.
    pub(super) fn explain(&mut self, program: ProgramId, uid: u32, explain: ExplainChannel) {
        if let Err(why) = self.try_explain(program, uid, &explain.channel) {
            let not = NotExplained {
                channel: explain.channel,
                reason: why.reason,
                is_forbidden: why.is_forbidden,
            };
            self.programs.send(program, &ToProgram::NotExplained(not));
        }
    }

    fn try_explain(&mut self, program: ProgramId, uid: u32, digits: &str) -> Result<(), NotTold> {
        if self.explaining.values().any(|one| *one == program) {
            let text = "this program has not got the answer to its question before";
            return Err(NotTold::new(text));
        }
        let channel = self.channel_of(digits, uid)?;
        let asked = self.signalling.explain(channel, super::now());
        let question = asked.map_err(NotTold::new)?;
        self.explaining.insert(question, program);
        Ok(())
    }

    /// The channel of this host that begins with these digits, and that the user may ask for.
    ///
    /// A user learns of the channels of others no more than `netnice channel ls` shows: the digits
    /// behind those are compared only with identifiers that the user may know.
    fn channel_of(&self, digits: &str, uid: u32) -> Result<ChannelId, NotTold> {
        let is_digit = |digit: u8| matches!(digit, b'0'..=b'9' | b'a'..=b'f');
        let most = ChannelId::DIGITS;
        if !(1..=most).contains(&digits.len()) || !digits.bytes().all(is_digit) {
            return Err(NotTold::new(format!(
                "a channel is named by 1 to {most} lower-case hexadecimal digits"
            )));
        }
        let shown = &digits[..digits.len().min(SHOWN_DIGITS)];
        let all = self.signalling.channels().map(|status| status.channel);
        let known: Vec<ChannelId> = all
            .filter(|channel| channel.to_string().starts_with(shown))
            .collect();
        let may_ask = |channel: &&ChannelId| {
            let program = self.register.program_of(**channel);
            let owner = program.and_then(|program| self.programs.user(program));
            uid == 0 || owner == Some(uid)
        };
        let own: Vec<ChannelId> = known.iter().filter(may_ask).copied().collect();
        let host = self.signalling.host();
        if own.is_empty() && !known.is_empty() {
            return Err(NotTold {
                reason: format!(
                    "{host} has it for another user or passes it on: only root may ask for it"
                ),
                is_forbidden: true,
            });
        }
        let mut found = own.iter();
        let mut next = || found.find(|channel| channel.to_string().starts_with(digits));
        match (next(), next()) {
            (Some(channel), None) => Ok(*channel),
            (None, _) => Err(NotTold::new(format!(
                "{host} has no such channel; `netnice channel ls` lists those that it has"
            ))),
            (Some(_), Some(_)) => Err(NotTold::new(format!(
                "several channels of {host} begin with these digits: write more of them"
            ))),
        }
    }

    /// Does an action that is about a question; all others are done elsewhere.
    pub(super) fn perform_question(&mut self, action: Action) {
        match action {
            Action::Count { question, hold } => self.count(question, hold),
            Action::Explained {
                question,
                channel,
                hops,
            } => self.answer(question, Ok((channel, hops))),
            Action::NotExplained { question, reason } => self.answer(question, Err(reason)),
            _ => {}
        }
    }

    /// Finds what this host has counted of a channel: a relay at once, an end when its program has
    /// replied.
    fn count(&mut self, question: QuestionId, hold: HoldId) {
        let mut all = self.signalling.channels();
        let channel = all.find(|status| status.hold == hold);
        let channel = channel.map(|status| status.channel);
        drop(all);
        let Some(channel) = channel else {
            return;
        };
        match self.register.holder(hold) {
            Some(program) => {
                let ask = CountHop {
                    number: question.0,
                    channel: channel.to_string(),
                };
                self.programs.send(program, &ToProgram::Count(ask));
            }
            None => {
                let counted = match self.relays.hop_counts(channel) {
                    Some(counts) => Counted::Counts(counts),
                    None => Counted::Unknown(Reason::new("it does not pass the channel on")),
                };
                self.handle(Event::Counted { question, counted });
            }
        }
    }

    /// Takes the counts of an end, if its program has the channel that the question is about.
    pub(super) fn handle_counted(&mut self, program: ProgramId, reply: CountedHop) {
        let question = QuestionId(reply.number);
        let hold = self.signalling.hold_of(question);
        let holder = hold.and_then(|hold| self.register.holder(hold));
        if holder != Some(program) {
            return;
        }
        let unknown = |text: &str| Counted::Unknown(Reason::new(text));
        let counted = match reply.counts.map(|counts| (counts, counts.fault())) {
            None => unknown("its program has closed the channel"),
            Some((_, Some(fault))) => unknown(&format!(
                "the counts of its program contradict themselves: {fault}"
            )),
            Some((counts, None)) => Counted::Counts(counts),
        };
        self.handle(Event::Counted { question, counted });
    }

    /// Gives a program the answer to its question.
    fn answer(
        &mut self,
        question: QuestionId,
        answer: Result<(ChannelId, Vec<HopReport>), Reason>,
    ) {
        let Some(program) = self.explaining.remove(&question) else {
            return;
        };
        let reply = match answer {
            Ok((channel, hops)) => match self.explained(channel, hops) {
                Some(explained) => ToProgram::Explained(Box::new(explained)),
                None => return,
            },
            Err(reason) => ToProgram::NotExplained(NotExplained {
                channel: String::new(),
                reason: reason.to_string(),
                is_forbidden: false,
            }),
        };
        self.programs.send(program, &reply);
    }

    fn explained(&self, channel: ChannelId, reports: Vec<HopReport>) -> Option<ExplainedChannel> {
        let mut all = self.signalling.channels();
        let status = all.find(|status| status.channel == channel)?;
        let bounds = status.hops.as_ref()?.as_slice();
        let hops = bounds.iter().zip(reports).map(|(hop, report)| {
            let (counts, fault) = match report.counted {
                Counted::Counts(counts) => (Some(counts), None),
                Counted::Unknown(reason) => (None, Some(reason.to_string())),
            };
            ExplainedHop {
                host: report.host.to_string(),
                bound_ns: hop.bound.0,
                counts,
                fault,
            }
        });
        let mut digits = channel.to_string();
        digits.truncate(SHOWN_DIGITS);
        Some(ExplainedChannel {
            channel: digits,
            host: self.signalling.host().to_string(),
            service: status.service.to_string(),
            sink: status.sink.to_string(),
            contract: contract_doc(&status.contract, status.packet),
            hops: hops.collect(),
        })
    }
}
