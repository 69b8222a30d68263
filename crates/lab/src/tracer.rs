//! A tracer of system calls. [`Tracer::follow`] stops a process before each system call. A function
//! of the caller then decides whether the kernel executes the call, the process is killed there, or
//! the call fails without being executed.
//!
//! ```text
//!  seize ──▶ follow ─┬─ a system call begins: decide ─┬─ Execute ──────▶ follow continues
//!                    │                                ├─ Kill ─────────▶ Outcome::Killed
//!                    │                                └─ Fail(errno) ──▶ Outcome::Failed
//!                    ├─ until() is true ───────────────────────────────▶ Outcome::ConditionMet
//!                    └─ the process ends by itself ────────────────────▶ Outcome::Ended
//! ```
//! After `Failed` and `ConditionMet` the process continues without the tracer.
//!
//! The tracer uses ptrace(2) with PTRACE_SEIZE, so that it can attach to a running process and
//! detach without a signal. All threads of the process are traced; its child processes are not. A
//! process that is killed at the entry of a system call does not execute that call (the kernel
//! checks for a fatal signal before).
//!
//! A tracer belongs to the thread that made it. The tracer does not wait for the dead process: the
//! parent does ([`crate::process::Proc`]). No other thread may wait for the process, or check
//! whether it runs, while it is traced.
//!
//! The tracer supports x86-64 only; elsewhere [`Tracer::seize`] fails. It also fails if there is no
//! such process, and without the right to trace it. [`Tracer::follow`] fails if ptrace fails, or if
//! a thread that must stop or end does not within 30 s.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::errno::Errno;
use nix::sys::ptrace::{self, Options};
use nix::sys::signal::Signal;
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use nix::unistd::Pid;

pub mod call;

pub use call::Call;

/// A traced process.
pub struct Tracer {
    process: Pid,
    threads: BTreeSet<Pid>,
    /// Stopped threads that were not continued yet, with the signal that each gets when it
    /// continues.
    stopped: Vec<(Pid, Option<Signal>)>,
}

/// The action of the tracer at the entry of a system call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// The kernel executes the call.
    Execute,
    /// The tracer kills the process, and the call is not executed.
    Kill,
    /// The call is not executed, and returns this error to the process.
    Fail(Errno),
}

/// The reason why [`Tracer::follow`] ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The awaited condition became true; the process runs without the tracer.
    ConditionMet,
    /// The process was killed before this system call. Holds its description.
    Killed(String),
    /// The tracer made this system call fail; the process runs without the tracer. Holds the call's
    /// description.
    Failed(String),
    /// The process ended, and the tracer did not kill it.
    Ended,
}

impl Tracer {
    /// Attaches to a process and all of its threads. Fails if there is no such process, without the
    /// right to trace it, and on other processors than x86-64.
    pub fn seize(process: u32) -> Result<Tracer> {
        if !cfg!(target_arch = "x86_64") {
            bail!("the tracer supports x86-64 only");
        }
        let mut tracer = Tracer {
            process: Pid::from_raw(process as i32),
            threads: BTreeSet::new(),
            stopped: Vec::new(),
        };
        // A thread that is made meanwhile is traced automatically if its creator is traced, else
        // this loop finds it.
        while let Some(thread) = tracer.untraced()? {
            match ptrace::seize(thread, options()) {
                Ok(()) => {
                    tracer.threads.insert(thread);
                    ptrace::interrupt(thread).context("cannot interrupt a traced thread")?;
                }
                Err(Errno::ESRCH) => {}
                Err(errno) => {
                    return Err(errno).with_context(|| format!("cannot trace thread {thread}"));
                }
            }
        }
        Ok(tracer)
    }

    fn untraced(&self) -> Result<Option<Pid>> {
        let folder = format!("/proc/{}/task", self.process);
        let tasks = std::fs::read_dir(&folder).with_context(|| format!("cannot read {folder}"))?;
        let numbers = tasks
            .flatten()
            .filter_map(|task| task.file_name().to_str()?.parse().ok());
        Ok(numbers
            .map(Pid::from_raw)
            .find(|thread| !self.threads.contains(thread)))
    }

