//! The common parts of the experiments in virtual time: the real scheduler in a simulated world.
//!
//! The machine has no influence, so every run gives the same result.

use anyhow::{Result, bail};
use netnice_core::sched::Wire;
use netnice_core::units::{Bytes, Nanos, Rate};
use netnice_sim::{Report, SentPacket, SimFlow, Simulation, Source};

use super::{Context, Subject};

/// Fails unless the subject is netnice: a simulated world has no HTB to compare with.
pub fn netnice_only(context: &Context) -> Result<()> {
    match context.subject {
        Subject::Netnice => Ok(()),
        _ => bail!("a simulation runs netnice's scheduler: omit --subject"),
    }
}

/// A link as the papers count: no framing, packets of at most `longest` bytes.
pub fn link(rate: &str, longest: u64) -> Result<Simulation> {
    let rate: Rate = rate.parse()?;
    Ok(Simulation::new(Wire {
        longest: Bytes(longest),
        ..Wire::new(rate)
    }))
}

/// A flow that is always backlogged with packets of `size` bytes.
pub fn greedy(name: &str, contract: &str, size: u64) -> Result<SimFlow> {
    let size = Bytes(size);
    Ok(SimFlow::new(name, contract, Source::Greedy { size })?)
}

/// Runs the simulation until `until`; returns the report and all sent packets.
pub fn simulate(world: &Simulation, until: Nanos) -> Result<(Report, Vec<SentPacket>)> {
    let mut sent = Vec::new();
    let report = world.run(until, |one| sent.push(*one))?;
    Ok((report, sent))
}

/// Counts the packets of a flow by their start in bins of `width` that fill `from..until`.
pub fn bins(sent: &[SentPacket], flow: usize, from: Nanos, until: Nanos, width: Nanos) -> Vec<u32> {
    let mut bins = vec![0; ((until.0 - from.0) / width.0) as usize];
    for one in sent.iter().filter(|one| one.flow == flow) {
        if let Some(since) = one.start.0.checked_sub(from.0)
            && let Some(bin) = bins.get_mut((since / width.0) as usize)
        {
            *bin += 1;
        }
    }
    bins
}

/// Milliseconds as [`Nanos`].
pub const fn ms(millis: u64) -> Nanos {
    Nanos::from_millis(millis)
}
