//! Wraps system calls that std and socket2 do not have, by rustix and nix. Calls that neither of
//! them has are made by libc: scheduling classes, some socket options, packet sockets, sendmmsg(2),
//! tun devices, and one command of bpf(2). `wire::ring` is the only other file of this crate with
//! unsafe code.
//!
//! Rules: no function keeps a pointer after it returns, and each unsafe block has a safety comment.
//! Unless its documentation says otherwise, a function fails with the error of its system call.
//! `Mapped` keeps a mapping and gives no reference into it. The packet ring gives references; it is
//! in `wire::ring` with rules of its own.

use std::ffi::c_int;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::ptr;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::signal::{self, SigSet, SigmaskHow, Signal};
use nix::sys::time::TimeVal;
use nix::unistd::{ForkResult, Pid};
use procfs_core::process::{Schedstat, Stat};
use procfs_core::{ExplicitSystemInfo, FromRead, FromReadSI, KernelStats, ProcResult};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};
use rustix::net::{AddressFamily, SocketFlags, SocketType, netdevice};
use rustix::process::{Gid, Resource, Rlimit, Uid, getrlimit, setrlimit};
use rustix::pty::{OpenptFlags, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use rustix::thread::{
    CpuSet, LinkNameSpaceType, move_into_link_name_space, sched_getaffinity, sched_setaffinity,
};
use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds since 1970 by the wall clock, the clock of packet timestamps; 0 before 1970.
///
/// The lab stamps all records (packets, samples, the start of a command) with this clock, so that
/// records of different processes can be compared.
pub fn now_ns() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |d| d.as_nanos() as u64)
}

/// Sleeps until a time of `CLOCK_MONOTONIC` in ns.
pub(crate) fn sleep_until(at: u64) {
    let left = at.saturating_sub(netnice_stack::monotonic_ns());
    std::thread::sleep(Duration::from_nanos(left));
}

/// Moves the calling thread into a network namespace. Fails without the right to enter it
/// (CAP_SYS_ADMIN).
pub(crate) fn enter_netns(ns: impl AsFd) -> io::Result<()> {
    Ok(move_into_link_name_space(
        ns.as_fd(),
        Some(LinkNameSpaceType::Network),
    )?)
}

/// Makes `command` start inside `ns` (`None`: in the caller's network namespace), as leader of its
/// own process group, with no signal blocked.
///
/// The mount namespace stays the caller's. Unlike `ip netns exec` this does not remount /sys, so
/// that objects pinned under it remain visible.
pub(crate) fn start_in_netns(command: &mut Command, ns: Option<Arc<File>>) {
    command.process_group(0);
    // SAFETY: between fork and exec only setns and sigprocmask are called; both are plain system
    // calls without allocation or locks.
    unsafe {
        command.pre_exec(move || {
            if let Some(ns) = &ns {
                enter_netns(ns)?;
            }
            let none = SigSet::empty();
            Ok(signal::sigprocmask(
                SigmaskHow::SIG_SETMASK,
                Some(&none),
                None,
            )?)
        });
    }
}

/// Forks. Returns true in the child. Fails as [`fork_child`] does.
pub(crate) fn fork() -> io::Result<bool> {
    Ok(fork_child()?.is_none())
}

/// Forks. Returns the child's id in the parent, and `None` in the child. Fails with the error of
/// fork(2), and if the process has more than one thread: a lock held by another thread would stay
/// locked in the child.
pub(crate) fn fork_child() -> io::Result<Option<u32>> {
    let threads = std::fs::read_dir("/proc/self/task")?.count();
    if threads != 1 {
        return Err(io::Error::other(format!(
            "a process of {threads} threads does not fork"
        )));
    }
    // SAFETY: the process has this one thread, so that the child is a complete copy and may do all
    // that the parent may.
    let child = match unsafe { nix::unistd::fork()? } {
        ForkResult::Parent { child } => Some(child.as_raw() as u32),
        ForkResult::Child => None,
    };
    Ok(child)
}

/// Begins a session of its own. The process may be the leader of its group, if its parent is in the
/// same session: it joins its parent's group first. Fails if the parent is in another session.
pub(crate) fn begin_session() -> io::Result<()> {
    let parent = rustix::process::getppid();
    rustix::process::setpgid(None, Some(rustix::process::getpgid(parent)?))?;
    rustix::process::setsid()?;
    Ok(())
}

