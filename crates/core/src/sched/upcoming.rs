//! The flows whose heads will probably leave next. The lookahead names them some time before, and
//! the owner of the queues prefetches what it has of them. Each is a hint: a flow can be missing,
//! or leave later. If the owner does not read them, the oldest are forgotten. No function fails.

/// The flows that the lookahead named and the owner has not read, oldest first.
#[derive(Debug)]
pub(super) struct Upcoming {
    ids: [u32; NAMED],
    /// Numbers of flows that were named and read; they wrap around.
    named: u32,
    read: u32,
}

impl Upcoming {
    /// No flows.
    pub(super) fn new() -> Upcoming {
        Upcoming {
            ids: [0; NAMED],
            named: 0,
            read: 0,
        }
    }

    /// Adds a flow.
    #[inline(always)]
    pub(super) fn name(&mut self, id: u32) {
        self.ids[self.named as usize % NAMED] = id;
        self.named = self.named.wrapping_add(1);
    }

    /// The oldest flow that was not read.
    #[inline(always)]
    pub(super) fn poll(&mut self) -> Option<u32> {
        let waiting = self.named.wrapping_sub(self.read);
        if waiting == 0 {
            return None;
        }
        if waiting > NAMED as u32 {
            self.read = self.named.wrapping_sub(NAMED as u32);
        }
        let id = self.ids[self.read as usize % NAMED];
        self.read = self.read.wrapping_add(1);
        Some(id)
    }
}

/// A power of two, and about as many flows as one departure can name.
const NAMED: usize = 64;

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    #[test]
    fn the_oldest_flows_are_forgotten() {
        let mut upcoming = Upcoming::new();
        assert_eq!(upcoming.poll(), None);
        (0..100).for_each(|id| upcoming.name(id));
        let read: Vec<u32> = std::iter::from_fn(|| upcoming.poll()).collect();
        assert_eq!(read, (36..100).collect::<Vec<u32>>());
        upcoming.name(7);
        assert_eq!((upcoming.poll(), upcoming.poll()), (Some(7), None));
    }
}
