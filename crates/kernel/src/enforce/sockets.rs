//! Tags the sockets that a target's processes opened before they became members.
//!
//! A process may have tens of thousands of sockets, and other requests wait meanwhile. So a survey
//! of the sockets of some processes ([`Survey`]) runs in steps. The first step runs at once and is
//! enough for nearly all processes. The caller runs the other steps when it has time
//! ([`Kernel::look_on`]).

use std::collections::{BTreeSet, VecDeque};
use std::fs::{DirEntry, ReadDir};
use std::os::fd::AsFd;
use std::sync::Arc;

use super::{Adoption, Kernel, Membership, strays::Tagged};
use crate::{
    abi::SockOwn,
    again::insist,
    error::KernelError,
    process::{
        self, PidFd,
        copies::{AT_ONCE, SocketCopy, SocketFacts, apart},
    },
};

/// The purpose of a survey.
#[derive(Clone, Copy, Debug)]
enum Work {
    /// Give the sockets to this target, if their processes are members of it.
    Tag { target: u32, which: Membership },
    /// Give the sockets to their processes' targets, unless they have an owner.
    TagStrangers,
    /// Record the users of the sockets.
    Note,
}

/// A survey of the sockets of some processes.
#[derive(Debug)]
pub(super) struct Survey {
    work: Work,
    of: BTreeSet<u32>,
    walk: Walk,
    /// The last visited process.
    process: Option<(u32, Arc<PidFd>)>,
    /// Sockets visited so far, by inode.
    seen: BTreeSet<u64>,
    /// The listening sockets among them, which are processed at the end.
    listeners: Vec<Place>,
    /// How many more times all processes are visited. A socket that is being made during a visit
    /// has no owner yet.
    again: u32,
    /// At the end: the search for processes outside that accept on the same sockets, and the inodes
    /// of the sockets for which it found one.
    search: Option<(Walk, BTreeSet<u64>)>,
    /// The result of the steps after the first.
    found: Adoption,
}

/// The descriptors of some processes, in sequence.
#[derive(Debug)]
struct Walk {
    left: VecDeque<u32>,
    now: Option<(u32, ReadDir)>,
    /// How many more times a folder may be read again.
    again: u32,
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
struct Place {
    pid: u32,
    process: Arc<PidFd>,
    number: i32,
    inode: u64,
}

impl Kernel {
    /// Tags the open sockets of some processes.
    pub(super) fn tag_sockets(
        &mut self,
        members: &BTreeSet<u32>,
        target: u32,
        which: Membership,
    ) -> Result<Adoption, KernelError> {
        self.begin(Survey::new(Work::Tag { target, which }, members, 0))
    }

    /// As `tag_sockets`, including sockets that are made during the call.
    pub(super) fn tag_sockets_twice(
        &mut self,
        members: &BTreeSet<u32>,
        target: u32,
        which: Membership,
    ) -> Result<Adoption, KernelError> {
        self.begin(Survey::new(Work::Tag { target, which }, members, 1))
    }

    /// Records the users of the open sockets of processes.
    pub(super) fn note_users(&mut self, members: &BTreeSet<u32>) -> Result<Adoption, KernelError> {
        self.begin(Survey::new(Work::Note, members, 0))
    }

    /// Queues a survey of the sockets of all members that an earlier daemon did not tag.
    pub(super) fn tag_what_is_left(&mut self) -> Result<(), KernelError> {
        let members = self.members()?.into_keys().collect();
        let survey = Survey::new(Work::TagStrangers, &members, 0);
        self.surveys.push_back(survey);
        Ok(())
    }

    fn begin(&mut self, mut survey: Survey) -> Result<Adoption, KernelError> {
        let mut found = Adoption::default();
        let at_once = match self.surveys.len() < MOST_SURVEYS {
            true => FIRST_STEP,
            false => WHOLE,
        };
        if !self.step(&mut survey, at_once, &mut found)? {
            found.goes_on = true;
            self.surveys.push_back(survey);
        }
        Ok(found)
    }

    /// The number of unfinished surveys of open sockets ([`Kernel::look_on`]).
    pub fn looks_left(&self) -> usize {
        self.surveys.len()
    }

