//! Tests the process `netnice-driver`, called as the daemon calls it. Programs attach, send,
//! receive, violate the protocol and are killed; the interface goes down and up; the process itself
//! is stopped or killed.

use std::io::Write;
use std::net::UdpSocket;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use crate::driver_client::{Caller, Driver, Program, close, flow, has_xdp, udp, wait_for};
use anyhow::{Context, Result, ensure};
use netnice_api::direct::Endpoint;
use netnice_api::driver::{
    DriverCall, DriverEvent, DriverReply, DriverRequest, FlowCounts, FramesDoc,
};
use netnice_api::encode_driver_call;
use netnice_lab::experiment::bench::at;
use netnice_lab::process::EVENT_TIMEOUT;
use netnice_lab::sys;
use netnice_lab::world::{self, Family, Pair, World};
use netnice_ring::record::Status;
use procfs_core::FromRead;
use procfs_core::process::StatM;

/// A world with a driver, for programs whose flows connect its two hosts.
struct Rig {
    world: World,
    driver: Driver,
    daemon: Caller,
    /// The kernel's socket on the server.
    peer: UdpSocket,
}

const PORT: u16 = 5000;
const PEER: u16 = 6000;
/// How long one of several attempts waits for a datagram.
const ATTEMPT: Duration = Duration::from_secs(5);

fn rig(options: &str) -> Result<Rig> {
    let world = World::pair(Pair::default())?;
    let driver = Driver::start(&world, options)?;
    let daemon = driver.call()?;
    let server = world.server();
    let peer = server
        .ns
        .enter(|| Ok(UdpSocket::bind(at(server, Family::V4, PEER))?))?;
    peer.set_read_timeout(Some(EVENT_TIMEOUT))?;
    Ok(Rig {
        world,
        driver,
        daemon,
        peer,
    })
}

impl Rig {
    fn program(&mut self) -> Result<Program> {
        Program::attach(&mut self.daemon, 4, 4 << 20)
    }

    /// The driver's interface.
    fn device(&self) -> String {
        self.world.client().port().device.clone()
    }

    /// Runs `ip ARGS` on the driver's host.
    fn client_ip(&self, args: &str) -> Result<()> {
        self.world.client().ns.ip(args).map(drop)
    }

    /// Opens a flow from `port` to the peer.
    fn open(&mut self, program: &mut Program, port: u16) -> Result<u32> {
        let asked = flow(&self.world, program, port, Some(PEER))?;
        program.open(&mut self.daemon, asked)
    }

    /// Discards all datagrams that have arrived at the peer.
    fn discard_received(&self) -> Result<()> {
        self.peer.set_nonblocking(true)?;
        while self.peer.recv(&mut [0; 2000]).is_ok() {}
        Ok(self.peer.set_nonblocking(false)?)
    }

    /// Sends a datagram to the peer, and one back.
    fn there_and_back(&mut self, program: &mut Program) -> Result<()> {
        self.try_there_and_back(program, EVENT_TIMEOUT)
    }

    /// Repeats [`Rig::there_and_back`] until it succeeds: packets that are on the way during a
    /// change may be lost.
    fn await_there_and_back(&mut self, program: &mut Program) -> Result<()> {
        self.peer.set_read_timeout(Some(ATTEMPT))?;
        wait_for("a datagram there and back", || {
            self.discard_received()?;
            while program.receive(Duration::from_millis(1)).is_ok() {}
            Ok(self.try_there_and_back(program, ATTEMPT).is_ok())
        })?;
        Ok(self.peer.set_read_timeout(Some(EVENT_TIMEOUT))?)
    }

    fn try_there_and_back(&mut self, program: &mut Program, within: Duration) -> Result<()> {
        let text = format!("{:?}", Instant::now());
        program.send(&udp(&self.world, PORT, PEER, text.as_bytes())?)?;
        let mut buffer = [0; 2000];
        let (length, from) = self.peer.recv_from(&mut buffer).context("at the peer")?;
        ensure!(&buffer[..length] == text.as_bytes());
        self.peer.send_to(text.as_bytes(), from)?;
        let got = program.receive(within)?;
        ensure!(got.ends_with(text.as_bytes()), "{got:?}");
        Ok(())
    }
}

