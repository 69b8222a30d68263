//! The costs of processing on this machine ([`of_machine`], [`measure`]), as the admission of
//! handlers counts them (paper RTC, table 1). Functions fail with [`ChannelError`] if a thread or
//! an eventfd cannot be made, or the file of costs cannot be used.
//!
//! Each cost is the 99.9th percentile of some thousand measurements of what a handler really does:
//! an [`Executor`] cuts messages of best effort into packets, with a buffer, a system call to wake
//! the driver and a reading of the clock for each packet. Processor time counts, so the time that
//! other programs have meanwhile does not. Longer delays than that are stops of the machine
//! (docs/reference/contracts.md, *Stops*) and no costs. Everything is measured in several rounds,
//! and the median of their percentiles counts, so that one bad moment of the machine does not. A
//! round has more than a thousand measurements, so that its percentile leaves one out at least.

mod kept;

use std::num::NonZeroU32;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use netnice_core::admission::timing::Processor;
use netnice_core::contract::Weight;
use netnice_core::units::{Bytes, Nanos};
use rustix::event::{EventfdFlags, eventfd};
use rustix::time::{ClockId, clock_gettime};

use crate::error::ChannelError;
use crate::executor::{Executor, HandlerId, OutgoingPacket, Step, Transmit};
use crate::handler_thread::now;
use crate::header::{ChannelId, PacketHeader};
use crate::options::{ChannelClass, ChannelOptions, ExecutorSettings, OpenError, WhenFull};
use crate::stage::{Checksum, Encryption, Stage};
use crate::waker::Waker;
use kept::CostsFile;

/// The costs that a file has for such packets and blocks; else they are measured ([`measure`]), and
/// kept in the file, which need not exist. Measurements differ by some percent from start to start.
/// With costs that are kept, a program that is refused and started again with the best deadline is
/// granted it. With these settings no message is processed early.
///
/// # Errors
/// As [`measure`]; and [`ChannelError::Costs`] if the file cannot be read or written, or is no file
/// of costs.
pub fn of_machine(
    largest: Bytes,
    block: NonZeroU32,
    file: Option<&Path>,
) -> Result<ExecutorSettings, ChannelError> {
    let Some(file) = file.map(CostsFile::read).transpose()? else {
        return measure(largest, block);
    };
    let thing = format!("packets of {} bytes in blocks of {block}", largest.0);
    let names = ["switch", "waking", "cache-miss", "first", "later"];
    if let Some([switch, waking, cache_miss, first, later]) = file.find(&thing, names)? {
        let processor = Processor {
            switch,
            cache_miss,
            first,
            later,
            ..unmeasured(largest, block)
        };
        return Ok(ExecutorSettings {
            waking,
            ..ExecutorSettings::new(processor)
        });
    }
    let settings = measure(largest, block)?;
    let costs = &settings.processor;
    let [switch, waking, cache_miss, first, later] = names;
    let named = [
        (switch, costs.switch),
        (waking, settings.waking),
        (cache_miss, costs.cache_miss),
        (first, costs.first),
        (later, costs.later),
    ];
    file.keep(&thing, named)?;
    Ok(settings)
}

/// The file of costs that the environment variable `NETNICE_COSTS` names, if it does.
pub fn named_file() -> Option<PathBuf> {
    let named = std::env::var_os("NETNICE_COSTS");
    named.filter(|path| !path.is_empty()).map(PathBuf::from)
}

/// Measures the costs of processing packets of up to `largest` bytes, with the channel's header, in
/// blocks of `block` packets. Takes less than half a second on an idle machine. With these settings
/// no message is processed early.
///
/// # Errors
/// [`ChannelError::Open`] if `largest` or `block` are too small or too large for a channel, and
/// [`ChannelError::System`] if a system call fails.
pub fn measure(largest: Bytes, block: NonZeroU32) -> Result<ExecutorSettings, ChannelError> {
    let costs = unmeasured(largest, block);
    let mut packets = Packets::new(costs)?;
    // The first ones warm the caches up.
    packets.times(MESSAGES / 10, false)?;
    let mut found: [Vec<Nanos>; 6] = Default::default();
    for _ in 0..ROUNDS {
        let (first, later) = packets.times(MESSAGES, false)?;
        let (cold, _) = packets.times(COLD_MESSAGES, true)?;
        let (sleeps, wakes) = switches()?;
        let many = means(&sleeps);
        let times = [first, later, cold, sleeps, many, wakes];
        for (of_one, times) in found.iter_mut().zip(times) {
            of_one.push(high(times));
        }
    }
    let [first, later, cold, switch, waking, wake] = found.map(middle);
    let processor = Processor {
        switch,
        cache_miss: Nanos(cold.0.saturating_sub(first.0)),
        // With each message the handler wakes the program's thread.
        first: Nanos(first.0.saturating_add(wake.0)),
        later: later.min(first),
        ..costs
    };
    Ok(ExecutorSettings {
        waking: waking.min(switch),
        ..ExecutorSettings::new(processor)
    })
}

