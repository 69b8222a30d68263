//! Counts instructions and mispredicted branches per packet with callgrind, so the numbers are the
//! same on every run and independent of other load. (Callgrind's branch predictor is a simple one,
//! worse than that of processors.) Without valgrind nothing is counted.
//!
//! The benchmark runs itself under valgrind with `--count KIND FLOWS PARAMETERS`. That run serves
//! the packets in one function, and callgrind counts inside that function. For the table of worst
//! calls it runs itself with `--count-calls ROW CALLS`, and the instructions of each call count.

use std::path::Path;
use std::process::Command;

use crate::load::{self, Mix};
use crate::measure::counted;
use crate::{baselines, parameters};

/// Prints the table for the numbers of flows up to 65,536, or that valgrind is not installed.
pub fn table(flows: &[usize]) {
    println!("\ninstructions, and wrong guesses of callgrind's predictor, per packet");
    if Command::new("valgrind").arg("--version").output().is_err() {
        println!("not counted: there is no valgrind here");
        return;
    }
    println!(
        "{:>9} {:>10} {:>14} {:>14} {:>14} {:>14}",
        "flows", "parameters", "shaping", "mixed", "cells only", "BinaryHeap"
    );
    for &flows in flows.iter().filter(|flows| **flows <= MOST) {
        for same in [false, true] {
            let cells = KINDS.map(|kind| match count(kind, flows, same) {
                Some((instructions, wrong)) => format!("{instructions:.0} ({wrong:.2})"),
                None => "?".into(),
            });
            let [a, b, c, d] = &cells;
            let parameters = parameters(same);
            println!("{flows:>9} {parameters:>10} {a:>14} {b:>14} {c:>14} {d:>14}");
        }
    }
}

/// Runs the work of `--count KIND FLOWS PARAMETERS`. `words` are these three.
pub fn one(words: &[String]) {
    let [kind, flows, same, ..] = words else {
        panic!("--count KIND FLOWS PARAMETERS");
    };
    let flows: usize = flows.parse().expect("--count takes a number of flows");
    let (same, warm) = (same == parameters(true), (3 * flows).max(10_000));
    match kind.as_str() {
        "shaping" => counted(warm, PACKETS, load::pacer(flows, same)),
        "mixed" => counted(warm, PACKETS, load::link(flows, same, Mix::All, 60)),
        "cells" => counted(warm, PACKETS, load::link(flows, same, Mix::Cells, 60)),
        "heap" => counted(warm, PACKETS, baselines::heap(flows, same)),
        _ => panic!("--count shaping, mixed, cells or heap"),
    }
}

/// Instructions and mispredicted branches per packet.
fn count(kind: &str, flows: usize, same: bool) -> Option<(f64, f64)> {
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--branch-sim=yes"])
        .args(["--callgrind-out-file=/dev/null"])
        .arg("--toggle-collect=*counted_packets*")
        .arg(std::env::current_exe().ok()?)
        .args(["--count", kind, &flows.to_string(), parameters(same)])
        .output()
        .ok()?;
    let output_text = String::from_utf8_lossy(&output.stderr);
    let line = output_text
        .lines()
        .find(|line| line.contains("Collected :"))?;
    // Instructions; branches and mispredicted ones; indirect branches and mispredicted ones.
    let sums = line.split("Collected :").nth(1)?.split_whitespace();
    let sums: Vec<f64> = sums.map_while(|sum| sum.parse().ok()).collect();
    // Callgrind omits zeros at the end.
    let sum = |at: usize| sums.get(at).copied().unwrap_or(0.0);
    let each = |sum: f64| sum / f64::from(PACKETS);
    Some((each(sum(0)), each(sum(2) + sum(4))))
}

/// The instructions of single calls of a row of the worst calls, each with its number. `None`
/// without valgrind.
pub fn of_calls(row: &str, calls: &[usize]) -> Option<Vec<(usize, f64)>> {
    let folder = std::env::temp_dir().join(format!("netnice-calls-{}", std::process::id()));
    std::fs::create_dir_all(&folder).ok()?;
    let counts = counted_in(&folder, row, calls);
    std::fs::remove_dir_all(&folder).ok()?;
    counts
}

/// As `of_calls`, with a folder for callgrind's output: one file for each counted call.
fn counted_in(folder: &Path, row: &str, calls: &[usize]) -> Option<Vec<(usize, f64)>> {
    let mut calls = calls.to_vec();
    calls.sort_unstable();
    calls.dedup();
    let words: Vec<String> = calls.iter().map(usize::to_string).collect();
    let out = folder.join("calls");
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--dump-after=*written_call*"])
        .arg(format!("--callgrind-out-file={}", out.display()))
        .arg("--toggle-collect=*counted_call*")
        .arg(std::env::current_exe().ok()?)
        .args(["--count-calls", row, &words.join(",")])
        .output()
        .ok()?;
    output.status.success().then_some(())?;
    let one = |(number, call): (usize, usize)| {
        let file = format!("{}.{}", out.display(), number + 1);
        let output_text = std::fs::read_to_string(file).ok()?;
        let line = output_text.lines().find_map(|line| {
            let sum = line.strip_prefix("totals:");
            sum.or_else(|| line.strip_prefix("summary:"))
        })?;
        Some((call, line.split_whitespace().next()?.parse().ok()?))
    };
    calls.into_iter().enumerate().map(one).collect()
}

const KINDS: [&str; 4] = ["shaping", "mixed", "cells", "heap"];

const PACKETS: u32 = 100_000;

/// A larger number of flows would take minutes under callgrind.
const MOST: usize = 65_536;
