use netnice_cases::{Corpus, cases};
use proptest::prelude::*;

use super::*;
use crate::message::{
    Attempt, ClockAnswer, ClockAsk, Close, HopReport, KernelClock, Refusal, Refused, ReportAnswer,
    ReportAsk, encode,
};

fn corpus() -> Corpus {
    Corpus::of(concat!(env!("CARGO_MANIFEST_DIR"), "/corpus"))
}

#[test]
fn every_kept_input_has_the_outcome_of_its_name() {
    let outcomes = [
        "nothing",
        "json",
        "version",
        "violation",
        "refused",
        "unknown",
        "ignored",
        "taken",
        "hold",
        "relax",
        "ended",
        "clock",
        "count",
        "answered",
        "reply",
        "time",
    ];
    corpus().replay(outcome_of, &outcomes);
}

/// Random numbers by SplitMix64.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % end
    }

    fn name(&mut self) -> HostName {
        host(["a", "b", "e", "f", "r", "x"][self.below(6) as usize])
    }

    /// The address of a host; one of 50 is that of IPv6, so that families are mixed.
    fn address(&mut self, name: &str) -> IpAddr {
        match self.below(50) {
            0 => IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, self.below(9) as u16]),
            _ => address(name),
        }
    }

    fn channel(&mut self) -> ChannelId {
        ChannelId([self.below(16) as u8; 16])
    }

    fn hops(&mut self, first: &str) -> Hops {
        let mut hops = vec![(first.to_owned(), self.below(20))];
        while self.below(2) == 0 {
            let name = self.name().as_str().to_owned();
            if hops.iter().all(|(other, _)| *other != name) {
                hops.push((name, self.below(20)));
            }
        }
        let hops: Vec<(&str, u64)> = hops
            .iter()
            .map(|(name, bound)| (name.as_str(), *bound))
            .collect();
        super::hops(&hops)
    }

    /// An `establish`; a question if its hops contain its sink.
    fn establish(&mut self, from: &str, channel: ChannelId) -> Message {
        let hops = match self.below(9) {
            0 => self.hops(from),
            _ => super::hops(&[(from, self.below(20))]),
        };
        let sink = self.name();
        let rate = MessageRate::new(1 + self.below(1_000) as u32).expect("a rate");
        let mmax = Bytes(1 + self.below(1 << 21));
        let deadline = Nanos::from_millis(1 + self.below(60));
        let contract = Channel::new(mmax, rate, 1 + self.below(9) as u32, deadline);
        let service = ServiceName::new("camera").expect("a service");
        let contract = contract.expect("a contract");
        match hops.contains(&sink) {
            true => Message::ClockAsk(ClockAsk { sent_ns: 1 }),
            false => Message::Establish(Establish {
                channel,
                attempt: self.below(4),
                service,
                sink_address: self.address(sink.as_str()),
                sink,
                contract,
                packet: 532 + self.below(1_000) as u16,
                from: self.address(from),
                to: address("r"),
                hops,
            }),
        }
    }

    /// A message that a neighbour could send.
    fn message(&mut self, from: &str) -> Message {
        let channel = self.channel();
        let reason = Reason::new("it does not want to");
        match self.below(18) {
            0 if self.below(50) == 0 => Message::Hello(Hello { host: self.name() }),
            0..6 => self.establish(from, channel),
            6 => {
                let refusal = Refusal {
                    host: self.name(),
                    reason,
                    best_deadline_ns: None,
                };
                Message::Refused(Refused {
                    channel,
                    attempt: self.below(4),
                    refusal,
                })
            }
            7 => {
                let first = self.name();
                let hops = self.hops(first.as_str());
                Message::Established(Established {
                    channel,
                    attempt: self.below(4),
                    port: PORT,
                    hops,
                })
            }
            8 | 9 => Message::Close(Close {
                channel,
                attempt: match self.below(4) {
                    0 => Some(Attempt::Sender(self.below(4))),
                    1 => Some(Attempt::Receiver(self.below(4))),
                    _ => None,
                },
                host: self.name(),
                reason,
            }),
            10 | 11 => {
                let most = [4, 4, 4, 200][self.below(4) as usize];
                let mut channels: Vec<ChannelId> = (0..self.below(most))
                    .map(|_| ChannelId([self.below(256) as u8; 16]))
                    .collect();
                channels.sort();
                channels.dedup();
                Message::Refresh(Refresh { channels })
            }
            12 => Message::ReportAsk(ReportAsk {
                channel,
                question: self.below(4),
            }),
            13 => Message::ReportAnswer(ReportAnswer {
                channel,
                question: self.below(1_000),
                hops: vec![HopReport {
                    host: self.name(),
                    counted: Counted::Unknown(reason),
                }],
            }),
            14..17 => Message::ClockAsk(ClockAsk {
                sent_ns: self.below(u64::MAX),
            }),
            _ if self.below(50) > 0 => Message::Refresh(Refresh {
                channels: vec![channel],
            }),
            _ => Message::ClockAnswer(ClockAnswer {
                asked_ns: self.below(9),
                received_ns: self.below(9),
                answered_ns: self.below(9),
                kernel: (self.below(2) == 0).then(|| KernelClock {
                    utc_ahead_ns: self.below(u64::MAX) as i64,
                    error_ns: self.below(u64::MAX),
                }),
            }),
        }
    }
}

