//! Runs the netnice of one world: starts, stops and kills its daemon, and runs the `netnice`
//! command line in the daemon's namespace. The commands' results are [`CommandOutput`]s. A start
//! fails if a binary is missing, if the daemon ends, or if it does not answer within
//! [`EVENT_TIMEOUT`]. [`Netnice::run`] fails only if the command cannot start;
//! [`Netnice::run_line`] and [`Netnice::show`] also if its exit status is not 0.

use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::netns::{Netns, NetnsHandle};
use crate::process::{self, EVENT_TIMEOUT, Proc};
use crate::sys;

/// A daemon inside a namespace, and the means to run `netnice …` there.
///
/// Dropping this value runs `netnice clear --all` if the daemon runs, and ends the daemon.
pub struct Netnice {
    netnice: PathBuf,
    netniced: PathBuf,
    runtime: PathBuf,
    daemon: Option<Proc>,
    handle: NetnsHandle,
    /// Further options of the daemon, beside those that [`Netnice::start_daemon`] always passes.
    options: Vec<String>,
}

/// The result of a `netnice` command.
#[derive(Debug, Clone)]
pub struct CommandOutput {
    /// The command line, for messages.
    pub command_line: String,
    /// The exit status; 128 + the signal's number if a signal ended the process.
    pub status: i32,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
    /// Start and end of the process (wall clock, ns).
    pub at: (u64, u64),
}

impl CommandOutput {
    /// Returns this value if the exit status is 0, else an error with both outputs.
    pub fn ok(self) -> Result<CommandOutput> {
        if self.status != 0 {
            bail!(
                "`{}` ended with status {}: {}{}",
                self.command_line,
                self.status,
                self.stderr.trim(),
                self.stdout.trim()
            );
        }
        Ok(self)
    }

    /// Time from start to end of the process.
    pub(crate) fn took(&self) -> Duration {
        Duration::from_nanos(self.at.1 - self.at.0)
    }
}

impl Netnice {
    /// Starts the daemon in `ns` with the runtime folder `runtime`, and waits until it answers.
    /// Fails if a binary is missing, if the folder cannot be made, if the daemon ends, or after
    /// [`EVENT_TIMEOUT`].
    pub fn start(ns: &Netns, runtime: &Path) -> Result<Netnice> {
        std::fs::create_dir_all(runtime)
            .with_context(|| format!("cannot make {}", runtime.display()))?;
        let mut netnice = Netnice {
            netnice: process::binary("netnice")?,
            netniced: process::binary("netniced")?,
            runtime: runtime.to_owned(),
            daemon: None,
            handle: ns.handle(),
            options: Vec::new(),
        };
        netnice.start_daemon()?;
        Ok(netnice)
    }

    /// Starts the daemon again after [`Netnice::kill_daemon`] or [`Netnice::stop_daemon`], and
    /// waits until it answers. Fails as [`Netnice::start`] does.
    pub fn start_daemon(&mut self) -> Result<()> {
        let program = self.netniced.clone();
        self.spawn_daemon(self.handle.command(program))?;
        self.wait_ready()
    }

    /// Starts the daemon through a program such as `prlimit`, and waits until it answers: `words`
    /// are that program and its arguments, and the daemon's command line follows. Fails as
    /// [`Netnice::start`] does, or if `words` is empty.
    pub fn start_daemon_through(&mut self, words: &[&str]) -> Result<()> {
        let (program, words) = words.split_first().context("a program")?;
        let mut command = self.handle.command(program);
        command.args(words).arg(&self.netniced);
        self.spawn_daemon(command)?;
        self.wait_ready()
    }

