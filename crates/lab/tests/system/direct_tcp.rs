//! Tests TCP on the direct path, end to end: a daemon, a driver, and a program that runs its own
//! TCP, with sockets of the kernel at the other end of the cable.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use netnice_lab::experiment::bench::at;
use netnice_lab::process::{EVENT_TIMEOUT, Proc};
use netnice_lab::testbed::{TestBed, becomes_true};
use netnice_lab::traffic::direct_tcp::{fill, first_wrong};
use netnice_lab::traffic::{self, DirectTcp, RunOptions};
use netnice_lab::world::bad_wire::Impairments;
use netnice_lab::world::{self, Family, Host, World};

use crate::c_compiler::{Link, compile};
use crate::tcp_flows::rig::Capture;

/// A test bed with a managed link, whose driver reaches it in this mode, or in the best one.
pub(crate) struct Bed {
    pub(crate) bed: TestBed,
    _driver: Option<Proc>,
}

impl Bed {
    /// A bed without offloads.
    pub(crate) fn new(mode: Option<&str>) -> Result<Bed> {
        Bed::of(TestBed::new()?, mode)
    }

    /// A bed whose devices have their default offloads: the peer sends packets of up to 64 KiB with
    /// partial checksums.
    pub(crate) fn with_offloads(mode: Option<&str>) -> Result<Bed> {
        Bed::of(TestBed::with_offloads()?, mode)
    }

    /// Captures the segments of a port, on the server's device.
    pub(crate) fn capture(&self, port: u16) -> Result<Capture> {
        let world = &self.bed.world;
        Capture::start(world.server(), world.folder(), port)
    }

    fn of(bed: TestBed, mode: Option<&str>) -> Result<Bed> {
        Bed::at("1gbit", bed, mode)
    }

    fn at(rate: &str, bed: TestBed, mode: Option<&str>) -> Result<Bed> {
        let device = &bed.world.client().port().device;
        bed.run_ok(&format!("link {device} --rate {rate}"));
        let start = |mode| bed.start_driver(device, rate, mode);
        let driver = mode.map(start).transpose()?;
        Ok(Bed {
            bed,
            _driver: driver,
        })
    }
}

pub(crate) fn both(bed: &TestBed, family: Family, port: u16) -> (SocketAddr, SocketAddr) {
    let end = |host: &Host| at(host, family, port);
    (end(bed.world.client()), end(bed.world.server()))
}

pub(crate) fn at_once() -> RunOptions {
    RunOptions {
        at_once: true,
        ..RunOptions::default()
    }
}

/// The report of a program that has received `bytes`.
fn receiving(bytes: u64) -> RunOptions {
    RunOptions {
        until_received: Some(bytes),
        ..at_once()
    }
}

/// Writes the pattern to a socket of the kernel, and shuts it down.
fn kernel_writes(mut socket: &TcpStream, bytes: u64) -> Result<()> {
    let mut position = 0;
    let mut buffer = vec![0; 40_000];
    while position < bytes {
        let length = (bytes - position).min(buffer.len() as u64) as usize;
        fill(&mut buffer[..length], position);
        socket.write_all(&buffer[..length])?;
        position += length as u64;
    }
    Ok(socket.shutdown(Shutdown::Write)?)
}

/// Reads the pattern from a socket of the kernel up to its end. Returns the number of bytes.
fn kernel_reads(mut socket: &TcpStream) -> Result<u64> {
    socket.set_read_timeout(Some(EVENT_TIMEOUT))?;
    let mut position = 0;
    let mut buffer = vec![0; 40_000];
    loop {
        let read = socket.read(&mut buffer)?;
        if read == 0 {
            return Ok(position);
        }
        let wrong = first_wrong(&buffer[..read], position);
        ensure!(wrong.is_none(), "a wrong byte at {wrong:?}");
        position += read as u64;
    }
}