/// Gives messages to one host: plausible ones, altered ones and random bytes. Others are
/// replies of the host, seconds that pass, and answers that establish what was asked for.
fn flood(messages: usize, seed: u64) -> std::collections::BTreeMap<&'static str, usize> {
    let mut random = Random(seed);
    let mut world = HostileWorld::new();
    let mut counts = std::collections::BTreeMap::new();
    for _ in 0..messages {
        let from = if random.below(2) == 0 { b'e' } else { b'f' };
        let outcome = match random.below(40) {
            0..3 => world.handle(b'h', &[]),
            3..5 => world.handle(b'u', &[]),
            5..8 => world.handle(b'r', &[]),
            8 => world.handle(b't', &[]),
            9 => {
                let bytes: Vec<u8> = (0..random.below(300))
                    .map(|_| random.below(256) as u8)
                    .collect();
                world.handle(from, &bytes)
            }
            10..13 => {
                let Some((neighbour, answer)) = world.answer() else {
                    continue;
                };
                let body = encode(&answer).expect("short enough").split_off(4);
                world.handle(neighbour, &body)
            }
            which => {
                let name = std::str::from_utf8(std::slice::from_ref(&from)).expect("a letter");
                let mut body = encode(&random.message(name))
                    .expect("short enough")
                    .split_off(4);
                if which == 13 {
                    let at = random.below(body.len() as u64) as usize;
                    body[at] = random.below(256) as u8;
                }
                world.handle(from, &body)
            }
        };
        *counts.entry(outcome.expect("a kind")).or_insert(0) += 1;
    }
    counts
}

#[test]
fn a_hundred_thousand_hostile_messages_touch_no_channel_of_others() {
    let counts = flood(100_000, 1);
    let seen = [
        "hold",
        "relax",
        "refused",
        "unknown",
        "ignored",
        "violation",
        "ended",
        "taken",
        "count",
        "json",
    ];
    for outcome in seen {
        assert!(
            counts.contains_key(outcome),
            "{outcome} never came: {counts:?}"
        );
    }
}

#[test]
#[ignore = "it takes a minute"]
fn a_million_hostile_messages_touch_no_channel_of_others() {
    println!("{:?}", flood(1_000_000, 2));
}

proptest! {
    #![proptest_config(cases(512))]

    #[test]
    fn messages_near_the_corpus_touch_no_channel_of_others(input in corpus().near()) {
        outcome_of(&input);
    }

    #[test]
    fn series_of_messages_near_the_corpus_touch_no_channel_of_others(
        inputs in corpus().some(1..12),
    ) {
        outcome_of(&inputs.concat());
    }
}
