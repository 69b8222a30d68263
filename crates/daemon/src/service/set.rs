//! `netnice set` and `run`: a contract for a target, and a process that joins a name.

use netnice_api::{Done, Set};
use netnice_core::admission::TargetId;
use netnice_core::contract::{Change, Contract};
use netnice_core::target::Target;
use netnice_kernel::enforce::Adoption;

use super::named::{Named, named};
use crate::authority;
use crate::clock::Now;
use crate::denied::Denied;
use crate::host::containers::not_served;
use crate::host::{Host, Inventory, Process};
use crate::journal::Kind;
use crate::ledger::undo;
use crate::ledger::{Body, Held, Ledger};
use crate::meter::metrics::Tally;
use crate::peer::Peer;
use crate::policy::Rules;
use crate::reconcile::{Draft, Reconciler, Terms};

/// A parsed request.
struct Asked<'a> {
    peer: &'a Peer,
    target: Target,
    change: Option<Change>,
    named: Option<Named>,
    set: &'a Set,
    terms: Terms,
    now: Now,
}

/// A request applied to a draft.
struct Worked {
    draft: Draft,
    slot: TargetId,
    /// The named process.
    process: Option<Process>,
    /// The number to confirm the change with.
    number: Option<u64>,
}

/// Changes the peer's claim on a target, or lets a process join a name.
///
/// `rules` determine the meaning of the short form, and the quotas.
pub(super) fn set<H: Host>(
    reconciler: &mut Reconciler<H>,
    tally: &mut Tally,
    rules: &Rules,
    peer: &Peer,
    set: &Set,
    named: Option<Named>,
    now: Now,
) -> Result<Done, Denied> {
    let asked = Asked {
        peer,
        target: set.target.parse()?,
        change: change_of(set, !rules.policy.input_meter)?,
        named,
        set,
        terms: Terms {
            confirm_ns: set.confirm_ns,
            for_ns: set.for_ns,
            until: set.until,
        },
        now,
    };
    reconciler.check_terms(asked.terms)?;
    let quotas = &rules.policy.quotas;
    asked.terms.within(quotas, peer)?;
    if let Some(change) = &asked.change {
        authority::may_ask(peer, change)?;
    }
    let worked = work_out(reconciler, &asked)?;
    worked.draft.within(&reconciler.books, quotas, peer)?;
    finish(reconciler, tally, &asked, worked)
}

/// The change that a request contains.
fn change_of(set: &Set, as_up: bool) -> Result<Option<Change>, Denied> {
    let change: Option<Change> = set.change.as_deref().map(str::parse).transpose()?;
    Ok(match set.short && as_up {
        true => change.map(|change| undo::as_up(&change)),
        false => change,
    })
}

/// Applies a request to a draft.
fn work_out<H: Host>(reconciler: &mut Reconciler<H>, asked: &Asked<'_>) -> Result<Worked, Denied> {
    let mut draft = reconciler.draft();
    let (slot, process) = match &asked.target {
        Target::Name(_) => find_name(reconciler, &mut draft, asked)?,
        target if asked.change.is_none() => {
            return Err(Denied::BadUsage(format!(
                "nothing is asked of {target}: name at least one of up, down, both, min, …"
            )));
        }
        Target::Pid(_) => {
            let process = named(
                &mut reconciler.host,
                asked.peer,
                asked.named.as_ref(),
                asked.set.pid,
            )?;
            let slot = find_pid(reconciler, &mut draft, asked, &process)?;
            (slot, Some(process))
        }
        target => {
            authority::may_limit_target(asked.peer, target, None)?;
            (reconciler.finder().slot_of_thing(&mut draft, target)?, None)
        }
    };
    let mut number = None;
    if let Some(change) = &asked.change {
        let held = draft.ledger.get(slot);
        let (id, before) = held.map_or((0, Default::default()), |held| {
            (held.id, claim_of(held, asked.peer.uid))
        });
        let by = asked.peer.claimant();
        let asks = before.apply(change)?;
        if let Some(why) = not_served(&asked.target, &asks) {
            return Err(Denied::BadUsage(format!("{}: {why}", asked.target)));
        }
        draft.ledger.ask(slot, by, change, asked.now.wall_ns)?;
        let target = (id, &asked.target);
        number = draft.wait_for_claim(target, asked.terms, asked.peer, change, &before, asked.now);
    }
    Ok(Worked {
        draft,
        slot,
        process,
        number,
    })
}

