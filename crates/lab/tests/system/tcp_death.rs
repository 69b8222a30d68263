//! Tests programs with connections of TCP on the direct path that end at any moment: their peers
//! get a reset, their ports can be had again at once, and nothing of them is left. The peers are
//! sockets of the kernel at the other end of the cable.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use netnice_lab::experiment::bench::at;
use netnice_lab::process::EVENT_TIMEOUT;
use netnice_lab::storm::seed;
use netnice_lab::testbed::{TestBed, await_some};
use netnice_lab::traffic::connections::resident;
use netnice_lab::traffic::{self, DirectTcp};
use netnice_lab::world::Family;
use netnice_sim::Random;

use crate::tcp_flows::rig::Capture;
use crate::tcp_servers::{Server, bed, opened, opener, start};

/// The connections in `state` that the server's kernel has with a port.
fn connections_with(bed: &TestBed, port: u16, state: &str) -> Result<usize> {
    let read = || Ok(std::fs::read_to_string("/proc/thread-self/net/tcp")?);
    let text = bed.world.server().ns.enter(read)?;
    let end = format!(":{port:04X}");
    let is_one = |line: &&str| {
        // Number, local end, remote end, state.
        let mut words = line.split_ascii_whitespace().skip(2);
        words.next().is_some_and(|remote| remote.ends_with(&end)) && words.next() == Some(state)
    };
    Ok(text.lines().filter(is_one).count())
}

/// Waits until the daemon has no flow.
fn await_no_flow(bed: &TestBed) -> Result<()> {
    await_some("no flow", || {
        let shown = bed.netnice.show()?;
        let none = shown["direct"].as_array().is_none_or(Vec::is_empty);
        Ok(none.then_some(()))
    })
}

/// States of `/proc/net/tcp`.
const ESTABLISHED: &str = "01";
const CLOSE_WAIT: &str = "08";
const LAST_ACK: &str = "09";

