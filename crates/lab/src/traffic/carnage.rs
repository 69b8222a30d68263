//! The program `netnice-lab traffic carnage` uses all processor time that it gets, with threads and
//! with child processes. It is the program of that name of the paper NTCP (section 4).
//!
//! The first thread is the process's main thread, so a carnage of one thread is a process of one
//! thread. Each child process has one thread. The program ends at the line `stop` or at the end of
//! its standard input, and at the latest after the time of `--for-s`. At the line `time` and at its
//! end it prints `{"processor_ns": …, "children_ns": […]}`, the processor time of the process and
//! of each of its children so far. At the line `thread` it starts one more thread, and prints
//! `{"threads": number}`. Its children end with the thread that forked them.
//!
//! The program fails without the right to a smaller nice value, if it cannot fork or start a
//! thread, for an unknown command, and if its standard input cannot be read.

use std::io::BufRead;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use super::{READY_TIMEOUT, REPORT_TIMEOUT, lab_command, words};
use crate::process::Proc;
use crate::sys;
use crate::world::Host;

/// The arguments of `netnice-lab traffic carnage`.
#[derive(Debug, Clone, clap::Args)]
pub struct CarnageArgs {
    /// Threads of the process, of at least 1.
    #[arg(long, default_value_t = 1)]
    threads: u32,
    /// Child processes, each of one thread.
    #[arg(long, default_value_t = 0)]
    children: u32,
    /// The nice value of all threads.
    #[arg(long, default_value_t = 0, allow_negative_numbers = true)]
    nice: i32,
    /// Begin a session of its own. Where the kernel has autogroups, the session is one, with the
    /// nice value of the threads.
    #[arg(long)]
    session: bool,
    /// End after so many seconds at the latest.
    #[arg(long, default_value_t = 1_200)]
    for_s: u64,
}

/// A program that uses all processor time that it gets: see the module.
#[derive(Debug, Clone)]
pub struct Carnage {
    args: Vec<String>,
}

impl Carnage {
    /// A process with so many threads and child processes.
    pub fn new(threads: u32, children: u32) -> Carnage {
        let (threads, children) = (threads.to_string(), children.to_string());
        let args = ["carnage", "--threads", &threads, "--children", &children];
        Carnage { args: words(&args) }
    }

    /// The nice value of all threads; the default is 0.
    pub fn nice(mut self, nice: i32) -> Carnage {
        self.args.extend(words(&["--nice", &nice.to_string()]));
        self
    }

    /// Begins a session of its own. Where the kernel has autogroups, the session is one, with the
    /// nice value of the threads.
    pub fn session(mut self) -> Carnage {
        self.args.push("--session".into());
        self
    }

    /// Starts the program on `host`, bound to a processor if given. Fails if it is not ready within
    /// 60 s.
    pub fn start(&self, host: &Host, processor: Option<u32>) -> Result<RunningCarnage> {
        let mut command = lab_command(host, processor)?;
        command.arg("traffic").args(&self.args);
        let mut proc = Proc::start(command)?;
        let ready = proc.next_json("ready", READY_TIMEOUT)?;
        let children = serde_json::from_value(ready["children"].clone())
            .context("the process ids of a carnage's children")?;
        Ok(RunningCarnage { proc, children })
    }
}

/// A running carnage. It ends with its children when this value is dropped.
pub struct RunningCarnage {
    /// The process.
    pub proc: Proc,
    children: Vec<u32>,
}

impl RunningCarnage {
    /// The process id.
    pub fn pid(&self) -> u32 {
        self.proc.pid()
    }

    /// The ids of the process and of its children.
    pub fn pids(&self) -> Vec<u32> {
        let children = self.children.iter().copied();
        std::iter::once(self.pid()).chain(children).collect()
    }

