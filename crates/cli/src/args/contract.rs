//! The contract options (`--up R`, …), one for each clause of the contract grammar.
//! [`ContractArgs::change`] combines them to a [`Change`]. Fails if `netnice-core` refuses a value.
//!
//! Every verb parses all options, so that a refused one is answered with the reason.
//! [`hide_refused`] removes from the help of each verb the options that the verb refuses.

use clap::Args;
use netnice_core::contract::{Change, Clause, ContractError, Yield};

/// One option for each clause. Core parses the values, under the names of their clauses.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Contract (R is a rate, or none)")]
pub(crate) struct ContractArgs {
    /// Limit what is sent
    #[arg(long, value_name = "R", allow_hyphen_values = true)]
    up: Option<String>,
    /// Limit what is received
    #[arg(long, value_name = "R", allow_hyphen_values = true)]
    down: Option<String>,
    /// Limit the sum of both directions
    #[arg(long, value_name = "R", allow_hyphen_values = true)]
    both: Option<String>,
    /// Guarantee this much for sending, on a managed link
    #[arg(long, value_name = "R", allow_hyphen_values = true)]
    min: Option<String>,
    /// Guarantee this much for receiving, on a managed link
    #[arg(long, value_name = "R", allow_hyphen_values = true)]
    min_down: Option<String>,
    /// The link of the guarantees [default: the only one managed]
    #[arg(long, value_name = "IFACE")]
    on: Option<String>,
    /// Share of the left-over of a link, 1 to 1000 [default: 100]
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    weight: Option<String>,
    /// Order in the left-over of a link, 0 (first) to 7 [default: 4]
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    priority: Option<String>,
    /// How much may pass at once after a silence, as time at the limit's rate [default: 5ms]
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    burst: Option<String>,
    /// Code point of the packets that it sends: EF, AF21, CS1, LE, …, or a number
    #[arg(long, value_name = "DSCP", allow_hyphen_values = true)]
    dscp: Option<String>,
    /// Use only bandwidth of managed links that no other traffic uses (--yield=none ends it)
    #[arg(
        long = "yield",
        value_name = "none",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = Yield::TEXT
    )]
    yields: Option<String>,
    /// Let this user divide the minimums among own programs inside the target
    #[arg(long, value_name = "USER")]
    delegate: Option<String>,
    /// Guarantee a slice of the link's time in every period, for example 2.4ms/50ms
    #[arg(long, value_name = "S/P", allow_hyphen_values = true)]
    slice: Option<String>,
    /// With --slice: a share of the left-over in addition
    #[arg(long)]
    extra: bool,
    /// Reserve processor time: so much of one processor in every period, for example 2ms/10ms;
    /// auto: what the promises to its direct flows need
    #[arg(long, value_name = "S/P|auto", allow_hyphen_values = true)]
    cpu: Option<String>,
    /// With --cpu: a share of the processor time that is not reserved in addition
    #[arg(long)]
    cpu_extra: bool,
    /// Space the packets by a cell contract, and guarantee its rate:
    /// pcr=R,cdvt=T[,scr=R,mbs=SIZE[,bucket=single|dual]] [default bucket: single]
    #[arg(long, value_name = "PARTS")]
    cell: Option<String>,
    /// mmax=SIZE,rmax=N/s,bmax=N,deadline=T, and optionally processing=T, overload=POLICY; mmax
    /// counts the headers of all packets of a message
    #[arg(long, value_name = "PARTS")]
    channel: Option<String>,
    /// A part of the driver's time for received packets, for certain: 0.01% to 100%
    #[arg(long, value_name = "P%")]
    receive: Option<String>,
    /// Bytes that may pass in a calendar period: `20GB/month[,then=R][,count=up|down][,zone=ZONE]`
    #[arg(long, value_name = "QUOTA", allow_hyphen_values = true)]
    quota: Option<String>,
    /// The hours in which this holds, for example "mon-fri 08:00-18:00 Europe/Berlin"
    #[arg(long, value_name = "HOURS")]
    when: Option<String>,
}

impl ContractArgs {
    /// The change that the options describe; `None` without any option. Fails if core refuses a
    /// value.
    pub(crate) fn change(&self) -> Result<Option<Change>, ContractError> {
        let options = [
            (Clause::Up, &self.up),
            (Clause::Down, &self.down),
            (Clause::Both, &self.both),
            (Clause::Min, &self.min),
            (Clause::MinDown, &self.min_down),
            (Clause::On, &self.on),
            (Clause::Weight, &self.weight),
            (Clause::Priority, &self.priority),
            (Clause::Burst, &self.burst),
            (Clause::Dscp, &self.dscp),
            (Clause::Yield, &self.yields),
            (Clause::Delegate, &self.delegate),
            (Clause::Slice, &self.slice),
            (Clause::Cpu, &self.cpu),
            (Clause::Cell, &self.cell),
            (Clause::Channel, &self.channel),
            (Clause::Receive, &self.receive),
            (Clause::Quota, &self.quota),
            (Clause::When, &self.when),
        ];
        let named: Vec<(Clause, &str)> = options
            .into_iter()
            .filter_map(|(clause, value)| Some((clause, value.as_deref()?)))
            .collect();
        if named.is_empty() && !self.extra && !self.cpu_extra {
            return Ok(None);
        }
        Change::from_clauses(named, self.extra, self.cpu_extra).map(Some)
    }
}

/// Hides the contract options that a verb refuses, in its help, man page and completions.
pub(super) fn hide_refused(command: clap::Command) -> clap::Command {
    let hide = |verb: clap::Command, options: &[&'static str]| {
        let hidden = |verb: clap::Command, option: &&'static str| {
            verb.mut_arg(*option, |option| option.hide(true))
        };
        options.iter().fold(verb, hidden)
    };
    command
        .mut_subcommand("run", |verb| hide(verb, &FOR_FLOWS))
        .mut_subcommand("set", |verb| hide(verb, &FOR_FLOWS))
        .mut_subcommand("check", |verb| hide(verb, &NOT_CHECKABLE))
        .mut_subcommand("flow", |verb| {
            verb.mut_subcommand("open", |verb| hide(verb, &NOT_FOR_FLOWS))
        })
}

/// The clauses that only flows of the direct path can have.
const FOR_FLOWS: [&str; 2] = ["channel", "receive"];

/// The clauses that a flow of the direct path cannot have.
const NOT_FOR_FLOWS: [&str; 11] = [
    "down",
    "both",
    "min_down",
    "priority",
    "dscp",
    "yields",
    "delegate",
    "cpu",
    "cpu_extra",
    "quota",
    "when",
];

/// The clauses that a capture cannot violate.
const NOT_CHECKABLE: [&str; 12] = [
    "min",
    "min_down",
    "on",
    "weight",
    "priority",
    "delegate",
    "slice",
    "extra",
    "cpu",
    "cpu_extra",
    "quota",
    "receive",
];