    /// Starts a shell that stops itself, so that a tracer can attach. After SIGCONT the shell
    /// executes the daemon. Returns the process id, which the daemon keeps. Fails if the shell
    /// cannot start, or has not stopped within [`EVENT_TIMEOUT`].
    pub fn start_daemon_stopped(&mut self) -> Result<u32> {
        let mut shell = self.handle.command("sh");
        shell.args(["-c", "kill -STOP $$; exec \"$@\"", "sh"]);
        shell.arg(&self.netniced);
        self.spawn_daemon(shell)?;
        let pid = self.pid().context("the daemon was started")?;
        let until = Instant::now() + EVENT_TIMEOUT;
        while sys::state(pid) != Some('T') {
            if Instant::now() > until {
                bail!("process {pid} has not stopped itself within {EVENT_TIMEOUT:?}");
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(pid)
    }

    fn spawn_daemon(&mut self, mut command: Command) -> Result<()> {
        command
            .arg("--runtime-dir")
            .arg(&self.runtime)
            .arg("--policy")
            .arg(self.policy())
            .args(&self.options)
            .arg("--docker-root")
            .arg(self.docker())
            .arg("--podman-root")
            .arg(self.runtime.with_extension("podman"))
            .env("NETNICE_RUNTIME_DIR", &self.runtime)
            .env("SYSTEMD_UNIT_PATH", self.units());
        self.daemon = Some(Proc::start(command)?);
        Ok(())
    }

    /// Waits until the daemon answers. Fails if it ends, or after [`EVENT_TIMEOUT`].
    pub(crate) fn wait_ready(&mut self) -> Result<()> {
        let until = Instant::now() + EVENT_TIMEOUT;
        loop {
            // A killed daemon leaves its socket. `netnice` finds no daemon behind that socket and
            // starts one.
            let listens = UnixStream::connect(self.runtime.join("netnice.sock")).is_ok();
            if listens && self.run(&["show", "--json"])?.status == 0 {
                return Ok(());
            }
            let daemon = self.daemon.as_mut().context("the daemon was started")?;
            if !daemon.is_running() {
                bail!("netniced ended at once: {}", daemon.take_stderr().trim());
            }
            if Instant::now() > until {
                bail!(
                    "netniced did not answer within {EVENT_TIMEOUT:?}: {}",
                    daemon.take_stderr().trim()
                );
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Restarts the daemon with these further options, in place of earlier ones, and waits until it
    /// answers. Fails as [`Netnice::start`] does.
    pub fn restart_with(&mut self, options: &[&str]) -> Result<()> {
        self.stop_daemon();
        self.options = options.iter().map(ToString::to_string).collect();
        self.start_daemon()
    }

    /// The daemon's process id; `None` if it was ended.
    pub fn pid(&self) -> Option<u32> {
        self.daemon.as_ref().map(Proc::pid)
    }

    /// Whether the daemon runs. It must not be called while the daemon is traced.
    pub fn daemon_is_running(&mut self) -> bool {
        self.daemon.as_mut().is_some_and(Proc::is_running)
    }

    /// The text that the daemon wrote to standard error since the last call.
    pub fn take_stderr(&mut self) -> String {
        self.daemon
            .as_mut()
            .map_or_else(String::new, Proc::take_stderr)
    }

    /// Kills the daemon (SIGKILL); its limits stay.
    pub fn kill_daemon(&mut self) {
        if let Some(mut daemon) = self.daemon.take() {
            daemon.kill();
        }
    }

    /// Ends the daemon (SIGTERM); its limits stay.
    pub fn stop_daemon(&mut self) {
        if let Some(mut daemon) = self.daemon.take() {
            daemon.terminate(EVENT_TIMEOUT);
        }
    }

    /// The runtime folder.
    pub fn runtime(&self) -> &Path {
        &self.runtime
    }

    /// Path of the daemon's policy file, beside the runtime folder. The file does not exist at
    /// first.
    pub fn policy(&self) -> PathBuf {
        self.runtime.with_extension("policy.toml")
    }

    /// Path of the daemon's folder of unit files, beside the runtime folder. It does not exist at
    /// first.
    pub fn units(&self) -> PathBuf {
        self.runtime.with_extension("units")
    }

    /// Path of the folder that the daemon uses as Docker's data folder (`/var/lib/docker` on a real
    /// host), beside the runtime folder. It does not exist at first.
    pub fn docker(&self) -> PathBuf {
        self.runtime.with_extension("docker")
    }

    /// The command `netnice …` inside the namespace, for callers that spawn it themselves.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = self.handle.command(&self.netnice);
        command
            .args(args)
            .env("NETNICE_RUNTIME_DIR", &self.runtime)
            .env("NO_COLOR", "1");
        command
    }

    /// Runs `netnice ARGS…` to its end. Fails only if the command cannot start.
    pub fn run(&self, args: &[&str]) -> Result<CommandOutput> {
        let mut command = self.command(args);
        let started = sys::now_ns();
        let output = command
            .stdin(std::process::Stdio::null())
            .output()
            .context("cannot start netnice")?;
        Ok(CommandOutput {
            command_line: format!("netnice {}", args.join(" ")),
            status: exit_status(output.status),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
            at: (started, sys::now_ns()),
        })
    }

    /// Runs `netnice` with the blank-separated arguments in `line`. Fails if the command cannot
    /// start, and with both outputs if the exit status is not 0.
    pub fn run_line(&self, line: &str) -> Result<CommandOutput> {
        let words: Vec<&str> = line.split_whitespace().collect();
        self.run(&words)?.ok()
    }

    /// The JSON that `netnice show --json` prints. Fails if the command cannot start, if its exit
    /// status is not 0, or if it prints no JSON.
    pub fn show(&self) -> Result<Value> {
        let answer = self.run(&["show", "--json"])?.ok()?;
        serde_json::from_str(&answer.stdout)
            .with_context(|| format!("`show --json` printed no JSON: {}", answer.stdout))
    }

    /// `show --json` without all members `counters`, which change all the time. Fails as
    /// [`Netnice::show`] does.
    pub fn show_without_counters(&self) -> Result<Value> {
        let mut shown = self.show()?;
        strip(&mut shown, "counters");
        Ok(shown)
    }

    /// The daemon's resident memory in bytes. Fails if the daemon does not run.
    pub fn daemon_memory(&self) -> Result<u64> {
        self.memory_by("VmRSS:")
    }

    /// The largest resident memory that the daemon has had, in bytes. Fails if the daemon does not
    /// run.
    pub fn largest_daemon_memory(&self) -> Result<u64> {
        self.memory_by("VmHWM:")
    }

    fn memory_by(&self, key: &str) -> Result<u64> {
        memory_of(self.pid().context("the daemon is not running")?, key)
    }
}

/// A line of `/proc/PID/status` in bytes, `VmRSS:` for example. Fails if the process has ended, or
/// has no such line.
pub(crate) fn memory_of(pid: u32, key: &str) -> Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let kib: u64 = status
        .lines()
        .find_map(|l| l.strip_prefix(key))
        .and_then(|l| l.trim().strip_suffix("kB"))
        .and_then(|l| l.trim().parse().ok())
        .with_context(|| format!("/proc shows no {key} of process {pid}"))?;
    Ok(kib * 1024)
}

impl Drop for Netnice {
    fn drop(&mut self) {
        if self.daemon.as_mut().is_some_and(Proc::is_running)
            && let Err(e) = self.run_line("clear --all")
        {
            eprintln!("netnice-lab: {e:#}");
        }
        self.stop_daemon();
    }
}

/// Removes every member called `key`, at any depth.
fn strip(value: &mut Value, key: &str) {
    match value {
        Value::Object(members) => {
            members.remove(key);
            members.values_mut().for_each(|v| strip(v, key));
        }
        Value::Array(items) => items.iter_mut().for_each(|v| strip(v, key)),
        _ => {}
    }
}

fn exit_status(status: std::process::ExitStatus) -> i32 {
    use std::os::unix::process::ExitStatusExt;
    status
        .code()
        .unwrap_or_else(|| 128 + status.signal().unwrap_or(0))
}
