//! A fake daemon and driver for tests, in one thread. It exchanges the messages of
//! [`netnice_api::direct`] over a socket and uses the driver's side of the ring. It delivers the
//! frames of each flow to the flows that their addresses match, and drops frames that match none.

use std::collections::HashMap;
use std::io::Write;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use netnice_api::direct::{
    Attached, DirectReply, DirectRequest, Endpoint, FlowNotification, FlowOpened, OpenFlow,
    ResolvedNextHop, ShapeDoc,
};
use netnice_api::frame::{Decoder, LONGEST_REQUEST};
use netnice_api::{Done, Request, Response, RuntimeDir, decode_client_call, encode_response, fds};
use netnice_ring::driver::{Client, Flow, Loss, Taken};
use netnice_ring::{Budget, Shape, Status};
use rustix::event::{PollFd, PollFlags, eventfd};

use netnice_stack::datagram::{self, Checks};

/// The fake daemon, as a test holds it.
pub(crate) struct Peer {
    folder: PathBuf,
    orders: Sender<Order>,
    wake: std::sync::Arc<std::os::fd::OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

/// A command from a test to the fake daemon.
pub(crate) enum Order {
    /// Send these news to the program.
    Say(FlowNotification),
    /// Close a flow in the ring without a message.
    Shut(u32),
    /// Close the connection; the driver's side continues.
    HangUp,
    /// End the thread.
    End,
}

impl Peer {
    /// Starts a fake daemon that serves one program, in a new runtime folder.
    pub(crate) fn new(name: &str) -> Peer {
        let folder = std::env::temp_dir().join(format!("netnice-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let dir = RuntimeDir::choose(Some(folder.clone()), None);
        let listener = UnixListener::bind(dir.socket()).unwrap();
        let (orders, taken) = channel();
        let wake = eventfd(0, rustix::event::EventfdFlags::NONBLOCK).unwrap();
        let wake = std::sync::Arc::new(wake);
        let woken = wake.clone();
        let thread = std::thread::spawn(move || serve(&listener, &taken, &woken));
        Peer {
            folder,
            orders,
            wake,
            thread: Some(thread),
        }
    }

    pub(crate) fn dir(&self) -> RuntimeDir {
        RuntimeDir::choose(Some(self.folder.clone()), None)
    }

    pub(crate) fn order(&self, order: Order) {
        self.orders.send(order).unwrap();
        rustix::io::write(&*self.wake, &1u64.to_ne_bytes()).unwrap();
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.orders.send(Order::End);
        let _ = rustix::io::write(&*self.wake, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
            && !std::thread::panicking()
        {
            panic!("the peer failed");
        }
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// The connection, the flows and the memory of one program.
struct Session {
    stream: Option<UnixStream>,
    words: Decoder,
    client: Option<Client>,
    flows: HashMap<u32, (Flow, Endpoint)>,
    next: u32,
    asked_hops: u32,
    now: u64,
}

fn serve(listener: &UnixListener, orders: &Receiver<Order>, wake: &std::os::fd::OwnedFd) {
    let stream = loop {
        let mut fds = [
            PollFd::new(listener, PollFlags::IN),
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
    let mut session = Session {
        stream: Some(stream),
        words: Decoder::new(LONGEST_REQUEST),
        client: None,
        flows: HashMap::new(),
        next: 1,
        asked_hops: 0,
        now: 0,
    };
    loop {
        session.sleep(wake);
        let _ = rustix::io::read(wake, &mut [0; 8]);
        while let Ok(order) = orders.try_recv() {
            match order {
                Order::Say(news) => {
                    session.say(&Response::Direct(DirectReply::Notification(news)), &[])
                }
                Order::Shut(flow) => session.close(flow),
                Order::HangUp => session.stream = None,
                Order::End => return,
            }
        }
        session.hear();
        session.carry();
    }
}

impl Session {
    fn sleep(&mut self, wake: &std::os::fd::OwnedFd) {
        let quiet = self.client.as_mut().is_none_or(Client::doze);
        if quiet {
            let mut fds = vec![PollFd::new(wake, PollFlags::IN)];
            fds.extend(self.stream.as_ref().map(|s| PollFd::new(s, PollFlags::IN)));
            let bell = self.client.as_ref().map(Client::bell);
            fds.extend(bell.map(|bell| PollFd::from_borrowed_fd(bell, PollFlags::IN)));
            rustix::event::poll(&mut fds, None).unwrap();
        }
        if let Some(client) = &mut self.client {
            assert_eq!(client.hear().unasked, 0);
            client.take_notices(|_| {});
        }
    }

    fn hear(&mut self) {
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
        self.words.push(&bytes[..got.bytes]);
        while let Some(body) = self.words.poll().unwrap() {
            let call = decode_client_call(&body).unwrap();
            let Request::Direct(ask) = call.request else {
                panic!("something else than of direct flows");
            };
            if matches!(ask, DirectRequest::Attach(_)) {
                assert!(call.process.is_some(), "the program is named");
            }
            self.answer(ask);
        }
    }

    fn answer(&mut self, ask: DirectRequest) {
        match ask {
            DirectRequest::Attach(attach) => {
                let budget = Budget {
                    flows: attach.flows,
                    bytes: attach.bytes,
                };
                let client = Client::create(budget).unwrap();
                let attached = Attached {
                    iface: attach.iface.unwrap_or("only0".into()),
                    mode: "native".into(),
                };
                let handles = client.handles();
                // The client must not take news that arrive before the response for the response.
                self.say(
                    &Response::Direct(DirectReply::Notification(FlowNotification::Link {
                        up: true,
                    })),
                    &[],
                );
                let fds = [handles.memory, handles.to_driver, handles.to_program];
                self.say(&Response::Direct(DirectReply::Attached(attached)), &fds);
                self.client = Some(client);
            }
            DirectRequest::Open(open) => {
                let answer = self.open(open);
                self.say(&answer, &[]);
            }
            DirectRequest::Change(change) => {
                let answer = match change.change.contains("100ms/") {
                    true => Response::not_admitted("the link carries 10 ms of each 20 ms"),
                    false => Response::Done(Done {
                        contract: Some(change.change),
                        ..Done::default()
                    }),
                };
                self.say(&answer, &[]);
            }
            DirectRequest::Close(close) => {
                let answer = match self.flows.contains_key(&close.flow) {
                    true => Response::Done(Done::default()),
                    false => Response::failed("no such flow"),
                };
                self.close(close.flow);
                self.say(&answer, &[]);
            }
            DirectRequest::NextHop(hop) => {
                self.asked_hops += 1;
                let answer = match hop.to {
                    IpAddr::V4(to) if to.octets()[3] == 99 => {
                        Response::failed("10.78.0.99 does not answer")
                    }
                    _ => Response::Direct(DirectReply::NextHop(ResolvedNextHop {
                        mac: [2, 0, 0, 0, 1, self.asked_hops as u8],
                        mtu: 1400,
                    })),
                };
                self.say(&answer, &[]);
            }
        }
    }

    fn open(&mut self, open: OpenFlow) -> Response {
        let ShapeDoc {
            chunk_bytes,
            chunks,
            transmit_entries,
            receive_entries,
        } = open.shape;
        let shape = Shape {
            chunk_bytes,
            chunks,
            transmit_entries,
            receive_entries,
        };
        let endpoint = match open.endpoint {
            Endpoint::Udp { local, remote } => Endpoint::Udp {
                local: self.chosen(local),
                remote,
            },
            Endpoint::Group { local, group } => Endpoint::Group {
                local: self.chosen(local),
                group,
            },
            _ => return Response::bad_usage("what is that?"),
        };
        let client = self.client.as_mut().expect("attached");
        let flow = match client.open(shape) {
            Ok(flow) => flow,
            Err(why) => return Response::failed(why.to_string()),
        };
        let number = self.next;
        self.next += 1;
        let place = flow.place();
        let opened = FlowOpened {
            flow: number,
            slot: place.slot,
            offset: place.offset,
            next_hop: match &endpoint {
                Endpoint::Udp { remote: None, .. } => None,
                _ => Some([2, 0, 0, 0, 0, 1]),
            },
            endpoint: endpoint.clone(),
            mac: [2, 0, 0, 0, 0, 2],
            mtu: 1500,
            contract: open.contract.unwrap_or("best effort".into()),
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
            local.set_port(40_000 + self.next as u16);
        }
        local
    }

    fn close(&mut self, number: u32) {
        let Some((flow, _)) = self.flows.remove(&number) else {
            return;
        };
        let client = self.client.as_mut().expect("attached");
        client.close(flow);
        client.ring();
    }

    fn say(&mut self, what: &Response, fds: &[std::os::fd::BorrowedFd<'_>]) {
        let Some(stream) = &mut self.stream else {
            return;
        };
        let frame = encode_response(what).unwrap();
        let sent = fds::send(stream.as_fd(), &frame, fds).unwrap();
        stream.write_all(&frame[sent..]).unwrap();
    }

    /// Delivers all sent frames to the flows that their addresses match.
    fn carry(&mut self) {
        let senders: Vec<u32> = self.flows.keys().copied().collect();
        for from in senders {
            while let Some((flow, _)) = self.flows.get_mut(&from) {
                let Ok(Taken::Record(record)) = flow.take() else {
                    break;
                };
                let mut frame = [0; 4096];
                let bytes = flow.read(&record, &mut frame);
                self.now += 1;
                flow.give_back(record, Status::DONE, self.now);
                self.hand(&frame[..bytes]);
            }
        }
        let mut moved = false;
        for (flow, _) in self.flows.values_mut() {
            moved |= flow.publish();
        }
        if let Some(client) = &self.client
            && moved
        {
            client.ring();
        }
    }

    fn hand(&mut self, frame: &[u8]) {
        let found = datagram::read(frame, Checks::Verify).expect("a datagram");
        for (flow, endpoint) in self.flows.values_mut() {
            let same = |one: SocketAddr, other: &SocketAddr| {
                (one.ip(), one.port()) == (other.ip(), other.port())
            };
            let for_it = match endpoint {
                Endpoint::Udp { local, remote } => {
                    let from = |remote: &SocketAddr| same(found.from, remote);
                    same(found.to, local) && remote.as_ref().is_none_or(from)
                }
                Endpoint::Group { group, .. } => same(found.to, group),
                _ => false,
            };
            if !for_it {
                continue;
            }
            match flow.take_empty().unwrap() {
                Taken::Record(empty) => {
                    assert_eq!(flow.write(&empty, 0, frame), frame.len());
                    flow.deliver(empty, frame.len(), Status::DONE, self.now);
                }
                _ => flow.lost(Loss::NoBuffer),
            }
        }
    }
}
