//! The command line of `netnice share RATE TARGET…`. Output is a [`Share`]. Fails if an argument is
//! invalid, if `--weight` names a user that does not exist, or if an option has no meaning with
//! this verb.

use clap::Args;
use netnice_core::target::Target;
use netnice_core::units::Rate;
use netnice_share::config::DEFAULT_FLOOR;
use netnice_share::manager::{Per, ShareRequest, WeightScope};

use super::{BadUsage, Common, Verb, nanos, quantity, total_rate};
use crate::share::Share;

/// The verb's arguments.
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(super) struct ShareArgs {
    /// The total rate to divide; with or without @ before it
    #[arg(value_name = "RATE", allow_hyphen_values = true)]
    total: String,
    /// The targets whose sessions share it
    #[arg(value_name = "TARGET", required = true)]
    targets: Vec<String>,
    /// Unit of equal shares
    #[arg(
        long,
        value_name = "WHAT",
        default_value = "session",
        value_parser = ["session", "user", "service"]
    )]
    per: String,
    /// The weight of a TARGET or a user, 1 to 1000 [default: 100]
    #[arg(long, value_name = "TARGET=N")]
    weight: Vec<String>,
    /// The smallest share [default: 8kbit]
    #[arg(long, value_name = "RATE", allow_hyphen_values = true)]
    floor: Option<String>,
    /// Do not lend the shares of idle sessions to other sessions
    #[arg(long)]
    no_lend: bool,
}

impl ShareArgs {
    /// Converts the arguments to the verb. Fails for the reasons in the module's documentation.
    pub(super) fn into_verb(self, common: &Common) -> Result<Verb, BadUsage> {
        if common.confirm.is_some() {
            return Err(BadUsage::Invalid(
                "--confirm has no meaning with share, which removes its limits when it ends, for \
                 example by Ctrl-C",
            ));
        }
        if common.until_exit.is_some() {
            return Err(BadUsage::Invalid(
                "--until-exit has no meaning with share, which removes its limits when it ends",
            ));
        }
        let targets: Vec<Target> = self
            .targets
            .iter()
            .map(|text| text.parse())
            .collect::<Result<_, _>>()?;
        let weights = self.weight.iter().map(|text| weight(text, &targets));
        let floor = match &self.floor {
            Some(text) => quantity("--floor", text)?,
            None => Rate::new(DEFAULT_FLOOR).unwrap_or(Rate::MIN),
        };
        let request = ShareRequest {
            total: total_rate(&self.total)?,
            weights: weights.collect::<Result<_, _>>()?,
            per: match self.per.as_str() {
                "user" => Per::User,
                "service" => Per::Service,
                _ => Per::Session,
            },
            targets,
            floor,
            lend: !self.no_lend,
            for_: nanos("--for", common.for_.as_deref())?.map(std::time::Duration::from_nanos),
        };
        Ok(Verb::Share(Box::new(Share {
            request,
            dry_run: common.dry_run,
        })))
    }
}

/// Parses a weight such as `unit:web.service=300`.
fn weight(text: &str, targets: &[Target]) -> Result<(WeightScope, u16), BadUsage> {
    let malformed = || {
        BadUsage::Invalid(
            "--weight: write TARGET=N with one of the targets or user:NAME, and N from 1 to 1000",
        )
    };
    let (whose, weight) = text.rsplit_once('=').ok_or_else(malformed)?;
    let weight = weight.parse().ok().filter(|n| (1..=1000).contains(n));
    let target: Target = whose.parse()?;
    let whose = WeightScope::from_target(target, targets).ok_or(BadUsage::Invalid(
        "--weight: there is no such user on this machine",
    ))?;
    Ok((whose, weight.ok_or_else(malformed)?))
}

const HELP: &str = "\
A session is a process with all its descendants. The sessions of pid:N are its children. The
sessions of any other target are its processes whose parent is outside the target; if such a process
listens for connections (a server), its children instead. The command stays in the foreground, and
removes its limits when it ends.

  netnice share 512Kbyte/s unit:vsftpd.service
  netnice share 20mbit unit:web unit:ftp --per service --weight unit:web=300
  netnice share 4mbit user:ann user:bob --per user

Exit status: 0 ended by a signal, by --for, or because all targets have ended.";
