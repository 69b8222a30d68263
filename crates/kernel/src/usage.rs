//! Counts the bytes and packets that every socket of this network namespace sends and receives
//! ([`UsageCounter`]), and finds the processes that hold sockets ([`holders()`]).
//!
//! The programs of `bpf/usage.bpf.c` run at the root of the cgroup hierarchy, for as long as a
//! [`UsageCounter`] exists. Nothing is pinned: the kernel detaches them when the counter is dropped
//! or its process ends. Bytes are those of layer 2 as on Ethernet (14 bytes of header for each
//! segment). A packet is counted where it passes between the kernel's stack and its socket. So a
//! sent packet is counted before any limit, a received one after it; a packet on lo is counted as
//! sent by one socket and as received by another one. Not counted: packets without a socket
//! (forwarded ones, resets, answers in the state time-wait), those of AF_PACKET and AF_XDP, and
//! those of other network namespaces.
//!
//! Loading and reading fail with [`KernelError`] if the kernel refuses a program, a map or its
//! attachment, if the cgroup hierarchy is not mounted, or if a map cannot be read in three tries.

use std::fs;
use std::os::fd::AsFd;

use aya::maps::{Array, HashMap, Map, MapData, PerCpuArray};
use aya::programs::{CgroupAttachMode, CgroupSkb, CgroupSkbAttachType, CgroupSock};
use aya::{Ebpf, EbpfLoader};
use netnice_core::units::Instant;

use crate::error::KernelError;
use crate::retry::with_retries;
use crate::{bpf, cgroup, process};

pub use holders::{Holders, holders};
use layout::{Counted, MAX_COUNTED, Traffic};

mod holders;

/// The loaded and attached programs, and their maps.
#[derive(Debug)]
pub struct UsageCounter {
    ebpf: Ebpf,
}

/// Bytes and packets, each sent (0) and received (1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Layer-2 bytes.
    pub bytes: [u64; 2],
    /// Packets, as on the wire.
    pub packets: [u64; 2],
}

/// The process that made a socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Creator {
    /// Process id, in the initial PID namespace.
    pub pid: u32,
    /// The process's start time in clock ticks since boot, as [`process::start_time`].
    pub started: u64,
    /// The process's command name when it made the socket.
    pub command: String,
    /// True if the process made this socket. False if it made the listening socket from which the
    /// kernel made this one.
    pub made_itself: bool,
}

/// What a socket has sent and received since the counter was loaded or its entry was taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SocketUsage {
    /// The counts.
    pub counts: Counts,
    /// The process that made the socket; `None` if the socket is older than the counter, or if the
    /// kernel made it.
    pub creator: Option<Creator>,
    /// The user id of the socket's creator.
    pub uid: u32,
    /// The protocol number of IP.
    pub protocol: u16,
    /// The local port at the first packet of the socket; 0 if the protocol has none.
    pub port: u16,
}

/// The counts at one time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    /// The time of the reading.
    pub at: Instant,
    /// All packets. They were read first, so the other counts have at least these packets, unless
    /// a map had no room.
    pub totals: Counts,
    /// By cookie.
    pub sockets: Vec<(u64, SocketUsage)>,
    /// By user id: the packets of sockets for which there was no room in the map of sockets.
    pub overflow: Vec<(u32, Counts)>,
}

