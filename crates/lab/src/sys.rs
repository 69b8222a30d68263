//! System calls that std and socket2 do not wrap. `wire::ring` is the only other unsafe module.
//!
//! Rules: every function takes and returns plain values, keeps no pointer after it returns, and has
//! a safety comment for each call. A function fails with the error of its system call. [`Mapped`]
//! keeps a mapping and gives no reference into it. The packet ring gives references; it is in
//! `wire::ring` with rules of its own.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use procfs_core::process::{Schedstat, Stat};
use procfs_core::{FromRead, ProcResult};

/// Nanoseconds since 1970 by the wall clock, the clock of packet timestamps.
///
/// The lab stamps all records (packets, samples, the start of a command) with this clock, so that
/// records of different processes can be compared.
pub fn now_ns() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |d| d.as_nanos() as u64)
}

/// Moves the calling thread into a network namespace.
pub(crate) fn enter_netns(ns: impl AsFd) -> io::Result<()> {
    // SAFETY: setns takes a descriptor and a flag; it touches no memory of this process.
    check(unsafe { libc::setns(ns.as_fd().as_raw_fd(), libc::CLONE_NEWNET) })
}

/// Makes `command` start inside `ns`, as leader of its own process group, with no signal blocked.
///
/// The mount namespace stays the caller's. Unlike `ip netns exec` this does not remount /sys, so
/// that objects pinned under it remain visible.
pub(crate) fn start_in_netns(command: &mut Command, ns: Option<Arc<File>>) {
    // SAFETY: between fork and exec only setns, setpgid and sigprocmask are called; all three are
    // plain system calls without allocation or locks.
    unsafe {
        command.pre_exec(move || {
            if let Some(ns) = &ns {
                check(libc::setns(ns.as_raw_fd(), libc::CLONE_NEWNET))?;
            }
            check(libc::setpgid(0, 0))?;
            let mut none: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&mut none);
            check(libc::sigprocmask(
                libc::SIG_SETMASK,
                &none,
                std::ptr::null_mut(),
            ))
        });
    }
}

/// Forks. Returns the child's process id in the parent and 0 in the child. Fails if the process has
/// more than one thread: a lock held by another thread would stay locked in the child.
pub(crate) fn fork() -> io::Result<i32> {
    let threads = std::fs::read_dir("/proc/self/task")?.count();
    if threads != 1 {
        return Err(io::Error::other(format!(
            "a process of {threads} threads does not fork"
        )));
    }
    // SAFETY: the process has this one thread, so that the child is a complete copy and may do all
    // that the parent may.
    let child = unsafe { libc::fork() };
    check(child.min(0))?;
    Ok(child)
}

/// Clears the close-on-exec flag of all descriptors that are open now.
pub(crate) fn clear_close_on_exec() -> io::Result<()> {
    for entry in std::fs::read_dir("/proc/self/fd")? {
        let Some(Ok(number)) = entry?.file_name().to_str().map(str::parse::<i32>) else {
            continue;
        };
        // SAFETY: fcntl takes three integers; setting a flag is sound for any descriptor.
        check(unsafe { libc::fcntl(number, libc::F_SETFD, 0) })?;
    }
    Ok(())
}

/// Changes user and group of the calling thread alone to `uid`, without supplementary groups. The
/// change cannot be undone.
pub fn become_user(uid: u32) -> io::Result<()> {
    // The C library's functions would change all threads of the process.
    // SAFETY: plain numbers, and a list of no groups.
    unsafe {
        check(libc::syscall(libc::SYS_setgroups, 0, std::ptr::null::<u32>()) as i32)?;
        check(libc::syscall(libc::SYS_setresgid, uid, uid, uid) as i32)?;
        check(libc::syscall(libc::SYS_setresuid, uid, uid, uid) as i32)
    }
}

/// Sends `signal` to a process, or to a whole group when `pid` is negative.
pub fn kill(pid: i32, signal: i32) -> io::Result<()> {
    // SAFETY: kill takes two integers.
    check(unsafe { libc::kill(pid, signal) })
}

/// The state of a process in `/proc`: `R` running, `S` sleeping, `T` stopped by a signal, `Z`
/// zombie. `None` if there is no such process.
pub fn state(pid: u32) -> Option<char> {
    Some(Stat::from_file(format!("/proc/{pid}/stat")).ok()?.state)
}

/// True while a process with this id exists and is not a zombie.
pub fn is_alive(pid: u32) -> bool {
    state(pid).is_some_and(|state| state != 'Z')
}

/// Processor time of this process so far: in user mode, and in the kernel.
pub(crate) fn cpu_time() -> (Duration, Duration) {
    // SAFETY: rusage is plain data, and getrusage fills it completely on success.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &mut usage);
        usage
    };
    let of = |t: libc::timeval| Duration::new(t.tv_sec as u64, t.tv_usec as u32 * 1000);
    (of(usage.ru_utime), of(usage.ru_stime))
}