/// Runs a driver from start to end in a mode of the link. Without a program it ends after
/// `--linger`, or with `stays` it runs until it is told to end.
fn start_to_end(mode: &str, stays: bool) -> Result<()> {
    // The time counts from the start: the first program must attach within it, also on a slow
    // machine.
    let lingers = if stays { "--stay" } else { "--linger 3s" };
    let mut rig = rig(&format!("{lingers} --mode {mode}"))?;
    ensure!(!has_xdp(&rig.world)?, "before the first flow");
    let mut program = rig.program()?;
    ensure!(!has_xdp(&rig.world)?, "a program without a flow");
    let number = rig.open(&mut program, PORT)?;
    ensure!(has_xdp(&rig.world)? == (mode != "fallback"), "with a flow");
    for _ in 0..20 {
        rig.there_and_back(&mut program)?;
    }
    // A packet that the template forbids is returned and not sent.
    program.send(&udp(&rig.world, PORT + 1, PEER, b"forged")?)?;
    ensure!(program.sent(EVENT_TIMEOUT)? == Status::FORBIDDEN);
    let census = rig.daemon.census()?;
    ensure!(census.mode == mode, "{census:?}");
    ensure!(census.frames.is_none() == (mode == "fallback"));
    ensure!(census.programs.len() == 1 && census.flows.len() == 1);
    let counts = &census.flows[0].counts;
    ensure!((counts.sent, counts.forbidden) == (20, 1), "{counts:?}");
    ensure!(counts.delivered == 20, "{counts:?}");
    ensure!(counts.lateness.iter().sum::<u64>() == 20, "{counts:?}");
    let totals = rig.daemon.totals()?;
    ensure!((totals.sent, totals.delivered) == (20, 20), "{totals:?}");
    let closed = rig.daemon.ask(close(number))?;
    let DriverReply::Closed(last) = closed else {
        anyhow::bail!("{closed:?}")
    };
    ensure!(*last == *counts, "{last:?}");
    wait_for("XDP goes", || Ok(!has_xdp(&rig.world)?))?;
    // The program opens a flow again, at the same offset of the memory file.
    rig.open(&mut program, PORT)?;
    rig.there_and_back(&mut program)?;
    program.end(&mut rig.daemon)?;
    if stays {
        ensure!(rig.driver.is_running(), "it stays without a program");
        rig.daemon.done(DriverRequest::Stop)?;
    }
    wait_for("it ends", || Ok(!rig.driver.is_running()))?;
    ensure!(rig.driver.files().is_empty(), "{:?}", rig.driver.files());
    ensure!(!has_xdp(&rig.world)?);
    Ok(())
}

#[test]
fn a_driver_runs_while_programs_are_attached() {
    world::begin().expect("a clean machine");
    for (mode, stays) in [("native", false), ("generic", true), ("fallback", true)] {
        start_to_end(mode, stays).unwrap_or_else(|e| panic!("{mode}: {e:?}"));
    }
}

