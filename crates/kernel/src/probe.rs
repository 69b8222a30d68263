//! What this kernel offers, tried out: each thing that netnice needs, whether it is there, and what is used instead
//! where it is not.
//!
//! Asking a version number or a configuration file says little: distributions add and take away, modules load on
//! demand, containers shut gates. So each thing is used once, on a pair of interfaces that exists for the probe only
//! (`nnp0`, `nnp1`), and programs are given to the verifier without being attached.

use std::{fs, os::unix::fs::MetadataExt};

use crate::{
    cgroup,
    device::{self, Pair},
    error::KernelError,
    netlink::Route,
    plan::Leaves,
    process::{self, PidFd},
    programs,
    tc::{self, Handle, HtbClass, LeafQueue, Queue},
};

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// What it is.
    pub name: &'static str,
    /// How it stands.
    pub status: Status,
    /// What was found, and what is used.
    pub detail: String,
    /// What would make it better.
    pub hint: Option<&'static str>,
}

/// How one thing stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// There, and used.
    Good,
    /// Not there; something else is used instead.
    Instead,
    /// Not there, and something does not work without it.
    Missing,
}

/// Looks at everything.
pub fn look() -> Vec<Item> {
    let mut items = vec![
        version(),
        type_information(),
        verifier(),
        control_groups(),
        process_namespace(),
        process_handles(),
    ];
    match Route::open() {
        Ok(mut route) => {
            items.extend(qdiscs(&mut route));
            items.push(others(&mut route));
        }
        Err(error) => items.push(missing(
            "route netlink",
            error.to_string(),
            "netniced needs root, or CAP_NET_ADMIN in its network namespace",
        )),
    }
    items.push(multipath());
    items
}

/// What queues in the leaves of classes on this kernel.
pub fn leaves() -> Leaves {
    let tried = Route::open()
        .map_err(KernelError::from)
        .and_then(|mut route| Bench::new(&mut route)?.queue(&fq_codel()));
    match tried {
        Ok(()) => Leaves::FqCodel,
        Err(_) => Leaves::Fifo,
    }
}

fn version() -> Item {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let release = release.trim();
    let known = aya::util::KernelVersion::current();
    match known {
        Ok(version) if version >= aya::util::KernelVersion::new(6, 1, 0) => {
            good("kernel", format!("Linux {release}"))
        }
        _ => Item {
            name: "kernel",
            status: Status::Instead,
            detail: format!("Linux {release}, older than 6.1, which is the oldest that is tested"),
            hint: Some("see whether the rest of this list is good"),
        },
    }
}

fn type_information() -> Item {
    match fs::metadata("/sys/kernel/btf/vmlinux") {
        Ok(_) => good("type information", "BTF, /sys/kernel/btf/vmlinux".into()),
        Err(error) => missing(
            "type information",
            format!("/sys/kernel/btf/vmlinux: {error}"),
            "it needs CONFIG_DEBUG_INFO_BTF, which Debian and Ubuntu kernels have",
        ),
    }
}

fn verifier() -> Item {
    let hook = match programs::has_tcx() {
        true => "tcx",
        false => "a filter of clsact, for want of tcx (Linux 6.6)",
    };
    match programs::verify() {
        Ok(()) => Item {
            name: "eBPF programs",
            status: match programs::has_tcx() {
                true => Status::Good,
                false => Status::Instead,
            },
            detail: format!("accepted by the verifier; attached by {hook}"),
            hint: None,
        },
        Err(error) => missing(
            "eBPF programs",
            error.to_string(),
            "netniced needs root; lockdown and some containers refuse eBPF",
        ),
    }
}

fn control_groups() -> Item {
    match cgroup::root() {
        Ok(root) => good("control groups", format!("cgroup2 at {}", root.display())),
        Err(error) => missing(
            "control groups",
            error.to_string(),
            "new sockets are seen at the root of cgroup2: mount -t cgroup2 none /sys/fs/cgroup",
        ),
    }
}

/// Programs on tracepoints see the numbers of the first namespace; a daemon inside another one reads other numbers.
fn process_namespace() -> Item {
    match fs::metadata("/proc/self/ns/pid").map(|m| m.ino()) {
        Ok(FIRST_PID_NAMESPACE) => good("process numbers", "those of the whole machine".into()),
        _ => missing(
            "process numbers",
            "netniced runs in a process namespace of its own, where numbers are not the kernel's".into(),
            "start netniced outside of the container; units, groups, users and links work inside too",
        ),
    }
}

fn process_handles() -> Item {
    let own = fs::File::open("/proc/self/status");
    let taken = own.and_then(|file| {
        let handle = PidFd::open(std::process::id())?;
        handle
            .take(std::os::fd::AsRawFd::as_raw_fd(&file))
            .map(drop)
    });
    match taken {
        Ok(()) => good(
            "open sockets",
            "those of a running program are found with pidfd_getfd".into(),
        ),
        Err(error) => missing(
            "open sockets",
            format!("pidfd_getfd: {error}"),
            "limits hold for new connections only; the call needs ptrace rights (CAP_SYS_PTRACE)",
        ),
    }
}

