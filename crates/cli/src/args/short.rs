//! The short forms of paper NICE, without a verb. `netnice TARGET RATE` limits the sum of both
//! directions (the paper's input meter, NICE 4.1), or only sending if the host's policy sets
//! `input_meter = false`. `netnice TARGET` shows a target, `netnice` shows the target of this
//! process. Fails if an argument is invalid, or if `--dry-run`, `--confirm`, `--for` or
//! `--until-exit` is given without a rate.

use std::ffi::OsString;

use netnice_api::{Request, Set, Show};
use netnice_core::contract::{Change, Clause};
use netnice_core::target::{Target, TargetError};

use super::{BadUsage, Common, Verb, command, set_options, set_verb};

/// Converts a short form to its verb. Fails for the reasons in the module's documentation.
pub(super) fn verb(
    target: Option<String>,
    rate: Option<String>,
    common: &Common,
) -> Result<Verb, BadUsage> {
    let Some(target) = target else {
        common.refuse_change_options("netnice alone")?;
        return Ok(Verb::Own);
    };
    let target: Target = target.parse().map_err(target_error)?;
    let Some(rate) = rate else {
        common.refuse_change_options("netnice TARGET")?;
        let target = Some(target.to_string());
        return Ok(Verb::Request(Request::Show(Show { target })));
    };
    let change = Change::from_clauses([(Clause::Both, rate.as_str())], false, false)?;
    let set = Set {
        change: Some(change.to_string()),
        short: true,
        ..set_options(common)?
    };
    Ok(set_verb(&target, set))
}

/// A better error for a line that the parser refuses: its first word is no command, and an option
/// follows. The word may be a target, and the option one of `set`. `None` for any other line.
pub(super) fn better_error(args: &[OsString]) -> Option<BadUsage> {
    let word = args.get(1)?.to_str()?;
    let option = args.get(2)?.to_str()?;
    let is_verb = command()
        .get_subcommands()
        .any(|verb| verb.get_name() == word);
    if is_verb || word.starts_with('-') || !option.starts_with("--") {
        return None;
    }
    Some(match word.parse::<Target>() {
        Ok(_) => BadUsage::Invalid(
            "the options of a contract need a command: netnice set TARGET --up R …",
        ),
        Err(error) => target_error(error),
    })
}

fn target_error(error: TargetError) -> BadUsage {
    match error {
        TargetError::NoScheme(_) => BadUsage::UnknownCommand(error),
        other => BadUsage::Target(other),
    }
}
