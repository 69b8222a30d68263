//! The census of the registry: all programs and flows, or some flows, with their counters, for the
//! daemon. It fails if the packet thread has ended.

use netnice_api::driver::{CensusDoc, DriverFlowDoc, ProgramDoc, TimeAccountingDoc, UserMemoryDoc};

use super::{OpenFlow, Registry, RegistryError};
use crate::clock::monotonic;
use crate::commands::{Command, Report};
use crate::demux::Discard;
use crate::link::LinkError;
use crate::setup;

impl Registry {
    /// All programs and flows, with their counters. Fails if the packet thread has ended.
    pub(crate) fn census(&mut self) -> Result<CensusDoc, RegistryError> {
        let all: Vec<u32> = self.flows.iter().map(|(number, _)| number).collect();
        let programs = self.programs.iter().map(|(number, known)| ProgramDoc {
            program: *number,
            pid: known.pid,
            bytes: known.bytes,
            uid: Some(known.uid),
            flows: known.budget.flows,
            secret: known.secret.clone(),
        });
        let programs = programs.collect();
        Ok(CensusDoc {
            programs,
            ..self.census_of(&all)?
        })
    }

    /// The driver's state with these flows and their counters, and without programs. Flows that are
    /// not open are left out. Fails if the packet thread has ended.
    pub(crate) fn census_of(&mut self, flows: &[u32]) -> Result<CensusDoc, RegistryError> {
        let sums = self.sums()?;
        let discarded = Discard::ALL.iter().zip(sums.received.discarded);
        let discarded = discarded.map(|(why, count)| (why.name().to_owned(), count));
        let others = [
            ("unclaimed", sums.received.unclaimed),
            ("missed", sums.link.missed),
            ("redirected", sums.link.redirected_missed),
            ("strange", sums.link.unexpected),
        ];
        let others = others.map(|(why, count)| (why.to_owned(), count));
        let redirected = self.redirected_targets()?;
        let mut census = CensusDoc {
            iface: self.ingress.interface().name.clone(),
            mode: self.ingress.mode().name().to_owned(),
            rate: self.rate,
            why_not_native: self.ingress.why_not_native().map(LinkError::to_string),
            programs: Vec::new(),
            flows: Vec::with_capacity(flows.len().min(self.flows.iter().len())),
            time: TimeAccountingDoc {
                receiving_ns: sums.time.receiving.0,
                sending_ns: sums.time.sending.0,
                waiting_ns: sums.time.waiting.0,
            },
            stops: setup::stops(&sums.stops),
            thread: self.packet_thread,
            frames: sums.frames.map(setup::frames),
            unrequested_doorbells: sums.time.unasked,
            pm_qos_held: sums.awake,
            confinement: self.confinement.clone(),
            memory: self
                .files
                .users()
                .map(|(uid, used)| UserMemoryDoc {
                    uid,
                    files: used.files,
                    bytes: used.bytes,
                })
                .collect(),
            redirected,
            discard_patterns: self.discards,
            code_points: self.flows.code_points(),
            awake_limit_ppm: Some(self.flows.awake_limit_ppm()),
            discarded: discarded
                .chain(others)
                .filter(|(_, count)| *count > 0)
                .collect(),
        };
        let now = monotonic();
        let open = flows
            .iter()
            .filter_map(|number| Some((*number, self.flows.get(*number)?)));
        let open: Vec<(u32, &OpenFlow)> = open.collect();
        for some in open.chunks(COUNTED_PER_COMMAND) {
            let numbers = some.iter().map(|(_, known)| known.datapath_no).collect();
            let Report::Counts(counted) = self.commands.send(Command::Counts(numbers))? else {
                continue;
            };
            // One result per flow, in the same order.
            for ((number, known), counted) in some.iter().zip(counted) {
                let Some((counters, chunks)) = counted else {
                    continue;
                };
                let mut counts = setup::counts(&counters);
                counts.suspended = counters.suspended_until > now;
                census.flows.push(DriverFlowDoc {
                    flow: *number,
                    setup: known.setup.clone(),
                    counts,
                    held: chunks.in_use,
                    slot: known.slot,
                });
            }
        }
        Ok(census)
    }
}

/// Flows whose counters are copied by one command: some microseconds.
const COUNTED_PER_COMMAND: usize = 16;
