//! `netnice explain`: describes a target for a person. The rows name its claims, the contract in
//! force, the targets around and inside it, the classes that its packets pass, and the traffic that
//! its contract does not cover. For a process that no held target contains, the page has one row
//! that says so. Fails if the text is no target, a process does not exist, another target is not
//! held, or the machine cannot be read.

mod contract;
mod processors;

use netnice_api::{Explained, Found};
use netnice_core::contract::{Contract, Direction};
use netnice_core::target::Target;
use netnice_core::units::Nanos;
use netnice_kernel::enforce::{ContainerPlacement, TargetClass};

use self::contract::{format_contract, schedule_rows};
use super::budgets;
use super::view::View;
use crate::authority;
use crate::clock::Now;
use crate::error::RequestError;
use crate::host::Host;
use crate::ledger::{Body, HeldTarget, TargetPlace};
use crate::page::Page;
use crate::peer::{POLICY, Peer};
use crate::policy::rule_title;
use crate::reconcile::desired;
use crate::user_names::user_name;

impl<H: Host> View<'_, H> {
    /// The page of a target. For a process without a target of its own, the page of the target that
    /// contains it.
    ///
    /// # Errors
    /// If a process does not exist, another target is not held, or the machine cannot be read.
    pub(super) fn explain(
        &mut self,
        peer: &Peer,
        text: &str,
        now: Now,
    ) -> Result<Explained, RequestError> {
        let target: Target = text.parse()?;
        let Target::Pid(pid) = target else {
            let held = self.finder().lookup(&target)?.clone();
            let mut page = Page::default();
            self.explain_into(&held, &mut page, now)?;
            return Ok(page.into());
        };
        let place = self.machine.place(pid.get());
        if let Some(held) = self.ledger().find(&target).cloned() {
            let mut page = Page::default();
            let process = self.machine.process(pid.get());
            if let Some(Err(elsewhere)) = process.map(|process| process.check_network()) {
                page.row("not held", &elsewhere.to_string());
            }
            self.explain_into(&held, &mut page, now)?;
            self.overridden_targets(&held, &place, &mut page);
            return Ok(page.into());
        }
        let process = self.machine.process(pid.get());
        let process = process.ok_or_else(|| {
            RequestError::Failed(format!("process {pid} does not exist", pid = pid.get()))
        })?;
        let name = &process.name;
        let mut page = Page::default();
        let holder = self.ledger().at_place(&place).cloned();
        // The traffic of a container's own network is limited where it begins.
        let is_placed = |held: &HeldTarget| self.deviations.placements.contains_key(&held.id);
        if let Err(elsewhere) = process.check_network()
            && !holder.as_ref().is_some_and(is_placed)
        {
            page.row("not held", &elsewhere.to_string());
        }
        let Some(holder) = holder else {
            page.row("process", &format!("{target} ({name}) is held by nothing"));
            return Ok(page.into());
        };
        let text = format!(
            "{target} ({name}) has no contract of its own; {} holds it",
            holder.entry.target
        );
        page.row("process", &text);
        if authority::may_limit_process(peer, &process).is_ok()
            && let Some(text) = self.sockets_outside(&holder, pid.get())
        {
            page.row("not held", &text);
        }
        self.overridden_targets(&holder, &place, &mut page);
        self.explain_into(&holder, &mut page, now)?;
        Ok(page.into())
    }

    fn explain_into(
        &mut self,
        held: &HeldTarget,
        page: &mut Page,
        now: Now,
    ) -> Result<(), RequestError> {
        page.row("target", &self.title(held)?);
        for claim in held.claims.iter() {
            let who = match (&held.rule, claim.by == POLICY) {
                (Some(rule), true) => rule_title(rule),
                _ => user_name(claim.by.uid),
            };
            page.row("asked", &format!("{} by {who}", claim.contract));
        }
        schedule_rows(held, page);
        self.quota_rows(held, page);
        for waiting in self.books.rollbacks.iter() {
            if let crate::ledger::rollbacks::Undo::Claim { id, change } = &waiting.undo
                && *id == held.id
            {
                let left = whole_seconds(waiting.at.since(now.monotonic));
                let when = match (waiting.until, waiting.confirmable) {
                    (Some(root), _) => format!("when process {} ends", root.pid),
                    (None, true) => {
                        format!("in {left} unless it is confirmed as {}", waiting.number)
                    }
                    (None, false) => format!("in {left}"),
                };
                page.row("then", &format!("{change} {when}"));
            }
        }
        page.row("holds", &format_contract(&held.effective(self.ledger())));
        let nested = held.entry.parent.is_some();
        for outer in self.ledger().around(held.entry.id) {
            let text = format!("{}: {}, holds too", outer.entry.target, outer.in_force());
            page.row("inside", &text);
        }
        for inner in self.ledger().children(held.entry.id) {
            let text = format!("{}: {}", inner.entry.target, inner.in_force());
            page.row("contains", &text);
        }
        for line in budgets::rows(self.ledger(), held) {
            page.row("budget", &line);
        }
        processors::rows(self.ledger(), held, page);
        let contract = held.in_force();
        self.serving_rows(held, &contract, page);
        for line in precedence_lines(&held.entry.target, nested) {
            page.row("crossing", &line);
        }
        let interfaces = self.machine.interfaces()?;
        for fault in self.target_faults(held, &interfaces) {
            page.row("degraded", &fault.replace('\n', ";"));
        }
        for line in not_covered(held) {
            page.row("not held", line);
        }
        Ok(())
    }

    /// A target's name and what it consists of.
    fn title(&mut self, held: &HeldTarget) -> Result<String, RequestError> {
        let target = &held.entry.target;
        let what = match &held.body {
            Body::Processes { roots, only } => {
                let members = self.machine.members()?;
                let count = members.values().filter(|(own, _)| *own == held.id).count();
                let from: Vec<String> = roots.iter().map(|root| root.pid.to_string()).collect();
                let those = match only {
                    true => "without the descendants that lived then",
                    false => "with all descendants",
                };
                let noun = if count == 1 { "process" } else { "processes" };
                match from.is_empty() {
                    true => "no process runs under this name now".to_owned(),
                    false => format!(
                        "{count} {noun} now: {} {those}, but for those in targets inside",
                        from.join(", ")
                    ),
                }
            }
            Body::App(Some(key)) => format!(
                "what runs this file (inode {}), and what that starts",
                key.inode
            ),
            Body::App(None) => "no file is there now".to_owned(),
            Body::Cgroup(Some(bound)) => match self.deviations.placements.get(&held.id) {
                Some(placement) => describe_placement(placement, &bound.path),
                None => format!("sockets that were made in control group {}", bound.path),
            },
            Body::Cgroup(None) if matches!(target, Target::Container(_)) => {
                "it does not run now".to_owned()
            }
            Body::Cgroup(None) => "no control group is there now".to_owned(),
            Body::User(uid) => format!("sockets of user {uid}"),
        };
        Ok(format!("{target}, number {}: {what}", held.id))
    }

    /// Adds the rows about the eBPF programs and the classes that serve a target; none if nothing
    /// is in force.
    fn serving_rows(&mut self, held: &HeldTarget, contract: &Contract, page: &mut Page) {
        if !self.machine.is_enforcing() {
            return;
        }
        let attached = self.machine.attached();
        let text = format!(
            "eBPF at {} of {}; owners are known by process, executable, control group, user",
            self.machine.attachment(),
            attached.join(", ")
        );
        page.row("found by", &text);
        for place in self.machine.target_classes(held.id) {
            page.row("passes", &class_row(&place));
        }
        page.row(
            "queues",
            "two in each class, one for small flows and one for large: a small flow does not wait",
        );
        if contract.is_limited() {
            page.row(
                "when full",
                "TCP of this host is told to slow down, other senders wait for their socket, what \
                 is received is dropped; equal flows get equal parts",
            );
        }
        if contract.is_limited() {
            let burst = desired::burst(contract);
            page.row(
                "burst",
                &format!("{burst} at full speed, one packet at least"),
            );
        }
        self.marking_rows(held, page);
        let Some(managed) = self.ledger().link_of(contract) else {
            return;
        };
        let link = &managed.link;
        for direction in Direction::ALL {
            if let Some(capacity) = link.capacity(direction).filter(|c| c.bounds().is_some()) {
                let text = format!(
                    "{} {} {:#} now is {}; guarantees count against the lower bound",
                    link.name,
                    direction.word(),
                    capacity.rate,
                    capacity.source
                );
                page.row("link", &text);
            }
        }
        if let Some(slice) = contract.slice()
            && let Some(usable) = link.usable(Direction::Up)
        {
            let rate = slice.of(usable).map(|rate| rate.to_string());
            let text = format!(
                "{}/{} of {} is served as its rate, {}, with a burst of one slice{}",
                slice.slice(),
                slice.period(),
                link.name,
                rate.unwrap_or_default(),
                match slice.extra() {
                    true => ", and a share of what is left over",
                    false => "",
                }
            );
            page.row("slice", &text);
        }
        let down = link.usable(Direction::Down);
        if contract.min(Direction::Down).is_some()
            && let Some(usable) = down
        {
            let text = format!(
                "kept at {usable:#}, 97 % of what {} receives: against TCP, and against UDP that \
                 fits the wire",
                link.name
            );
            page.row("receiving", &text);
        }
    }

    /// Adds the rows about the code point, about yielding, and about what a container receives.
    fn marking_rows(&self, held: &HeldTarget, page: &mut Page) {
        let contract = &*held.in_force();
        if let Some(dscp) = held.dscp(self.ledger()) {
            let number = dscp.get();
            page.row(
                "marked",
                &format!(
                    "what it sends by a cable has the code point {dscp} ({number}); ECN stays"
                ),
            );
        }
        let links: Vec<&str> = self
            .ledger()
            .links()
            .map(|one| one.link.name.as_str())
            .collect();
        if contract.yields() && !links.is_empty() {
            let links = links.join(", ");
            let text = format!("uses only bandwidth of {links} that no other traffic uses");
            page.row("yields", &text);
        }
        let has_part = contract.yields() || self.ledger().link_of(contract).is_some();
        if has_part && matches!(held.entry.target, Target::Container(_)) {
            page.row(
                "receiving",
                "on a link, TCP and UDP count to it from its own first packet of a flow on; what \
                 comes before, other protocols and fragments count to the rest",
            );
        }
    }

    /// A text about the sockets of a process to which the limit of its control group does not
    /// apply: a socket belongs to the group in which it was created, wherever its process is now.
    /// `None` if there are none, or if the sockets cannot be listed.
    fn sockets_outside(&mut self, holder: &HeldTarget, pid: u32) -> Option<String> {
        let Body::Cgroup(Some(bound)) = &holder.body else {
            return None;
        };
        let of_process = Found::Processes(vec![pid]);
        let sockets = self.machine.connections(Some(&of_process)).ok()?;
        let inside = self.machine.group_ids(&bound.path);
        // A group that was removed may have been inside.
        let existing = self.machine.group_ids("/");
        let is_outside = |id: u64| existing.contains(&id) && !inside.contains(&id);
        let outside = sockets
            .iter()
            .filter(|it| it.cgroup.is_some_and(is_outside));
        match outside.count() {
            0 => None,
            outside => Some(format!(
                "{outside} of its {} open sockets: they were created in another control group, \
                 before it was moved to {}; start it again there, or limit pid:{pid}",
                sockets.len(),
                bound.path
            )),
        }
    }

    /// Adds a row for each other target that a process at this place belongs to and that does not
    /// limit it, because `winner` is more specific.
    fn overridden_targets(&self, winner: &HeldTarget, place: &TargetPlace, page: &mut Page) {
        let around: Vec<u32> = self
            .ledger()
            .around(winner.entry.id)
            .map(|held| held.id)
            .collect();
        let claims_it = |held: &&HeldTarget| match &held.body {
            Body::App(_) => place.app == Some(held.id),
            Body::Cgroup(Some(bound)) => place
                .cgroup
                .as_deref()
                .is_some_and(|path| crate::ledger::place::contains(&bound.path, path)),
            Body::User(uid) => place.uid == Some(*uid),
            _ => false,
        };
        let overridden = self
            .ledger()
            .held()
            .filter(claims_it)
            .filter(|held| held.id != winner.id && !around.contains(&held.id));
        for held in overridden {
            let text = format!(
                "{} does not hold it: {} is more specific",
                held.entry.target, winner.entry.target
            );
            page.row("crossing", &text);
        }
    }
}

