//! Starts child processes that end with their guard, and finds the binaries under test.
//!
//! A [`Proc`] leads a process group of its own. Dropping it kills the whole group, so a shell and
//! its background jobs end together; but after [`Proc::wait`] has returned the child's status, the
//! group is left alone. A process that leaves the group (a daemon, for example) is found by its
//! network namespace, see [`crate::world::cleanup`].
//!
//! Programs of the lab communicate over their standard streams: they print one JSON object per
//! line, and read one command per line. [`Proc::next_line`], [`Proc::next_json`] and [`Proc::wait`]
//! fail after the time that the caller names; the first two also if the child closes its standard
//! output. [`Proc::start`] and [`run`] fail if the program cannot be executed, [`run`] also if its
//! exit status is not 0. [`Proc::write_line`] fails if the child has closed its standard input, and
//! [`binary`] if there is no such binary.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, ExitStatus, Output, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use rustix::process::{Pid, WaitId, WaitIdOptions};
use serde_json::Value;

use crate::sys;

/// Time limit of a test for an event that must come. No test judges this time. It is long enough
/// for a machine that is busy or emulated. It is shorter than the time limit of the test runner, so
/// a test whose event does not come can report the missing event.
pub const EVENT_TIMEOUT: Duration = Duration::from_secs(60);

/// A running child with its process group, its input and its two output streams.
pub struct Proc {
    what: String,
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
    errors: Receiver<String>,
    ended: Option<ExitStatus>,
}

impl Proc {
    /// Starts `command`, with pipes as its standard streams. The command must come from
    /// [`crate::world::Netns::command`] or [`own_group`], so that it leads its own group. Fails if
    /// the program cannot be executed.
    pub fn start(mut command: Command) -> Result<Proc> {
        let what = describe(&command);
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start `{what}`"))?;
        let lines = read_lines(child.stdout.take().context("stdout is piped")?);
        let errors = read_lines(child.stderr.take().context("stderr is piped")?);
        Ok(Proc {
            what,
            stdin: child.stdin.take(),
            child,
            lines,
            errors,
            ended: None,
        })
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Writes one line to the child's standard input. Fails if that is closed, by the child or by
    /// this process.
    pub fn write_line(&mut self, line: &str) -> Result<()> {
        let Some(stdin) = self.stdin.as_mut() else {
            bail!("the standard input of `{}` is closed", self.what)
        };
        // One write: a reader of the pipe must not see the text without its newline.
        stdin
            .write_all(format!("{line}\n").as_bytes())
            .with_context(|| {
                format!(
                    "cannot write `{line}` to the standard input of `{}`",
                    self.what
                )
            })
    }

    /// Ends the child's standard input.
    pub fn close_input(&mut self) {
        self.stdin = None;
    }

    /// Returns the next unread line of the child's standard output. Fails after `within`, or if the
    /// child has closed its standard output and no line is left.
    pub fn next_line(&mut self, within: Duration) -> Result<String> {
        match self.lines.recv_timeout(within) {
            Ok(line) => Ok(line),
            Err(RecvTimeoutError::Timeout) => {
                bail!("`{}` printed nothing for {within:?}", self.what)
            }
            Err(RecvTimeoutError::Disconnected) => {
                let stderr = self.take_stderr();
                Err(anyhow!("`{}` ended early: {}", self.what, stderr.trim()))
            }
        }
    }

    /// Returns the next unread line that is a JSON object with the member `key`; discards other
    /// lines. Fails after `within`, or if the child has closed its standard output and no such line
    /// is left.
    pub fn next_json(&mut self, key: &str, within: Duration) -> Result<Value> {
        let until = Instant::now() + within;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let line = self.next_line(left)?;
            if let Ok(value) = serde_json::from_str::<Value>(&line)
                && value.get(key).is_some()
            {
                return Ok(value);
            }
        }
    }

