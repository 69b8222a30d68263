//! Tags the sockets that a target's processes opened before they became members.
//!
//! A process may have tens of thousands of sockets, and other requests wait while they are tagged.
//! So a survey of the sockets of some processes ([`Survey`]) runs in steps. The first step runs at
//! once, visits up to 512 of their descriptors ([`FIRST_STEP`]), and is enough for nearly all
//! processes. If some of the sockets listen, it also searches up to 8,192 descriptors of other
//! processes, because a listening socket on which they accept too is not tagged. The caller runs
//! the other steps, of some milliseconds each, when it has time ([`Kernel::continue_survey`]). With
//! [`MAX_SURVEYS`] (64) unfinished surveys, a new one runs completely at once. The result is an
//! [`Adoption`]: how many sockets were tagged, and why others were not. A survey fails if the
//! programs are not loaded or a map refuses an entry, or if a folder of /proc or a socket cannot be
//! read for another reason than that its process ended.
//!
//! Two other kinds of survey only add missing owners: for the sockets of a user's processes when
//! the user becomes a target, and for those of all members when a new daemon starts.

use std::collections::{BTreeSet, VecDeque};
use std::fs::{DirEntry, ReadDir};
use std::os::fd::AsFd;
use std::sync::Arc;

use rustix::net::ipproto;

use super::{Adoption, Kernel, Membership, cookie_owners::Tagged};
use crate::{
    abi::SockOwner,
    error::KernelError,
    process::{
        self, PidFd,
        copies::{MAX_COPIES, SocketCopy, SocketFacts, with_own_descriptors},
    },
    retry::with_retries,
};

/// The purpose of a survey.
#[derive(Clone, Copy, Debug)]
enum Purpose {
    /// Give the sockets to this target, if their processes are members of it.
    Tag { target: u32, which: Membership },
    /// Give the sockets to their processes' targets, unless they have an owner.
    TagUnowned,
    /// Record the users of the sockets.
    RecordUsers,
}

/// A survey of the sockets of some processes.
#[derive(Debug)]
pub(super) struct Survey {
    purpose: Purpose,
    processes: BTreeSet<u32>,
    walk: DescriptorWalk,
    /// The last visited process.
    process: Option<(u32, Arc<PidFd>)>,
    /// Sockets visited so far, by inode.
    seen: BTreeSet<u64>,
    /// The listening sockets among them, which are processed at the end.
    listeners: Vec<OpenSocket>,
    /// How many more times all processes are visited. A socket that is being made during a visit
    /// has no owner yet.
    more_passes: u32,
    /// At the end: the search for processes outside that accept on the same sockets, and the inodes
    /// of the sockets for which it found one.
    search: Option<(DescriptorWalk, BTreeSet<u64>)>,
    /// The result of the steps after the first.
    found: Adoption,
}

/// The descriptors of some processes, in sequence.
#[derive(Debug)]
struct DescriptorWalk {
    remaining: VecDeque<u32>,
    current: Option<(u32, ReadDir)>,
    /// How many more times a folder may be read again.
    rereads_left: u32,
}

/// The number of descriptors that a step visits.
#[derive(Clone, Copy, Debug)]
struct Budget {
    /// Descriptors of the members themselves.
    own: usize,
    /// Descriptors of other processes; each takes a tenth of the time.
    others: usize,
}

/// A descriptor of a process that is a socket.
#[derive(Clone, Debug)]
struct OpenSocket {
    pid: u32,
    process: Arc<PidFd>,
    number: i32,
    inode: u64,
}

impl Kernel {
    /// Tags the open sockets of some processes. Sockets that are made during the call may be
    /// missed; each further pass visits all processes again to find them. Fails if the programs are
    /// not loaded, or the sockets cannot be visited or tagged.
    pub(super) fn tag_sockets(
        &mut self,
        members: &BTreeSet<u32>,
        target: u32,
        which: Membership,
        more_passes: u32,
    ) -> Result<Adoption, KernelError> {
        let purpose = Purpose::Tag { target, which };
        self.start_survey(Survey::new(purpose, members, more_passes))
    }

    /// Records the users of the open sockets of processes. Fails as [`Kernel::tag_sockets`].
    pub(super) fn record_users(
        &mut self,
        members: &BTreeSet<u32>,
    ) -> Result<Adoption, KernelError> {
        self.start_survey(Survey::new(Purpose::RecordUsers, members, 0))
    }

