//! The command line of `netnice peer`. Output is a [`PeerCommand`]. Fails if the name of a host or
//! the number of days is invalid, or for `issue` with `--json`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use netnice_peer::message::HostName;

use super::{BadUsage, Common, Verb};
use crate::peer::PeerCommand;

#[derive(Debug, Subcommand)]
pub(super) enum PeerArgs {
    /// Issue a certificate for each HOST by the authority in a folder, which is made if necessary
    #[command(after_help = ISSUE_HELP)]
    Issue(IssueArgs),
    /// List the neighbours and services of this host, and the ports before its interfaces
    Ls,
}

#[derive(Debug, Args)]
pub(super) struct IssueArgs {
    /// The folder of the authority and the certificates; created if it does not exist
    #[arg(long, value_name = "DIR")]
    folder: PathBuf,
    /// How long the certificates are valid, also that of a new authority
    #[arg(
        long,
        value_name = "N",
        default_value = "365",
        value_parser = clap::value_parser!(u32).range(1..=MOST_DAYS)
    )]
    days: u32,
    /// The names of the hosts
    #[arg(value_name = "HOST", required = true)]
    hosts: Vec<String>,
}

impl PeerArgs {
    /// Converts the arguments to the verb. Fails for the reasons in the module's documentation.
    pub(super) fn into_verb(self, common: &Common) -> Result<Verb, BadUsage> {
        let issue = match self {
            PeerArgs::Ls => return Ok(Verb::Peer(PeerCommand::List)),
            PeerArgs::Issue(_) if common.json => {
                let (option, verb) = ("--json", "peer issue");
                return Err(BadUsage::Meaningless { option, verb });
            }
            PeerArgs::Issue(issue) => issue,
        };
        let IssueArgs {
            folder,
            days,
            hosts,
        } = issue;
        let hosts = hosts
            .into_iter()
            .map(|word| HostName::new(&word).map_err(|error| BadUsage::HostName { word, error }));
        Ok(Verb::Peer(PeerCommand::Issue {
            folder,
            days,
            hosts: hosts.collect::<Result<_, _>>()?,
        }))
    }
}

/// A hundred years.
const MOST_DAYS: i64 = 36_500;

/// Text behind the options in `--help`.
const ISSUE_HELP: &str = "\
DIR has authority.key and authority.pem, and for each host HOST.key and HOST.pem. An authority in
DIR is used again, so further hosts can be added later. No file is replaced: with one that exists,
nothing is issued. Keep authority.key in DIR: with it, anybody can take part as any host. Hosts
that have an authority of their own need no certificates of this command.

  netnice peer issue --folder laboratory ann.example.org bob.example.org

Exit status: 0 all certificates are written; 1 none is; 2 bad usage.";

#[cfg(test)]
mod tests;
