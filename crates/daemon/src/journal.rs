//! What happened: grants, refusals, repairs. The latest events are kept for `netnice log`; all of them go to tracing.

use std::collections::{BTreeMap, VecDeque};

use netnice_api::LogLine;

use crate::clock::Now;

/// The latest events.
#[derive(Debug, Default)]
pub struct Journal {
    lines: VecDeque<LogLine>,
    /// What of each matter was complained of last.
    complaints: BTreeMap<&'static str, String>,
}

impl Journal {
    /// Notes something that went as it should.
    pub fn note(&mut self, now: Now, text: impl Into<String>) {
        let text = text.into();
        tracing::info!("{text}");
        self.keep(now, text);
    }

    /// Notes something that somebody should look at.
    pub fn warn(&mut self, now: Now, text: impl Into<String>) {
        let text = text.into();
        tracing::warn!("{text}");
        self.keep(now, text);
    }

    /// Notes how something stands that is tried again and again: an error once, until it is another one or none.
    pub fn judge<E: ToString>(&mut self, now: Now, matter: &'static str, result: Result<(), E>) {
        match result.map_err(|error| error.to_string()) {
            Ok(()) => {
                self.complaints.remove(matter);
            }
            Err(text) if self.complaints.get(matter) == Some(&text) => {}
            Err(text) => {
                self.warn(now, format!("{matter}: {text}"));
                self.complaints.insert(matter, text);
            }
        }
    }

    /// The events of the last `since_ns`, at most `most` of them, oldest first.
    pub fn read(&self, now: Now, since_ns: Option<u64>, most: Option<u32>) -> Vec<LogLine> {
        let from = since_ns.map_or(0, |since| now.wall_ns.saturating_sub(since));
        let recent = self.lines.iter().filter(|line| line.at_ns >= from);
        let count = recent.clone().count();
        let skip = most.map_or(0, |most| count.saturating_sub(most as usize));
        recent.skip(skip).cloned().collect()
    }

    fn keep(&mut self, now: Now, text: String) {
        // One event is one line, whatever it quotes.
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        if self.lines.len() == KEPT {
            self.lines.pop_front();
        }
        self.lines.push_back(LogLine {
            at_ns: now.wall_ns,
            text,
        });
    }
}

/// A refusal is about 300 bytes long, so the ring stays below a megabyte.
const KEPT: usize = 2_000;

#[cfg(test)]
mod tests {
    use super::*;

    fn at(wall_ns: u64) -> Now {
        Now {
            wall_ns,
            ..Now::default()
        }
    }

    #[test]
    fn what_goes_wrong_again_and_again_is_said_once() {
        let mut journal = Journal::default();
        for result in [Err("a"), Err("a"), Err("b"), Ok(()), Err("b")] {
            journal.judge(at(1), "measuring", result);
        }
        let lines = journal.read(at(1), None, None);
        let texts: Vec<&str> = lines.iter().map(|line| line.text.as_str()).collect();
        assert_eq!(texts, ["measuring: a", "measuring: b", "measuring: b"]);
    }

    #[test]
    fn the_oldest_go_and_a_reader_gets_the_latest_in_order() {
        let mut journal = Journal::default();
        for n in 0..KEPT as u64 + 5 {
            journal.note(at(n), format!("event\n  {n}"));
        }
        let all = journal.read(at(3_000), None, None);
        assert_eq!(all.len(), KEPT);
        assert_eq!(all[0].text, "event 5");
        let two = journal.read(at(2_004), Some(10), Some(2));
        let texts: Vec<&str> = two.iter().map(|line| line.text.as_str()).collect();
        assert_eq!(texts, ["event 2003", "event 2004"]);
        assert_eq!(journal.read(at(2_004), Some(3), None).len(), 4);
    }
}