/// Nanoseconds that the first thread of a process has been on a processor so far.
pub(crate) fn time_on_cpu(pid: u32) -> ProcResult<u64> {
    Ok(Schedstat::from_file(format!("/proc/{pid}/schedstat"))?.sum_exec_runtime)
}

/// Processor time of the calling thread so far; zero if the kernel does not report it.
pub(crate) fn thread_time() -> Duration {
    let spent = Schedstat::from_file("/proc/thread-self/schedstat");
    Duration::from_nanos(spent.map_or(0, |spent| spent.sum_exec_runtime))
}

/// Sets the calling thread to SCHED_RR with this priority.
pub(crate) fn set_real_time_priority(priority: i32) -> io::Result<()> {
    let priority = libc::sched_param {
        sched_priority: priority,
    };
    // SAFETY: the parameters outlive the call.
    check(unsafe { libc::sched_setscheduler(0, libc::SCHED_RR, &priority) })
}

/// Raises the soft limit of open files to the hard limit; returns the new value.
pub fn raise_file_limit() -> io::Result<u64> {
    // SAFETY: rlimit is plain data that getrlimit fills and setrlimit reads.
    unsafe {
        let mut limit: libc::rlimit = std::mem::zeroed();
        check(libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit))?;
        limit.rlim_cur = limit.rlim_max;
        check(libc::setrlimit(libc::RLIMIT_NOFILE, &limit))?;
        Ok(limit.rlim_cur)
    }
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

/// Reads [`TcpInfo`] of a connected socket.
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

/// Sets the receive buffer beyond the host's limit (needs CAP_NET_ADMIN), so that a sink short of
/// processor time does not lose datagrams that the limiter let through.
pub(crate) fn force_receive_buffer(socket: impl AsFd, bytes: usize) -> io::Result<()> {
    let value = bytes as libc::c_int;
    // SAFETY: the option value is a live c_int and its size is passed with it.
    check(unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_RCVBUFFORCE,
            (&raw const value).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    })
}

/// Puts a destination option without effect (RFC 8200 4.2, PadN) into every packet that an IPv6
/// socket sends.
pub(crate) fn pad_with_option(socket: impl AsFd) -> io::Result<()> {
    // Next header (filled in by the kernel), no further words of 8 bytes, and PadN of 4.
    let options: [u8; 8] = [0, 0, 1, 4, 0, 0, 0, 0];
    // SAFETY: the option value is a live array and its size is passed with it.
    check(unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            libc::IPPROTO_IPV6,
            libc::IPV6_DSTOPTS,
            options.as_ptr().cast(),
            size_of_val(&options) as libc::socklen_t,
        )
    })
}

/// Opens a socket that sends complete frames unchanged on a device of the calling thread's
/// namespace.
pub fn open_raw_socket(device: &str) -> io::Result<File> {
    let name = std::ffi::CString::new(device)?;
    // SAFETY: the name outlives the call; a valid result of socket is a new descriptor without
    // another owner; sockaddr_ll is plain data and its size is passed with it.
    unsafe {
        let fd = libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0);
        check(fd)?;
        let socket = File::from_raw_fd(fd);
        let mut address: libc::sockaddr_ll = std::mem::zeroed();
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_ifindex = libc::if_nametoindex(name.as_ptr()) as i32;
        check(libc::bind(
            fd,
            (&raw const address).cast(),
            size_of::<libc::sockaddr_ll>() as libc::socklen_t,
        ))?;
        Ok(socket)
    }
}

/// Opens a tun device of this name in the calling thread's namespace: one bare IP packet for each
/// read and write. The device is removed when the file is closed.
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