/// A processor on which packets cost next to nothing.
fn unmeasured(largest: Bytes, block: NonZeroU32) -> Processor {
    Processor {
        switch: Nanos(0),
        cache_miss: Nanos(0),
        first: Nanos(1),
        later: Nanos(1),
        link_scheduling: Nanos(0),
        block,
        largest,
        leftover: Nanos(0),
    }
}

/// The processor time of a stage for a packet of up to `largest` bytes, with the channel's header.
pub fn of_stage(stage: &mut dyn Stage, largest: Bytes) -> Nanos {
    let room = largest.0 as usize + stage.overhead();
    let length = room.saturating_sub(stage.overhead() + PacketHeader::LENGTH);
    let mut buffer = vec![7; room];
    let mut header = PacketHeader {
        channel: ChannelId([0; 16]),
        message: 0,
        part: 0,
        count: 1,
    };
    let mut times = Vec::with_capacity(SEALED);
    for message in 0..SEALED {
        header.message = message as u64;
        let before = thread_time();
        stage.seal(&header, &mut buffer, length);
        times.push(thread_time() - before);
    }
    high(times)
}

/// What makes the built-in stages of channels, with what they cost on this machine.
#[derive(Clone, Debug)]
pub struct StageMaker {
    /// Processor time of a checksum for a packet; `None` without checksums.
    checksum: Option<Nanos>,
    /// The secret, and the processor time for a packet; `None` without encryption.
    encryption: Option<([u8; 32], Nanos)>,
}

impl StageMaker {
    /// The stages for packets of up to `largest` bytes: a checksum if it is wanted, and encryption
    /// if there is a secret. What they cost is measured, or taken from a `file` as by
    /// [`of_machine`].
    ///
    /// # Errors
    /// [`ChannelError::Costs`] if that file cannot be read or written, or is no file of costs.
    pub fn new(
        checksum: bool,
        secret: Option<[u8; 32]>,
        largest: Bytes,
        file: Option<&Path>,
    ) -> Result<StageMaker, ChannelError> {
        let file = file.map(CostsFile::read).transpose()?;
        let cost = |name: &str, stage: &mut dyn Stage| -> Result<Nanos, ChannelError> {
            let Some(file) = &file else {
                return Ok(of_stage(stage, largest));
            };
            let thing = format!("{name} of {} bytes", largest.0);
            if let Some([kept]) = file.find(&thing, ["packet"])? {
                return Ok(kept);
            }
            let cost = of_stage(stage, largest);
            file.keep(&thing, [("packet", cost)])?;
            Ok(cost)
        };
        let checksum = checksum.then(|| cost("checksum", &mut Checksum::new(Nanos(0))));
        let encryption = secret.map(|secret| {
            let cost = cost("encryption", &mut Encryption::new(&secret, Nanos(0)))?;
            Ok::<_, ChannelError>((secret, cost))
        });
        Ok(StageMaker {
            checksum: checksum.transpose()?,
            encryption: encryption.transpose()?,
        })
    }

    /// The stages of a channel. Its key is derived from the secret
    /// ([`Encryption::of_channel`]).
    pub fn stages(&self, channel: ChannelId) -> Vec<Box<dyn Stage>> {
        let mut stages: Vec<Box<dyn Stage>> = Vec::new();
        if let Some(cost) = self.checksum {
            stages.push(Box::new(Checksum::new(cost)));
        }
        if let Some((secret, cost)) = &self.encryption {
            stages.push(Box::new(Encryption::of_channel(secret, channel, *cost)));
        }
        stages
    }
}

