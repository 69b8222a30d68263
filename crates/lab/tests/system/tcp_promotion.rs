//! Tests accepted connections that get a flow and a contract of their own: a listener on the direct
//! path, and sockets of the kernel at the other end of the cable.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use netnice_lab::experiment::bench::pause;
use netnice_lab::process::EVENT_TIMEOUT;
use netnice_lab::testbed::{TestBed, await_some};
use netnice_lab::traffic::direct_tcp::{fill, first_wrong};
use netnice_lab::traffic::{self, DirectTcp, Running};
use netnice_lab::wire::{Tap, WireFlow};
use netnice_lab::world::Family;
use serde_json::Value;

use crate::direct_tcp::{Bed, at_once, both};

const PORT: u16 = 7011;
/// What a connection sends in each direction.
const BYTES: u64 = 3_000_000;

/// A listener on the client's host, with these further options.
fn listener(bed: &TestBed, family: Family, more: &[&str]) -> Result<(SocketAddr, Running)> {
    let (local, _) = both(bed, family, PORT);
    let program = DirectTcp::listen(local, bed.netnice.runtime()).with(more);
    Ok((
        local,
        traffic::start(bed.world.client(), &program, at_once())?,
    ))
}

fn connect(bed: &TestBed, to: SocketAddr) -> Result<TcpStream> {
    let connect = || Ok(TcpStream::connect_timeout(&to, EVENT_TIMEOUT)?);
    let socket = bed.world.server().ns.enter(connect)?;
    socket.set_read_timeout(Some(EVENT_TIMEOUT))?;
    Ok(socket)
}

/// The flows of the direct path.
fn flows(bed: &TestBed) -> Result<Vec<Value>> {
    let shown = bed.netnice.show()?;
    Ok(shown["direct"].as_array().cloned().unwrap_or_default())
}

/// Writes the pattern in the range from `from` to `to`.
fn write(mut socket: &TcpStream, from: u64, to: u64) -> Result<()> {
    let (mut position, mut buffer) = (from, vec![0; 40_000]);
    while position < to {
        let length = (to - position).min(buffer.len() as u64) as usize;
        fill(&mut buffer[..length], position);
        socket.write_all(&buffer[..length])?;
        position += length as u64;
    }
    Ok(())
}

/// Reads the pattern in the range from `from` to `to`.
fn read(mut socket: &TcpStream, from: u64, to: u64) -> Result<()> {
    let (mut position, mut buffer) = (from, vec![0; 40_000]);
    while position < to {
        let most = (to - position).min(buffer.len() as u64) as usize;
        let read = socket.read(&mut buffer[..most])?;
        ensure!(read > 0, "the end at {position}");
        let wrong = first_wrong(&buffer[..read], position);
        ensure!(wrong.is_none(), "a wrong byte at {wrong:?}");
        position += read as u64;
    }
    Ok(())
}

/// Writes and reads back a part of the pattern on each socket, all at the same time.
fn echo(sockets: &[TcpStream], from: u64, to: u64) -> Result<()> {
    std::thread::scope(|scope| {
        let ends: Vec<_> = sockets
            .iter()
            .flat_map(|socket| {
                [
                    scope.spawn(move || write(socket, from, to)),
                    scope.spawn(move || read(socket, from, to)),
                ]
            })
            .collect();
        ends.into_iter()
            .try_for_each(|end| end.join().expect("no panic"))
    })
}

/// Every second of six connections is promoted in the middle of its traffic, and the others go on.
fn promote_under_load(bed: &Bed, family: Family, more: &[&str]) -> Result<()> {
    let bed = &bed.bed;
    let mut options = vec!["--echo", "--promote", "min 10mbit", "--promote-every", "2"];
    options.extend(more);
    let (to, mut ours) = listener(bed, family, &options)?;
    let sockets: Vec<TcpStream> = (0..6)
        .map(|_| connect(bed, to))
        .collect::<Result<Vec<_>>>()?;
    echo(&sockets, 0, BYTES)?;
    for _ in 0..3 {
        ours.proc.next_json("promoted", EVENT_TIMEOUT)?;
    }
    // All go on.
    echo(&sockets, BYTES, BYTES + 100_000)?;
    await_some("the promoted connections have their segments", || {
        let open = flows(bed)?;
        let is_own = |flow: &&Value| {
            let ends = flow["speaks"].as_str();
            ends.is_some_and(|ends| !ends.contains("any host"))
        };
        let own: Vec<&Value> = open.iter().filter(is_own).collect();
        ensure!((open.len(), own.len()) == (5, 3), "{open:?}");
        for flow in &own {
            ensure!(flow["contract"]["min"] == 10_000_000, "{flow}");
        }
        let delivered = |flow: &&Value| flow["counters"]["delivered"].as_u64() > Some(30);
        Ok(own.iter().all(delivered).then_some(()))
    })?;
    for socket in &sockets {
        socket.shutdown(Shutdown::Write)?;
        ensure!((&mut &*socket).read(&mut [0; 10])? == 0, "the echo ends");
    }
    drop(sockets);
    await_some("the flows of the promoted connections are closed", || {
        Ok((flows(bed)?.len() == 2).then_some(()))
    })?;
    let ours = ours.stop()?;
    ensure!(ours.refused.is_empty(), "{:?}", ours.refused);
    await_some("the port is free", || {
        Ok(flows(bed)?.is_empty().then_some(()))
    })
}

