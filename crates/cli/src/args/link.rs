//! The command line of `netnice link [IFACE]`. Output is a [`LinkChange`], or [`Verb::Links`]
//! without an interface. Fails if the name of the interface or an option is invalid, or if an
//! option of this verb is given without an interface.

use clap::Args;
use netnice_api::{LinkChange, Request};
use netnice_core::contract::IfName;

use super::{BadUsage, Common, Verb, overhead, rate};

#[derive(Debug, Args)]
pub(super) struct LinkArgs {
    /// The interface
    pub(super) iface: Option<String>,
    /// Capacity for sending; guarantees that do not fit it are taken out of force, the youngest
    /// first (see --dry-run) [default: the speed that its driver reports, followed as it changes]
    #[arg(long, value_name = "RATE", allow_hyphen_values = true)]
    rate: Option<String>,
    /// Capacity for receiving; 97 % of it can be guaranteed
    #[arg(long, value_name = "RATE", allow_hyphen_values = true)]
    down_rate: Option<String>,
    /// Bytes that the wire adds to each packet (24 for Ethernet)
    #[arg(long, value_name = "BYTES", allow_hyphen_values = true)]
    overhead: Option<String>,
    /// Stop managing the link
    #[arg(long, conflicts_with_all = ["rate", "down_rate", "overhead"])]
    unmanage: bool,
}

impl LinkArgs {
    /// Converts the arguments to the verb. Fails for the reasons in the module's documentation.
    pub(super) fn into_verb(self, common: &Common) -> Result<Verb, BadUsage> {
        let Some(iface) = &self.iface else {
            let has_options = self.rate.is_some()
                || self.down_rate.is_some()
                || self.overhead.is_some()
                || self.unmanage;
            return match has_options {
                true => Err(BadUsage::Invalid(
                    "the interface is missing: netnice link IFACE --rate R",
                )),
                false => Ok(Verb::Links),
            };
        };
        let iface: IfName = iface.parse()?;
        let overhead = self.overhead.as_deref().map(overhead).transpose()?;
        Ok(Verb::Request(Request::Link(LinkChange {
            iface: iface.to_string(),
            rate: rate("--rate", self.rate.as_deref())?,
            down_rate: rate("--down-rate", self.down_rate.as_deref())?,
            overhead,
            unmanage: self.unmanage,
            dry_run: common.dry_run,
            confirm_ns: common.confirm_ns()?,
            for_ns: common.for_ns()?,
            until: common.until()?,
        })))
    }
}
