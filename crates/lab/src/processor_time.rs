//! Measures the processor time that processes get ([`Meter`]), and makes other programs compete for
//! the processors ([`Load`]).
//!
//! A meter reads the kernel's clocks of the processes' processor time, which have a resolution of
//! 1 ns and include the time of running threads up to now. It does so in a thread of real-time
//! priority, so it needs no processor time of the measured programs. Each sample has the time at
//! which it was taken: a late sample makes an interval longer, not wrong.

use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::sys;
use crate::traffic::{self, Carnage, ForkStorm, Running, RunningCarnage, Udp};
use crate::worker::Worker;
use crate::world::Host;

/// Samples the processor time of several sets of processes until [`Meter::stop`].
pub struct Meter {
    worker: Worker<Vec<Usage>>,
}

impl Meter {
    /// Starts to sample the sum of the processor times of each set of processes, so often. Fails if
    /// the thread cannot start.
    pub fn start(sets: Vec<Vec<u32>>, every: Duration) -> Result<Meter> {
        let worker = Worker::start("processor time", move |stop| {
            // Without the right to a real-time priority, samples are late on a busy machine.
            let _ = sys::set_real_time_priority(PRIORITY);
            let started = Instant::now();
            let mut usages = vec![Usage::default(); sets.len()];
            for number in 1.. {
                for (set, usage) in sets.iter().zip(&mut usages) {
                    usage.add(started, set)?;
                }
                if stop.load(Relaxed) {
                    break;
                }
                let next = started + every * number;
                std::thread::sleep(next.saturating_duration_since(Instant::now()));
            }
            Ok(usages)
        })?;
        Ok(Meter { worker })
    }

    /// Stops to sample, after at most one interval; returns the usage of each set. Fails if a
    /// process was waited for during the measurement.
    pub fn stop(self) -> Result<Vec<Usage>> {
        self.worker.stop()
    }
}

/// Measures the processor time of one set of processes for `span`, sampled every `every`. Fails as
/// [`Meter`] does.
pub fn measure(pids: &[u32], span: Duration, every: Duration) -> Result<Usage> {
    let meter = Meter::start(vec![pids.to_vec()], every)?;
    std::thread::sleep(span);
    meter
        .stop()?
        .pop()
        .context("a meter has one usage for a set")
}

/// Processor time of a set of processes over time: (time of the sample, processor time), both in ns
/// from an arbitrary origin.
#[derive(Debug, Clone, Default)]
pub struct Usage {
    samples: Vec<(u64, u64)>,
}

impl Usage {
    fn add(&mut self, started: Instant, set: &[u32]) -> Result<()> {
        let before = started.elapsed();
        let times = set.iter().map(|pid| {
            let time = sys::processor_time(*pid);
            time.with_context(|| format!("the processor time of process {pid}"))
        });
        let used: Result<u64> = times.sum();
        // The mean of the times before and after the calls.
        let at = (before + started.elapsed()) / 2;
        self.samples.push((at.as_nanos() as u64, used?));
        Ok(())
    }

    /// The part of one processor that the processes had over the whole measurement. 0 for fewer
    /// than two samples.
    pub fn share(&self) -> f64 {
        let ends = self.samples.first().zip(self.samples.last());
        ends.map_or(0.0, |(first, last)| share(*first, *last))
    }

    /// The part of one processor that the processes had in each interval of `span` that begins with
    /// a sample. A shorter interval at the end is omitted.
    pub fn shares(&self, span: Duration) -> Vec<f64> {
        self.intervals(span).map(|(a, b)| share(a, b)).collect()
    }

    /// How far the processor time in each interval of `span` that begins with a sample is from
    /// `part` of one processor, in ns; negative if it is less. A shorter interval at the end is
    /// omitted.
    pub fn excesses(&self, span: Duration, part: f64) -> Vec<f64> {
        let excess =
            |(a, b): ((u64, u64), (u64, u64))| (b.1 - a.1) as f64 - part * (b.0 - a.0) as f64;
        self.intervals(span).map(excess).collect()
    }

