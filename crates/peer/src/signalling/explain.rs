//! Collects what the hosts of a channel have counted of it ([`Question`]), as methods of
//! [`Signalling`]. Only [`Signalling::explain`] fails ([`ExplainError`]); what a host does not say
//! in time is reported as unknown.
//!
//! ```text
//!  source        relay (asked by root)       relay         sink
//!      ◀─ report-ask ──┤├── report-ask ───────▶├── report-ask ─▶│ Count, Counted
//!  Count, Counted      │ Count, Counted        │ Count, Counted │
//!      ├─ report-answer▶◀─ report-answer ──────┤◀ report-answer ┘
//! ```
//! A question passes from host to host, away from the host where it began, and each host adds its
//! own counts to the answer of the next one. So a host answers its neighbours on the channel only.
//! The time in which an answer must come is [`STEP`] for each host on that side, so a host that
//! waits in vain still answers in time, with what it has.

use netnice_channel::ChannelId;
use netnice_core::units::{Instant, Nanos};

use super::events::{Action, HoldId, QuestionId};
use super::state::Stage;
use super::{Signalling, Timer};
use crate::message::{
    Counted, HopReport, Hops, HostName, Message, Reason, Refusal, ReportAnswer, ReportAsk,
};

/// A question about a channel that is not answered yet.
#[derive(Debug)]
pub(super) struct Question {
    pub(super) channel: ChannelId,
    pub(super) hold: HoldId,
    asker: Asker,
    /// What this host has counted; `None` until its program says so.
    own: Option<Counted>,
    /// The hosts before this one, the nearest first.
    before: Side,
    /// The hosts behind this one, the nearest first.
    behind: Side,
    /// How long the answers may take.
    time: Nanos,
    /// When it is answered at the latest.
    pub(super) until: Instant,
}

/// The program or the host that has asked, and gets the answer.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Asker {
    Program,
    /// A neighbour, with its number of the question.
    Neighbour(HostName, u64),
}

/// The hosts on one side, the nearest first.
#[derive(Debug)]
struct Side {
    hosts: Vec<HostName>,
    state: SideState,
}

#[derive(Debug)]
enum SideState {
    /// There is no host, or it is the one that asks.
    NotAsked,
    Waiting,
    Answered(Vec<HopReport>),
}

/// Why a program's question is not even asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExplainError {
    /// There is no such channel.
    #[error("channel {0} does not exist here, or has ended")]
    Unknown(ChannelId),
    /// The channel is not established yet.
    #[error("channel {0} is not established yet")]
    NotEstablished(ChannelId),
    /// Too many questions of this host are open.
    #[error("{MOST_OF_PROGRAMS} questions of this host are open, which is the most: ask later")]
    TooMany,
}

impl Signalling {
    /// Asks all hosts of an established channel what they have counted of it, for a program of this
    /// host. [`Action::Explained`] or [`Action::NotExplained`] follows, within [`STEP`] for each
    /// host of the channel.
    ///
    /// # Errors
    /// [`ExplainError`]. Then nothing has changed.
    pub fn explain(
        &mut self,
        channel: ChannelId,
        now: Instant,
    ) -> Result<QuestionId, ExplainError> {
        self.expire(now);
        if !self.channels.contains_key(&channel) {
            return Err(ExplainError::Unknown(channel));
        }
        if self.open_questions(&Asker::Program) >= MOST_OF_PROGRAMS {
            return Err(ExplainError::TooMany);
        }
        let begun = self.begin_question(channel, Asker::Program, now);
        let question = begun.ok_or(ExplainError::NotEstablished(channel))?;
        self.check_invariants();
        Ok(question)
    }

    /// The hold of the channel that a question is about; `None` if the question is answered.
    pub fn hold_of(&self, question: QuestionId) -> Option<HoldId> {
        self.questions.get(&question).map(|question| question.hold)
    }

    /// How many questions are open.
    pub fn questions(&self) -> usize {
        self.questions.len()
    }

    pub(super) fn handle_report_ask(&mut self, from: &HostName, ask: ReportAsk, now: Instant) {
        let ReportAsk { channel, question } = ask;
        if !self.has(from, channel, None) {
            self.ignored += 1;
            return;
        }
        let asker = Asker::Neighbour(from.clone(), question);
        if self.open_questions(&asker) >= MOST_OF_NEIGHBOUR {
            let text = format!("{MOST_OF_NEIGHBOUR} questions of {from} are open: ask later");
            let own = self.own_report(Counted::Unknown(Reason::new(&text)));
            return self.answer(from, ask, vec![own]);
        }
        self.begin_question(channel, asker, now);
    }

