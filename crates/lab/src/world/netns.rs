//! One network namespace, entered with setns and named under /run/netns.
//!
//! The name makes it visible to `ip netns` while an experiment runs, so that a person can look
//! inside: `nsenter --net=/run/netns/nn-1234-client0 tc -s qdisc`.

use std::fs::File;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use anyhow::{Context, Result, anyhow};

use super::reap;
use crate::{process, sys};

/// A namespace that is removed, with every process in it, when the guard is dropped.
pub struct Netns {
    name: String,
    door: Door,
}

/// A way into a namespace that can be kept and cloned. It keeps the namespace alive, but what is
/// started through it is ended when the [`Netns`] goes.
#[derive(Clone)]
pub struct Door(Arc<File>);

impl Door {
    /// A command that will run inside, as leader of its own process group.
    pub fn command(&self, program: impl AsRef<Path>) -> Command {
        let mut command = Command::new(program.as_ref());
        sys::start_in_netns(&mut command, Some(self.0.clone()));
        command
    }
}

impl Netns {
    /// Makes the namespace `nn-<pid>-<role>` with lo up.
    pub fn create(role: &str) -> Result<Netns> {
        let name = format!("nn-{}-{role}", std::process::id());
        process::run(Command::new("ip").args(["netns", "add", &name]))
            .context("making a network namespace needs root and iproute2")?;
        let file = File::open(reap::netns_path(&name))
            .with_context(|| format!("the namespace {name} vanished"))?;
        let ns = Netns {
            name,
            door: Door(Arc::new(file)),
        };
        ns.ip("link set lo up")?;
        for (key, value) in DEFAULTS {
            ns.sysctl(key, value)?;
        }
        Ok(ns)
    }

    /// Its name under /run/netns.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its path, for nsenter and for comparing.
    pub fn path(&self) -> PathBuf {
        reap::netns_path(&self.name)
    }

    /// A command that will run inside, as leader of its own process group.
    pub fn command(&self, program: impl AsRef<Path>) -> Command {
        self.door.command(program)
    }

    /// A way in that outlives this borrow.
    pub fn door(&self) -> Door {
        self.door.clone()
    }

    /// Runs `program` with blank-separated arguments inside, to its end.
    pub fn run(&self, program: &str, args: &str) -> Result<String> {
        process::run(self.command(program).args(args.split_whitespace()))
    }

    /// Runs `ip ARGS` inside.
    pub fn ip(&self, args: &str) -> Result<String> {
        self.run("ip", args)
    }

    /// Runs `tc ARGS` inside.
    pub fn tc(&self, args: &str) -> Result<String> {
        self.run("tc", args)
    }

    /// Runs `work` on a thread of its own inside this namespace and returns what it returns.
    ///
    /// Sockets opened there stay in the namespace wherever they are used later.
    pub fn enter<T: Send>(&self, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        let ns = self.door.0.as_fd();
        std::thread::scope(|scope| {
            scope
                .spawn(move || {
                    sys::enter_netns(ns)?;
                    work()
                })
                .join()
                .map_err(|_| anyhow!("a thread inside a namespace panicked"))?
        })
    }

    /// Sets a sysctl inside, by its path below /proc/sys.
    pub fn sysctl(&self, key: &str, value: &str) -> Result<()> {
        let path = Path::new("/proc/sys").join(key);
        self.enter(|| {
            std::fs::write(&path, value)
                .with_context(|| format!("cannot set {} to {value} in a namespace", path.display()))
        })
    }

    /// Received and sent bytes and packets of a device, as the device counts them.
    pub fn counters(&self, device: &str) -> Result<DeviceCounters> {
        let text = self.enter(|| Ok(std::fs::read_to_string("/proc/thread-self/net/dev")?))?;
        parse_device_counters(&text, device)
            .with_context(|| format!("{} has no device {device}", self.name))
    }

    /// The processes that are inside now.
    pub fn pids(&self) -> Vec<u32> {
        reap::pids_in(&self.path())
    }
}

impl Drop for Netns {
    fn drop(&mut self) {
        reap::remove_netns(&self.name);
    }
}

/// A device's own counters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceCounters {
    /// Bytes received (a segmentation-offload packet counts its headers once).
    pub rx_bytes: u64,
    /// Packets received.
    pub rx_packets: u64,
    /// Bytes sent.
    pub tx_bytes: u64,
    /// Packets sent.
    pub tx_packets: u64,
}

fn parse_device_counters(text: &str, device: &str) -> Option<DeviceCounters> {
    let line = text
        .lines()
        .find_map(|l| l.trim().strip_prefix(device)?.strip_prefix(':'))?;
    let fields: Vec<u64> = line
        .split_whitespace()
        .filter_map(|f| f.parse().ok())
        .collect();
    Some(DeviceCounters {
        rx_bytes: *fields.first()?,
        rx_packets: *fields.get(1)?,
        tx_bytes: *fields.get(8)?,
        tx_packets: *fields.get(9)?,
    })
}

/// What every namespace of the lab starts with. BBR, the default of some hosts, paces itself and
/// flatters a limiter; saved metrics would let one run teach the next.
const DEFAULTS: [(&str, &str); 5] = [
    ("net/ipv4/tcp_congestion_control", "cubic"),
    ("net/ipv4/tcp_no_metrics_save", "1"),
    ("net/ipv6/conf/all/accept_dad", "0"),
    ("net/ipv6/conf/default/accept_dad", "0"),
    ("net/ipv4/ping_group_range", "0 2147483647"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_counters_are_found_by_whole_name() {
        let text = "Inter-|   Receive  |  Transmit\n face |bytes packets errs\n\
            eth00: 9 9 0 0 0 0 0 0 9 9 0 0 0 0 0 0\n  eth0: 10 2 0 0 0 0 0 0 30 4 0 0 0 0 0 0\n";
        let got = parse_device_counters(text, "eth0").expect("present");
        assert_eq!(
            (got.rx_bytes, got.rx_packets, got.tx_bytes, got.tx_packets),
            (10, 2, 30, 4)
        );
        assert_eq!(parse_device_counters(text, "eth1"), None);
    }
}