/// An executor with one channel whose messages have [`PACKETS`] packets.
struct Packets {
    executor: Executor<Vec<u8>, Vec<u8>>,
    handler: HandlerId,
    message: usize,
    link: Link,
    /// Memory as large as the caches.
    evicting: Vec<u8>,
}

/// Counts packets, and makes the system call that wakes a driver.
struct Link {
    buffer: Vec<u8>,
    driver: std::os::fd::OwnedFd,
}

impl Transmit for Link {
    fn buffer(&mut self, _: HandlerId, _: usize) -> Option<&mut [u8]> {
        Some(&mut self.buffer)
    }

    fn submit(&mut self, _: OutgoingPacket) {
        // It fails only if the counter is full, after centuries.
        let _ = rustix::io::write(self.driver.as_fd(), &1u64.to_ne_bytes());
    }
}

impl Packets {
    fn new(costs: Processor) -> Result<Packets, ChannelError> {
        let mut executor = Executor::new(ExecutorSettings::new(costs))?;
        let header = PacketHeader::LENGTH as u64;
        let largest = costs.largest;
        let taken = Bytes(header);
        let part = largest.0.checked_sub(header).filter(|part| *part > 0);
        let part = part.ok_or(OpenError::NoPayload { largest, taken })?;
        let mmax = Bytes(part.saturating_mul(PACKETS));
        let class = ChannelClass::BestEffort {
            weight: Weight::default(),
            mmax,
            queue: 1,
            when_full: WhenFull::Wait,
        };
        let options = ChannelOptions::new(ChannelId([0; 16]), class);
        let handler = executor.open_sender(options, now())?;
        let driver = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Packets {
            executor,
            handler,
            message: mmax.0 as usize,
            link: Link {
                buffer: vec![0; largest.0 as usize],
                driver,
            },
            evicting: Vec::new(),
        })
    }

    /// The times of the first packets of so many messages, and of the later ones, in ns. `cold`:
    /// the caches have other data before each message.
    fn times(&mut self, messages: usize, cold: bool) -> Result<(Vec<u64>, Vec<u64>), ChannelError> {
        let (mut first, mut later) = (Vec::new(), Vec::new());
        self.evicting.resize(if cold { CACHES } else { 0 }, 0);
        for number in 0..messages {
            for line in self.evicting.iter_mut().step_by(LINE) {
                *line = line.wrapping_add(1);
            }
            let body = vec![number as u8; self.message];
            if self.executor.send(self.handler, body, now()).is_err() {
                return Err(ChannelError::WouldBlock);
            }
            let mut before = thread_time();
            while let Step::Ran(ran) = self.executor.step(now(), &mut self.link) {
                let after = thread_time();
                let times = if ran.begins { &mut first } else { &mut later };
                times.push(after - before);
                before = after;
                let _ = self.executor.handle_sent(self.handler, 1, now());
            }
        }
        Ok((first, later))
    }
}

