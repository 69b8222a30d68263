//! Runs a script on a TCP under test.
//!
//! The interpreter plays the other end of the connection: it makes the segments of the `<` lines,
//! and compares what leaves with the `>` lines, in order. A segment that leaves before the line
//! that expects it, or that no line expects, is an error.

use std::collections::HashMap;
use std::fmt::{self, Write as _};
use std::time::Duration;

use crate::pattern_bytes;
use crate::peer::{Peer, Sent};
use crate::script::{Arriving, Echo, Leaving, Script, Step, What};
use crate::segment::{Flags, Segment};

/// A step of a script that did not happen as it says.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The name of the script.
    pub script: String,
    /// Number of the line, from 1.
    pub line: usize,
    /// The line.
    pub text: String,
    /// What happened instead.
    pub seen: String,
    /// The segments before, in both directions.
    pub before: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Failure {
            script, line, text, ..
        } = self;
        writeln!(f, "{script}.script:{line}")?;
        writeln!(f, "    expected: {text}")?;
        writeln!(f, "    seen:     {}", self.seen)?;
        write!(f, "{}", self.before)
    }
}

impl std::error::Error for Failure {}

/// Runs a script.
///
/// # Errors
/// At the first step that does not happen as the script says.
pub fn run(script: &Script, peer: &mut dyn Peer) -> Result<(), Box<Failure>> {
    let mut run = Run::new(peer);
    for step in &script.steps {
        let done = match &step.what {
            What::Open { passive } => run.open(step, script, *passive),
            _ => run.step(step),
        };
        done.map_err(|seen| run.failure(script, step.line, &step.text, seen))?;
    }
    if let Some(sent) = run.peer.next_sent(run.at) {
        let seen = run.describe_sent(&sent);
        let line = script.steps.last().map_or(1, |step| step.line);
        return Err(run.failure(script, line, "nothing behind the last step", seen));
    }
    Ok(())
}

struct Run<'a> {
    peer: &'a mut dyn Peer,
    /// The time of the last step.
    at: Duration,
    /// The initial sequence number of the TCP under test, once its SYN has left.
    own_initial: Option<u32>,
    /// The window of the last segment that arrived.
    window: u16,
    /// The timestamps that each end offered with its SYN.
    offers: [bool; 2],
    /// The latest timestamp of the TCP under test.
    latest: u32,
    /// Timestamps of segments that left, by their names.
    names: HashMap<String, u32>,
    before: String,
}

