//! What happens inside overbooked servers: members wake, are eligible, are served, leave.
//!
//! ```text
//!           handle_head                 eligible                 server's turn
//! idle ──────────────────▶ asleep ──────────────────▶ ready ──────────────────▶ served
//!   ▲                        ▲                                                    │
//!   └── nothing behind ──────┴──────────────── scaled TAT ◀───────────────────────┘
//! ```
//! A member is *active* while it has a packet and *ready* while it is eligible too. The server's
//! own flow waits in the link exactly while any member is ready. A ready member has an entry in
//! its class and none among the sleepers; an entry of one that is not ready is dropped when its
//! turn comes.

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
    /// A new overbooked server: a slice that its members share, by classes of static priority
    /// (the first is the highest) and in proportion to their contracts. It is admitted like any
    /// slice; what its members ask for together is not. Its classes' minimums fit into the slice.
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

    /// Whether a server's slice gives what its classes are promised, in bit/s.
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

    /// A new member of a server, with nothing to send yet. It is shaped to its contract, or to
    /// what its class can have of it.
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

    /// A member has a packet now, or has none any more; nothing for other flows.
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

    /// A member's contract changes, and what it adds to its class.
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

    /// Drops old entries of servers that were removed, not too many at once: nobody is in them any more. The place of one that is
    /// empty is free.
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

    /// Lets a member sleep until it is eligible, or be ready.
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

    /// A member's time has come.
    #[inline(never)]
    pub(super) fn member_eligible(&mut self, id: u32) {
        let flow = &mut self.flows[id as usize];
        flow.clear(Flag::Clock);
        match flow.is(Flag::Waiting) {
            true => self.make_ready(id),
            false => self.vacate(id),
        }
    }

    /// A member is ready; its server wakes if it is the first.
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

    /// It is a server's turn: whose is it inside? Nobody's if too many old entries were in the
    /// way; then the server waits for its next turn.
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

    /// Accounts for a member's packet, its class's and its server's.
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

    /// After a member was served: does its server wait on?
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
    /// Whether it is a member that is eligible.
    pub(super) fn is_ready(&self) -> bool {
        self.is(Flag::Waiting) && self.is(Flag::Fair) && !self.is(Flag::Clock)
    }
}

/// What a member's home can tell apart.
const MAX_SERVERS: usize = 1 << 13;
