//! The contract options (`--up R`, …), one for each clause of the contract grammar.
//! [`ContractArgs::change`] combines them to a [`Change`]. Fails if `netnice-core` refuses a value.

use clap::Args;
use netnice_core::contract::{Change, Clause, ContractError};

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
    /// Guarantee a slice of the link's time in every period, for example 2.4ms/50ms
    #[arg(long, value_name = "S/P", allow_hyphen_values = true)]
    slice: Option<String>,
    /// With --slice: a share of the left-over in addition
    #[arg(long)]
    extra: bool,
    /// A slice of a CPU in every period (not supported yet)
    #[arg(long, value_name = "B/P", allow_hyphen_values = true)]
    cpu: Option<String>,
    /// With --cpu: a share of the left-over in addition
    #[arg(long)]
    cpu_extra: bool,
    /// pcr=R,cdvt=T[,scr=R,mbs=SIZE,bucket=single|dual] (so far only for `netnice check`)
    #[arg(long, value_name = "PARTS")]
    cell: Option<String>,
    /// mmax=SIZE,rmax=N/s,bmax=N,deadline=T (so far only for `netnice check`)
    #[arg(long, value_name = "PARTS")]
    channel: Option<String>,
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
            (Clause::Slice, &self.slice),
            (Clause::Cpu, &self.cpu),
            (Clause::Cell, &self.cell),
            (Clause::Channel, &self.channel),
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