    /// Waits until the child has written `text` to its standard error, and returns all that it
    /// wrote there. Fails after `within`, or if the child ends before.
    pub fn await_error_text(&mut self, text: &str, within: Duration) -> Result<String> {
        let until = Instant::now() + within;
        let mut all = String::new();
        loop {
            let runs = self.is_running();
            all.push_str(&self.take_stderr());
            if all.contains(text) {
                return Ok(all);
            }
            if !runs || Instant::now() > until {
                bail!("`{}` wrote no {text:?}, but {all:?}", self.what);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Returns all unread lines of the child, until the child closes its standard output or
    /// `within` passes.
    pub fn remaining_lines(&mut self, within: Duration) -> Vec<String> {
        let until = Instant::now() + within;
        let mut all = Vec::new();
        while let Ok(line) = self
            .lines
            .recv_timeout(until.saturating_duration_since(Instant::now()))
        {
            all.push(line);
        }
        all
    }

    /// The text that the child wrote to standard error since the last call, in whole lines. Returns
    /// when nothing has come for 50 ms, or when the child has closed its standard error.
    pub fn take_stderr(&mut self) -> String {
        let mut all = String::new();
        while let Ok(line) = self.errors.recv_timeout(Duration::from_millis(50)) {
            all.push_str(&line);
            all.push('\n');
        }
        all
    }

    /// Waits for the child to end by itself, and returns its status. Fails after `within`; the
    /// child then continues.
    pub fn wait(&mut self, within: Duration) -> Result<ExitStatus> {
        let until = Instant::now() + within;
        loop {
            if let Some(status) = self.ended.or(self.child.try_wait()?) {
                self.ended = Some(status);
                return Ok(status);
            }
            if Instant::now() > until {
                bail!("`{}` still runs after {within:?}", self.what);
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// True while the child runs. A child that has ended stays a zombie until [`Proc::wait`] or
    /// [`Proc::kill`].
    pub fn is_running(&mut self) -> bool {
        // The child is not waited for, so that its number, which is its group's, is not reused.
        let child = WaitId::Pid(Pid::from_child(&self.child));
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        self.ended.is_none() && matches!(rustix::process::waitid(child, options), Ok(None))
    }

    /// Kills the child and its group, and waits for the child. Does nothing if the child was waited
    /// for before.
    pub fn kill(&mut self) {
        let group = -(self.child.id() as i32);
        // The group is signalled even if the leader has ended, because it may outlive the leader.
        // It is not signalled after the leader was waited for: then the number may be reused.
        if self.ended.is_none() {
            let _ = sys::kill(group, libc::SIGKILL);
            self.ended = self.child.wait().ok();
        }
    }

    /// Asks the child to end (SIGTERM), and kills its group when the child has ended or `within`
    /// has passed. Does nothing if the child was waited for before.
    pub fn terminate(&mut self, within: Duration) {
        if self.ended.is_none() {
            let _ = sys::kill(self.child.id() as i32, libc::SIGTERM);
            // `kill` reaps the child after it has signalled the group. Until then no other process
            // or group gets the number.
            let until = Instant::now() + within;
            while sys::is_alive(self.child.id()) && Instant::now() < until {
                std::thread::sleep(Duration::from_millis(2));
            }
        }
        self.kill();
    }
}

impl Drop for Proc {
    fn drop(&mut self) {
        self.stdin = None;
        self.kill();
    }
}

/// Makes a command that leads its own process group and stays in the caller's namespace.
pub fn own_group(program: impl Into<std::ffi::OsString>) -> Command {
    let mut command = Command::new(program.into());
    sys::start_in_netns(&mut command, None);
    command
}

/// Runs a command to its end and returns its standard output. Fails if the command cannot start,
/// and with its output if the exit status is not 0.
pub fn run(command: &mut Command) -> Result<String> {
    let what = describe(command);
    let output = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot start `{what}`"))?;
    stdout_if_successful(&what, output)
}

/// Runs a command with `input` on its standard input, to its end, and returns its standard output.
/// Fails if the command cannot start or does not read `input`, and with its output if the exit
/// status is not 0.
pub(crate) fn run_with_input(command: &mut Command, input: &str) -> Result<String> {
    let what = describe(command);
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot start `{what}`"))?;
    let mut stdin = child.stdin.take().context("stdin is piped")?;
    stdin
        .write_all(input.as_bytes())
        .with_context(|| format!("cannot write to the standard input of `{what}`"))?;
    drop(stdin);
    stdout_if_successful(&format!("{what} <<< {input}"), child.wait_with_output()?)
}

/// Whether a program of this name is on the search path.
pub(crate) fn installed(program: &str) -> bool {
    std::env::var_os("PATH").is_some_and(|path| {
        std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
    })
}

/// The id of the first thread of a process with this name. Fails if there is none.
pub fn thread_named(pid: u32, name: &str) -> Result<u32> {
    for thread in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        let thread = thread?;
        let own = std::fs::read_to_string(thread.path().join("comm"))?;
        if own.trim_end() == name {
            let number = thread.file_name();
            let number = number.to_str().context("a thread without a number")?;
            return Ok(number.parse()?);
        }
    }
    bail!("process {pid} has no thread `{name}`")
}

/// The path of the binary `name` of this project: in the folder that the environment variable
/// `NETNICE_BIN_DIR` names, or, if it is not set, in the folder of the running executable or the
/// folder above it. Fails if the binary does not exist.
pub fn binary(name: &str) -> Result<PathBuf> {
    if let Some(folder) = std::env::var_os("NETNICE_BIN_DIR") {
        let path = PathBuf::from(folder).join(name);
        return match path.is_file() {
            true => Ok(path),
            false => bail!(
                "NETNICE_BIN_DIR has no `{name}`: {} does not exist (build it with `make build`)",
                path.display()
            ),
        };
    }
    let own = std::env::current_exe().context("the running executable has no path")?;
    // A test runs from `deps/`, one level below the binaries.
    own.ancestors()
        .skip(1)
        .take(2)
        .map(|folder| folder.join(name))
        .find(|path| path.is_file())
        .with_context(|| {
            format!(
                "there is no `{name}` beside {}: build it with `make build`, or name its folder in \
                 NETNICE_BIN_DIR",
                own.display()
            )
        })
}

fn stdout_if_successful(what: &str, output: Output) -> Result<String> {
    if !output.status.success() {
        bail!(
            "`{what}` failed ({}): {}{}",
            output.status,
            String::from_utf8_lossy(&output.stderr).trim(),
            String::from_utf8_lossy(&output.stdout).trim()
        );
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The command line for messages: the program without its folder, and the arguments.
pub(crate) fn describe(command: &Command) -> String {
    let mut text = PathBuf::from(command.get_program())
        .file_name()
        .map_or_else(String::new, |n| n.to_string_lossy().into_owned());
    for arg in command.get_args() {
        text.push(' ');
        text.push_str(&arg.to_string_lossy());
    }
    text
}

fn read_lines(stream: impl Read + Send + 'static) -> Receiver<String> {
    let (send, receive) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(stream).lines() {
            let Ok(line) = line else { break };
            if send.send(line).is_err() {
                break;
            }
        }
    });
    receive
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_group_of_a_process_that_ends_in_time_ends_too() {
        let mut shell = own_group("sh");
        shell.args(["-c", "trap 'exit 0' TERM; sleep 1000 & echo $!; wait"]);
        let mut shell = Proc::start(shell).expect("a shell");
        let line = shell.next_line(EVENT_TIMEOUT).expect("the job's number");
        let job: u32 = line.parse().expect("a number");
        assert!(sys::is_alive(job));
        shell.terminate(EVENT_TIMEOUT);
        assert!(shell.wait(EVENT_TIMEOUT).expect("an end").success());
        let until = Instant::now() + EVENT_TIMEOUT;
        while sys::is_alive(job) {
            assert!(Instant::now() < until, "the job is still there");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}