/// Clears the close-on-exec flag of all descriptors that are open now. Fails if `/proc/self/fd`
/// cannot be read, or if a descriptor is closed meanwhile.
pub(crate) fn clear_close_on_exec() -> io::Result<()> {
    for entry in std::fs::read_dir("/proc/self/fd")? {
        let Some(Ok(number)) = entry?.file_name().to_str().map(str::parse::<i32>) else {
            continue;
        };
        // SAFETY: setting a flag is sound for any descriptor, also for one that is closed by now.
        fcntl_setfd(unsafe { BorrowedFd::borrow_raw(number) }, FdFlags::empty())?;
    }
    Ok(())
}

/// Changes user and group of the calling thread alone to `uid`, without supplementary groups. The
/// change cannot be undone. Fails without the right to change them.
pub fn become_user(uid: u32) -> io::Result<()> {
    // The C library's functions would change all threads of the process.
    let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(uid));
    rustix::thread::set_thread_groups(&[])?;
    rustix::thread::set_thread_res_gid(gid, gid, gid)?;
    Ok(rustix::thread::set_thread_res_uid(uid, uid, uid)?)
}

/// Sends `signal` to a process, or to the whole process group `-pid` if `pid` is negative. Fails
/// also for an unknown signal.
pub fn kill(pid: i32, signal: i32) -> io::Result<()> {
    Ok(signal::kill(Pid::from_raw(pid), Signal::try_from(signal)?)?)
}

/// The state of a process as one letter (proc_pid_stat(5)), such as `R` running, `S` sleeping, `T`
/// stopped by a signal, `Z` zombie. `None` if there is no such process.
pub fn state(pid: u32) -> Option<char> {
    Some(Stat::from_file(format!("/proc/{pid}/stat")).ok()?.state)
}

/// True while a process with this id exists and is not a zombie.
pub fn is_alive(pid: u32) -> bool {
    state(pid).is_some_and(|state| state != 'Z')
}

/// Processor time of this process so far: in user mode, and in the kernel. Zero if the kernel does
/// not report it.
pub(crate) fn cpu_time() -> (Duration, Duration) {
    let usage = getrusage(UsageWho::RUSAGE_SELF);
    let of = |t: TimeVal| Duration::new(t.tv_sec() as u64, t.tv_usec() as u32 * 1000);
    let times = usage.map(|usage| (of(usage.user_time()), of(usage.system_time())));
    times.unwrap_or_default()
}

/// Time that the hypervisor has taken from each of this machine's processors so far, in steps of 10
/// ms: the kernel's *steal* (proc_stat(5)). Empty if the kernel does not count it.
pub(crate) fn stolen_times() -> Vec<Duration> {
    let units = ExplicitSystemInfo {
        boot_time_secs: 0,
        ticks_per_second: 100,
        page_size: 4096,
        is_little_endian: cfg!(target_endian = "little"),
    };
    let counts = KernelStats::from_file("/proc/stat", &units);
    let each = counts.map(|counts| counts.cpu_time).unwrap_or_default();
    let stolen = each.iter().map(|one| one.steal_duration());
    stolen.collect::<Option<_>>().unwrap_or_default()
}

/// Seconds of processor time that a process has used so far, with all of its threads, in steps of
/// 10 ms. Fails if there is no such process.
pub fn cpu_seconds(pid: u32) -> ProcResult<f64> {
    let stat = Stat::from_file(format!("/proc/{pid}/stat"))?;
    Ok((stat.utime + stat.stime) as f64 / 100.0)
}

/// Nanoseconds that the first thread of a process has been on a processor so far. Fails if there is
/// no such process.
pub(crate) fn time_on_cpu(pid: u32) -> ProcResult<u64> {
    Ok(Schedstat::from_file(format!("/proc/{pid}/schedstat"))?.sum_exec_runtime)
}

/// Nanoseconds that the threads of a process that have this name, or all of them, have been on a
/// processor so far, without those that have ended. Fails if there is no such process.
pub(crate) fn time_of_threads(pid: u32, name: Option<&str>) -> io::Result<u64> {
    let mut sum = 0;
    for thread in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        let folder = thread?.path();
        // A thread that ends meanwhile counts nothing.
        let own = std::fs::read_to_string(folder.join("comm")).unwrap_or_default();
        if name.is_none_or(|name| name == own.trim_end()) {
            let spent = Schedstat::from_file(folder.join("schedstat"));
            sum += spent.map_or(0, |spent| spent.sum_exec_runtime);
        }
    }
    Ok(sum)
}

