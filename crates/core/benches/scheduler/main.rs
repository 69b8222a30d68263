//! Measures the cost of a packet: `cargo bench -p netnice-core --bench scheduler`.
//!
//! Cycles are those of the time stamp counter; without one, nanoseconds are shown. Each figure is
//! the median of many short batches, of three runs together. The figure in brackets takes the least
//! of the three runs for each batch, and is the median of these. The work is the same in every run,
//! so that figure is the cost without other load of the machine. `--quick` measures fewer batches,
//! `--only WORD` only one table (`shaping`, `everything`, `worst`, `upkeep`, `memory` or
//! `instructions`), `--flows N` only this number of flows in `shaping`, `everything` and
//! `instructions`. Callgrind counts `instructions`, if valgrind is installed.
//!
//! All structures have their memory in pages of 2 MiB if the system provides them, as in a program
//! with very many flows. An environment variable ([`HUGE`]) makes the C library ask for them.
//! `--small-pages` leaves the choice to the system.
//!
//! Every flow always has a packet to send. *Shaping alone* takes the next eligible flow, shapes it
//! by a dual leaky bucket and puts it back. *Everything* is a link that is booked to 60 %: dual
//! buckets (3/4 of the flows), slices, minimums and best effort, so that each packet passes
//! eligibility, deadline order, class, fairness and the charge.
//!
//! The program prints the figures beyond their bounds ([`BOUNDS`], [`TIMES_THE_HEAP`],
//! [`worst::RATIO`]) at the end, and its exit status is then 1.

mod baselines;
mod clock;
mod instructions;
mod load;
mod measure;
mod upkeep;
mod worst;

use load::Mix;
use measure::{Bounds, Figure, Timer};

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if let Some(at) = words.iter().position(|word| word == "--count") {
        return instructions::one(&words[at + 1..]);
    }
    if let Some(at) = words.iter().position(|word| word == "--count-calls") {
        return worst::one(&words[at + 1..]);
    }
    if let Some(code) = with_huge_pages(&words) {
        std::process::exit(code);
    }
    let only = words.iter().position(|word| word == "--only");
    let only = only.and_then(|at| words.get(at + 1)).map(String::as_str);
    let timer = Timer::new(words.iter().any(|word| word == "--quick"));
    let flows = words.iter().position(|word| word == "--flows");
    let flows: Option<usize> =
        flows.map(|at| words[at + 1].parse().expect("--flows takes a number"));
    let flows = flows.map_or(FLOWS.to_vec(), |flows| vec![flows]);
    println!("{}", timer.unit());
    let mut checked = Bounds::default();
    let wanted = |name| only.is_none_or(|only| only == name);
    if wanted("shaping") {
        shaping(&timer, &flows, &mut checked);
    }
    if wanted("everything") {
        everything(&timer, &flows, &mut checked);
    }
    if wanted("worst") {
        worst::table(&timer, &mut checked);
    }
    if wanted("upkeep") {
        upkeep::table(&timer);
    }
    if wanted("memory") {
        memory();
    }
    if wanted("instructions") {
        instructions::table(&flows);
    }
    std::process::exit(checked.exit_status());
}

/// The highest cost of a packet in cycles: number of flows, shaping alone, everything (mixed).
const BOUNDS: [(usize, f64, f64); 4] = [
    (1, 70.0, 140.0),
    (1_000, 70.0, 140.0),
    (65_536, 70.0, 140.0),
    (1_048_576, 110.0, 220.0),
];
/// The least ratio of the cost of the standard library's heap to that of shaping alone: number of
/// flows, ratio.
const TIMES_THE_HEAP: [(usize, f64); 2] = [(65_536, 5.0), (1_048_576, 15.0)];

fn bounds(flows: usize, timer: &Timer) -> Option<(f64, f64)> {
    let bounds = BOUNDS.iter().find(|(number, ..)| *number == flows)?;
    timer.counts_cycles().then_some((bounds.1, bounds.2))
}

const FLOWS: [usize; 5] = [1, 100, 1_000, 65_536, 1_048_576];

fn shaping(timer: &Timer, flows: &[usize], checked: &mut Bounds) {
    println!("\nshaping alone (dual bucket, take, requeue), per packet");
    println!(
        "{:>9} {:>10} {:>14} {:>14} {:>14} {:>14}",
        "flows", "parameters", "pacer", "BinaryHeap", "BTreeMap", "wheel"
    );
    for &flows in flows {
        for same in [false, true] {
            let figures = [
                timer.batches(3 * flows, || load::pacer(flows, same)),
                timer.batches(3 * flows, || baselines::heap(flows, same)),
                timer.batches(3 * flows, || baselines::tree(flows, same)),
                timer.batches(3 * flows, || baselines::wheel(flows, same)),
            ];
            line(flows, same, &figures);
            let what = format!("shaping alone, {flows} flows, {}", parameters(same));
            if let Some((bound, _)) = bounds(flows, timer) {
                checked.at_most(&what, figures[0].median, bound);
            }
            if let Some((_, times)) = TIMES_THE_HEAP.iter().find(|row| row.0 == flows) {
                let what = format!("BinaryHeap over {what}");
                checked.at_least(&what, figures[1].median / figures[0].median, *times);
            }
        }
    }
}

fn everything(timer: &Timer, flows: &[usize], checked: &mut Bounds) {
    println!("\neverything, per packet");
    println!(
        "{:>9} {:>10} {:>14} {:>14}",
        "flows", "parameters", "mixed", "cells only"
    );
    for &flows in flows {
        for same in [false, true] {
            let figures = [
                timer.batches(3 * flows, || load::link(flows, same, Mix::All, 60)),
                timer.batches(3 * flows, || load::link(flows, same, Mix::Cells, 60)),
            ];
            line(flows, same, &figures);
            if let Some((_, bound)) = bounds(flows, timer) {
                let what = format!("everything, {flows} flows, {}, mixed", parameters(same));
                checked.at_most(&what, figures[0].median, bound);
            }
        }
    }
}

/// Measures in a child process whose allocator asks for huge pages, unless this is that process or
/// huge pages are switched off. Returns the child's exit code.
fn with_huge_pages(words: &[String]) -> Option<i32> {
    if std::env::var_os(TUNABLES).is_some() || words.iter().any(|word| word == "--small-pages") {
        return None;
    }
    let program = std::env::current_exe().ok()?;
    let mut again = std::process::Command::new(program);
    again.args(words).env(TUNABLES, HUGE);
    again.status().ok()?.code()
}

/// The environment variable of the C library's allocator, and the value that makes it ask for huge
/// pages.
const TUNABLES: &str = "GLIBC_TUNABLES";
const HUGE: &str = "glibc.malloc.hugetlb=1";

/// Prints the figures for one number of flows.
fn line(flows: usize, same: bool, figures: &[Figure]) {
    print!("{flows:>9} {:>10}", parameters(same));
    for Figure { median, least } in figures {
        print!(" {:>14}", format!("{median:.0} ({least:.0})"));
    }
    println!();
}

fn memory() {
    println!("\nmemory, bytes per flow");
    for flows in [1_000, 65_536, 1_048_576] {
        let (idle, busy) = load::memory(flows);
        println!("{flows:>9} flows: {idle:.0} idle, {busy:.0} all backlogged");
    }
}

fn parameters(same: bool) -> &'static str {
    match same {
        true => "identical",
        false => "random",
    }
}
