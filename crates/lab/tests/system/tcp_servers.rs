//! Tests a TCP server on the direct path with many connections: what an idle one costs, that
//! nothing is left of those that are over, how many can be served in a second, and what a flood of
//! SYNs changes. The clients are sockets of the kernel at the other end of the cable.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use netnice_lab::experiment::bench::at;
use netnice_lab::process::{self, EVENT_TIMEOUT, Proc};
use netnice_lab::testbed::{TestBed, await_some};
use netnice_lab::traffic::connections::{Opened, ServerStats, resident};
use netnice_lab::traffic::{self, DirectTcp, RunOptions};
use netnice_lab::world::{Family, Host};

/// A test bed with a managed link at the client's host, where the server runs.
pub(crate) fn bed() -> Result<TestBed> {
    let bed = TestBed::new()?;
    let device = &bed.world.client().port().device;
    bed.run_ok(&format!("link {device} --rate 1gbit"));
    Ok(bed)
}

/// A process of `netnice-lab traffic` with these words.
pub(crate) fn start(host: &Host, words: &[&str]) -> Result<Proc> {
    let mut command = host.ns.command(process::binary("netnice-lab")?);
    command.arg("traffic").args(words);
    Proc::start(command)
}

/// A server of many connections, on the host of the driver.
pub(crate) struct Server {
    pub(crate) at: SocketAddr,
    pub(crate) proc: Proc,
}

impl Server {
    pub(crate) fn start(bed: &TestBed, port: u16, more: &[&str]) -> Result<Server> {
        let at = at(bed.world.client(), Family::V4, port);
        let (listen, runtime) = (at.to_string(), bed.netnice.runtime().display().to_string());
        let mut words = vec!["serve-connections", "--listen", &listen];
        words.extend(["--runtime-dir", &runtime]);
        words.extend(more);
        let mut proc = start(bed.world.client(), &words)?;
        proc.next_json("ready", EVENT_TIMEOUT)?;
        Ok(Server { at, proc })
    }

    fn command(&mut self, command: &str) -> Result<ServerStats> {
        self.proc.write_line(command)?;
        let stats = self.proc.next_json("stats", EVENT_TIMEOUT)?;
        Ok(serde_json::from_value(stats["stats"].clone())?)
    }

    pub(crate) fn stats(&mut self) -> Result<ServerStats> {
        self.command("stats")
    }

    /// The statistics once no connection is left, and nothing in TIME_WAIT.
    fn at_rest(&mut self) -> Result<ServerStats> {
        let mut last = None;
        let rest = await_some("a server without connections", || {
            let stats = self.stats()?;
            last = stats.usage;
            Ok((stats.usage.context("direct")? == (0, 0, 0)).then_some(stats))
        });
        rest.with_context(|| format!("connections, in TIME_WAIT, buffers in use: {last:?}"))
    }
}

/// Starts a client that opens `count` connections to `to`.
pub(crate) fn opener(bed: &TestBed, to: SocketAddr, count: u64, more: &[&str]) -> Result<Proc> {
    let (to, count) = (to.to_string(), count.to_string());
    let mut words = vec!["open-connections", "--connect", &to, "--count", &count];
    words.extend(more);
    start(bed.world.server(), &words)
}

pub(crate) fn opened(client: &mut Proc, within: Duration) -> Result<Opened> {
    let opened = client.next_json("opened", within);
    let opened = opened.with_context(|| client.take_stderr())?;
    Ok(serde_json::from_value(opened["opened"].clone())?)
}

/// The client opens connections, and none fails.
fn open_all(bed: &TestBed, to: SocketAddr, count: u64) -> Result<Opened> {
    let mut client = opener(bed, to, count, &[])?;
    let all = opened(&mut client, Duration::from_secs(300))?;
    ensure!(all.opened == count && all.failed.is_empty(), "{all:?}");
    Ok(all)
}

fn driver_time(bed: &TestBed) -> Result<u64> {
    let driver = bed.world.client().ns.driver().context("no driver")?;
    processor_time(driver)
}

/// Processor time of a process in ns: that of its threads, by the scheduler.
fn processor_time(pid: u32) -> Result<u64> {
    let mut time = 0;
    for thread in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        let text = std::fs::read_to_string(thread?.path().join("schedstat"))?;
        let first = text.split(' ').next().context("an empty schedstat")?;
        time += first.parse::<u64>()?;
    }
    Ok(time)
}