    /// Visits some of the remaining open sockets, for some milliseconds at most. When a survey
    /// ends, returns its result since the first step.
    ///
    /// # Errors
    /// The sockets could not be visited. The survey is not repeated.
    pub fn look_on(&mut self) -> Result<Option<Adoption>, KernelError> {
        if self.programs.is_none() {
            self.surveys.clear();
        }
        let written = &self.written;
        self.surveys.retain(|survey| match survey.work {
            Work::Tag { target, .. } => written.contains_key(&target),
            Work::TagStrangers | Work::Note => true,
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
        let mut looked = 0;
        while survey.search.is_none() {
            let mut places = Vec::new();
            while places.len() < AT_ONCE && looked < budget.own {
                looked += 1;
                match survey.next()? {
                    Some(descriptor) => places.extend(descriptor),
                    None if survey.begins_again() => {}
                    None => {
                        self.visit(survey, &std::mem::take(&mut places), found)?;
                        survey.begin_search();
                        break;
                    }
                }
            }
            self.visit(survey, &places, found)?;
            if looked >= budget.own {
                return Ok(false);
            }
        }
        match survey.search_on(budget.others)? {
            true => self.visit_listeners(survey, found).map(|()| true),
            false => Ok(false),
        }
    }

    /// Processes the sockets that still exist, according to the survey's purpose. Listening sockets
    /// are kept for the end.
    fn visit(
        &mut self,
        survey: &mut Survey,
        places: &[Place],
        found: &mut Adoption,
    ) -> Result<(), KernelError> {
        let work = survey.work;
        let listeners = &mut survey.listeners;
        self.each(places, |kernel, place, socket, facts| {
            found.hidden_mptcp += usize::from(facts.protocol == libc::IPPROTO_MPTCP);
            if facts.listens && !matches!(work, Work::Note) {
                listeners.push(place.clone());
                return Ok(());
            }
            let own = kernel.owner(work, place, socket, facts)?;
            own.map_or(Ok(()), |own| kernel.give(socket, facts, own, found))
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
        let (shared, own): (Vec<Place>, Vec<Place>) = listeners
            .into_iter()
            .partition(|listener| shared.contains(&listener.inode));
        found.shared_listeners += shared.len();
        for some in own.chunks(AT_ONCE) {
            self.each(some, |kernel, place, socket, facts| {
                let own = kernel.owner(survey.work, place, socket, facts)?;
                own.map_or(Ok(()), |own| kernel.give(socket, facts, own, found))
            })?;
        }
        Ok(())
    }

    /// The new owner of a socket; `None` if the owner does not change.
    fn owner(
        &mut self,
        work: Work,
        place: &Place,
        socket: SocketCopy<'_>,
        facts: SocketFacts,
    ) -> Result<Option<SockOwn>, KernelError> {
        let before = self.owner_of(socket.as_fd())?;
        let mut own = before.unwrap_or(SockOwn {
            uid: facts.uid,
            ..SockOwn::default()
        });
        match work {
            // The process may have left the target since the survey began.
            Work::Tag { target, which } if which.of(&self.membership(place.pid)) != target => {
                return Ok(None);
            }
            Work::Tag { target, which } => match which {
                Membership::Own => own.own = target,
                Membership::App => own.app = target,
            },
            Work::TagStrangers => {
                let member = self.membership(place.pid);
                if own.own == 0 {
                    own.own = member.own;
                }
                if own.app == 0 {
                    own.app = member.app;
                }
                if before.map_or(own.own == 0 && own.app == 0, |before| before == own) {
                    return Ok(None);
                }
            }
            Work::Note if before.is_some() => return Ok(None),
            Work::Note => {}
        }
        Ok(Some(own))
    }

    fn give(
        &mut self,
        socket: SocketCopy<'_>,
        facts: SocketFacts,
        own: SockOwn,
        found: &mut Adoption,
    ) -> Result<(), KernelError> {
        match self.write_owner(socket.as_fd(), facts.inode, own)? {
            Tagged::Itself => found.sockets += 1,
            Tagged::ByNumber => {
                found.sockets += 1;
                found.strays += 1;
            }
            Tagged::Not => found.unheld += 1,
        }
        Ok(())
    }

    /// Calls `what` with a copy of each socket that still exists and is of this namespace.
    fn each(
        &mut self,
        places: &[Place],
        mut what: impl FnMut(
            &mut Kernel,
            &Place,
            SocketCopy<'_>,
            SocketFacts,
        ) -> Result<(), KernelError>
        + Send,
    ) -> Result<(), KernelError> {
        if places.is_empty() {
            return Ok(());
        }
        let done = apart(|here| {
            for place in places {
                let taken = here.take(&place.process, place.number);
                let taken = taken.map_err(KernelError::file(
                    "take a copy of an open socket",
                    "pidfd_getfd",
                ));
                let Some(socket) = taken? else {
                    continue;
                };
                // The number may refer to another descriptor by now.
                let facts = SocketFacts::of(socket.as_fd());
                let Some(facts) = facts.filter(|facts| facts.inode == place.inode) else {
                    continue;
                };
                if facts.netns_cookie == self.cookie {
                    what(self, place, socket, facts)?;
                }
            }
            Ok(())
        });
        done.map_err(KernelError::file("look at open sockets", "a thread"))?
    }
}

impl Survey {
    fn new(work: Work, of: &BTreeSet<u32>, again: u32) -> Survey {
        Survey {
            work,
            of: of.clone(),
            walk: Walk::over(of.iter().copied()),
            process: None,
            seen: BTreeSet::new(),
            listeners: Vec::new(),
            again,
            search: None,
            found: Adoption::default(),
        }
    }

    /// Visits the next descriptor. Returns its place if it is a socket that was not visited yet.
    /// The outer `None` means that no descriptor is left.
    fn next(&mut self) -> Result<Option<Option<Place>>, KernelError> {
        let Some((pid, entry)) = self.walk.next()? else {
            return Ok(None);
        };
        if self.process.as_ref().is_none_or(|(of, _)| *of != pid) {
            let process = PidFd::open_if_there(pid).map_err(looking_at(pid))?;
            self.process = process.map(|process| (pid, Arc::new(process)));
        }
        let socket = process::socket_at(&entry).filter(|(_, inode)| self.seen.insert(*inode));
        // The process may have ended and its id may be reused; the socket's inode shows that.
        let place = self.process.as_ref().zip(socket);
        Ok(Some(place.map(|((_, process), (number, inode))| Place {
            pid,
            process: process.clone(),
            number,
            inode,
        })))
    }

    /// Starts another visit of all processes, if one is due; returns whether it did.
    fn begins_again(&mut self) -> bool {
        if self.again == 0 {
            return false;
        }
        self.again -= 1;
        self.walk = Walk::over(self.of.iter().copied());
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
        let outside = outside.filter(|pid| !self.of.contains(pid) && *pid != own);
        self.search = Some((Walk::over(outside), BTreeSet::new()));
    }

    /// Visits up to `most` descriptors of these processes; returns whether the search is complete.
    fn search_on(&mut self, most: usize) -> Result<bool, KernelError> {
        let Some((walk, shared)) = &mut self.search else {
            return Ok(true);
        };
        let listeners: BTreeSet<u64> = self.listeners.iter().map(|place| place.inode).collect();
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

impl Walk {
    fn over(processes: impl Iterator<Item = u32>) -> Walk {
        Walk {
            left: processes.collect(),
            now: None,
            again: AGAIN,
        }
    }

    /// A process and one of its descriptors in /proc. A folder that could not be read to its end is
    /// read again.
    fn next(&mut self) -> Result<Option<(u32, DirEntry)>, KernelError> {
        loop {
            if let Some((pid, descriptors)) = &mut self.now {
                match descriptors.next() {
                    Some(Ok(entry)) => return Ok(Some((*pid, entry))),
                    Some(Err(error)) if !process::is_closed(&error) => {
                        let pid = *pid;
                        self.again = self
                            .again
                            .checked_sub(1)
                            .ok_or(error)
                            .map_err(looking_at(pid))?;
                        self.left.push_front(pid);
                    }
                    // The process ended meanwhile.
                    Some(Err(_)) | None => {}
                }
            }
            let Some(pid) = self.left.pop_front() else {
                return Ok(None);
            };
            self.now = match insist(|| std::fs::read_dir(format!("/proc/{pid}/fd"))) {
                Ok(descriptors) => Some((pid, descriptors)),
                Err(error) if process::is_closed(&error) => None,
                Err(error) => return Err(looking_at(pid)(error)),
            };
        }
    }
}

impl Default for Walk {
    fn default() -> Walk {
        Walk::over(std::iter::empty())
    }
}

fn looking_at(pid: u32) -> impl FnOnce(std::io::Error) -> KernelError {
    KernelError::file("look at the process", format!("/proc/{pid}"))
}

/// How many incomplete folders are read again before the survey fails.
const AGAIN: u32 = 16;
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
const WHOLE: Budget = Budget {
    own: usize::MAX,
    others: usize::MAX,
};
/// The most unfinished surveys. Beyond that number a new survey runs completely at once.
const MOST_SURVEYS: usize = 64;