impl UsageCounter {
    /// Loads the programs and attaches them. From now on the sockets of this network namespace are
    /// counted.
    ///
    /// # Errors
    /// If the kernel refuses a program, a map or an attachment, or if the cgroup hierarchy is not
    /// mounted.
    pub fn load() -> Result<UsageCounter, KernelError> {
        let namespace = process::netns_cookie().map_err(KernelError::file(
            "read the network namespace's cookie",
            "socket",
        ))?;
        let mut ebpf = EbpfLoader::new()
            .load(OBJECT)
            .map_err(|e| KernelError::bpf("load the programs that count sockets", e))?;
        let served = ebpf.map_mut("served").ok_or(ABSENT)?;
        Array::<_, u64>::try_from(served)
            .and_then(|mut served| served.set(0, namespace, 0))
            .map_err(|e| KernelError::bpf("write map served", e))?;
        let root = cgroup::root()?;
        let root =
            fs::File::open(&root).map_err(KernelError::file("open the cgroup root", root))?;
        let what = |name: &str| format!("attach {name} to the root cgroup");
        let mode = CgroupAttachMode::Single; // with links, this mode too allows several programs
        // The creators come first: a socket whose packets are counted has its creator then.
        let maker: &mut CgroupSock = program(&mut ebpf, "on_socket_made")?;
        maker
            .load()
            .and_then(|()| maker.attach(&root, mode))
            .map_err(|e| KernelError::bpf(what("on_socket_made"), e))?;
        for (name, side) in [
            ("on_received", CgroupSkbAttachType::Ingress),
            ("on_sent", CgroupSkbAttachType::Egress),
        ] {
            let counting: &mut CgroupSkb = program(&mut ebpf, name)?;
            counting
                .load()
                .and_then(|()| counting.attach(&root, side, mode))
                .map_err(|e| KernelError::bpf(what(name), e))?;
        }
        Ok(UsageCounter { ebpf })
    }

    /// Reads all counts.
    ///
    /// # Errors
    /// If a map cannot be read in three tries.
    pub fn read(&self) -> Result<Reading, KernelError> {
        let totals = self.totals()?;
        let sockets = self.read_map::<u64, Counted>("counted")?;
        let overflow = self.read_map::<u32, Traffic>("overflow")?;
        Ok(Reading {
            at: process::monotonic(),
            totals,
            sockets: sockets
                .into_iter()
                .map(|(cookie, counted)| (cookie, counted.usage(cookie)))
                .collect(),
            overflow: overflow
                .into_iter()
                .map(|(uid, traffic)| (uid, traffic.into()))
                .collect(),
        })
    }

    /// Removes a socket's entry and returns its last value; `None` if there is no entry. If the
    /// socket sends or receives again, it gets a new entry.
    ///
    /// # Errors
    /// If the map is missing or the kernel refuses.
    pub fn take(&self, cookie: u64) -> Result<Option<SocketUsage>, KernelError> {
        let Some(Map::HashMap(map)) = self.ebpf.map("counted") else {
            return Err(ABSENT);
        };
        let taken = bpf::take::<u64, Counted>(map.fd().as_fd(), &cookie)
            .map_err(|e| KernelError::bpf("remove the count of a socket", e))?;
        Ok(taken.map(|counted| counted.usage(cookie)))
    }

    /// The largest number of sockets with counts of their own.
    pub const MAX_SOCKETS: usize = MAX_COUNTED as usize;

    fn totals(&self) -> Result<Counts, KernelError> {
        let failed = |e| KernelError::bpf("read map totals", e);
        let map = self.ebpf.map("totals").ok_or(ABSENT)?;
        let map: PerCpuArray<&MapData, Traffic> = PerCpuArray::try_from(map).map_err(failed)?;
        let mut sum = Counts::default();
        for one in map.get(&0, 0).map_err(failed)?.iter() {
            sum.add((*one).into());
        }
        Ok(sum)
    }

    fn read_map<K: aya::Pod + Default, V: aya::Pod + Default>(
        &self,
        name: &str,
    ) -> Result<Vec<(K, V)>, KernelError> {
        let Some(found @ Map::HashMap(map)) = self.ebpf.map(name) else {
            return Err(ABSENT);
        };
        // Fails if the keys or values differ in size from these types.
        HashMap::<_, K, V>::try_from(found)
            .map_err(|e| KernelError::bpf(format!("open map {name}"), e))?;
        let read = with_retries(|| bpf::read_all(map.fd().as_fd(), 1));
        let read = read.map_err(|e| KernelError::bpf(format!("read map {name}"), e))?;
        Ok(read
            .into_iter()
            .map(|(key, values)| (key, values[0]))
            .collect())
    }
}