/// Kills a server with so many idle connections. Returns the time until all peers had a reset.
fn kill_with_idle_peers(count: u64, within: Duration) -> Result<Duration> {
    const PORT: u16 = 7301;
    let bed = bed()?;
    let mut server = Server::start(&bed, PORT, &["--hold"])?;
    let mut client = opener(&bed, server.at, count, &["--hold"])?;
    let all = opened(&mut client, Duration::from_secs(120))?;
    ensure!(all.opened == count, "{all:?}");
    await_some("accepted connections", || {
        Ok((server.stats()?.accepted >= count).then_some(()))
    })?;
    let established = || connections_with(&bed, PORT, ESTABLISHED);
    ensure!(established()? as u64 == count, "{}", established()?);
    server.proc.kill();
    let killed = Instant::now();
    loop {
        let left = established()?;
        let passed = killed.elapsed();
        if left == 0 {
            println!("{count} peers had their resets within {passed:?}");
            // The port can be had again at once.
            Server::start(&bed, PORT, &[])?;
            return Ok(passed);
        }
        ensure!(
            passed < within,
            "{left} of {count} connections are open after {passed:?}"
        );
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn idle_peers_of_a_killed_server_get_a_reset() -> Result<()> {
    // 1 s is required; the machine may be busy.
    kill_with_idle_peers(1000, EVENT_TIMEOUT).map(drop)
}

#[test]
#[ignore = "judges a second, on a quiet machine"]
fn ten_thousand_idle_peers_of_a_killed_server_get_a_reset_within_a_second() -> Result<()> {
    let took = kill_with_idle_peers(10_000, EVENT_TIMEOUT)?;
    ensure!(took <= Duration::from_secs(1), "{took:?}");
    Ok(())
}

/// A connection that both ends have closed is over: nothing is sent for it when its program ends,
/// while it waits for late segments.
#[test]
fn a_program_that_ends_in_time_wait_sends_no_reset() -> Result<()> {
    const PORT: u16 = 7302;
    let bed = bed()?;
    let world = &bed.world;
    let to = at(world.server(), Family::V4, PORT);
    let listener = world.server().ns.enter(|| Ok(TcpListener::bind(to)?))?;
    let capture = Capture::start(world.server(), world.folder(), PORT)?;
    let program = DirectTcp::connect(to, bed.netnice.runtime()).source(100_000);
    let program = traffic::start_now(world.client(), &program)?;
    let (mut peer, from) = listener.accept()?;
    peer.set_read_timeout(Some(EVENT_TIMEOUT))?;
    let mut read = Vec::new();
    peer.read_to_end(&mut read)?;
    ensure!(read.len() == 100_000, "{} bytes", read.len());
    // Its FIN follows that of the program, which acknowledges it.
    drop(peer);
    await_some("the acknowledgement of the peer's FIN", || {
        let open = [ESTABLISHED, CLOSE_WAIT, LAST_ACK]
            .map(|state| connections_with(&bed, from.port(), state));
        let open: Vec<usize> = open.into_iter().collect::<Result<_>>()?;
        Ok((open.iter().sum::<usize>() == 0).then_some(()))
    })?;
    drop(program);
    await_no_flow(&bed)?;
    // A reset would leave at once; the segments of another connection show that none has.
    let program = DirectTcp::connect(to, bed.netnice.runtime()).source(100_000);
    let _program = traffic::start_now(world.client(), &program)?;
    let (mut peer, _) = listener.accept()?;
    peer.set_read_timeout(Some(EVENT_TIMEOUT))?;
    peer.read_to_end(&mut Vec::new())?;
    let resets = capture.end_counting_resets(world.server())?;
    ensure!(resets == 0, "{resets} resets");
    Ok(())
}

/// How a program ends.
#[derive(Clone, Copy, Debug)]
enum End {
    /// SIGKILL.
    Kill,
    /// exit(3), while its other threads run.
    Exit,
    /// It executes another program.
    Exec,
}

/// What a process has: memory in bytes, descriptors, and mapped memory files of programs.
#[derive(Debug)]
struct Held {
    resident: u64,
    descriptors: usize,
    files: usize,
}

impl Held {
    fn by(pid: u32) -> Result<Held> {
        let maps = std::fs::read_to_string(format!("/proc/{pid}/maps"))?;
        Ok(Held {
            resident: resident(pid)?,
            descriptors: std::fs::read_dir(format!("/proc/{pid}/fd"))?.count(),
            files: maps.matches("netnice-ring").count(),
        })
    }
}

/// A bed whose programs end at random moments.
struct EndBed {
    bed: TestBed,
    random: Random,
    /// Where the kernel of the server receives what clients send.
    sink: SocketAddr,
}

impl EndBed {
    fn new() -> Result<EndBed> {
        let bed = bed()?;
        let sink = at(bed.world.server(), Family::V4, 7311);
        let listener = bed
            .world
            .server()
            .ns
            .enter(|| Ok(TcpListener::bind(sink)?))?;
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let Ok(mut stream) = stream else { return };
                std::thread::spawn(move || std::io::copy(&mut stream, &mut std::io::sink()));
            }
        });
        Ok(EndBed {
            bed,
            random: Random::new(seed("ends of TCP programs")),
            sink,
        })
    }

    fn own(&self) -> SocketAddr {
        at(self.bed.world.client(), Family::V4, 7310)
    }

    /// Starts a server or a client, which ends at a random moment, perhaps before it has a flow.
    fn end_one(&mut self, is_server: bool) -> Result<()> {
        let latest = LATEST_MICROSECONDS[self.random.below(3) as usize];
        let moment = Duration::from_micros(self.random.below(latest));
        let end = match self.random.below(3) {
            0 => End::Kill,
            1 => End::Exit,
            _ => End::Exec,
        };
        let what = format!("{end:?} after {moment:?}, server: {is_server}");
        self.end_one_at(is_server, end, moment).context(what)
    }

    fn end_one_at(&mut self, is_server: bool, end: End, moment: Duration) -> Result<()> {
        let (own, sink) = (self.own().to_string(), self.sink.to_string());
        let runtime = self.bed.netnice.runtime().display().to_string();
        let after = moment.as_micros().to_string();
        let mut words = vec!["direct-tcp", "--runtime-dir", &runtime];
        match is_server {
            true => words.extend(["--listen", &own, "--echo"]),
            false => words.extend(["--connect", &sink, "--source"]),
        }
        match end {
            End::Kill => {}
            End::Exit => words.extend(["--exit-us", &after]),
            End::Exec => words.extend(["--exec-us", &after]),
        }
        let began = Instant::now();
        let mut program = start(self.bed.world.client(), &words)?;
        let mut peers = Vec::new();
        while is_server && began.elapsed() < moment && peers.len() < 3 {
            peers.extend(self.connect(Duration::from_millis(20)).ok());
        }
        match end {
            End::Kill => {
                std::thread::sleep(moment.saturating_sub(began.elapsed()));
                program.kill();
            }
            End::Exit => {
                program.wait(EVENT_TIMEOUT)?;
            }
            // The process goes on, and is no program of the direct path any more.
            End::Exec => {
                let name = format!("/proc/{}/comm", program.pid());
                await_some("the other program", || {
                    Ok((std::fs::read_to_string(&name)?.trim() == "sleep").then_some(()))
                })?;
            }
        }
        await_no_flow(&self.bed)?;
        peers.into_iter().try_for_each(is_over)
    }

    /// A connection of the server's kernel that has sent something.
    fn connect(&self, within: Duration) -> Result<TcpStream> {
        let own = self.own();
        let connect = || Ok(TcpStream::connect_timeout(&own, within)?);
        let mut stream = self.bed.world.server().ns.enter(connect)?;
        stream.set_read_timeout(Some(EVENT_TIMEOUT))?;
        stream.write_all(b"hello")?;
        Ok(stream)
    }

    /// A server gets the port at once, and its idle peer gets a reset when it is killed.
    fn serve_again(&self) -> Result<()> {
        let server = DirectTcp::listen(self.own(), self.bed.netnice.runtime()).echo();
        let server = traffic::start_now(self.bed.world.client(), &server)?;
        let mut peer = self.connect(EVENT_TIMEOUT)?;
        peer.read_exact(&mut [0; 5])?;
        drop(server);
        is_over(peer)?;
        await_no_flow(&self.bed)
    }

    fn held(&self) -> Result<[Held; 2]> {
        let driver = self.bed.world.client().ns.driver().context("no driver")?;
        let daemon = self.bed.netnice.pid().context("no daemon")?;
        Ok([Held::by(driver)?, Held::by(daemon)?])
    }
}

