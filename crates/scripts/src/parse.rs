//! Reads the text of a script. Unknown words, missing numbers and numbers that do not fit are
//! refused, with the line and the word.

use std::str::FromStr;
use std::time::Duration;

use crate::peer::{Action, Error, Icmp, State};
use crate::script::{Any, Arriving, Echo, Keepalive, Leaving, Options, Script, Step, What};
use crate::segment::Flags;

/// Why a text is no script.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{script}:{line}: {what}\n    {text}")]
pub struct ParseError {
    /// The name of the script.
    pub script: String,
    /// Number of the line, from 1.
    pub line: usize,
    /// The line.
    pub text: String,
    /// What is wrong.
    pub what: String,
}

impl Script {
    /// Reads a script. `name` is the name of its file, without the ending.
    ///
    /// # Errors
    /// If the first line names no RFC, or a line is not understood.
    pub fn parse(name: &str, text: &str) -> Result<Script, ParseError> {
        let mut script = Script {
            name: name.to_owned(),
            title: text.lines().next().unwrap_or_default().trim().to_owned(),
            options: Options::default(),
            steps: Vec::new(),
        };
        for (index, line) in text.lines().enumerate() {
            let error = |what: String| ParseError {
                script: name.to_owned(),
                line: index + 1,
                text: line.trim().to_owned(),
                what,
            };
            if index == 0 {
                check_title(line).map_err(error)?;
                continue;
            }
            let content = line.split('#').next().unwrap_or_default().trim();
            if content.is_empty() {
                continue;
            }
            if let Some(options) = content.strip_prefix("connection:") {
                read_options(&mut script.options, options).map_err(error)?;
                continue;
            }
            let (wait, what) = read_step(content).map_err(error)?;
            script.steps.push(Step {
                line: index + 1,
                text: content.to_owned(),
                wait,
                what,
            });
        }
        Ok(script)
    }
}

/// `RFC 9293, 3.5: subject`.
fn check_title(line: &str) -> Result<(), String> {
    let rest = line.strip_prefix("RFC ").unwrap_or_default();
    let number = rest.split(',').next().unwrap_or_default();
    match number.parse::<u16>().is_ok() && rest.contains(": ") {
        true => Ok(()),
        false => Err("the first line must be \"RFC NUMBER, SECTION: SUBJECT\"".to_owned()),
    }
}

fn read_options(options: &mut Options, text: &str) -> Result<(), String> {
    for option in text.split(',') {
        let mut words = Words::new(option);
        let word = words.next("an option")?;
        match word {
            "mss" => options.mss = words.number()?,
            "window" => options.window = words.number()?,
            "sack" => options.sack = true,
            "timestamps" => options.timestamps = true,
            "scale" => options.scale = Some(words.number()?),
            "ecn" => options.ecn = true,
            "no-delay" => options.no_delay = true,
            "quick" => options.quick = true,
            "reno" => options.reno = true,
            "user-timeout" => options.user_timeout = Some(words.time()?),
            "connect-timeout" => options.connect_timeout = Some(words.time()?),
            "fin-wait-2" => options.fin_wait_2 = Some(words.time()?),
            "keepalive" => {
                options.keepalive = Some(Keepalive {
                    idle: words.time()?,
                    interval: words.time()?,
                    probes: words.number()?,
                });
            }
            _ => return Err(format!("unknown option \"{word}\"")),
        }
        words.end()?;
    }
    Ok(())
}

type Wait = (Duration, Duration);

fn read_step(text: &str) -> Result<(Wait, What), String> {
    let mut words = Words::new(text);
    let mut word = words.next("a step")?;
    let mut wait = (Duration::ZERO, Duration::ZERO);
    if let Some(time) = word.strip_prefix('+') {
        wait = match time.split_once("..") {
            Some((least, most)) => (read_time(least)?, read_time(most)?),
            None => (read_time(time)?, read_time(time)?),
        };
        word = words.next("a step behind the time")?;
    }
    let what = match word {
        "<" => What::Arrives(arriving(&mut words)?),
        ">" => What::Leaves(leaving(&mut words)?),
        "open" => What::Open {
            passive: words.if_next("passive"),
        },
        "state" => What::State(words.named("state", State::named)?),
        "error" => What::Error(words.named("error", Error::named)?),
        "nothing" => {
            words.expect("for")?;
            What::Nothing(words.time()?)
        }
        "icmp" => report(&mut words)?,
        _ => What::Act(action(word, &mut words)?),
    };
    words.end()?;
    if wait.0 != wait.1 && !matches!(what, What::Leaves(_)) {
        return Err("only a segment that leaves can have a range of times".to_owned());
    }
    if wait.0 > wait.1 {
        return Err("the range of times ends before it begins".to_owned());
    }
    Ok((wait, what))
}

