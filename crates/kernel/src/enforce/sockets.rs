//! The sockets that a target's processes had open before: they are given their owner.
//!
//! A process may have tens of thousands of sockets, and others wait meanwhile. So a look at the sockets of some processes
//! ([`Survey`]) is made in steps: the first one at once, which is all there is to do for nearly everybody, and the others
//! when the caller has time ([`Kernel::look_on`]).

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

/// What is done with the sockets of processes.
#[derive(Clone, Copy, Debug)]
enum Work {
    /// They are this target's, as far as their processes are.
    Tag { target: u32, which: Membership },
    /// They are their processes' targets', unless they are somebody's already.
    TagStrangers,
    /// They are their users'.
    Note,
}

/// A look at the sockets of some processes.
#[derive(Debug)]
pub(super) struct Survey {
    work: Work,
    of: BTreeSet<u32>,
    walk: Walk,
    /// The process that was met last.
    process: Option<(u32, Arc<PidFd>)>,
    /// Sockets that were looked at, by inode.
    seen: BTreeSet<u64>,
    /// Those of them that listen, which have their turn at the end.
    listeners: Vec<Place>,
    /// How often all processes are looked at once more. A socket that is being made during a look belongs to nobody yet.
    again: u32,
    /// At the end: the search for processes outside that accept on the same sockets, and the sockets of which there are some.
    search: Option<(Walk, BTreeSet<u64>)>,
    /// What the steps after the first have found.
    found: Adoption,
}

/// The descriptors of some processes, one after the other.
#[derive(Debug)]
struct Walk {
    left: VecDeque<u32>,
    now: Option<(u32, ReadDir)>,
    /// How often a folder may still be read anew.
    again: u32,
}

/// How many descriptors a step looks at.
#[derive(Clone, Copy, Debug)]
struct Budget {
    /// Of the processes themselves.
    own: usize,
    /// Of others, where that takes a tenth of the time.
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

    /// The same, with those that are being made meanwhile.
    pub(super) fn tag_sockets_twice(
        &mut self,
        members: &BTreeSet<u32>,
        target: u32,
        which: Membership,
    ) -> Result<Adoption, KernelError> {
        self.begin(Survey::new(Work::Tag { target, which }, members, 1))
    }

    /// Notes whose the open sockets of a user's processes are.
    pub(super) fn note_users(&mut self, members: &BTreeSet<u32>) -> Result<Adoption, KernelError> {
        self.begin(Survey::new(Work::Note, members, 0))
    }

    /// Has the sockets of all members tagged that an earlier daemon did not come to.
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

    /// How many looks at open sockets are not finished ([`Kernel::look_on`]).
    pub fn looks_left(&self) -> usize {
        self.surveys.len()
    }

    /// Looks at some of the open sockets that are left: for some milliseconds at most. Where it comes to the end of a look,
    /// tells what that has found since it began.
    ///
    /// # Errors
    /// They could not be looked at, and are not again.
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

    /// Goes on with a survey; whether it is done.
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

    /// Does what a survey is for with some sockets, as far as they are still there. Those that listen are noted.
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

    /// Does it with those that listen, unless processes outside accept on them too.
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

    /// Whose a socket should be; none if it stays whose it is.
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
            // It may have left the target since the survey began.
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

    /// Does something with a copy of each of a few sockets that are still there and of this namespace.
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
                // Its number may mean another descriptor by now.
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

    /// Looks at the next descriptor: where it is a socket that was not seen yet, its place. None: there is none left.
    fn next(&mut self) -> Result<Option<Option<Place>>, KernelError> {
        let Some((pid, entry)) = self.walk.next()? else {
            return Ok(None);
        };
        if self.process.as_ref().is_none_or(|(of, _)| *of != pid) {
            let process = PidFd::open_if_there(pid).map_err(looking_at(pid))?;
            self.process = process.map(|process| (pid, Arc::new(process)));
        }
        let socket = process::socket_at(&entry).filter(|(_, inode)| self.seen.insert(*inode));
        // It may have ended meanwhile, and another one may have its number: the socket's inode tells.
        let place = self.process.as_ref().zip(socket);
        Ok(Some(place.map(|((_, process), (number, inode))| Place {
            pid,
            process: process.clone(),
            number,
            inode,
        })))
    }

    /// Whether all processes are to be looked at once more.
    fn begins_again(&mut self) -> bool {
        if self.again == 0 {
            return false;
        }
        self.again -= 1;
        self.walk = Walk::over(self.of.iter().copied());
        true
    }

    /// Begins to look for processes outside that accept on the same sockets.
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

    /// Looks at so many of their descriptors; whether those were all.
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

    /// A process, and one of its descriptors in /proc. A folder that could not be read to its end is read anew.
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
                    // It has ended meanwhile.
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

/// How many folders that could not be read to their end are read anew, before that counts as a failure.
const AGAIN: u32 = 16;
/// While a change is made.
const FIRST_STEP: Budget = Budget {
    own: 512,
    others: 8_192,
};
/// Each time that there is time for it: some milliseconds.
const NEXT_STEP: Budget = Budget {
    own: 128,
    others: 1_024,
};
const WHOLE: Budget = Budget {
    own: usize::MAX,
    others: usize::MAX,
};
/// Surveys that wait. Where there are more, who asks for the next one waits for all of it.
const MOST_SURVEYS: usize = 64;
