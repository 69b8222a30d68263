//! A connection of ours with a socket of smoltcp, over a wire in virtual time that loses, delays,
//! reorders and duplicates packets. Every byte must arrive in both directions, and both ends must
//! come to rest. smoltcp shares no code with this crate.

use std::cell::Cell;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use netnice_cases::cases;
use proptest::prelude::*;
use smoltcp::iface::{Interface, SocketHandle, SocketSet};
use smoltcp::phy::{self, ChecksumCapabilities, Device, DeviceCapabilities, Medium};
use smoltcp::socket::tcp;
use smoltcp::wire::{HardwareAddress, IpAddress, IpCidr, Ipv4Address};

use crate::config::Config;
use crate::connection::{CloseReason, Connection, State};
use crate::header::{Flags, Header};
use crate::pair::{End, Random, Wire, identity, pattern};
use crate::time::Instant;

/// smoltcp's end: its program writes the pattern, checks what it reads, and closes.
struct Other {
    interface: Interface,
    device: Queues,
    sockets: SocketSet<'static>,
    socket: SocketHandle,
    wants: u64,
    wrote: u64,
    read: u64,
}

/// Packets to and from smoltcp.
#[derive(Default)]
struct Queues {
    arrived: VecDeque<Vec<u8>>,
    sent: VecDeque<Vec<u8>>,
}

struct Arrived(Vec<u8>);

struct Sending<'a>(&'a mut VecDeque<Vec<u8>>);

impl Device for Queues {
    type RxToken<'a> = Arrived;
    type TxToken<'a> = Sending<'a>;

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ip;
        capabilities.max_transmission_unit = 1500;
        capabilities.checksum = ChecksumCapabilities::ignored();
        capabilities
    }

    fn receive(&mut self, _now: smoltcp::time::Instant) -> Option<(Arrived, Sending<'_>)> {
        let packet = self.arrived.pop_front()?;
        Some((Arrived(packet), Sending(&mut self.sent)))
    }

    fn transmit(&mut self, _now: smoltcp::time::Instant) -> Option<Sending<'_>> {
        Some(Sending(&mut self.sent))
    }
}

impl phy::RxToken for Arrived {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, f: F) -> R {
        f(&self.0)
    }
}

impl phy::TxToken for Sending<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, length: usize, f: F) -> R {
        let mut packet = vec![0; length];
        let result = f(&mut packet);
        self.0.push_back(packet);
        result
    }
}

thread_local! {
    /// The clock of smoltcp's timestamps, in milliseconds.
    static CLOCK: Cell<u32> = const { Cell::new(0) };
}

/// How smoltcp's end behaves.
#[derive(Clone, Copy, Debug)]
struct OtherConfig {
    /// smoltcp opens the connection.
    connects: bool,
    timestamps: bool,
    nagle: bool,
    buffer: usize,
    wants: u64,
}

impl Other {
    fn new(config: OtherConfig) -> Other {
        let mut device = Queues::default();
        let interface_config = smoltcp::iface::Config::new(HardwareAddress::Ip);
        let start = smoltcp::time::Instant::from_micros(0);
        let mut interface = Interface::new(interface_config, &mut device, start);
        interface.update_ip_addrs(|addresses| {
            let address = IpCidr::new(IpAddress::Ipv4(OTHER_ADDRESS), 24);
            addresses
                .push(address)
                .expect("there is room for an address");
        });
        let buffer = || tcp::SocketBuffer::new(vec![0; config.buffer]);
        let mut socket = tcp::Socket::new(buffer(), buffer());
        socket.set_nagle_enabled(config.nagle);
        if config.timestamps {
            socket.set_tsval_generator(Some(|| CLOCK.get()));
        }
        let (own, other) = (identity(0).local_port, identity(0).remote_port);
        if config.connects {
            let remote = (IpAddress::Ipv4(OWN_ADDRESS), own);
            let connects = socket.connect(interface.context(), remote, other);
            connects.expect("the socket is new");
        } else {
            socket.listen(other).expect("the socket is new");
        }
        let mut sockets = SocketSet::new(Vec::new());
        let socket = sockets.add(socket);
        Other {
            interface,
            device,
            sockets,
            socket,
            wants: config.wants,
            wrote: 0,
            read: 0,
        }
    }

