//! The smallest whole path on real packets: programs with slices send UDP through the driver, and what arrives is
//! measured on the far end of the cable.

use std::io::Read;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use netnice_core::units::Nanos;
use netnice_driver::link::Mode;
use netnice_lab::direct::{Direct, Talker, wire};
use netnice_lab::experiment::bench::functional;
use netnice_lab::wire::Tap;
use netnice_lab::world::{self, Pair, World};

const SLICES: [u64; 6] = [4, 8, 12, 16, 20, 24];
const RUN: Duration = Duration::from_millis(2_600);

fn slices(mode: Mode) -> Result<()> {
    let world = World::pair(Pair::default())?;
    let mut direct = Direct::new(&world, wire(100_000_000, Nanos(0))?, mode)?;
    let talkers: Result<Vec<Talker>> = SLICES
        .iter()
        .map(|ms| direct.talker(5000 + *ms as u16, &format!("slice {ms}ms/100ms")))
        .collect();
    let tap = Tap::start(&world.server().ns, &world.server().port().device)?;
    let driving = direct.drive(None)?;
    let talking: Result<Vec<_>> = talkers?.into_iter().map(Talker::talk).collect();
    thread::sleep(RUN);
    let mut driven = driving.end()?;
    for one in talking? {
        one.end()?;
    }
    let record = tap.stop(&world.server().ns)?;
    record.sound()?;
    let is_its = |port: u16| move |flow: &netnice_lab::wire::Flow| flow.source.1 == port;
    let first = record.first_of(is_its(5004)).context("nothing arrived")?;
    let (from, to) = (first + 200_000_000, first + 2_200_000_000);
    // A processor that is emulated cannot keep up with all six, but none gets more than its own.
    let short = if functional() { 1.0 } else { 0.03 };
    for ms in SLICES {
        let rate = record.rate(is_its(5000 + ms as u16), from, to) / 1e6;
        let off = rate / ms as f64 - 1.0;
        println!(
            "{mode:?}: slice {ms} ms of 100: {rate:.3} Mbit/s, {:+.2} %",
            off * 100.0
        );
        ensure!(
            rate > 0.0 && (-short..=0.03).contains(&off),
            "{ms} ms of 100: {rate:.3} Mbit/s"
        );
    }
    println!("{mode:?}: {:?}", driven.server().spent());
    Ok(())
}

/// In how many microseconds a processor has to be awake, by all who ask. Nothing where the kernel does not keep it.
fn latency() -> Option<i32> {
    let mut word = [0; 4];
    let file = std::fs::File::options()
        .read(true)
        .write(true)
        .open("/dev/cpu_dma_latency");
    file.ok()?.read_exact(&mut word).ok()?;
    Some(i32::from_ne_bytes(word))
}

/// What is asked of processors while a flow sends, and whether its driver asks.
fn asked(contract: &str) -> Result<(Option<i32>, bool)> {
    let world = World::pair(Pair::default())?;
    let mut direct = Direct::new(&world, wire(100_000_000, Nanos(0))?, Mode::Native)?;
    let talker = direct.talker(5000, contract)?;
    let driving = direct.drive(None)?;
    let talking = talker.talk()?;
    thread::sleep(Duration::from_millis(300));
    let meanwhile = latency();
    let mut driven = driving.end()?;
    talking.end()?;
    Ok((meanwhile, driven.server().is_awake()))
}

#[test]
fn no_processor_sleeps_while_a_cell_flow_sends() {
    world::begin().expect("a clean machine");
    if latency().is_none() {
        eprintln!("this kernel cannot be asked to keep processors awake");
        return;
    }
    let cell = asked("cell pcr=10mbit,cdvt=500us").expect("a cell flow");
    assert_eq!(cell, (Some(0), true));
    let (_, asks) = asked("slice 10ms/100ms").expect("a slice");
    assert!(!asks, "a slice has no moments");
}

#[test]
fn six_programs_each_get_their_slice() {
    world::begin().expect("a clean machine");
    slices(Mode::Native).unwrap_or_else(|e| panic!("native: {e:#}"));
}

#[test]
fn also_where_there_is_no_af_xdp() {
    world::begin().expect("a clean machine");
    slices(Mode::Fallback).unwrap_or_else(|e| panic!("fallback: {e:#}"));
}