fn kill_each() -> Result<()> {
    let mut rig = rig("--stay")?;
    let mut good = rig.program()?;
    rig.open(&mut good, PORT)?;
    // Case: a program is killed.
    let mut killed = rig.program()?;
    let late = rig.open(&mut killed, PORT + 1)?;
    killed.kill();
    let event = rig.daemon.event(EVENT_TIMEOUT).context("killed")?;
    let program = killed.number;
    ensure!(event == DriverEvent::ProgramEnded { program }, "{event:?}");
    rig.there_and_back(&mut good)?;
    // Case: a program violates the protocol.
    let mut bad = rig.program()?;
    rig.open(&mut bad, PORT + 2)?;
    // Its flow has the slot of the killed program's flow, but not its number.
    let answer = rig.daemon.ask(close(late))?;
    ensure!(
        matches!(answer, DriverReply::Failed { .. }),
        "{late}: {answer:?}"
    );
    ensure!(bad.flow()?.is_open());
    bad.violate_a_rule()?;
    let event = rig
        .daemon
        .event(EVENT_TIMEOUT)
        .context("the event of a disconnected program")?;
    let DriverEvent::ProgramDisconnected { program, why } = &event else {
        anyhow::bail!("{event:?}")
    };
    ensure!(
        *program == bad.number && why.contains("submit ring"),
        "{event:?}"
    );
    ensure!(bad.attachment.ended().is_some(), "it is told too");
    rig.there_and_back(&mut good)?;
    ensure!(rig.daemon.census()?.flows.len() == 1);
    // Case: the daemon's connection ends; the next connection finds the same state.
    rig.daemon = rig.driver.call()?;
    ensure!(rig.daemon.census()?.flows.len() == 1);
    // Case: the driver is killed.
    rig.driver.kill();
    wait_for("XDP goes with it", || Ok(!has_xdp(&rig.world)?))?;
    // Another driver replaces it, and is told to end.
    rig.driver.restart()?;
    rig.daemon = rig.driver.call()?;
    let mut next = rig.program()?;
    rig.open(&mut next, PORT)?;
    rig.there_and_back(&mut next)?;
    let second = rig.driver.start_second()?;
    ensure!(second.contains("another netnice-driver"), "{second}");
    ensure!(rig.driver.terminate()?.success(), "SIGTERM");
    ensure!(rig.driver.files().is_empty(), "{:?}", rig.driver.files());
    ensure!(!has_xdp(&rig.world)?, "after SIGTERM");
    ensure!(!next.flow()?.is_open(), "the program sees it");
    Ok(())
}

#[test]
fn killed_programs_and_drivers_disturb_no_others() {
    world::begin().expect("a clean machine");
    kill_each().unwrap_or_else(|e| panic!("{e:?}"));
}

/// Changes the interface of a driver in one way after the other, and removes it in the end.
fn change_interface(mode: &str) -> Result<()> {
    let mut rig = rig(&format!("--stay --mode {mode}"))?;
    let mut program = rig.program()?;
    let number = rig.open(&mut program, PORT)?;
    rig.there_and_back(&mut program)?;
    while program.sent(Duration::from_millis(1)).is_ok() {}
    set_down_and_up(&rig, &mut program)?;
    change_next_hop(&mut rig, &mut program, number)?;
    shrink_mtu(&mut rig, &mut program)?;
    change_address(&mut rig, &mut program)?;
    let device = rig.device();
    rig.client_ip(&format!("link del {device}"))?;
    let event = rig.daemon.event(EVENT_TIMEOUT)?;
    ensure!(
        matches!(event, DriverEvent::InterfaceLost { .. }),
        "{event:?}"
    );
    wait_for("it ends", || Ok(!rig.driver.is_running()))?;
    ensure!(rig.driver.files().is_empty(), "{:?}", rig.driver.files());
    Ok(())
}

/// The status of a small packet that the program sends.
fn send_status(rig: &Rig, program: &mut Program) -> Result<Status> {
    program.send(&udp(&rig.world, PORT, PEER, b"x")?)?;
    program.sent(EVENT_TIMEOUT)
}

fn set_down_and_up(rig: &Rig, program: &mut Program) -> Result<()> {
    let device = rig.device();
    rig.client_ip(&format!("link set {device} down"))?;
    wait_for("packets come back", || {
        Ok(send_status(rig, program)? == Status::NO_LINK)
    })?;
    rig.client_ip(&format!("link set {device} up"))?;
    wait_for("packets leave", || {
        Ok(send_status(rig, program)? == Status::DONE)
    })
}

/// The flow has no next hop for a while, and then a route with a small MTU.
fn change_next_hop(rig: &mut Rig, program: &mut Program, number: u32) -> Result<()> {
    let readdress = |next_hop, mtu| DriverRequest::Readdress {
        flow: number,
        next_hop,
        mtu,
    };
    rig.daemon.done(readdress(None, 1500))?;
    ensure!(send_status(rig, program)? == Status::NO_LINK, "no next hop");
    let there = crate::driver_client::mac(rig.world.server())?;
    rig.daemon.done(readdress(Some(there), 1500))?;
    ensure!(send_status(rig, program)? == Status::DONE, "a next hop");
    rig.daemon.done(readdress(Some(there), 28))?;
    ensure!(
        send_status(rig, program)? == Status::TOO_LONG,
        "the route's MTU"
    );
    rig.daemon.done(readdress(Some(there), 1500))
}

