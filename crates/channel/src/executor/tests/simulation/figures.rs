//! The workload of the paper RTC, figures 5 and 6, with the paper's costs (table 1), by the
//! executor. The paper's contracts are lost; the ones here are those of the experiments
//! `rtc-fig5-sim` and `rtc-fig6-sim` in `crates/lab`. There, a handler is a queue of blocks; here,
//! it is the one that programs run.

use super::*;

/// The costs of the paper's table 1. It does not give the cost of a switch; 55 us are assumed.
fn paper_settings() -> ExecutorSettings {
    ExecutorSettings {
        processor: Processor {
            switch: Nanos::from_micros(55),
            cache_miss: Nanos::from_micros(90),
            first: Nanos::from_micros(420),
            later: Nanos::from_micros(170),
            link_scheduling: Nanos::from_micros(160),
            block: NonZeroU32::new(4).expect("above zero"),
            largest: Bytes(4_096 + PacketHeader::LENGTH as u64),
            leftover: Nanos(0),
        },
        waking: Nanos::from_micros(55),
        horizon: Nanos(0),
        early: EarlyOrder::default(),
    }
}

/// Two bursty channels and a periodic one, and the parts of the deadlines for processing.
const CHANNELS: [(&str, u64); 3] = [
    ("mmax=60KiB,rmax=15/s,bmax=4,deadline=40ms", 30),
    ("mmax=40KiB,rmax=15/s,bmax=6,deadline=30ms", 21),
    ("mmax=30KiB,rmax=20/s,bmax=1,deadline=20ms", 8),
];

fn contract(number: usize) -> Channel {
    let (text, processing) = CHANNELS[number];
    let channel = channel(text).with_overload(Overload::Drop);
    let processing = Nanos::from_millis(processing);
    channel.with_processing(processing).expect("a part")
}

fn options(number: usize) -> ChannelOptions {
    let class = ChannelClass::RealTime(contract(number));
    ChannelOptions::new(id(number as u8), class)
}

/// Best effort with messages of this length.
fn bulk(length: u64) -> ChannelOptions {
    let class = ChannelClass::BestEffort {
        weight: Weight::default(),
        mmax: Bytes(length),
        queue: 64,
        when_full: WhenFull::Drop,
    };
    ChannelOptions::new(id(9), class)
}

/// 50 ns for each byte, and 40 us for each packet. The program has the whole processor.
fn paper_simulation() -> Simulation {
    let settings = paper_settings();
    Simulation {
        settings,
        server: Server {
            slice: Slice::new(Nanos(1_000), Nanos(1_000), false).expect("a slice"),
            lost: 0,
        },
        wire: Wire {
            overhead: Bytes(800),
            longest: settings.processor.largest,
            ..Wire::new(Rate::new(160_000_000).expect("a rate"))
        },
        greedy: None,
    }
}

/// Best effort of `best_effort` kB/s, and channel 0 at `factor` times its rate.
fn run(best_effort: u64, factor: u64) -> Vec<Fate> {
    run_with(&paper_simulation(), best_effort, BULK, factor)
}

/// As [`run`], with best-effort messages of this length.
fn run_with(simulation: &Simulation, best_effort: u64, length: u64, factor: u64) -> Vec<Fate> {
    let mut sources: Vec<Source> = Vec::new();
    for number in 0..CHANNELS.len() {
        let channel = contract(number);
        let times = if number == 0 { factor } else { 1 };
        let burst = u64::from(channel.bmax());
        let every = burst * 1_000_000_000 / u64::from(channel.rmax().get()) / times;
        let bursts = (0..UNTIL / every).map(|n| number as u64 * 1_000_000 + n * every);
        let length = channel.mmax().0 as usize;
        let messages = bursts.flat_map(|at| (0..burst).map(move |_| (at, length)));
        sources.push(Source {
            options: options(number),
            messages: messages.collect(),
        });
    }
    let every = length * 1_000_000 / best_effort;
    let messages = (0..UNTIL / every).map(|n| (n * every, length as usize));
    sources.push(Source {
        options: bulk(length),
        messages: messages.collect(),
    });
    simulation.run(sources, UNTIL)
}

/// Bytes of payload in kB/s.
fn rate(fate: &Fate) -> f64 {
    fate.bytes as f64 / 1e3 / (UNTIL as f64 / 1e9)
}

