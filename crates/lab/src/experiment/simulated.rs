//! Functions that the experiments in virtual time share: they run the real scheduler on a simulated
//! link, and count the packets that were sent. Other load of the machine has no influence, so every
//! simulation gives the same result. A function fails if the subject is not netnice, if a text is
//! not a rate or a contract, or if the simulation is invalid.

use anyhow::{Result, bail};
use netnice_core::sched::Wire;
use netnice_core::units::{Bytes, Nanos, Rate};
use netnice_sim::{Report, SentPacket, SimFlow, Simulation, Source};

use super::{Context, Subject};

/// Fails unless the subject is netnice: there is no simulated HTB to compare with.
pub fn netnice_only(context: &Context) -> Result<()> {
    match context.subject {
        Subject::Netnice => Ok(()),
        _ => bail!("a simulation runs netnice's scheduler: omit --subject"),
    }
}

/// A simulation of a link without flows. `rate` is text such as `100mbit`. As in the papers no
/// framing is charged. Packets have at most `longest` bytes. Fails if `rate` is not a rate.
pub fn link(rate: &str, longest: u64) -> Result<Simulation> {
    let rate: Rate = rate.parse()?;
    Ok(Simulation::new(Wire {
        longest: Bytes(longest),
        ..Wire::new(rate)
    }))
}

/// A flow that is always backlogged with packets of `size` bytes. Fails if `contract` is invalid.
pub fn greedy(name: &str, contract: &str, size: u64) -> Result<SimFlow> {
    let size = Bytes(size);
    Ok(SimFlow::new(name, contract, Source::Greedy { size })?)
}

/// Runs the simulation until `until`; returns the report and all sent packets. Fails if the
/// simulation is invalid, for example because the scheduler refuses a contract.
pub fn simulate(world: &Simulation, until: Nanos) -> Result<(Report, Vec<SentPacket>)> {
    let mut sent = Vec::new();
    let report = world.run(until, |one| sent.push(*one))?;
    Ok((report, sent))
}

/// Counts the packets of a flow by the start of their transmission, in bins of `width` from `from`
/// to `until`. An incomplete last bin is omitted.
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