/// A program with its own TCP and a socket of the kernel send `bytes` to each other.
fn exchange(bed: &TestBed, family: Family, bytes: u64) -> Result<()> {
    let (client, server) = (bed.world.client(), bed.world.server());
    let (_, to) = both(bed, family, 7001);
    let listener = server.ns.enter(|| Ok(TcpListener::bind(to)?))?;
    let program = DirectTcp::connect(to, bed.netnice.runtime());
    let program = program.source(bytes).sink();
    let ours = traffic::start(client, &program, receiving(bytes))?;
    let (socket, _) = listener.accept()?;
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| kernel_writes(&socket, bytes));
        let read = kernel_reads(&socket)?;
        ensure!(read == bytes, "{read} of {bytes} bytes arrived");
        writer.join().expect("no panic")
    })?;
    let ours = ours.report(EVENT_TIMEOUT)?;
    ensure!(ours.refused.is_empty(), "{:?}", ours.refused);
    ensure!((ours.sent, ours.received) == (bytes, bytes), "{ours:?}");
    Ok(())
}

#[test]
fn a_connection_to_the_kernel_carries_both_directions() -> Result<()> {
    for mode in [None, Some("generic"), Some("fallback")] {
        let bed = Bed::new(mode)?;
        for family in [Family::V4, Family::V6] {
            let what = || format!("{mode:?}, {family:?}");
            exchange(&bed.bed, family, 10_000_000).with_context(what)?;
        }
    }
    Ok(())
}

/// Segments leave joined in long packets while the interface cuts packets, and alone while not.
#[test]
fn segments_leave_together_where_the_interface_cuts_packets() -> Result<()> {
    const BYTES: u64 = 30_000_000;
    // 20 us of this link are more than the longest packet.
    let bed = Bed::at("40gbit", TestBed::with_offloads()?, None)?;
    let (client, server) = (bed.bed.world.client(), bed.bed.world.server());
    let arrived = || Ok::<_, anyhow::Error>(server.ns.counters(&server.port().device)?.rx_packets);
    let cuts = |state| {
        let device = &client.port().device;
        client
            .ns
            .run("ethtool", &format!("-K {device} tso {state}"))
    };
    let packets_for = |family| {
        let before = arrived()?;
        exchange(&bed.bed, family, BYTES)?;
        Ok::<_, anyhow::Error>(arrived()? - before)
    };
    for family in [Family::V4, Family::V6] {
        let packets = packets_for(family)?;
        // Alone, they would be 20,000 packets, beside the acknowledgements.
        ensure!(packets < BYTES / 3000, "{family:?}: {packets} packets");
    }
    cuts("off")?;
    let packets = packets_for(Family::V4)?;
    ensure!(packets > BYTES / 1500, "{packets} packets");
    cuts("on")?;
    let packets = packets_for(Family::V6)?;
    ensure!(packets < BYTES / 3000, "{packets} packets");
    // Every byte arrives while it changes.
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let changes = scope.spawn(|| {
            while !done.load(Relaxed) {
                cuts("off")?;
                cuts("on")?;
            }
            Ok::<_, anyhow::Error>(())
        });
        let exchanged = exchange(&bed.bed, Family::V4, 5 * BYTES);
        done.store(true, Relaxed);
        changes.join().expect("no panic")?;
        exchanged
    })
}

/// In these modes the packets of the peer arrive as they are, and the driver cuts them.
#[test]
fn long_packets_of_the_peer_arrive_as_segments() -> Result<()> {
    for mode in ["generic", "fallback"] {
        let bed = Bed::with_offloads(Some(mode))?;
        for family in [Family::V4, Family::V6] {
            let what = || format!("{mode}, {family:?}");
            let capture = bed.capture(7001)?;
            exchange(&bed.bed, family, 10_000_000).with_context(what)?;
            let server = bed.bed.world.server();
            capture.end_without_reset(server).with_context(what)?;
            // The peer sends a lost packet again, and the exchange would succeed all the same.
            let device = &bed.bed.world.client().port().device;
            let page = bed.bed.run_ok(&format!("explain direct:{device}")).stdout;
            ensure!(
                page.contains("driver") && !page.contains("frames: missed"),
                "{page}"
            );
        }
    }
    Ok(())
}