/// Processor time of a process so far in ns, with all of its threads, also those that have ended,
/// and without its children. Fails if there is no such process; a zombie has its time.
pub fn processor_time(pid: u32) -> io::Result<u64> {
    let time = netnice_kernel::process::processor_time(pid);
    time.map(|time| time.0)
        .ok_or(io::ErrorKind::NotFound.into())
}

/// Processor time of the calling thread so far, to the nanosecond.
pub(crate) fn thread_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Uses so much processor time in the calling thread.
pub(crate) fn burn(work: Duration) {
    let until = thread_time() + work;
    while thread_time() < until {
        std::hint::spin_loop();
    }
}

/// Sets the calling thread to SCHED_RR with this priority (1 to 99). Fails without the right to
/// real-time priority.
pub(crate) fn set_real_time_priority(priority: i32) -> io::Result<()> {
    set_scheduler(libc::SCHED_RR, priority)
}

/// Sets the nice value of the calling thread; threads that it starts later inherit it. Fails
/// without the right to a smaller nice value.
pub(crate) fn set_nice(nice: i32) -> io::Result<()> {
    Ok(rustix::process::setpriority_process(None, nice)?)
}

/// Makes the kernel kill the calling process when the thread that forked it ends.
pub(crate) fn end_with_parent() -> io::Result<()> {
    let signal = Some(rustix::process::Signal::KILL);
    Ok(rustix::process::set_parent_process_death_signal(signal)?)
}

/// Waits for the children that have ended, without blocking; returns their number. Fails if a call
/// fails for another reason than that no child is left.
pub(crate) fn reap_children() -> io::Result<u32> {
    let mut reaped = 0;
    loop {
        match rustix::process::waitpid(None, rustix::process::WaitOptions::NOHANG) {
            Ok(Some(_)) => reaped += 1,
            Ok(None) | Err(rustix::io::Errno::CHILD) => return Ok(reaped),
            Err(error) => return Err(error.into()),
        }
    }
}

/// Sets the calling thread to SCHED_IDLE: it runs only when no other thread is ready on its
/// processor. Fails without the right to leave the present scheduling class.
pub fn set_idle_priority() -> io::Result<()> {
    set_scheduler(libc::SCHED_IDLE, 0)
}

fn set_scheduler(class: c_int, priority: i32) -> io::Result<()> {
    let priority = libc::sched_param {
        sched_priority: priority,
    };
    // SAFETY: the parameters outlive the call.
    check(unsafe { libc::sched_setscheduler(0, class, &priority) })
}

/// The numbers of the processors on which the calling thread may run, in ascending order.
pub(crate) fn processors() -> io::Result<Vec<usize>> {
    let allowed = sched_getaffinity(None)?;
    Ok((0..CpuSet::MAX_CPU)
        .filter(|number| allowed.is_set(*number))
        .collect())
}

/// Binds all threads of a process to a processor that [`processors`] returned. Threads that the
/// process starts later inherit this. Fails also if there is no such process, or if one of its
/// threads ends meanwhile.
pub(crate) fn bind_to_processor(pid: u32, processor: usize) -> io::Result<()> {
    bind_to_processors(pid, &[processor])
}

/// Binds all threads of a process to processors, and fails as [`bind_to_processor`] does.
pub(crate) fn bind_to_processors(pid: u32, processors: &[usize]) -> io::Result<()> {
    let mut only = CpuSet::new();
    for processor in processors {
        only.set(*processor);
    }
    for thread in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        let number = thread?.file_name().to_str().and_then(|n| n.parse().ok());
        let thread = number.and_then(rustix::thread::Pid::from_raw);
        sched_setaffinity(Some(thread.ok_or(io::ErrorKind::InvalidData)?), &only)?;
    }
    Ok(())
}

/// Raises the soft limit of open files to the hard limit; returns the new value. Fails with the
/// error of setrlimit(2).
pub fn raise_file_limit() -> io::Result<u64> {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        ..limit
    };
    setrlimit(Resource::Nofile, raised)?;
    Ok(limit.maximum.unwrap_or(u64::MAX))
}

