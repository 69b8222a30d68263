//! Members of overbooked servers: how they wake, become eligible, are served and leave.
//!
//! ```text
//!        handle_head              eligible               server's turn
//!  idle ──────────────────▶ asleep ──────────────────▶ ready ──────────────────▶ served
//!   ▲                        ▲                                                   │
//!   └── nothing behind ──────┴──────────────── scaled TAT ◀───────────────────────┘
//! ```
//! A member is *active* while it has a packet, and *ready* while it is eligible too. The server's
//! own flow waits in the link exactly while a member is ready. A ready member has an entry in its
//! class and none among the sleepers. The entry of a member that is not ready is dropped when it
//! comes first.

use super::flow::{Flag, Flow, Kind};
use super::server::{Class, MAX_CLASSES, Server};
use super::{
    DROPPED_PER_CALL, Entry, FAIR, FlowId, Member, Misuse, Scheduler, Slice, deadline, finest,
};
use crate::contract;
use crate::sched::member::Home;
use crate::sched::turn::prefetch;
use crate::units::{Instant, Rate};

impl Scheduler {
    /// Adds an overbooked server: a slice that its members share, by classes of static priority
    /// (the first is the highest) and in proportion to their contracts. Admission treats it like
    /// any other slice and does not count the members' contracts. The classes' minimums must fit
    /// into the slice.
    ///
    /// # Errors
    /// [`Misuse::Classes`] if there are not 1 to [`MAX_CLASSES`] classes. [`Misuse::Servers`] with
    /// 2^13 servers. [`Misuse::Full`] with 2^20 flows. [`Misuse::Extra`] if the slice has `extra`.
    /// [`Misuse::Minimums`] if the classes' minimums exceed the slice.
    pub fn insert_server(
        &mut self,
        slice: contract::Slice,
        classes: &[Class],
        now: Instant,
    ) -> Result<FlowId, Misuse> {
        self.advance(now);
        let vacant = self.servers.iter().position(Option::is_none);
        let index = vacant.unwrap_or(self.servers.len());
        if !(1..=MAX_CLASSES).contains(&classes.len()) {
            return Err(Misuse::Classes(classes.len()));
        }
        if index >= MAX_SERVERS {
            return Err(Misuse::Servers(MAX_SERVERS));
        }
        let least = classes.iter().filter_map(|class| class.min);
        self.gives(&slice, least.map(Rate::bits_per_second).sum())?;
        let kind = Kind::Server {
            slice: Slice::new(&slice),
            // Below 2^13.
            server: index as u16,
        };
        let flow = self.insert_flow(Flow::new(kind))?;
        let server = Server::new(
            flow.0,
            FAIR,
            classes,
            Slice::new(&slice).of(self.wire.pace.rate()),
        );
        match self.servers.get_mut(index) {
            Some(place) => *place = Some(server),
            None => self.servers.push(Some(server)),
        }
        Ok(flow)
    }

    /// Checks that a server's slice gives the `promised` bit/s.
    pub(super) fn gives(&self, slice: &contract::Slice, promised: u64) -> Result<(), Misuse> {
        let gives = Slice::new(slice).of(self.wire.rate.bits_per_second());
        match slice.extra() {
            true => Err(Misuse::Extra),
            false if promised > gives => Err(Misuse::Minimums {
                promised,
                slice: gives,
            }),
            false => Ok(()),
        }
    }

    /// Adds a member to a class of a server, with an empty queue. The member is shaped to its
    /// contract, or to the part of it that is available to its class.
    ///
    /// # Errors
    /// [`Misuse::Unknown`] if the server does not exist. [`Misuse::NoClass`] if the flow is not a
    /// server or has no such class. [`Misuse::Full`] with 2^20 flows.
    pub fn insert_member(
        &mut self,
        server: FlowId,
        class: usize,
        contract: contract::Cell,
        now: Instant,
    ) -> Result<FlowId, Misuse> {
        self.advance(now);
        let kind = self.known(server)?.kind;
        let index = match kind {
            Kind::Server { server, .. } => Some(server),
            _ => None,
        };
        let known = index.and_then(|index| self.servers[usize::from(index)].as_ref());
        let classes = known.map_or(0, Server::classes);
        let (Some(index), true) = (index, class < classes) else {
            return Err(Misuse::NoClass { server, class });
        };
        let home = Home::new(index, class as u8);
        let flow = self.insert_flow(Flow::new(Kind::Member(Member::new(&contract, home))))?;
        if let Some(server) = &mut self.servers[usize::from(index)] {
            server.members += 1;
        }
        Ok(flow)
    }

