//! Finds what would fit in place of a refused contract of a flow ([`LinkCapacity::alternative`]).
//! The functions are pure and do not fail.
//!
//! An alternative is the refused contract with one value changed as little as is needed, in the
//! order of the table. If no single value is enough, two are changed, and if those are not either,
//! nothing of this kind fits.
//!
//! | contract | one value | two values |
//! |---|---|---|
//! | `min R` | R | |
//! | `slice S/P` | S | |
//! | `cell` | CDVT, MBS, PCR (or SCR, if it has one) | PCR or SCR, and CDVT |
//! | `channel` | burst of a limit, deadline, Rmax, Mmax | Rmax or Mmax, and the deadline |
//!
//! Each alternative is tested as a request is, with less work: it fits if nothing changes in the
//! meantime. The next value (one ns, one byte, one message per second, or one step of
//! [`rate_step`]) does not fit, or the test did not end within its bound of work: some thousandths
//! below a full link there is no bound on the work of a decision.

use netnice_core::admission::timing::{Promise, TimingFault};
use netnice_core::contract::{
    Cell, Change, Channel, Contract, Direction, MessageRate, Setting, Slice, Sustained,
};
use netnice_core::units::{Bytes, Nanos, Rate};

use super::admission::{Further, LinkCapacity, MAX_SEARCHED, WorkAhead};

/// Why a contract of a flow does not fit, and what would.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Misfit {
    /// The first inequality that fails.
    pub fault: TimingFault,
    /// What would fit.
    pub instead: Instead,
}

/// What would fit in place of a refused contract.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Instead {
    /// This contract, in words.
    Contract {
        /// The contract.
        contract: Box<Contract>,
        /// The changed values, in words.
        text: String,
    },
    /// No contract of this kind fits.
    Nothing,
    /// There are too many promises for a search.
    NotSearched,
}

impl std::fmt::Display for Instead {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Instead::Contract { text, .. } => f.write_str(text),
            Instead::Nothing => f.write_str("nothing of this kind"),
            Instead::NotSearched => write!(
                f,
                "something smaller, perhaps: with more than {MAX_SEARCHED} promises on a link it is \
                 not searched for"
            ),
        }
    }
}

impl LinkCapacity {
    /// What would fit beside `held` in place of `requested`, which does not fit.
    pub(super) fn alternative(&self, held: &[Contract], requested: &Contract) -> Instead {
        if held.len() > MAX_SEARCHED {
            return Instead::NotSearched;
        }
        let promises: Result<Vec<Promise>, TimingFault> = held
            .iter()
            .filter_map(|contract| self.promise(self.max_direct, contract))
            .collect();
        let Ok(promises) = promises else {
            return Instead::Nothing;
        };
        let search = Search {
            capacity: self,
            promises,
            requested,
        };
        let found = match (requested.slice(), requested.cell(), requested.channel()) {
            (Some(slice), _, _) => search.slice(slice),
            (_, Some(cell), _) => search.cell(cell),
            (_, _, Some(channel)) => search.channel(channel),
            _ => search.min(),
        };
        match found {
            None => Instead::Nothing,
            Some((contract, text)) => Instead::Contract {
                contract: Box::new(contract),
                text,
            },
        }
    }
}

impl LinkCapacity {
    /// True if a contract fits beside promises, with `further` flows, and this is decided with
    /// little work.
    pub(super) fn fits_beside(
        &self,
        promises: &[Promise],
        further: Further,
        contract: &Contract,
    ) -> bool {
        let Some(Ok(promise)) = self.promise(self.max_direct, contract) else {
            return false;
        };
        let flows = promises.len() + 1 + further.flows;
        let transmitter = self.transmitter(self.max_direct, flows, WorkAhead::SHORTEST);
        let all: Vec<Promise> = promises.iter().copied().chain([promise]).collect();
        transmitter.carries_from(&all, further.shortest)
    }

    /// As [`LinkCapacity::fits_beside`], beside contracts.
    #[cfg(test)]
    pub(super) fn fits_at_once(&self, held: &[Contract], contract: &Contract) -> bool {
        let promises = held.iter().map(|held| self.promise(self.max_direct, held));
        let promises: Result<Vec<Promise>, TimingFault> = promises.flatten().collect();
        promises.is_ok_and(|promises| self.fits_beside(&promises, Further::default(), contract))
    }
}

/// A search for alternatives. The functions return the contract, and the changed values in words.
struct Search<'a> {
    capacity: &'a LinkCapacity,
    /// What is promised already.
    promises: Vec<Promise>,
    requested: &'a Contract,
}

type Found = Option<(Contract, String)>;