impl<'a> Run<'a> {
    fn new(peer: &'a mut dyn Peer) -> Run<'a> {
        Run {
            peer,
            at: Duration::ZERO,
            own_initial: None,
            window: u16::MAX,
            offers: [false; 2],
            latest: 0,
            names: HashMap::new(),
            before: String::new(),
        }
    }

    fn failure(&self, script: &Script, line: usize, text: &str, seen: String) -> Box<Failure> {
        Box::new(Failure {
            script: script.name.clone(),
            line,
            text: text.to_owned(),
            seen,
            before: self.before.clone(),
        })
    }

    fn step(&mut self, step: &Step) -> Result<(), String> {
        if let What::Leaves(expected) = &step.what {
            return self.leaves(expected, step.wait);
        }
        self.wait_until(self.at + step.wait.0)?;
        match &step.what {
            What::Arrives(arriving) => self.arrives(arriving),
            What::Act(action) => self.peer.act(action),
            What::State(expected) => match self.peer.state() {
                state if state == *expected => Ok(()),
                state => Err(format!("state {state}")),
            },
            What::Error(expected) => match self.peer.error() {
                error if error == *expected => Ok(()),
                error => Err(format!("error {error}")),
            },
            What::Nothing(time) => self.wait_until(self.at + *time),
            What::Report(icmp, seq) => {
                let (destination, source) = self.peer.ports();
                let quoted = Segment {
                    source,
                    destination,
                    seq: self.own(*seq)?,
                    ..Segment::default()
                };
                self.peer.report(*icmp, &quoted);
                Ok(())
            }
            What::Leaves(_) | What::Open { .. } => Ok(()),
        }
    }

    /// The handshake, with a round trip of 10 ms: this end offers what the other one offers.
    fn open(&mut self, step: &Step, script: &Script, passive: bool) -> Result<(), String> {
        let options = &script.options;
        let mut offers = format!("mss {}", options.mss);
        if options.sack {
            offers += " sackok";
        }
        if options.timestamps {
            offers += " ts";
        }
        let (mut own, mut other) = (offers.clone(), offers);
        if let Some(scale) = options.scale {
            let _ = write!(own, " wscale *");
            let _ = write!(other, " wscale {scale}");
        }
        let (asks, agrees) = match options.ecn {
            true => ("SEC", "SEA"),
            false => ("S", "SA"),
        };
        let lines = match passive {
            false => vec![
                "connect".to_owned(),
                format!("> {asks} seq 0 {own}"),
                format!("+10ms < {agrees} seq 0 ack 1 {other}"),
                "> A seq 1 ack 1".to_owned(),
            ],
            true => vec![
                "listen".to_owned(),
                format!("< {asks} seq 0 {other}"),
                format!("> {agrees} seq 0 ack 1 {own}"),
                "+10ms < A seq 1 ack 1".to_owned(),
                "accept".to_owned(),
            ],
        };
        self.wait_until(self.at + step.wait.0)?;
        let text = format!("{}\n{}\n", script.title, lines.join("\n"));
        let handshake = Script::parse(&script.name, &text).map_err(|error| error.to_string())?;
        for (inner, line) in handshake.steps.iter().zip(&lines) {
            self.step(inner)
                .map_err(|seen| format!("{seen}, where the handshake has: {line}"))?;
        }
        Ok(())
    }

    /// Waits; nothing may leave.
    fn wait_until(&mut self, until: Duration) -> Result<(), String> {
        self.at = until;
        match self.peer.next_sent(until) {
            None => Ok(()),
            Some(sent) => Err(format!(
                "{}, which no line expects",
                self.describe_sent(&sent)
            )),
        }
    }

    fn arrives(&mut self, arriving: &Arriving) -> Result<(), String> {
        let is_syn = arriving.flags.has(Flags::SYN);
        if is_syn {
            self.offers[1] = arriving.timestamps;
        }
        self.window = arriving.window.unwrap_or(self.window);
        let (source, destination) = self.peer.ports();
        let seq = other(arriving.seq);
        let mut segment = Segment {
            source,
            destination,
            seq,
            flags: arriving.flags,
            window: self.window,
            urgent: arriving.urgent,
            mss: arriving.mss,
            scale: arriving.scale,
            sack_permitted: arriving.sack_permitted,
            payload: payload(arriving.seq, arriving.length),
            ..Segment::default()
        };
        if arriving.flags.has(Flags::ACK) {
            segment.ack = self.own(arriving.ack)?;
        }
        for (left, right) in &arriving.sack {
            segment.sack.push((self.own(*left)?, self.own(*right)?));
        }
        let stamps = match is_syn {
            true => arriving.timestamps,
            false => self.offers == [true; 2] && !arriving.no_timestamps,
        };
        if stamps {
            // The scripts are short.
            let clock = self.peer.now().as_millis() as i64;
            let value = stamp(arriving.value.unwrap_or(clock));
            let echo = match &arriving.echo {
                None => self.latest,
                Some(Echo::Number(number)) => *number as u32,
                Some(Echo::Of(name)) => *self
                    .names
                    .get(name)
                    .ok_or_else(|| format!("no segment was named {name}"))?,
            };
            segment.timestamps = Some((value, echo));
        }
        self.note(self.peer.now(), '<', &segment);
        self.peer.deliver(&segment, arriving.marked);
        Ok(())
    }

    fn leaves(&mut self, expected: &Leaving, wait: (Duration, Duration)) -> Result<(), String> {
        let tolerance = self.peer.tolerance(wait.1);
        let from = (self.at + wait.0).saturating_sub(tolerance.early);
        let to = self.at + wait.1 + tolerance.late;
        let Some(sent) = self.peer.next_sent(to) else {
            return Err(format!("nothing until {}", milliseconds(to)));
        };
        let Sent { at, segment, .. } = &sent;
        if segment.flags.has(Flags::SYN) && self.own_initial.is_none() {
            self.own_initial = Some(segment.seq);
        }
        if segment.flags.has(Flags::SYN) {
            self.offers[0] = segment.timestamps.is_some();
        }
        let seen = self.describe_sent(&sent);
        let wrong = self.difference(expected, &sent)?;
        if !wrong.is_empty() {
            return Err(format!("{seen}\n    different: {}", wrong.join(", ")));
        }
        if *at < from || *at > to {
            let (from, to) = (milliseconds(from), milliseconds(to));
            return Err(format!("{seen}\n    different: not from {from} to {to}"));
        }
        self.note(*at, '>', segment);
        self.at = *at;
        if let Some((value, _)) = segment.timestamps {
            self.latest = value;
            if let Some(name) = &expected.name {
                self.names.insert(name.clone(), value);
            }
        }
        Ok(())
    }

    /// The words in which a segment differs from the line.
    fn difference(&self, expected: &Leaving, sent: &Sent) -> Result<Vec<&'static str>, String> {
        let segment = &sent.segment;
        let is_syn = segment.flags.has(Flags::SYN);
        let mut wrong = Vec::new();
        let mut check = |is_right: bool, what: &'static str| {
            if !is_right {
                wrong.push(what);
            }
        };
        let push = segment.flags.has(Flags::PSH);
        // A reset that is not expected to acknowledge may do so.
        let free = match expected.flags {
            flags if flags.has(Flags::RST) && !flags.has(Flags::ACK) => Flags::PSH | Flags::ACK,
            _ => Flags::PSH,
        };
        check(
            segment.flags.without(free) == expected.flags.without(free),
            "flags",
        );
        check(push || !expected.flags.has(Flags::PSH), "push");
        check(!push || !expected.no_push, "push");
        check(segment.seq == self.own(expected.seq)?, "seq");
        check(
            expected.ack.is_none_or(|ack| other(ack) == segment.ack),
            "ack",
        );
        check(segment.payload.len() == expected.length as usize, "len");
        check(
            payload(expected.seq, expected.length) == segment.payload,
            "payload",
        );
        check(
            expected
                .window
                .is_none_or(|(least, most)| (least..=most).contains(&segment.window)),
            "win",
        );
        let blocks = expected.sack.iter().map(|(l, r)| (other(*l), other(*r)));
        check(blocks.eq(segment.sack.iter().copied()), "sack");
        if is_syn {
            check(matches(expected.mss, segment.mss), "mss");
            check(matches(expected.scale, segment.scale), "wscale");
            check(segment.sack_permitted == expected.sack_permitted, "sackok");
            check(segment.timestamps.is_some() == expected.timestamps, "ts");
        } else if !segment.flags.has(Flags::RST) {
            // RFC 7323, section 3.2.
            let agreed = self.offers == [true; 2];
            check(segment.timestamps.is_some() == agreed, "ts");
        }
        check(
            expected.echo.is_none_or(|echo| {
                segment
                    .timestamps
                    .is_some_and(|(_, seen)| seen == stamp(echo))
            }),
            "ecr",
        );
        check(
            expected
                .ecn_capable
                .is_none_or(|capable| capable == sent.ecn_capable),
            "ect",
        );
        Ok(wrong)
    }

    /// The absolute number of the TCP under test.
    fn own(&self, number: i64) -> Result<u32, String> {
        let initial = self.own_initial.ok_or("the TCP has sent no SYN yet")?;
        Ok(initial.wrapping_add(number as u32))
    }

    fn describe_sent(&self, sent: &Sent) -> String {
        let capable = if sent.ecn_capable { " ect" } else { "" };
        format!(
            "{} > {}{capable}",
            milliseconds(sent.at),
            self.describe(&sent.segment, true)
        )
    }

    fn note(&mut self, at: Duration, direction: char, segment: &Segment) {
        let text = self.describe(segment, direction == '>');
        let _ = writeln!(self.before, "    {} {direction} {text}", milliseconds(at));
    }

    /// A segment in the words of a script. `own`: the TCP under test sent it.
    fn describe(&self, segment: &Segment, own: bool) -> String {
        let initial = self.own_initial.unwrap_or(0);
        let (mine, theirs) = match own {
            true => (initial, OTHER_INITIAL),
            false => (OTHER_INITIAL, initial),
        };
        let relative = |number: u32, initial: u32| number.wrapping_sub(initial) as i32;
        let mut text = format!("{} seq {}", segment.flags, relative(segment.seq, mine));
        if segment.flags.has(Flags::ACK) {
            let _ = write!(text, " ack {}", relative(segment.ack, theirs));
        }
        if !segment.payload.is_empty() {
            let _ = write!(text, " len {}", segment.payload.len());
        }
        let _ = write!(text, " win {}", segment.window);
        if let Some(mss) = segment.mss {
            let _ = write!(text, " mss {mss}");
        }
        if let Some(scale) = segment.scale {
            let _ = write!(text, " wscale {scale}");
        }
        if segment.sack_permitted {
            text += " sackok";
        }
        if let Some((value, echo)) = segment.timestamps {
            let echo = echo.wrapping_sub(FIRST_STAMP) as i32;
            let _ = write!(text, " ts {value} ecr {echo}");
        }
        for (index, (left, right)) in segment.sack.iter().enumerate() {
            let separator = if index == 0 { " sack " } else { "," };
            let (left, right) = (relative(*left, theirs), relative(*right, theirs));
            let _ = write!(text, "{separator}{left}-{right}");
        }
        text
    }
}

fn matches<T: PartialEq + Copy>(expected: Option<crate::script::Any<T>>, seen: Option<T>) -> bool {
    match (expected, seen) {
        (None, None) => true,
        (Some(expected), Some(seen)) => expected.admits(seen),
        _ => false,
    }
}

/// The payload at a sequence number.
fn payload(seq: i64, length: u32) -> Vec<u8> {
    pattern_bytes((seq as u32).wrapping_sub(1), length)
}

/// The absolute number of the interpreter's end.
fn other(number: i64) -> u32 {
    OTHER_INITIAL.wrapping_add(number as u32)
}

/// The timestamp with this number.
fn stamp(number: i64) -> u32 {
    FIRST_STAMP.wrapping_add(number as u32)
}

fn milliseconds(time: Duration) -> String {
    format!("{:.1}ms", time.as_secs_f64() * 1000.0)
}

/// The sequence numbers wrap early in the stream.
const OTHER_INITIAL: u32 = u32::MAX - 1500;
/// The timestamps wrap after 5 s.
const FIRST_STAMP: u32 = u32::MAX - 5000;