    /// A member gets a packet, or has none any more. No effect on other flows.
    #[inline(never)]
    pub(super) fn set_active(&mut self, id: u32, active: bool) {
        if let Kind::Member(member) = &self.flows[id as usize].kind
            && let Some(server) = &mut self.servers[member.home().server()]
        {
            server.set_active(member, active);
        }
    }

    /// A member's packet is withdrawn.
    pub(super) fn withdraw_member(&mut self, id: u32) {
        let flow = &self.flows[id as usize];
        let Kind::Member(member) = &flow.kind else {
            return;
        };
        let home = member.home();
        let Some(server) = &mut self.servers[home.server()] else {
            return;
        };
        if flow.is_ready() {
            server.leave(home);
        }
        server.set_active(member, false);
        if !server.is_ready() {
            let own = server.flow;
            self.flows[own as usize].clear(Flag::Waiting);
            self.recall(own);
        }
    }

    /// Changes a member's contract, and its contribution to its class.
    pub(super) fn change_member(&mut self, id: u32, contract: &contract::Cell) {
        let flow = &mut self.flows[id as usize];
        let waiting = flow.is(Flag::Waiting);
        if let Kind::Member(member) = &mut flow.kind
            && let Some(server) = &mut self.servers[member.home().server()]
        {
            if waiting {
                server.set_active(member, false);
            }
            *member = member.changed(contract);
            if waiting {
                server.set_active(member, true);
            }
        }
    }

    /// Drops old entries of removed servers, a limited number in one call. Such a server has no
    /// members. The index of a server without entries becomes free.
    pub(super) fn drain_closed(&mut self) {
        let Some(index) = self.closed.last().copied() else {
            return;
        };
        for _ in 0..DROPPED_PER_CALL {
            let place = &mut self.servers[usize::from(index)];
            let entry = place.as_mut().and_then(|one| one.drain(&mut self.pool));
            let Some(id) = entry else {
                *place = None;
                self.closed.pop();
                return;
            };
            self.flows[id as usize].clear(Flag::Fair);
            self.vacate(id);
        }
    }

    /// Inserts a member into the sleepers until it is eligible, or makes it ready.
    #[inline(never)]
    pub(super) fn place_member(&mut self, id: u32) {
        let now = self.now;
        let flow = &mut self.flows[id as usize];
        let length = flow.length();
        let Kind::Member(member) = &mut flow.kind else {
            return;
        };
        let eligible = member.plan(length);
        let finest = finest(member.patience());
        if eligible <= now {
            return self.make_ready(id);
        }
        if flow.is(Flag::Clock) {
            return;
        }
        let Some(spot) = self.sleepers.not_before(eligible, now, finest) else {
            return self.sleep_before(id, eligible);
        };
        flow.set(Flag::Clock);
        self.sleep(spot, Entry::new(id, deadline::JOIN));
    }

    /// A member becomes eligible.
    #[inline(never)]
    pub(super) fn member_eligible(&mut self, id: u32) {
        let flow = &mut self.flows[id as usize];
        flow.clear(Flag::Clock);
        match flow.is(Flag::Waiting) {
            true => self.make_ready(id),
            false => self.vacate(id),
        }
    }

