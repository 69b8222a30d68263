//! What a packet costs: `cargo bench -p netnice-core --bench scheduler`.
//!
//! Cycles are those of the time stamp counter (its rate is read from /proc/cpuinfo; where that
//! fails, nanoseconds are shown). Each figure is the median of many short batches, so that what
//! else the machine does hardly shows. `--quick` measures fewer, `--only WORD` one table, `--flows N` one
//! line of it. `instructions` are counted by callgrind, where valgrind is installed.
//!
//! Every flow always has a packet to send. *Shaping alone* takes the next eligible flow, shapes
//! it by a dual leaky bucket and puts it back. *Everything* is a link of which 60 % is booked:
//! dual buckets (3/4 of the flows), slices, minimums and best effort, so that each packet passes
//! eligibility, deadline order, class, fairness and the charge.

mod baselines;
mod instructions;
mod load;
mod measure;

use load::Mix;
use measure::{Ruler, Sample};

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if let Some(at) = words.iter().position(|word| word == "--count") {
        return instructions::one(&words[at + 1..]);
    }
    let only = words.iter().position(|word| word == "--only");
    let only = only.and_then(|at| words.get(at + 1)).map(String::as_str);
    let ruler = Ruler::new(words.iter().any(|word| word == "--quick"));
    let flows = words.iter().position(|word| word == "--flows");
    let flows: Option<usize> =
        flows.map(|at| words[at + 1].parse().expect("--flows takes a number"));
    let flows = flows.map_or(FLOWS.to_vec(), |flows| vec![flows]);
    println!("{}", ruler.unit());
    let wanted = |name| only.is_none_or(|only| only == name);
    if wanted("shaping") {
        shaping(&ruler, &flows);
    }
    if wanted("everything") {
        everything(&ruler, &flows);
    }
    if wanted("huge") {
        huge(&flows, words.iter().any(|word| word == "--quick"));
    }
    if wanted("worst") {
        worst(&ruler);
    }
    if wanted("memory") {
        memory();
    }
    if wanted("instructions") {
        instructions::table(&flows);
    }
}

const FLOWS: [usize; 5] = [1, 100, 1_000, 65_536, 1_048_576];

fn shaping(ruler: &Ruler, flows: &[usize]) {
    println!("\nshaping alone (dual bucket, take, requeue), median per packet");
    println!(
        "{:>9} {:>10} {:>8} {:>8} {:>12} {:>10} {:>8}",
        "flows", "parameters", "pacer", "p10", "BinaryHeap", "BTreeMap", "wheel"
    );
    for &flows in flows {
        for same in [false, true] {
            let ours = ruler.batches(3 * flows, load::pacer(flows, same));
            let heap = ruler.batches(3 * flows, baselines::heap(flows, same));
            let tree = ruler.batches(3 * flows, baselines::tree(flows, same));
            let wheel = ruler.batches(3 * flows, baselines::wheel(flows, same));
            println!(
                "{flows:>9} {:>10} {:>8.0} {:>8.0} {:>12.0} {:>10.0} {:>8.0}",
                parameters(same),
                ours.median,
                ours.p10,
                heap.median,
                tree.median,
                wheel.median
            );
        }
    }
}

fn everything(ruler: &Ruler, flows: &[usize]) {
    println!("\neverything, median per packet");
    println!(
        "{:>9} {:>10} {:>8} {:>8} {:>10} {:>8}",
        "flows", "parameters", "mixed", "p10", "cells only", "p10"
    );
    for &flows in flows {
        for same in [false, true] {
            let mixed = ruler.batches(3 * flows, load::link(flows, same, Mix::All, 60));
            let cells = ruler.batches(3 * flows, load::link(flows, same, Mix::Cells, 60));
            println!(
                "{flows:>9} {:>10} {:>8.0} {:>8.0} {:>10.0} {:>8.0}",
                parameters(same),
                mixed.median,
                mixed.p10,
                cells.median,
                cells.p10
            );
        }
    }
}

/// The same with memory in pages of 2 MiB, as a program of very many flows may ask for: here by
/// the environment of another process, which the C library's allocator reads.
fn huge(flows: &[usize], quick: bool) {
    println!("\nwith huge pages (GLIBC_TUNABLES={HUGE})");
    let Ok(program) = std::env::current_exe() else {
        return println!("not measured: this program does not know where it is");
    };
    for only in ["shaping", "everything"] {
        for flows in flows.iter().filter(|flows| **flows >= 65_536) {
            let mut again = std::process::Command::new(&program);
            again.args(["--only", only, "--flows", &flows.to_string()]);
            if quick {
                again.arg("--quick");
            }
            match again.env("GLIBC_TUNABLES", HUGE).status() {
                Ok(status) if status.success() => {}
                other => println!("not measured: {other:?}"),
            }
        }
    }
}

const HUGE: &str = "glibc.malloc.hugetlb=1";

/// Every single call is measured, with all flows falling due in the same instant, again and
/// again.
fn worst(ruler: &Ruler) {
    println!("\nworst call at 65,536 flows, all due in the same instant, per call");
    println!(
        "{:>12} {:>8} {:>8} {:>8} {:>9} {:>7}",
        "", "median", "p99", "p99.99", "p99.999", "ratio"
    );
    for (name, mix, percent) in [
        ("cells", Mix::Cells, 90),
        ("mixed", Mix::All, 90),
        ("overloaded", Mix::Cells, 150),
    ] {
        let Sample { sorted } = ruler.calls(50_000, || load::link(65_536, true, mix, percent));
        let at = |part: f64| sorted[((sorted.len() - 1) as f64 * part) as usize];
        println!(
            "{name:>12} {:>8.0} {:>8.0} {:>8.0} {:>9.0} {:>7.1}",
            at(0.5),
            at(0.99),
            at(0.9999),
            at(0.99999),
            at(0.99999) / at(0.5)
        );
    }
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
