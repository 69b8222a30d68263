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
    places: Vec<Option<(ProgramNo, Option<Program>)>>,
    /// How many came.
    came: u32,
}

impl Programs {
    /// A number for one that comes later.
    ///
    /// # Panics
    /// With more than 65,536 at once; each has descriptors, and there are not enough of these.
    pub fn reserve(&mut self) -> ProgramNo {
        let vacant = self.places.iter().position(Option::is_none);
        let place = vacant.unwrap_or_else(|| {
            self.places.push(None);
            self.places.len() - 1
        });
        assert!(place <= PLACE as usize, "{place} programs");
        let number = ProgramNo((self.came << PLACE.count_ones()) | place as u32);
        self.came = self.came.wrapping_add(1);
        self.places[place] = Some((number, None));
        number
    }

    /// The one that a number was reserved for. False if the number is nobody's, or another one has come already.
    pub fn insert(&mut self, number: ProgramNo, program: Program) -> bool {
        match self.places.get_mut(number.place()) {
            Some(Some((own, place @ None))) if *own == number => {
                *place = Some(program);
                true
            }
            _ => false,
        }
    }

    /// One that is gone from now on, and its number with it.
    pub fn remove(&mut self, number: ProgramNo) -> Option<Program> {
        let place = self.places.get_mut(number.place())?;
        let (_, program) = place.take_if(|(own, _)| *own == number)?;
        program
    }

    #[inline]
    pub fn get(&self, number: ProgramNo) -> Option<&Program> {
        let (own, program) = self.places.get(number.place())?.as_ref()?;
        program.as_ref().filter(|_| *own == number)
    }

    #[inline]
    pub fn get_mut(&mut self, number: ProgramNo) -> Option<&mut Program> {
        let (own, program) = self.places.get_mut(number.place())?.as_mut()?;
        program.as_mut().filter(|_| *own == number)
    }

    pub fn numbers(&self) -> impl Iterator<Item = ProgramNo> {
        let places = self.places.iter().flatten();
        places.filter_map(|(number, program)| program.as_ref().map(|_| *number))
    }

    pub fn iter(&self) -> impl Iterator<Item = &Program> {
        let places = self.places.iter().flatten();
        places.filter_map(|(_, program)| program.as_ref())
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = (ProgramNo, &mut Program)> {
        let places = self.places.iter_mut().flatten();
        places.filter_map(|(number, program)| Some((*number, program.as_mut()?)))
    }
}

/// The bits of a number that say where.
const PLACE: u32 = 0xffff;