    /// Continues the process until it ends, until `decide` returns another action than
    /// [`Action::Execute`], or until `until` returns true. `decide` is called at the entry of each
    /// system call; `until` is called about every millisecond while no thread is stopped. Fails if
    /// ptrace fails, or if a thread does not stop or end within 30 s although it must.
    pub fn follow(
        mut self,
        mut decide: impl FnMut(&Call) -> Action,
        mut until: impl FnMut() -> bool,
    ) -> Result<Outcome> {
        let mut idle = 0;
        let mut last_check = Instant::now();
        loop {
            let Some((thread, status)) = self.next_stop()? else {
                if self.threads.is_empty() {
                    return Ok(Outcome::Ended);
                }
                if last_check.elapsed() > CONDITION_INTERVAL {
                    if until() {
                        self.detach_all()?;
                        return Ok(Outcome::ConditionMet);
                    }
                    last_check = Instant::now();
                }
                // While it works, the process stops again within microseconds; it may also sleep
                // for a second.
                idle += 1;
                match idle < SPINS {
                    true => std::thread::yield_now(),
                    false => std::thread::sleep(POLL_INTERVAL),
                }
                continue;
            };
            idle = 0;
            let signal = match status {
                WaitStatus::PtraceSyscall(_) if !call::is_entry(thread)? => None,
                WaitStatus::PtraceSyscall(_) => {
                    let call = call::at_entry(self.process, thread)?;
                    match decide(&call) {
                        Action::Execute => None,
                        Action::Kill => {
                            self.kill()?;
                            return Ok(Outcome::Killed(call.to_string()));
                        }
                        Action::Fail(errno) => {
                            self.fail(thread, errno)?;
                            self.detach_all()?;
                            return Ok(Outcome::Failed(call.to_string()));
                        }
                    }
                }
                other => self.signal_of(thread, &other)?,
            };
            self.resume(thread, signal)?;
        }
    }

    /// The next stopped thread and the reason; `None` if all run.
    fn next_stop(&mut self) -> Result<Option<(Pid, WaitStatus)>> {
        for thread in self.threads.clone() {
            match self.poll_thread(thread)? {
                WaitStatus::StillAlive => {}
                status => return Ok(Some((thread, status))),
            }
            if self.threads.is_empty() {
                break;
            }
        }
        Ok(None)
    }

    /// The state of a thread. The exit of the process itself is left for its parent to wait for.
    fn poll_thread(&mut self, thread: Pid) -> Result<WaitStatus> {
        let flags = WaitPidFlag::__WALL | WaitPidFlag::WNOHANG | WaitPidFlag::WSTOPPED;
        let peek = flags | WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT;
        match waitid(Id::Pid(thread), peek) {
            Ok(WaitStatus::Exited(..) | WaitStatus::Signaled(..)) | Err(Errno::ECHILD) => {
                if thread != self.process {
                    let _ = waitid(
                        Id::Pid(thread),
                        WaitPidFlag::__WALL | WaitPidFlag::WNOHANG | WaitPidFlag::WEXITED,
                    );
                }
                self.threads.remove(&thread);
                Ok(WaitStatus::StillAlive)
            }
            Ok(WaitStatus::StillAlive) => Ok(WaitStatus::StillAlive),
            Ok(_) => waitid(Id::Pid(thread), flags).context("cannot wait for a traced thread"),
            Err(errno) => Err(errno).context("cannot wait for a traced thread"),
        }
    }

