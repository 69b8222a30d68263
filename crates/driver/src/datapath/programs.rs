//! The table of a datapath's programs, by numbers that are not reused soon.
//!
//! A program's number ([`ProgramNo`]) has two halves:
//! ```text
//!   31               16 15             0
//!  ┌───────────────────┬────────────────┐
//!  │ count of numbers  │ index in       │
//!  │ reserved before   │ the table      │
//!  └───────────────────┴────────────────┘
//! ```
//! A message about a program (a protocol violation, a call to detach) may still be under way when
//! the program is detached and another has its index. The two programs' numbers differ in the
//! upper half, unless 65,536 numbers or more were reserved in between. So the late message finds no
//! program. Inserting a program fails, and returns the program, if its number is not reserved or is
//! in use.

use netnice_core::units::Instant;
use netnice_ring::driver::ProgramMemory;

use super::wakeups::WakeupCredit;
use crate::doorbells::ProgramDoorbell;
use crate::receive_budget::shared::ActiveSet;

/// An attached program.
pub(super) struct Program {
    pub(super) memory: ProgramMemory,
    pub(super) doorbell: ProgramDoorbell,
    /// The number of the flow in each slot of the memory file.
    pub(super) slots: Vec<Option<u32>>,
    /// Those of its flows that received frames recently.
    pub(super) receivers: ActiveSet,
    /// The period in which the program's rings last moved (`SharedBudget::count_active`).
    pub(super) active: u64,
    /// The program's allowance of spurious wake-ups.
    pub(super) wakeup_credit: WakeupCredit,
    /// Whether the program has written its doorbell, which stays readable from then on.
    pub(super) doorbell_written: bool,
    /// Whether the next doorbell event of the program may report an old write.
    pub(super) may_repeat_event: bool,
    /// Whether the program is in `to_notify` of the datapath.
    pub(super) is_to_notify: bool,
    /// The time at which the refused packets of the program would all have left, one after the
    /// other.
    pub(super) refused_until: Instant,
    /// Whether the program was disconnected because it violated the protocol.
    pub(super) disconnected: bool,
}

/// A program's number, in the format that the module describes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProgramNo(pub u32);

impl ProgramNo {
    fn index(self) -> usize {
        (self.0 & INDEX_MASK) as usize
    }
}

/// The table of programs.
#[derive(Default)]
pub(super) struct Programs {
    entries: Vec<Option<(ProgramNo, Option<Program>)>>,
    /// Number of reservations so far, modulo 2^32.
    reserved: u32,
}

impl Programs {
    /// Reserves a number for a later program.
    ///
    /// # Panics
    /// With more than 65,536 programs at once. The process has too few descriptors for so many.
    pub(crate) fn reserve(&mut self) -> ProgramNo {
        let vacant = self.entries.iter().position(Option::is_none);
        let index = vacant.unwrap_or_else(|| {
            self.entries.push(None);
            self.entries.len() - 1
        });
        assert!(index <= INDEX_MASK as usize, "{index} programs");
        let number = ProgramNo((self.reserved << INDEX_MASK.count_ones()) | index as u32);
        self.reserved = self.reserved.wrapping_add(1);
        self.entries[index] = Some((number, None));
        number
    }

    /// Adds the program for a reserved number. Returns the program if the number is not reserved,
    /// or is in use.
    pub(crate) fn insert(
        &mut self,
        number: ProgramNo,
        program: Program,
    ) -> Result<(), Box<Program>> {
        match self.entries.get_mut(number.index()) {
            Some(Some((own, entry @ None))) if *own == number => {
                *entry = Some(program);
                Ok(())
            }
            _ => Err(Box::new(program)),
        }
    }

    /// Removes a program, or the reservation of its number. Returns the program; `None` if the
    /// number had no program.
    pub(crate) fn remove(&mut self, number: ProgramNo) -> Option<Program> {
        let entry = self.entries.get_mut(number.index())?;
        let (_, program) = entry.take_if(|(own, _)| *own == number)?;
        program
    }

    /// The program with this number; `None` if there is none.
    #[inline]
    pub(crate) fn get(&self, number: ProgramNo) -> Option<&Program> {
        let (own, program) = self.entries.get(number.index())?.as_ref()?;
        program.as_ref().filter(|_| *own == number)
    }

    /// The program with this number, to change it; `None` if there is none.
    #[inline]
    pub(crate) fn get_mut(&mut self, number: ProgramNo) -> Option<&mut Program> {
        let (own, program) = self.entries.get_mut(number.index())?.as_mut()?;
        program.as_mut().filter(|_| *own == number)
    }

    /// The numbers of the attached programs.
    pub(crate) fn numbers(&self) -> impl Iterator<Item = ProgramNo> {
        let entries = self.entries.iter().flatten();
        entries.filter_map(|(number, program)| program.as_ref().map(|_| *number))
    }

    /// The attached programs.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Program> {
        let entries = self.entries.iter().flatten();
        entries.filter_map(|(_, program)| program.as_ref())
    }

    /// The attached programs with their numbers.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (ProgramNo, &mut Program)> {
        let entries = self.entries.iter_mut().flatten();
        entries.filter_map(|(number, program)| Some((*number, program.as_mut()?)))
    }
}

/// The bits of a number that are the index in the table.
const INDEX_MASK: u32 = 0xffff;