    /// Each sample with the first one that is at least `span` later, less half of the time between
    /// two samples.
    fn intervals(&self, span: Duration) -> impl Iterator<Item = ((u64, u64), (u64, u64))> + '_ {
        let step = match self.samples.as_slice() {
            [(first, _), (second, _), ..] => second - first,
            _ => 0,
        };
        let span = span.as_nanos() as u64 - step / 2;
        let later = move |at: u64| {
            let number = self.samples.partition_point(|sample| sample.0 < at + span);
            self.samples.get(number).copied()
        };
        let samples = self.samples.iter();
        samples.filter_map(move |begin| Some((*begin, later(begin.0)?)))
    }
}

fn share(from: (u64, u64), to: (u64, u64)) -> f64 {
    (to.1 - from.1) as f64 / (to.0 - from.0).max(1) as f64
}

/// Programs that use all processors: two spinning threads for each processor in two processes, of
/// which one has the nice value -20, also as an autogroup; children forked all the time; and a UDP
/// flood over the loopback interface. They end when this value is dropped.
pub struct Load {
    spinners: Vec<RunningCarnage>,
    others: Vec<Running>,
}

impl Load {
    /// Starts the programs on `host`. Fails if one of them does not start.
    pub fn start(host: &Host) -> Result<Load> {
        let at = |port: u16| ([127, 0, 0, 1], port).into();
        let others = [
            traffic::start_now(host, &ForkStorm::new(FORKS)),
            traffic::start_now(host, &Udp::sink(at(PORT))),
            traffic::start_now(host, &Udp::source(at(PORT + 1), at(PORT))),
        ];
        // Last: beside them, each other program takes seconds to start.
        let processors = sys::processors()?.len() as u32;
        let spinner = Carnage::new(processors, 0);
        let spinners = [spinner.clone(), spinner.nice(-20).session()];
        let spinners = spinners.map(|spinner| spinner.start(host, None));
        Ok(Load {
            spinners: spinners.into_iter().collect::<Result<_>>()?,
            others: others.into_iter().collect::<Result<_>>()?,
        })
    }

    /// The processes that it has started.
    pub fn pids(&self) -> Vec<u32> {
        let spinners = self.spinners.iter().flat_map(RunningCarnage::pids);
        spinners
            .chain(self.others.iter().map(Running::pid))
            .collect()
    }

    /// Processor time of the spinning threads so far, in ns. Fails if one of their processes has
    /// ended.
    pub fn spun(&self) -> Result<u64> {
        let times = self.spinners.iter().map(RunningCarnage::processor_time);
        times.sum()
    }
}

/// Real-time priority of a meter's thread: above that of netnice-driver.
const PRIORITY: i32 = 80;
/// Forks a second.
const FORKS: u32 = 500;
/// First port of the flood.
const PORT: u16 = 9;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_begin_with_each_sample_and_are_as_long_as_they_are() {
        let usage = Usage {
            // The third sample was 30 late.
            samples: vec![(0, 0), (100, 20), (230, 46), (300, 60), (400, 90)],
        };
        let shares = usage.shares(Duration::from_nanos(200));
        assert_eq!(shares, [0.2, 0.2, 44.0 / 170.0]);
        let excesses = usage.excesses(Duration::from_nanos(100), 0.2);
        assert_eq!(excesses, [0.0, 0.0, 0.0, 10.0]);
        assert_eq!(usage.share(), 90.0 / 400.0);
        assert_eq!(Usage::default().share(), 0.0);
    }

    #[test]
    fn a_thread_that_spins_is_measured() {
        let worker = Worker::start("spinning", |stop| {
            while !stop.load(Relaxed) {
                std::hint::spin_loop();
            }
            Ok(())
        });
        let own = [std::process::id()];
        let usage = measure(&own, Duration::from_millis(100), Duration::from_millis(10));
        let usage = usage.expect("a measurement");
        drop(worker);
        assert!(usage.share() > 0.0, "{usage:?}");
        assert!(usage.samples.len() > 2, "{usage:?}");
    }
}
