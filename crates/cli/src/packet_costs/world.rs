//! The hosts between which a packet's cost is measured: this process's network namespace with a
//! netniced of its own, and another namespace that receives, with a cable between them.
//!
//! [`World`] ends its programs when it is dropped. Programs of util-linux and
//! iproute2 do what needs unsafe code. Fails if one of them is missing or fails, or if a program
//! does not answer in time.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use netnice_api::{Client, LinkChange, Request, Response, RuntimeDir};

use crate::error::CommandError;
use crate::start;

/// The hosts and their programs.
pub(super) struct World {
    /// Started in this order.
    programs: Vec<Running>,
    dir: RuntimeDir,
    /// The processor of everything but the receiver.
    sending: u32,
}

/// A program that is ended when it is dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // Fails only if it has ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A program that sends.
pub(super) struct Sender {
    running: Running,
}

/// What a sender has done so far.
pub(super) struct Count {
    /// Packets on the cable.
    pub packets: u64,
    /// Processor time of its threads.
    pub used_ns: u64,
}

impl World {
    /// Makes the hosts. The daemon gets this runtime folder.
    pub(super) fn new(dir: &RuntimeDir) -> Result<World, CommandError> {
        let mut world = World {
            programs: Vec::new(),
            dir: dir.clone(),
            sending: first_processor()?,
        };
        world.connect_hosts()?;
        world.start_daemon()?;
        let mut spinner = world.own(true, "spin");
        world.start(&mut spinner, false)?;
        Ok(world)
    }

    /// The runtime folder of the daemon.
    pub(super) fn dir(&self) -> &RuntimeDir {
        &self.dir
    }

    /// Starts a program that sends by a protocol as fast as its contract permits, and waits until
    /// it does.
    pub(super) fn sender(&self, protocol: &str, contract: &str) -> Result<Sender, CommandError> {
        let mut command = self.own(true, "send");
        command.args([protocol, &format!("{FAR_ADDRESS}:{PORT}"), contract]);
        command.arg("--runtime-dir").arg(self.dir.path());
        Ok(Sender {
            running: start_one(&mut command, true)?,
        })
    }

    /// A command of this program: one of its parts, on the sending processor or not.
    fn own(&self, sends: bool, part: &str) -> Command {
        let here = std::env::current_exe().unwrap_or_default();
        let mut command = match sends {
            true => on_processor(self.sending),
            false => bound_command("env"),
        };
        command.arg(here).args(["measure-costs", part]);
        command
    }

    fn start(&mut self, command: &mut Command, speaks: bool) -> Result<u32, CommandError> {
        let running = start_one(command, speaks)?;
        let pid = running.0.id();
        self.programs.push(running);
        Ok(pid)
    }

    /// Starts the receiver in a namespace of its own, and connects it.
    fn connect_hosts(&mut self) -> Result<(), CommandError> {
        let here = std::env::current_exe().unwrap_or_default();
        let mut receiver = bound_command("unshare");
        receiver.arg("--net").arg(here);
        receiver.args(["measure-costs", "receive"]);
        let pid = self.start(&mut receiver, true)?;
        let there = format!("nsenter --net=/proc/{pid}/ns/net");
        let others = format!("{:x}", !(1_u32 << self.sending.min(31)));
        // The other host's kernel works on the other processors, as another machine would.
        let script = format!(
            "set -e
             ip link add {NEAR} type veth peer name {FAR} netns {pid}
             ip address add {NEAR_ADDRESS}/24 dev {NEAR}
             ip link set {NEAR} up
             {there} ip address add {FAR_ADDRESS}/24 dev {FAR}
             {there} ip link set {FAR} up
             {there} unshare --mount sh -c 'mount -t sysfs none /sys &&
               echo {others} > /sys/class/net/{FAR}/queues/rx-0/rps_cpus' || true"
        );
        let output = Command::new("sh")
            .args(["-c", &script])
            .output()
            .map_err(|error| CommandError::io("sh", error))?;
        if !output.status.success() {
            let why = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            return Err(super::failed(&format!("cannot connect two hosts: {why}")));
        }
        Ok(())
    }