/// The interface's MTU shrinks while the link carries packets at its full rate.
fn shrink_mtu(rig: &mut Rig, program: &mut Program) -> Result<()> {
    let device = rig.device();
    let long = udp(&rig.world, PORT, PEER, &[7; 1400])?;
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let sender = scope.spawn(|| program.flood(&long, &stop));
        std::thread::sleep(Duration::from_millis(100));
        let shrunk = rig.client_ip(&format!("link set {device} mtu 1000"));
        std::thread::sleep(Duration::from_millis(100));
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        sender
            .join()
            .map_err(|_| anyhow::anyhow!("it panicked"))??;
        shrunk
    })?;
    // Packets that were submitted before are returned first.
    while program.sent(Duration::from_millis(10)).is_ok() {}
    wait_for("long packets come back", || {
        program.send(&long)?;
        Ok(program.sent(EVENT_TIMEOUT)? == Status::TOO_LONG)
    })?;
    while program.sent(Duration::from_millis(1)).is_ok() {}
    rig.await_there_and_back(program)?;
    rig.client_ip(&format!("link set {device} mtu 1500"))
}

/// The interface gets another address, which packets have from then on.
fn change_address(rig: &mut Rig, program: &mut Program) -> Result<()> {
    let device = rig.device();
    rig.client_ip(&format!("link set {device} address 02:00:00:00:99:01"))?;
    rig.world.server().ns.ip("neigh flush all")?;
    while program.sent(Duration::from_millis(1)).is_ok() {}
    rig.await_there_and_back(program)
}

#[test]
fn a_driver_continues_through_changes_of_its_interface() {
    world::begin().expect("a clean machine");
    for mode in ["native", "generic", "fallback"] {
        change_interface(mode).unwrap_or_else(|e| panic!("{mode}: {e:?}"));
    }
}

fn send_hostile_messages() -> Result<()> {
    let mut rig = rig("--stay")?;
    let mut program = rig.program()?;
    rig.open(&mut program, PORT)?;
    send_invalid_requests(&mut rig, &program)?;
    send_invalid_bytes(&rig)?;
    leave_answers_unread(&mut rig, &mut program)?;
    open_many_connections(&mut rig, &mut program)?;
    rig.daemon.done(DriverRequest::Stop)?;
    ensure!(!has_xdp(&rig.world)?, "off before the answer");
    wait_for("it ends", || Ok(!rig.driver.is_running()))
}

/// Invalid requests are answered one by one, and the connection remains.
fn send_invalid_requests(rig: &mut Rig, program: &Program) -> Result<()> {
    let asked = flow(&rig.world, program, PORT, Some(PEER))?;
    let wrong = |change: &dyn Fn(&mut netnice_api::driver::DriverFlow)| {
        let mut asked = asked.clone();
        asked.endpoint = flow(&rig.world, program, PORT + 9, Some(PEER))?.endpoint;
        change(&mut asked);
        anyhow::Ok(DriverRequest::Open(Box::new(asked)))
    };
    let cases = [
        (DriverRequest::Open(Box::new(asked.clone())), "another flow"),
        (wrong(&|flow| flow.program = 77)?, "program 77"),
        (wrong(&|flow| flow.contract = "fast".into())?, "fast"),
        (
            wrong(&|flow| flow.contract = "slice 9ms/5ms".into())?,
            "slice",
        ),
        (wrong(&|flow| flow.shape.chunks = 0)?, "chunks"),
        (wrong(&|flow| flow.shape.chunks = 60_000)?, "bytes"),
        (wrong(&|flow| flow.mtu = 20)?, "frames of at most"),
        (
            wrong(&|flow| flow.receive_budget = Some(2_000_000))?,
            "2000000",
        ),
        (close(99), "flow 99"),
        (DriverRequest::Detach { program: 99 }, "program 99"),
        (
            DriverRequest::Wire {
                rate: 3,
                kernel_rate: 0,
                overhead: 0,
                horizon_ns: 0,
                ahead_ns: 20_000,
            },
            "3 bit/s",
        ),
        (DriverRequest::KernelPath { place: 1 }, "descriptor"),
        (
            DriverRequest::Attach {
                pid: 1,
                uid: 0,
                flows: 1,
                bytes: 4096,
                memory_limit: None,
                secret: None,
            },
            "pidfd",
        ),
    ];
    for (ask, said) in cases {
        let answer = rig.daemon.ask(ask.clone())?;
        let DriverReply::Failed { why } = &answer else {
            anyhow::bail!("{ask:?}: {answer:?}")
        };
        ensure!(why.contains(said), "{ask:?}: {why}");
    }
    Ok(())
}