    /// The signal that a stopped thread gets when it continues.
    fn signal_of(&mut self, thread: Pid, status: &WaitStatus) -> Result<Option<Signal>> {
        match *status {
            WaitStatus::PtraceEvent(_, _, event) if event == libc::PTRACE_EVENT_CLONE => {
                let born =
                    ptrace::getevent(thread).context("cannot read the number of a new thread")?;
                self.threads.insert(Pid::from_raw(born as i32));
                Ok(None)
            }
            // An event with the number 0 is the delivery of a signal.
            WaitStatus::PtraceEvent(_, signal, 0) => Ok(Some(signal)),
            _ => Ok(None),
        }
    }

    fn resume(&self, thread: Pid, signal: Option<Signal>) -> Result<()> {
        match ptrace::syscall(thread, signal) {
            Ok(()) | Err(Errno::ESRCH) => Ok(()),
            Err(errno) => Err(errno).with_context(|| format!("cannot resume thread {thread}")),
        }
    }

    /// Kills the process, and waits until it is dead.
    fn kill(&mut self) -> Result<()> {
        crate::sys::kill(self.process.as_raw(), libc::SIGKILL)
            .context("cannot kill the process")?;
        let until = Instant::now() + STOP_TIMEOUT;
        while !self.threads.is_empty() {
            let _ = self.next_stop()?;
            if Instant::now() > until {
                bail!("process {} does not end after SIGKILL", self.process);
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        Ok(())
    }

    /// Makes the system call fail that `thread` is about to begin.
    fn fail(&mut self, thread: Pid, errno: Errno) -> Result<()> {
        call::skip(thread)?;
        self.resume(thread, None)?;
        let until = Instant::now() + STOP_TIMEOUT;
        loop {
            match self.poll_thread(thread)? {
                WaitStatus::PtraceSyscall(_) => break,
                WaitStatus::StillAlive if Instant::now() < until => {
                    std::thread::sleep(POLL_INTERVAL)
                }
                WaitStatus::StillAlive => bail!("a skipped system call does not end"),
                other => {
                    let signal = self.signal_of(thread, &other)?;
                    self.resume(thread, signal)?;
                }
            }
        }
        call::set_error(thread, errno)?;
        self.stopped.push((thread, None));
        Ok(())
    }

    /// Detaches from all threads and continues them.
    fn detach_all(&mut self) -> Result<()> {
        for (thread, signal) in std::mem::take(&mut self.stopped) {
            self.detach(thread, signal)?;
        }
        let until = Instant::now() + STOP_TIMEOUT;
        for thread in self.threads.clone() {
            match ptrace::interrupt(thread) {
                Ok(()) => {}
                // The thread is dying; the loop below sees its end.
                Err(Errno::ESRCH) => {}
                Err(errno) => return Err(errno).context("cannot interrupt a traced thread"),
            }
            while self.threads.contains(&thread) {
                match self.poll_thread(thread)? {
                    WaitStatus::StillAlive if Instant::now() < until => {
                        std::thread::sleep(POLL_INTERVAL)
                    }
                    WaitStatus::StillAlive => bail!("thread {thread} does not stop"),
                    status => {
                        let signal = self.signal_of(thread, &status)?;
                        self.detach(thread, signal)?;
                    }
                }
            }
        }
        Ok(())
    }

    fn detach(&mut self, thread: Pid, signal: Option<Signal>) -> Result<()> {
        self.threads.remove(&thread);
        match ptrace::detach(thread, signal) {
            Ok(()) | Err(Errno::ESRCH) => Ok(()),
            Err(errno) => Err(errno).with_context(|| format!("cannot detach from thread {thread}")),
        }
    }
}

fn options() -> Options {
    Options::PTRACE_O_TRACESYSGOOD | Options::PTRACE_O_TRACECLONE
}

/// Interval between calls of `until`.
const CONDITION_INTERVAL: Duration = Duration::from_millis(1);
/// Number of polls of all threads without a sleep.
const SPINS: u32 = 100;
const POLL_INTERVAL: Duration = Duration::from_micros(50);
/// Time limit for kernel actions that normally take effect at once.
const STOP_TIMEOUT: Duration = Duration::from_secs(30);

#[cfg(test)]
mod tests;