/// Waits until a descriptor is readable or `within_ms` milliseconds have passed. Returns whether it
/// is readable.
pub fn readable(fd: std::os::fd::RawFd, within_ms: i32) -> bool {
    let mut wanted = libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: poll reads and writes the one live pollfd that is passed.
    unsafe { libc::poll(&raw mut wanted, 1, within_ms) == 1 && wanted.revents & libc::POLLIN != 0 }
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

/// Opens a pseudoterminal of this size: the end for the user, and the end for a program.
pub(crate) fn open_terminal(columns: u16, rows: u16) -> io::Result<(File, File)> {
    let (mut user_end, mut program_end) = (-1, -1);
    // SAFETY: openpty writes two new descriptors without another owner; no name and no settings are
    // passed.
    unsafe {
        check(libc::openpty(
            &raw mut user_end,
            &raw mut program_end,
            std::ptr::null_mut(),
            std::ptr::null(),
            &winsize(columns, rows),
        ))?;
        let (user_end, program_end) = (File::from_raw_fd(user_end), File::from_raw_fd(program_end));
        for end in [&user_end, &program_end] {
            check(libc::fcntl(
                end.as_raw_fd(),
                libc::F_SETFD,
                libc::FD_CLOEXEC,
            ))?;
        }
        Ok((user_end, program_end))
    }
}

/// Changes the size of a terminal. The kernel signals its foreground processes.
pub(crate) fn resize_terminal(terminal: &File, columns: u16, rows: u16) -> io::Result<()> {
    // SAFETY: the kernel reads a winsize.
    check(unsafe {
        libc::ioctl(
            terminal.as_raw_fd(),
            libc::TIOCSWINSZ,
            &winsize(columns, rows),
        )
    })
}

/// Starts the command in a session of its own; the terminal on its standard input becomes the
/// controlling terminal. Call it after [`start_in_netns`].
pub(crate) fn start_in_terminal(command: &mut Command) {
    // SAFETY: between fork and exec only system calls without allocation or locks are made.
    unsafe {
        command.pre_exec(|| {
            // The leader of a group cannot begin a session: the process rejoins its parent's group
            // first.
            check(libc::setpgid(0, libc::getpgid(libc::getppid())))?;
            check(libc::setsid())?;
            check(libc::ioctl(0, libc::TIOCSCTTY, 0))
        });
    }
}

fn winsize(columns: u16, rows: u16) -> libc::winsize {
    libc::winsize {
        ws_row: rows,
        ws_col: columns,
        ws_xpixel: 0,
        ws_ypixel: 0,
    }
}

/// Sets the calling thread to SCHED_IDLE: it runs only when no other thread wants its processor.
pub fn set_idle_priority() -> io::Result<()> {
    let least = libc::sched_param { sched_priority: 0 };
    // SAFETY: the parameters outlive the call.
    check(unsafe { libc::sched_setscheduler(0, libc::SCHED_IDLE, &least) })
}

/// Punches a hole into a file.
pub fn punch_hole(file: &File, at: u64, length: u64) -> io::Result<()> {
    let how = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    // SAFETY: no memory is passed.
    check(unsafe { libc::fallocate64(file.as_raw_fd(), how, at as i64, length as i64) })
}

/// Makes a new epoll descriptor that watches `of`.
pub fn epoll_for(of: impl AsFd) -> io::Result<File> {
    // SAFETY: a valid result is a new descriptor without another owner.
    let epoll = unsafe {
        let fd = libc::epoll_create1(libc::EPOLL_CLOEXEC);
        check(fd)?;
        File::from_raw_fd(fd)
    };
    let mut event = libc::epoll_event {
        events: libc::EPOLLIN as u32,
        u64: 0,
    };
    let (own, other) = (epoll.as_raw_fd(), of.as_fd().as_raw_fd());
    // SAFETY: the event outlives the call.
    check(unsafe { libc::epoll_ctl(own, libc::EPOLL_CTL_ADD, other, &mut event) })?;
    Ok(epoll)
}

/// Polls the same descriptor with `times` entries in one call.
pub fn poll_repeated(fd: impl AsFd, times: usize, within_ms: i32) -> io::Result<()> {
    let one = libc::pollfd {
        fd: fd.as_fd().as_raw_fd(),
        events: libc::POLLPRI,
        revents: 0,
    };
    let mut all = vec![one; times];
    // SAFETY: the array has `times` entries and outlives the call.
    check(unsafe { libc::poll(all.as_mut_ptr(), times as libc::nfds_t, within_ms) })
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
    /// Maps the first `length` bytes of a file, shared and writable.
    pub(crate) fn map(file: &File, length: usize) -> io::Result<Mapped> {
        let both = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping at an address that the kernel chooses.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                length,
                both,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Mapped {
            base: base.cast(),
            length,
        })
    }

    /// Size of the mapping in bytes.
    pub(crate) fn length(&self) -> usize {
        self.length
    }

    /// Copies bytes into the mapping.
    ///
    /// # Panics
    /// If the range is not inside the mapping.
    pub(crate) fn write(&self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= self.length);
        // SAFETY: the range is inside the mapping, and no reference to the mapping exists.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.base.add(at), bytes.len()) }
    }

    /// Copies bytes out of the mapping.
    ///
    /// # Panics
    /// If the range is not inside the mapping.
    pub(crate) fn read(&self, at: usize, bytes: &mut [u8]) {
        assert!(at + bytes.len() <= self.length);
        // SAFETY: as in `write`.
        unsafe { std::ptr::copy_nonoverlapping(self.base.add(at), bytes.as_mut_ptr(), bytes.len()) }
    }

    /// Removes pages from the file (MADV_REMOVE).
    ///
    /// # Panics
    /// If the range is not inside the mapping.
    pub(crate) fn remove(&self, at: usize, length: usize) -> io::Result<()> {
        assert!(at + length <= self.length);
        // SAFETY: the range is inside the mapping, to which no reference exists.
        match unsafe { libc::madvise(self.base.add(at).cast(), length, libc::MADV_REMOVE) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: `base` and `length` are the mapping that `whole` made, and no reference to it
        // exists.
        unsafe { libc::munmap(self.base.cast(), self.length) };
    }
}