    /// Processor time of the process and its children so far, in ns. It does not depend on the
    /// processor time that they get. Fails if one of them was waited for.
    pub fn processor_time(&self) -> Result<u64> {
        let times = self.pids().into_iter().map(sys::processor_time);
        let sum: std::io::Result<u64> = times.sum();
        sum.context("the processor time of a carnage")
    }

    /// Makes the process start one more thread. Fails as [`RunningCarnage::reported_time`] does.
    pub fn start_thread(&mut self) -> Result<()> {
        self.proc.write_line("thread")?;
        self.proc.next_json("threads", REPORT_TIMEOUT)?;
        Ok(())
    }

    /// The processor time in ns that the program itself reports for its process and its children.
    /// Fails if the program has ended, or gets too little processor time to answer within 60 s.
    pub fn reported_time(&mut self) -> Result<u64> {
        self.proc.write_line("time")?;
        self.next_report()
    }

    /// Ends the program; returns what it reports at its end, as [`RunningCarnage::reported_time`],
    /// and fails like it.
    pub fn stop(mut self) -> Result<u64> {
        self.proc.write_line("stop")?;
        self.next_report()
    }

    fn next_report(&mut self) -> Result<u64> {
        let report = self.proc.next_json("processor_ns", REPORT_TIMEOUT)?;
        let own = report["processor_ns"].as_u64();
        let children: Vec<u64> = serde_json::from_value(report["children_ns"].clone())?;
        Ok(own.context("the processor time is a number")? + children.iter().sum::<u64>())
    }
}

/// Runs the program. Fails as the module says.
pub fn main(args: &CarnageArgs) -> Result<()> {
    let until = Instant::now() + Duration::from_secs(args.for_s);
    if args.session {
        sys::begin_session().context("cannot begin a session")?;
        let autogroup = std::fs::write("/proc/self/autogroup", args.nice.to_string());
        match autogroup {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(error).context("cannot set the nice value of the autogroup");
            }
            _ => {}
        }
    }
    sys::set_nice(args.nice).context("cannot set the nice value")?;
    let mut children = Vec::new();
    for _ in 0..args.children {
        match sys::fork_child().context("cannot fork")? {
            Some(child) => children.push(child),
            None => {
                sys::end_with_parent()?;
                spin(until);
                std::process::exit(0);
            }
        }
    }
    for _ in 1..args.threads {
        start_thread(until)?;
    }
    let mut threads = args.threads.max(1);
    let pid = std::process::id();
    println!(
        "{}",
        json!({"ready": true, "pid": pid, "children": children})
    );
    loop {
        spin(until.min(Instant::now() + POLL));
        if Instant::now() >= until {
            break;
        }
        if !sys::readable(rustix::stdio::stdin(), Duration::ZERO) {
            continue;
        }
        let mut command = String::new();
        std::io::stdin().lock().read_line(&mut command)?;
        match command.trim() {
            "time" => println!("{}", report(&children)?),
            "thread" => {
                start_thread(until)?;
                threads += 1;
                println!("{}", json!({"threads": threads}));
            }
            "" | "stop" => break,
            other => bail!("`{other}` is no command"),
        }
    }
    println!("{}", report(&children)?);
    std::process::exit(0);
}

/// The times of this process and of its children, as JSON.
fn report(children: &[u32]) -> Result<Value> {
    let own = sys::processor_time(std::process::id())?;
    let times = children.iter().map(|child| sys::processor_time(*child));
    let times: std::io::Result<Vec<u64>> = times.collect();
    Ok(json!({"processor_ns": own, "children_ns": times?}))
}

fn start_thread(until: Instant) -> Result<()> {
    let thread = std::thread::Builder::new().spawn(move || spin(until));
    thread.context("cannot start a thread")?;
    Ok(())
}

/// Uses processor time until a moment.
pub(super) fn spin(until: Instant) {
    while Instant::now() < until {
        std::hint::spin_loop();
    }
}

/// The main thread looks for a command so often.
const POLL: Duration = Duration::from_millis(2);
