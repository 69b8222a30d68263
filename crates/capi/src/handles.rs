//! The numbers by which C names programs and flows, and what is behind them.
//!
//! A number is an index and how often its place was used before, so that one that is no longer good is told
//! from the one that came after it. Whoever uses a flow holds its lock; who finds it held is told so (EBUSY) in place of waiting,
//! since a call may wait for packets as long as it likes.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, TryLockError};

use libc::c_int;
use netnice_stack::udp::Socket;
use netnice_stack::{Datagram, Packet, Program};

use crate::fault::Fault;

/// Behind a program's number.
pub(crate) struct ProgramHandle {
    pub(crate) program: Program,
    pub(crate) open: Mutex<Open>,
}

/// The flows of a program.
#[derive(Default)]
pub(crate) struct Open {
    /// By slot: the number for C, and that of the daemon.
    pub(crate) flows: HashMap<u32, (c_int, Option<u32>)>,
    /// Those in which there is something new.
    pub(crate) news: VecDeque<c_int>,
}

/// Behind a flow's number.
pub(crate) struct FlowHandle {
    pub(crate) owner: Arc<ProgramHandle>,
    pub(crate) slot: u32,
    /// Nothing once it is closed.
    held: Mutex<Option<Held>>,
}

/// A flow, and the buffers of it that C has.
pub(crate) struct Held {
    pub(crate) socket: Socket,
    out: HashMap<u64, Out>,
    next: u64,
}

/// A buffer that C has.
pub(crate) enum Out {
    /// To send from.
    Packet(Packet),
    /// That was received into.
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
    /// There is something new in a flow.
    pub(crate) fn tell(&mut self, slot: u32) {
        if let Some((number, _)) = self.flows.get(&slot)
            && !self.news.contains(number)
        {
            self.news.push_back(*number);
        }
    }

    /// The number for C of the flow that the daemon knows by this one.
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

    /// Uses the flow, if nobody else does.
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
    /// C gets a buffer, by this name.
    pub(crate) fn give(&mut self, buffer: Out) -> u64 {
        self.next += 1;
        self.out.insert(self.next, buffer);
        self.next
    }

    /// C gives a packet back.
    pub(crate) fn take_packet(&mut self, name: u64) -> Result<Packet, Fault> {
        match self.out.remove(&name) {
            Some(Out::Packet(packet)) => Ok(packet),
            other => Err(self.not_taken(name, other)),
        }
    }

    /// It is C's after all.
    pub(crate) fn return_packet(&mut self, name: u64, packet: Packet) {
        self.out.insert(name, Out::Packet(packet));
    }

    /// C gives a datagram back.
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

/// Behind a number.
#[derive(Clone)]
enum Entry {
    Program(Arc<ProgramHandle>),
    Flow(Arc<FlowHandle>),
}

/// All numbers.
struct Table {
    places: Vec<Place>,
    free: Vec<usize>,
}

struct Place {
    /// How often it was used, 1 to [`USES`].
    uses: usize,
    entry: Option<Entry>,
}

static TABLE: RwLock<Table> = RwLock::new(Table {
    places: Vec::new(),
    free: Vec::new(),
});

/// A number for a program.
pub(crate) fn add_program(program: Arc<ProgramHandle>) -> Result<c_int, Fault> {
    add(Entry::Program(program))
}

/// A number for a flow.
pub(crate) fn add_flow(flow: Arc<FlowHandle>) -> Result<c_int, Fault> {
    add(Entry::Flow(flow))
}

/// The program of a number.
pub(crate) fn program(number: c_int) -> Result<Arc<ProgramHandle>, Fault> {
    match find(number) {
        Some(Entry::Program(program)) => Ok(program),
        _ => Err(Fault::Handle),
    }
}

/// The flow of a number.
pub(crate) fn flow(number: c_int) -> Result<Arc<FlowHandle>, Fault> {
    match find(number) {
        Some(Entry::Flow(flow)) => Ok(flow),
        _ => Err(Fault::Handle),
    }
}

/// A number is no longer good.
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

/// Numbers that are good at a time. All numbers are above, so that none looks like a file descriptor.
const PLACES: usize = 1 << 16;
/// How often a place is used before a number comes again.
const USES: usize = (1 << 15) - 1;
