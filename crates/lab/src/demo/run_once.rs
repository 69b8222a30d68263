//! Runs the demo once ([`run`]): makes the world, starts the programs, executes the `netnice`
//! commands if the run is the one with netnice, and returns a [`RunRecord`]. Fails if the world
//! cannot be made, if a program cannot start, ends early or prints no report, or if a command
//! fails.

use std::time::Duration;

use anyhow::Result;

use super::{CABLE_RATE, RunRecord, VIDEO_RATE, time};
use crate::sys;
use crate::traffic::real_programs::{self, Pings};
use crate::traffic::{self, Running, Tcp};
use crate::world::{Cable, Family, Host, Netnice, World};

/// A `netnice` command that the run with netnice executed, and its output.
#[derive(Debug, Clone)]
pub struct ExecutedCommand {
    /// The command line, with the word `netnice`.
    pub line: String,
    /// The standard output, without the blanks and line breaks at its end.
    pub stdout: String,
}

/// The world, and the programs at both ends of its cable: of each pair the one on the server first.
struct Programs {
    world: World,
    video: [Running; 2],
    download: [Running; 2],
    backup: [Running; 2],
}

impl Programs {
    /// Starts and connects all programs; none sends yet.
    fn start() -> Result<Programs> {
        let world = World::switched(&[
            Cable::rated("client", CABLE_RATE, QUEUE_MS),
            Cable::free("server"),
        ])?;
        let (client, server) = (world.client(), world.server());
        let address = |port| std::net::SocketAddr::new(server.address(Family::V4), port);
        // The video's payload rate that gives the required wire rate.
        let payload = VIDEO_RATE * 1448 / 1514;
        let receive = |port, flows, source: Tcp| -> Result<[Running; 2]> {
            let far = traffic::start_waiting(server, &source)?;
            let near = traffic::start_waiting(client, &Tcp::connect(address(port), flows).sink())?;
            Ok([far, near])
        };
        let video = Tcp::listen(address(8001)).source().rate(payload);
        let video = receive(8001, 1, video)?;
        let download = receive(8002, 12, Tcp::listen(address(8002)).source())?;
        let far = traffic::start_waiting(server, &Tcp::listen(address(8003)).sink())?;
        let near = traffic::start_waiting(client, &Tcp::connect(address(8003), 4).source())?;
        Ok(Programs {
            world,
            video,
            download,
            backup: [far, near],
        })
    }

    fn server(&self) -> &Host {
        self.world.server()
    }

    /// The lines that the operator types in the second run.
    fn lines(&self) -> [String; 3] {
        [
            "link eth0 --rate 20mbit --down-rate 20mbit".into(),
            format!("set pid:{} --min-down 5mbit", self.video[1].pid()),
            format!("set pid:{} --up 4mbit", self.backup[1].pid()),
        ]
    }
}

/// Runs the demo once, with or without netnice. `say` gets the second of the run and the name of
/// its current step, once a second. Fails for the reasons that the module names.
pub fn run(with_netnice: bool, say: &impl Fn(f64, &str)) -> Result<RunRecord> {
    let mut programs = Programs::start()?;
    let netnice = match with_netnice {
        true => Some(programs.world.netnice("client")?),
        false => None,
    };
    let to = programs.server().address(Family::V4);
    let every = Duration::from_millis(50);
    let ping = real_programs::ping(programs.world.client(), to, every, 10_000)?;
    programs.video[1].go()?;
    let began = programs.video[0].go()?;
    let until = |second: f64, what: &str| {
        let elapsed = || (sys::now_ns() - began) as f64 / 1e9;
        while elapsed() < second {
            say(elapsed().floor(), what);
            let next = (elapsed().floor() + 1.0).min(second);
            std::thread::sleep(Duration::from_secs_f64((next - elapsed()).max(0.001)));
        }
    };
    until(time::LOAD_BEGINS, "a video plays");
    for ends in [&mut programs.download, &mut programs.backup] {
        ends[1].go()?;
        ends[0].go()?;
    }
    until(time::COMMANDS, "a backup and a download run");
    let commands = match &netnice {
        Some(netnice) => type_lines(netnice, &programs.lines())?,
        None => Vec::new(),
    };
    let what = if with_netnice {
        "netnice was typed"
    } else {
        "no netnice command is typed"
    };
    until(time::TO + 0.2, what);
    say(time::TO, "done");
    let Programs {
        video: [_far_video, video],
        download: [_far_download, download],
        backup: [backup, _near_backup],
        world: _world,
    } = programs;
    let pings: Pings = real_programs::finish_ping(ping);
    Ok(RunRecord {
        began,
        video: video.stop()?,
        download: download.stop()?,
        backup: backup.stop()?,
        pings,
        commands,
    })
}

fn type_lines(netnice: &Netnice, lines: &[String]) -> Result<Vec<ExecutedCommand>> {
    lines
        .iter()
        .map(|line| {
            let stdout = netnice.run_line(line)?;
            Ok(ExecutedCommand {
                line: stdout.command_line,
                stdout: stdout.stdout.trim_end().to_owned(),
            })
        })
        .collect()
}

/// Queue of the cable's slow end in ms, as in home routers.
pub const QUEUE_MS: u64 = 150;
