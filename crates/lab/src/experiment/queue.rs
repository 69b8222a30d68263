//! The experiment `queue` measures what TCP gets of a limit: goodput, retransmissions, order,
//! fairness and delay of 1 to 32 flows of iperf3 in limits of 1 Mbit/s to 1 Gbit/s, with several
//! congestion controls, both address families, and offloads on and off. HTB with a FIFO, HTB with
//! fq_codel, and CAKE measure the same traffic for comparison, where the kernel has them; they can
//! limit only what is sent.
//!
//! Goodput is the payload that arrived, as a share of what the limit allows: its rate times payload
//! per frame (1,448 of 1,514 bytes with IPv4, 1,428 with IPv6). A flow's delay is the round trip
//! that TCP measured, on a cable without delay. Fairness is Jain's index: 1 if all flows got the
//! same. Segments that arrived behind a missing one count as out of order; those of a comparison
//! include its losses.
//!
//! Only netnice is judged: goodput, retransmissions and order as [`TcpService::check`] says. In the
//! full form fairness must be at least 0.98, and for sending from 4 Mbit/s on the 95th percentile
//! of the delay at most 50 ms.
//!
//! [`run`] adds its checks and the measured values to an [`Outcome`]. It fails if
//! the subject is not netnice, if a step of the measurement fails, or if a plot cannot be written.

use std::fmt;
use std::time::Duration;

use anyhow::Result;
use serde::Serialize;
use serde_json::json;

use super::bench::{Direction, R1G, R4M, R20M, R100M, Rate, at, netnice_only};
use super::goodput::{Counts, TcpService};
use super::{Bound, Context, Outcome};
use crate::plot::{Chart, Series, palette};
use crate::stats;
use crate::traffic::ParentProcess;
use crate::traffic::real_programs::{Iperf, IperfReport, iperf_server};
use crate::world::{Family, Netnice, Offloads, Pair, World, htb};

/// What limits the traffic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Queue {
    Netnice,
    HtbFifo,
    HtbFqCodel,
    Cake,
}

impl fmt::Display for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Queue::Netnice => "netnice",
            Queue::HtbFifo => "HTB+FIFO",
            Queue::HtbFqCodel => "HTB+fq_codel",
            Queue::Cake => "CAKE",
        })
    }
}

/// The conditions of one run.
#[derive(Debug, Clone, Copy, Serialize)]
struct Cell {
    queue: Queue,
    direction: Direction,
    rate: Rate,
    flows: u32,
    congestion: &'static str,
    family: Family,
    offloads: Offloads,
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let direction = self.direction.option().trim_start_matches('-');
        write!(
            f,
            "{} {direction} {} {} {} {:?} offloads-{:?}",
            self.queue, self.rate.text, self.flows, self.congestion, self.family, self.offloads
        )
    }
}

/// The result of one run.
#[derive(Debug, Clone, Serialize)]
struct Run {
    cell: Cell,
    #[serde(flatten)]
    service: TcpService,
    /// Jain's index; 1 for one flow.
    fairness: f64,
    /// 95th percentile of the round trips, in ms; absent if the client receives.
    delay: Option<f64>,
}

/// Runs the experiment and adds its checks and results to `outcome`. Fails if the subject is not
/// netnice, and as [`Experiment::run`](super::Experiment::run) does.
pub(super) fn run(context: &Context, outcome: &mut Outcome) -> Result<()> {
    netnice_only(context.subject)?;
    outcome.paper = json!({
        "promise": {
            "goodput": "≥ 99 % sent, ≥ 98 % received",
            "retransmitted": "≤ 0.1 %, none of 1 flow; sent",
            "out of order": "none; sent",
            "fairness": "Jain's index ≥ 0.98",
            "delay": "p95 ≤ 50 ms from 4 Mbit/s on; sent",
        },
    });
    let mut runs = Vec::new();
    for offloads in [Offloads::Off, Offloads::On] {
        let wanted = |cell: &Cell| cell.offloads == offloads && context.selects(&cell.to_string());
        let cells: Vec<Cell> = cells(context.quick).into_iter().filter(wanted).collect();
        if cells.is_empty() {
            continue;
        }
        let world = World::pair(Pair {
            offloads,
            ..Pair::default()
        })?;
        let netnice = world.netnice("client")?;
        for cell in cells {
            if !has_congestion_control(cell.congestion) {
                outcome.note(format!(
                    "{cell}: not measured, this kernel lacks {}",
                    cell.congestion
                ));
                continue;
            }
            let Some(run) = measure(context, &world, &netnice, cell)? else {
                outcome.note(format!(
                    "{cell}: not measured, this kernel has no such queue"
                ));
                continue;
            };
            context.say(format!(
                "{cell}: goodput {:.1} %, retransmitted {:.2} %, out of order {}, fairness {:.3}, \
                 p95 {:.1} ms",
                run.service.goodput,
                run.service.retransmitted,
                run.service.out_of_order,
                run.fairness,
                run.delay.unwrap_or(0.0)
            ));
            check(context, outcome, &run);
            runs.push(run);
        }
    }
    outcome.ours("runs", &runs);
    outcome.plot(context, "queue", || chart(&runs).svg())
}

