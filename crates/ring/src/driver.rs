//! The driver's side of the rings. A [`ProgramMemory`] creates and seals a program's memory file
//! and opens flows in it; these calls fail with [`SetupError`] if a size is invalid, if the file
//! has no place, if the program added other seals, if memory is short, or if a system call fails. A
//! [`DriverRings`] takes validated records from the program and gives them back. Taking fails with
//! a [`ProtocolViolation`] when the program breaks a rule of `docs/reference/ring.md`; the caller
//! must then disconnect the program.
//!
//! ```text
//!              ┌─ take ──▶ Record ── read ──▶ the driver's frame ──▶ give_back ─┐
//!  submit ring ┘                                                                └─▶ reclaim ring
//!              ┌─ take_empty ──▶ Record ◀── write ── a received frame, deliver ─┐
//!  prime ring ─┘                                                                └─▶ deliver ring
//! ```
//! The driver takes a record only if the return ring has room for it. So giving a record back never
//! fails and never waits, and a program that does not collect returned records stops only itself.
//! Between taking and giving back, the driver owns the record's chunks, according to a ledger in
//! private memory. Each call in the picture does work for one record of at most
//! [`MAX_PAIRS`](crate::record::MAX_PAIRS) (8) pairs, whatever the rings contain.

mod flow;
mod gaps;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::event::{EventfdFlags, epoll};
use rustix::io::ReadWriteFlags;

use crate::connections::{self, ListedConnection};
use crate::doorbell::{Notices, Notifications, Notifier, SleepFlag};
use crate::file_header::Header;
use crate::file_pages::FilePages;
use crate::layout::{Budget, FlowLocation, PAGE, SetupError, Shape};
use crate::ledger::{Balance, Pool};
use crate::program::Attachment;
use crate::region::{MemoryFile, Region, system};
use crate::violation::ProtocolViolation;
use crate::words::{Ordering, Word};
use gaps::Gaps;

pub use crate::layout::Loss;
pub use flow::{DriverRings, Found, SharedBytes, Taken, fence_before_notices};

/// The driver's side of one program: its memory file, its doorbells and its notices.
pub struct ProgramMemory {
    file: MemoryFile,
    region: Arc<Region>,
    gaps: Gaps,
    /// The slots of open and reserved flows are taken from this pool.
    slots: Pool,
    flows: u32,
    notices: Notices,
    to_program: Notices,
    sleep_flag: SleepFlag,
    /// Notifications that the program may still send: one for each time that the driver set the
    /// flag, until the driver clears the flag or receives the notification.
    granted: u64,
    notifier: Notifier,
    doorbell: OwnedFd,
    /// The program waits on this epoll descriptor, which polls the notifier's eventfd.
    poll_fd: OwnedFd,
    ended: Word,
    pages: Arc<FilePages>,
}

/// The three descriptors that a program needs, in the order in which they are passed.
#[derive(Clone, Copy, Debug)]
pub struct Handles<'a> {
    /// The memory file.
    pub memory: BorrowedFd<'a>,
    /// An eventfd. The program writes to it to wake the driver.
    pub to_driver: BorrowedFd<'a>,
    /// An epoll descriptor. It is readable after the driver sent a notification; a wait on it
    /// consumes the notification.
    pub to_program: BorrowedFd<'a>,
}

impl Handles<'_> {
    /// Creates the program's side in this process, with duplicates of the descriptors.
    ///
    /// # Errors
    /// If a descriptor cannot be duplicated, and as [`Attachment::new`].
    pub fn attach(&self) -> Result<Attachment, SetupError> {
        let copy = |fd: BorrowedFd| {
            rustix::io::fcntl_dupfd_cloexec(fd, 0).map_err(system("cannot duplicate a descriptor"))
        };
        Attachment::new(
            copy(self.memory)?,
            copy(self.to_driver)?,
            copy(self.to_program)?,
        )
    }
}

