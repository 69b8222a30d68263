//! Makes network namespaces, runs commands and threads in them, and reads their counters. A call
//! fails without root or iproute2, if the command or the work fails, or if a setting or counter
//! does not exist.
//!
//! Each namespace has a name under /run/netns while an experiment runs, so that a person can look
//! inside: `nsenter --net=/run/netns/nn-1234-client0 tc -s qdisc`.

use std::fs::File;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use anyhow::{Context, Result, anyhow};

use super::cleanup;
use crate::{process, sys};

/// A network namespace. Dropping this value kills every process in the namespace and removes it.
pub struct Netns {
    name: String,
    handle: NetnsHandle,
}

/// A handle to enter a namespace, which can be kept and cloned. It keeps the namespace alive, but
/// dropping the [`Netns`] kills the processes inside.
#[derive(Clone)]
pub struct NetnsHandle(Arc<File>);

impl NetnsHandle {
    /// Makes a command that runs inside, as leader of its own process group.
    pub fn command(&self, program: impl AsRef<Path>) -> Command {
        let mut command = Command::new(program.as_ref());
        sys::start_in_netns(&mut command, Some(self.0.clone()));
        command
    }

    /// Moves the calling thread into the namespace for the rest of its life. Fails without root.
    pub fn enter_thread(&self) -> Result<()> {
        Ok(sys::enter_netns(self.0.as_fd())?)
    }
}

impl Netns {
    /// Makes the namespace `nn-<pid>-<role>` with lo up. Fails without root or iproute2.
    pub fn create(role: &str) -> Result<Netns> {
        let name = format!("nn-{}-{role}", std::process::id());
        process::run(Command::new("ip").args(["netns", "add", &name]))
            .context("making a network namespace needs root and iproute2")?;
        let file = File::open(cleanup::netns_path(&name))
            .with_context(|| format!("the namespace {name} vanished"))?;
        let ns = Netns {
            name,
            handle: NetnsHandle(Arc::new(file)),
        };
        ns.ip("link set lo up")?;
        for (key, value) in DEFAULTS {
            ns.sysctl(key, value)?;
        }
        ns.set_congestion_control(CONGESTION)?;
        Ok(ns)
    }

    /// The name of the namespace under /run/netns.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The path of the file that names the namespace, for nsenter(1).
    pub fn path(&self) -> PathBuf {
        cleanup::netns_path(&self.name)
    }

    /// Makes a command that runs inside, as leader of its own process group.
    pub fn command(&self, program: impl AsRef<Path>) -> Command {
        self.handle.command(program)
    }

    /// A handle to the namespace, for other threads.
    pub fn handle(&self) -> NetnsHandle {
        self.handle.clone()
    }

    /// Runs `program` with blank-separated arguments inside, to its end, and returns its standard
    /// output. Fails if the program cannot start, or if its exit status is not 0.
    pub fn run(&self, program: &str, args: &str) -> Result<String> {
        process::run(self.command(program).args(args.split_whitespace()))
    }

    /// Runs `ip ARGS` inside, and fails as [`Netns::run`] does.
    pub fn ip(&self, args: &str) -> Result<String> {
        self.run("ip", args)
    }

    /// Runs `tc ARGS` inside, and fails as [`Netns::run`] does.
    pub fn tc(&self, args: &str) -> Result<String> {
        self.run("tc", args)
    }