#[test]
fn every_byte_arrives_over_a_bad_wire() -> Result<()> {
    world::begin()?;
    let bad = |seed| Impairments {
        delay: Duration::from_millis(2),
        loss: 0.01,
        damage: 0.01,
        duplicate: 0.01,
        reorder: 0.02,
        reorder_by: Duration::from_millis(3),
        seed,
        ..Impairments::default()
    };
    let bed = TestBed::of(World::bad_wire([bad(1), bad(2)])?)?;
    let bed = Bed::of(bed, None)?;
    for family in [Family::V4, Family::V6] {
        // The wire may lose the question for the next hop, which the kernel asks again.
        let (_, closed) = both(&bed.bed, family, 7009);
        let ask = || Ok(TcpStream::connect_timeout(&closed, Duration::from_secs(5))?);
        let answers = || {
            let error = bed.bed.world.client().ns.enter(ask).err();
            error.is_some_and(|error| format!("{error:#}").contains("refused"))
        };
        ensure!(
            becomes_true(answers),
            "{family:?}: the server does not answer"
        );
        exchange(&bed.bed, family, 2_000_000)?;
    }
    Ok(())
}

#[test]
fn a_peer_hears_of_a_program_that_was_killed() -> Result<()> {
    let bed = Bed::new(None)?;
    let bed = &bed.bed;
    let (client, server) = (bed.world.client(), bed.world.server());
    let (_, to) = both(bed, Family::V4, 7003);
    let listener = server.ns.enter(|| Ok(TcpListener::bind(to)?))?;
    let program = DirectTcp::connect(to, bed.netnice.runtime()).sink();
    let ours = traffic::start(client, &program, at_once())?;
    let (mut socket, _) = listener.accept()?;
    socket.set_read_timeout(Some(EVENT_TIMEOUT))?;
    let killed = Instant::now();
    drop(ours);
    let error = socket.read(&mut [0]).expect_err("the program sent nothing");
    ensure!(error.kind() == ErrorKind::ConnectionReset, "{error}");
    // 1 s is required; the machine may be busy.
    ensure!(
        killed.elapsed() < Duration::from_secs(5),
        "{:?}",
        killed.elapsed()
    );
    Ok(())
}

#[test]
fn a_connection_that_cannot_be_says_why() -> Result<()> {
    let bed = Bed::new(None)?;
    let bed = &bed.bed;
    let (local, to) = both(bed, Family::V4, 7004);
    let runtime = bed.netnice.runtime();
    let fails = |program: DirectTcp| {
        let started = traffic::start(bed.world.client(), &program, at_once());
        started
            .err()
            .map_or(String::new(), |error| format!("{error:#}"))
    };
    let nobody_listens = fails(DirectTcp::connect(to, runtime).sink());
    ensure!(
        nobody_listens.contains("the peer refused the connection"),
        "{nobody_listens}"
    );
    let no_backlog = fails(
        DirectTcp::listen(local, runtime)
            .sink()
            .with(&["--backlog", "0"]),
    );
    ensure!(no_backlog.contains("a backlog of 0"), "{no_backlog}");
    let elsewhere = fails(DirectTcp::listen(to, runtime).sink());
    ensure!(
        elsewhere.contains("is not an address of this host"),
        "{elsewhere}"
    );
    Ok(())
}

#[test]
fn a_listener_serves_connections_of_the_kernel() {
    let tokio: &[&str] = &["--tokio"];
    let cases: &[(Family, &[&str])] = &[(Family::V4, &[]), (Family::V6, &[]), (Family::V4, tokio)];
    let bed = Bed::new(None).expect("a test bed");
    serve_the_kernel(&bed, cases, 200_000);
}

#[test]
fn a_listener_serves_connections_of_the_kernel_in_every_mode() {
    for mode in ["generic", "fallback"] {
        let bed = Bed::with_offloads(Some(mode)).expect("a test bed");
        let capture = bed.capture(7002).expect("a capture");
        serve_the_kernel(&bed, &[(Family::V4, &[]), (Family::V6, &[])], 200_000);
        let server = bed.bed.world.server();
        capture.end_without_reset(server).expect(mode);
    }
}

