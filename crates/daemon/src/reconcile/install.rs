//! Installs a change in the kernel in three steps: releases ([`Act::Release`] and the unbinding
//! acts), then classes and limits ([`Enforcer::apply`]), then new bindings. If a step fails, the
//! completed ones are undone. A failure to undo a step is only logged. The call fails if a step
//! failed.

use netnice_kernel::enforce::Adoption;
use netnice_kernel::plan::Desired;

use crate::error::RequestError;
use crate::host::{Act, Enforcer};

/// An installed change that can be undone until it is written to the state file.
#[derive(Debug)]
pub(super) struct Installed {
    undo: Vec<Act>,
    /// What was found when processes became members.
    pub adoption: Adoption,
}

/// Carries out a change from the desired state `before` to `after`, with its acts.
///
/// # Errors
/// If a step fails. Then the completed ones are undone.
pub(super) fn install<H: Enforcer>(
    host: &mut H,
    before: &Desired,
    after: &Desired,
    acts: &[Act],
) -> Result<Installed, RequestError> {
    let mut installed = Installed {
        undo: Vec::new(),
        adoption: Adoption::default(),
    };
    let result = steps(host, before, after, acts, &mut installed);
    if let Err(error) = result {
        installed.roll_back(host, before);
        return Err(error);
    }
    Ok(installed)
}

fn steps<H: Enforcer>(
    host: &mut H,
    before: &Desired,
    after: &Desired,
    acts: &[Act],
    installed: &mut Installed,
) -> Result<(), RequestError> {
    let mut carry_out = |host: &mut H, act: &Act| -> Result<(), RequestError> {
        let (found, undo) = host.act(act)?;
        installed.undo.push(undo);
        installed.adoption.add(&found);
        Ok(())
    };
    for act in acts.iter().filter(|act| act.releases()) {
        carry_out(host, act)?;
    }
    if before != after {
        host.apply(after)?;
    }
    for act in acts.iter().filter(|act| !act.releases()) {
        carry_out(host, act)?;
    }
    Ok(())
}

impl Installed {
    /// Undoes the change: restores the desired state `before` and the former bindings.
    pub(super) fn roll_back<H: Enforcer>(self, host: &mut H, before: &Desired) {
        let undo = self.undo;
        let (leaving, coming): (Vec<Act>, Vec<Act>) =
            undo.into_iter().rev().partition(Act::releases);
        for act in &leaving {
            log_error(host.act(act).map(drop));
        }
        log_error(host.apply(before));
        for act in &coming {
            log_error(host.act(act).map(drop));
        }
    }
}

fn log_error(result: Result<(), RequestError>) {
    if let Err(error) = result {
        tracing::error!(%error, "cannot restore the former state after a failed change");
    }
}