impl Search<'_> {
    fn fits(&self, contract: &Contract) -> bool {
        self.capacity
            .fits_beside(&self.promises, Further::default(), contract)
    }

    /// The requested contract with this change, if it does not contradict itself.
    fn with(&self, change: Change) -> Option<Contract> {
        self.requested.apply(&change).ok()
    }

    fn with_cell(&self, cell: Option<Cell>) -> Option<Contract> {
        self.with(Change {
            cell: Some(Setting::Set(cell?)),
            ..Change::default()
        })
    }

    fn with_channel(&self, channel: Option<Channel>) -> Option<Contract> {
        self.with(Change {
            channel: Some(Setting::Set(channel?)),
            ..Change::default()
        })
    }

    /// The largest value from `least` to `most` whose contract fits; smaller ones fit too.
    fn most(
        &self,
        least: u64,
        most: u64,
        make: impl Fn(u64) -> Option<Contract>,
    ) -> Option<(u64, Contract)> {
        let fitting = |value| make(value).filter(|contract| self.fits(contract));
        let (mut low, mut high) = (least, most);
        if low > high {
            return None;
        }
        let mut best = (low, fitting(low)?);
        while low < high {
            let middle = high - (high - low) / 2;
            match fitting(middle) {
                Some(contract) => (low, best) = (middle, (middle, contract)),
                None => high = middle - 1,
            }
        }
        Some(best)
    }

    /// The smallest value from `least` to `most` whose contract fits; larger ones fit too.
    fn least(
        &self,
        least: u64,
        most: u64,
        make: impl Fn(u64) -> Option<Contract>,
    ) -> Option<(u64, Contract)> {
        let top = most.checked_sub(least)?;
        let (below, contract) = self.most(0, top, |below| make(most - below))?;
        Some((most - below, contract))
    }

    /// The largest rate up to `most`, in steps of [`rate_step`].
    fn most_rate(
        &self,
        most: Rate,
        make: impl Fn(Rate) -> Option<Contract>,
    ) -> Option<(Rate, Contract)> {
        let make = |bits| make(Rate::new(bits)?);
        let most = most.bits_per_second();
        let (exact, contract) = self.most(Rate::MIN.bits_per_second(), most, make)?;
        let rounded = exact - exact % rate_step(exact);
        let at = make(rounded).filter(|contract| self.fits(contract));
        let (bits, contract) = at.map_or((exact, contract), |contract| (rounded, contract));
        Some((Rate::new(bits)?, contract))
    }

    fn min(&self) -> Found {
        let min = self.requested.min(Direction::Up)?;
        let (rate, contract) = self.most_rate(min, |rate| {
            self.with(Change {
                min: Some(Setting::Set(rate)),
                ..Change::default()
            })
        })?;
        Some((contract, format!("at most {}", exact(rate))))
    }

    fn slice(&self, slice: Slice) -> Found {
        let (time, contract) = self.most(1, slice.slice().0, |time| {
            let slice = Slice::new(Nanos(time), slice.period(), slice.extra()).ok()?;
            self.with(Change {
                slice: Some(Setting::Set(slice)),
                ..Change::default()
            })
        })?;
        Some((contract, format!("a slice of at most {}", Nanos(time))))
    }

    fn cell(&self, cell: Cell) -> Found {
        let (pcr, sustained) = (cell.pcr(), cell.sustained());
        let with_cdvt = |cell: Cell, cdvt| {
            let cell = Cell::new(cell.pcr(), Nanos(cdvt), cell.sustained());
            self.with_cell(cell.ok())
        };
        let cdvt = || {
            let found = self.least(cell.cdvt().0, MAX_CDVT.0, |cdvt| with_cdvt(cell, cdvt));
            let (cdvt, contract) = found?;
            Some((contract, format!("a cdvt of at least {}", Nanos(cdvt))))
        };
        let with_mbs = |parts: Sustained, mbs| {
            let parts = Sustained {
                mbs: Bytes(mbs),
                ..parts
            };
            self.with_cell(Cell::new(pcr, cell.cdvt(), Some(parts)).ok())
        };
        let mbs = || {
            let parts = sustained?;
            let longest = self.capacity.longest().0;
            if parts.mbs.0 < longest {
                // No shorter burst has room for the longest packet.
                let contract = with_mbs(parts, longest).filter(|contract| self.fits(contract))?;
                let mbs = Bytes(longest);
                return Some((contract, format!("an mbs of at least {mbs}")));
            }
            let found = self.most(longest, parts.mbs.0, |mbs| with_mbs(parts, mbs));
            let (mbs, contract) = found?;
            Some((contract, format!("an mbs of at most {}", Bytes(mbs))))
        };
        // The rate that decides for how long the link is busy: PCR, or SCR below it.
        let at_rate = |rate: Rate, scr: bool, cdvt: Nanos| match sustained {
            Some(parts) if scr => Cell::new(pcr, cdvt, Some(Sustained { scr: rate, ..parts })).ok(),
            _ => {
                let lower = |parts: Sustained| Sustained {
                    scr: parts.scr.min(rate),
                    ..parts
                };
                Cell::new(rate, cdvt, sustained.map(lower)).ok()
            }
        };
        let rate = |scr: bool, cdvt: Nanos| {
            let (word, most) = match sustained {
                Some(parts) if scr => ("an scr", parts.scr),
                _ if scr => return None,
                _ => ("a pcr", pcr),
            };
            let (rate, contract) =
                self.most_rate(most, |rate| self.with_cell(at_rate(rate, scr, cdvt)))?;
            Some((contract, format!("{word} of at most {}", exact(rate))))
        };
        let both = |scr: bool| {
            let (contract, text) = rate(scr, MAX_CDVT)?;
            let slower = contract.cell()?;
            let found = self.least(cell.cdvt().0, MAX_CDVT.0, |cdvt| with_cdvt(slower, cdvt));
            let (cdvt, contract) = found?;
            let text = format!("{text} with a cdvt of at least {}", Nanos(cdvt));
            Some((contract, text))
        };
        cdvt()
            .or_else(mbs)
            .or_else(|| rate(true, cell.cdvt()))
            .or_else(|| rate(false, cell.cdvt()))
            .or_else(|| both(true))
            .or_else(|| both(false))
    }

    fn channel(&self, channel: Channel) -> Found {
        let remade = |mmax: u64, rmax: u64, deadline: u64| {
            let rmax = MessageRate::new(u32::try_from(rmax).ok()?)?;
            channel.resized(Bytes(mmax), rmax, Nanos(deadline)).ok()
        };
        let (mmax, rmax) = (channel.mmax().0, u64::from(channel.rmax().get()));
        let deadline = channel.deadline().0;
        let longer_burst = || {
            let burst = self.requested.burst()?;
            let found = self.least(burst.0, MAX_BURST.0, |burst| {
                self.with(Change {
                    burst: Some(Setting::Set(Nanos(burst))),
                    ..Change::default()
                })
            });
            let (burst, contract) = found?;
            Some((contract, format!("a burst of at least {}", Nanos(burst))))
        };
        let by_deadline = |mmax: u64, rmax: u64| {
            let found = self.least(deadline, MAX_DEADLINE.0, |deadline| {
                self.with_channel(remade(mmax, rmax, deadline))
            });
            let (deadline, contract) = found?;
            let text = format!("a deadline of at least {}", Nanos(deadline));
            Some((contract, text))
        };
        let by_rmax = |deadline: u64| {
            let found = self.most(1, rmax, |rmax| {
                self.with_channel(remade(mmax, rmax, deadline))
            });
            let (rmax, contract) = found?;
            Some((contract, format!("an rmax of at most {rmax}/s")))
        };
        let by_mmax = |deadline: u64| {
            let found = self.most(1, mmax, |mmax| {
                self.with_channel(remade(mmax, rmax, deadline))
            });
            let (mmax, contract) = found?;
            Some((contract, format!("an mmax of at most {}", Bytes(mmax))))
        };
        let both = |found: Found| {
            let (contract, text) = found?;
            let lower = contract.channel()?;
            let rmax = u64::from(lower.rmax().get());
            let (contract, also) = by_deadline(lower.mmax().0, rmax)?;
            Some((contract, format!("{text} with {also}")))
        };
        longer_burst()
            .or_else(|| by_deadline(mmax, rmax))
            .or_else(|| by_rmax(deadline))
            .or_else(|| by_mmax(deadline))
            .or_else(|| both(by_rmax(MAX_DEADLINE.0)))
            .or_else(|| both(by_mmax(MAX_DEADLINE.0)))
    }
}

/// A rate as text that names it exactly.
fn exact(rate: Rate) -> String {
    format!("{:#}", netnice_core::units::Amount::from(rate))
}

/// The steps in which an alternative names rates: 1 kbit/s from 1 Mbit/s on, 1 Mbit/s from 1 Gbit/s
/// on.
pub(super) fn rate_step(bits: u64) -> u64 {
    match bits {
        1_000_000_000.. => 1_000_000,
        1_000_000.. => 1_000,
        _ => 1,
    }
}

/// The longest CDVT that the scheduler keeps, rounded down.
const MAX_CDVT: Nanos = Nanos::from_secs(4);
/// The longest deadline of an alternative.
const MAX_DEADLINE: Nanos = Nanos::from_secs(3_600);
/// The longest burst that a contract can have.
const MAX_BURST: Nanos = Nanos::from_secs(10);