    /// Runs `work` in this namespace on a thread of its own and returns the result. Fails if `work`
    /// fails or panics, or without the right to enter the namespace.
    ///
    /// Sockets opened there stay in the namespace wherever they are used later.
    pub fn enter<T: Send>(&self, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        let ns = self.handle.0.as_fd();
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

    /// Sets a sysctl inside, by its path below /proc/sys. Fails if the kernel has no such setting
    /// or refuses the value.
    pub fn sysctl(&self, key: &str, value: &str) -> Result<()> {
        let path = Path::new("/proc/sys").join(key);
        self.enter(|| {
            std::fs::write(&path, value)
                .with_context(|| format!("cannot set {} to {value} in a namespace", path.display()))
        })
    }

    /// Sets the congestion control with which TCP sockets of the namespace begin. A socket may name
    /// its own one again without privileges.
    ///
    /// The kernel accepts only a congestion control that unprivileged users of the machine may
    /// choose. Another one is allowed to them for the moment of this call. A lock keeps other
    /// processes of the lab from changing the list meanwhile, and a signal from ending this process
    /// before the list is restored ([`cleanup::begin`]).
    fn set_congestion_control(&self, name: &str) -> Result<()> {
        let _lock = cleanup::lock_machine_settings()?;
        let allowed = std::fs::read_to_string(ALLOWED).unwrap_or_default();
        if allowed.is_empty() || allowed.split_whitespace().any(|one| one == name) {
            return self.sysctl(CONGESTION_CONTROL, name);
        }
        let set_allowed = |list: &str| {
            std::fs::write(ALLOWED, list).with_context(|| format!("cannot write {ALLOWED}"))
        };
        set_allowed(&format!("{} {name}", allowed.trim()))?;
        let set = self.sysctl(CONGESTION_CONTROL, name);
        set_allowed(allowed.trim())?;
        set
    }

    /// Received and sent bytes and packets of a device, by the device's own counters. Fails if
    /// there is no such device, or if the namespace cannot be entered.
    pub fn counters(&self, device: &str) -> Result<DeviceCounters> {
        let text = self.enter(|| Ok(std::fs::read_to_string("/proc/thread-self/net/dev")?))?;
        parse_device_counters(&text, device)
            .with_context(|| format!("{} has no device {device}", self.name))
    }

    /// The data that IP has received so far from all devices, behind any receive limit. Fails if
    /// the namespace cannot be entered, or if the kernel does not have the counters.
    pub fn delivered(&self) -> Result<Delivered> {
        self.enter(delivered_here)
    }

    /// The number of TCP segments that arrived so far although an earlier one of their connection
    /// was missing: the earlier one was lost, or they overtook it. Fails if the namespace cannot be
    /// entered, or if the kernel does not have the counter.
    pub fn out_of_order(&self) -> Result<u64> {
        self.enter(out_of_order_here)
    }

    /// The number of TCP segments that this namespace has sent again so far, also those that never
    /// left the host. Fails if the namespace cannot be entered, or if the kernel does not have the
    /// counter.
    pub fn sent_again(&self) -> Result<u64> {
        self.enter(sent_again_here)
    }

    /// The processes that are in the namespace now.
    pub fn pids(&self) -> Vec<u32> {
        cleanup::pids_in(&self.path())
    }

    /// The process of a `netnice-driver` in the namespace; `None` if there is none.
    pub fn driver(&self) -> Option<u32> {
        let is_driver = |pid: &u32| netnice_kernel::process::has_command(*pid, "netnice-driver");
        self.pids().into_iter().find(is_driver)
    }
}

impl Drop for Netns {
    fn drop(&mut self) {
        cleanup::remove_netns(&self.name);
    }
}

/// A device's own counters since it was made, or the difference of two readings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceCounters {
    /// Bytes received (the headers of a segmentation-offload packet count once).
    pub rx_bytes: u64,
    /// Packets received.
    pub rx_packets: u64,
    /// Bytes sent.
    pub tx_bytes: u64,
    /// Packets sent.
    pub tx_packets: u64,
}

/// Total that IP has received in the calling thread's namespace. Fails if the kernel does not have
/// the counters.
pub(super) fn delivered_here() -> Result<Delivered> {
    let read = |name: &str| std::fs::read_to_string(format!("/proc/thread-self/net/{name}"));
    let (snmp, netstat, snmp6) = (read("snmp")?, read("netstat")?, read("snmp6")?);
    parse_delivered(&snmp, &netstat, &snmp6).context("cannot parse the kernel's IP counters")
}

/// The data that IP has received, both address families together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Delivered {
    /// Wall-clock time in ns.
    pub at_ns: u64,
    /// Bytes as they were on the wire: merged segments count one by one, with their Ethernet, IP
    /// and TCP headers.
    pub wire: u64,
}

/// [`Netns::sent_again`] of the calling thread's namespace.
fn sent_again_here() -> Result<u64> {
    let snmp = std::fs::read_to_string("/proc/thread-self/net/snmp")?;
    table(&snmp, "Tcp", "RetransSegs").context("cannot parse the kernel's TCP counters")
}