    fn work(&mut self, now: Instant) {
        let time = instant(now);
        CLOCK.set(now.as_millis() as u32);
        self.interface
            .poll(time, &mut self.device, &mut self.sockets);
        self.program();
        self.interface
            .poll(time, &mut self.device, &mut self.sockets);
    }

    fn program(&mut self) {
        let socket = self.sockets.get_mut::<tcp::Socket<'_>>(self.socket);
        while self.wrote < self.wants && socket.can_send() {
            let more = (self.wants - self.wrote).min(3000);
            let bytes: Vec<u8> = (0..more).map(|at| pattern(self.wrote + at)).collect();
            let wrote = socket.send_slice(&bytes).expect("the socket can send");
            self.wrote += wrote as u64;
        }
        let mut bytes = [0; 4096];
        while let Ok(count @ 1..) = socket.recv_slice(&mut bytes) {
            for byte in &bytes[..count] {
                let position = self.read;
                assert_eq!(
                    *byte,
                    pattern(position),
                    "smoltcp: a wrong byte at {position}"
                );
                self.read += 1;
            }
        }
        if self.wrote == self.wants && socket.may_send() {
            socket.close();
        }
    }

    fn is_over(&self) -> bool {
        let socket = self.sockets.get::<tcp::Socket<'_>>(self.socket);
        matches!(socket.state(), tcp::State::Closed | tcp::State::TimeWait)
    }

    fn is_forgotten(&self) -> bool {
        let socket = self.sockets.get::<tcp::Socket<'_>>(self.socket);
        socket.state() == tcp::State::Closed
    }

    fn next_time(&mut self, now: Instant) -> Option<Instant> {
        let at = self.interface.poll_at(instant(now), &self.sockets)?;
        let nanos = u64::try_from(at.total_micros()).unwrap_or(0) * 1000;
        // smoltcp may ask for a time that is over, if it waits for something else.
        Some(Instant::from_nanos(nanos).max(now + Duration::from_millis(1)))
    }
}

fn instant(now: Instant) -> smoltcp::time::Instant {
    smoltcp::time::Instant::from_micros((now.as_nanos() / 1000) as i64)
}

/// Both ends and the wire.
struct Trial {
    now: Instant,
    own: Option<End>,
    config: Config,
    wants: u64,
    other: Other,
    wire: Wire,
    random: Random,
    /// Segments on the way; true: to our end.
    flying: BTreeMap<(Instant, u64), (bool, Vec<u8>)>,
    count: u64,
}

impl Trial {
    fn new(seed: u64, wire: Wire, config: Config, wants: u64, other: OtherConfig) -> Trial {
        let now = Instant::from_nanos(1_000_000_000);
        let mut trial = Trial {
            now,
            own: None,
            config,
            wants,
            other: Other::new(other),
            wire,
            random: Random::new(seed),
            flying: BTreeMap::new(),
            count: 0,
        };
        if !other.connects {
            trial.begin(Connection::connect(now, identity(0), config));
        }
        trial
    }

    fn begin(&mut self, connection: Connection) {
        let mut end = End::new(connection);
        end.wants = self.wants;
        end.shuts_down = true;
        self.own = Some(end);
    }

    fn run(&mut self) {
        for _ in 0..5_000_000 {
            self.step();
            let over = |state| matches!(state, State::Closed | State::TimeWait);
            let own = self.own.as_ref();
            if own.is_some_and(|end| over(end.connection.state())) && self.other.is_over() {
                return;
            }
            let timeout = own.and_then(|end| end.connection.poll_timeout());
            let arrival = self.flying.keys().next().map(|key| key.0);
            let other = self.other.next_time(self.now);
            let next = [timeout, arrival, other].into_iter().flatten().min();
            let next = next.expect("something is to happen until both ends are at rest");
            self.now = self.now.max(next);
        }
        panic!("the ends do not come to rest");
    }

    fn step(&mut self) {
        while let Some(entry) = self.flying.first_entry() {
            if entry.key().0 > self.now {
                break;
            }
            let (to_own, segment) = entry.remove();
            match to_own {
                true => self.arrive(&segment),
                false => self.other.device.arrived.push_back(packet(&segment)),
            }
        }
        if let Some(mut end) = self.own.take() {
            end.connection.handle_timeout(self.now);
            end.program();
            while let Some(transmit) = end.connection.poll_transmit(self.now) {
                if let Some(token) = transmit.token {
                    end.connection.handle_departure(token, self.now);
                }
                self.send(false, end.bytes_of(&transmit));
            }
            end.program();
            self.own = Some(end);
        }
        self.other.work(self.now);
        while let Some(packet) = self.other.device.sent.pop_front() {
            self.send(true, packet[IP_HEADER..].to_vec());
        }
    }

