//! Finds out what this kernel offers, what netnice uses instead of a missing feature, and what is
//! missing: a [`Finding`] for each feature.
//!
//! The probe finds some features by files of /proc and /sys or by the kernel's version, and tries
//! the others. It loads the eBPF programs without attaching them, takes a copy of a descriptor of
//! its own, and installs the queueing disciplines on a veth pair in a network namespace of its own,
//! which ends with its thread. So a probe leaves no program, interface or queueing discipline
//! behind. A feature whose module the kernel loads on demand counts as present: using the feature
//! loads the module. The probe never fails: the error of a trial is part of its finding.

mod processor_time;

use std::{
    fs,
    os::{fd::AsRawFd, unix::fs::MetadataExt},
    path::Path,
    thread,
};

use rustix::thread::{UnshareFlags, unshare_unsafe};

use crate::{
    cgroup, device,
    enforce::{LINK_MAJOR, PACER_MAJOR},
    error::KernelError,
    netlink::NetlinkClient,
    plan::LeafQdisc,
    process::{PidFd, copies::with_own_descriptors},
    programs,
    tc::{self, Handle, HtbClass, LeafQueue, Queue},
};

/// The result for one feature.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The feature's name.
    pub name: &'static str,
    /// The feature's state.
    pub state: FeatureState,
    /// What was found, and what netnice uses.
    pub detail: String,
    /// What the user can do for a better result; `None` if nothing is known or needed.
    pub hint: Option<String>,
}

/// The state of a feature.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FeatureState {
    /// Present and used.
    Good,
    /// Absent; netnice uses a substitute.
    Fallback,
    /// Absent, and some function of netnice does not work without it.
    Missing,
}

impl Finding {
    fn good(name: &'static str, detail: impl Into<String>) -> Self {
        Self {
            name,
            state: FeatureState::Good,
            detail: detail.into(),
            hint: None,
        }
    }

    fn fallback(name: &'static str, detail: impl Into<String>, hint: &str) -> Self {
        let hint = Some(hint.to_owned()).filter(|h| !h.is_empty());
        Self {
            name,
            state: FeatureState::Fallback,
            detail: detail.into(),
            hint,
        }
    }

    fn missing(name: &'static str, detail: impl Into<String>, hint: &str) -> Self {
        Self {
            state: FeatureState::Missing,
            ..Self::fallback(name, detail, hint)
        }
    }
}

/// Probes all features, the most important ones first. Without root's rights, the features that
/// need a trial (the eBPF programs, veth, HTB and TBF) are [`FeatureState::Missing`].
pub fn probe() -> Vec<Finding> {
    let mut findings = vec![
        kernel(),
        privilege(),
        type_information(),
        control_groups(),
        process_numbers(),
        open_sockets(),
    ];
    findings.push(ebpf());
    findings.push(attachment());
    findings.extend(disciplines(&Trials::run()));
    findings.push(mptcp());
    findings.extend(processor_time::findings());
    findings.push(other_tc_users());
    findings
}

/// The queueing discipline for the leaves of links on this kernel: fq_codel if a trial with it
/// succeeds, else FIFOs.
pub fn leaf_qdisc() -> LeafQdisc {
    if Trials::run().fq_codel.is_ok() {
        LeafQdisc::FqCodel
    } else {
        LeafQdisc::Fifo
    }
}

fn kernel() -> Finding {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    Finding::good("kernel", format!("Linux {}", release.trim()))
}

fn privilege() -> Finding {
    if rustix::process::geteuid().is_root() {
        return Finding::good("privilege", "root");
    }
    Finding::missing(
        "privilege",
        "not root: the features below could not be tested",
        "run `netnice doctor` as root",
    )
}

fn type_information() -> Finding {
    let name = "type information (BTF)";
    if Path::new(BTF).exists() {
        return Finding::good(name, "processes are followed through fork, exec and exit");
    }
    let hint = "a kernel with CONFIG_DEBUG_INFO_BTF, as Debian's and Ubuntu's";
    Finding::missing(
        name,
        format!("{BTF} does not exist; no limit works without it"),
        hint,
    )
}