/// What 10,000 idle connections cost a server, besides buffers in use: memory in bytes each, and
/// the shares of a processor that the program and the driver take.
fn hold_idle(idle: Duration) -> Result<(f64, f64, f64)> {
    let bed = bed()?;
    // Some connections are closed by both ends at once, and enter TIME_WAIT here.
    let mut server = Server::start(&bed, 7101, &["--hold", "--time-wait-ms", "200"])?;
    // What the first connections need, all of them need.
    let mut first = opener(&bed, server.at, 16, &["--hold", "--threads", "1"])?;
    opened(&mut first, EVENT_TIMEOUT)?;
    let before = server.stats()?;
    let mut client = opener(&bed, server.at, CONNECTIONS, &["--hold"])?;
    let all = opened(&mut client, Duration::from_secs(120))?;
    ensure!(all.opened == CONNECTIONS, "{all:?}");
    let held = await_some("10,000 accepted connections", || {
        let stats = server.stats()?;
        Ok((stats.accepted >= CONNECTIONS + 16).then_some(stats))
    })?;
    let each = (held.resident as f64 - before.resident as f64) / CONNECTIONS as f64;
    ensure!(
        held.descriptors <= before.descriptors,
        "{held:?}, {before:?}"
    );
    let (pid, began) = (server.proc.pid(), Instant::now());
    let times = (processor_time(pid)?, driver_time(&bed)?);
    std::thread::sleep(idle);
    let passed = began.elapsed().as_nanos() as f64;
    let share = |before: u64, after: u64| (after - before) as f64 / passed;
    let program = share(times.0, processor_time(pid)?);
    let driver = share(times.1, driver_time(&bed)?);
    println!(
        "{CONNECTIONS} idle connections: {each:.0} bytes each, {:.2} % of a processor in the \
         program, {:.2} % in the driver; opened in {:.2} s",
        program * 100.0,
        driver * 100.0,
        all.seconds
    );
    // The clients close, then the server does.
    drop((first, client));
    server.command("release")?;
    let stats = server.at_rest()?;
    ensure!(stats.descriptors <= before.descriptors, "{stats:?}");
    Ok((each, program, driver))
}

#[test]
fn an_idle_connection_takes_two_kibibytes() -> Result<()> {
    let (each, ..) = hold_idle(Duration::from_secs(1))?;
    ensure!(each <= 2048.0, "{each} bytes");
    Ok(())
}

#[test]
#[ignore = "judges one percent of a processor, on a quiet machine"]
fn idle_connections_take_no_processor_time() -> Result<()> {
    let (_, program, driver) = hold_idle(Duration::from_secs(10))?;
    ensure!(program < 0.01 && driver < 0.01, "{program}, {driver}");
    Ok(())
}

/// Opens and closes connections in two halves. Nothing is left of them, and the second half needs
/// no memory that the first did not.
fn leave_nothing(count: u64) -> Result<()> {
    let bed = bed()?;
    let mut server = Server::start(&bed, 7102, &["--time-wait-ms", "200"])?;
    let at = server.at;
    open_all(&bed, at, 200)?;
    let before = server.at_rest()?;
    let all = open_all(&bed, at, count / 2)?;
    let middle = server.at_rest()?;
    open_all(&bed, at, count / 2)?;
    let after = server.at_rest()?;
    println!(
        "{} connections per second; resident {} KiB, {} KiB after half, {} KiB after {count}",
        (all.opened as f64 / all.seconds) as u64,
        before.resident >> 10,
        middle.resident >> 10,
        after.resident >> 10
    );
    ensure!(after.failed == 0, "{after:?}");
    ensure!(after.accepted == count + 200, "{after:?}");
    ensure!(after.descriptors == before.descriptors, "{after:?}");
    // The most connections that were open or in TIME_WAIT at the same time need some memory.
    let grown = after.resident.saturating_sub(middle.resident);
    ensure!(
        grown <= 4 << 20,
        "{grown} bytes more: {middle:?}, {after:?}"
    );
    // The port is free for the next server at once.
    drop(server);
    let again = Server::start(&bed, 7102, &[])?;
    open_all(&bed, again.at, 10)?;
    Ok(())
}

#[test]
fn nothing_is_left_of_connections_that_are_over() -> Result<()> {
    leave_nothing(6000)
}

#[test]
#[ignore = "100,000 connections"]
fn nothing_is_left_of_a_hundred_thousand_connections() -> Result<()> {
    leave_nothing(100_000)
}

