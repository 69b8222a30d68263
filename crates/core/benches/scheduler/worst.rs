//! Measures the cost of the most expensive single calls, with 65,536 flows that fall due at the
//! same instant, repeatedly.
//!
//! Every call is measured by itself. The time of the most expensive calls depends on the machine's
//! memory. So the instructions of the [`COUNTED_CALLS`] most expensive calls of each row are
//! counted too, if valgrind is installed: those are the same on every run.

use crate::instructions;
use crate::load::{self, Mix};
use crate::measure::{Bounds, Sample, Timer, counted_alone};

/// Prints the table, and records in `checked` the rows that exceed [`RATIO`].
pub fn table(timer: &Timer, checked: &mut Bounds) {
    println!("\nworst call at {FLOWS} flows, all due in the same instant, per call");
    println!(
        "{:>12} {:>8} {:>8} {:>8} {:>9} {:>7} {:>24}",
        "", "median", "p99", "p99.99", "p99.999", "ratio", "instructions (ratio)"
    );
    for (name, kind) in KINDS {
        let Sample { sorted } = timer.calls(WARM, || work(kind));
        let at = |part: f64| sorted[((sorted.len() - 1) as f64 * part) as usize].0;
        let costliest = sorted.iter().rev().take(COUNTED_CALLS);
        let median = sorted[sorted.len() / 2].1;
        let calls: Vec<usize> = costliest.map(|(_, call)| *call).chain([median]).collect();
        let ratio = at(0.99999) / at(0.5);
        let counted = counted(name, &calls);
        println!(
            "{name:>12} {:>8.0} {:>8.0} {:>8.0} {:>9.0} {ratio:>7.1} {:>24}",
            at(0.5),
            at(0.99),
            at(0.9999),
            at(0.99999),
            counted
                .as_ref()
                .map_or("not counted".into(), |counted| format!(
                    "{:.0}, {:.0} ({:.1})",
                    counted.median,
                    counted.most,
                    counted.ratio()
                )),
        );
        let least = counted.map_or(ratio, |counted| counted.ratio().min(ratio));
        checked.at_most(&format!("worst call over the median, {name}"), least, RATIO);
    }
}

/// Runs the work of `--count-calls KIND CALL,CALL,...`, for callgrind. `words` are these two.
pub fn one(words: &[String]) {
    let [name, calls, ..] = words else {
        panic!("--count-calls KIND CALL,CALL,...");
    };
    let kind = KINDS.iter().find(|(known, _)| known == name);
    let (_, kind) = kind.expect("--count-calls takes a row of the table");
    let calls = calls.split(',').map(|call| call.parse());
    let calls: Result<Vec<usize>, _> = calls.collect();
    counted_alone(WARM, &calls.expect("numbers of calls"), work(*kind));
}

/// The instructions of the median call, and the most of all others.
struct Counted {
    median: f64,
    most: f64,
}

impl Counted {
    fn ratio(&self) -> f64 {
        self.most / self.median
    }
}

/// Counts the instructions of `calls`, the last of which is the median call. `None` without
/// valgrind.
fn counted(name: &str, calls: &[usize]) -> Option<Counted> {
    let median = calls.last().copied().unwrap_or(0);
    let counts = instructions::of_calls(name, calls)?;
    let each = counts.iter().find(|(call, _)| *call == median);
    Some(Counted {
        median: each.map_or(f64::NAN, |(_, count)| *count),
        most: counts.iter().map(|(_, count)| *count).fold(0.0, f64::max),
    })
}

/// The bound of the worst call's cost as a multiple of the median's. The smaller ratio counts, that
/// of cycles or that of instructions, because cycles depend on other users of the machine's memory.
pub const RATIO: f64 = 20.0;

/// The calls of a row.
fn work(kind: Kind) -> Box<dyn FnMut(u32)> {
    match kind {
        Kind::Link(mix, percent) => Box::new(load::link(FLOWS, true, mix, percent)),
        Kind::Pacer => Box::new(load::exact(FLOWS)),
    }
}

#[derive(Clone, Copy)]
enum Kind {
    /// A link, and the percentage of it that is booked.
    Link(Mix, u64),
    Pacer,
}

const KINDS: [(&str, Kind); 4] = [
    ("cells", Kind::Link(Mix::Cells, 90)),
    ("mixed", Kind::Link(Mix::All, 90)),
    ("overloaded", Kind::Link(Mix::Cells, 150)),
    ("pacer", Kind::Pacer),
];

const FLOWS: usize = 65_536;

/// Packets before the first measured call.
const WARM: usize = 50_000;

/// The number of calls whose instructions are counted.
const COUNTED_CALLS: usize = 50;