/// The processor time of the calling thread in ns.
fn thread_time() -> u64 {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Which of two threads is to run.
struct Turn {
    wakers: [Waker; 2],
    number: AtomicU64,
}

/// The processor times of switches of the kernel to a thread that waits for an eventfd and back,
/// and those of waking the other thread. Where processors sleep, that takes much longer.
fn switches() -> Result<(Vec<u64>, Vec<u64>), ChannelError> {
    let turn = Arc::new(Turn {
        wakers: [Waker::new()?, Waker::new()?],
        number: AtomicU64::new(0),
    });
    let play = |turn: &Turn, side: u64| -> std::io::Result<(Vec<u64>, Vec<u64>)> {
        let (mut sleeps, mut wakes) = (Vec::new(), Vec::new());
        let far = Some(std::time::Instant::now() + Duration::from_secs(10));
        for round in 0..SWITCHES {
            let mine = 2 * round + side;
            let before = thread_time();
            let has_turn = turn.wakers[side as usize]
                .wait(far, || turn.number.load(Ordering::Acquire) == mine)?;
            if !has_turn {
                break;
            }
            let woken = thread_time();
            turn.number.store(mine + 1, Ordering::Release);
            turn.wakers[1 - side as usize].wake();
            sleeps.push(woken - before);
            wakes.push(thread_time() - woken);
        }
        Ok((sleeps, wakes))
    };
    let other = turn.clone();
    let thread = std::thread::Builder::new().spawn(move || play(&other, 1))?;
    let times = play(&turn, 0)?;
    let _ = thread.join();
    Ok(times)
}

/// The median.
fn middle(mut of_rounds: Vec<Nanos>) -> Nanos {
    of_rounds.sort_unstable();
    of_rounds[of_rounds.len() / 2]
}

/// The means of all [`RUN`] times in a row.
fn means(times: &[u64]) -> Vec<u64> {
    let mean = |run: &[u64]| run.iter().sum::<u64>() / RUN as u64;
    times.windows(RUN).map(mean).collect()
}

/// The 99.9th percentile; 0 of nothing.
fn high(mut times: Vec<u64>) -> Nanos {
    times.sort_unstable();
    let at = (times.len() * 999).div_ceil(1000).saturating_sub(1);
    Nanos(times.get(at).copied().unwrap_or(0))
}

/// Packets of a message.
const PACKETS: u64 = 8;
/// Rounds of measurements.
const ROUNDS: usize = 5;
/// Messages of a round for the costs of packets.
const MESSAGES: usize = 1_400;
/// The same with cold caches.
const COLD_MESSAGES: usize = 1_100;
/// Packets for the cost of a stage.
const SEALED: usize = 4_000;
/// Switches of the kernel between two threads in a round.
const SWITCHES: u64 = 1_400;
/// The mean of so many wake-ups in a row counts for each later packet of a message. A message with
/// fewer packets has time to spare: two switches count for its first packet, and one takes place.
const RUN: usize = 16;
/// Bytes of memory that displace everything from the caches of a processor's own.
const CACHES: usize = 1 << 20;
/// Bytes of a line of a cache.
const LINE: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_percentile_leaves_out_one_in_a_thousand() {
        assert_eq!(high(Vec::new()), Nanos(0));
        assert_eq!(high((1..=1_000).collect()), Nanos(999));
        assert_eq!(high(vec![7]), Nanos(7));
    }

    #[test]
    fn a_rare_long_wake_up_counts_as_part_of_many() {
        assert_eq!(means(&[5; RUN - 1]), Vec::<u64>::new());
        let mut times = [10; 2 * RUN];
        times[RUN] = 10 + 160;
        assert_eq!(means(&times), [[10; 1].as_slice(), &[20; RUN]].concat());
    }

    #[test]
    fn what_was_measured_once_is_kept_for_the_next_program() {
        let path = std::env::temp_dir().join(format!("netnice-costs-{}-of", std::process::id()));
        let block = NonZeroU32::new(4).expect("above zero");
        let both = || {
            let costs = of_machine(Bytes(1_400), block, Some(&path))?;
            let stages = StageMaker::new(true, Some([7; 32]), Bytes(1_400), Some(&path))?;
            Ok::<_, ChannelError>((costs, stages.checksum, stages.encryption))
        };
        let first = both().expect("measured");
        let second = both().expect("read");
        // Other packets have costs of their own.
        let other = of_machine(Bytes(200), block, Some(&path)).expect("measured");
        let text = std::fs::read_to_string(&path).expect("it was written");
        std::fs::remove_file(&path).expect("it was ours");
        assert_eq!(first, second);
        assert_eq!(other.processor.largest, Bytes(200));
        assert_eq!(text.lines().count(), 4, "{text}");
        let nowhere = Some(Path::new("/nonexistent/costs"));
        let error = of_machine(Bytes(200), block, nowhere).expect_err("no folder");
        assert!(error.to_string().contains("/nonexistent/costs"), "{error}");
    }

    #[test]
    fn all_costs_are_measured() {
        let block = NonZeroU32::new(4).expect("above zero");
        let settings = measure(Bytes(1_400), block).expect("measured");
        let (costs, waking) = (settings.processor, settings.waking);
        assert!(
            costs.first > Nanos(0) && costs.later > Nanos(0),
            "{costs:?}"
        );
        assert!(costs.switch > Nanos(0), "{costs:?}");
        assert!(waking > Nanos(0) && waking <= costs.switch, "{waking:?}");
        assert!(costs.later <= costs.first, "{costs:?}");
        // A packet is one of a channel with room for a payload.
        let error = measure(Bytes(32), block).expect_err("no payload");
        assert!(matches!(error, ChannelError::Open(_)), "{error}");
    }
}