/// The cells in the order in which they are measured. A quick run has four.
fn cells(quick: bool) -> Vec<Cell> {
    let base = Cell {
        queue: Queue::Netnice,
        direction: Direction::Up,
        rate: R4M,
        flows: 1,
        congestion: "cubic",
        family: Family::V4,
        offloads: Offloads::Off,
    };
    if quick {
        let four = Cell { flows: 4, ..base };
        let down = Cell {
            direction: Direction::Down,
            ..four
        };
        let fifo = Cell {
            queue: Queue::HtbFifo,
            ..four
        };
        return vec![base, four, down, fifo];
    }
    let mut cells = Vec::new();
    for rate in RATES {
        for flows in FLOWS {
            let one = Cell {
                rate,
                flows,
                ..base
            };
            for queue in [Queue::HtbFifo, Queue::HtbFqCodel, Queue::Cake] {
                cells.push(Cell { queue, ..one });
            }
            for congestion in ["cubic", "reno", "bbr"] {
                for direction in [Direction::Up, Direction::Down] {
                    for family in [Family::V4, Family::V6] {
                        for offloads in [Offloads::Off, Offloads::On] {
                            cells.push(Cell {
                                direction,
                                congestion,
                                family,
                                offloads,
                                ..one
                            });
                        }
                    }
                }
            }
        }
    }
    cells
}

/// Whether the kernel has a congestion control.
fn has_congestion_control(name: &str) -> bool {
    let path = "/proc/sys/net/ipv4/tcp_available_congestion_control";
    let available = std::fs::read_to_string(path).unwrap_or_default();
    available.split_whitespace().any(|one| one == name)
}

/// Measures one cell; `None` if the kernel does not have the queue.
fn measure(context: &Context, world: &World, netnice: &Netnice, cell: Cell) -> Result<Option<Run>> {
    let client = &world.client().ns;
    let mut program = ParentProcess::start(world.client())?;
    let bits = cell.rate.bits;
    let limited = match cell.queue {
        Queue::Netnice => {
            let (pid, option) = (program.pid(), cell.direction.option());
            netnice.run_line(&format!("set pid:{pid} {option} {}", cell.rate.text))?;
            true
        }
        Queue::HtbFifo => htb::limit(client, "eth0", bits, htb::Leaf::Bytes(FIFO_BYTES)).is_ok(),
        Queue::HtbFqCodel => htb::limit(client, "eth0", bits, htb::Leaf::FqCodel).is_ok(),
        Queue::Cake => htb::limit_by_cake(client, "eth0", bits).is_ok(),
    };
    let report = match limited {
        true => Some(transfer(context, world, &mut program, cell)),
        false => None,
    };
    htb::clear(client, "eth0");
    report.transpose()
}

fn transfer(
    context: &Context,
    world: &World,
    program: &mut ParentProcess,
    cell: Cell,
) -> Result<Run> {
    let seconds = if context.quick { 5 } else { 10 };
    let iperf = Iperf {
        to: at(world.server(), cell.family, PORT),
        flows: cell.flows,
        seconds,
        congestion: cell.congestion,
        reverse: cell.direction == Direction::Down,
    };
    let (sender, receiver) = match iperf.reverse {
        true => (world.server(), world.client()),
        false => (world.client(), world.server()),
    };
    let before = Counts::read(&sender.ns, &receiver.ns)?;
    let _server = iperf_server(world.server(), PORT)?;
    let child = program.run(&iperf.words())?;
    let lines = program.child_lines(child, Duration::from_secs(u64::from(seconds) + 20))?;
    let report = IperfReport::parse(&lines.join("\n"))?;
    let counts = [before, Counts::read(&sender.ns, &receiver.ns)?];
    let (goodput, limit) = (report.goodput(), cell.rate.bits as f64);
    let service = TcpService::new(goodput, limit, f64::from(seconds), cell.family, counts);
    Ok(Run {
        cell,
        service,
        fairness: fairness(&report.goodputs),
        delay: (!iperf.reverse).then(|| stats::percentile(&report.round_trips, 95.0)),
    })
}