    /// Queues a survey of the sockets of all members that an earlier daemon did not tag. Fails if
    /// the table of members cannot be read.
    pub(super) fn tag_remaining_sockets(&mut self) -> Result<(), KernelError> {
        let members = self.members()?.into_keys().collect();
        let survey = Survey::new(Purpose::TagUnowned, &members, 0);
        self.surveys.push_back(survey);
        Ok(())
    }

    fn start_survey(&mut self, mut survey: Survey) -> Result<Adoption, KernelError> {
        let mut found = Adoption::default();
        let budget = match self.surveys.len() < MAX_SURVEYS {
            true => FIRST_STEP,
            false => ALL_AT_ONCE,
        };
        if !self.step(&mut survey, budget, &mut found)? {
            found.unfinished = true;
            self.surveys.push_back(survey);
        }
        Ok(found)
    }

    /// The number of unfinished surveys of open sockets ([`Kernel::continue_survey`]).
    pub fn unfinished_surveys(&self) -> usize {
        self.surveys.len()
    }

    /// Visits some of the remaining open sockets, for some milliseconds. When a survey ends,
    /// returns what it found after its first step; before, `None`.
    ///
    /// # Errors
    /// The sockets could not be visited. The survey is not repeated.
    pub fn continue_survey(&mut self) -> Result<Option<Adoption>, KernelError> {
        if self.programs.is_none() {
            self.surveys.clear();
        }
        let written = &self.written;
        self.surveys.retain(|survey| match survey.purpose {
            Purpose::Tag { target, .. } => written.contains_key(&target),
            Purpose::TagUnowned | Purpose::RecordUsers => true,
        });
        let Some(mut survey) = self.surveys.pop_front() else {
            return Ok(None);
        };
        let mut found = std::mem::take(&mut survey.found);
        if self.step(&mut survey, NEXT_STEP, &mut found)? {
            return Ok(Some(found));
        }
        self.surveys.push_back(Survey { found, ..survey });
        Ok(None)
    }

    /// Continues a survey; returns whether it is complete.
    fn step(
        &mut self,
        survey: &mut Survey,
        budget: Budget,
        found: &mut Adoption,
    ) -> Result<bool, KernelError> {
        let mut visited = 0;
        while survey.search.is_none() {
            let mut sockets = Vec::new();
            while sockets.len() < MAX_COPIES && visited < budget.own {
                visited += 1;
                match survey.next()? {
                    Some(descriptor) => sockets.extend(descriptor),
                    None if survey.start_next_pass() => {}
                    None => {
                        self.visit(survey, &std::mem::take(&mut sockets), found)?;
                        survey.begin_search();
                        break;
                    }
                }
            }
            self.visit(survey, &sockets, found)?;
            if visited >= budget.own {
                return Ok(false);
            }
        }
        match survey.continue_search(budget.others)? {
            true => self.visit_listeners(survey, found).map(|()| true),
            false => Ok(false),
        }
    }

    /// Processes the sockets that still exist, according to the survey's purpose. Listening sockets
    /// are kept for the end.
    fn visit(
        &mut self,
        survey: &mut Survey,
        sockets: &[OpenSocket],
        found: &mut Adoption,
    ) -> Result<(), KernelError> {
        let purpose = survey.purpose;
        let listeners = &mut survey.listeners;
        self.with_copies(sockets, |kernel, socket, copy, facts| {
            found.hidden_mptcp += usize::from(facts.protocol == Some(ipproto::MPTCP));
            if facts.listens && !matches!(purpose, Purpose::RecordUsers) {
                listeners.push(socket.clone());
                return Ok(());
            }
            let own = kernel.new_owner(purpose, socket, copy, facts)?;
            own.map_or(Ok(()), |own| kernel.set_owner(copy, facts, own, found))
        })
    }

