//! The options of `netnice doctor`, and the processes of its measurement of costs. Fails if the
//! time of `--stops` is no time or out of range.

use std::net::SocketAddr;

use clap::{Args, Subcommand};
use netnice_core::units::Nanos;

use super::{BadUsage, Verb, quantity};
use crate::packet_costs::Part;

#[derive(Debug, Args)]
pub(super) struct DoctorArgs {
    /// Measure for TIME (1s to 1h) what this machine takes from a real-time thread, and print the
    /// value of the policy's key `stops`; needs root and nine tenths of a processor
    #[arg(long, value_name = "TIME", conflicts_with = "measure")]
    stops: Option<String>,
    /// Measure what a packet costs a program on this machine, and keep it for --cpu auto; needs
    /// root, and a minute of two processors
    #[arg(long)]
    measure: bool,
}

impl DoctorArgs {
    pub(super) fn into_verb(self) -> Result<Verb, BadUsage> {
        if self.measure {
            return Ok(Verb::MeasureCosts);
        }
        let time = self.stops.map(|text| quantity::<Nanos>("--stops", &text));
        match time.transpose()? {
            None => Ok(Verb::Doctor),
            Some(time) if (MEASURED.0..=MEASURED.1).contains(&time) => Ok(Verb::MeasureStops(time)),
            Some(actual) => Err(BadUsage::OutOfRange {
                option: "--stops",
                actual: actual.to_string(),
                limits: format!("{} to {}", MEASURED.0, MEASURED.1),
            }),
        }
    }
}

#[derive(Debug, Subcommand)]
pub(super) enum CostsPart {
    /// Measure and print
    Measure,
    /// Receive
    Receive,
    /// Use all processor time
    Spin,
    /// Send as fast as possible
    Send {
        /// udp or tcp
        protocol: String,
        /// The receiver
        to: SocketAddr,
        /// The contract of its flow
        contract: String,
    },
}

impl From<CostsPart> for Part {
    fn from(part: CostsPart) -> Part {
        match part {
            CostsPart::Measure => Part::Measure,
            CostsPart::Receive => Part::Receive,
            CostsPart::Spin => Part::Spin,
            CostsPart::Send {
                protocol,
                to,
                contract,
            } => Part::Send {
                tcp: protocol == "tcp",
                to,
                contract,
            },
        }
    }
}

/// How long `doctor --stops` may measure.
const MEASURED: (Nanos, Nanos) = (Nanos::from_secs(1), Nanos::from_secs(3_600));