impl ProgramMemory {
    /// Creates a program's memory file, whose size is fixed, and its doorbells.
    ///
    /// The program maps the file after this call. The driver must [`ProgramMemory::seal`] the file
    /// before it calls any other function than [`ProgramMemory::handles`] and
    /// [`ProgramMemory::bytes`]. (A driver that trusts its program can omit the seal.)
    ///
    /// # Errors
    /// If a number of the budget is out of range, or a system call fails.
    pub fn create(budget: Budget) -> Result<ProgramMemory, SetupError> {
        let file = MemoryFile::create(budget.file_bytes()?)?;
        let region = Arc::new(file.map()?);
        let eventfd = || {
            let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
            rustix::event::eventfd(0, flags).map_err(system("cannot create a doorbell"))
        };
        let (doorbell, program_eventfd) = (eventfd()?, eventfd()?);
        let poll_fd = epoll::create(epoll::CreateFlags::CLOEXEC)
            .map_err(system("cannot create the program's end of a doorbell"))?;
        let edge = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(
            &poll_fd,
            &program_eventfd,
            epoll::EventData::new_u64(0),
            edge,
        )
        .map_err(system("cannot poll a doorbell"))?;
        let header = Header::new(&region);
        header.write(&budget, file.bytes());
        let words = budget.flows.div_ceil(64) as usize;
        Ok(ProgramMemory {
            gaps: Gaps::new(PAGE, file.bytes() - PAGE),
            slots: Pool::new(budget.flows, 1),
            flows: budget.flows,
            notices: header.to_driver(words),
            to_program: header.to_program(words),
            sleep_flag: header.driver_sleeps(),
            granted: 0,
            notifier: Notifier::new(header.program_sleeps(), program_eventfd),
            doorbell,
            poll_fd,
            ended: header.ended(),
            pages: Arc::new(FilePages::new(&region)),
            file,
            region,
        })
    }

    /// Tells the program whether partial checksums that arrive on the interface are right. Senders
    /// on the same machine write them, because virtual interfaces compute no sums. The program
    /// reads it when it attaches, so call this before the descriptors are passed.
    pub fn set_partial_checksums(&self, are_right: bool) {
        Header::new(&self.region).set_partial_checksums(are_right);
    }

