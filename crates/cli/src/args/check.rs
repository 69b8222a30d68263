//! The command line of `netnice check FILE`. Output is a [`Check`]. Fails if an option does not
//! parse, if the contract's clauses contradict each other, if the contract has none or several of
//! the clauses that a capture can violate, if it has `--when`, or if `--gap` is given without
//! `--channel`.

use std::path::PathBuf;

use clap::Args;
use netnice_core::contract::Contract;
use netnice_core::policer::{NotCheckable, Policer};

use super::{BadUsage, ContractArgs, Verb, quantity};
use crate::check::Check;

#[derive(Debug, Args)]
pub(super) struct CheckArgs {
    /// The capture, pcap or pcapng; - reads standard input
    file: PathBuf,
    #[command(flatten)]
    contract: ContractArgs,
    // In a doc comment rustdoc would read the brackets as links.
    #[arg(
        long,
        value_name = "FLOW",
        help = "Only these packets: [tcp|udp] [from ADDRESS[:PORT]] [to ADDRESS[:PORT]]"
    )]
    flow: Option<String>,
    /// Extra tolerance beyond the contract's [default: none]
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    tolerance: Option<String>,
    /// With --channel: packets less than TIME apart belong to one message
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    gap: Option<String>,
}

impl CheckArgs {
    /// Converts the arguments to the verb. Fails for the reasons in the module's documentation.
    pub(super) fn into_verb(self) -> Result<Verb, BadUsage> {
        let change = self.contract.change()?.ok_or(NotCheckable::Nothing)?;
        let contract = Contract::default().apply(&change)?;
        if contract.quota().is_some() {
            return Err(BadUsage::Invalid(
                "--quota is not for check: a capture shows no period of the calendar",
            ));
        }
        if contract.when().is_some() {
            return Err(BadUsage::Invalid(
                "--when is not for check: every packet of the capture is judged",
            ));
        }
        let tolerance = self.tolerance.as_deref();
        let tolerance = tolerance.map(|text| quantity("--tolerance", text));
        let gap = self.gap.as_deref().map(|text| quantity("--gap", text));
        if gap.is_some() && contract.channel().is_none() {
            return Err(BadUsage::Invalid("--gap needs --channel"));
        }
        Ok(Verb::Check(Box::new(Check {
            police: Policer::contract(&contract)?,
            file: self.file,
            contract,
            flow: self.flow.as_deref().map(str::parse).transpose()?,
            tolerance: tolerance.transpose()?.unwrap_or_default(),
            gap: gap.transpose()?,
        })))
    }
}