/// The connection ends, by a reset or by an end of the peer, within the time limit of its reads.
fn is_over(mut peer: TcpStream) -> Result<()> {
    let mut bytes = [0; 1000];
    loop {
        match peer.read(&mut bytes) {
            Ok(0) => return Ok(()),
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::ConnectionReset => return Ok(()),
            Err(error) => bail!("a peer has no end: {error}"),
        }
    }
}

/// Ends so many programs at random moments, and compares what is left with what was left of the
/// first ones.
fn end_at_any_moment(loops: u32) -> Result<()> {
    let mut bed = EndBed::new()?;
    let driver = |bed: &EndBed| bed.bed.world.client().ns.driver();
    let (mut before, mut first_driver) = (None, None);
    let began = Instant::now();
    for number in 0..WARM_UP + loops {
        if number == WARM_UP {
            (before, first_driver) = (Some(bed.held()?), driver(&bed));
        }
        let is_server = number % 2 == 0;
        bed.end_one(is_server)
            .with_context(|| format!("loop {number}"))?;
        bed.serve_again()
            .with_context(|| format!("loop {number}, the next server"))?;
        if number % 500 == 499 {
            println!("{number} loops in {:?}: {:?}", began.elapsed(), bed.held()?);
        }
    }
    let before = before.context("no loop")?;
    ensure!(driver(&bed) == first_driver, "the driver is another one");
    let mut after = bed.held()?;
    let settled = await_some("nothing is left", || {
        after = bed.held()?;
        let pairs = || before.iter().zip(&after);
        let settled = pairs()
            .all(|(before, after)| after.files == 0 && after.descriptors <= before.descriptors);
        Ok(settled.then_some(()))
    });
    settled.with_context(|| format!("{before:?} became {after:?}"))?;
    println!(
        "{loops} loops in {:?}: {before:?} became {after:?}",
        began.elapsed()
    );
    for (before, after) in before.iter().zip(&after) {
        let grown = after.resident.saturating_sub(before.resident);
        ensure!(grown <= MOST_GROWN, "{before:?} became {after:?}");
    }
    Ok(())
}

#[test]
fn nothing_is_left_of_programs_that_end_at_any_moment() -> Result<()> {
    end_at_any_moment(20)
}

#[test]
#[ignore = "takes hours"]
fn nothing_is_left_of_ten_thousand_programs_that_end_at_any_moment() -> Result<()> {
    end_at_any_moment(10_000)
}

/// Loops after which the driver and the daemon have what they keep.
const WARM_UP: u32 = 6;
/// On a machine that is not busy, a program has its flows some 20 ms after its start, and on a busy
/// one a second.
const LATEST_MICROSECONDS: [u64; 3] = [30_000, 200_000, 1_000_000];
/// What the driver and the daemon may have more in the end, in bytes.
const MOST_GROWN: u64 = 8 << 20;