    /// The descriptors to pass to the program.
    pub fn handles(&self) -> Handles<'_> {
        Handles {
            memory: self.file.fd(),
            to_driver: self.doorbell.as_fd(),
            to_program: self.poll_fd.as_fd(),
        }
    }

    /// Becomes readable when the program sends a notification. Poll it level-triggered and clear it
    /// by [`ProgramMemory::drain_doorbell`], or poll it edge-triggered and call
    /// [`ProgramMemory::on_doorbell_edge`] after each event.
    pub fn doorbell(&self) -> BorrowedFd<'_> {
        self.doorbell.as_fd()
    }

    /// Seals the file after the program has mapped it, and allocates its first page. No process can
    /// remove pages from the file after this call. The call can block for long and must not run on
    /// the packet thread.
    ///
    /// # Errors
    /// If the program sealed the file in another way, there is not enough memory, or a system call
    /// fails.
    pub fn seal(&mut self) -> Result<(), SetupError> {
        self.file.seal()?;
        self.pages.prepare(0, PAGE)
    }

    /// Opens a flow.
    ///
    /// # Errors
    /// If the shape is invalid, no slot is free, no gap is large enough, or there is not enough
    /// memory.
    pub fn open(&mut self, shape: Shape) -> Result<DriverRings, SetupError> {
        match self.reserve(shape)?.prepare() {
            Ok(prepared) => Ok(self.open_at(prepared)),
            Err(Unprepared { location, why }) => {
                self.vacate(location);
                Err(why)
            }
        }
    }

    /// The first part of [`ProgramMemory::open`]: reserves the location of a flow without touching
    /// shared memory. The caller continues with [`Reserved::prepare`], which any thread can call,
    /// and [`ProgramMemory::open_at`]; or with [`ProgramMemory::vacate`].
    ///
    /// # Errors
    /// If the shape is invalid, no slot is free, or no gap is large enough.
    pub fn reserve(&mut self, shape: Shape) -> Result<Reserved, SetupError> {
        let plan = shape.plan()?;
        let Some(slot) = self.slots.take() else {
            return Err(SetupError::NoSlot(self.flows));
        };
        let Some(offset) = self.gaps.take(plan.bytes()) else {
            self.slots.give(slot).expect("taken above");
            return Err(self.gaps.refusal(plan.bytes()));
        };
        let location = FlowLocation {
            // There are at most MAX_FLOWS slots.
            slot: slot as u32,
            offset,
            shape,
        };
        Ok(Reserved {
            location,
            bytes: plan.bytes(),
            pages: self.pages.clone(),
        })
    }

    /// The last part of [`ProgramMemory::open`]: writes the header of the flow's region, and
    /// returns the driver's side of the flow.
    ///
    /// # Panics
    /// If the location was reserved in another program's memory.
    pub fn open_at(&mut self, prepared: Prepared) -> DriverRings {
        assert!(
            Arc::ptr_eq(&self.region, &prepared.region),
            "a location of this memory file"
        );
        DriverRings::open(&self.region, prepared.location, &self.to_program, 0)
    }

    /// Releases a reserved location that is not used. Another flow can get it.
    ///
    /// # Panics
    /// If the location's slot is not in use or its bytes are free. A location of another memory
    /// file is not always detected.
    pub fn vacate(&mut self, location: FlowLocation) {
        let bytes = location.shape.plan().map_or(0, |plan| plan.bytes());
        self.slots
            .give(location.slot.into())
            .expect("a reserved location has a slot");
        self.gaps.give(location.offset, bytes);
    }

    /// Closes a flow and fills its region with zeros. Another flow can get its location. The
    /// returned balance counts the chunks that the driver still owned. Records of the flow are
    /// invalid after this call.
    ///
    /// # Panics
    /// If the flow was opened in another program's memory.
    pub fn close(&mut self, flow: DriverRings) -> Balance {
        let retired = self.retire(flow);
        let balance = retired.balance();
        self.reuse(retired.clear());
        balance
    }

    /// The first part of [`ProgramMemory::close`]; it takes constant time. The flow is closed, and
    /// another flow can get its slot. The bytes of its region stay until [`Retired::clear`], which
    /// any thread can call. The region stays reserved until [`ProgramMemory::reuse`].
    ///
    /// # Panics
    /// If the flow was opened in another program's memory.
    pub fn retire(&mut self, flow: DriverRings) -> Retired {
        assert!(flow.is_in(&self.region), "a flow of this memory file");
        let location = flow.location();
        let balance = flow.balance();
        flow.end();
        drop(flow);
        self.slots
            .give(location.slot.into())
            .expect("an open flow has a slot");
        Retired {
            location,
            bytes: location.shape.plan().map_or(0, |plan| plan.bytes()),
            balance,
            region: self.region.clone(),
        }
    }

    /// The last part of [`ProgramMemory::close`]: another flow can get the region.
    pub fn reuse(&mut self, cleared: Cleared) {
        // A region of another program's file is ignored.
        if Arc::ptr_eq(&self.region, &cleared.region) {
            self.gaps.give(cleared.offset, cleared.bytes);
        }
    }

    /// Clears the notices and calls `each` with the slot of every open or reserved flow whose
    /// notice the program set since the last call. A notice can be wrong: it does not prove that an
    /// index moved.
    pub fn take_notices(&self, mut each: impl FnMut(u32)) {
        self.notices.take(|slot| {
            if self.slots.is_in_use(slot.into()) {
                each(slot);
            }
        });
    }

    /// The slots of the open or reserved flows whose notices are set. The notices stay set.
    pub fn noticed(&self) -> impl Iterator<Item = u32> {
        let is_open = |slot: &u32| self.slots.is_in_use((*slot).into());
        self.notices.iter().filter(is_open)
    }

    /// Notifies the program if it sleeps. Call it once per iteration of the event loop, after
    /// [`DriverRings::publish`]. True if the program slept.
    pub fn notify(&self) -> bool {
        self.notifier.notify()
    }

    /// A handle for notifying the program from another thread. A notification is a system call,
    /// which takes longer the more waiters the doorbell has.
    pub fn notifier(&self) -> Notifier {
        self.notifier.clone()
    }

    /// Sets the sleeping flag; call this before sleeping. True: the driver may sleep, and the
    /// program will notify it. False: a notice is already set, and the flag is cleared again.
    pub fn prepare_sleep(&mut self) -> bool {
        self.granted += u64::from(self.sleep_flag.set());
        let quiet = !self.notices.any();
        if !quiet {
            self.end_sleep();
        }
        quiet
    }

    /// Clears the sleeping flag. Call this after sleeping, whatever the reason for waking.
    pub fn end_sleep(&mut self) {
        // If the flag is still set, the program did not take it and has no permission to notify.
        self.granted = self.granted.saturating_sub(self.sleep_flag.clear().into());
    }

    /// Resets the doorbell and clears the sleeping flag. Returns the number of notifications since
    /// the last call.
    pub fn drain_doorbell(&mut self) -> Notifications {
        self.end_sleep();
        let mut bytes = [0; 8];
        let read = rustix::io::preadv2(
            &self.doorbell,
            &mut [std::io::IoSliceMut::new(&mut bytes)],
            u64::MAX,
            ReadWriteFlags::NOWAIT,
        );
        let count = match read {
            Ok(8) => u64::from_ne_bytes(bytes),
            _ => 0,
        };
        let without_flag = count.saturating_sub(self.granted);
        self.granted = self.granted.saturating_sub(count);
        Notifications {
            count,
            without_flag,
        }
    }

    /// Clears the sleeping flag after an edge-triggered event of the doorbell, and does not reset
    /// the doorbell. True if the program sent the notification without taking the flag.
    pub fn on_doorbell_edge(&mut self) -> bool {
        self.end_sleep();
        let without_flag = self.granted == 0;
        self.granted = self.granted.saturating_sub(1);
        without_flag
    }

    /// Disconnects the program: writes the number of the broken rule to shared memory, sets the
    /// notices of its flows, and wakes the program. The caller must then drop the `ProgramMemory`
    /// and its flows.
    pub fn disconnect(&self, violation: &ProtocolViolation) {
        self.mark_disconnected(violation);
        self.notifier.signal();
    }

    /// As [`ProgramMemory::disconnect`], but without waking the program. The caller must call
    /// [`Notifier::signal`] on [`ProgramMemory::notifier`] whether the flag is set or not, because
    /// the program can corrupt the flag.
    pub fn mark_disconnected(&self, violation: &ProtocolViolation) {
        self.ended.store(violation.rule_number(), Ordering::Release);
        for slot in 0..self.flows {
            if self.slots.is_in_use(slot.into()) {
                self.to_program.raise(slot);
            }
        }
        self.notifier.take_flag();
    }

    /// Bytes of the memory file.
    pub fn bytes(&self) -> u64 {
        self.file.bytes()
    }
}