    /// Starts netniced on the sending processor, and lets it manage the cable.
    fn start_daemon(&mut self) -> Result<(), CommandError> {
        let here = std::env::current_exe().unwrap_or_default();
        let mut command = on_processor(self.sending);
        command.arg(start::daemon_beside(&here));
        command.arg("--runtime-dir").arg(self.dir.path());
        command
            .arg("--policy")
            .arg(self.dir.path().join("no-policy"));
        command.env(start::LOG, "error");
        self.start(&mut command, false)?;
        let until = Instant::now() + LONGEST_START;
        let mut client = loop {
            match Client::connect(&self.dir) {
                Ok(client) => break client,
                Err(error) if Instant::now() > until => return Err(error.into()),
                Err(_) => thread::sleep(Duration::from_millis(20)),
            }
        };
        let request = Request::Link(Box::new(LinkChange {
            iface: NEAR.to_owned(),
            rate: Some(RATE.to_owned()),
            ..LinkChange::default()
        }));
        let response = client.call(&request, None)?;
        if !matches!(response, Response::Done(_)) {
            crate::output::print_response(&response, false)?;
            return Err(super::failed("no link can be managed here"));
        }
        Ok(())
    }
}

impl Drop for World {
    fn drop(&mut self) {
        // The last one first. Senders have ended before, and the driver ends without programs.
        while self.programs.pop().is_some() {}
    }
}

impl Sender {
    /// Its process.
    pub(super) fn pid(&self) -> u32 {
        self.running.0.id()
    }

    /// What it has done so far.
    pub(super) fn count(&self) -> Result<Count, CommandError> {
        let threads = format!("/proc/{}/task", self.pid());
        let mut used_ns = 0;
        for thread in fs::read_dir(&threads).map_err(|error| io(&threads, error))? {
            let path = thread.map_err(|error| io(&threads, error))?.path();
            // A thread can have ended meanwhile.
            let text = fs::read_to_string(path.join("schedstat")).unwrap_or_default();
            let first = text.split_whitespace().next();
            used_ns += first.and_then(|used| used.parse().ok()).unwrap_or(0_u64);
        }
        // /proc/self is of the network namespace of this process; /sys may be of another one.
        let path = "/proc/self/net/dev";
        let text = fs::read_to_string(path).map_err(|error| io(path, error))?;
        let line = text.lines().find_map(|line| {
            let (name, counters) = line.split_once(':')?;
            (name.trim() == NEAR).then_some(counters)
        });
        // The tenth counter is of sent packets.
        let packets = line.and_then(|line| line.split_whitespace().nth(9)?.parse().ok());
        let missing = || super::failed(&format!("{NEAR} has no counters"));
        Ok(Count {
            packets: packets.ok_or_else(missing)?,
            used_ns,
        })
    }
}

/// A command that ends with this process.
pub(super) fn bound_command(program: &str) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", program]);
    command
}

/// The first processor that this process may run on.
fn first_processor() -> Result<u32, CommandError> {
    let allowed = rustix::thread::sched_getaffinity(None)
        .map_err(|error| CommandError::io("the allowed processors", error.into()))?;
    let found = (0..rustix::thread::CpuSet::MAX_CPU).find(|number| allowed.is_set(*number));
    Ok(found
        .and_then(|number| u32::try_from(number).ok())
        .unwrap_or(0))
}

fn on_processor(processor: u32) -> Command {
    let mut command = bound_command("taskset");
    command.args(["--cpu-list", &processor.to_string()]);
    command
}

/// Starts a program. If it `speaks`, waits for its first line.
fn start_one(command: &mut Command, speaks: bool) -> Result<Running, CommandError> {
    let out = match speaks {
        true => Stdio::piped(),
        false => Stdio::null(),
    };
    let child = command.stdin(Stdio::null()).stdout(out).spawn();
    let mut running = Running(child.map_err(|error| CommandError::io("setpriv", error))?);
    if let Some(out) = running.0.stdout.take() {
        let mut line = String::new();
        // The end of the output means that the program has ended; its standard error says why.
        BufReader::new(out)
            .read_line(&mut line)
            .map_err(|error| CommandError::io("a part of the measurement", error))?;
        if line.is_empty() {
            return Err(super::failed("a part of the measurement has ended"));
        }
    }
    Ok(running)
}

fn io(path: impl AsRef<std::path::Path>, error: std::io::Error) -> CommandError {
    CommandError::io(path.as_ref().display().to_string(), error)
}

const NEAR: &str = "near";
const FAR: &str = "far";
const NEAR_ADDRESS: &str = "10.77.0.1";
const FAR_ADDRESS: &str = "10.77.0.2";
/// The port of the receiver, of both protocols.
pub(super) const PORT: u16 = 7_000;
const RATE: &str = "1gbit";
const LONGEST_START: Duration = Duration::from_secs(20);