    fn arrive(&mut self, segment: &[u8]) {
        if let Some(end) = &mut self.own {
            end.receive(self.now, segment);
            return;
        }
        let (header, _) = Header::parse(segment).expect("smoltcp's headers are valid");
        if header.flags == Flags::SYN {
            let accepted = Connection::accept(self.now, identity(0), self.config, &header);
            self.begin(accepted);
        }
    }

    fn send(&mut self, to_own: bool, segment: Vec<u8>) {
        if self.random.happens(self.wire.loss) {
            return;
        }
        let copies = 1 + u64::from(self.random.happens(self.wire.duplicates));
        for _ in 0..copies {
            let jitter = self.random.below(self.wire.jitter.as_nanos() as u64 + 1);
            let at = self.now + self.wire.delay + Duration::from_nanos(jitter);
            self.count += 1;
            let flying = (to_own, segment.clone());
            self.flying.insert((at, self.count), flying);
        }
    }
}

/// An IPv4 packet from our end to smoltcp's.
fn packet(segment: &[u8]) -> Vec<u8> {
    let mut packet = vec![0x45, 0];
    // The segments fit an MTU of 1500.
    packet.extend(((IP_HEADER + segment.len()) as u16).to_be_bytes());
    // No fragment, 64 hops, TCP; nobody checks the checksum.
    packet.extend([0, 0, 0x40, 0, 64, 6, 0, 0]);
    packet.extend(OWN_ADDRESS.octets());
    packet.extend(OTHER_ADDRESS.octets());
    packet.extend(segment);
    packet
}

fn wire() -> impl Strategy<Value = Wire> {
    (0_u64..60_000, 0_u64..20_000, 0_u64..200, 0_u64..100).prop_map(
        |(delay, jitter, loss, duplicates)| Wire {
            delay: Duration::from_micros(delay),
            jitter: Duration::from_micros(jitter),
            loss,
            duplicates,
            ..Wire::default()
        },
    )
}

fn config() -> impl Strategy<Value = Config> {
    (any::<[bool; 5]>(), 536_u32..1461).prop_map(
        |([sack, timestamps, window_scaling, no_delay, quick], mss)| Config {
            sack,
            timestamps,
            window_scaling,
            no_delay,
            quick,
            mss,
            connect_timeout: Duration::from_secs(3600 * 24),
            user_timeout: Duration::from_secs(3600 * 24),
            // Longer than any series of lost FINs.
            time_wait: Duration::from_secs(3600 * 24),
            ..Config::default()
        },
    )
}

fn other() -> impl Strategy<Value = OtherConfig> {
    (any::<[bool; 3]>(), 2_000_usize..100_000, 0_u64..60_000).prop_map(
        |([connects, timestamps, nagle], buffer, wants)| OtherConfig {
            connects,
            timestamps,
            nagle,
            buffer,
            wants,
        },
    )
}

proptest! {
    #![proptest_config(cases(64))]

    #[test]
    fn every_byte_arrives_between_this_tcp_and_smoltcp(
        seed in any::<u64>(),
        wire in wire(),
        config in config(),
        wants in 0_u64..60_000,
        other in other(),
    ) {
        let mut trial = Trial::new(seed, wire, config, wants, other);
        trial.run();
        let end = trial.own.expect("the connection was opened");
        // smoltcp forgets a connection 10 s after its close, and then answers a repeated FIN, whose
        // acknowledgement was lost, by a reset.
        let forgotten = trial.other.is_forgotten() && end.connection.reason() == Some(CloseReason::Reset);
        prop_assert!(forgotten || end.connection.reason().is_none(), "{:?}", end.connection.info());
        prop_assert_eq!(end.read, other.wants);
        prop_assert_eq!(trial.other.read, wants);
        prop_assert_eq!(end.in_use(), (0, 0));
    }
}

const OWN_ADDRESS: Ipv4Address = Ipv4Address::new(10, 0, 0, 1);
const OTHER_ADDRESS: Ipv4Address = Ipv4Address::new(10, 0, 0, 2);
/// Bytes of an IPv4 header without options.
const IP_HEADER: usize = 20;
