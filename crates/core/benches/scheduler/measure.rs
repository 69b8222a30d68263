//! Measures work that the other modules prepare: in batches of 2,048 packets ([`Timer::batches`]),
//! or call by call ([`Timer::calls`]). [`Bounds`] collects the figures that are beyond their
//! bounds.

use std::hint::black_box;
use std::time::Instant;

use crate::clock::cycles_per_nano;

/// A timer in cycles of the time stamp counter, or in nanoseconds on a processor without one.
pub struct Timer {
    /// Units per nanosecond.
    rate: f64,
    cycles: bool,
    quick: bool,
}

/// Medians over batches, per packet, in the timer's unit.
pub struct Figure {
    pub median: f64,
    /// The least cost of each batch in three runs of the same work, and of these the median.
    pub least: f64,
}

/// Figures and their bounds. The program ends with status 1 if a figure is beyond its bound.
#[derive(Default)]
pub struct Bounds {
    beyond: Vec<String>,
}

impl Bounds {
    /// Records a figure that must not be above the bound.
    pub fn at_most(&mut self, what: &str, figure: f64, bound: f64) {
        if figure > bound {
            self.beyond
                .push(format!("{what}: {figure:.1}, at most {bound}"));
        }
    }

    /// Records a figure that must not be below the bound.
    pub fn at_least(&mut self, what: &str, figure: f64, bound: f64) {
        if figure < bound {
            self.beyond
                .push(format!("{what}: {figure:.1}, at least {bound}"));
        }
    }

    /// Prints the figures that are beyond their bounds. Returns the exit status of the program.
    pub fn exit_status(self) -> i32 {
        for line in &self.beyond {
            println!("beyond its bound: {line}");
        }
        i32::from(!self.beyond.is_empty())
    }
}

/// Costs of single calls, in the timer's unit.
pub struct Sample {
    /// The cost and the number of each call, the cheapest first.
    pub sorted: Vec<(f64, usize)>,
}

impl Timer {
    /// A timer. With `quick` it measures fewer batches and calls.
    pub fn new(quick: bool) -> Timer {
        let rate = cycles_per_nano();
        Timer {
            rate: rate.unwrap_or(1.0),
            cycles: rate.is_some(),
            quick,
        }
    }

    /// Whether figures are in cycles, as the bounds of [`crate::BOUNDS`] are.
    pub fn counts_cycles(&self) -> bool {
        self.cycles
    }

    /// A line that names the unit of the figures.
    pub fn unit(&self) -> String {
        match self.cycles {
            true => format!("figures are cycles of {:.0} MHz", self.rate * 1000.0),
            false => "figures are nanoseconds".into(),
        }
    }

    /// Runs the work that `make` returns, in batches after `warm` packets. The work serves as many
    /// packets as its argument names.
    pub fn batches<W: FnMut(u32)>(&self, warm: usize, make: impl Fn() -> W) -> Figure {
        let batches = if self.quick { 200 } else { 1000 };
        let mut all = Vec::new();
        let mut least = vec![f64::INFINITY; batches];
        for _ in 0..RUNS {
            let mut work = make();
            work(warm as u32);
            for least in &mut least {
                let start = Instant::now();
                work(BATCH);
                let cost = start.elapsed().as_nanos() as f64 * self.rate / f64::from(BATCH);
                *least = least.min(cost);
                all.push(cost);
            }
        }
        all.sort_by(f64::total_cmp);
        least.sort_by(f64::total_cmp);
        Figure {
            median: all[all.len() / 2],
            least: least[least.len() / 2],
        }
    }

    /// Measures every call by itself. The work is the same in every run, so the least of several
    /// runs is the cost of a call without other load of the machine. The cost of measuring is
    /// subtracted.
    pub fn calls<W: FnMut(u32)>(&self, warm: usize, make: impl Fn() -> W) -> Sample {
        let calls = if self.quick { 300_000 } else { 1_000_000 };
        let mut empty: Vec<f64> = (0..10_000).map(|_| once(&mut |_| ())).collect();
        empty.sort_by(f64::total_cmp);
        let cost = empty[empty.len() / 2];
        let mut least = vec![f64::INFINITY; calls];
        for _ in 0..RUNS_OF_CALLS {
            let mut work = make();
            work(warm as u32);
            for least in &mut least {
                *least = least.min((once(&mut work) - cost).max(1.0) * self.rate);
            }
        }
        let mut sorted: Vec<_> = least.into_iter().zip(0..).collect();
        sorted.sort_by(|a, b| a.0.total_cmp(&b.0));
        Sample { sorted }
    }
}

fn once(work: &mut impl FnMut(u32)) -> f64 {
    let start = Instant::now();
    work(1);
    start.elapsed().as_nanos() as f64
}

/// Runs `work` for `warm` packets, and then for `packets` in a function that callgrind counts.
pub fn counted(warm: usize, packets: u32, mut work: impl FnMut(u32)) {
    work(warm as u32);
    counted_packets(packets, &mut work);
}

/// Runs `work` for `warm` packets, and then one packet per call, up to the last call in `which`.
/// Callgrind counts the calls in `which`, each by itself.
pub fn counted_alone(warm: usize, which: &[usize], mut work: impl FnMut(u32)) {
    work(warm as u32);
    let last = which.iter().max().copied().unwrap_or(0);
    for call in 0..=last {
        match which.contains(&call) {
            true => written_call(&mut work),
            false => work(1),
        }
    }
}

/// Callgrind writes its counts after each call of this function. It counts inside `counted_call`
/// and `counted_packets`.
#[inline(never)]
fn written_call(work: &mut impl FnMut(u32)) {
    counted_call(work);
    // Prevents a tail call.
    black_box(());
}

#[inline(never)]
fn counted_call(work: &mut impl FnMut(u32)) {
    work(1);
}

#[inline(never)]
fn counted_packets(packets: u32, work: &mut impl FnMut(u32)) {
    work(packets);
}

const BATCH: u32 = 2048;

const RUNS: usize = 3;

const RUNS_OF_CALLS: usize = 7;
