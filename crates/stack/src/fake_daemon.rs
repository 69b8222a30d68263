//! A fake daemon and driver for tests, in one thread. The fake exchanges the messages of
//! [`netnice_api::direct`] over a socket and uses the driver's side of the ring. It delivers each
//! sent frame to the flows whose addresses match, and drops a frame that matches none. The fake
//! panics if a system call fails or a message is not one of the direct path, and the test fails.

use std::collections::{HashMap, HashSet};
use std::io::Write;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use netnice_api::direct::{
    Attach, Attached, Detached, DirectReply, DirectRequest, Endpoint, FlowList, FlowNotification,
    FlowOpened, FlowState, OpenFlow, PromiseHeld, ResolvedNextHop, RouteToHost, Term,
};
use netnice_api::frame::{Decoder, LONGEST_REQUEST};
use netnice_api::{
    Done, FailureCause, Request, Response, RuntimeDir, decode_client_call, encode_response, fds,
};
use netnice_ring::driver::{DriverRings, Loss, ProgramMemory, Taken};
use netnice_ring::{Budget, Shape, Status};
use rustix::event::{PollFd, PollFlags, eventfd};

use netnice_stack::datagram::{self, Checks};

/// A test's handle of the fake daemon. Dropping it ends the thread.
pub(crate) struct FakeDaemon {
    folder: PathBuf,
    commands: Sender<DaemonCommand>,
    wake: std::sync::Arc<std::os::fd::OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

/// A command from a test to the fake daemon. Some crates whose tests include this file use a part.
#[allow(dead_code)]
pub(crate) enum DaemonCommand {
    /// Send this notification to the program.
    Notify(FlowNotification),
    /// Close a flow in the ring without a message.
    CloseSilently(u32),
    /// Close the connection and listen no more, as after the end of the daemon; the driver's side
    /// continues.
    Disconnect,
    /// Listen again, as another daemon. It accepts one connection.
    Restart,
    /// Use another number for a flow, and another MTU of its path.
    Renumber { flow: u32, number: u32, mtu: u32 },
    /// Send no frames of listeners, or send them again.
    HoldListeners(bool),
    /// Give the next so many segments of promoted connections to their listener, as a driver may
    /// that has not seen that the connection's flow is primed.
    DeliverLate(u32),
    /// End the thread.
    End,
}

impl FakeDaemon {
    /// Starts a fake daemon that serves one program, in a new runtime folder.
    pub(crate) fn new(name: &str) -> FakeDaemon {
        let folder = std::env::temp_dir().join(format!("netnice-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let dir = RuntimeDir::choose(Some(folder.clone()), None);
        let listener = UnixListener::bind(dir.socket()).unwrap();
        let (commands, received) = channel();
        let wake = eventfd(0, rustix::event::EventfdFlags::NONBLOCK).unwrap();
        let wake = std::sync::Arc::new(wake);
        let woken = wake.clone();
        let path = dir.socket();
        let thread = std::thread::spawn(move || serve(listener, &path, &received, &woken));
        FakeDaemon {
            folder,
            commands,
            wake,
            thread: Some(thread),
        }
    }

    /// The runtime folder of the fake daemon.
    pub(crate) fn dir(&self) -> RuntimeDir {
        RuntimeDir::choose(Some(self.folder.clone()), None)
    }

    /// Makes the fake daemon execute a command. Panics if its thread has ended.
    pub(crate) fn send(&self, command: DaemonCommand) {
        self.commands.send(command).unwrap();
        rustix::io::write(&*self.wake, &1u64.to_ne_bytes()).unwrap();
    }
}

impl Drop for FakeDaemon {
    fn drop(&mut self) {
        let _ = self.commands.send(DaemonCommand::End);
        let _ = rustix::io::write(&*self.wake, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
            && !std::thread::panicking()
        {
            panic!("the fake daemon panicked");
        }
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// The local address of routes.
const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 78, 0, 1));
/// The secret of the attachment.
const SECRET: &str = "5ec2e7";

/// The connection, the flows and the memory of one program.
struct Session {
    stream: Option<UnixStream>,
    decoder: Decoder,
    /// A notification that is sent behind the next response, in the same bytes.
    behind_response: Option<FlowNotification>,
    memory: Option<ProgramMemory>,
    flows: HashMap<u32, (DriverRings, Endpoint)>,
    /// The MTU of the path of each flow.
    mtus: HashMap<u32, u32>,
    /// True on the first connection, and after the program has resumed its attachment.
    is_attached: bool,
    next_flow: u32,
    hop_requests: u32,
    now: u64,
    /// The flows of connections that were primed.
    primed: HashSet<u32>,
    /// The held promises.
    holds: HashSet<u32>,
    holds_listeners: bool,
    late: u32,
}

fn serve(
    listener: UnixListener,
    path: &std::path::Path,
    commands: &Receiver<DaemonCommand>,
    wake: &std::os::fd::OwnedFd,
) {
    let stream = loop {
        let mut fds = [
            PollFd::new(&listener, PollFlags::IN),
            PollFd::new(wake, PollFlags::IN),
        ];
        rustix::event::poll(&mut fds, None).unwrap();
        if fds[1].revents().contains(PollFlags::IN) {
            return;
        }
        if fds[0].revents().contains(PollFlags::IN) {
            break listener.accept().unwrap().0;
        }
    };
    let mut listener = Some(listener);
    let mut session = Session {
        stream: Some(stream),
        decoder: Decoder::new(LONGEST_REQUEST),
        behind_response: None,
        memory: None,
        flows: HashMap::new(),
        mtus: HashMap::new(),
        is_attached: true,
        next_flow: 1,
        hop_requests: 0,
        now: 0,
        primed: HashSet::new(),
        holds: HashSet::new(),
        holds_listeners: false,
        late: 0,
    };
    loop {
        session.sleep(wake, listener.as_ref());
        let _ = rustix::io::read(wake, &mut [0; 8]);
        while let Ok(command) = commands.try_recv() {
            match command {
                DaemonCommand::Notify(notification) => {
                    session.write_response(
                        &Response::Direct(DirectReply::Notification(notification)),
                        &[],
                    );
                }
                DaemonCommand::CloseSilently(flow) => session.close(flow),
                DaemonCommand::Disconnect => {
                    session.stream = None;
                    listener = None;
                    std::fs::remove_file(path).unwrap();
                }
                DaemonCommand::Restart => {
                    session.decoder = Decoder::new(LONGEST_REQUEST);
                    session.is_attached = false;
                    listener = Some(UnixListener::bind(path).unwrap());
                }
                DaemonCommand::Renumber { flow, number, mtu } => {
                    let renumbered = session.flows.remove(&flow).unwrap();
                    session.flows.insert(number, renumbered);
                    session.mtus.insert(number, mtu);
                    session.next_flow = session.next_flow.max(number + 1);
                }
                DaemonCommand::HoldListeners(holds) => session.holds_listeners = holds,
                DaemonCommand::DeliverLate(segments) => session.late = segments,
                DaemonCommand::End => return,
            }
        }
        session.accept(listener.as_ref());
        session.read_requests();
        session.deliver_frames();
    }
}

impl Session {
    fn sleep(&mut self, wake: &std::os::fd::OwnedFd, listener: Option<&UnixListener>) {
        let quiet = self
            .memory
            .as_mut()
            .is_none_or(ProgramMemory::prepare_sleep);
        if quiet {
            let mut fds = vec![PollFd::new(wake, PollFlags::IN)];
            match &self.stream {
                Some(stream) => fds.push(PollFd::new(stream, PollFlags::IN)),
                None => fds.extend(listener.map(|fd| PollFd::new(fd, PollFlags::IN))),
            }
            let doorbell = self.memory.as_ref().map(ProgramMemory::doorbell);
            fds.extend(doorbell.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
            rustix::event::poll(&mut fds, None).unwrap();
        }
        if let Some(memory) = &mut self.memory {
            assert_eq!(memory.drain_doorbell().without_flag, 0);
            memory.take_notices(|_| {});
        }
    }

    fn accept(&mut self, listener: Option<&UnixListener>) {
        let Some(listener) = listener.filter(|_| self.stream.is_none()) else {
            return;
        };
        listener.set_nonblocking(true).unwrap();
        if let Ok((stream, _)) = listener.accept() {
            self.stream = Some(stream);
        }
    }

    fn read_requests(&mut self) {
        let Some(stream) = &self.stream else { return };
        let mut readable = [PollFd::new(stream, PollFlags::IN)];
        let now = rustix::event::Timespec::default();
        if rustix::event::poll(&mut readable, Some(&now)).unwrap() == 0 {
            return;
        }
        let mut bytes = [0; 4096];
        let got = fds::receive(stream.as_fd(), &mut bytes, 1).unwrap();
        if got.bytes == 0 {
            self.stream = None;
            return;
        }
        self.decoder.push(&bytes[..got.bytes]);
        while let Some(body) = self.decoder.poll().unwrap() {
            let call = decode_client_call(&body).unwrap();
            let Request::Direct(request) = call.request else {
                panic!("expected a request about direct flows");
            };
            if matches!(request, DirectRequest::Attach(_) | DirectRequest::Resume(_)) {
                assert!(call.process.is_some(), "the request has a pidfd");
            }
            match self.is_attached || matches!(request, DirectRequest::Resume(_)) {
                true => self.handle(request),
                false => self.write_response(&Response::bad_usage("attach first"), &[]),
            }
        }
    }

    fn handle(&mut self, request: DirectRequest) {
        if let DirectRequest::Attach(attach) = request {
            return self.attach(attach);
        }
        let response = self.answer(request);
        self.write_response(&response, &[]);
    }

    fn answer(&mut self, request: DirectRequest) -> Response {
        match request {
            DirectRequest::Resume(resume) => {
                assert_eq!(resume.secret, SECRET);
                let response = match self.memory {
                    Some(_) => DirectReply::Attached(Attached {
                        iface: resume.iface,
                        mode: "native".into(),
                        secret: SECRET.into(),
                    }),
                    None => DirectReply::Detached(Detached {
                        why: "the driver has ended".into(),
                    }),
                };
                self.is_attached = true;
                Response::Direct(response)
            }
            DirectRequest::List(list) => {
                Response::Direct(DirectReply::Flows(self.list(list.after)))
            }
            DirectRequest::Open(open) => {
                let contract = open.contract.as_deref().unwrap_or_default();
                match contract.contains("100ms/") {
                    true => Response::not_admitted("the link carries 10 ms of each 20 ms"),
                    false if open.hold.is_some_and(|hold| !self.holds.remove(&hold)) => {
                        Response::bad_usage("it is not held (any more)")
                    }
                    false => self.open(open),
                }
            }
            DirectRequest::Change(change) => {
                let response = match change.change.contains("100ms/") {
                    true => Response::not_admitted("the link carries 10 ms of each 20 ms"),
                    false => Response::Done(Done {
                        contract: Some(change.change.clone()),
                        ..Done::default()
                    }),
                };
                // With this contract a notification follows in the same bytes.
                if change.change.contains("3ms/") {
                    let notification = FlowNotification::Mtu {
                        flow: change.flow,
                        mtu: 900,
                    };
                    self.behind_response = Some(notification);
                }
                response
            }
            DirectRequest::Close(close) | DirectRequest::End(close) => {
                let response = match self.flows.contains_key(&close.flow) {
                    true => Response::Done(Done::default()),
                    false => Response::failed("no such flow"),
                };
                self.close(close.flow);
                response
            }
            // It has one link.
            DirectRequest::Take(_) => Response::failed("the flow is not to move"),
            other => self.answer_about_host(other),
        }
    }

    fn answer_about_host(&mut self, request: DirectRequest) -> Response {
        match request {
            DirectRequest::Route(route) => {
                let (iface, via, from) = ("only0".into(), route.to, HERE);
                Response::Direct(DirectReply::Route(RouteToHost { iface, via, from }))
            }
            // It keeps a deadline of 2 ms for each message.
            DirectRequest::Hold(hold) if hold.contract.contains("deadline=1ms") => {
                Response::not_admitted("would fit   a deadline of at least 2ms")
            }
            DirectRequest::Hold(hold) => {
                let number = self.next_flow;
                self.next_flow += 1;
                self.holds.insert(number);
                let end = hold.contract.find("deadline=").unwrap_or_default();
                Response::Direct(DirectReply::Held(PromiseHeld {
                    hold: number,
                    contract: format!("{}deadline=2ms", &hold.contract[..end]),
                    via: hold.to,
                    from: HERE,
                    mtu: 1400,
                }))
            }
            DirectRequest::Release(release) => {
                self.holds.remove(&release.hold);
                Response::Done(Done::default())
            }
            DirectRequest::NextHop(hop) => {
                self.hop_requests += 1;
                match hop.to {
                    IpAddr::V4(to) if to.octets()[3] == 99 => {
                        Response::failed_for(FailureCause::NoAnswer, "10.78.0.99 does not answer")
                    }
                    _ => Response::Direct(DirectReply::NextHop(ResolvedNextHop {
                        mac: [2, 0, 0, 0, 1, self.hop_requests as u8],
                        mtu: 1400,
                    })),
                }
            }
            other => panic!("{other:?} is not for hosts"),
        }
    }

    /// Makes the memory of the program and passes it on.
    fn attach(&mut self, attach: Attach) {
        let budget = Budget {
            flows: attach.flows,
            bytes: attach.bytes,
        };
        let memory = ProgramMemory::create(budget).unwrap();
        let attached = Attached {
            iface: attach.iface.unwrap_or("only0".into()),
            mode: "native".into(),
            secret: SECRET.into(),
        };
        let handles = memory.handles();
        // A notification arrives before the response: the client must not mistake the
        // notification for the response.
        self.write_response(
            &Response::Direct(DirectReply::Notification(FlowNotification::Link {
                up: true,
            })),
            &[],
        );
        let fds = [handles.memory, handles.to_driver, handles.to_program];
        self.write_response(&Response::Direct(DirectReply::Attached(attached)), &fds);
        self.memory = Some(memory);
    }

    /// The first flow after a number, as in a list of many parts.
    fn list(&self, after: u32) -> FlowList {
        let mut numbers: Vec<u32> = self.flows.keys().copied().filter(|n| *n > after).collect();
        numbers.sort_unstable();
        let more = numbers.len() > 1;
        let flows = numbers.first().map(|number| FlowState {
            flow: *number,
            slot: self.flows[number].0.location().slot,
            mtu: self.mtus.get(number).copied().unwrap_or(1500),
            ..FlowState::default()
        });
        FlowList {
            flows: flows.into_iter().collect(),
            more,
        }
    }

    fn open(&mut self, open: OpenFlow) -> Response {
        let shape = Shape {
            chunk_bytes: open.shape.chunk_bytes,
            chunks: open.shape.chunks,
            transmit_entries: open.shape.transmit_entries,
            receive_entries: open.shape.receive_entries,
        };
        let mut endpoint = open.endpoint;
        match &mut endpoint {
            Endpoint::Udp { local, .. }
            | Endpoint::Group { local, .. }
            | Endpoint::Tcp { local, .. }
            | Endpoint::TcpSyn { local }
            | Endpoint::TcpListener { local } => *local = self.chosen(*local),
            Endpoint::Protocol { local, .. } => {
                *local = self.chosen(SocketAddr::new(*local, 1)).ip();
            }
            Endpoint::EtherType { .. } => {}
        }
        let memory = self.memory.as_mut().expect("attached");
        let flow = match memory.open(shape) {
            Ok(flow) => flow,
            Err(why) => return Response::failed(why.to_string()),
        };
        let number = self.next_flow;
        self.next_flow += 1;
        let location = flow.location();
        // Segments leave in records of several on every second flow of TCP.
        flow.set_joins(endpoint.is_tcp() && self.next_flow.is_multiple_of(2));
        let opened = FlowOpened {
            flow: number,
            slot: location.slot,
            offset: location.offset,
            next_hop: match &endpoint {
                Endpoint::Udp { remote: None, .. }
                | Endpoint::TcpSyn { .. }
                | Endpoint::TcpListener { .. }
                | Endpoint::Protocol { remote: None, .. }
                | Endpoint::EtherType { .. } => None,
                _ => Some([2, 0, 0, 0, 0, 1]),
            },
            endpoint: endpoint.clone(),
            mac: [2, 0, 0, 0, 0, 2],
            mtu: 1500,
            contract: open.contract.unwrap_or("best effort".into()),
            key: endpoint.is_tcp().then_some([5; 16]),
        };
        self.flows.insert(number, (flow, endpoint));
        Response::Direct(DirectReply::Opened(opened))
    }

    fn chosen(&self, mut local: SocketAddr) -> SocketAddr {
        if local.ip().is_unspecified() {
            local.set_ip(match local {
                SocketAddr::V4(_) => "10.78.0.1".parse().unwrap(),
                SocketAddr::V6(_) => "fd00::1".parse().unwrap(),
            });
        }
        if local.port() == 0 {
            local.set_port(40_000 + self.next_flow as u16);
        }
        local
    }

    fn close(&mut self, number: u32) {
        let Some((flow, _)) = self.flows.remove(&number) else {
            return;
        };
        self.primed.remove(&number);
        let memory = self.memory.as_mut().expect("attached");
        memory.close(flow);
        memory.notify();
    }

    fn write_response(&mut self, response: &Response, fds: &[std::os::fd::BorrowedFd<'_>]) {
        let Some(stream) = &mut self.stream else {
            return;
        };
        let mut frame = encode_response(response).unwrap();
        if let Some(notification) = self.behind_response.take() {
            let message = Response::Direct(DirectReply::Notification(notification));
            frame.extend(encode_response(&message).unwrap());
        }
        let sent = fds::send(stream.as_fd(), &frame, fds).unwrap();
        stream.write_all(&frame[sent..]).unwrap();
    }

    /// Delivers all sent frames to the flows that their addresses match.
    fn deliver_frames(&mut self) {
        let senders: Vec<u32> = self.flows.keys().copied().collect();
        for from in senders {
            while let Some((flow, endpoint)) = self.flows.get_mut(&from) {
                if self.holds_listeners && matches!(endpoint, Endpoint::TcpListener { .. }) {
                    break;
                }
                let Ok(Taken::Record(record)) = flow.take() else {
                    break;
                };
                let mut frame = [0; 32_768];
                let bytes = flow.read(&record, &mut frame);
                let frames = match record.has_segments() {
                    true => cut(&frame[..bytes], record.pairs()),
                    false => vec![frame[..bytes].to_vec()],
                };
                // The clock of the stamps of a driver. No two frames leave at the same time.
                let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
                let time = time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64;
                self.now = time.max(self.now + 1);
                flow.give_back(&record, Status::DONE, self.now);
                frames.iter().for_each(|frame| self.deliver(frame));
            }
        }
        let mut moved = false;
        for (flow, _) in self.flows.values_mut() {
            moved |= flow.publish();
        }
        if let Some(memory) = &self.memory
            && moved
        {
            memory.notify();
        }
    }

    fn deliver(&mut self, frame: &[u8]) {
        let fits = |(number, (_, endpoint)): (&u32, &(_, Endpoint))| {
            is_for(frame, endpoint).then_some((*number, matches!(endpoint, Endpoint::Tcp { .. })))
        };
        let matching: Vec<(u32, bool)> = self.flows.iter().filter_map(fits).collect();
        // A promoted connection has its segments alone, as soon as it is primed.
        let connection = matching.iter().find(|(_, is_connection)| *is_connection);
        if let Some((number, _)) = connection {
            let is_promoted = matching.len() > 1;
            if is_promoted && self.late > 0 && self.primed.contains(number) {
                self.late -= 1;
            } else if self.deliver_to(*number, frame) || self.primed.contains(number) {
                return;
            }
        }
        for (number, is_connection) in matching {
            if !is_connection {
                self.deliver_to(number, frame);
            }
        }
    }

    /// Delivers a frame to a flow. Returns false if the flow has no empty record.
    fn deliver_to(&mut self, number: u32, frame: &[u8]) -> bool {
        let (flow, _) = self.flows.get_mut(&number).expect("an open flow");
        match flow.take_empty().unwrap() {
            Taken::Record(empty) => {
                assert_eq!(flow.write(&empty, 0, frame), frame.len());
                flow.deliver(empty, frame.len(), Status::DONE, self.now);
                self.primed.insert(number);
                true
            }
            _ => {
                flow.count_lost(Loss::NoBuffer);
                false
            }
        }
    }
}

/// The frames of a record of segments of TCP over IPv4.
fn cut(bytes: &[u8], pairs: &[netnice_ring::Pair]) -> Vec<Vec<u8>> {
    assert_eq!(bytes[12..14], [8, 0]);
    let header = 34 + usize::from(bytes[46] >> 4) * 4;
    let sequence = u32::from_be_bytes(bytes[38..42].try_into().unwrap());
    let (mut frames, mut begin, mut sent) = (Vec::new(), 0, 0_u32);
    for (number, pair) in pairs.iter().enumerate() {
        let end = begin + pair.length as usize;
        let mut frame = bytes[..header].to_vec();
        frame.extend(&bytes[begin + header..end]);
        frame[38..42].copy_from_slice(&sequence.wrapping_add(sent).to_be_bytes());
        if number + 1 < pairs.len() {
            frame[47] &= !0x09;
        }
        let length = (frame.len() - 14) as u16;
        frame[16..18].copy_from_slice(&length.to_be_bytes());
        for (field, from) in [(24, 14), (50, 34)] {
            frame[field..field + 2].fill(0);
            let to = if from == 14 { 34 } else { frame.len() };
            let mut sum: u64 = match from {
                14 => 0,
                _ => words(&frame[26..34]) + 6 + (to - from) as u64,
            };
            sum += words(&frame[from..to]);
            while sum > 0xffff {
                sum = (sum & 0xffff) + (sum >> 16);
            }
            frame[field..field + 2].copy_from_slice(&(!(sum as u16)).to_be_bytes());
        }
        sent += (end - begin - header) as u32;
        begin = end;
        frames.push(frame);
    }
    frames
}

/// The sum of the bytes as numbers of 16 bits.
fn words(bytes: &[u8]) -> u64 {
    let word = |pair: &[u8]| u64::from(pair[0]) << 8 | pair.get(1).map_or(0, |low| u64::from(*low));
    bytes.chunks(2).map(word).sum()
}

/// True if a sent frame is for a flow with this endpoint.
fn is_for(frame: &[u8], endpoint: &Endpoint) -> bool {
    let same =
        |one: SocketAddr, other: &SocketAddr| (one.ip(), one.port()) == (other.ip(), other.port());
    let datagram = datagram::parse(frame, Checks::Verify);
    match (endpoint, datagram) {
        (Endpoint::Udp { local, remote }, Ok(datagram)) => {
            let from = |remote: &SocketAddr| same(datagram.from, remote);
            same(datagram.to, local) && remote.as_ref().is_none_or(from)
        }
        (Endpoint::Group { group, .. }, Ok(datagram)) => same(datagram.to, group),
        (
            Endpoint::Protocol {
                number,
                local,
                remote,
                pattern,
            },
            _,
        ) => {
            // The addresses and the protocol number, at their places in an IPv4 or IPv6 header.
            let (protocol, from, to, header) = match local {
                IpAddr::V4(_) => (23, 26, 30, 34),
                IpAddr::V6(_) => (20, 22, 38, 54),
            };
            let is = |at: usize, address: &IpAddr| match address {
                IpAddr::V4(address) => frame[at..].starts_with(&address.octets()),
                IpAddr::V6(address) => frame[at..].starts_with(&address.octets()),
            };
            frame.len() >= header
                && frame[protocol] == *number
                && is(to, local)
                && remote.as_ref().is_none_or(|remote| is(from, remote))
                && fits(pattern, &frame[header..])
        }
        (Endpoint::EtherType { number, pattern }, _) => {
            frame[12..14] == number.to_be_bytes() && fits(pattern, &frame[14..])
        }
        (Endpoint::Tcp { local, remote }, _) => {
            segment(frame).is_some_and(|(from, to, _)| same(to, local) && same(from, remote))
        }
        (Endpoint::TcpSyn { local }, _) => {
            segment(frame).is_some_and(|(_, to, flags)| same(to, local) && flags & 0x12 == 0x02)
        }
        (Endpoint::TcpListener { local }, _) => {
            segment(frame).is_some_and(|(_, to, flags)| same(to, local) && flags & 0x12 != 0x02)
        }
        (_, Err(_)) => false,
    }
}

/// The two ends and the flags of a segment of TCP over IPv4; `None` for another frame.
fn segment(frame: &[u8]) -> Option<(SocketAddr, SocketAddr, u8)> {
    let is_tcp = frame.get(12..14)? == [8, 0] && *frame.get(23)? == 6;
    let end = |address: usize, port: usize| -> Option<SocketAddr> {
        let host: [u8; 4] = *frame.get(address..)?.first_chunk()?;
        let port: [u8; 2] = *frame.get(port..)?.first_chunk()?;
        Some((host, u16::from_be_bytes(port)).into())
    };
    is_tcp.then_some((end(26, 34)?, end(30, 36)?, *frame.get(47)?))
}

fn fits(pattern: &[Term], payload: &[u8]) -> bool {
    pattern.iter().all(|term| {
        let byte = payload.get(usize::from(term.offset));
        byte.is_some_and(|byte| byte & term.mask == term.value)
    })
}
