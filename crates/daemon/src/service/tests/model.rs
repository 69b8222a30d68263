//! Property test of the service with random sequences of events: processes start, get limits and
//! guarantees, are cleared and end in any order; steps of the enforcer fail, and the daemon
//! restarts. After every event the same invariants must hold, computed from the present state.

use std::collections::BTreeSet;

use netnice_core::contract::Direction;
use netnice_core::units::Amount;
use proptest::prelude::*;

use super::*;
use crate::ledger::Body;
use crate::reconcile::SavedState;
use crate::state::State;

#[derive(Clone, Debug)]
enum Event {
    Spawn,
    Fork(usize),
    Exit(usize),
    Limit {
        process: usize,
        kind: u8,
        mbit: u64,
        fails: Option<usize>,
    },
    Promise {
        process: usize,
        mbit: u64,
    },
    /// A process joins a name of root's, or one of its user's.
    Name {
        process: usize,
        name: u8,
        by_user: bool,
    },
    Group {
        which: usize,
        mbit: u64,
    },
    User {
        which: u32,
        mbit: u64,
    },
    Clear {
        process: usize,
        fails: Option<usize>,
    },
    ClearGroup(usize),
    ClearAll,
    Tick,
    Restart,
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let fails = || prop::option::weighted(0.2, 0..4_usize);
    let event = prop_oneof![
        3 => Just(Event::Spawn),
        4 => (0..50_usize).prop_map(Event::Fork),
        2 => (0..50_usize).prop_map(Event::Exit),
        6 => (0..50_usize, 0..4_u8, 1..80_u64, fails())
            .prop_map(|(process, kind, mbit, fails)| Event::Limit { process, kind, mbit, fails }),
        3 => (0..50_usize, 1..60_u64).prop_map(|(process, mbit)| Event::Promise { process, mbit }),
        3 => (0..50_usize, 0..2_u8, any::<bool>())
            .prop_map(|(process, name, by_user)| Event::Name { process, name, by_user }),
        2 => (0..4_usize, 1..80_u64).prop_map(|(which, mbit)| Event::Group { which, mbit }),
        1 => (1000..1002_u32, 1..80_u64).prop_map(|(which, mbit)| Event::User { which, mbit }),
        3 => (0..50_usize, fails()).prop_map(|(process, fails)| Event::Clear { process, fails }),
        1 => (0..4_usize).prop_map(Event::ClearGroup),
        1 => Just(Event::ClearAll),
        3 => Just(Event::Tick),
        1 => Just(Event::Restart),
    ];
    prop::collection::vec(event, 1..60)
}

/// How the names of users begin.
const USERS_NAME: &str = "user";

const GROUPS: [&str; 4] = ["/", "/a", "/a/b", "/c"];

struct Simulation {
    fixture: Fixture,
    next: u32,
}

impl Simulation {
    fn new() -> Simulation {
        let mut fixture = Fixture::new();
        for (n, path) in GROUPS.iter().enumerate() {
            let id = n as u64 + 1;
            fixture.machine().groups.insert((*path).to_owned(), id);
        }
        ok(fixture.link("eth0", "100mbit", ""));
        Simulation { fixture, next: 100 }
    }

    /// A living process other than init.
    fn pid(&mut self, n: usize) -> Option<u32> {
        let pids = self.fixture.machine().processes.keys().skip(1);
        let pids: Vec<u32> = pids.copied().collect();
        pids.get(n % pids.len().max(1)).copied()
    }

    fn user_of(&mut self, pid: u32) -> Option<Peer> {
        let process = self.fixture.machine().process(pid)?;
        Some(Peer {
            uid: process.uid,
            privileged: false,
            groups: Vec::new(),
        })
    }

    fn apply(&mut self, event: &Event) -> Option<()> {
        match event {
            Event::Spawn => {
                let (pid, group) = (self.next, GROUPS[self.next as usize % 4]);
                self.next += 1;
                let machine = self.fixture.machine();
                machine.spawn(pid, 1000 + pid % 2);
                machine.processes.get_mut(&pid)?.cgroup = group.to_owned();
            }
            Event::Fork(n) => {
                let (parent, child) = (self.pid(*n)?, self.next);
                self.next += 1;
                self.fixture.machine().fork(parent, child);
            }
            Event::Exit(n) => {
                let pid = self.pid(*n)?;
                self.fixture.machine().exit(pid);
            }
            Event::Tick => self.fixture.advance(1),
            Event::Restart => self.restart(),
            Event::ClearAll => {
                ok(self.fixture.clear("all"));
                ok(self.fixture.link("eth0", "100mbit", ""));
            }
            _ => return self.apply_request(event),
        }
        Some(())
    }

