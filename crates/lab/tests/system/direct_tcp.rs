//! Tests TCP on the direct path, end to end: a daemon, a driver, and a program that runs its own
//! TCP, with sockets of the kernel at the other end of the cable.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use netnice_lab::experiment::bench::at;
use netnice_lab::process::EVENT_TIMEOUT;
use netnice_lab::testbed::TestBed;
use netnice_lab::traffic::direct_tcp::{fill, first_wrong};
use netnice_lab::traffic::{self, DirectTcp, Report, RunOptions, Running};
use netnice_lab::world::{Family, Host};

/// A test bed with a managed link.
fn test_bed() -> TestBed {
    let bed = TestBed::new().expect("a test bed");
    let device = &bed.world.client().port().device;
    bed.run_ok(&format!("link {device} --rate 1gbit"));
    bed
}

fn both(bed: &TestBed, family: Family, port: u16) -> (SocketAddr, SocketAddr) {
    let end = |host: &Host| at(host, family, port);
    (end(bed.world.client()), end(bed.world.server()))
}

fn at_once() -> RunOptions {
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

fn report(running: Running) -> Report {
    running.report(EVENT_TIMEOUT).expect("a report in time")
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

const BYTES: u64 = 20_000_000;

#[test]
fn a_connection_to_the_kernel_carries_both_directions() {
    let bed = test_bed();
    let (client, server) = (bed.world.client(), bed.world.server());
    for family in [Family::V4, Family::V6] {
        let (_, to) = both(&bed, family, 7001);
        let listener = server
            .ns
            .enter(|| Ok(TcpListener::bind(to)?))
            .expect("a listener");
        let program = DirectTcp::connect(to, bed.netnice.runtime());
        let program = program.source(BYTES).sink();
        let ours = traffic::start(client, &program, receiving(BYTES)).expect("a connection");
        let (socket, _) = listener.accept().expect("a connection");
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| kernel_writes(&socket, BYTES));
            let read = kernel_reads(&socket).expect("the pattern");
            assert_eq!(read, BYTES, "{family:?}");
            writer.join().expect("no panic").expect("written");
        });
        let ours = report(ours);
        assert!(ours.refused.is_empty(), "{family:?}: {:?}", ours.refused);
        assert_eq!((ours.sent, ours.received), (BYTES, BYTES), "{family:?}");
    }
}

#[test]
fn a_listener_serves_connections_of_the_kernel() {
    let bed = test_bed();
    let (client, server) = (bed.world.client(), bed.world.server());
    for family in [Family::V4, Family::V6] {
        let (local, _) = both(&bed, family, 7002);
        let program = DirectTcp::listen(local, bed.netnice.runtime()).echo();
        let ours = traffic::start(client, &program, at_once()).expect("a listener");
        let one = |bytes: u64| -> Result<()> {
            let connect = || Ok(TcpStream::connect_timeout(&local, EVENT_TIMEOUT)?);
            let socket = server.ns.enter(connect).context("cannot connect")?;
            std::thread::scope(|scope| {
                let writer = scope.spawn(|| kernel_writes(&socket, bytes));
                let read = kernel_reads(&socket)?;
                ensure!(read == bytes, "{read} bytes of {bytes} came back");
                writer.join().expect("no panic")
            })
        };
        one(1).expect("a byte comes back");
        one(3_000_000).expect("the pattern comes back");
        std::thread::scope(|scope| {
            let all: Vec<_> = (0..20).map(|_| scope.spawn(|| one(200_000))).collect();
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