/// Bytes that are no request end the connection after an error message.
fn send_invalid_bytes(rig: &Rig) -> Result<()> {
    let mut long = encode_driver_call(&DriverCall {
        id: 1,
        request: DriverRequest::Census,
    })?;
    long[0] = 0x7f;
    let garbage: [(&[u8], &str); 4] = [
        (b"\0\0\0\x05hello", "not understood"),
        (b"\0\0\0\x02{}", "version"),
        (b"\0\0\0\0", "empty"),
        (&long, "are allowed"),
    ];
    for (bytes, said) in garbage {
        let mut caller = rig.driver.call()?;
        caller.stream.write_all(bytes)?;
        let why = caller.closing_error()?;
        ensure!(why.contains(said), "{why}");
    }
    Ok(())
}

/// The driver reads no more from a connection whose peer does not read its answers.
fn leave_answers_unread(rig: &mut Rig, program: &mut Program) -> Result<()> {
    let mut connection = rig.driver.call()?;
    let within = Some(Duration::from_millis(500));
    connection.stream.set_write_timeout(within)?;
    let mut asked = Vec::new();
    while let Ok(id) = connection.send_request(DriverRequest::Census, None) {
        asked.push(id);
        ensure!(asked.len() < 20_000, "all is answered and kept");
    }
    rig.there_and_back(program)?;
    for id in asked {
        connection.await_answer(id)?;
    }
    Ok(())
}

/// Many connections that send half a message, or nothing, do not delay others.
fn open_many_connections(rig: &mut Rig, program: &mut Program) -> Result<()> {
    let mut callers = Vec::new();
    for _ in 0..40 {
        let Ok(mut caller) = rig.driver.call() else {
            break;
        };
        let _ = caller.stream.write_all(b"\0\0\0\x50{\"half");
        callers.push(caller);
    }
    rig.there_and_back(program)?;
    ensure!(rig.daemon.census()?.flows.len() == 1);
    drop(callers);
    wait_for("others can call again", || {
        Ok(rig.driver.call()?.census().is_ok())
    })?;
    rig.there_and_back(program)?;
    Ok(())
}

#[test]
fn hostile_messages_disturb_no_program() {
    world::begin().expect("a clean machine");
    send_hostile_messages().unwrap_or_else(|e| panic!("{e:?}"));
}

/// Number of descriptors and of resident pages of a process.
fn resources(pid: u32) -> Result<(usize, u64)> {
    let descriptors = std::fs::read_dir(format!("/proc/{pid}/fd"))?.count();
    let memory = StatM::from_file(format!("/proc/{pid}/statm"))?;
    Ok((descriptors, memory.resident))
}

/// The holders of the driver's frames. Fails unless each frame has a holder. Between two iterations
/// the driver itself holds none, and each received frame is back in the fill ring.
fn check_frames(rig: &mut Rig, filling: Option<u32>) -> Result<FramesDoc> {
    let census = rig.daemon.census()?;
    let frames = census.frames.context("frames that are shared")?;
    let FramesDoc { free, driver, .. } = frames;
    let held = free + driver + frames.filling + frames.sending;
    ensure!(held == frames.total && driver == 0, "{frames:?}");
    ensure!(
        filling.is_none_or(|filling| frames.filling == filling),
        "{filling:?}: {frames:?}"
    );
    for flow in &census.flows {
        // At most the packet that leaves next, which is in one chunk.
        ensure!(flow.held <= 1, "{flow:?}");
    }
    Ok(frames)
}