/// Twenty connections want many more buffers than there are. Segments are lost when all of them
/// send at once, so less is sent here.
#[test]
fn a_listener_with_few_buffers_serves_connections_of_the_kernel() {
    let bed = Bed::new(None).expect("a test bed");
    serve_the_kernel(&bed, &[(Family::V4, &["--buffers", "32"])], 50_000);
}

/// A socket of the kernel writes the pattern to `to`, and reads it back.
fn echoed(host: &Host, to: SocketAddr, bytes: u64) -> Result<()> {
    let connect = || Ok(TcpStream::connect_timeout(&to, EVENT_TIMEOUT)?);
    let socket = host.ns.enter(connect).context("cannot connect")?;
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| kernel_writes(&socket, bytes));
        let read = kernel_reads(&socket)?;
        ensure!(read == bytes, "{read} bytes of {bytes} came back");
        writer.join().expect("no panic")
    })
}

/// A C program, linked with the library in both ways.
#[test]
fn a_program_in_c_echoes_to_sockets_of_the_kernel() {
    let bed = Bed::new(None).expect("a test bed").bed;
    let (client, server) = (bed.world.client(), bed.world.server());
    let root = bed.world.folder().join("usr");
    crate::c_compiler::install(&root);
    for (family, link) in [(Family::V4, Link::Static), (Family::V6, Link::Shared)] {
        let program = root.join("echo");
        compile(&root, "tests/tcp.c", &program, link);
        let (local, _) = both(&bed, family, 7006);
        let mut command = client.ns.command(&program);
        command.env("NETNICE_RUNTIME_DIR", bed.netnice.runtime());
        command.args([local.ip().to_string(), local.port().to_string()]);
        let mut echo = Proc::start(command).expect("it starts");
        assert_eq!(echo.next_line(EVENT_TIMEOUT).expect("a line"), "ready");
        std::thread::scope(|scope| {
            let bytes = |number: u64| 1 + 30_000 * number;
            let all: Vec<_> = (0..20)
                .map(|number| scope.spawn(move || echoed(server, local, bytes(number))))
                .collect();
            for (number, one) in all.into_iter().enumerate() {
                one.join()
                    .expect("no panic")
                    .unwrap_or_else(|error| panic!("{number}: {error:#}"));
            }
        });
        echo.write_line("end").expect("it runs");
        let last = echo.next_line(EVENT_TIMEOUT).expect("a line");
        assert_eq!(last, "20 served, 5 promoted, 0 failed");
    }
}

/// Listeners with these options send back what sockets of the kernel write: ten times `bytes` on a
/// connection, then `bytes` on each of twenty.
fn serve_the_kernel(bed: &Bed, cases: &[(Family, &[&str])], bytes: u64) {
    let bed = &bed.bed;
    let (client, server) = (bed.world.client(), bed.world.server());
    for &(family, more) in cases {
        let (local, _) = both(bed, family, 7002);
        let program = DirectTcp::listen(local, bed.netnice.runtime()).echo();
        let program = program.with(more);
        let ours = traffic::start(client, &program, at_once()).expect("a listener");
        let one = |bytes: u64| echoed(server, local, bytes);
        one(1).expect("a byte comes back");
        one(10 * bytes).expect("the pattern comes back");
        std::thread::scope(|scope| {
            let all: Vec<_> = (0..20).map(|_| scope.spawn(|| one(bytes))).collect();
            for (number, one) in all.into_iter().enumerate() {
                one.join()
                    .expect("no panic")
                    .unwrap_or_else(|error| panic!("{number}: {error:#}"));
            }
        });
        let ours = ours.stop().expect("a report");
        assert!(ours.refused.is_empty(), "{family:?}: {:?}", ours.refused);
        std::thread::sleep(Duration::from_millis(100));
    }
}