/// Connections accepted, served and closed in a second, beside a server on the kernel's TCP.
#[test]
#[ignore = "judges a rate, on a quiet machine"]
fn connections_per_second_beside_the_kernels() -> Result<()> {
    let bed = bed()?;
    let mut direct = Server::start(&bed, 7103, &[])?;
    let mut kernel = Server::start(&bed, 7104, &["--kernel"])?;
    let mut rates = [Vec::new(), Vec::new()];
    for _ in 0..5 {
        for (rates, server) in rates.iter_mut().zip([&mut direct, &mut kernel]) {
            let count = 20_000;
            let (pid, at) = (server.proc.pid(), server.at);
            let times = (processor_time(pid)?, driver_time(&bed)?);
            let all = open_all(&bed, at, count)?;
            let each = |before: u64, after: u64| (after - before) as f64 / count as f64 / 1e3;
            println!(
                "{at}: {:.0} per second, {} slow; {:.1} us of the program, {:.1} us of the driver each",
                all.opened as f64 / all.seconds,
                all.slow,
                each(times.0, processor_time(pid)?),
                each(times.1, driver_time(&bed)?)
            );
            // A second is the kernel's time to send a SYN again: an answer was lost.
            ensure!(all.slow == 0, "{all:?}");
            rates.push(all.opened as f64 / all.seconds);
        }
    }
    let [direct, kernel] = rates.map(|rates| netnice_lab::stats::median(&rates));
    println!("medians: {direct:.0} per second, the kernel's server {kernel:.0}");
    ensure!(
        direct >= 20_000.0 || direct >= kernel / 2.0,
        "{direct}, {kernel}"
    );
    Ok(())
}

/// A connection on which the peer's socket writes and reads back as much as it can, while
/// `going`. Counts the bytes that came back.
fn echo_all(stream: &TcpStream, going: &AtomicBool, back: &AtomicU64) -> Result<()> {
    stream.set_read_timeout(Some(EVENT_TIMEOUT))?;
    stream.set_write_timeout(Some(EVENT_TIMEOUT))?;
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let block = [7; 16 << 10];
            while going.load(Relaxed) {
                { stream }.write_all(&block)?;
            }
            stream.shutdown(std::net::Shutdown::Write)
        });
        let mut block = [0; 64 << 10];
        loop {
            match { stream }.read(&mut block)? {
                0 => break,
                read => back.fetch_add(read as u64, Relaxed),
            };
        }
        writer.join().expect("no panic")?;
        Ok(())
    })
}

/// What happens during a flood.
#[derive(Debug)]
struct Flooded {
    /// Bytes per second that came back on an established connection, before and during the flood.
    rates: (f64, f64),
    /// How long each honest connection took to open.
    opened: Vec<Duration>,
    /// Those that failed.
    failed: Vec<String>,
    /// Why the established connection failed.
    established: Option<String>,
    /// Forged SYNs.
    sent: u64,
    /// Resident memory of the listener's process before and after, in bytes.
    resident: (u64, u64),
}

fn mac(host: &Host) -> Result<String> {
    let path = format!("/sys/class/net/{}/address", host.port().device);
    let text = process::run(host.ns.command("cat").arg(path))?;
    Ok(text.trim().replace(':', ""))
}

/// A listener echoes on an established connection, at the full rate if it is `loaded`, while SYNs
/// from forged addresses come as fast as the kernel sends them, and honest clients open a
/// connection every 10 ms.
fn flood(lasts: Duration, loaded: bool) -> Result<Flooded> {
    let bed = bed()?;
    let (ours, theirs) = (bed.world.client(), bed.world.server());
    let local = at(ours, Family::V4, 7105);
    let program = DirectTcp::listen(local, bed.netnice.runtime()).echo();
    let listener = traffic::start(ours, &program, RunOptions::at_once())?;
    let connect = || {
        let connect = || Ok(TcpStream::connect_timeout(&local, EVENT_TIMEOUT)?);
        theirs.ns.enter(connect)
    };
    let established = connect()?;
    let (going, back) = (AtomicBool::new(loaded), AtomicU64::new(0));
    let rate = |during: Duration| {
        let (began, before) = (Instant::now(), back.load(Relaxed));
        std::thread::sleep(during);
        (back.load(Relaxed) - before) as f64 / began.elapsed().as_secs_f64()
    };
    std::thread::scope(|scope| {
        let echo = loaded.then(|| scope.spawn(|| echo_all(&established, &going, &back)));
        // Slow start is over.
        std::thread::sleep(Duration::from_millis(500));
        let before = rate(lasts.min(Duration::from_secs(10)));
        let resident_before = resident(listener.pid())?;
        let (to, device) = (local.to_string(), &theirs.port().device);
        let (from_mac, to_mac) = (mac(theirs)?, mac(ours)?);
        let words = [
            "syn-flood",
            "--to",
            &to,
            "--device",
            device,
            "--from-mac",
            &from_mac,
            "--to-mac",
            &to_mac,
        ];
        let mut sender = start(theirs, &words)?;
        sender.next_json("ready", EVENT_TIMEOUT)?;
        let honest = scope.spawn(|| honest_clients(theirs, local, lasts));
        let during = rate(lasts);
        let (opened, failed) = honest.join().expect("no panic")?;
        let mut sent = 0;
        while let Ok(counted) = sender.next_json("sent", Duration::from_millis(1)) {
            sent = counted["sent"].as_u64().unwrap_or(0);
        }
        drop(sender);
        let resident_after = resident(listener.pid())?;
        going.store(false, Relaxed);
        let established = match echo {
            Some(echo) => echo.join().expect("no panic"),
            None => echo_all(&established, &going, &back),
        };
        Ok(Flooded {
            rates: (before, during),
            opened,
            failed,
            established: established.err().map(|error| format!("{error:#}")),
            sent,
            resident: (resident_before, resident_after),
        })
    })
}

