//! Finds the processes that hold sockets, from `/proc/PID/fd`. Nothing fails: a process that ends
//! or cannot be read holds nothing.

use std::collections::{HashMap, HashSet};
use std::fs;

use crate::process;

/// The processes that hold some sockets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Holders {
    /// By inode of the socket: process id and start time of each process with a descriptor of it,
    /// in the order of their ids.
    pub by_inode: HashMap<u64, Vec<(u32, u64)>>,
    /// True if all descriptors were visited.
    pub is_complete: bool,
}

/// The holders of the sockets with these inodes. Visits at most `most` descriptors, of the
/// processes with the highest ids first, which usually are the youngest. A visit takes some
/// microseconds, so this is no call for a thread that serves others.
pub fn holders(inodes: &HashSet<u64>, most: usize) -> Holders {
    let mut found = Holders {
        is_complete: true,
        ..Holders::default()
    };
    let mut processes = process::all();
    processes.sort_unstable_by(|a, b| b.cmp(a));
    let mut visited = 0;
    for pid in processes {
        let Ok(descriptors) = fs::read_dir(format!("/proc/{pid}/fd")) else {
            continue;
        };
        let mut held = HashSet::new();
        for descriptor in descriptors.flatten() {
            if visited == most {
                found.is_complete = false;
                return found;
            }
            visited += 1;
            let inode = process::socket_at(&descriptor).map(|(_, inode)| inode);
            held.extend(inode.filter(|inode| inodes.contains(inode)));
        }
        if held.is_empty() {
            continue;
        }
        let Some(started) = process::start_time(pid) else {
            continue;
        };
        for inode in held {
            let of_socket = found.by_inode.entry(inode).or_default();
            of_socket.insert(0, (pid, started));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn the_holder_of_a_socket_is_found_by_its_inode() {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
        let own = process::sockets(std::process::id());
        let inode = own.iter().find(|(fd, _)| *fd == socket.as_raw_fd());
        let inode = inode.expect("a descriptor of ours").1;
        let found = holders(&HashSet::from([inode]), usize::MAX);
        let pid = std::process::id();
        let started = process::start_time(pid).expect("it runs");
        assert!(found.by_inode[&inode].contains(&(pid, started)));
        assert!(found.is_complete);
        let none = holders(&HashSet::from([inode]), 0);
        assert!(!none.is_complete && none.by_inode.is_empty());
    }
}