/// TCP information of the kernel about one connection (`struct tcp_info` of linux/tcp.h).
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct TcpInfo {
    /// Payload bytes received in order and acknowledged (RFC 4898
    /// tcpEStatsAppHCThruOctetsReceived).
    pub bytes_received: u64,
    /// Payload bytes of a full received segment, before the options of the segment are subtracted.
    pub segment_in: u32,
    /// Segments with payload received, duplicates included.
    pub data_segs_in: u32,
    /// Segments received, pure acknowledgements included.
    pub segs_in: u32,
}

/// Reads [`TcpInfo`] of a connected socket. Fails if the socket is not a TCP socket.
pub(crate) fn tcp_info(socket: impl AsFd) -> io::Result<TcpInfo> {
    let mut raw = [0u8; TCP_INFO_LEN];
    let mut len = TCP_INFO_LEN as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes into `raw`.
    check(unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            raw.as_mut_ptr().cast(),
            &mut len,
        )
    })?;
    let u32_at = |at: usize| u32::from_ne_bytes(raw[at..at + 4].try_into().expect("4 bytes"));
    let u64_at = |at: usize| u64::from_ne_bytes(raw[at..at + 8].try_into().expect("8 bytes"));
    Ok(TcpInfo {
        segment_in: u32_at(84),
        data_segs_in: u32_at(152),
        bytes_received: u64_at(128),
        segs_in: u32_at(140),
    })
}

/// Puts a destination option without effect (RFC 8200 4.2, PadN) into every packet that an IPv6
/// socket sends. Fails if the socket is not an IPv6 socket, and without CAP_NET_RAW.
pub(crate) fn pad_with_option(socket: impl AsFd) -> io::Result<()> {
    // Next header (filled in by the kernel), no further words of 8 bytes, and PadN of 4.
    let options: [u8; 8] = [0, 0, 1, 4, 0, 0, 0, 0];
    set_option(socket, libc::IPPROTO_IPV6, libc::IPV6_DSTOPTS, &options)
}

/// Opens a socket that sends complete frames unchanged on a device of the calling thread's
/// namespace. Fails without CAP_NET_RAW or the device.
pub fn open_raw_socket(device: &str) -> io::Result<File> {
    let socket = packet_socket()?;
    let index = netdevice::name_to_index(&socket, device)?;
    bind_packet_socket(&socket, index, 0)?;
    Ok(socket.into())
}

/// Opens a socket that sends complete frames unchanged on a device of the calling thread's
/// namespace, and receives the frames of IPv4 that arrive there. Fails without CAP_NET_RAW or the
/// device.
pub fn open_frame_socket(device: &str) -> io::Result<File> {
    let socket = packet_socket()?;
    let index = netdevice::name_to_index(&socket, device)?;
    bind_packet_socket(&socket, index, libc::ETH_P_IP as u16)?;
    Ok(socket.into())
}

/// Opens a socket for complete frames that is not bound and receives nothing. Fails without
/// CAP_NET_RAW.
pub(crate) fn packet_socket() -> io::Result<OwnedFd> {
    let (kind, flags) = (SocketType::RAW, SocketFlags::CLOEXEC);
    Ok(rustix::net::socket_with(
        AddressFamily::PACKET,
        kind,
        flags,
        None,
    )?)
}

/// Binds a packet socket to a device, to receive frames of this protocol; 0 receives none. Fails if
/// there is no such device.
pub(crate) fn bind_packet_socket(socket: impl AsFd, index: u32, protocol: u16) -> io::Result<()> {
    // SAFETY: sockaddr_ll is plain data, and its size is passed with it.
    check(unsafe {
        let mut address: libc::sockaddr_ll = std::mem::zeroed();
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_protocol = protocol.to_be();
        address.sll_ifindex = index as i32;
        libc::bind(
            socket.as_fd().as_raw_fd(),
            (&raw const address).cast(),
            size_of::<libc::sockaddr_ll>() as libc::socklen_t,
        )
    })
}

/// Sets a socket option. The caller owns what the value points to. Fails with the error of
/// setsockopt(2).
pub(crate) fn set_option<T: Copy>(
    socket: impl AsFd,
    level: c_int,
    name: c_int,
    value: &T,
) -> io::Result<()> {
    // SAFETY: the value is live and its size is passed with it.
    check(unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            level,
            name,
            ptr::from_ref(value).cast(),
            size_of::<T>() as libc::socklen_t,
        )
    })
}

