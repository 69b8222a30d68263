//! The command line of `netnice share RATE TARGET…`.

use clap::Args;
use netnice_core::target::Target;
use netnice_core::units::Rate;
use netnice_share::config::DEFAULT_FLOOR;
use netnice_share::manager::{Per, ShareRequest, WeightScope};

use super::{BadUsage, Common, Verb, nanos, quantity, total_rate};
use crate::share::Share;

/// The verb's words.
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(super) struct TypedShare {
    /// What is divided; @512Kbyte/sec will do too
    #[arg(value_name = "RATE", allow_hyphen_values = true)]
    total: String,
    /// Whose sessions have a share
    #[arg(value_name = "TARGET", required = true)]
    targets: Vec<String>,
    /// What has equal shares
    #[arg(long, value_name = "WHAT", default_value = "session", value_parser = ["session", "user", "service"])]
    per: String,
    /// The weight of a TARGET or a user, 1 to 1000 [default: 100]
    #[arg(long, value_name = "TARGET=N")]
    weight: Vec<String>,
    /// The least share [default: 8kbit]
    #[arg(long, value_name = "RATE", allow_hyphen_values = true)]
    floor: Option<String>,
    /// Do not lend what idle sessions leave
    #[arg(long)]
    no_lend: bool,
}

impl TypedShare {
    /// The verb that the typed form means.
    pub(super) fn means(self, common: &Common) -> Result<Verb, BadUsage> {
        if common.confirm.is_some() {
            return Err(BadUsage::Nonsense(
                "--confirm has no meaning with share: its limits go when it ends, by Ctrl-C or a lost terminal",
            ));
        }
        if common.until_exit.is_some() {
            return Err(BadUsage::Nonsense(
                "--until-exit has no meaning with share: its limits go when it ends itself",
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
        let asked = ShareRequest {
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
            asked,
            dry_run: common.dry_run,
        })))
    }
}

/// Parses a weight such as `unit:web.service=300`.
fn weight(text: &str, targets: &[Target]) -> Result<(WeightScope, u16), BadUsage> {
    let nonsense = || {
        BadUsage::Nonsense(
            "--weight: write TARGET=N with one of the targets or user:NAME, and N from 1 to 1000",
        )
    };
    let (whose, weight) = text.rsplit_once('=').ok_or_else(nonsense)?;
    let weight = weight.parse().ok().filter(|n| (1..=1000).contains(n));
    let target: Target = whose.parse()?;
    let whose = WeightScope::from_target(target, targets).ok_or(BadUsage::Nonsense(
        "--weight: there is no such user on this machine",
    ))?;
    Ok((whose, weight.ok_or_else(nonsense)?))
}

const HELP: &str = "\
A session is a process with all that it starts. Of pid:N it is each child; of any other target each
process whose parent is not in it, or if that one listens for connections (a server), each child of
it. It stays in the foreground, and takes its limits back when it ends.

  netnice share 512Kbyte/s unit:vsftpd.service
  netnice share 20mbit unit:web unit:ftp --per service --weight unit:web=300
  netnice share 4mbit user:ann user:bob --per user

Exit status: 0 it was ended by a signal, by --for, or there is nothing left to divide among.";