/// Number of programs after which the driver's own tables have their final size.
const WARM_UP_PROGRAMS: usize = 75;

fn end_abnormally(loops: usize, mode: &str) -> Result<()> {
    let mut rig = rig(&format!("--stay --mode {mode}"))?;
    let mut good = rig.program()?;
    rig.open(&mut good, PORT)?;
    let lent = check_frames(&mut rig, None)?;
    // With transparent huge pages the resident memory would grow when the kernel merges pages. From
    // Linux 6.18 on, they are off except where the driver requests them, and THP_enabled is 1.
    let read = |file: &str| std::fs::read_to_string(format!("/proc/{}/{file}", rig.driver.pid()));
    let (status, sums) = (read("status")?, read("smaps_rollup")?);
    let has_none = |sum: &str| sum.starts_with("AnonHugePages:") && sum.contains(" 0 kB");
    let is_off = status.contains("THP_enabled:\t0") || sums.lines().any(has_none);
    ensure!(is_off, "{status}{sums}");
    ensure!(lent.filling > 0 && lent.sending == 0, "{lent:?}");
    let asked = flow(&rig.world, &good, PORT + 1, Some(PEER))?;
    let mut before = None;
    for k in 0..loops {
        // By then one-time allocations are made and tables have grown.
        if k == (loops / 10).max(WARM_UP_PROGRAMS) {
            before = Some(resources(rig.driver.pid())?);
        }
        let mut program = rig.program()?;
        let mut asked = asked.clone();
        asked.program = program.number;
        program.open(&mut rig.daemon, asked)?;
        program.send(&udp(&rig.world, PORT + 1, PEER, b"last words")?)?;
        match k % 3 {
            0 => program.kill(),
            1 => program.violate_a_rule()?,
            _ => program.end(&mut rig.daemon)?,
        }
        if k % 3 < 2 {
            rig.daemon.event(EVENT_TIMEOUT)?;
        }
        check_frames(&mut rig, Some(lent.filling))?;
    }
    let before = before.context("a beginning")?;
    // The end of a program is reported before its memory is freed.
    let given_back = wait_for("as much is held as before", || {
        let after = resources(rig.driver.pid())?;
        Ok(before.0 == after.0 && after.1 <= before.1 + 64)
    });
    let after = resources(rig.driver.pid())?;
    println!("{loops} loops: descriptors and pages {before:?}, then {after:?}; {lent:?}");
    given_back?;
    rig.discard_received()?;
    rig.there_and_back(&mut good)?;
    wait_for("what was lent is back", || {
        Ok(check_frames(&mut rig, Some(lent.filling))? == lent)
    })?;
    let census = rig.daemon.census()?;
    ensure!(
        (census.programs.len(), census.flows.len()) == (1, 1),
        "{census:?}"
    );
    ensure!(
        census.discarded.iter().all(|(why, _)| why != "strange"),
        "{census:?}"
    );
    Ok(())
}

#[test]
#[ignore = "10,000 programs"]
fn ten_thousand_programs_that_end_abnormally_leave_nothing() {
    world::begin().expect("a clean machine");
    end_abnormally(10_000, "native").unwrap_or_else(|e| panic!("{e:?}"));
}

#[test]
fn programs_that_end_abnormally_leave_nothing() {
    world::begin().expect("a clean machine");
    for mode in ["native", "generic"] {
        end_abnormally(150, mode).unwrap_or_else(|e| panic!("{mode}: {e:?}"));
    }
}

/// The least power of two such that at least the share `part` (0 to 1) of a flow's packets was at
/// most that many µs late.
fn late_packets(counts: &FlowCounts, part: f64) -> u64 {
    let all: u64 = counts.lateness.iter().sum();
    let mut seen = 0;
    let place = counts.lateness.iter().position(|count| {
        seen += count;
        seen as f64 >= part * all as f64
    });
    1 << place.unwrap_or(0)
}