    pub(super) fn handle_counted(&mut self, id: QuestionId, counted: Counted) {
        if let Some(question) = self.questions.get_mut(&id) {
            question.own.get_or_insert(counted);
            self.finish_if_complete(id);
        }
    }

    pub(super) fn handle_report_answer(&mut self, from: &HostName, answer: ReportAnswer) {
        let id = QuestionId(answer.question);
        let question = self.questions.get_mut(&id);
        let question = question.filter(|question| question.channel == answer.channel);
        let side = question.and_then(|question| question.side_of(from));
        let Some(side) = side else {
            // The question was answered without this neighbour, or its channel has ended.
            self.ignored += 1;
            return;
        };
        let named = answer.hops.iter().map(|hop| &hop.host);
        if answer.hops.len() > side.hosts.len() || !named.zip(&side.hosts).all(|(a, b)| a == b) {
            let channel = answer.channel;
            let text = format!("its report of channel {channel} names other hosts than it has");
            return self.violate(from, &text);
        }
        side.state = SideState::Answered(answer.hops);
        self.finish_if_complete(id);
    }

    /// Answers a question with what has come so far.
    pub(super) fn finish_question(&mut self, id: QuestionId) {
        let Some(question) = self.questions.remove(&id) else {
            return;
        };
        self.timers.remove(&(question.until, Timer::Question(id)));
        let time = question.time;
        let own = question.own.unwrap_or_else(|| {
            Counted::Unknown(Reason::new(&format!(
                "its program did not answer within {time}"
            )))
        });
        let own = self.own_report(own);
        match question.asker {
            Asker::Program => {
                let mut hops = question.before.reports(time, true);
                hops.reverse();
                hops.push(own);
                hops.extend(question.behind.reports(time, true));
                let (question, channel) = (id, question.channel);
                self.actions.push_back(Action::Explained {
                    question,
                    channel,
                    hops,
                });
            }
            Asker::Neighbour(asker, number) => {
                let mut hops = vec![own];
                hops.extend(question.before.reports(time, false));
                hops.extend(question.behind.reports(time, false));
                let ask = ReportAsk {
                    channel: question.channel,
                    question: number,
                };
                self.answer(&asker, ask, hops);
            }
        }
    }

    /// Drops the questions about a channel that has ended.
    pub(super) fn end_questions(&mut self, hold: HoldId, why: &Refusal) {
        let of_channel = |(_, question): &(QuestionId, Question)| question.hold == hold;
        let questions = std::mem::take(&mut self.questions);
        let (ended, kept): (Vec<_>, Vec<_>) = questions.into_iter().partition(of_channel);
        self.questions = kept.into_iter().collect();
        for (id, question) in ended {
            self.timers.remove(&(question.until, Timer::Question(id)));
            if question.asker == Asker::Program {
                let (host, reason) = (&why.host, &why.reason);
                let text = format!("the channel has just ended: {host}: {reason}");
                self.actions.push_back(Action::NotExplained {
                    question: id,
                    reason: Reason::new(&text),
                });
            }
        }
    }

    /// Asks the hosts around this one, and this one; `None` if the channel is not established.
    fn begin_question(
        &mut self,
        channel: ChannelId,
        asker: Asker,
        now: Instant,
    ) -> Option<QuestionId> {
        let entry = self.channels.get(&channel)?;
        let Stage::Established(hops) = &entry.stage else {
            return None;
        };
        let own = hops
            .as_slice()
            .iter()
            .position(|hop| hop.host == self.host)?;
        let hosts = |range: &[crate::message::HopBound]| {
            let hosts = range.iter().map(|hop| hop.host.clone());
            hosts.collect::<Vec<HostName>>()
        };
        let mut before = hosts(&hops.as_slice()[..own]);
        before.reverse();
        let behind = hosts(&hops.as_slice()[own + 1..]);
        let sides = [before, behind].map(|hosts| Side::new(hosts, &asker));
        let asked: Vec<HostName> = sides.iter().filter_map(Side::asked).cloned().collect();
        let farthest = sides.iter().filter(|side| side.asked().is_some());
        let farthest = farthest.map(|side| side.hosts.len() as u64).max();
        let time = Nanos(farthest.map_or(STEP.0 / 2, |hosts| STEP.0 * hosts));
        let until = now.after(time);
        let id = QuestionId(self.next_question);
        self.next_question += 1;
        let hold = entry.hold;
        let [before, behind] = sides;
        let question = Question {
            channel,
            hold,
            asker,
            own: None,
            before,
            behind,
            time,
            until,
        };
        self.timers.insert((until, Timer::Question(id)));
        self.questions.insert(id, question);
        let question = id;
        self.actions.push_back(Action::Count { question, hold });
        for neighbour in asked {
            let question = id.0;
            let ask = ReportAsk { channel, question };
            self.send(&neighbour, Message::ReportAsk(ask));
        }
        Some(id)
    }

