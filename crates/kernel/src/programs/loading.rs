//! Loads each eBPF program, so that the kernel verifies it. If the kernel refuses a program, the
//! error names it and contains the last lines of the verifier's log. Loading also fails if the
//! kernel has no type information (BTF), and [`test_load`] if the kernel refuses a map.

use aya::programs::{
    BtfTracePoint, CgroupSkb, CgroupSock, CgroupSockAddr, Iter, SchedClassifier, SockOps,
};
use aya::{Btf, Ebpf, EbpfLoader};

use super::{Hook, OBJECT, program};
use crate::error::KernelError;

/// Loads every program onto new maps and attaches none, to test whether this kernel accepts them.
///
/// # Errors
/// If the kernel refuses a program or a map.
pub(crate) fn test_load() -> Result<(), KernelError> {
    let mut ebpf = EbpfLoader::new()
        .load(OBJECT)
        .map_err(|e| KernelError::bpf("load the eBPF programs", e))?;
    load_programs(&mut ebpf, &kernel_types()?)
}

/// Loads each program without attaching it. Fails if the kernel refuses a program.
pub(super) fn load_programs(ebpf: &mut Ebpf, types: &Btf) -> Result<(), KernelError> {
    for (name, tracepoint) in TRACEPOINTS {
        let program: &mut BtfTracePoint = program(ebpf, name)?;
        program
            .load(tracepoint, types)
            .map_err(|e| KernelError::bpf(format!("load {name}"), e))?;
    }
    let sock: &mut CgroupSock = program(ebpf, "on_sock_create")?;
    sock.load()
        .map_err(|e| KernelError::bpf("load on_sock_create", e))?;
    for name in SOCK_ADDR {
        let program: &mut CgroupSockAddr = program(ebpf, name)?;
        program
            .load()
            .map_err(|e| KernelError::bpf(format!("load {name}"), e))?;
    }
    let receive: &mut CgroupSkb = program(ebpf, "on_cgroup_receive")?;
    receive
        .load()
        .map_err(|e| KernelError::bpf("load on_cgroup_receive", e))?;
    for hook in Hook::ALL {
        let program: &mut SchedClassifier = program(ebpf, hook.program())?;
        program
            .load()
            .map_err(|e| KernelError::bpf(format!("load {}", hook.program()), e))?;
    }
    Ok(())
}

/// Loads the programs that tune TCP connections to limits, without attaching them. Fails as
/// [`load_programs`].
pub(super) fn load_tcp(ebpf: &mut Ebpf, types: &Btf) -> Result<(), KernelError> {
    let take_back: &mut Iter = program(ebpf, TAKE_BACK)?;
    take_back
        .load("tcp", types)
        .map_err(|e| KernelError::bpf(format!("load {TAKE_BACK}"), e))?;
    let tune: &mut SockOps = program(ebpf, TUNE)?;
    tune.load()
        .map_err(|e| KernelError::bpf(format!("load {TUNE}"), e))
}

/// The kernel's types. Reading them takes some 20 ms. Fails if the kernel has no BTF.
pub(super) fn kernel_types() -> Result<Btf, KernelError> {
    Btf::from_sys_fs().map_err(|_| KernelError::Missing {
        what: "type information (BTF, /sys/kernel/btf/vmlinux)",
        hint: "it needs CONFIG_DEBUG_INFO_BTF, which Debian and Ubuntu kernels have",
    })
}

/// The program that tunes TCP connections to limits.
pub(super) const TUNE: &str = "on_tcp";
/// The program that takes back what [`TUNE`] set of all connections, each time that its link is
/// read.
pub(super) const TAKE_BACK: &str = "on_each_tcp";
/// The programs at tracepoints, each with the name of its tracepoint.
pub(super) const TRACEPOINTS: [(&str, &str); 4] = [
    ("on_fork", "sched_process_fork"),
    ("on_exec", "sched_process_exec"),
    ("on_exit", "sched_process_exit"),
    ("on_cgroup_made", "cgroup_mkdir"),
];
/// The programs at bind(2) and connect(2).
pub(super) const SOCK_ADDR: [&str; 4] = ["on_bind4", "on_bind6", "on_connect4", "on_connect6"];