/// Opens a connection every 10 ms, has a byte echoed, and closes it.
fn honest_clients(
    host: &Host,
    to: SocketAddr,
    lasts: Duration,
) -> Result<(Vec<Duration>, Vec<String>)> {
    let until = Instant::now() + lasts;
    let one = || -> Result<Duration> {
        let began = Instant::now();
        let mut stream = TcpStream::connect_timeout(&to, EVENT_TIMEOUT).context("connect")?;
        let took = began.elapsed();
        stream.set_read_timeout(Some(EVENT_TIMEOUT))?;
        stream.write_all(&[9])?;
        stream.read_exact(&mut [0]).context("the byte")?;
        Ok(took)
    };
    let mut opened = Vec::new();
    let mut failed = Vec::new();
    let handle = host.ns.handle();
    std::thread::scope(|scope| {
        let mut all = Vec::new();
        while Instant::now() < until {
            let handle = handle.clone();
            all.push(scope.spawn(move || {
                handle.enter_thread()?;
                one()
            }));
            std::thread::sleep(Duration::from_millis(10));
        }
        for result in all.into_iter().map(|one| one.join().expect("no panic")) {
            match result {
                Ok(took) => opened.push(took),
                Err(error) => failed.push(format!("{error:#}")),
            }
        }
    });
    Ok((opened, failed))
}

#[test]
fn honest_clients_get_in_during_a_flood_of_syns() -> Result<()> {
    let flooded = flood(Duration::from_secs(3), false)?;
    let slowest = flooded
        .opened
        .iter()
        .max()
        .context("no honest connection was opened")?;
    println!(
        "{} forged SYNs, {} honest connections, the slowest in {slowest:?}; resident {:?}",
        flooded.sent,
        flooded.opened.len(),
        flooded.resident
    );
    ensure!(flooded.failed.is_empty(), "{:?}", flooded.failed);
    ensure!(flooded.established.is_none(), "{:?}", flooded.established);
    let grown = flooded.resident.1.saturating_sub(flooded.resident.0);
    ensure!(grown <= 8 << 20, "{grown} bytes more");
    Ok(())
}

#[test]
#[ignore = "judges rates, on a quiet machine"]
fn ten_seconds_of_syns_disturb_nobody() -> Result<()> {
    disturb_nobody(Duration::from_secs(10))
}

#[test]
#[ignore = "a minute of flood, judged on a quiet machine"]
fn a_minute_of_syns_disturbs_nobody() -> Result<()> {
    disturb_nobody(Duration::from_secs(60))
}

/// A flood of this length changes neither the rate of an established connection nor the time in
/// which honest clients get in.
fn disturb_nobody(lasts: Duration) -> Result<()> {
    let flooded = flood(lasts, true)?;
    let quick = flooded.opened.iter();
    let quick = quick
        .filter(|took| **took <= Duration::from_secs(4))
        .count();
    let all = flooded.opened.len() + flooded.failed.len();
    let (before, during) = flooded.rates;
    let share = quick as f64 / all as f64;
    println!(
        "{} forged SYNs; {before:.3e} byte/s before, {during:.3e} during; {share:.4} of {all} in \
         4 s; {} failed: {:?}; resident {:?}",
        flooded.sent,
        flooded.failed.len(),
        flooded.failed.first(),
        flooded.resident
    );
    ensure!(flooded.established.is_none(), "{:?}", flooded.established);
    ensure!(during >= 0.95 * before, "{during}, {before}");
    ensure!(share >= 0.99, "{share}");
    let grown = flooded.resident.1.saturating_sub(flooded.resident.0);
    ensure!(grown <= 8 << 20, "{grown} bytes more");
    Ok(())
}

/// Connections that a server holds.
const CONNECTIONS: u64 = 10_000;
