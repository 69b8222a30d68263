//! The table of handles: the numbers by which C refers to programs, flows, streams and listeners,
//! and to networks, services and channels between hosts ([`channels`]).
//!
//! A handle contains the index of a table entry and the number of times that the entry was used. So
//! the number of a closed flow becomes the handle of another object only at the 32,767th further
//! use of its entry ([`MAX_USES`]). Until then calls with it fail with EBADF. At most 65,536
//! handles are valid at the same time ([`MAX_HANDLES`]); opening more fails with ENFILE.
//!
//! A call locks its flow, service or channel. If another call holds the lock, the call fails with
//! EBUSY and does not wait, because the other call may wait for packets for any time. It fails with
//! EIO if an earlier call of the object panicked. Several threads may use a stream, a listener or a
//! network at the same time.

pub(crate) mod channels;

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock, TryLockError};

use libc::c_int;
use netnice_stack::tcp::{Listener, Poller, Received, Reserved, Stream};
use netnice_stack::udp::Socket;
use netnice_stack::{Datagram, Packet, Program};

use crate::error::CallError;
use channels::{ChannelHandle, NetworkHandle, ServiceHandle};

/// The program of a handle.
pub(crate) struct ProgramHandle {
    /// The attached program.
    pub(crate) program: Program,
    flows: Mutex<ProgramFlows>,
    /// The handles of the streams and listeners of the program.
    connections: Mutex<HashSet<c_int>>,
    poller: OnceLock<Poller>,
}

/// The flows of a program.
#[derive(Default)]
pub(crate) struct ProgramFlows {
    /// By slot: the handle, and the daemon's number of the flow.
    pub(crate) by_slot: HashMap<u32, (c_int, Option<u32>)>,
    /// The flows that have something new.
    pub(crate) ready: VecDeque<c_int>,
}

/// The flow of a handle, with its program.
pub(crate) struct FlowHandle {
    /// The program that opened the flow.
    pub(crate) owner: Arc<ProgramHandle>,
    /// The slot of the flow among the flows of its program.
    pub(crate) slot: u32,
    /// `None` after C has closed the flow.
    open: Mutex<Option<OpenSocket>>,
}

/// The socket of an open flow, and the buffers of it that C holds.
pub(crate) struct OpenSocket {
    /// The stack's socket.
    pub(crate) socket: Socket,
    /// The buffers that C holds, by id.
    lent: HashMap<u64, LentBuffer>,
    next_id: u64,
}

/// A buffer that C holds.
pub(crate) enum LentBuffer {
    /// A buffer for sending.
    Packet(Packet),
    /// A buffer with a received datagram.
    Datagram(Datagram),
}

impl ProgramHandle {
    /// A program without flows.
    pub(crate) fn new(program: Program) -> ProgramHandle {
        ProgramHandle {
            program,
            flows: Mutex::default(),
            connections: Mutex::default(),
            poller: OnceLock::new(),
        }
    }

    /// The poller of the program's streams and listeners. The first call makes it, and fails if
    /// there are too many descriptors.
    pub(crate) fn poller(&self) -> Result<&Poller, CallError> {
        if let Some(poller) = self.poller.get() {
            return Ok(poller);
        }
        let new = Poller::new()?;
        // Another thread may have been faster.
        Ok(self.poller.get_or_init(|| new))
    }

    /// Locks the handles of the streams and listeners.
    pub(crate) fn connections(&self) -> MutexGuard<'_, HashSet<c_int>> {
        lock(&self.connections)
    }

    /// Locks the list of the program's flows. Waits while another thread has the lock.
    pub(crate) fn flows(&self) -> MutexGuard<'_, ProgramFlows> {
        self.flows.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ProgramFlows {
    /// Records that a flow has something new.
    pub(crate) fn mark_ready(&mut self, slot: u32) {
        if let Some((number, _)) = self.by_slot.get(&slot)
            && !self.ready.contains(number)
        {
            self.ready.push_back(*number);
        }
    }

    /// The handle of the flow with the daemon's number `id`; `None` if no open flow has it.
    pub(crate) fn handle_of(&self, id: u32) -> Option<c_int> {
        let mut flows = self.by_slot.values();
        flows
            .find(|(_, known)| *known == Some(id))
            .map(|(number, _)| *number)
    }
}