fn action(word: &str, words: &mut Words<'_>) -> Result<Action, String> {
    Ok(match word {
        "connect" => Action::Connect,
        "listen" => Action::Listen,
        "accept" => Action::Accept,
        "write" if words.if_next("fails") => Action::WriteFails,
        "write" => Action::Write(words.number()?),
        "read" if words.if_next("end") => Action::ReadEnd,
        "read" => Action::Read(words.number()?),
        "readable" => Action::Readable(words.number()?),
        "shutdown" => Action::Shutdown,
        "close" => Action::Close,
        "abort" => Action::Abort,
        "no-delay" if words.if_next("on") => Action::NoDelay(true),
        "no-delay" => {
            words.expect("off")?;
            Action::NoDelay(false)
        }
        _ => return Err(format!("unknown word \"{word}\"")),
    })
}

fn report(words: &mut Words<'_>) -> Result<What, String> {
    let icmp = match words.next("a kind of message")? {
        "unreachable" => Icmp::Unreachable,
        "too-big" => Icmp::TooBig(words.number()?),
        other => return Err(format!("unknown message \"{other}\"")),
    };
    words.expect("seq")?;
    Ok(What::Report(icmp, words.number()?))
}

fn flags(words: &mut Words<'_>) -> Result<Flags, String> {
    let word = words.next("flags")?;
    Flags::parse(word).ok_or_else(|| format!("\"{word}\" is no set of flags"))
}

fn arriving(words: &mut Words<'_>) -> Result<Arriving, String> {
    let mut segment = Arriving {
        flags: flags(words)?,
        ..Arriving::default()
    };
    let (mut has_seq, mut has_ack) = (false, false);
    while let Some(word) = words.try_next() {
        match word {
            "seq" => (segment.seq, has_seq) = (words.number()?, true),
            "ack" => (segment.ack, has_ack) = (words.number()?, true),
            "len" => segment.length = words.number()?,
            "win" => segment.window = Some(words.number()?),
            "urgent" => segment.urgent = words.number()?,
            "mss" => segment.mss = Some(words.number()?),
            "wscale" => segment.scale = Some(words.number()?),
            "sackok" => segment.sack_permitted = true,
            "ts" if segment.flags.has(Flags::SYN) => segment.timestamps = true,
            "ts" => segment.value = Some(words.number()?),
            "ecr" => {
                let word = words.next("an echo")?;
                segment.echo = Some(match word.parse() {
                    Ok(number) => Echo::Number(number),
                    Err(_) => Echo::Of(word.to_owned()),
                });
            }
            "no-ts" => segment.no_timestamps = true,
            "sack" => segment.sack = words.ranges()?,
            "ce" => segment.marked = true,
            _ => return Err(format!("unknown word \"{word}\"")),
        }
    }
    check_numbers(segment.flags, has_seq, has_ack)?;
    Ok(segment)
}

fn leaving(words: &mut Words<'_>) -> Result<Leaving, String> {
    let mut segment = Leaving {
        flags: flags(words)?,
        ..Leaving::default()
    };
    let mut has_seq = false;
    while let Some(word) = words.try_next() {
        match word {
            "seq" => (segment.seq, has_seq) = (words.number()?, true),
            "ack" => segment.ack = Some(words.number()?),
            "len" => segment.length = words.number()?,
            "win" => segment.window = Some(words.field_range()?),
            "mss" => segment.mss = Some(words.any()?),
            "wscale" => segment.scale = Some(words.any()?),
            "sackok" => segment.sack_permitted = true,
            "ts" => segment.timestamps = true,
            "ecr" => segment.echo = Some(words.number()?),
            "sack" => segment.sack = words.ranges()?,
            "no-push" => segment.no_push = true,
            "ect" => segment.ecn_capable = Some(true),
            "not-ect" => segment.ecn_capable = Some(false),
            "as" => segment.name = Some(words.next("a name")?.to_owned()),
            _ => return Err(format!("unknown word \"{word}\"")),
        }
    }
    check_numbers(segment.flags, has_seq, segment.ack.is_some())?;
    Ok(segment)
}