/// The target of a process, opened if it is not held.
fn find_pid<H: Host>(
    reconciler: &mut Reconciler<H>,
    draft: &mut Draft,
    asked: &Asked<'_>,
    process: &Process,
) -> Result<TargetId, Denied> {
    if let Target::Pid(pid) = &asked.target
        && pid.get() != process.root.pid
    {
        return Err(Denied::BadUsage(format!(
            "the request names {}, its pidfd is of process {}",
            asked.target, process.root.pid
        )));
    }
    let only = asked.set.only;
    let Some(held) = draft.ledger.find_process(process.root).cloned() else {
        return reconciler
            .finder()
            .open_process(draft, asked.target.clone(), process, only);
    };
    let was_only = matches!(held.body, Body::Processes { only: true, .. });
    if was_only && !only {
        reconciler
            .finder()
            .join_as(draft, held.entry.id, process, false)?;
    }
    Ok(held.entry.id)
}

/// The target of a name, and the process that joins it.
fn find_name<H: Host>(
    reconciler: &mut Reconciler<H>,
    draft: &mut Draft,
    asked: &Asked<'_>,
) -> Result<(TargetId, Option<Process>), Denied> {
    let target = &asked.target;
    let joins = asked.set.pid.is_some() || asked.named.is_some();
    let process = match joins {
        true => Some(named(
            &mut reconciler.host,
            asked.peer,
            asked.named.as_ref(),
            asked.set.pid,
        )?),
        false => None,
    };
    let held = draft.ledger.find(target).cloned();
    let slot = match (held, &process) {
        (None, None) => {
            return Err(Denied::Failed(format!(
                "nobody runs as {target}; `netnice run --name N CONTRACT CMD` makes one"
            )));
        }
        (None, Some(_)) if asked.change.is_none() => {
            return Err(Denied::BadUsage(format!(
                "nobody runs as {target} yet, so say what it may use: netnice run --name N --up 4mbit CMD"
            )));
        }
        (None, Some(process)) => {
            reconciler
                .finder()
                .open_process(draft, target.clone(), process, asked.set.only)?
        }
        (Some(held), process) => {
            may_use_name(asked.peer, &held)?;
            if let Some(process) = process {
                reconciler
                    .finder()
                    .join_as(draft, held.entry.id, process, asked.set.only)?;
                let claims = held.claims.clone();
                draft
                    .ledger
                    .admit(held.entry.id, claims, asked.now.wall_ns)?;
            }
            held.entry.id
        }
    };
    Ok((slot, process))
}

/// Installs a request's draft and returns the answer.
fn finish<H: Host>(
    reconciler: &mut Reconciler<H>,
    tally: &mut Tally,
    asked: &Asked<'_>,
    worked: Worked,
) -> Result<Done, Denied> {
    let Worked {
        mut draft,
        slot,
        process,
        number,
    } = worked;
    let Some(held) = draft.ledger.get(slot).cloned() else {
        return Err(Denied::Failed(format!("{} is not held", asked.target)));
    };
    let mut done = done(asked.peer, &draft.ledger, &held);
    if held.claims.is_empty() {
        if reconciler.books.ledger.by_id(held.id).is_none() {
            done.messages = vec![format!("nothing was set for {}", held.entry.target)];
            return Ok(done);
        }
        draft.acts.clear();
        let closed = draft.close(slot);
        if let (Some(closed), Some(_)) = (closed, asked.peer.user()) {
            draft.ledger.stay_loaded(&closed, asked.now.monotonic);
        }
    }
    if asked.set.dry_run {
        done.plan = Some(reconciler.preview(&draft));
        return Ok(done);
    }
    let adoption = reconciler.install_if(draft, |host| {
        still_lives(host, process.as_ref(), asked.named.as_ref())
    })?;
    let who = authority::user(asked.peer.uid);
    let what = done.effective.as_deref().unwrap_or_default();
    let text = format!("{who} set {}: {what}", held.entry.target);
    let user = asked.peer.user();
    reconciler.journal.tell(asked.now, user, Kind::Done, text);
    tally.grants += 1;
    done.messages = remarks(&reconciler.books.ledger, slot, &adoption);
    done.messages.extend(asked.terms.remarks());
    done.confirm = number;
    Ok(done)
}

