//! The command line of `netnice flow`. Output is a [`FlowCommand`]. Fails if an address or the
//! number of a flow does not parse, if the contract is invalid or given in two forms, or if an
//! option has no meaning with another one.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use clap::{Args, Subcommand};
use netnice_core::contract::{Change, Clause, Setting};
use netnice_core::target::Target;
use netnice_core::units::Nanos;

use super::{BadUsage, Common, ContractArgs, Verb, quantity};
use crate::flow::FlowCommand;
use crate::flow::open_flow::{Open, Remote};

#[derive(Debug, Subcommand)]
pub(super) enum FlowArgs {
    /// List the open flows: yours; as root or group netnice, those of all users
    Ls,
    /// Open a UDP flow, send standard input as datagrams, and print the datagrams that arrive
    #[command(after_help = OPEN_HELP)]
    Open(Box<OpenArgs>),
    /// Close a flow of one of your programs; as root or group netnice, any flow
    Close {
        /// The flow: 7, or flow:7
        flow: String,
    },
}

#[derive(Debug, Args)]
pub(super) struct OpenArgs {
    /// The host and port that the flow sends to and receives from
    #[arg(long, value_name = "HOST:PORT", required_unless_present = "listen")]
    udp: Option<String>,
    /// Wait at this address and port for a first datagram, and answer its sender
    #[arg(long, value_name = "ADDRESS:PORT", conflicts_with_all = ["udp", "local"])]
    listen: Option<String>,
    /// Send from this address and port; :PORT leaves the address to the route [default: a free
    /// port]
    #[arg(long, value_name = "ADDRESS:PORT")]
    local: Option<String>,
    /// After the end of standard input: close when nothing arrives for this long
    #[arg(
        long,
        short = 'w',
        value_name = "TIME",
        default_value = "1s",
        allow_hyphen_values = true
    )]
    wait: String,
    /// Print no line about the flow that was opened
    #[arg(long, short)]
    quiet: bool,
    #[command(flatten)]
    options: ContractArgs,
    /// The contract in words, in place of its options: slice 2ms/20ms [default: best effort]
    #[arg(value_name = "CONTRACT")]
    contract: Vec<String>,
}

impl FlowArgs {
    /// Converts the arguments to the verb. Fails for the reasons in the module's documentation.
    pub(super) fn into_verb(self, common: &Common) -> Result<Verb, BadUsage> {
        Ok(Verb::Flow(match self {
            FlowArgs::Ls => FlowCommand::List,
            FlowArgs::Open(_) if common.json => {
                let (option, verb) = ("--json", "flow open: standard output has the datagrams");
                return Err(BadUsage::Meaningless { option, verb });
            }
            FlowArgs::Open(open) => FlowCommand::Open(Box::new(open.into_open()?)),
            FlowArgs::Close { flow } => FlowCommand::Close(number(&flow)?),
        }))
    }
}

impl OpenArgs {
    fn into_open(self) -> Result<Open, BadUsage> {
        let change = match (self.options.change()?, self.contract.is_empty()) {
            (Some(_), false) => {
                return Err(BadUsage::Invalid(
                    "the contract is given twice: as options and in words",
                ));
            }
            (options, true) => options,
            (None, false) => Some(self.contract.join(" ").parse()?),
        };
        let (iface, contract) = contract_and_link(change);
        let remote = match (self.udp, self.listen) {
            (Some(to), _) => Remote::To(to),
            (None, Some(at)) => Remote::Listen(address(&at)?),
            (None, None) => return Err(BadUsage::Invalid("write --udp HOST:PORT or --listen")),
        };
        Ok(Open {
            remote,
            local: self.local.as_deref().map(address).transpose()?,
            iface,
            contract,
            wait: quantity::<Nanos>("--wait", &self.wait)?.into(),
            quiet: self.quiet,
        })
    }
}

/// The link that a contract names, and the other clauses as text; `None` if there are none.
fn contract_and_link(change: Option<Change>) -> (Option<String>, Option<String>) {
    let Some(mut change) = change else {
        return (None, None);
    };
    let iface = match &change.on {
        Some(Setting::Set(link)) => Some(link.to_string()),
        _ => None,
    };
    if change.clauses() == [Clause::On] {
        return (iface, None);
    }
    change.on = None;
    (iface, Some(change.to_string()))
}

/// Parses an address with a port. Without the address, it is `0.0.0.0`.
fn address(text: &str) -> Result<SocketAddr, BadUsage> {
    let any = IpAddr::from(Ipv4Addr::UNSPECIFIED);
    let port = text.strip_prefix(':').and_then(|port| port.parse().ok());
    port.map(|port| SocketAddr::new(any, port))
        .or_else(|| text.parse().ok())
        .ok_or_else(|| BadUsage::Address(text.to_owned()))
}

/// The number of a flow: `7`, or `flow:7`.
fn number(text: &str) -> Result<u32, BadUsage> {
    let name = match text.starts_with("flow:") {
        true => text.to_owned(),
        false => format!("flow:{text}"),
    };
    match name.parse()? {
        Target::Flow(number) => Ok(number),
        _ => Err(BadUsage::Invalid("write the flow as 7, or flow:7")),
    }
}

/// Text behind the options in `--help`.
const OPEN_HELP: &str = "\
Each read of standard input, of at most what a packet of the path carries, becomes a datagram. At
the end of standard input netnice waits until the driver has sent all datagrams, then until nothing
arrives for the time of --wait.

Exit status: 0 the flow was used to its end; 1 a datagram was not sent, or the flow was closed;
2 bad usage; 3 refused; 4 no daemon.";

#[cfg(test)]
mod tests;
