//! Tests programs in C and Rust whose daemon is killed and started again: they continue to send
//! while no daemon runs, and then have their flows again.

use std::net::IpAddr;
use std::time::Duration;

use anyhow::{Result, ensure};
use netnice_lab::process::{EVENT_TIMEOUT, Proc};
use netnice_lab::traffic::{self, Direct};
use netnice_lab::world::Family;
use serde_json::Value;

use super::{FlowBed, at, await_some};
use crate::c_compiler::{Link, compile, install};

/// The test program in C, which takes one command at a time.
pub(super) struct Program(Proc);

impl Program {
    fn start(flow_bed: &FlowBed) -> Result<Program> {
        let to = at(flow_bed.world.server(), Family::V4, 9).ip();
        Program::start_to(flow_bed, to, None)
    }

    /// Starts the program on an interface; `None`: the only managed one.
    pub(super) fn start_to(flow_bed: &FlowBed, to: IpAddr, iface: Option<&str>) -> Result<Program> {
        let root = flow_bed.world.folder().join("usr");
        install(&root);
        let out = root.join("flows");
        compile(&root, "tests/flows.c", &out, Link::Static);
        let mut command = flow_bed.world.client().ns.command(&out);
        command.env("NETNICE_RUNTIME_DIR", flow_bed.netnice.runtime());
        command.arg(to.to_string()).args(iface);
        Ok(Program(Proc::start(command)?))
    }

    fn begin(&mut self, command: &str) -> Result<()> {
        self.0.write_line(command)
    }

    fn result(&mut self) -> Result<String> {
        self.0.next_line(2 * EVENT_TIMEOUT)
    }

    /// Runs a command that must succeed, and returns its number.
    pub(super) fn run(&mut self, command: &str) -> Result<u64> {
        self.begin(command)?;
        let result = self.result()?;
        let number = result.strip_suffix(" ok").and_then(|n| n.parse().ok());
        number.ok_or_else(|| anyhow::anyhow!("{command}: {result}"))
    }

    /// Runs a command that must fail.
    fn fail(&mut self, command: &str) -> Result<()> {
        self.begin(command)?;
        let result = self.result()?;
        ensure!(result.starts_with("-1 "), "{command}: {result}");
        Ok(())
    }
}

fn up(flow: &Value) -> u64 {
    flow["contract"]["up"].as_u64().unwrap_or(0)
}

#[test]
fn a_program_in_c_has_its_flows_again_after_the_daemon_was_killed() -> Result<()> {
    let mut flow_bed = FlowBed::new()?;
    let mut program = Program::start(&flow_bed)?;
    program.run("open 7")?;
    assert_eq!(program.run("send 20")?, 20);
    flow_bed.netnice.kill_daemon();
    assert_eq!(program.run("send 20")?, 20, "without a daemon");
    program.fail("change up 5mbit")?;
    assert_eq!(program.run("send 20")?, 20, "after a failed change");
    flow_bed.netnice.start_daemon()?;
    // A child has the secret and the descriptors, but is not the process that attached.
    program.fail("fork up 4mbit")?;
    assert_eq!(up(&flow_bed.flows()?[0]), 10_000_000);
    program.run("change up 6mbit")?;
    assert_eq!(up(&flow_bed.flows()?[0]), 6_000_000);
    program.run("open 8")?;
    assert_eq!(flow_bed.flows()?.len(), 2);
    program.run("close")?;
    assert_eq!(flow_bed.flows()?.len(), 1);
    // A program that waits is notified as before, though the daemon was started while it waited.
    flow_bed.netnice.kill_daemon();
    program.begin("mtu 60000")?;
    flow_bed.netnice.start_daemon()?;
    await_some("the daemon has the flow", || {
        Ok((flow_bed.flows()?.len() == 1).then_some(()))
    })?;
    let client = &flow_bed.world.client().ns;
    client.ip("link set dev eth0 mtu 1400")?;
    assert_eq!(program.result()?, "1400 ok");
    assert_eq!(program.run("send 20")?, 20);
    drop(program);
    await_some("the flow ends with its program", || {
        Ok(flow_bed.flows()?.is_empty().then_some(()))
    })
}

#[test]
fn a_program_in_rust_changes_its_contract_at_each_daemon() -> Result<()> {
    let mut flow_bed = FlowBed::new()?;
    let to = at(flow_bed.world.server(), Family::V4, 9);
    let source = Direct::source(flow_bed.client_endpoint(5000), to)
        .contract("up 10mbit")
        .alternate("up 5mbit")
        .rate(2_000_000)
        .by(flow_bed.netnice.runtime());
    let program = traffic::start_now(flow_bed.world.client(), &source)?;
    for _ in 0..3 {
        for rate in [5_000_000, 10_000_000, 5_000_000] {
            await_some("the contract changes", || {
                let flows = flow_bed.flows()?;
                Ok((flows.first().map(up) == Some(rate)).then_some(()))
            })?;
        }
        flow_bed.netnice.kill_daemon();
        std::thread::sleep(Duration::from_millis(300));
        flow_bed.netnice.start_daemon()?;
    }
    let report = program.stop()?;
    assert!(report.refused.is_empty(), "{:?}", report.refused);
    Ok(())
}