    /// Makes a member ready. If it is the first ready member, its server wakes.
    #[inline(always)]
    fn make_ready(&mut self, id: u32) {
        let (now, longest) = (self.now, self.wire.longest);
        let flow = &mut self.flows[id as usize];
        let has_entry = flow.is(Flag::Fair);
        let Kind::Member(member) = &mut flow.kind else {
            return;
        };
        let home = member.home();
        let Some(server) = &mut self.servers[home.server()] else {
            return;
        };
        let (old, start) = (member.tag, server.start(home, member.tag));
        member.tag = start;
        let entry = (!has_entry).then_some((id, start));
        server.join(&mut self.pool, home, entry, now, longest);
        let own = server.flow;
        flow.set(Flag::Fair);
        match has_entry {
            true if start != old => flow.set(Flag::FairOld),
            true => {}
            false => flow.clear(Flag::FairOld),
        }
        let own_flow = &mut self.flows[own as usize];
        if !own_flow.is(Flag::Waiting) {
            own_flow.set(Flag::Waiting);
            if let Kind::Server { slice, .. } = &mut own_flow.kind {
                slice.wake(now);
            }
            self.recall(own);
            self.place(own);
        }
    }

    /// The member to serve in a server's turn. `None` if too many old entries came first; then the
    /// server waits for its next turn.
    #[inline(never)]
    pub(super) fn next_member(&mut self, server: u16, dropped: &mut u32) -> Option<u32> {
        let now = self.now;
        let own = self.servers[usize::from(server)].as_ref()?.flow;
        let mut old = None;
        while *dropped > 0 {
            let inside = self.servers[usize::from(server)].as_mut()?;
            let flows = &self.flows;
            let ahead = |id: u32| prefetch(flows, id);
            let Some(id) = inside.take(&mut self.pool, now, ahead) else {
                break;
            };
            let flow = &mut self.flows[id as usize];
            flow.clear(Flag::Fair);
            let ready = flow.is(Flag::Waiting) && !flow.is(Flag::Clock);
            if ready && !flow.is(Flag::FairOld) {
                return Some(id);
            }
            flow.clear(Flag::FairOld);
            match &mut flow.kind {
                Kind::Member(member) if ready => {
                    let home = member.home();
                    let start = inside.start(home, member.tag);
                    member.tag = start;
                    inside.join_again(&mut self.pool, home, id, start);
                    flow.set(Flag::Fair);
                }
                _ => old = Some(id),
            }
            *dropped -= 1;
            if let Some(id) = old.take() {
                self.vacate(id);
            }
        }
        self.settle_own(own);
        None
    }

    /// Accounts for a packet of a member in the member, its class and its server.
    #[inline(never)]
    pub(super) fn member_sent(&mut self, id: u32, start: u64, cost: u64, length: u32) {
        let now = self.now;
        let flow = &mut self.flows[id as usize];
        let Kind::Member(member) = &mut flow.kind else {
            return;
        };
        let home = member.home();
        let Some(server) = &mut self.servers[home.server()] else {
            return;
        };
        member.sent(start, length, server.factor(home));
        server.served(member, length, now);
        let own = server.flow;
        if let Kind::Server { slice, .. } = &mut self.flows[own as usize].kind {
            slice.sent(now, cost);
        }
    }

    /// Keeps or ends the waiting of a server after a member was served.
    #[inline(never)]
    pub(super) fn settle_server(&mut self, id: u32) {
        let Kind::Member(member) = &self.flows[id as usize].kind else {
            return;
        };
        let home = member.home();
        if let Some(server) = &mut self.servers[home.server()] {
            server.settle(home);
            let own = server.flow;
            self.settle_own(own);
        }
    }

    fn settle_own(&mut self, own: u32) {
        let Kind::Server { server, .. } = self.flows[own as usize].kind else {
            return;
        };
        let inside = self.servers[usize::from(server)].as_ref();
        match inside.is_some_and(Server::is_ready) {
            true => self.place(own),
            false => self.flows[own as usize].clear(Flag::Waiting),
        }
    }
}

impl Flow {
    /// Whether the flow is a member that is eligible.
    pub(super) fn is_ready(&self) -> bool {
        self.is(Flag::Waiting) && self.is(Flag::Fair) && !self.is(Flag::Clock)
    }
}

/// The number of servers that a member's home can hold.
const MAX_SERVERS: usize = 1 << 13;