impl Counts {
    /// Adds other counts. The counts of one processor may be above those of all, because a program
    /// subtracts on the processor where it runs; so sums are modulo 2^64.
    pub fn add(&mut self, other: Counts) {
        for at in 0..2 {
            self.bytes[at] = self.bytes[at].wrapping_add(other.bytes[at]);
            self.packets[at] = self.packets[at].wrapping_add(other.packets[at]);
        }
    }

    /// The counts since an earlier reading; 0 where the earlier one is higher.
    #[must_use]
    pub fn since(&self, earlier: Counts) -> Counts {
        let [bytes, packets] = [(self.bytes, earlier.bytes), (self.packets, earlier.packets)]
            .map(|(now, then)| [0, 1].map(|at: usize| now[at].saturating_sub(then[at])));
        Counts { bytes, packets }
    }

    /// True if nothing was counted.
    pub fn is_zero(&self) -> bool {
        *self == Counts::default()
    }
}

impl From<Traffic> for Counts {
    fn from(traffic: Traffic) -> Counts {
        Counts {
            bytes: traffic.bytes,
            packets: traffic.packets,
        }
    }
}

impl Counted {
    fn usage(&self, cookie: u64) -> SocketUsage {
        let by = self.creator;
        let length = by.command.iter().position(|byte| *byte == 0);
        let command = &by.command[..length.unwrap_or(by.command.len())];
        SocketUsage {
            counts: self.traffic.into(),
            creator: (by.tgid != 0).then(|| Creator {
                pid: by.tgid,
                started: by.started,
                command: String::from_utf8_lossy(command).replace(char::is_control, "\u{fffd}"),
                made_itself: by.cookie == cookie,
            }),
            uid: self.uid,
            protocol: self.protocol,
            port: self.port,
        }
    }
}

fn program<'a, P>(ebpf: &'a mut Ebpf, name: &str) -> Result<&'a mut P, KernelError>
where
    &'a mut P: TryFrom<&'a mut aya::programs::Program, Error = aya::programs::ProgramError>,
{
    let program = ebpf.program_mut(name).ok_or(ABSENT)?;
    program
        .try_into()
        .map_err(|e| KernelError::bpf(format!("use program {name}"), e))
}

const ABSENT: KernelError = KernelError::Missing {
    what: "part of the eBPF object that counts sockets",
    hint: "build netnice again",
};
static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/usage.bpf.o"));

/// The keys and values of the maps, as `bpf/usage.h` has them.
mod layout {
    include!(concat!(env!("OUT_DIR"), "/usage.rs"));
}

#[cfg(test)]
mod tests {
    use super::layout::{COMMAND_LEN, Creator as CreatorEntry};
    use super::*;

    fn counted(creator_cookie: u64, tgid: u32) -> Counted {
        let mut command = [0; COMMAND_LEN as usize];
        command[..5].copy_from_slice(b"cu\nrl");
        Counted {
            traffic: Traffic {
                bytes: [10, 20],
                packets: [1, 2],
            },
            creator: CreatorEntry {
                cookie: creator_cookie,
                tgid,
                command,
                ..CreatorEntry::default()
            },
            port: 443,
            ..Counted::default()
        }
    }

    #[test]
    fn an_accepted_socket_has_the_creator_of_its_listener() {
        let own = counted(7, 4711).usage(7).creator.expect("a creator");
        assert_eq!((own.pid, own.made_itself), (4711, true));
        assert_eq!(own.command, "cu\u{fffd}rl");
        let inherited = counted(6, 4711).usage(7).creator.expect("a creator");
        assert!(!inherited.made_itself);
        assert_eq!(counted(0, 0).usage(7).creator, None);
    }

    #[test]
    fn a_processor_that_only_subtracted_leaves_the_sum_right() {
        let mut sum = Counts::default();
        for bytes in [100, 0_u64.wrapping_sub(30)] {
            sum.add(Counts {
                bytes: [bytes, 0],
                packets: [0; 2],
            });
        }
        assert_eq!(sum.bytes, [70, 0]);
        let later = Counts {
            bytes: [90, 5],
            packets: [0; 2],
        };
        assert_eq!(later.since(sum).bytes, [20, 5]);
        assert!(sum.since(later).is_zero());
    }
}