fn control_groups() -> Finding {
    match cgroup::root() {
        Ok(root) => Finding::good("cgroup2", format!("mounted at {}", root.display())),
        Err(error) => Finding::missing("cgroup2", error.to_string(), ""),
    }
}

/// The eBPF programs see process ids of the first pid namespace, this process those of its own
/// namespace.
fn process_numbers() -> Finding {
    let name = "process namespace";
    match fs::metadata("/proc/self/ns/pid").map(|m| m.ino()) {
        Ok(FIRST_PID_NAMESPACE) => Finding::good(name, "the first one"),
        _ => Finding::missing(
            name,
            "not the first one: the eBPF programs see other process ids, so limits on processes \
             would apply to the wrong ones; cgroups and users work",
            "start netniced outside of containers",
        ),
    }
}

fn ebpf() -> Finding {
    match programs::test_load() {
        Ok(()) => Finding::good("eBPF programs", "all of them load"),
        Err(error) => Finding::missing(
            "eBPF programs",
            error.to_string(),
            "netniced needs CAP_BPF and CAP_NET_ADMIN",
        ),
    }
}

fn attachment() -> Finding {
    let name = "attachment";
    if programs::has_tcx() {
        return Finding::good(name, "tcx, before all filters of other programs");
    }
    Finding::fallback(
        name,
        "clsact filters (tcx needs Linux 6.6); a filter before netnice's sees limited packets \
         twice",
        "",
    )
}

fn disciplines(trials: &Trials) -> Vec<Finding> {
    let module = |name| format!("`modprobe {name}`, or a kernel that has it");
    let needed = |name, found: &Result<(), String>, use_of: &str, hint: &str| match found {
        Ok(()) => Finding::good(name, use_of),
        Err(error) => Finding::missing(name, error.clone(), hint),
    };
    let leaves = match &trials.fq_codel {
        Ok(()) => Finding::good("fq_codel", "queues of managed links"),
        Err(_) => Finding::fallback(
            "fq_codel",
            "absent; managed links use byte FIFOs instead",
            &module("sch_fq_codel"),
        ),
    };
    vec![
        needed(
            "veth",
            &trials.veth,
            "the stage that limited packets pass",
            &module("veth"),
        ),
        needed(
            "HTB",
            &trials.htb,
            "holds rates and guarantees",
            &module("sch_htb"),
        ),
        needed(
            "TBF",
            &trials.tbf,
            "segments packets of segmentation offload",
            &module("sch_tbf"),
        ),
        leaves,
    ]
}

fn mptcp() -> Finding {
    let enabled = fs::read_to_string("/proc/sys/net/mptcp/enabled").unwrap_or_default();
    if enabled.trim() != "1" {
        return Finding::good("MPTCP", "not in use");
    }
    Finding::fallback(
        "MPTCP",
        "in use: the first subflow of a socket has an owner; subflows that the kernel adds later, \
         and sockets that were open before, are found by their cgroup",
        "",
    )
}

/// Qdiscs of other tc users in this namespace.
fn other_tc_users() -> Finding {
    let name = "other users of tc";
    let found = NetlinkClient::open()
        .map_err(KernelError::from)
        .and_then(|mut netlink| {
            let devices = device::list(&mut netlink)?;
            let qdiscs = tc::qdiscs(&mut netlink)?;
            Ok(qdiscs
                .into_iter()
                .filter(|q| {
                    let ours = [0, LINK_MAJOR, PACER_MAJOR];
                    let root = q.parent == Handle::ROOT && !ours.contains(&q.handle.major());
                    root || q.parent == Handle::CLSACT
                })
                .filter_map(|q| {
                    let device = devices.iter().find(|d| d.index == q.ifindex)?;
                    let ours = device.is_ours();
                    (!ours).then(|| format!("{} has {}", device.name, q.kind))
                })
                .collect::<Vec<String>>())
        });
    match found {
        Ok(list) if list.is_empty() => Finding::good(name, "none"),
        Ok(list) => Finding::good(
            name,
            format!(
                "{}; netnice cannot manage a link that has their root qdisc",
                list.join(", ")
            ),
        ),
        Err(error) => Finding::missing(name, error.to_string(), ""),
    }
}