#[test]
fn connections_are_promoted_while_both_ends_send() -> Result<()> {
    const AFTER: [&str; 2] = ["--promote-after", "500000"];
    for mode in [None, Some("generic"), Some("fallback")] {
        let bed = match mode {
            None => Bed::new(None)?,
            mode => Bed::with_offloads(mode)?,
        };
        for family in [Family::V4, Family::V6] {
            let what = || format!("{mode:?}, {family:?}");
            let capture = bed.capture(PORT)?;
            promote_under_load(&bed, family, &AFTER).with_context(what)?;
            let server = bed.bed.world.server();
            capture.end_without_reset(server).with_context(what)?;
        }
    }
    Ok(())
}

/// The windows that the listener's buffers promised exceed the buffers of the promoted flows.
#[test]
fn connections_with_few_buffers_are_promoted_at_once_and_by_tokio() -> Result<()> {
    let bed = Bed::new(None)?;
    let few = ["--buffers", "40", "--promote-after", "200000"];
    promote_under_load(&bed, Family::V4, &few)?;
    promote_under_load(&bed, Family::V4, &["--tokio"])?;
    promote_under_load(&bed, Family::V6, &[])
}

#[test]
fn a_promotion_that_is_refused_changes_nothing() -> Result<()> {
    let bed = Bed::new(None)?;
    let bed = &bed.bed;
    let options = ["--echo", "--promote", "min 2gbit"];
    let (to, ours) = listener(bed, Family::V4, &options)?;
    let sockets = [connect(bed, to)?, connect(bed, to)?];
    echo(&sockets, 0, 300_000)?;
    ensure!(flows(bed)?.len() == 2);
    let ours = ours.stop()?;
    ensure!(
        ours.refused.values().sum::<u64>() == 2,
        "{:?}",
        ours.refused
    );
    for text in ours.refused.keys() {
        ensure!(
            text.contains("asks min 2gbit on eth0, which does not fit"),
            "{text}"
        );
    }
    Ok(())
}

/// Two connections receive as fast as they can, and one of them is promoted to a slice of 10
/// Mbit/s. Returns the rates on the wire in Mbit/s after that: of the promoted one, and of the
/// other.
fn rates_of_a_slice(seconds: f64) -> Result<[f64; 2]> {
    let bed = Bed::new(None)?;
    let bed = &bed.bed;
    let options = ["--source", "--promote", "slice 1ms/100ms"];
    let after = ["--promote-every", "2", "--promote-after", "2000000"];
    let (to, mut ours) = listener(bed, Family::V4, &[&options[..], &after].concat())?;
    let sockets = [connect(bed, to)?, connect(bed, to)?];
    let ports = sockets.each_ref().map(|socket| socket.local_addr());
    let [promoted, other] =
        [ports[0].as_ref(), ports[1].as_ref()].map(|at| at.map(SocketAddr::port));
    let (promoted, other) = (promoted.expect("a port"), other.expect("a port"));
    let server = bed.world.server();
    let device = &server.port().device;
    let tap = Tap::start(&server.ns, device)?;
    let ended = Instant::now() + Duration::from_secs_f64(seconds + 3.0);
    let span = std::thread::scope(|scope| {
        for socket in &sockets {
            scope.spawn(move || {
                let mut bytes = [0; 65_536];
                while Instant::now() < ended && (&mut &*socket).read(&mut bytes).is_ok() {}
            });
        }
        ours.proc.next_json("promoted", EVENT_TIMEOUT)?;
        // What the listener's flow had sent ahead is acknowledged.
        pause(1.0);
        let begin = wall_clock();
        pause(seconds);
        Ok::<_, anyhow::Error>((begin, wall_clock()))
    })?;
    let record = tap.stop(&server.ns)?;
    record.validate()?;
    let rate = |port: u16| {
        let of = move |flow: &WireFlow| flow.inbound && flow.has_port(port);
        record.rate(of, span.0, span.1) / 1e6
    };
    Ok([rate(promoted), rate(other)])
}

fn wall_clock() -> u64 {
    let now = std::time::SystemTime::now();
    let since = now.duration_since(std::time::UNIX_EPOCH);
    since.expect("after 1970").as_nanos() as u64
}

/// A busy machine makes it less, and the slice bounds it.
#[test]
fn a_promoted_connection_has_no_more_than_its_slice() -> Result<()> {
    let [promoted, other] = rates_of_a_slice(2.0)?;
    ensure!((0.5..=10.8).contains(&promoted), "{promoted:.2} Mbit/s");
    ensure!(other > promoted, "{other:.2} and {promoted:.2} Mbit/s");
    Ok(())
}

#[test]
#[ignore = "rates to the percent"]
fn a_promoted_connection_has_its_slice() -> Result<()> {
    let [promoted, other] = rates_of_a_slice(10.0)?;
    println!("promoted {promoted:.3}, other {other:.1} Mbit/s");
    ensure!((9.7..=10.3).contains(&promoted), "{promoted:.3} Mbit/s");
    ensure!(other > 100.0, "{other:.1} Mbit/s");
    Ok(())
}