    /// Processes the listening sockets, except those on which processes outside accept too.
    fn visit_listeners(
        &mut self,
        survey: &mut Survey,
        found: &mut Adoption,
    ) -> Result<(), KernelError> {
        let listeners = std::mem::take(&mut survey.listeners);
        let shared = survey.search.take().unwrap_or_default().1;
        let (shared, own): (Vec<OpenSocket>, Vec<OpenSocket>) = listeners
            .into_iter()
            .partition(|listener| shared.contains(&listener.inode));
        found.shared_listeners += shared.len();
        for some in own.chunks(MAX_COPIES) {
            self.with_copies(some, |kernel, socket, copy, facts| {
                let own = kernel.new_owner(survey.purpose, socket, copy, facts)?;
                own.map_or(Ok(()), |own| kernel.set_owner(copy, facts, own, found))
            })?;
        }
        Ok(())
    }

    /// The new owner of a socket; `None` if the owner does not change.
    fn new_owner(
        &mut self,
        purpose: Purpose,
        socket: &OpenSocket,
        copy: SocketCopy<'_>,
        facts: SocketFacts,
    ) -> Result<Option<SockOwner>, KernelError> {
        let before = self.owner_of(copy.as_fd())?;
        let mut own = before.unwrap_or(SockOwner {
            uid: facts.uid,
            ..SockOwner::default()
        });
        match purpose {
            // The process may have left the target since the survey began.
            Purpose::Tag { target, which } if which.of(&self.membership(socket.pid)) != target => {
                return Ok(None);
            }
            Purpose::Tag { target, which } => match which {
                Membership::Process => own.process = target,
                Membership::App => own.app = target,
            },
            Purpose::TagUnowned => {
                let member = self.membership(socket.pid);
                if own.process == 0 {
                    own.process = member.process;
                }
                if own.app == 0 {
                    own.app = member.app;
                }
                if before.map_or(own.process == 0 && own.app == 0, |before| before == own) {
                    return Ok(None);
                }
            }
            Purpose::RecordUsers if before.is_some() => return Ok(None),
            Purpose::RecordUsers => {}
        }
        Ok(Some(own))
    }

    fn set_owner(
        &mut self,
        copy: SocketCopy<'_>,
        facts: SocketFacts,
        own: SockOwner,
        found: &mut Adoption,
    ) -> Result<(), KernelError> {
        match self.write_owner(copy.as_fd(), facts.inode, own)? {
            Tagged::Itself => found.sockets += 1,
            Tagged::ByCookie => {
                found.sockets += 1;
                found.by_cookie += 1;
            }
            Tagged::Not => found.untracked += 1,
        }
        Ok(())
    }

    /// Calls `what` with a copy of each socket that still exists and is of this namespace.
    fn with_copies(
        &mut self,
        sockets: &[OpenSocket],
        mut what: impl FnMut(
            &mut Kernel,
            &OpenSocket,
            SocketCopy<'_>,
            SocketFacts,
        ) -> Result<(), KernelError>
        + Send,
    ) -> Result<(), KernelError> {
        if sockets.is_empty() {
            return Ok(());
        }
        let done = with_own_descriptors(|own| {
            for socket in sockets {
                let taken = own.take(&socket.process, socket.number);
                let taken = taken.map_err(KernelError::file(
                    "take a copy of an open socket",
                    "pidfd_getfd",
                ));
                let Some(copy) = taken? else {
                    continue;
                };
                // The number may refer to another descriptor by now.
                let facts = SocketFacts::of(copy.as_fd());
                let Some(facts) = facts.filter(|facts| facts.inode == socket.inode) else {
                    continue;
                };
                if facts.netns_cookie == self.cookie {
                    what(self, socket, copy, facts)?;
                }
            }
            Ok(())
        });
        done.map_err(KernelError::file("inspect open sockets", "a thread"))?
    }
}

impl Survey {
    fn new(purpose: Purpose, processes: &BTreeSet<u32>, more_passes: u32) -> Survey {
        Survey {
            purpose,
            processes: processes.clone(),
            walk: DescriptorWalk::over(processes.iter().copied()),
            process: None,
            seen: BTreeSet::new(),
            listeners: Vec::new(),
            more_passes,
            search: None,
            found: Adoption::default(),
        }
    }