/// Jain's index: the square of the sum, divided by the number times the sum of the squares.
fn fairness(rates: &[f64]) -> f64 {
    let sum: f64 = rates.iter().sum();
    let squares: f64 = rates.iter().map(|rate| rate * rate).sum();
    sum * sum / (rates.len() as f64 * squares).max(f64::MIN_POSITIVE)
}

/// Adds the checks of a run. Comparisons have none.
fn check(context: &Context, outcome: &mut Outcome, run: &Run) {
    let Cell {
        queue: Queue::Netnice,
        direction,
        flows,
        rate,
        ..
    } = run.cell
    else {
        return;
    };
    let name = run.cell.to_string();
    let service = &run.service;
    service.check(context, outcome, &name, (direction, flows), 0.0);
    // A quick run is shorter than fairness needs, and its delays are those of a busy machine.
    if context.quick {
        return;
    }
    let what = format!("{name}: fairness");
    outcome.check(what, run.fairness, "", Bound::AtLeast(0.98));
    if let Some(delay) = run.delay
        && rate.bits >= R4M.bits
    {
        let what = format!("{name}: p95 of the delay");
        outcome.check(what, delay, "ms", Bound::AtMost(50.0));
    }
}

/// Delay by number of flows at 4 Mbit/s, a line for each queue: cubic over IPv4, offloads off.
fn chart(runs: &[Run]) -> Chart {
    let mut chart = Chart::new(
        "How long packets of TCP wait in a limit of 4 Mbit/s",
        "flows",
        "95th percentile of the delay, ms",
    )
    .y_range(0.0, 400.0)
    .level(50.0, "50 ms");
    let queues = [
        Queue::Netnice,
        Queue::HtbFifo,
        Queue::HtbFqCodel,
        Queue::Cake,
    ];
    let colours = [
        palette::BLUE,
        palette::GREY,
        palette::ORANGE,
        palette::PURPLE,
    ];
    for (queue, colour) in queues.into_iter().zip(colours) {
        let is_shown = |run: &&Run| {
            let cell = &run.cell;
            cell.queue == queue
                && cell.rate == R4M
                && cell.congestion == "cubic"
                && cell.direction == Direction::Up
                && cell.family == Family::V4
                && cell.offloads == Offloads::Off
        };
        let shown = runs.iter().filter(is_shown);
        let points: Vec<(f64, f64)> = shown
            .filter_map(|run| Some((f64::from(run.cell.flows), run.delay?)))
            .collect();
        if !points.is_empty() {
            chart = chart.with(Series::new(queue.to_string(), colour, points));
        }
    }
    chart
}

const R1M: Rate = Rate {
    text: "1mbit",
    bits: 1_000_000,
};
const RATES: [Rate; 5] = [R1M, R4M, R20M, R100M, R1G];
const FLOWS: [u32; 4] = [1, 4, 8, 32];
/// The FIFO of the comparison, in bytes: what a careful administrator gives a slow link.
const FIFO_BYTES: u32 = 164_000;
const PORT: u16 = 5201;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_flows_have_an_index_of_one_and_a_single_taker_that_of_its_share() {
        assert!((fairness(&[3.0, 3.0, 3.0]) - 1.0).abs() < 1e-9);
        assert!((fairness(&[4.0, 0.0, 0.0, 0.0]) - 0.25).abs() < 1e-9);
    }

    #[test]
    fn the_full_form_has_every_combination_once() {
        let names: std::collections::BTreeSet<String> =
            cells(false).iter().map(Cell::to_string).collect();
        let netnice = 5 * 4 * 3 * 2 * 2 * 2;
        assert_eq!(names.len(), netnice + 5 * 4 * 3);
        assert_eq!(cells(false).len(), names.len());
    }
}