#[test]
fn the_papers_channels_are_admitted() {
    let simulation = paper_simulation();
    let leftover = bulk(BULK)
        .longest_block(&simulation.settings, End::Source)
        .expect("options");
    let handlers = simulation.settings.handlers(leftover);
    let work = |number| {
        options(number)
            .work(&simulation.settings, End::Source)
            .expect("options")
    };
    let work: Vec<Work> = (0..3).filter_map(work).collect();
    let processor = handlers.processor;
    let exact = Slice::new(Nanos::from_secs(1), Nanos::from_secs(1), false).expect("all");
    // The whole processor without the loss of a switch in each period.
    let whole = netnice_core::admission::timing::Handlers {
        processor: Processor {
            switch: Nanos(0),
            cache_miss: Nanos(0),
            first: Nanos(processor.first.0 + 2 * (processor.switch.0 + processor.cache_miss.0)),
            ..processor
        },
        ..handlers
    };
    assert_eq!(whole.carries(&exact, &work), Ok(()));
    let link = Transmitter::of(&simulation.wire, simulation.wire.longest, 4);
    let promise = |number| {
        options(number)
            .on_link(&simulation.settings)
            .expect("options")
    };
    let sent: Vec<Promise> = (0..3).filter_map(promise).map(Promise::Channel).collect();
    assert_eq!(link.carries(&sent), Ok(()));
}

/// Figure 5: best effort offers more and more.
#[test]
fn figure_5_best_effort_beyond_saturation_takes_nothing_from_channels() {
    let loads = [200, 800, 2_400, 4_800, 7_200, 9_600, 14_400];
    let fates = loads.map(|load| run(load, 1));
    let mut means = Vec::new();
    for all in &fates {
        for fate in &all[..3] {
            assert_eq!((fate.late, fate.processed_late, fate.refused), (0, 0, 0));
            assert_eq!(fate.without_buffer, 0);
        }
        let mean = |fate: &Fate| fate.laxities as f64 / fate.left as f64;
        means.push([mean(&all[0]), mean(&all[1]), mean(&all[2])]);
        let rates: Vec<f64> = all.iter().map(|fate| rate(fate).round()).collect();
        println!("{rates:?} kB/s, mean laxity {:?}", means.last());
    }
    for number in 0..3 {
        let least = means.iter().map(|all| all[number]).fold(f64::MAX, f64::min);
        let most = means.iter().map(|all| all[number]).fold(0.0, f64::max);
        assert!(most / least < 1.05, "channel {number}: {least} to {most}");
    }
    let sent = fates.iter().map(|all| rate(&all[3]));
    let sent: Vec<f64> = sent.collect();
    let peak = sent.iter().copied().fold(0.0, f64::max);
    let header = 1.0 + PacketHeader::LENGTH as f64 / 4_096.0;
    for (load, sent) in loads.iter().zip(&sent) {
        let offered = *load as f64 * header;
        assert!(
            *sent > (0.97 * offered).min(0.95 * peak),
            "{load}: {sent} of {peak}"
        );
    }
    assert!(sent[6] < 14_000.0, "best effort never saturates");
}

/// Figure 6: channel 0 sends more than its contract allows.
#[test]
fn figure_6_a_channel_above_its_rate_loses_its_own_messages_only() {
    let fates = [1, 2, 4, 6].map(|factor| run(1_900, factor));
    for all in &fates {
        for fate in &all[..3] {
            assert_eq!((fate.late, fate.processed_late), (0, 0));
        }
        for other in &all[1..] {
            assert_eq!(other.refused, 0);
        }
        let own = rate(&all[0]) / rate(&fates[0][0]);
        assert!(own > 0.98, "channel 0 gets {own} of its rate");
    }
    let refused: Vec<u64> = fates.iter().map(|all| all[0].refused).collect();
    assert!(
        refused[0] == 0 && refused[3] > refused[2] && refused[1] > 0,
        "{refused:?}"
    );
}

/// Section 5.3, figure 7: without preemption points inside messages, long best-effort messages make
/// channels late. With them, the same traffic does not.
#[test]
fn without_preemption_points_channels_are_late() {
    let late = |block: u32| {
        let mut simulation = paper_simulation();
        simulation.settings.processor.block = NonZeroU32::new(block).expect("above zero");
        let fates = run_with(&simulation, 6_000, 110_000, 1);
        let late = fates.iter().map(|fate| fate.processed_late + fate.late);
        let refused = fates[..3].iter().map(|fate| fate.refused);
        (late.sum::<u64>(), refused.sum::<u64>())
    };
    assert_eq!(late(4), (0, 0));
    let (late, refused) = late(27);
    assert!(late > 0, "{late} late and {refused} refused");
}

/// Section 5.3, figure 7b: with preemption points no channel is late, whether early messages come
/// after best effort or before it.
#[test]
fn the_order_of_early_messages_makes_no_channel_late() {
    for early in [EarlyOrder::AfterLeftOver, EarlyOrder::BeforeLeftOver] {
        let mut simulation = paper_simulation();
        simulation.settings.horizon = Nanos::from_millis(500);
        simulation.settings.early = early;
        let fates = run_with(&simulation, 7_200, BULK, 1);
        for fate in &fates[..3] {
            let found = (fate.late, fate.processed_late, fate.refused);
            assert_eq!(found, (0, 0, 0), "{early:?}");
        }
    }
}

/// Bytes of a best-effort message.
const BULK: u64 = 16_384;

const UNTIL: u64 = 4_000_000_000;