/// The answer to a change of one target.
fn done(peer: &Peer, ledger: &Ledger, held: &Held) -> Done {
    Done {
        target: Some(held.entry.target.to_string()),
        id: Some(held.entry.id.get()),
        contract: Some(claim_of(held, peer.uid).to_string()),
        effective: Some(held.effective(ledger).to_string()),
        ..Done::default()
    }
}

/// A user's claim on a target.
fn claim_of(held: &Held, uid: u32) -> Contract {
    let own = held.claims.iter().find(|claim| claim.by.uid == uid);
    own.map_or_else(Contract::default, |claim| claim.contract.clone())
}

/// Checks that a peer may limit or join a held name.
fn may_use_name(peer: &Peer, held: &Held) -> Result<(), Denied> {
    let target = &held.entry.target;
    let waits = matches!(&held.body, Body::Processes { roots, .. } if roots.is_empty());
    if !waits {
        return authority::may_limit_target(peer, target, held.owner());
    }
    let asks = held.claims.effective().as_change().needs_privilege();
    match asks {
        Some(clause) if !peer.privileged => Err(Denied::NotPermitted(format!(
            "{target} is promised {clause} by the policy file; only root and the group netnice may run as it"
        ))),
        _ => Ok(()),
    }
}

/// Remarks about a target that was just set.
fn remarks(ledger: &Ledger, slot: TargetId, adoption: &Adoption) -> Vec<String> {
    let mut remarks = Vec::new();
    if let Some(held) = ledger.get(slot) {
        remarks.extend(tighter_around(ledger, held));
    }
    remarks.extend(about_sockets(adoption));
    remarks
}

/// Remarks about the open sockets of new members.
pub(super) fn about_sockets(adoption: &Adoption) -> Vec<String> {
    let mut remarks = Vec::new();
    if adoption.shared_listeners > 0 {
        remarks.push(format!(
            "{} listening sockets are shared with processes outside and were left alone",
            adoption.shared_listeners
        ));
    }
    if adoption.unfinished {
        remarks.push(
            "it has so many open sockets that some of them are held a moment later".to_owned(),
        );
    }
    if adoption.by_cookie > 0 {
        remarks.push(format!(
            "{} open sockets have used up their option memory (net.core.optmem_max) and have no room for a tag: they are \
             held by their number",
            adoption.by_cookie
        ));
    }
    if adoption.untracked > 0 {
        remarks.push(format!(
            "{} open sockets without room for a tag are not held: the table of such sockets is full",
            adoption.untracked
        ));
    }
    if adoption.hidden_mptcp > 0 {
        remarks.push(format!(
            "{} open MPTCP sockets hide their connections from the kernel's owner; limit their unit or cgroup to \
             hold them",
            adoption.hidden_mptcp
        ));
    }
    remarks
}

/// Limits of the targets around a target that are below the target's own.
fn tighter_around(ledger: &Ledger, held: &Held) -> Vec<String> {
    let own = &held.entry.contract;
    let effective = held.effective(ledger);
    let pairs = [
        ("up", own.up(), effective.up()),
        ("down", own.down(), effective.down()),
        ("both", own.both(), effective.both()),
    ];
    let tighter = pairs
        .into_iter()
        .filter(|(_, own, effective)| own.is_some() && effective < own);
    tighter
        .filter_map(|(word, _, effective)| {
            Some(format!(
                "{word} is held at {} by what is around it",
                effective?
            ))
        })
        .collect()
}

/// Checks that the named process is still alive: then everything that was read by its pid concerned
/// this process.
fn still_lives(
    host: &mut impl Inventory,
    process: Option<&Process>,
    named: Option<&Named>,
) -> Result<(), Denied> {
    let (Some(process), Some(named)) = (process, named) else {
        return Ok(());
    };
    let pid = process.root.pid;
    let same = host
        .process(pid)
        .is_some_and(|now| now.root == process.root);
    match (named.lives)() && same {
        true => Ok(()),
        false => Err(Denied::Failed(format!(
            "process {pid} ended meanwhile; nothing was changed"
        ))),
    }
}
