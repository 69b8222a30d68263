//! Tests of the service on a fake machine.

mod budgets;
mod clauses;
mod estimates;
mod link_speeds;
mod model;
mod nesting;
mod pages;
mod policy;
mod processors;
mod programs;
mod quotas;
mod restarts;
mod scenarios;
mod schedules;
mod timed;
mod traffic_quotas;
mod units;
mod watch;

use netnice_api::{Clear, ClearWhat, LinkChange, Request, Response, Set, Show, ShowDoc};
use netnice_core::units::{Instant, Nanos};

use super::{NamedProcess, Service};
use crate::clock::Now;
use crate::host::fake::FakeMachine;
use crate::host::{Enforcer, Inventory};
use crate::ledger::{AppKey, HeldTarget};
use crate::peer::Peer;

const ANN: Peer = Peer {
    uid: 1000,
    privileged: false,
    groups: Vec::new(),
};

/// A service on a fake machine, and the present time.
struct Fixture {
    service: Service<FakeMachine>,
    now: Now,
}

impl Fixture {
    fn new() -> Fixture {
        let mut machine = FakeMachine::default();
        machine.spawn(1, 0);
        machine.groups.insert("/".to_owned(), 1);
        machine.interfaces.insert("eth0".to_owned(), true);
        machine.interfaces.insert("lo".to_owned(), true);
        Fixture {
            service: Service::new(machine, None),
            now: Now {
                monotonic: Instant(0).after(Nanos::from_secs(100)),
                wall_ns: 1,
            },
        }
    }

    fn machine(&mut self) -> &mut FakeMachine {
        self.service.host()
    }

    fn advance(&mut self, seconds: u64) {
        self.now.monotonic = self.now.monotonic.after(Nanos::from_secs(seconds));
        self.service.tick(self.now);
    }

    fn ask(&mut self, peer: &Peer, request: Request, pid: Option<u32>) -> Response {
        let alive = pid.map(|pid| self.machine().process(pid).is_some());
        let named = pid.map(|pid| NamedProcess {
            pid,
            lives: Box::new(move || alive == Some(true)),
        });
        self.service.handle(peer, &request, named, self.now)
    }

    fn set_as(&mut self, peer: &Peer, target: &str, change: &str) -> Response {
        let pid = target.strip_prefix("pid:").and_then(|pid| pid.parse().ok());
        self.set_with(peer, target, change, pid, |_| {})
    }

    fn set_with(
        &mut self,
        peer: &Peer,
        target: &str,
        change: &str,
        pid: Option<u32>,
        more: impl FnOnce(&mut Set),
    ) -> Response {
        let mut set = Set {
            target: target.to_owned(),
            change: (!change.is_empty()).then(|| change.to_owned()),
            ..Set::default()
        };
        more(&mut set);
        self.ask(peer, Request::Set(set), pid)
    }

    fn set(&mut self, target: &str, change: &str) -> Response {
        self.set_as(&Peer::ROOT, target, change)
    }

    fn run_named(&mut self, peer: &Peer, name: &str, pid: u32, change: &str) -> Response {
        self.set_with(peer, &format!("name:{name}"), change, Some(pid), |set| {
            set.pid = Some(pid);
        })
    }

    fn clear_as(&mut self, peer: &Peer, target: &str) -> Response {
        let what = match target {
            "all" => ClearWhat::All,
            target => ClearWhat::Target(target.to_owned()),
        };
        let clear = Clear {
            what,
            dry_run: false,
            confirm_ns: None,
            for_ns: None,
            until: None,
        };
        self.ask(peer, Request::Clear(clear), None)
    }

    fn clear(&mut self, target: &str) -> Response {
        self.clear_as(&Peer::ROOT, target)
    }

    fn link(&mut self, iface: &str, rate: &str, down_rate: &str) -> Response {
        let text = |rate: &str| (!rate.is_empty()).then(|| rate.to_owned());
        let change = LinkChange {
            iface: iface.to_owned(),
            rate: text(rate),
            down_rate: text(down_rate),
            ..LinkChange::default()
        };
        self.ask(&Peer::ROOT, Request::Link(Box::new(change)), None)
    }

    fn show(&mut self) -> ShowDoc {
        match self.ask(&Peer::ROOT, Request::Show(Show::default()), None) {
            Response::Shown(doc) => doc,
            other => panic!("{other:?}"),
        }
    }

    fn held(&self, target: &str) -> Option<HeldTarget> {
        let target = target.parse().expect(target);
        self.service.ledger().find(&target).cloned()
    }

    /// The name of the target directly around a target.
    fn parent(&self, target: &str) -> Option<String> {
        let held = self.held(target).expect(target);
        let parent = self.service.ledger().get(held.entry.parent?)?;
        Some(parent.entry.target.to_string())
    }

    /// The name of the target that a process belongs to by descent.
    fn own(&mut self, pid: u32) -> Option<String> {
        let id = self.machine().own(pid);
        let held = self.service.ledger().by_id(id)?;
        Some(held.entry.target.to_string())
    }

    /// Checks that the machine's state matches the ledger.
    fn check(&mut self) {
        self.service.ledger().assert_invariants();
        let wanted = self
            .service
            .reconciler
            .deviations
            .desired_state(self.service.ledger());
        assert_eq!(self.service.reconciler.host.in_force.desired, wanted);
    }
}

fn ok(response: Response) -> netnice_api::Done {
    match response {
        Response::Done(done) => done,
        other => panic!("{other:?}"),
    }
}

fn refused(response: Response) -> String {
    match response {
        Response::Refused(refused) => refused.text,
        other => panic!("{other:?}"),
    }
}

fn failed(response: Response) -> String {
    match response {
        Response::Failed(failed) => failed.text,
        other => panic!("{other:?}"),
    }
}

/// A state without the values that change over time.
fn without_counters(mut doc: ShowDoc) -> ShowDoc {
    for target in &mut doc.targets {
        target.counters = Default::default();
    }
    for link in &mut doc.links {
        link.counters = Default::default();
    }
    doc
}