/// The text about one class that delays packets of a target.
fn class_row(place: &TargetClass) -> String {
    let what = match place.direction {
        None => "what is sent and received",
        Some(Direction::Up) => "what is sent",
        Some(Direction::Down) => "what is received",
    };
    let whose = match place.own {
        true => "",
        false => ", of a target around it",
    };
    let most = place
        .max_rate
        .map_or_else(String::new, |most| format!(", at most {most:#}"));
    let why = match &place.link {
        None => "limit".to_owned(),
        Some(link) => format!("part of link {link}"),
    };
    format!(
        "{what}: class {} of {}{most} ({why}{whose})",
        place.class, place.device
    )
}

/// The text about the place where a container's traffic is limited. `group` is the path of its
/// control group.
fn describe_placement(placement: &ContainerPlacement, group: &str) -> String {
    match placement {
        ContainerPlacement::NotRunning => {
            format!("control group {group}, in which no process is now")
        }
        ContainerPlacement::HostNetwork => format!(
            "it is in this host's own network: sockets that were made in control group {group}"
        ),
        ContainerPlacement::OwnNetwork(names) if names.is_empty() => format!(
            "control group {group}; it has a network of its own, and no pair of interfaces leads \
             there from here, so \
             nothing of it is held (a container without root sends by slirp4netns or pasta: limit \
             the user or that \
             program)"
        ),
        ContainerPlacement::OwnNetwork(names) => format!(
            "all that passes {}, where the network of control group {group} begins (of a pod: of \
             all its containers)",
            names.join(", ")
        ),
    }
}