/// Opens `each` flows for each program, fifty requests at a time; returns flows per second.
fn open_all(rig: &mut Rig, all: &[Program], each: usize) -> Result<f64> {
    let template = flow(&rig.world, &all[0], PORT, Some(PEER))?;
    let begin = Instant::now();
    let mut calls = Vec::new();
    for (k, program) in all.iter().enumerate() {
        for flow in 0..each {
            let mut asked = template.clone();
            asked.program = program.number;
            let Endpoint::Udp { local, .. } = &mut asked.endpoint else {
                anyhow::bail!("UDP")
            };
            local.set_port(10_000 + (k * each + flow) as u16);
            let ask = DriverRequest::Open(Box::new(asked));
            calls.push(rig.daemon.send_request(ask, None)?);
            if calls.len() == 50 {
                for call in calls.drain(..) {
                    let answer = rig.daemon.await_answer(call)?;
                    let open = matches!(answer, DriverReply::Opened { .. });
                    ensure!(open, "{answer:?}");
                }
            }
        }
    }
    ensure!(calls.is_empty(), "whole fifties");
    Ok((all.len() * each) as f64 / begin.elapsed().as_secs_f64())
}

fn many_flows(programs: usize, each: usize) -> Result<()> {
    let mut rig = rig("--stay")?;
    // One paced program runs meanwhile.
    let mut paced = rig.program()?;
    let mut asked = flow(&rig.world, &paced, PORT, Some(PEER))?;
    asked.contract = "cell pcr=10mbit,cdvt=100us".to_owned();
    let number = paced.open(&mut rig.daemon, asked)?;
    let frame = udp(&rig.world, PORT, PEER, &[7; 1458])?;
    let (descriptors, pages) = resources(rig.driver.pid())?;
    let mut all = Vec::new();
    for _ in 0..programs {
        all.push(Program::attach(&mut rig.daemon, each as u32, 32 << 20)?);
    }
    let stop = AtomicBool::new(false);
    let rate = std::thread::scope(|scope| {
        let talker = scope.spawn(|| paced.flood(&frame, &stop));
        let rate = open_all(&mut rig, &all, each);
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        talker
            .join()
            .map_err(|_| anyhow::anyhow!("it panicked"))??;
        rate
    })?;
    let flows = programs * each;
    println!("{flows} flows, {rate:.0} a second");
    let (descriptors_now, pages_now) = resources(rig.driver.pid())?;
    let memory = (pages_now - pages) as f64 * 4096.0 / flows as f64;
    let more = (descriptors_now - descriptors) as f64 / programs as f64;
    println!("{memory:.0} bytes a flow, {more:.1} descriptors a program");
    let begin = Instant::now();
    let census = rig.daemon.census()?;
    println!("a census takes {:?}", begin.elapsed());
    ensure!(census.flows.len() == flows + 1);
    let of_it = census.flows.iter().find(|flow| flow.flow == number);
    let counts = &of_it.context("the paced one")?.counts;
    println!("meanwhile {counts:?}");
    println!(
        "late: half below {} µs, 99 % below {}, 99.9 % below {}",
        late_packets(counts, 0.5),
        late_packets(counts, 0.99),
        late_packets(counts, 0.999)
    );
    // Time for the last packets to leave.
    std::thread::sleep(Duration::from_secs(1));
    let before = sys::cpu_seconds(rig.driver.pid())?;
    std::thread::sleep(Duration::from_secs(10));
    let idle = (sys::cpu_seconds(rig.driver.pid())? - before) / 10.0;
    println!("idle: {:.2} % of a processor", idle * 100.0);
    ensure!(idle < 0.01, "{idle}");
    ensure!(rate >= 1000.0, "{rate:.0} flows a second");
    ensure!(more <= 6.0, "{more} descriptors a program");
    let begin = Instant::now();
    for program in all {
        program.end(&mut rig.daemon)?;
    }
    println!("{programs} programs end in {:?}", begin.elapsed());
    ensure!(rig.daemon.census()?.flows.len() == 1);
    Ok(())
}

#[test]
#[ignore = "ten thousand flows"]
fn ten_thousand_flows_open_in_ten_seconds_and_cost_nothing_idle() {
    world::begin().expect("a clean machine");
    many_flows(200, 50).unwrap_or_else(|e| panic!("{e:?}"));
}
