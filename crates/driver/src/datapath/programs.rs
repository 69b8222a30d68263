//! The programs of a datapath, by numbers that are not reused soon.
//!
//! ```text
//!   31         16 15          0
//!  ┌─────────────┬─────────────┐
//!  │ programs    │ place       │
//!  │ before      │             │
//!  └─────────────┴─────────────┘
//! ```
//! A message about a program (a protocol violation, a call to detach) may still be under way when
//! the program is gone and another has its place. Places are reused, but the late message then
//! finds no program, until 65,536 others have come.

use netnice_ring::driver::ProgramMemory;

use super::wakeups::WakeupCredit;
use crate::doorbells::ProgramDoorbell;
use crate::receive_budget::shared::ActiveSet;

/// A program; `slots` has the flow of each of its slots.
pub(super) struct Program {
    pub(super) memory: ProgramMemory,
    pub(super) doorbell: ProgramDoorbell,
    pub(super) slots: Vec<Option<u32>>,
    /// Its flows that received something recently.
    pub(super) receivers: ActiveSet,
    /// Its needless wakeups.
    pub(super) wakeup_credit: WakeupCredit,
    /// It has written its doorbell, which stays readable from then on.
    pub(super) doorbell_written: bool,
    /// Its next doorbell event may report an old write.
    pub(super) may_repeat_event: bool,
    /// It is in `to_notify`.
    pub(super) is_to_notify: bool,
    /// It violated the protocol.
    pub(super) disconnected: bool,
}

/// A program's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProgramNo(pub u32);

impl ProgramNo {
    fn place(self) -> usize {
        (self.0 & PLACE) as usize
    }
}

/// The programs; see the module.
#[derive(Default)]
pub(super) struct Programs {
    places: Vec<Option<(ProgramNo, Option<Program>)>>,
    /// How many numbers were reserved.
    reserved: u32,
}

impl Programs {
    /// Reserves a number for a later program.
    ///
    /// # Panics
    /// With more than 65,536 programs at once. The process has too few descriptors for so many.
    pub(crate) fn reserve(&mut self) -> ProgramNo {
        let vacant = self.places.iter().position(Option::is_none);
        let place = vacant.unwrap_or_else(|| {
            self.places.push(None);
            self.places.len() - 1
        });
        assert!(place <= PLACE as usize, "{place} programs");
        let number = ProgramNo((self.reserved << PLACE.count_ones()) | place as u32);
        self.reserved = self.reserved.wrapping_add(1);
        self.places[place] = Some((number, None));
        number
    }

    /// Adds the program for a reserved number. False if the number is not reserved, or is in use.
    pub(crate) fn insert(&mut self, number: ProgramNo, program: Program) -> bool {
        match self.places.get_mut(number.place()) {
            Some(Some((own, place @ None))) if *own == number => {
                *place = Some(program);
                true
            }
            _ => false,
        }
    }

    /// Removes a program and its number.
    pub(crate) fn remove(&mut self, number: ProgramNo) -> Option<Program> {
        let place = self.places.get_mut(number.place())?;
        let (_, program) = place.take_if(|(own, _)| *own == number)?;
        program
    }

    #[inline]
    pub(crate) fn get(&self, number: ProgramNo) -> Option<&Program> {
        let (own, program) = self.places.get(number.place())?.as_ref()?;
        program.as_ref().filter(|_| *own == number)
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, number: ProgramNo) -> Option<&mut Program> {
        let (own, program) = self.places.get_mut(number.place())?.as_mut()?;
        program.as_mut().filter(|_| *own == number)
    }

    pub(crate) fn numbers(&self) -> impl Iterator<Item = ProgramNo> {
        let places = self.places.iter().flatten();
        places.filter_map(|(number, program)| program.as_ref().map(|_| *number))
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Program> {
        let places = self.places.iter().flatten();
        places.filter_map(|(_, program)| program.as_ref())
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (ProgramNo, &mut Program)> {
        let places = self.places.iter_mut().flatten();
        places.filter_map(|(number, program)| Some((*number, program.as_mut()?)))
    }
}

/// The bits of a number that are the place.
const PLACE: u32 = 0xffff;