impl FlowHandle {
    /// An open flow of `owner`.
    pub(crate) fn new(owner: Arc<ProgramHandle>, socket: Socket) -> FlowHandle {
        FlowHandle {
            owner,
            slot: socket.slot(),
            open: Mutex::new(Some(OpenSocket {
                socket,
                lent: HashMap::new(),
                next_id: 0,
            })),
        }
    }

    /// Runs `work` with the flow. Fails if another thread is in a call of the flow, the flow is
    /// closed, or an earlier call of it panicked.
    pub(crate) fn with<T>(
        &self,
        work: impl FnOnce(&mut OpenSocket) -> Result<T, CallError>,
    ) -> Result<T, CallError> {
        work(self.lock()?.as_mut().ok_or(CallError::BadHandle)?)
    }

    /// Locks the flow; `None` in the lock is a closed flow. Fails if another thread is in a call of
    /// the flow, or an earlier call of it panicked.
    pub(crate) fn lock(&self) -> Result<MutexGuard<'_, Option<OpenSocket>>, CallError> {
        match self.open.try_lock() {
            Ok(open) => Ok(open),
            Err(TryLockError::WouldBlock) => Err(CallError::Busy),
            Err(TryLockError::Poisoned(_)) => Err(CallError::Panicked),
        }
    }
}

impl OpenSocket {
    /// Lends C a buffer. Returns its id.
    pub(crate) fn lend(&mut self, buffer: LentBuffer) -> u64 {
        self.next_id += 1;
        self.lent.insert(self.next_id, buffer);
        self.next_id
    }

    /// Takes a packet back from C. Fails if C holds no packet with this id.
    pub(crate) fn take_packet(&mut self, id: u64) -> Result<Packet, CallError> {
        match self.lent.remove(&id) {
            Some(LentBuffer::Packet(packet)) => Ok(packet),
            other => Err(self.not_held(id, other)),
        }
    }

    /// Lends C a packet again, under its old id.
    pub(crate) fn lend_again(&mut self, id: u64, packet: Packet) {
        self.lent.insert(id, LentBuffer::Packet(packet));
    }

    /// Takes a datagram back from C. Fails if C holds no datagram with this id.
    pub(crate) fn take_datagram(&mut self, id: u64) -> Result<Datagram, CallError> {
        match self.lent.remove(&id) {
            Some(LentBuffer::Datagram(datagram)) => Ok(datagram),
            other => Err(self.not_held(id, other)),
        }
    }

    fn not_held(&mut self, id: u64, other: Option<LentBuffer>) -> CallError {
        if let Some(other) = other {
            self.lent.insert(id, other);
        }
        CallError::NotHeld
    }
}

/// The stream of a handle, and the buffers of it that C holds.
pub(crate) struct StreamHandle {
    /// The program that opened the stream.
    pub(crate) owner: Arc<ProgramHandle>,
    lent: Mutex<LentPayloads>,
    // Dropped after the buffers.
    /// The stack's stream.
    pub(crate) stream: Stream,
}

/// The listener of a handle.
pub(crate) struct ListenerHandle {
    /// The program that opened the listener.
    pub(crate) owner: Arc<ProgramHandle>,
    /// The stack's listener.
    pub(crate) listener: Listener,
}

/// The buffers of a stream that C holds, by id.
#[derive(Default)]
struct LentPayloads {
    payloads: HashMap<u64, LentPayload>,
    next_id: u64,
}

/// A buffer of a stream that C holds.
pub(crate) enum LentPayload {
    /// A buffer for sending.
    Reserved(Reserved),
    /// A buffer with received payload, which dropping it gives back.
    Received(#[expect(dead_code, reason = "it is only dropped")] Received),
}

/// A stream or a listener.
pub(crate) enum Connection {
    /// A stream.
    Stream(Arc<StreamHandle>),
    /// A listener.
    Listener(Arc<ListenerHandle>),
}

impl StreamHandle {
    /// An open stream of `owner`.
    pub(crate) fn new(owner: Arc<ProgramHandle>, stream: Stream) -> StreamHandle {
        StreamHandle {
            owner,
            lent: Mutex::default(),
            stream,
        }
    }

    /// Lends C a buffer. Returns its id.
    pub(crate) fn lend(&self, payload: LentPayload) -> u64 {
        let mut lent = lock(&self.lent);
        lent.next_id += 1;
        let id = lent.next_id;
        lent.payloads.insert(id, payload);
        id
    }

