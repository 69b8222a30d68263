//! The table of handles: the numbers by which C refers to programs and flows.
//!
//! A handle contains the index of a table entry and the number of times that the entry was used. So
//! a closed handle differs from its successor. A call locks its flow. If the lock is taken, the
//! call fails with EBUSY and does not wait, because another call may wait for packets for any time.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, TryLockError};

use libc::c_int;
use netnice_stack::udp::Socket;
use netnice_stack::{Datagram, Packet, Program};

use crate::fault::Fault;

/// The program of a handle.
pub(crate) struct ProgramHandle {
    pub(crate) program: Program,
    pub(crate) open: Mutex<Open>,
}

/// The flows of a program.
#[derive(Default)]
pub(crate) struct Open {
    /// By slot: the handle, and the daemon's number of the flow.
    pub(crate) flows: HashMap<u32, (c_int, Option<u32>)>,
    /// The flows that have something new.
    pub(crate) news: VecDeque<c_int>,
}

/// The flow of a handle.
pub(crate) struct FlowHandle {
    pub(crate) owner: Arc<ProgramHandle>,
    pub(crate) slot: u32,
    /// `None` after the flow was closed.
    held: Mutex<Option<Held>>,
}

/// A flow, and the buffers of it that C holds.
pub(crate) struct Held {
    pub(crate) socket: Socket,
    out: HashMap<u64, Out>,
    next: u64,
}

/// A buffer that C holds.
pub(crate) enum Out {
    /// A buffer for sending.
    Packet(Packet),
    /// A buffer with a received datagram.
    Datagram(Datagram),
}

impl ProgramHandle {
    pub(crate) fn new(program: Program) -> ProgramHandle {
        ProgramHandle {
            program,
            open: Mutex::default(),
        }
    }

    pub(crate) fn open(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Open {
    /// Records that a flow has something new.
    pub(crate) fn tell(&mut self, slot: u32) {
        if let Some((number, _)) = self.flows.get(&slot)
            && !self.news.contains(number)
        {
            self.news.push_back(*number);
        }
    }

    /// The handle of the flow with the daemon's number `id`.
    pub(crate) fn named(&self, id: u32) -> Option<c_int> {
        let mut flows = self.flows.values();
        flows
            .find(|(_, known)| *known == Some(id))
            .map(|(number, _)| *number)
    }
}

impl FlowHandle {
    pub(crate) fn new(owner: Arc<ProgramHandle>, socket: Socket) -> FlowHandle {
        FlowHandle {
            owner,
            slot: socket.slot(),
            held: Mutex::new(Some(Held {
                socket,
                out: HashMap::new(),
                next: 0,
            })),
        }
    }

    /// Runs `work` with the flow. Fails if another thread uses it.
    pub(crate) fn with<T>(
        &self,
        work: impl FnOnce(&mut Held) -> Result<T, Fault>,
    ) -> Result<T, Fault> {
        work(self.lock()?.as_mut().ok_or(Fault::Handle)?)
    }

    pub(crate) fn lock(&self) -> Result<MutexGuard<'_, Option<Held>>, Fault> {
        match self.held.try_lock() {
            Ok(held) => Ok(held),
            Err(TryLockError::WouldBlock) => Err(Fault::Busy),
            Err(TryLockError::Poisoned(_)) => Err(Fault::Panicked),
        }
    }
}

impl Held {
    /// Gives C a buffer. Returns its id.
    pub(crate) fn give(&mut self, buffer: Out) -> u64 {
        self.next += 1;
        self.out.insert(self.next, buffer);
        self.next
    }

    /// Takes a packet back from C.
    pub(crate) fn take_packet(&mut self, name: u64) -> Result<Packet, Fault> {
        match self.out.remove(&name) {
            Some(Out::Packet(packet)) => Ok(packet),
            other => Err(self.not_taken(name, other)),
        }
    }

    /// Returns a packet to C under its old id.
    pub(crate) fn return_packet(&mut self, name: u64, packet: Packet) {
        self.out.insert(name, Out::Packet(packet));
    }

    /// Takes a datagram back from C.
    pub(crate) fn take_datagram(&mut self, name: u64) -> Result<Datagram, Fault> {
        match self.out.remove(&name) {
            Some(Out::Datagram(datagram)) => Ok(datagram),
            other => Err(self.not_taken(name, other)),
        }
    }

    fn not_taken(&mut self, name: u64, other: Option<Out>) -> Fault {
        if let Some(other) = other {
            self.out.insert(name, other);
        }
        Fault::Buffer
    }
}

/// The object of a handle.
#[derive(Clone)]
enum Entry {
    Program(Arc<ProgramHandle>),
    Flow(Arc<FlowHandle>),
}

/// All handles.
struct Table {
    places: Vec<Place>,
    free: Vec<usize>,
}

struct Place {
    /// How often the entry was used, 1 to [`USES`].
    uses: usize,
    entry: Option<Entry>,
}

static TABLE: RwLock<Table> = RwLock::new(Table {
    places: Vec::new(),
    free: Vec::new(),
});

/// Creates a handle for a program.
pub(crate) fn add_program(program: Arc<ProgramHandle>) -> Result<c_int, Fault> {
    add(Entry::Program(program))
}

/// Creates a handle for a flow.
pub(crate) fn add_flow(flow: Arc<FlowHandle>) -> Result<c_int, Fault> {
    add(Entry::Flow(flow))
}

/// The program of a handle.
pub(crate) fn program(number: c_int) -> Result<Arc<ProgramHandle>, Fault> {
    match find(number) {
        Some(Entry::Program(program)) => Ok(program),
        _ => Err(Fault::Handle),
    }
}

/// The flow of a handle.
pub(crate) fn flow(number: c_int) -> Result<Arc<FlowHandle>, Fault> {
    match find(number) {
        Some(Entry::Flow(flow)) => Ok(flow),
        _ => Err(Fault::Handle),
    }
}

/// Removes a handle.
pub(crate) fn forget(number: c_int) {
    let mut table = TABLE.write().unwrap_or_else(PoisonError::into_inner);
    let (index, uses) = parts(number);
    let place = table.places.get_mut(index);
    if let Some(place) = place.filter(|place| place.uses == uses && place.entry.is_some()) {
        place.entry = None;
        table.free.push(index);
    }
}

fn add(entry: Entry) -> Result<c_int, Fault> {
    let mut table = TABLE.write().unwrap_or_else(PoisonError::into_inner);
    let index = match table.free.pop() {
        Some(index) => index,
        None if table.places.len() == PLACES => return Err(Fault::System(libc::ENFILE)),
        None => {
            table.places.push(Place {
                uses: 0,
                entry: None,
            });
            table.places.len() - 1
        }
    };
    let place = &mut table.places[index];
    place.uses = place.uses % USES + 1;
    place.entry = Some(entry);
    // At most 2^31 - 1.
    Ok((place.uses * PLACES + index) as c_int)
}

fn find(number: c_int) -> Option<Entry> {
    let table = TABLE.read().unwrap_or_else(PoisonError::into_inner);
    let (index, uses) = parts(number);
    let place = table.places.get(index)?;
    place.entry.clone().filter(|_| place.uses == uses)
}

fn parts(number: c_int) -> (usize, usize) {
    let number = usize::try_from(number).unwrap_or(0);
    (number % PLACES, number / PLACES)
}

/// Largest number of valid handles. All handles are above it, so that none looks like a file
/// descriptor.
const PLACES: usize = 1 << 16;
/// How often an entry is used before its handles repeat.
const USES: usize = (1 << 15) - 1;
