//! Tests changes of a link while a program has a flow on it and the kernel has a connection.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use netnice_lab::experiment::bench::at;
use netnice_lab::process::EVENT_TIMEOUT;
use netnice_lab::traffic::{self, Direct, Running};
use netnice_lab::world::{Family, World};
use serde_json::Value;

use super::{FAR, FlowBed, await_some};

/// A connection of the kernel with small requests and replies, as in a remote shell.
struct RemoteShell {
    answers: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<()>>>,
}

impl RemoteShell {
    fn start(world: &World) -> Result<RemoteShell> {
        let (client, server) = (world.client(), world.server());
        let there = at(server, Family::V4, 22);
        let listener = server.ns.enter(|| Ok(TcpListener::bind(there)?))?;
        let asker = client.ns.enter(|| Ok(TcpStream::connect(there)?))?;
        let (mut answerer, _) = listener.accept()?;
        std::thread::spawn(move || {
            let mut line = [0; 48];
            while answerer.read_exact(&mut line).is_ok() && answerer.write_all(&line).is_ok() {}
        });
        asker.set_nodelay(true)?;
        asker.set_read_timeout(Some(EVENT_TIMEOUT))?;
        let (answers, stop) = (Arc::<AtomicU64>::default(), Arc::<AtomicBool>::default());
        let (count, stopped) = (answers.clone(), stop.clone());
        let thread = std::thread::spawn(move || {
            let (mut asker, mut line) = (asker, [0; 48]);
            while !stopped.load(Ordering::Relaxed) {
                line[..8].copy_from_slice(&count.load(Ordering::Relaxed).to_be_bytes());
                asker.write_all(&line).context("asking")?;
                let asked = line;
                asker.read_exact(&mut line).context("no answer")?;
                ensure!(line == asked, "another answer");
                count.fetch_add(1, Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(5));
            }
            Ok(())
        });
        Ok(RemoteShell {
            answers,
            stop,
            thread: Some(thread),
        })
    }

    /// Waits for replies; TCP may back off for some time after the link was down.
    fn check_replies(&self, after: &str) -> Result<()> {
        let before = self.answers.load(Ordering::Relaxed);
        let what = format!("the kernel's connection after {after}");
        await_some(&what, || {
            let now = self.answers.load(Ordering::Relaxed);
            Ok((now > before + 3).then_some(()))
        })
    }

    fn end(mut self) -> Result<()> {
        self.stop.store(true, Ordering::Relaxed);
        let thread = self.thread.take().context("it ends once")?;
        thread.join().map_err(|_| anyhow!("the asker panicked"))?
    }
}

impl Drop for RemoteShell {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// Starts a program that sends to `to` on `link` without end.
fn source(flow_bed: &FlowBed, link: &str, to: SocketAddr) -> Result<Running> {
    let any = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
    let program = Direct::source(any, to).contract("up 1mbit").on(link);
    traffic::start_now(
        flow_bed.world.client(),
        &program.by(flow_bed.netnice.runtime()),
    )
}

/// The flow of a program in `show`.
fn flow_of(flow_bed: &FlowBed, program: &Running) -> Result<Option<Value>> {
    let flows = flow_bed.flows()?;
    Ok(flows.into_iter().find(|flow| flow["pid"] == program.pid()))
}

/// Waits until a new datagram arrives at this socket of the kernel.
fn check_arrival(there: &UdpSocket, what: &str) -> Result<()> {
    there.set_nonblocking(true)?;
    let come = || there.recv(&mut [0; 2000]).ok().map(drop);
    while come().is_some() {}
    await_some(what, || Ok(come()))
}

#[test]
fn a_flow_follows_its_link_and_the_kernels_connection_survives() -> Result<()> {
    let flow_bed = FlowBed::with_two_links()?;
    let (client, server) = (flow_bed.world.client(), flow_bed.world.server());
    let there = server.ns.enter(|| Ok(UdpSocket::bind(FAR)?))?;
    let shell = RemoteShell::start(&flow_bed.world)?;
    let mut program = source(&flow_bed, "eth0", FAR)?;
    check_arrival(&there, "the first link")?;
    shell.check_replies("a flow was opened beside it")?;

    flow_bed.route_over(1)?;
    await_some("the flow is on the other link", || {
        let flow = flow_of(&flow_bed, &program)?;
        Ok(flow.filter(|flow| flow["link"] == "eth1"))
    })?;
    check_arrival(&there, "the other link")?;
    // There is nowhere to go: that link is not managed.
    flow_bed.netnice.run_line("link eth0 --unmanage")?;
    flow_bed.route_over(0)?;
    let why = program.await_closed(EVENT_TIMEOUT)?;
    ensure!(why.contains("leads over eth0"), "where it leads: {why}");
    ensure!(flow_of(&flow_bed, &program)?.is_none(), "it is closed");
    drop(program);
    flow_bed.netnice.run_line("link eth0 --rate 100mbit")?;
    shell.check_replies("the route has moved")?;

    let near = at(server, Family::V4, 9);
    let there = server.ns.enter(|| Ok(UdpSocket::bind(near)?))?;
    let mut program = source(&flow_bed, "eth0", near)?;
    check_arrival(&there, "the first link again")?;
    client.ns.ip("link set eth0 down")?;
    client.ns.ip("link set eth0 up")?;
    check_arrival(&there, "the link after it was down")?;
    shell.check_replies("the link was down")?;

    let lock = flow_bed.netnice.runtime().join("drivers/eth0.lock");
    let driver = std::fs::read_to_string(&lock)?.trim().to_owned();
    let killed = Command::new("kill").args(["-KILL", &driver]).status()?;
    ensure!(killed.success(), "kill {driver}");
    await_some("the flow has ended with its driver", || {
        Ok(flow_of(&flow_bed, &program)?.is_none().then_some(()))
    })?;
    program.await_closed(EVENT_TIMEOUT)?;
    drop(program);
    shell.check_replies("the driver was killed")?;
    let _again = source(&flow_bed, "eth0", near)?;
    check_arrival(&there, "another driver")?;
    shell.check_replies("another driver has come")?;
    shell.end()
}