    /// Takes a buffer for sending back from C. Fails if C holds none with this id.
    pub(crate) fn take_reserved(&self, id: u64) -> Result<Reserved, CallError> {
        let mut lent = lock(&self.lent);
        match lent.payloads.remove(&id) {
            Some(LentPayload::Reserved(reserved)) => Ok(reserved),
            Some(other) => {
                lent.payloads.insert(id, other);
                Err(CallError::NotHeld)
            }
            None => Err(CallError::NotHeld),
        }
    }

    /// Lends C a buffer for sending again, under its old id.
    pub(crate) fn lend_again(&self, id: u64, reserved: Reserved) {
        let payload = LentPayload::Reserved(reserved);
        lock(&self.lent).payloads.insert(id, payload);
    }

    /// Takes a buffer back from C. Fails if C holds none with this id.
    pub(crate) fn take_any(&self, id: u64) -> Result<LentPayload, CallError> {
        let taken = lock(&self.lent).payloads.remove(&id);
        taken.ok_or(CallError::NotHeld)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The object of a handle.
#[derive(Clone)]
enum Object {
    Program(Arc<ProgramHandle>),
    Flow(Arc<FlowHandle>),
    Stream(Arc<StreamHandle>),
    Listener(Arc<ListenerHandle>),
    Network(Arc<NetworkHandle>),
    Service(Arc<ServiceHandle>),
    Channel(Arc<ChannelHandle>),
}

/// An object of the calls about channels between hosts.
pub(crate) enum Remote {
    /// A network.
    Network,
    /// A service.
    Service(Arc<ServiceHandle>),
    /// A channel.
    Channel(Arc<ChannelHandle>),
}

/// All handles.
struct Table {
    entries: Vec<Entry>,
    free: Vec<usize>,
}

struct Entry {
    /// How often the entry was used, 1 to [`MAX_USES`].
    uses: usize,
    object: Option<Object>,
}

static TABLE: RwLock<Table> = RwLock::new(Table {
    entries: Vec::new(),
    free: Vec::new(),
});

/// Creates a handle for a program. Fails with ENFILE if [`MAX_HANDLES`] are valid.
pub(crate) fn add_program(program: Arc<ProgramHandle>) -> Result<c_int, CallError> {
    add(Object::Program(program))
}

/// Creates a handle for a flow. Fails with ENFILE if [`MAX_HANDLES`] are valid.
pub(crate) fn add_flow(flow: Arc<FlowHandle>) -> Result<c_int, CallError> {
    add(Object::Flow(flow))
}

/// The program of a handle. Fails if the handle is not that of a program.
pub(crate) fn program(number: c_int) -> Result<Arc<ProgramHandle>, CallError> {
    match find(number) {
        Some(Object::Program(program)) => Ok(program),
        _ => Err(CallError::BadHandle),
    }
}

/// The flow of a handle. Fails if the handle is not that of a flow.
pub(crate) fn flow(number: c_int) -> Result<Arc<FlowHandle>, CallError> {
    match find(number) {
        Some(Object::Flow(flow)) => Ok(flow),
        _ => Err(CallError::BadHandle),
    }
}

/// Creates a handle for a stream or a listener. Fails with ENFILE if [`MAX_HANDLES`] are valid.
pub(crate) fn add_connection(connection: Connection) -> Result<c_int, CallError> {
    let (object, owner) = match connection {
        Connection::Stream(stream) => (Object::Stream(stream.clone()), stream.owner.clone()),
        Connection::Listener(one) => (Object::Listener(one.clone()), one.owner.clone()),
    };
    let number = add(object)?;
    owner.connections().insert(number);
    Ok(number)
}

/// The stream of a handle. Fails if the handle is not that of a stream.
pub(crate) fn stream(number: c_int) -> Result<Arc<StreamHandle>, CallError> {
    match find(number) {
        Some(Object::Stream(stream)) => Ok(stream),
        _ => Err(CallError::BadHandle),
    }
}

/// The stream or listener of a handle. Fails if the handle is that of neither.
pub(crate) fn connection(number: c_int) -> Result<Connection, CallError> {
    match find(number) {
        Some(Object::Stream(stream)) => Ok(Connection::Stream(stream)),
        Some(Object::Listener(listener)) => Ok(Connection::Listener(listener)),
        _ => Err(CallError::BadHandle),
    }
}

/// Creates a handle for a network. Fails with ENFILE if [`MAX_HANDLES`] are valid.
pub(crate) fn add_network(network: NetworkHandle) -> Result<c_int, CallError> {
    add(Object::Network(Arc::new(network)))
}

/// Creates a handle for a service. Fails with ENFILE if [`MAX_HANDLES`] are valid.
pub(crate) fn add_service(service: ServiceHandle) -> Result<c_int, CallError> {
    add(Object::Service(Arc::new(service)))
}

/// Creates a handle for a channel. Fails with ENFILE if [`MAX_HANDLES`] are valid.
pub(crate) fn add_channel(channel: ChannelHandle) -> Result<c_int, CallError> {
    add(Object::Channel(Arc::new(channel)))
}

/// The network of a handle. Fails if the handle is not that of a network.
pub(crate) fn network(number: c_int) -> Result<Arc<NetworkHandle>, CallError> {
    match find(number) {
        Some(Object::Network(network)) => Ok(network),
        _ => Err(CallError::BadHandle),
    }
}

/// The service of a handle. Fails if the handle is not that of a service.
pub(crate) fn service(number: c_int) -> Result<Arc<ServiceHandle>, CallError> {
    match find(number) {
        Some(Object::Service(service)) => Ok(service),
        _ => Err(CallError::BadHandle),
    }
}

/// The channel of a handle. Fails if the handle is not that of a channel.
pub(crate) fn channel(number: c_int) -> Result<Arc<ChannelHandle>, CallError> {
    match find(number) {
        Some(Object::Channel(channel)) => Ok(channel),
        _ => Err(CallError::BadHandle),
    }
}

/// The network, service or channel of a handle. Fails if the handle is that of none of them.
pub(crate) fn remote(number: c_int) -> Result<Remote, CallError> {
    match find(number) {
        Some(Object::Network(_)) => Ok(Remote::Network),
        Some(Object::Service(service)) => Ok(Remote::Service(service)),
        Some(Object::Channel(channel)) => Ok(Remote::Channel(channel)),
        _ => Err(CallError::BadHandle),
    }
}

/// Removes a handle; does nothing if it is not valid.
pub(crate) fn remove(number: c_int) {
    let mut table = TABLE.write().unwrap_or_else(PoisonError::into_inner);
    let (index, uses) = index_and_uses(number);
    let entry = table.entries.get_mut(index);
    let entry = entry.filter(|entry| entry.uses == uses);
    let object = entry.and_then(|entry| entry.object.take());
    if object.is_some() {
        table.free.push(index);
    }
    // Closing a stream can take time: the table is not locked then.
    drop(table);
    drop(object);
}

fn add(object: Object) -> Result<c_int, CallError> {
    let mut table = TABLE.write().unwrap_or_else(PoisonError::into_inner);
    let index = match table.free.pop() {
        Some(index) => index,
        None if table.entries.len() == MAX_HANDLES => return Err(CallError::System(libc::ENFILE)),
        None => {
            table.entries.push(Entry {
                uses: 0,
                object: None,
            });
            table.entries.len() - 1
        }
    };
    let entry = &mut table.entries[index];
    entry.uses = entry.uses % MAX_USES + 1;
    entry.object = Some(object);
    // At most 2^31 - 1.
    Ok((entry.uses * MAX_HANDLES + index) as c_int)
}

fn find(number: c_int) -> Option<Object> {
    let table = TABLE.read().unwrap_or_else(PoisonError::into_inner);
    let (index, uses) = index_and_uses(number);
    let entry = table.entries.get(index)?;
    entry.object.clone().filter(|_| entry.uses == uses)
}

/// The index of a handle's entry, and the number of uses of that entry.
fn index_and_uses(number: c_int) -> (usize, usize) {
    let number = usize::try_from(number).unwrap_or(0);
    (number % MAX_HANDLES, number / MAX_HANDLES)
}

/// Largest number of valid handles. No handle is less than this, so that none looks like a file
/// descriptor.
const MAX_HANDLES: usize = 1 << 16;
/// How often an entry is used before its handles repeat.
const MAX_USES: usize = (1 << 15) - 1;
