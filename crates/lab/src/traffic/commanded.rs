//! Runs a traffic program that takes commands ([`Commanded`]): each line of its standard input is a
//! command, and it answers with lines of JSON. A call fails if the program has ended, or does not
//! answer in time.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use serde_json::Value;

use crate::process::{self, EVENT_TIMEOUT, Proc};
use crate::world::Host;

/// A running traffic program. It ends when it is dropped.
pub struct Commanded {
    pub(super) proc: Proc,
}

impl Commanded {
    /// Starts the program `netnice-lab traffic NAME` on `host`, with flows between two endpoints
    /// from the daemon with this runtime folder, and further options. Fails if the program is not
    /// ready within `within`, for example because its contract does not fit.
    pub(super) fn start(
        host: &Host,
        (name, runtime): (&str, &Path),
        (from, to): (SocketAddr, SocketAddr),
        more: &[(&str, String)],
        within: Duration,
    ) -> Result<Commanded> {
        let mut command = host.ns.command(process::binary("netnice-lab")?);
        command
            .args(["traffic", name, "--runtime-dir"])
            .arg(runtime)
            .args(["--local", &from.to_string(), "--remote", &to.to_string()]);
        for (option, value) in more {
            command.args([option, value.as_str()]);
        }
        let mut proc = Proc::start(command)?;
        proc.next_json("ready", within)?;
        Ok(Commanded { proc })
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.proc.pid()
    }

    /// Gives the program a command without waiting for its answer. Fails if the program has ended.
    pub fn command(&mut self, line: &str) -> Result<()> {
        self.proc.write_line(line)
    }

    /// The next answer, which has the member `key`. Fails after `within`, or if the program ends.
    pub fn answer(&mut self, key: &str, within: Duration) -> Result<Value> {
        self.proc.next_json(key, within)
    }

    /// Gives the program a command, and returns its answer. Fails as the other two calls do.
    pub fn run(&mut self, line: &str, key: &str) -> Result<Value> {
        self.command(line)?;
        self.answer(key, EVENT_TIMEOUT)
    }
}
