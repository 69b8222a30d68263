//! The paper's short forms, typed without a verb: `netnice PID RATE` limits both directions
//! together (its input meter), `netnice PID` shows, `netnice` shows one's own value.

use netnice_api::{Request, Set, Show};
use netnice_core::contract::{Change, Clause};
use netnice_core::target::{Target, TargetError};

use super::{BadUsage, Common, Verb, changing, set_target};

/// What the words mean.
pub(super) fn means(
    target: Option<String>,
    rate: Option<String>,
    common: &Common,
) -> Result<Verb, BadUsage> {
    let Some(target) = target else {
        common.only_reads("netnice alone")?;
        return Ok(Verb::Own);
    };
    let target: Target = target.parse().map_err(|error| match error {
        TargetError::NoScheme(_) => BadUsage::Word(error),
        other => BadUsage::Target(other),
    })?;
    let Some(rate) = rate else {
        common.only_reads("netnice TARGET")?;
        let target = Some(target.to_string());
        return Ok(Verb::Ask(Request::Show(Show { target })));
    };
    let change = Change::from_clauses([(Clause::Both, rate.as_str())], false, false)?;
    let set = Set {
        change: Some(change.to_string()),
        short: true,
        ..changing(common)?
    };
    Ok(set_target(&target, set))
}