/// Sends each piece of `size` bytes of `payloads` (the last can be shorter) as a datagram of a
/// connected socket, all by one sendmmsg(2). Returns the number of datagrams that the kernel took.
/// Fails with the error of the first datagram if the kernel took none.
pub(crate) fn send_datagrams(socket: impl AsFd, payloads: &[u8], size: usize) -> io::Result<usize> {
    let pieces = payloads.chunks(size).map(|piece| libc::iovec {
        // The kernel only reads the bytes.
        iov_base: piece.as_ptr().cast_mut().cast(),
        iov_len: piece.len(),
    });
    let mut pieces: Vec<libc::iovec> = pieces.collect();
    let messages = pieces.iter_mut().map(|piece| {
        // SAFETY: all bits zero are a value of this plain structure.
        let mut message: libc::mmsghdr = unsafe { std::mem::zeroed() };
        message.msg_hdr.msg_iov = piece;
        message.msg_hdr.msg_iovlen = 1;
        message
    });
    let mut messages: Vec<libc::mmsghdr> = messages.collect();
    // SAFETY: the messages, their pieces and the payloads outlive the call.
    let done = unsafe {
        libc::sendmmsg(
            socket.as_fd().as_raw_fd(),
            messages.as_mut_ptr(),
            messages.len() as u32,
            0,
        )
    };
    check(done)?;
    Ok(done as usize)
}

/// Opens a tun device of this name in the calling thread's namespace: one bare IP packet for each
/// read and write. The device is removed when the file is closed. Fails without `/dev/net/tun` or
/// CAP_NET_ADMIN, or if another file has the device open.
pub(crate) fn open_tun(name: &str) -> io::Result<File> {
    let file = File::options()
        .read(true)
        .write(true)
        .open("/dev/net/tun")?;
    // SAFETY: ifreq is plain data, and the kernel reads a name and flags from it.
    unsafe {
        let mut request: libc::ifreq = std::mem::zeroed();
        for (to, from) in request
            .ifr_name
            .iter_mut()
            .take(libc::IFNAMSIZ - 1)
            .zip(name.bytes())
        {
            *to = from as libc::c_char;
        }
        request.ifr_ifru.ifru_flags = (libc::IFF_TUN | libc::IFF_NO_PI) as libc::c_short;
        check(libc::ioctl(
            file.as_raw_fd(),
            libc::TUNSETIFF,
            &raw mut request,
        ))?;
    }
    Ok(file)
}

/// Makes the kernel measure the time of eBPF programs while the returned descriptor is open. So the
/// measurement ends with this process at the latest, however the process ends. Fails without root,
/// or if the kernel does not support this.
pub(crate) fn time_bpf_programs() -> io::Result<OwnedFd> {
    // The kind of measurement (`bpf_attr.enable_stats.type`): the time of runs.
    let kind: u32 = 0;
    // SAFETY: the kernel reads the attribute, whose size is passed with it, and keeps no pointer.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            BPF_ENABLE_STATS,
            &raw const kind,
            size_of_val(&kind),
        )
    };
    let fd = c_int::try_from(fd).map_err(io::Error::other)?;
    check(fd)?;
    // SAFETY: the call succeeded and returned a new descriptor, which nothing else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// A command of bpf(2) (linux/bpf.h), which the crate libc lacks.
const BPF_ENABLE_STATS: c_int = 32;

/// Waits until a descriptor is readable or the time `within` has passed. Returns whether it is
/// readable; `false` also after an error.
pub fn readable(fd: impl AsFd, within: Duration) -> bool {
    let mut wanted = [PollFd::new(&fd, PollFlags::IN)];
    let within = Timespec::try_from(within).ok();
    poll(&mut wanted, within.as_ref()) == Ok(1) && wanted[0].revents().contains(PollFlags::IN)
}

/// `struct tcp_info` up to and including `tcpi_bytes_retrans` (Linux 4.19 and later have all of
/// it).
const TCP_INFO_LEN: usize = 216;

fn check(result: libc::c_int) -> io::Result<()> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