/// The qdiscs, each used once.
fn qdiscs(route: &mut Route) -> Vec<Item> {
    let mut bench = match Bench::new(route) {
        Ok(bench) => bench,
        Err(error) => {
            return vec![missing(
                "stage",
                format!("a pair of interfaces with HTB: {error}"),
                "limits need veth and sch_htb (CONFIG_VETH, CONFIG_NET_SCH_HTB) and root",
            )];
        }
    };
    let mut items = vec![good("stage", "a veth pair with HTB holds packets back".into())];
    items.push(match bench.queue(&fq_codel()) {
        Ok(()) => good(
            "short queues",
            "fq_codel inside limits and guarantees".into(),
        ),
        Err(error) => Item {
            name: "short queues",
            status: Status::Instead,
            detail: format!("a sparse and a bulk queue in each class, for want of fq_codel ({error})"),
            hint: Some("CONFIG_NET_SCH_FQ_CODEL (module sch_fq_codel) serves flows apart"),
        },
    });
    items.push(match bench.clsact() {
        Ok(()) => good("clsact", "where filters of others stand beside ours".into()),
        Err(error) if programs::has_tcx() => Item {
            name: "clsact",
            status: Status::Instead,
            detail: format!("not there, and not needed: tcx is used ({error})"),
            hint: None,
        },
        Err(error) => missing(
            "clsact",
            error.to_string(),
            "limits need CONFIG_NET_SCH_INGRESS (module sch_ingress) or Linux 6.6",
        ),
    });
    items
}

/// Who else uses qdiscs here: such links cannot be managed.
fn others(route: &mut Route) -> Item {
    let name = "links of others";
    let devices = device::list(route);
    let (Ok(devices), Ok(qdiscs)) = (devices, tc::qdiscs(route)) else {
        return missing(name, "qdiscs cannot be listed".into(), "netniced needs root");
    };
    let foreign = |qdisc: &&tc::FoundQdisc| {
        qdisc.parent == Handle::ROOT
            && qdisc.handle.major() != 0
            && qdisc.handle.major() != crate::enforce::LINK_HANDLE
    };
    let named = |qdisc: &tc::FoundQdisc| {
        let device = devices.iter().find(|d| d.index == qdisc.ifindex)?;
        let ours = device.name.starts_with(device::OUR_PREFIX);
        (!ours).then(|| format!("{} ({} {:x}:)", device.name, qdisc.kind, qdisc.handle.major()))
    };
    let taken: Vec<String> = qdiscs.iter().filter(foreign).filter_map(named).collect();
    match taken.is_empty() {
        true => good(name, "no interface has a queue that somebody else set".into()),
        false => Item {
            name,
            status: Status::Instead,
            detail: format!(
                "limits work everywhere; guarantees not on {}, whose queue somebody else set",
                taken.join(", ")
            ),
            hint: Some("`tc qdisc del dev IFACE root` gives such a queue up"),
        },
    }
}

fn multipath() -> Item {
    let enabled = fs::read_to_string("/proc/sys/net/mptcp/enabled").unwrap_or_default();
    match enabled.trim() {
        "" | "0" => good("multipath TCP", "not used on this host".into()),
        _ => Item {
            name: "multipath TCP",
            status: Status::Instead,
            detail: "the kernel hides the owner of its further connections; their cgroup decides".into(),
            hint: Some("limit the unit or cgroup of programs that use it, or sysctl net.mptcp.enabled=0"),
        },
    }
}

/// A pair of interfaces to try things on; it goes when this is dropped.
struct Bench<'r> {
    route: &'r mut Route,
    pair: Pair,
}

impl<'r> Bench<'r> {
    fn new(route: &'r mut Route) -> Result<Self, KernelError> {
        let pair = device::ensure_pair(route, NEAR, FAR)?;
        let bench = Self { route, pair };
        match tc::add_htb(bench.route, pair.near, MAJOR) {
            Err(error) if !error.exists() => Err(error.into()),
            _ => Ok(bench),
        }
    }

    /// Tries a queue in a class.
    fn queue(&mut self, queue: &LeafQueue) -> Result<(), KernelError> {
        let class = HtbClass {
            rate: 125_000,
            ceil: 125_000,
            burst: 1 << 16,
            cburst: 1 << 16,
            quantum: 1_514,
            priority: 0,
            overhead: 0,
        };
        let id = Handle::new(MAJOR, 1);
        tc::put_class(self.route, self.pair.near, id, Handle::new(MAJOR, 0), &class)?;
        Ok(tc::put_queue(self.route, self.pair.near, id, queue)?)
    }

    fn clsact(&mut self) -> Result<(), KernelError> {
        tc::ensure_clsact(self.route, self.pair.near)?;
        Ok(())
    }
}

impl Drop for Bench<'_> {
    fn drop(&mut self) {
        if let Err(error) = device::remove(self.route, self.pair.near) {
            tracing::warn!(%error, "the probe's interfaces are left over");
        }
    }
}

/// Whether a process that is named by number is named by the kernel's number.
pub fn sees_all_processes() -> bool {
    process_namespace().status == Status::Good
}

/// Whether this process has what it takes to make one of these things itself.
pub fn boot() -> std::io::Result<String> {
    process::boot()
}

fn fq_codel() -> LeafQueue {
    LeafQueue {
        queue: Queue::FqCodel {
            target: 5_000,
            quantum: 1_514,
        },
        cut: None,
    }
}

fn good(name: &'static str, detail: String) -> Item {
    Item {
        name,
        status: Status::Good,
        detail,
        hint: None,
    }
}

fn missing(name: &'static str, detail: String, hint: &'static str) -> Item {
    Item {
        name,
        status: Status::Missing,
        detail,
        hint: Some(hint),
    }
}

const NEAR: &str = "nnp0";
const FAR: &str = "nnp1";
const MAJOR: u16 = 0x4e30;
/// `PROC_PID_INIT_INO`, include/linux/proc_ns.h.
const FIRST_PID_NAMESPACE: u64 = 0xEFFF_FFFC;
