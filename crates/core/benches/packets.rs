//! Measures two tables of the benchmark `scheduler`, shaping alone and everything, with criterion:
//! the time per packet, with its confidence interval and the change since the last run.
//!
//! `cargo bench -p netnice-core --bench packets`

#[path = "scheduler/load.rs"]
#[allow(dead_code)] // The other benchmark uses the rest.
mod load;

use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use load::Mix;

fn shaping(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("shaping alone");
    settings(&mut group);
    for (name, flows, same) in cases() {
        let mut work = load::pacer(flows, same);
        work(3 * flows as u32);
        group.bench_function(BenchmarkId::new(name, flows), |bencher| {
            bencher.iter_custom(|packets| timed(packets, &mut work));
        });
    }
    group.finish();
}

fn everything(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("everything");
    settings(&mut group);
    for (name, flows, same) in cases() {
        let mut work = load::link(flows, same, Mix::All, 60);
        work(3 * flows as u32);
        group.bench_function(BenchmarkId::new(name, flows), |bencher| {
            bencher.iter_custom(|packets| timed(packets, &mut work));
        });
    }
    group.finish();
}

fn settings<M: criterion::measurement::Measurement>(group: &mut criterion::BenchmarkGroup<'_, M>) {
    group.throughput(Throughput::Elements(1));
    group.sample_size(20);
    group.warm_up_time(Duration::from_millis(500));
    group.measurement_time(Duration::from_secs(1));
}

fn cases() -> impl Iterator<Item = (&'static str, usize, bool)> {
    let flows = [1, 100, 1_000, 65_536, 1_048_576];
    let kinds = [("random", false), ("identical", true)];
    flows
        .into_iter()
        .flat_map(move |flows| kinds.map(|(name, same)| (name, flows, same)))
}

/// Measures packets; an iteration is one packet.
fn timed(packets: u64, work: &mut impl FnMut(u32)) -> Duration {
    let start = Instant::now();
    let mut left = packets;
    while left > 0 {
        let some = left.min(1 << 20);
        work(some as u32);
        left -= some;
    }
    start.elapsed()
}

criterion_group!(packets, shaping, everything);
criterion_main!(packets);