/// A location that is reserved for a flow. Its pages may not be allocated yet.
pub struct Reserved {
    location: FlowLocation,
    bytes: u64,
    pages: Arc<FilePages>,
}

/// A reserved location whose pages are allocated.
pub struct Prepared {
    location: FlowLocation,
    region: Arc<Region>,
}

/// A reserved location whose pages could not be allocated. The caller must
/// [`ProgramMemory::vacate`] it.
pub struct Unprepared {
    /// The location.
    pub location: FlowLocation,
    /// The reason.
    pub why: SetupError,
}

impl Prepared {
    /// The location of the flow.
    pub fn location(&self) -> FlowLocation {
        self.location
    }
}

impl Reserved {
    /// Allocates all pages of the region, so that the packet thread never waits for one. The call
    /// takes 1 to 2 ms for each 2 MiB of new pages.
    ///
    /// # Errors
    /// If there is not enough memory, or the kernel's limits on pipes are too low for references to
    /// all huge pages.
    pub fn prepare(self) -> Result<Prepared, Unprepared> {
        let Reserved {
            location,
            bytes,
            pages,
        } = self;
        let region = pages.region().clone();
        match pages.prepare(location.offset, bytes) {
            Ok(()) => Ok(Prepared { location, region }),
            Err(why) => Err(Unprepared { location, why }),
        }
    }
}

/// The region of a closed flow, with its old bytes. [`Retired::clear`] fills it with zeros.
pub struct Retired {
    location: FlowLocation,
    bytes: u64,
    balance: Balance,
    region: Arc<Region>,
}

/// The region of a closed flow, filled with zeros.
pub struct Cleared {
    offset: u64,
    bytes: u64,
    region: Arc<Region>,
}

impl Retired {
    /// The chunks of the flow by owner when the flow was closed: `in_use` are those of the records
    /// that the driver still held.
    pub fn balance(&self) -> Balance {
        self.balance
    }

    /// The connections of TCP that the program has listed as open, in no order, at most
    /// [`connections::MAX_ENTRIES`]. The program wrote them, so they can be anything. The call
    /// reads all of the list, and must not run on the packet thread.
    pub fn connections(&self) -> Vec<ListedConnection> {
        match self.location.shape.plan() {
            Ok(plan) => {
                let area = self.location.offset + plan.area();
                connections::read(&self.region, &self.location, area)
            }
            Err(_) => Vec::new(),
        }
    }

    /// Fills the region with zeros. The pages stay allocated, because the seals forbid removing
    /// them from the file (see [`ProgramMemory::seal`]).
    pub fn clear(self) -> Cleared {
        self.region.clear(self.location.offset, self.bytes);
        Cleared {
            offset: self.location.offset,
            bytes: self.bytes,
            region: self.region,
        }
    }
}

#[cfg(test)]
mod tests;