/// The texts about overlapping targets: which of them limits a packet that belongs to several.
fn precedence_lines(target: &Target, nested: bool) -> Vec<String> {
    let beats = match target.specificity() {
        0 | 1 => "this one wins over app, cgroup, unit and user targets that do not contain it",
        2 => {
            "pid and name targets win over this one unless they are inside it; this one wins over \
             cgroup, unit and user"
        }
        3 => {
            "pid, name and app targets win over this one unless they are inside it; this one wins \
             over user"
        }
        _ => "pid, name, app, cgroup and unit targets win over this one unless they are inside it",
    };
    let mut lines = vec![beats.to_owned()];
    if nested {
        lines.push("what is around it holds beside it".to_owned());
    }
    lines
}

/// The texts about traffic that a contract on a target of this kind does not cover.
fn not_covered(held: &HeldTarget) -> Vec<&'static str> {
    let mut lines = vec![
        "ICMP, raw sockets and fragments, where they are received; AF_PACKET sockets (tcpdump, \
         DHCP clients)",
        "what the kernel sends without a socket: SYN-ACK, RST, the last acknowledgements \
         (TIME_WAIT)",
        "sockets that were handed over by processes outside, and listeners that are shared with \
         such",
        "MPTCP: connections that the kernel adds to a socket, and those open before, unless a \
         cgroup or unit holds them",
        "packets that a filter of another program takes before netnice examines them",
        "traffic of its processes in another network namespace",
    ];
    if matches!(held.body, Body::App(_)) {
        lines.push(
            "the same program from another file (a copy, another path in a container); who has run \
             a file that was \
             replaced since; sockets that a process made before it began to run this file",
        );
    }
    if matches!(held.entry.target, Target::Container(_)) {
        lines.push(
            "of a container in the host's own network: as of any control group, also what is said \
             above; of one with a \
             network of its own nothing of it, for all that passes its interface is held, but not \
             what passes by a \
             macvlan, an ipvlan or a device that was given to it, nor what slirp4netns or pasta \
             carry for a container \
             without root",
        );
    } else if matches!(held.body, Body::Cgroup(_)) {
        lines.push(
            "containers with a network of their own, though their control group is inside: \
            limit container:NAME",
        );
    }
    if matches!(held.body, Body::Cgroup(_)) {
        lines.push(
            "sockets that a process brought along from another control group stay with that one",
        );
    }
    lines
}

/// A remaining time for display: whole seconds, rounded up.
fn whole_seconds(time: Nanos) -> Nanos {
    Nanos::from_secs(time.0.div_ceil(1_000_000_000))
}
