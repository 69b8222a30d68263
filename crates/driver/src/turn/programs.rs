//! The programs of a turn, by numbers of which none soon comes twice.
//!
//! ```text
//!   31         16 15          0
//!  ┌─────────────┬─────────────┐
//!  │ how many    │ its place   │
//!  │ came before │             │
//!  └─────────────┴─────────────┘
//! ```
//! What is said of a program may be on its way while the program goes and another one comes: that it broke a rule, or that it is to be
//! detached. Places are used again; but such a word means nobody then, until 65,536 others came.

use super::Program;

/// A program's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProgramNo(pub u32);

impl ProgramNo {
    fn place(self) -> usize {
        (self.0 & PLACE) as usize
    }
}

/// See the module.
#[derive(Default)]
pub(super) struct Programs {
    places: Vec<Option<(ProgramNo, Program)>>,
    /// How many came.
    came: u32,
}

impl Programs {
    /// Another one.
    ///
    /// # Panics
    /// With more than 65,536 at once; each has descriptors, and there are not enough of these.
    pub fn insert(&mut self, program: Program) -> ProgramNo {
        let vacant = self.places.iter().position(Option::is_none);
        let place = vacant.unwrap_or_else(|| {
            self.places.push(None);
            self.places.len() - 1
        });
        assert!(place <= PLACE as usize, "{place} programs");
        let number = ProgramNo((self.came << PLACE.count_ones()) | place as u32);
        self.came = self.came.wrapping_add(1);
        self.places[place] = Some((number, program));
        number
    }

    /// One that is gone from now on.
    pub fn remove(&mut self, number: ProgramNo) -> Option<Program> {
        self.get(number)?;
        let (_, program) = self.places[number.place()].take()?;
        Some(program)
    }

    #[inline]
    pub fn get(&self, number: ProgramNo) -> Option<&Program> {
        let (own, program) = self.places.get(number.place())?.as_ref()?;
        (*own == number).then_some(program)
    }

    #[inline]
    pub fn get_mut(&mut self, number: ProgramNo) -> Option<&mut Program> {
        let (own, program) = self.places.get_mut(number.place())?.as_mut()?;
        (*own == number).then_some(program)
    }

    pub fn numbers(&self) -> impl Iterator<Item = ProgramNo> {
        self.places.iter().flatten().map(|(number, _)| *number)
    }

    pub fn iter(&self) -> impl Iterator<Item = &Program> {
        self.places.iter().flatten().map(|(_, program)| program)
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = (ProgramNo, &mut Program)> {
        let places = self.places.iter_mut().flatten();
        places.map(|(number, program)| (*number, program))
    }
}

/// The bits of a number that say where.
const PLACE: u32 = 0xffff;