fn check_numbers(flags: Flags, has_seq: bool, has_ack: bool) -> Result<(), String> {
    match (has_seq, flags.has(Flags::ACK) == has_ack) {
        (true, true) => Ok(()),
        (false, _) => Err("a segment needs \"seq\"".to_owned()),
        (_, false) => Err("a segment has \"ack\" exactly if it has the flag A".to_owned()),
    }
}

/// `250ms`, `3s`, `100us`, `2m`.
fn read_time(word: &str) -> Result<Duration, String> {
    let digits = word.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let number: u64 = digits
        .parse()
        .map_err(|_| format!("\"{word}\" is no time such as 250ms"))?;
    match &word[digits.len()..] {
        "us" => Ok(Duration::from_micros(number)),
        "ms" => Ok(Duration::from_millis(number)),
        "s" => Ok(Duration::from_secs(number)),
        "m" => Ok(Duration::from_secs(number * 60)),
        _ => Err(format!("\"{word}\" is no time such as 250ms")),
    }
}

/// The words of a line.
struct Words<'a> {
    rest: Vec<&'a str>,
}

impl<'a> Words<'a> {
    fn new(text: &'a str) -> Words<'a> {
        Words {
            rest: text.split_whitespace().rev().collect(),
        }
    }

    fn try_next(&mut self) -> Option<&'a str> {
        self.rest.pop()
    }

    fn next(&mut self, what: &str) -> Result<&'a str, String> {
        self.try_next().ok_or_else(|| format!("{what} is missing"))
    }

    fn if_next(&mut self, word: &str) -> bool {
        let is_next = self.rest.last() == Some(&word);
        if is_next {
            self.rest.pop();
        }
        is_next
    }

    fn expect(&mut self, word: &str) -> Result<(), String> {
        match self.next(word)? {
            found if found == word => Ok(()),
            found => Err(format!("\"{found}\" where \"{word}\" is expected")),
        }
    }

    fn end(&mut self) -> Result<(), String> {
        match self.try_next() {
            None => Ok(()),
            Some(word) => Err(format!("unexpected word \"{word}\"")),
        }
    }

    fn number<T: FromStr>(&mut self) -> Result<T, String> {
        read_number(self.next("a number")?)
    }

    fn any<T: FromStr>(&mut self) -> Result<Any<T>, String> {
        match self.if_next("*") {
            true => Ok(Any::Any),
            false => self.number().map(Any::Value),
        }
    }

    fn time(&mut self) -> Result<Duration, String> {
        read_time(self.next("a time")?)
    }

    fn named<T>(&mut self, kind: &str, named: fn(&str) -> Option<T>) -> Result<T, String> {
        let word = self.next(kind)?;
        named(word).ok_or_else(|| format!("unknown {kind} \"{word}\""))
    }

    /// `N`, `A..B` or `*`.
    fn field_range(&mut self) -> Result<(u16, u16), String> {
        match self.next("a window")? {
            "*" => Ok((0, u16::MAX)),
            word => match word.split_once("..") {
                Some((least, most)) => Ok((read_number(least)?, read_number(most)?)),
                None => Ok((read_number(word)?, read_number(word)?)),
            },
        }
    }

    /// `L-R,L-R`.
    fn ranges(&mut self) -> Result<Vec<(i64, i64)>, String> {
        let word = self.next("SACK blocks")?;
        word.split(',')
            .map(|range| {
                let (left, right) = range
                    .split_once('-')
                    .ok_or_else(|| format!("\"{range}\" is no block such as 1001-2001"))?;
                Ok((read_number(left)?, read_number(right)?))
            })
            .collect()
    }
}

fn read_number<T: FromStr>(word: &str) -> Result<T, String> {
    word.parse()
        .map_err(|_| format!("\"{word}\" is no number that is possible here"))
}
