//! The traffic of all programs, as far as the peer may see it ([`View::programs`]). A privileged
//! peer sees every program, any other peer the programs of its own user, and one sum of all others.
//! The response has at most [`MAX_LISTED`] (1,000) programs, those with the most traffic first, and
//! a sum of the further ones. Nothing fails.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};

use netnice_api::{ProgramDoc, ProgramsDoc, TrafficSum};
use netnice_core::units::Nanos;
use netnice_kernel::cgroup::{self, Group};

use super::view::View;
use crate::host::Inventory;
use crate::ledger::TargetPlace;
use crate::peer::Peer;
use crate::programs::{Moved, ProgramTraffic, Snapshot};
use crate::user_names::user_name;

impl<H: Inventory> View<'_, H> {
    /// The programs of a snapshot as far as the peer may see them, with the targets to which they
    /// belong.
    pub(super) fn programs(&mut self, peer: &Peer, snapshot: &Snapshot) -> ProgramsDoc {
        let mut doc = visible(peer, snapshot);
        if self.ledger().held().next().is_none() {
            return doc;
        }
        let groups = snapshot.programs.iter();
        let groups: HashMap<(u32, u64), Option<&String>> = groups
            .map(|known| {
                let process = known.process;
                ((process.pid, process.started), known.cgroup.as_ref())
            })
            .collect();
        let places: Vec<TargetPlace> = doc
            .list
            .iter()
            .map(|program| {
                let group = groups.get(&(program.pid, program.started));
                self.place_of(program, group.copied().flatten())
            })
            .collect();
        let targets = self.ledger().at_places(&places);
        for (program, target) in doc.list.iter_mut().zip(targets) {
            program.target = target.map(|held| held.entry.target.to_string());
        }
        doc
    }

    fn place_of(&mut self, program: &ProgramDoc, group: Option<&String>) -> TargetPlace {
        let number = |id: u32| (id != 0).then_some(id);
        let (own, app) = match program.ended {
            true => (0, 0),
            false => self.machine.membership(program.pid),
        };
        TargetPlace {
            own: number(own),
            app: number(app),
            cgroup: group.cloned(),
            uid: Some(program.uid),
        }
    }
}

/// The part of a snapshot that the peer may see, without the targets.
fn visible(peer: &Peer, snapshot: &Snapshot) -> ProgramsDoc {
    let may_see = |uid: u32| peer.privileged || uid == peer.uid;
    let rates = |moved: Moved| sum(moved, snapshot.interval);
    let mut doc = ProgramsDoc {
        at_ns: snapshot.at.0,
        since_ns: snapshot.since.0,
        remarks: snapshot.remarks.clone(),
        ..ProgramsDoc::default()
    };
    let mut own: Vec<&ProgramTraffic> = Vec::new();
    for program in &snapshot.programs {
        match may_see(program.uid) {
            true => own.push(program),
            false => {
                doc.others.add(rates(program.moved));
                doc.others.programs += 1;
            }
        }
    }
    let bytes = |of: [u64; 2]| of[0].saturating_add(of[1]);
    own.sort_unstable_by_key(|program| {
        let moved = program.moved;
        let traffic = (bytes(moved.recent.bytes), bytes(moved.all.bytes));
        (Reverse(traffic), program.process)
    });
    for program in own.split_off(own.len().min(MAX_LISTED)) {
        doc.more.add(rates(program.moved));
        doc.more.programs += 1;
    }
    let mut names: BTreeMap<u32, String> = BTreeMap::new();
    for program in own {
        let name = names.entry(program.uid);
        let name = name.or_insert_with(|| user_name(program.uid)).clone();
        doc.list.push(program_doc(program, name, snapshot.interval));
    }
    for (uid, programs, moved) in &snapshot.ended {
        let of = TrafficSum {
            programs: *programs,
            ..rates(*moved)
        };
        match may_see(*uid) {
            true => doc.ended.add(of),
            false => doc.others.add(of),
        }
    }
    for (uid, moved) in &snapshot.overflow {
        match may_see(*uid) {
            true => doc.overflow.add(rates(*moved)),
            false => doc.others.add(rates(*moved)),
        }
    }
    let unowned = [
        (snapshot.unknown, &mut doc.unknown),
        (snapshot.missing, &mut doc.overflow),
    ];
    for (moved, seen) in unowned {
        match peer.privileged {
            true => seen.add(rates(moved)),
            false => doc.others.add(rates(moved)),
        }
    }
    remark_on_overflow(&mut doc, snapshot, may_see);
    let listed = doc.list.iter().map(TrafficSum::from);
    let sums = [doc.more, doc.ended, doc.unknown, doc.overflow, doc.others];
    for one in listed.chain(sums).collect::<Vec<_>>() {
        doc.total.add(one);
    }
    doc
}

/// Says which users have sockets for which the kernel's table had no room.
fn remark_on_overflow(doc: &mut ProgramsDoc, snapshot: &Snapshot, may_see: impl Fn(u32) -> bool) {
    let mut users: Vec<&(u32, Moved)> = snapshot.overflow.iter().collect();
    users.retain(|(uid, _)| may_see(*uid));
    users.sort_unstable_by_key(|(uid, moved)| (Reverse(moved.all.bytes), *uid));
    let names: Vec<String> = users
        .iter()
        .take(MAX_NAMED)
        .map(|(uid, _)| user_name(*uid))
        .collect();
    if !names.is_empty() {
        doc.remarks.push(format!(
            "more than {} sockets moved something at once: some of {} are counted in one sum",
            netnice_kernel::usage::UsageCounter::MAX_SOCKETS,
            names.join(", ")
        ));
    }
}

fn program_doc(program: &ProgramTraffic, user: String, interval: Nanos) -> ProgramDoc {
    let group = program.cgroup.as_deref().and_then(cgroup::group_of);
    let (unit, container) = match group {
        Some(Group::Unit(name)) => (Some(name), None),
        Some(Group::Container(id)) => (None, Some(id)),
        None => (None, None),
    };
    let moved = sum(program.moved, interval);
    ProgramDoc {
        pid: program.process.pid,
        started: program.process.started,
        command: program.command.clone(),
        uid: program.uid,
        user,
        unit,
        container,
        target: None,
        up_rate: moved.up_rate,
        down_rate: moved.down_rate,
        up_bytes: moved.up_bytes,
        down_bytes: moved.down_bytes,
        connections: program.connections,
        ended: program.ended,
    }
}

/// Counts as bytes, and as rates in bit/s over the time since the reading before.
fn sum(moved: Moved, interval: Nanos) -> TrafficSum {
    let rate = |bytes: u64| match interval.0 {
        0 => 0,
        time => {
            let bits = u128::from(bytes) * 8 * 1_000_000_000 / u128::from(time);
            u64::try_from(bits).unwrap_or(u64::MAX)
        }
    };
    TrafficSum {
        programs: 0,
        up_rate: rate(moved.recent.bytes[0]),
        down_rate: rate(moved.recent.bytes[1]),
        up_bytes: moved.all.bytes[0],
        down_bytes: moved.all.bytes[1],
    }
}

/// Largest number of programs in a response.
const MAX_LISTED: usize = 1_000;
/// Largest number of users that a remark names.
const MAX_NAMED: usize = 5;