/// Whether open sockets of a program can be found: tries pidfd_getfd on a descriptor of this
/// process.
fn open_sockets() -> Finding {
    let name = "open sockets";
    let taken = fs::File::open("/proc/self/status").and_then(|file| {
        let own = PidFd::open(std::process::id())?;
        with_own_descriptors(|descriptors| descriptors.take(&own, file.as_raw_fd()).map(drop))?
    });
    match taken {
        Ok(_) => Finding::good(name, "those of a running program are found (pidfd_getfd)"),
        Err(error) => Finding::missing(
            name,
            format!("pidfd_getfd: {error}; limits hold for new connections only"),
            "netniced needs CAP_SYS_PTRACE",
        ),
    }
}

/// The results of the trials on a veth pair in a namespace of its own.
struct Trials {
    veth: Result<(), String>,
    htb: Result<(), String>,
    tbf: Result<(), String>,
    fq_codel: Result<(), String>,
}

impl Trials {
    fn run() -> Self {
        thread::spawn(Self::run_in_own_namespace)
            .join()
            .unwrap_or_else(|_| Self::failed("the thread of the trial ended early"))
    }

    /// Runs on a thread that leaves its namespace; the new namespace ends with the thread.
    fn run_in_own_namespace() -> Self {
        // SAFETY: the descriptor table stays shared. The call changes the namespace of this thread
        // only, which ends after the trial.
        if let Err(error) = unsafe { unshare_unsafe(UnshareFlags::NEWNET) } {
            let error = std::io::Error::from(error);
            return Self::failed(&format!(
                "cannot create a network namespace for the trial: {error}"
            ));
        }
        let mut netlink = match NetlinkClient::open() {
            Ok(netlink) => netlink,
            Err(error) => return Self::failed(&error.to_string()),
        };
        let pair = match device::ensure_pair(&mut netlink, "nnp0", "nnp1") {
            Ok(pair) => pair,
            Err(error) => return Self::failed(&error.to_string()),
        };
        let class = HtbClass {
            rate: 1_000_000,
            ceil: 1_000_000,
            burst: 100_000,
            cburst: 100_000,
            quantum: 1_514,
            priority: 0,
            overhead: 0,
        };
        let id = Handle::new(1, 9); // the segmenting filter takes the minor number as its handle
        let text =
            |result: Result<(), crate::netlink::NetlinkError>| result.map_err(|e| e.to_string());
        let htb =
            text(tc::add_htb(&mut netlink, pair.near, 1).and_then(|()| {
                tc::put_class(&mut netlink, pair.near, id, Handle::new(1, 0), &class)
            }));
        let mut queue = |queue, segment_to| match &htb {
            Ok(()) => text(tc::put_queue(
                &mut netlink,
                pair.near,
                id,
                &LeafQueue { queue, segment_to },
            )),
            Err(error) => Err(error.clone()),
        };
        let tbf = queue(Queue::Fifo { limit: 10_000 }, Some(1_514));
        let fq_codel = queue(
            Queue::FqCodel {
                target: 5_000,
                quantum: 1_514,
            },
            None,
        );
        Self {
            veth: Ok(()),
            htb,
            tbf,
            fq_codel,
        }
    }

    fn failed(why: &str) -> Self {
        let no = || Err(why.to_owned());
        Self {
            veth: no(),
            htb: no(),
            tbf: no(),
            fq_codel: no(),
        }
    }
}

const BTF: &str = "/sys/kernel/btf/vmlinux";
/// `PROC_PID_INIT_INO` of the kernel.
const FIRST_PID_NAMESPACE: u64 = 0xEFFF_FFFC;