    fn finish_if_complete(&mut self, id: QuestionId) {
        let question = self.questions.get(&id);
        let waits = |side: &Side| matches!(side.state, SideState::Waiting);
        if question.is_some_and(|question| {
            question.own.is_some() && !waits(&question.before) && !waits(&question.behind)
        }) {
            self.finish_question(id);
        }
    }

    /// The open questions of the programs, or of the neighbour that asks.
    fn open_questions(&self, asker: &Asker) -> usize {
        let same = |one: &Asker| match (one, asker) {
            (Asker::Program, Asker::Program) => true,
            (Asker::Neighbour(one, _), Asker::Neighbour(other, _)) => one == other,
            _ => false,
        };
        let all = self.questions.values();
        all.filter(|question| same(&question.asker)).count()
    }

    fn answer(&mut self, to: &HostName, ask: ReportAsk, hops: Vec<HopReport>) {
        let answer = ReportAnswer {
            channel: ask.channel,
            question: ask.question,
            hops,
        };
        self.send(to, Message::ReportAnswer(answer));
    }

    fn own_report(&self, counted: Counted) -> HopReport {
        HopReport {
            host: self.host.clone(),
            counted,
        }
    }
}

impl Question {
    /// The side whose nearest host is this one, if that is asked and has not answered.
    fn side_of(&mut self, host: &HostName) -> Option<&mut Side> {
        let sides = [&mut self.before, &mut self.behind];
        let mut sides = sides.into_iter();
        sides.find(|side| {
            matches!(side.state, SideState::Waiting) && side.hosts.first() == Some(host)
        })
    }
}

impl Side {
    fn new(hosts: Vec<HostName>, asker: &Asker) -> Side {
        let is_asker = |host: &HostName| matches!(asker, Asker::Neighbour(one, _) if one == host);
        let state = match hosts.first() {
            Some(nearest) if !is_asker(nearest) => SideState::Waiting,
            _ => SideState::NotAsked,
        };
        Side { hosts, state }
    }

    /// The host that is asked; `None` if none is.
    fn asked(&self) -> Option<&HostName> {
        let nearest = self.hosts.first();
        nearest.filter(|_| matches!(self.state, SideState::Waiting))
    }

    /// What is known of the hosts, the nearest first. With `all` each host has a report; else those
    /// are left out that are behind a host that did not answer.
    fn reports(self, time: Nanos, all: bool) -> Vec<HopReport> {
        let unknown = |host: &HostName, text: &str| HopReport {
            host: host.clone(),
            counted: Counted::Unknown(Reason::new(text)),
        };
        let mut reports = match self.state {
            SideState::NotAsked => return Vec::new(),
            SideState::Answered(reports) => reports,
            SideState::Waiting => {
                let text = format!("it did not answer within {time}");
                self.hosts
                    .first()
                    .map(|host| unknown(host, &text))
                    .into_iter()
                    .collect()
            }
        };
        if all && let Some(last) = reports.last().map(|last| last.host.clone()) {
            let text = format!("{last}, which would have to ask it, has sent no report of it");
            let rest = self.hosts.iter().skip(reports.len());
            reports.extend(rest.map(|host| unknown(host, &text)));
        }
        reports
    }
}

/// How long a host waits for the answers of its neighbours, for each host on that side. So a
/// question over [`Hops::MOST`] hosts is answered within 4.5 s.
pub const STEP: Nanos = Nanos::from_millis(300);

/// The most open questions of the programs of a host.
pub const MOST_OF_PROGRAMS: usize = 64;

/// The most open questions of one neighbour.
pub const MOST_OF_NEIGHBOUR: usize = 16;

const _: () = assert!(Hops::MOST as u64 * STEP.0 < 5_000_000_000);