    fn apply_request(&mut self, event: &Event) -> Option<()> {
        match event {
            Event::Limit {
                process,
                kind,
                mbit,
                fails,
            } => {
                let pid = self.pid(*process)?;
                let change = match kind {
                    0 => format!("up {mbit}mbit"),
                    1 => format!("down {mbit}mbit"),
                    2 => format!("both {mbit}mbit"),
                    _ => "up none down none both none".to_owned(),
                };
                let target = format!("pid:{pid}");
                self.change(*fails, |fixture| fixture.set(&target, &change));
            }
            Event::Promise { process, mbit } => {
                let target = format!("pid:{}", self.pid(*process)?);
                let change = format!("min {mbit}mbit");
                self.change(None, |fixture| fixture.set(&target, &change));
            }
            Event::Name {
                process,
                name,
                by_user,
            } => {
                let pid = self.pid(*process)?;
                let (peer, name) = match by_user {
                    true => (self.user_of(pid)?, format!("{USERS_NAME}{name}")),
                    false => (Peer::ROOT, format!("n{name}")),
                };
                self.change(None, |fixture| {
                    fixture.run_named(&peer, &name, pid, "up 9mbit")
                });
            }
            Event::Group { which, mbit } => {
                let target = format!("cgroup:{}", GROUPS[*which]);
                let change = format!("up {mbit}mbit");
                self.change(None, |fixture| fixture.set(&target, &change));
            }
            Event::User { which, mbit } => {
                let (target, change) = (format!("user:{which}"), format!("down {mbit}mbit"));
                self.change(None, |fixture| fixture.set(&target, &change));
            }
            Event::Clear { process, fails } => {
                let target = format!("pid:{}", self.pid(*process)?);
                self.change(*fails, |fixture| fixture.clear(&target));
            }
            Event::ClearGroup(which) => {
                let target = format!("cgroup:{}", GROUPS[*which]);
                self.change(None, |fixture| fixture.clear(&target));
            }
            _ => {}
        }
        Some(())
    }

    /// Makes a change, with the step number `fails` of the enforcer failing if given. Fails the
    /// test unless a failed change leaves the state as it was.
    fn change(&mut self, fails: Option<usize>, change: impl FnOnce(&mut Fixture) -> Response) {
        let in_force = self.fixture.machine().in_force.clone();
        let mut ledger = self.fixture.service.ledger().clone();
        self.fixture.machine().fails_in = fails;
        let answer = change(&mut self.fixture);
        self.fixture.machine().fails_in = None;
        if !matches!(answer, Response::Done(_)) {
            assert_eq!(self.fixture.machine().in_force, in_force, "{answer:?}");
            ledger.skip_ids(self.fixture.service.ledger().next_id());
            assert_eq!(*self.fixture.service.ledger(), ledger, "{answer:?}");
        }
    }

    /// Ends the daemon as `kill -9` does, and starts a new one on the same machine.
    fn restart(&mut self) {
        let state = State {
            ledger: self.fixture.service.ledger().clone(),
            rollbacks: Default::default(),
        };
        let held = |fixture: &Fixture| -> Vec<_> {
            let held = fixture.service.ledger().held();
            held.map(|h| (h.id, h.entry.clone())).collect()
        };
        let before = held(&self.fixture);
        let in_force = self.fixture.machine().in_force.clone();
        let mut service = Service::new(self.fixture.machine().clone(), None);
        service.start(SavedState::Complete(Box::new(state)), self.fixture.now);
        self.fixture.service = service;
        assert_eq!(before, held(&self.fixture), "a restart changes nothing");
        assert_eq!(self.fixture.machine().in_force, in_force);
    }

    fn check(&mut self) {
        self.fixture.check();
        self.check_families_held();
        self.check_promises_fit();
    }

    /// Checks that the living family of a process target, which root has limited, is in that target
    /// or in one inside it, except processes that root let join a name, and their families.
    fn check_families_held(&mut self) {
        let held: Vec<HeldTarget> = self.fixture.service.ledger().held().cloned().collect();
        let is_pid = |held: &HeldTarget| held.entry.target.to_string().starts_with("pid:");
        let roots = |held: &HeldTarget| match &held.body {
            Body::Processes { roots, .. } => roots.clone(),
            _ => Vec::new(),
        };
        let by_root = |held: &&HeldTarget| {
            let target = held.entry.target.to_string();
            !is_pid(held) && !target.starts_with(&format!("name:{USERS_NAME}"))
        };
        let named = held.iter().filter(by_root).flat_map(roots);
        let mut joined: BTreeSet<u32> = BTreeSet::new();
        for root in named {
            joined.extend(self.fixture.machine().family(root.pid));
        }
        for target in held.iter().filter(|held| is_pid(held)) {
            let root = roots(target)[0];
            let process = self.fixture.machine().process(root.pid);
            let is_there = process.is_some_and(|process| process.root == root);
            if !is_there || self.fixture.machine().own(root.pid) != target.id {
                continue;
            }
            for pid in self.fixture.machine().family(root.pid) {
                let own = self.fixture.machine().own(pid);
                let inner = held.iter().find(|held| held.id == own);
                let inner = inner.expect("a member of what is held");
                let mut around = self.fixture.service.ledger().around(inner.entry.id);
                let inside = inner.id == target.id || around.any(|outer| outer.id == target.id);
                assert!(
                    inside || joined.contains(&pid),
                    "{pid}, of the family of {}, is in {}",
                    target.entry.target,
                    inner.entry.target
                );
            }
        }
    }

    fn check_promises_fit(&mut self) {
        let ledger = &self.fixture.service.ledger();
        let link = ledger.link("eth0").expect("managed").link.clone();
        let [up, _] = ledger.promised(&link);
        assert!(up <= Amount::from(link.usable(Direction::Up).expect("a rate")));
        let mut slots = BTreeSet::new();
        for target in &self
            .fixture
            .service
            .reconciler
            .host
            .in_force
            .desired
            .targets
        {
            assert!(slots.insert(target.slot), "a slot is used once");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn the_machine_matches_the_ledger_after_any_events(events in events()) {
        let mut simulation = Simulation::new();
        for event in &events {
            simulation.apply(event);
            simulation.fixture.service.close_and_rebind(simulation.fixture.now);
            simulation.check();
        }
        ok(simulation.fixture.clear("all"));
        assert!(!simulation.fixture.machine().is_enforcing(), "no trace");
    }
}