/// [`Netns::out_of_order`] of the calling thread's namespace.
fn out_of_order_here() -> Result<u64> {
    let netstat = std::fs::read_to_string("/proc/thread-self/net/netstat")?;
    table(&netstat, "TcpExt", "TCPOFOQueue").context("cannot parse the kernel's TCP counters")
}

/// A value of a table of two lines: the names, then the values, each after the table's name.
fn table(text: &str, kind: &str, name: &str) -> Option<u64> {
    let mut lines = text
        .lines()
        .filter_map(|l| l.strip_prefix(kind)?.strip_prefix(':'));
    let at = lines.next()?.split_whitespace().position(|n| n == name)?;
    lines.next()?.split_whitespace().nth(at)?.parse().ok()
}

/// Computes the wire bytes of both address families from packets as the kernel held them, packets
/// as they were on the wire, and bytes. Each packet on the wire adds an Ethernet header; each
/// merged one also adds an IP and a TCP header. `None` if a counter is missing.
fn parse_delivered(snmp: &str, netstat: &str, snmp6: &str) -> Option<Delivered> {
    let single = |name: &str| -> Option<u64> {
        let line = snmp6
            .lines()
            .find_map(|l| l.strip_prefix(name)?.strip_prefix([' ', '\t']))?;
        line.trim().parse().ok()
    };
    let ecn = ["NoECT", "ECT1", "ECT0", "CE"];
    let mut wire = 0;
    let v4 = |name: &str| table(netstat, "IpExt", &format!("In{name}"));
    let v6 = |name: &str| single(&format!("Ip6In{name}"));
    for (held, bytes, of, header) in [
        (
            table(snmp, "Ip", "InReceives")?,
            v4("Octets")?,
            &v4 as &dyn Fn(&str) -> Option<u64>,
            52,
        ),
        (single("Ip6InReceives")?, v6("Octets")?, &v6, 72),
    ] {
        let mut segments = 0;
        for mark in ecn {
            segments += of(&format!("{mark}Pkts"))?;
        }
        wire += bytes + 14 * segments + header * segments.saturating_sub(held);
    }
    Some(Delivered {
        at_ns: sys::now_ns(),
        wire,
    })
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

/// The sysctls that every namespace of the lab gets. With saved TCP metrics, one run would
/// influence the next. A new namespace takes over the machine's own setting of IPv4 forwarding.
const DEFAULTS: [(&str, &str); 6] = [
    ("net/ipv4/ip_forward", "0"),
    ("net/ipv6/conf/all/forwarding", "0"),
    ("net/ipv4/tcp_no_metrics_save", "1"),
    ("net/ipv6/conf/all/accept_dad", "0"),
    ("net/ipv6/conf/default/accept_dad", "0"),
    ("net/ipv4/ping_group_range", "0 2147483647"),
];

/// The congestion control of the lab's namespaces. BBR, the default of some hosts, paces itself and
/// would make a limiter look better.
const CONGESTION: &str = "cubic";
const CONGESTION_CONTROL: &str = "net/ipv4/tcp_congestion_control";
/// The congestion controls that unprivileged users may choose. It is a setting of the whole
/// machine, writable only in its first namespace.
const ALLOWED: &str = "/proc/sys/net/ipv4/tcp_allowed_congestion_control";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn received_bytes_are_counted_as_on_the_wire() {
        let snmp = "Ip: Forwarding InReceives InHdrErrors\nIp: 2 3 0\n";
        // One plain packet of 1500 bytes, and two merged ones of 10 segments and 1 segment of 1448
        // bytes payload.
        let bytes = 1500 + (52 + 14_480) + 1500;
        let netstat = format!(
            "TcpExt: A\nTcpExt: 1\nIpExt: InOctets InNoECTPkts InECT1Pkts InECT0Pkts InCEPkts\n\
             IpExt: {bytes} 11 0 1 0\n"
        );
        let snmp6 = "Ip6InReceives 1\nIp6InOctets 60\nIp6InNoECTPkts 1\nIp6InECT1Pkts 0\n\
            Ip6InECT0Pkts 0\nIp6InCEPkts 0\n";
        let got = parse_delivered(snmp, &netstat, snmp6).expect("familiar");
        assert_eq!(got.wire, 12 * 1514 + 60 + 14);
        assert_eq!(parse_delivered(snmp, "", snmp6), None);
    }

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
