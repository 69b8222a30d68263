//! The command line of `netnice link [IFACE]`. Output is a [`LinkChange`], or [`Verb::Links`]
//! without an interface. Fails if the name of the interface or an option is invalid, or if an
//! option of this verb is given without an interface.

use clap::Args;
use netnice_api::{LinkChange, LinkClassChange, Request};
use netnice_core::contract::IfName;
use netnice_core::units::Rate;

use super::{BadUsage, Common, Verb, overhead, quantity, rate};

#[derive(Debug, Args)]
pub(super) struct LinkArgs {
    /// The interface
    pub(super) iface: Option<String>,
    /// Capacity for sending; guarantees that do not fit it are taken out of force, the youngest
    /// first (see --dry-run). `auto`: estimate it from delays, between --min and --max [default:
    /// the speed that its driver reports, followed as it changes]
    #[arg(long, value_name = "RATE", allow_hyphen_values = true)]
    rate: Option<String>,
    /// Capacity for receiving; 97 % of it can be guaranteed. `auto`: estimate it, between
    /// --min-down and --max-down
    #[arg(long, value_name = "RATE", allow_hyphen_values = true)]
    down_rate: Option<String>,
    /// With --rate auto: what the link carries at any time; this can be guaranteed. With --class:
    /// what the class has in any case; `0` takes it away, `none` removes the class
    #[arg(long, value_name = "RATE", allow_hyphen_values = true)]
    min: Option<String>,
    /// With --rate auto: the most that the link carries
    #[arg(long, value_name = "RATE", allow_hyphen_values = true)]
    max: Option<String>,
    /// As --min, for --down-rate auto
    #[arg(long, value_name = "RATE", allow_hyphen_values = true)]
    min_down: Option<String>,
    /// As --max, for --down-rate auto
    #[arg(long, value_name = "RATE", allow_hyphen_values = true)]
    max_down: Option<String>,
    /// With `auto`: hosts beyond the slowest part of the way that answer ping, at most 8; up to 20
    /// pings a second go to them while the link is used [default: 1.1.1.1,9.9.9.9,8.8.8.8]
    #[arg(long, value_name = "HOST", value_delimiter = ',')]
    probe: Vec<String>,
    /// Bytes that the wire adds to each packet (24 for Ethernet)
    #[arg(long, value_name = "BYTES", allow_hyphen_values = true)]
    overhead: Option<String>,
    /// Add or change a class of direct flows (`cell …,class=N`), 0 (first) to 7: its flows share
    /// what the link's server gives it
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    class: Option<String>,
    /// With --class: the contracts of its flows may sum to more than it has (`none`: no more)
    #[arg(long, value_name = "none", num_args = 0..=1, require_equals = true, default_missing_value = "on")]
    overbook: Option<String>,
    /// The slice of the link that its classes divide, S of each P [default: as much as the minimums
    /// of the classes need]
    #[arg(long, value_name = "S/P", allow_hyphen_values = true)]
    server: Option<String>,
    /// Stop managing the link
    #[arg(long, conflicts_with_all = ["rate", "down_rate", "overhead", "min", "max", "min_down", "max_down",
        "probe", "class", "overbook", "server"])]
    unmanage: bool,
}

impl LinkArgs {
    /// Converts the arguments to the verb. Fails for the reasons in the module's documentation.
    pub(super) fn into_verb(self, common: &Common) -> Result<Verb, BadUsage> {
        let Some(iface) = &self.iface else {
            let values = [
                &self.rate,
                &self.down_rate,
                &self.min,
                &self.max,
                &self.min_down,
                &self.max_down,
                &self.overhead,
                &self.class,
                &self.overbook,
                &self.server,
            ];
            let has_options = values.iter().any(|value| value.is_some())
                || !self.probe.is_empty()
                || self.unmanage;
            return match has_options {
                true => Err(BadUsage::Invalid(
                    "the interface is missing: netnice link IFACE --rate R",
                )),
                false => Ok(Verb::Links),
            };
        };
        let iface: IfName = iface.parse()?;
        let class = self.class()?;
        let min = match class {
            // The minimum of the class.
            Some(_) => None,
            None => bound("--min", self.min.as_deref())?,
        };
        let overhead = self.overhead.as_deref().map(overhead).transpose()?;
        Ok(Verb::Request(Request::Link(LinkChange {
            iface: iface.to_string(),
            rate: capacity("--rate", self.rate.as_deref())?,
            down_rate: capacity("--down-rate", self.down_rate.as_deref())?,
            min,
            max: bound("--max", self.max.as_deref())?,
            min_down: bound("--min-down", self.min_down.as_deref())?,
            max_down: bound("--max-down", self.max_down.as_deref())?,
            probes: (!self.probe.is_empty()).then_some(self.probe),
            overhead,
            server: self.server,
            class: class.map(Box::new),
            unmanage: self.unmanage,
            dry_run: common.dry_run,
            confirm_ns: common.confirm_ns()?,
            for_ns: common.for_ns()?,
            until: common.until()?,
        })))
    }
}

impl LinkArgs {
    /// The change of a class. Fails if an option needs a class, or is invalid.
    fn class(&self) -> Result<Option<LinkClassChange>, BadUsage> {
        let Some(class) = &self.class else {
            return match self.overbook {
                Some(_) => Err(BadUsage::Invalid(
                    "--overbook needs a class: name it with --class N",
                )),
                None => Ok(None),
            };
        };
        if self.rate.as_deref() == Some(LinkChange::AUTO) || self.max.is_some() {
            return Err(BadUsage::Invalid(
                "with --class, --min is of the class: set the estimate (--rate auto, --min, --max) in \
                 a command of its own",
            ));
        }
        let number = class
            .parse()
            .map_err(|_| BadUsage::Invalid("--class needs a number from 0 (first) to 7"))?;
        let min = match self.min.as_deref() {
            Some(word @ ("0" | "none")) => Some(word.to_owned()),
            other => bound("--min", other)?,
        };
        let overbook = match self.overbook.as_deref() {
            None => None,
            Some("on") => Some(true),
            Some("none") => Some(false),
            Some(_) => {
                return Err(BadUsage::Invalid(
                    "write --overbook, or --overbook=none to end it",
                ));
            }
        };
        Ok(Some(LinkClassChange {
            number,
            min,
            overbook,
        }))
    }
}

/// Parses the capacity of a direction: a rate, `none`, or `auto`.
fn capacity(option: &'static str, text: Option<&str>) -> Result<Option<String>, BadUsage> {
    match text {
        Some(LinkChange::AUTO) => Ok(Some(LinkChange::AUTO.to_owned())),
        other => rate(option, other),
    }
}

/// Parses a bound of an estimate.
fn bound(option: &'static str, text: Option<&str>) -> Result<Option<String>, BadUsage> {
    let rate = text.map(|text| quantity::<Rate>(option, text));
    Ok(rate.transpose()?.map(|rate| rate.compact()))
}