    /// Visits the next descriptor. Returns its socket, if it is one that was not visited yet.
    /// The outer `None` means that no descriptor is left.
    fn next(&mut self) -> Result<Option<Option<OpenSocket>>, KernelError> {
        let Some((pid, entry)) = self.walk.next()? else {
            return Ok(None);
        };
        if self.process.as_ref().is_none_or(|(of, _)| *of != pid) {
            let process = PidFd::open_if_there(pid).map_err(process_error(pid))?;
            self.process = process.map(|process| (pid, Arc::new(process)));
        }
        let socket = process::socket_at(&entry).filter(|(_, inode)| self.seen.insert(*inode));
        // The process may have ended and its id may be reused; the socket's inode shows that.
        let found = self.process.as_ref().zip(socket);
        Ok(Some(found.map(|((_, process), (number, inode))| {
            OpenSocket {
                pid,
                process: process.clone(),
                number,
                inode,
            }
        })))
    }

    /// Starts another visit of all processes, if one is due; returns whether it did.
    fn start_next_pass(&mut self) -> bool {
        if self.more_passes == 0 {
            return false;
        }
        self.more_passes -= 1;
        self.walk = DescriptorWalk::over(self.processes.iter().copied());
        true
    }

    /// Starts the search for processes outside that accept on the same sockets.
    fn begin_search(&mut self) {
        let outside = match self.listeners.is_empty() {
            true => Vec::new(),
            false => process::all(),
        };
        let own = std::process::id();
        let outside = outside.into_iter();
        let outside = outside.filter(|pid| !self.processes.contains(pid) && *pid != own);
        self.search = Some((DescriptorWalk::over(outside), BTreeSet::new()));
    }

    /// Visits up to `most` descriptors of these processes; returns whether the search is complete.
    fn continue_search(&mut self, most: usize) -> Result<bool, KernelError> {
        let Some((walk, shared)) = &mut self.search else {
            return Ok(true);
        };
        let listeners: BTreeSet<u64> = self.listeners.iter().map(|socket| socket.inode).collect();
        for _ in 0..most {
            let Some((_, entry)) = walk.next()? else {
                return Ok(true);
            };
            let inode = process::socket_at(&entry).map(|(_, inode)| inode);
            shared.extend(inode.filter(|inode| listeners.contains(inode)));
        }
        Ok(false)
    }
}

impl DescriptorWalk {
    fn over(processes: impl Iterator<Item = u32>) -> DescriptorWalk {
        DescriptorWalk {
            remaining: processes.collect(),
            current: None,
            rereads_left: MAX_REREADS,
        }
    }

    /// A process and one of its descriptors in /proc. A folder that could not be read to its end is
    /// read again.
    fn next(&mut self) -> Result<Option<(u32, DirEntry)>, KernelError> {
        loop {
            if let Some((pid, descriptors)) = &mut self.current {
                match descriptors.next() {
                    Some(Ok(entry)) => return Ok(Some((*pid, entry))),
                    Some(Err(error)) if !process::is_ended_or_denied(&error) => {
                        let pid = *pid;
                        self.rereads_left = self
                            .rereads_left
                            .checked_sub(1)
                            .ok_or(error)
                            .map_err(process_error(pid))?;
                        self.remaining.push_front(pid);
                    }
                    // The process ended meanwhile.
                    Some(Err(_)) | None => {}
                }
            }
            let Some(pid) = self.remaining.pop_front() else {
                return Ok(None);
            };
            self.current = match with_retries(|| std::fs::read_dir(format!("/proc/{pid}/fd"))) {
                Ok(descriptors) => Some((pid, descriptors)),
                Err(error) if process::is_ended_or_denied(&error) => None,
                Err(error) => return Err(process_error(pid)(error)),
            };
        }
    }
}

impl Default for DescriptorWalk {
    fn default() -> DescriptorWalk {
        DescriptorWalk::over(std::iter::empty())
    }
}

fn process_error(pid: u32) -> impl FnOnce(std::io::Error) -> KernelError {
    KernelError::file("inspect the process", format!("/proc/{pid}"))
}

/// How many incomplete folders are read again before the survey fails.
const MAX_REREADS: u32 = 16;
/// The budget while a change is made.
const FIRST_STEP: Budget = Budget {
    own: 512,
    others: 8_192,
};
/// The budget of a later step: some milliseconds.
const NEXT_STEP: Budget = Budget {
    own: 128,
    others: 1_024,
};
const ALL_AT_ONCE: Budget = Budget {
    own: usize::MAX,
    others: usize::MAX,
};
/// The most unfinished surveys. Beyond that number a new survey runs completely at once.
const MAX_SURVEYS: usize = 64;
