//! `netnice set` and `netnice run`: changes the peer's claim on a target, or lets a process join a
//! name. Fails if the request is invalid, the peer has no permission, the target does not exist,
//! the result does not fit or exceeds a quota, the kernel or the state file fails, or the named
//! process ends meanwhile. If it fails, nothing has changed.

mod remarks;

use netnice_api::{Done, Set};
use netnice_core::admission::TargetId;
use netnice_core::contract::{Change, Clause, Contract};
use netnice_core::target::Target;

pub(super) use remarks::socket_remarks;

use super::budgets;
use super::named_process::{NamedProcess, named_process};
use super::processors;
use crate::authority;
use crate::clock::Now;
use crate::error::RequestError;
use crate::flows::promises::{LONGEST_WAIT, ServedBy, TargetCheck, TargetDraft};
use crate::host::{Host, Inventory, Process};
use crate::journal::EventKind;
use crate::ledger::rollbacks;
use crate::ledger::{Body, HeldTarget, Ledger};
use crate::meter::metrics::Tally;
use crate::peer::Peer;
use crate::policy::{Policy, Rules};
use crate::reconcile::{ChangeDuration, Draft, Reconciler};
use crate::schedule;
use crate::user_names::user_name;

/// A request as it came in.
pub(super) struct SubmittedSet<'a> {
    /// The user who sent it.
    pub peer: &'a Peer,
    /// The request.
    pub set: &'a Set,
    /// The process that it names by a pidfd.
    pub named: Option<NamedProcess>,
    /// Checks it before it is installed.
    pub check: &'a mut TargetCheck<'a>,
}

/// A request with its parsed target, change and duration.
struct SetRequest<'a> {
    peer: &'a Peer,
    target: Target,
    change: Option<Change>,
    named: Option<NamedProcess>,
    set: &'a Set,
    duration: ChangeDuration,
    now: Now,
}

/// A request applied to a draft.
struct PreparedChange {
    draft: Draft,
    slot: TargetId,
    /// The named process.
    process: Option<Process>,
    /// The number to confirm the change with; `None` if it need not be confirmed.
    number: Option<u64>,
}

/// Changes the peer's claim on a target, or lets a process join a name. In a dry run, only
/// describes what would be done.
///
/// The policy in `rules` determines the meaning of the short form, and the quotas.
///
/// # Errors
/// If the request is invalid, not permitted, does not fit or cannot be installed.
pub(super) fn set<H: Host>(
    reconciler: &mut Reconciler<H>,
    tally: &mut Tally,
    rules: &Rules,
    submitted: SubmittedSet<'_>,
    now: Now,
) -> Result<Done, RequestError> {
    let SubmittedSet {
        peer,
        set,
        named,
        check,
    } = submitted;
    let request = SetRequest {
        peer,
        target: set.target.parse()?,
        change: change_of(set, !rules.policy.input_meter)?
            .map(|change| budgets::resolved(&mut reconciler.host, change))
            .transpose()?,
        named,
        set,
        duration: ChangeDuration {
            confirm_ns: set.confirm_ns,
            for_ns: set.for_ns,
            until: set.until,
        },
        now,
    };
    reconciler.check_duration(request.duration)?;
    let quotas = &rules.policy.quotas;
    request.duration.within(quotas, peer)?;
    if let Some(change) = &request.change {
        authority::may_request_in_budget(peer, change)?;
        authority::may_mark(peer, change, &rules.policy.dscp_users)?;
    }
    let prepared = prepare(reconciler, &request, &rules.policy)?;
    finish(reconciler, tally, rules, &request, prepared, check)
}

/// The change that a request contains; `None` if a process only joins a name. `as_up`: in the short
/// form, `both` means `up`.
fn change_of(set: &Set, as_up: bool) -> Result<Option<Change>, RequestError> {
    let change: Option<Change> = set.change.as_deref().map(str::parse).transpose()?;
    Ok(match set.short && as_up {
        true => change.map(|change| rollbacks::as_up(&change)),
        false => change,
    })
}