/// Opens a pseudoterminal of this size in characters; returns the end for the user, and the end for
/// a program. Fails if the kernel has no more pseudoterminals, or if this process has too many open
/// files.
pub(crate) fn open_terminal(columns: u16, rows: u16) -> io::Result<(File, File)> {
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let user_end = openpt(flags)?;
    unlockpt(&user_end)?;
    let program_end = ioctl_tiocgptpeer(&user_end, flags)?;
    tcsetwinsize(&program_end, winsize(columns, rows))?;
    Ok((user_end.into(), program_end.into()))
}

/// Changes the size of a terminal. The kernel signals its foreground processes. Fails if the file
/// is no terminal.
pub(crate) fn resize_terminal(terminal: &File, columns: u16, rows: u16) -> io::Result<()> {
    Ok(tcsetwinsize(terminal, winsize(columns, rows))?)
}

/// Starts the command in a session of its own; the terminal on its standard input becomes the
/// controlling terminal. Call it after [`start_in_netns`].
pub(crate) fn start_in_terminal(command: &mut Command) {
    // SAFETY: between fork and exec only system calls without allocation or locks are made.
    unsafe {
        command.pre_exec(|| {
            begin_session()?;
            Ok(rustix::process::ioctl_tiocsctty(rustix::stdio::stdin())?)
        });
    }
}

fn winsize(columns: u16, rows: u16) -> Winsize {
    Winsize {
        ws_row: rows,
        ws_col: columns,
        ws_xpixel: 0,
        ws_ypixel: 0,
    }
}

/// Punches a hole of `length` bytes into a file at offset `at`; the file's size stays. Fails if the
/// file system does not support holes, or if the file is sealed against writes.
pub fn punch_hole(file: &File, at: u64, length: u64) -> io::Result<()> {
    let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    Ok(fallocate(file, how, at, length)?)
}

/// A mapping of a file that other processes write to at the same time. It is accessed by copies
/// alone.
pub(crate) struct Mapped {
    base: *mut u8,
    length: usize,
}

// SAFETY: the memory is accessed by copies alone; no access depends on the thread.
unsafe impl Send for Mapped {}
// SAFETY: as for `Send`.
unsafe impl Sync for Mapped {}

impl Mapped {
    /// Maps the first `length` bytes of a file, shared and writable. Fails if the file may not be
    /// mapped for writing, or if `length` is 0.
    pub(crate) fn map(file: &File, length: usize) -> io::Result<Mapped> {
        let both = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address that the kernel chooses.
        let base = unsafe { mmap(ptr::null_mut(), length, both, MapFlags::SHARED, file, 0)? };
        Ok(Mapped {
            base: base.cast(),
            length,
        })
    }

    /// Size of the mapping in bytes.
    pub(crate) fn length(&self) -> usize {
        self.length
    }

    /// Copies bytes into the mapping at offset `at`.
    ///
    /// # Panics
    /// If the range is not inside the mapping.
    pub(crate) fn write(&self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= self.length);
        // SAFETY: the range is inside the mapping, and no reference to the mapping exists.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), self.base.add(at), bytes.len()) }
    }

    /// Copies bytes out of the mapping from offset `at` on.
    ///
    /// # Panics
    /// If the range is not inside the mapping.
    pub(crate) fn read(&self, at: usize, bytes: &mut [u8]) {
        assert!(at + bytes.len() <= self.length);
        // SAFETY: as in `write`.
        unsafe { ptr::copy_nonoverlapping(self.base.add(at), bytes.as_mut_ptr(), bytes.len()) }
    }

    /// Removes pages from the file (MADV_REMOVE).
    ///
    /// # Panics
    /// If the range is not inside the mapping.
    pub(crate) fn remove(&self, at: usize, length: usize) -> io::Result<()> {
        assert!(at + length <= self.length);
        // SAFETY: the range is inside the mapping, to which no reference exists.
        unsafe { madvise(self.base.add(at).cast(), length, Advice::LinuxRemove)? };
        Ok(())
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: `base` and `length` are the mapping that `map` made, and no reference to it
        // exists.
        let _ = unsafe { munmap(self.base.cast(), self.length) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ebpf_programs_are_timed_while_the_descriptor_is_open() {
        match time_bpf_programs() {
            Ok(timed) => {
                let link = std::fs::read_link(format!("/proc/self/fd/{}", timed.as_raw_fd()));
                assert_eq!(link.expect("open").to_str(), Some("anon_inode:bpf-stats"));
            }
            // Only root may.
            Err(error) => assert_eq!(error.raw_os_error(), Some(libc::EPERM)),
        }
    }
}