/// Applies a request to a draft.
fn prepare<H: Host>(
    reconciler: &mut Reconciler<H>,
    request: &SetRequest<'_>,
    policy: &Policy,
) -> Result<PreparedChange, RequestError> {
    let mut draft = reconciler.draft();
    let (slot, process) = match &request.target {
        Target::Name(_) => find_name(reconciler, &mut draft, request, policy)?,
        target if request.change.is_none() => {
            return Err(RequestError::BadUsage(format!(
                "no clause is given for {target}: name at least one of up, down, both, min, …"
            )));
        }
        Target::Pid(_) => {
            let process = named_process(
                &mut reconciler.host,
                request.peer,
                request.named.as_ref(),
                request.set.pid,
                request.set.only,
            )?;
            let slot = find_pid(reconciler, &mut draft, request, &process)?;
            (slot, Some(process))
        }
        target => {
            authority::may_limit_target(request.peer, target, None)?;
            (
                reconciler.finder().slot_of_existing(&mut draft, target)?,
                None,
            )
        }
    };
    let mut number = None;
    if let Some(change) = &request.change {
        let held = draft.ledger.get(slot);
        let (id, before) = held.map_or((0, Default::default()), |held| {
            (held.id, claim_of(held, request.peer.uid))
        });
        if let (Some(held), Some(uid)) = (held, request.peer.user()) {
            draft.ledger.check_may_share(held, uid, change)?;
        }
        let by = request.peer.claimant();
        // A change that contradicts itself is bad usage, whatever other users ask for.
        let asks = before.apply(change)?;
        if let Some(held) = held {
            budgets::check(held, &asks)?;
        }
        schedule::check_zone(&asks).map_err(RequestError::BadUsage)?;
        let facts = (&mut reconciler.host, &reconciler.sending);
        processors::look_up_change(facts, &mut draft.ledger, slot, change);
        draft
            .ledger
            .change_claim(slot, by, change, request.now.wall_ns)?;
        let target = (id, &request.target);
        number = draft.add_claim_rollback(
            target,
            request.duration,
            request.peer,
            change,
            &before,
            request.now,
        );
    }
    Ok(PreparedChange {
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
    request: &SetRequest<'_>,
    process: &Process,
) -> Result<TargetId, RequestError> {
    if let Target::Pid(pid) = &request.target
        && pid.get() != process.root.pid
    {
        return Err(RequestError::BadUsage(format!(
            "the request names {}, its pidfd is of process {}",
            request.target, process.root.pid
        )));
    }
    let (only, privileged) = (request.set.only, request.peer.privileged);
    let Some(held) = draft.ledger.find_process(process.root).cloned() else {
        return reconciler.finder().open_process(
            draft,
            request.target.clone(),
            process,
            only,
            privileged,
        );
    };
    let was_only = matches!(held.body, Body::Processes { only: true, .. });
    if was_only && !only {
        reconciler
            .finder()
            .add_process(draft, held.entry.id, process, false, privileged)?;
    }
    Ok(held.entry.id)
}

/// The target of a name, and the process that joins it.
fn find_name<H: Host>(
    reconciler: &mut Reconciler<H>,
    draft: &mut Draft,
    request: &SetRequest<'_>,
    policy: &Policy,
) -> Result<(TargetId, Option<Process>), RequestError> {
    let target = &request.target;
    let joins = request.set.pid.is_some() || request.named.is_some();
    let process = match joins {
        true => Some(named_process(
            &mut reconciler.host,
            request.peer,
            request.named.as_ref(),
            request.set.pid,
            request.set.only,
        )?),
        false => None,
    };
    let (only, privileged) = (request.set.only, request.peer.privileged);
    let held = draft.ledger.find(target).cloned();
    let slot = match (held, &process) {
        (None, None) => {
            return Err(RequestError::Failed(format!(
                "no process runs as {target}; start one with `netnice run --name N CONTRACT CMD`{}",
                same_command(&mut reconciler.host, request.peer, target)
            )));
        }
        (None, Some(_)) if request.change.is_none() => {
            return Err(RequestError::BadUsage(format!(
                "no process runs as {target} yet, so the first needs a contract: netnice run \
                 --name N --up 4mbit CMD"
            )));
        }
        (None, Some(process)) => {
            reconciler
                .finder()
                .open_process(draft, target.clone(), process, only, privileged)?
        }
        (Some(held), process) => {
            may_use_name(request.peer, &held, joins, policy)?;
            if let Some(process) = process {
                reconciler
                    .finder()
                    .add_process(draft, held.entry.id, process, only, privileged)?;
                let (slot, claims) = (held.entry.id, held.claims.clone());
                let now_ns = request.now.wall_ns;
                match draft.ledger.admit(slot, claims.clone(), now_ns) {
                    // A user's share of a budget is no reason against a privileged request.
                    Err(_) if privileged && claims.users_shares().is_some() => {
                        draft.ledger.withdraw(slot, claims, now_ns);
                    }
                    admitted => admitted?,
                }
            }
            held.entry.id
        }
    };
    Ok((slot, process))
}

/// A hint for a name that no process runs as: the peer's processes with that command name, which
/// are limited by pid or executable. Empty if there is none.
fn same_command(host: &mut impl Inventory, peer: &Peer, target: &Target) -> String {
    let Target::Name(name) = target else {
        return String::new();
    };
    let named = host.processes_named(name.as_str()).into_iter();
    let may_limit = |one: &Process| {
        one.check_network().is_ok() && authority::may_limit_process(peer, one).is_ok()
    };
    let mut limitable = named.filter(may_limit);
    let Some(first) = limitable.next() else {
        return String::new();
    };
    let more = match limitable.count() {
        0 => String::new(),
        more => format!(" (and {more} more)"),
    };
    let app = match peer.privileged {
        true => ", or app:PATH with the path of its executable",
        false => "",
    };
    format!(
        "; {name} runs as pid:{}{more}: limit that{app}",
        first.root.pid
    )
}

/// Installs a request's draft and returns the response.
fn finish<H: Host>(
    reconciler: &mut Reconciler<H>,
    tally: &mut Tally,
    rules: &Rules,
    request: &SetRequest<'_>,
    prepared: PreparedChange,
    check: &mut TargetCheck<'_>,
) -> Result<Done, RequestError> {
    let quotas = &rules.policy.quotas;
    let PreparedChange {
        mut draft,
        slot,
        process,
        number,
    } = prepared;
    let Some(held) = draft.ledger.get(slot).cloned() else {
        return Err(RequestError::Failed(format!(
            "{} is not held",
            request.target
        )));
    };
    let mut done = answer(request.peer, &draft.ledger, &held);
    if held.claims.is_empty() {
        if reconciler.books.ledger.by_id(held.id).is_none() {
            done.messages = vec![format!("nothing was set for {}", held.entry.target)];
            if !request.set.dry_run && draft.rollbacks != reconciler.books.rollbacks {
                // Claims that were withdrawn for a time do not come back.
                let rollbacks = draft.rollbacks;
                draft = reconciler.draft();
                draft.rollbacks = rollbacks;
                reconciler.install(draft)?;
            }
            return Ok(done);
        }
        draft.acts.clear();
        let closed = draft.close_unclaimed(slot);
        if let (Some(closed), Some(_)) = (closed, request.peer.user()) {
            draft.ledger.stay_loaded(&closed, request.now.monotonic);
        }
    }
    draft.within(&reconciler.books, quotas, request.peer)?;
    reconciler.check_usage(&draft)?;
    let served_by = check(&TargetDraft {
        present: &reconciler.books.ledger,
        draft: &draft.ledger,
        slot,
        stops: rules.policy.direct.stops,
    })?;
    if request.set.dry_run {
        done.plan = Some(reconciler.preview(&draft));
        return Ok(done);
    }
    let before = reconciler.books.ledger.clone();
    if served_by == ServedBy::Driver && before.sends_freely(held.id) {
        let until = request.now.monotonic.after(LONGEST_WAIT);
        draft.ledger.await_driver(held.id, until);
    }
    let adoption = reconciler.install_if(draft, |host| {
        check_alive(host, process.as_ref(), request.named.as_ref())
    })?;
    let who = user_name(request.peer.uid);
    let text = event_text(&who, &held.entry.target, request, process.as_ref(), &done);
    let user = request.peer.user();
    reconciler
        .journal
        .log(request.now, user, EventKind::Done, text);
    tally.grants += 1;
    done.messages = remarks::remarks(&reconciler.books.ledger, slot, &adoption);
    if let Some(process) = process.filter(|process| process.in_own_network == Some(false)) {
        done.messages.push(format!(
            "process {} itself is in another network namespace, where this does not apply; it \
             applies to its descendants here",
            process.root.pid
        ));
    }
    let told = budgets::note_lost(reconciler, &before, request.peer, request.now);
    done.messages.extend(told);
    done.messages.extend(request.duration.remarks());
    done.confirm = number;
    Ok(done)
}

/// The event of a change in the journal: what the user changed, and the contract in force if other
/// claims or targets make it another one than the user's own claim.
fn event_text(
    who: &str,
    target: &Target,
    request: &SetRequest<'_>,
    process: Option<&Process>,
    done: &Done,
) -> String {
    let mut text = match (&request.change, process) {
        (None, Some(process)) => format!("{who} let process {} join {target}", process.root.pid),
        (change, _) => {
            let change = change.as_ref().map(ToString::to_string).unwrap_or_default();
            format!("{who} set {target}: {change}")
        }
    };
    if done.effective != done.contract
        && let Some(effective) = &done.effective
    {
        text += &match effective.is_empty() {
            true => "; nothing is in force".to_owned(),
            false => format!("; in force: {effective}"),
        };
    }
    text
}

/// The response to a change of one target.
fn answer(peer: &Peer, ledger: &Ledger, held: &HeldTarget) -> Done {
    Done {
        target: Some(held.entry.target.to_string()),
        id: Some(held.entry.id.get()),
        contract: Some(claim_of(held, peer.uid).to_string()),
        effective: Some(held.effective(ledger).to_string()),
        ..Done::default()
    }
}

/// A user's claim on a target.
fn claim_of(held: &HeldTarget, uid: u32) -> Contract {
    let own = held.claims.iter().find(|claim| claim.by.uid == uid);
    own.map_or_else(Contract::default, |claim| claim.contract.clone())
}

/// Checks that a peer may limit or join a held name. `joins`: the request lets a process of the
/// peer join it.
fn may_use_name(
    peer: &Peer,
    held: &HeldTarget,
    joins: bool,
    policy: &Policy,
) -> Result<(), RequestError> {
    let target = &held.entry.target;
    let waits = matches!(&held.body, Body::Processes { roots, .. } if roots.is_empty());
    if !waits {
        return authority::may_limit_target(peer, target, held.owner());
    }
    if !joins && !peer.privileged {
        return Err(RequestError::NotPermitted(format!(
            "no process runs as {target} yet, and its first process may belong to another user: \
             only root and the group netnice may limit it now; you may start a process in it with \
             `netnice run --name`"
        )));
    }
    let promised = held.claims.effective().as_change();
    let mark = promised.dscp.as_ref().map(|_| Clause::Dscp);
    let mark = mark.filter(|_| authority::may_mark(peer, &promised, &policy.dscp_users).is_err());
    let asks = promised.needs_privilege().or(mark);
    match asks {
        Some(clause) if !peer.privileged => Err(RequestError::NotPermitted(format!(
            "{target} is promised {clause} by the policy file; only root and the group netnice may \
             run as it"
        ))),
        _ => Ok(()),
    }
}

/// Checks that the named process is still alive: then everything that was read by its pid is about
/// this process.
fn check_alive(
    host: &mut impl Inventory,
    process: Option<&Process>,
    named: Option<&NamedProcess>,
) -> Result<(), RequestError> {
    let (Some(process), Some(named)) = (process, named) else {
        return Ok(());
    };
    let pid = process.root.pid;
    let same = host
        .process(pid)
        .is_some_and(|now| now.root == process.root);
    match (named.lives)() && same {
        true => Ok(()),
        false => Err(RequestError::Failed(format!(
            "process {pid} ended meanwhile; nothing was changed"
        ))),
    }
}
