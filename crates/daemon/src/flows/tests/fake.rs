//! A fake network and a fake driver, for the tests of the flow manager.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::rc::Rc;

use netnice_api::direct::Term;
use netnice_api::driver::{
    CensusDoc, DriverFlow, DriverFlowDoc, DriverReply, DriverRequest, FlowCounts, FramesDoc,
    PacketThreadDoc, ProgramDoc, RedirectedDoc, SEND_AHEAD_NS, ServerDoc, TotalsDoc,
};
use netnice_core::contract::Contract;
use netnice_core::units::Nanos;
use netnice_kernel::nic::NicFeatures;
use netnice_kernel::routes::{HostKind, Neighbour, RouteEntry};

use crate::error::RequestError;
use crate::flows::network::{Network, Nic, PortProtocol};

/// A fake network. 10.0.0.100 is this host. Hosts 10.0.0.* are neighbours on eth0 (index 2), hosts
/// 10.1.* are behind 10.0.0.1, and hosts 10.9.* are neighbours on eth1 (index 3).
#[derive(Clone)]
pub(super) struct FakeNetwork {
    /// The states of neighbours.
    pub next_hops: BTreeMap<IpAddr, Neighbour>,
    /// The neighbours whose resolution was started.
    pub solicited: Vec<IpAddr>,
    /// Addresses that sockets hold.
    pub taken: BTreeSet<SocketAddr>,
    /// Hosts whose route leads over another interface.
    pub moved: BTreeMap<IpAddr, u32>,
    /// True if eth0 is up.
    pub up: bool,
    /// Joined multicast groups, with the index of the interface.
    pub joined: Vec<(IpAddr, u32)>,
    /// The number of random values so far.
    pub randoms: u8,
    /// The port chosen last.
    pub next_port: u16,
    /// What the kernel was asked to do with held TCP ports.
    pub port_changes: Vec<&'static str>,
    /// The processor time of each process.
    pub processor_time: Rc<Cell<Nanos>>,
}

impl Default for FakeNetwork {
    fn default() -> FakeNetwork {
        let mac = |n: u8| Neighbour::Known([2, 0, 0, 0, 0, n]);
        let host = |n: u8| IpAddr::from([10, 0, 0, n]);
        FakeNetwork {
            next_hops: (1..10).map(|n| (host(n), mac(n))).collect(),
            solicited: Vec::new(),
            taken: BTreeSet::new(),
            moved: BTreeMap::new(),
            up: true,
            joined: Vec::new(),
            randoms: 0,
            next_port: 40_000,
            port_changes: Vec::new(),
            processor_time: Rc::default(),
        }
    }
}

impl Network for FakeNetwork {
    type Port = ();

    fn interface(&mut self, name: &str) -> Result<Option<Nic>, RequestError> {
        let index = match name {
            "eth0" => 2,
            "eth1" => 3,
            "lo" => 1,
            _ => return Ok(None),
        };
        Ok(Some(Nic {
            index,
            mac: Some(match index {
                1 => [0; 6],
                _ => [2, 0, 0, 0, 1, index as u8],
            }),
            mtu: 1500,
            up: self.up,
        }))
    }

    fn name(&mut self, index: u32) -> Result<Option<String>, RequestError> {
        Ok(Some(format!("eth{}", index - 2)))
    }

    fn route(
        &mut self,
        to: IpAddr,
        _from: Option<IpAddr>,
        over: Option<u32>,
    ) -> Result<Option<RouteEntry>, RequestError> {
        let IpAddr::V4(v4) = to else { return Ok(None) };
        let [first, second, third, last] = v4.octets();
        let (index, next_hop) = match (first, second, third, last) {
            (10, 0, 0, 100) => (1, to),
            (10, 0, 0, _) => (2, to),
            (10, 1, ..) => (2, IpAddr::from([10, 0, 0, 1])),
            (10, 9, ..) => (3, to),
            _ if v4.is_multicast() => (over.unwrap_or(2), to),
            _ => return Ok(None),
        };
        Ok(Some(RouteEntry {
            kind: match () {
                () if v4.is_multicast() => HostKind::Multicast,
                () if index == 1 => HostKind::Local,
                () => HostKind::Unicast,
            },
            index: self.moved.get(&to).copied().unwrap_or(index),
            source: Some([10, 0, 0, 100].into()),
            next_hop,
            mtu: (second == 1).then_some(1400),
        }))
    }

    fn neighbour(&mut self, _index: u32, next_hop: IpAddr) -> Result<Neighbour, RequestError> {
        let known = self.next_hops.get(&next_hop).copied();
        Ok(known.unwrap_or(Neighbour::Unknown))
    }

    fn solicit(&mut self, _index: u32, next_hop: IpAddr) -> Result<(), RequestError> {
        self.solicited.push(next_hop);
        Ok(())
    }

    fn interfaces_with(&mut self, address: IpAddr) -> Result<Vec<u32>, RequestError> {
        Ok(match address.to_string().as_str() {
            "10.0.0.100" => vec![2],
            "10.9.0.100" => vec![3],
            _ => Vec::new(),
        })
    }

    fn let_kernel_reset(&mut self, _port: &()) -> io::Result<()> {
        self.port_changes.push("reset");
        Ok(())
    }

    fn silence_port(&mut self, _port: &()) -> io::Result<()> {
        self.port_changes.push("silent");
        Ok(())
    }

    fn tcp_secret(&mut self) -> io::Result<[u8; 16]> {
        Ok([7; 16])
    }

    fn hold_port(
        &mut self,
        _protocol: PortProtocol,
        at: SocketAddr,
    ) -> io::Result<((), SocketAddr)> {
        if !at.ip().is_multicast()
            && !at.ip().is_unspecified()
            && at.ip().to_string() != "10.0.0.100"
        {
            return Err(io::ErrorKind::AddrNotAvailable.into());
        }
        let mut at = at;
        if at.port() == 0 {
            self.next_port += 1;
            at.set_port(self.next_port);
        }
        match self.taken.contains(&at) {
            true => Err(io::ErrorKind::AddrInUse.into()),
            false => Ok(((), at)),
        }
    }

    fn join_group(&mut self, _port: &(), group: IpAddr, index: u32) -> io::Result<()> {
        // As the kernel refuses a second membership of one socket.
        if self.joined.contains(&(group, index)) {
            return Err(io::ErrorKind::AddrInUse.into());
        }
        self.joined.push((group, index));
        Ok(())
    }

    fn leave_group(&mut self, _port: &(), group: IpAddr, index: u32) -> io::Result<()> {
        let joined = self.joined.iter();
        let at = joined.enumerate().find(|(_, one)| **one == (group, index));
        let (at, _) = at.ok_or(io::ErrorKind::AddrNotAvailable)?;
        self.joined.remove(at);
        Ok(())
    }

    fn first_unprivileged_port(&mut self) -> u16 {
        1024
    }

    fn af_xdp(&mut self) -> Result<(), String> {
        Ok(())
    }

    fn random(&mut self) -> io::Result<[u8; 16]> {
        self.randoms += 1;
        Ok([self.randoms; 16])
    }

    fn nic_features(&mut self, _name: &str) -> Option<NicFeatures> {
        Some(NicFeatures {
            native: Some(true),
            ..NicFeatures::default()
        })
    }

    fn thread(&mut self, process: u32, own_id: u32) -> Option<u32> {
        // The driver is in a PID namespace of its own.
        (process == DRIVER_PROCESS && own_id == 3).then_some(DRIVER_PROCESS + 1)
    }

    fn processor_time(&self, _process: u32) -> Option<Nanos> {
        Some(self.processor_time.get())
    }
}

/// A driver that carries out each call at once.
#[derive(Default)]
pub(super) struct Driver {
    /// The number of commands to connect to it and to start it if it does not run.
    pub starts: usize,
    /// Pids and secrets of its programs, by program id.
    pub programs: BTreeMap<u32, u32>,
    pub secrets: BTreeMap<u32, Option<String>>,
    /// The driver's flows, by the driver's id.
    pub flows: BTreeMap<u32, DriverFlow>,
    /// What the driver has of the link for certain, in bit/s.
    pub rate: u64,
    /// How far the driver sends ahead of the link, in ns.
    pub ahead_ns: u64,
    /// The discard patterns, code points and limit of the time awake that the driver was sent.
    pub discards: Option<Vec<Vec<Term>>>,
    pub code_points: netnice_api::driver::CodePointsDoc,
    pub awake_limit_ppm: Option<u32>,
    /// The servers that the driver was sent, the last one last.
    pub servers: Vec<Option<ServerDoc>>,
    /// The places of the counters that the driver was sent.
    pub counters: Vec<u32>,
    /// The totals that the driver reports.
    pub totals: TotalsDoc,
    /// Packets and bytes that each flow has sent.
    pub sent: (u64, u64),
    /// Why it refuses flows; `None` if it accepts them.
    pub refuses: Option<String>,
    /// The flows that were withdrawn.
    pub withdrawn: Vec<u32>,
    /// The daemon's numbers of the TCP flows whose connections it was asked to reset.
    pub resets: Vec<u32>,
    /// The far end of the redirect pair that the driver was sent.
    pub far: Option<String>,
    /// The redirected targets, by place.
    pub redirected: BTreeMap<u32, RedirectedDoc>,
    /// For how long the first packets of redirected targets wait, in ns, one for each request.
    pub holds: Vec<u64>,
    /// True if the driver has no AF_XDP.
    pub is_fallback: bool,
    next: u32,
}

impl Driver {
    /// Carries out a call.
    pub(super) fn answer(&mut self, ask: &DriverRequest) -> (DriverReply, Vec<OwnedFd>) {
        self.next += 1;
        let number = self.next;
        let answer = match ask {
            DriverRequest::Wire {
                rate,
                kernel_rate,
                ahead_ns,
                ..
            } => {
                self.rate = rate.saturating_sub(*kernel_rate);
                self.ahead_ns = *ahead_ns;
                DriverReply::Done
            }
            DriverRequest::KernelPath { place } => {
                self.counters.push(*place);
                DriverReply::Done
            }
            DriverRequest::Classes { server } => {
                self.servers.push(server.clone());
                DriverReply::Done
            }
            DriverRequest::Attach { pid, secret, .. } => {
                self.secrets.insert(number, secret.clone());
                self.programs.insert(number, *pid);
                let fds = (0..3).map(|_| any_fd()).collect();
                return (DriverReply::Attached { program: number }, fds);
            }
            DriverRequest::Redirects { .. }
            | DriverRequest::Redirect { .. }
            | DriverRequest::EndRedirect { .. } => self.redirect(ask),
            DriverRequest::Detach { program } => {
                self.programs.remove(program);
                self.flows.retain(|_, flow| flow.program != *program);
                DriverReply::Done
            }
            DriverRequest::Open(_) if self.refuses.is_some() => DriverReply::Failed {
                why: self.refuses.clone().unwrap_or_default(),
            },
            DriverRequest::Open(flow) => {
                self.check_work_ahead(&flow.contract);
                self.flows.insert(number, (**flow).clone());
                DriverReply::Opened {
                    flow: number,
                    slot: number,
                    offset: 0,
                }
            }
            DriverRequest::Change { flow, .. }
            | DriverRequest::Readdress { flow, .. }
            | DriverRequest::Withdraw { flow } => match self.flows.contains_key(flow) {
                true => self.change(ask),
                false => failed("no such flow"),
            },
            DriverRequest::Close { flow, reset } => match self.flows.remove(flow) {
                Some(flow) if *reset && flow.endpoint.is_tcp() => {
                    self.resets.push(flow.number);
                    DriverReply::Closed(Box::default())
                }
                Some(_) => DriverReply::Closed(Box::new(self.counts())),
                None => failed("no such flow"),
            },
            DriverRequest::Census => DriverReply::Census(Box::new(self.census())),
            DriverRequest::CensusOf { flows } => {
                let mut census = self.census();
                census.programs.clear();
                census.flows.retain(|doc| flows.contains(&doc.flow));
                DriverReply::Census(Box::new(census))
            }
            DriverRequest::Totals => DriverReply::Totals(self.totals),
            ask => self.take_policy(ask),
        };
        (answer, Vec::new())
    }

    /// Begins to redirect, or changes or ends a place.
    fn redirect(&mut self, ask: &DriverRequest) -> DriverReply {
        match ask {
            DriverRequest::Redirects { iface } => {
                self.far = Some(iface.clone());
                self.redirected.clear();
                DriverReply::Done
            }
            DriverRequest::Redirect { .. } if self.refuses.is_some() => DriverReply::Failed {
                why: self.refuses.clone().unwrap_or_default(),
            },
            DriverRequest::Redirect {
                place,
                target,
                contract,
                hold_ns,
            } => {
                assert!(self.far.is_some(), "the driver has no redirect pair");
                self.check_work_ahead(contract);
                self.holds.push(*hold_ns);
                let doc = RedirectedDoc {
                    place: *place,
                    target: *target,
                    contract: contract.clone(),
                    sent: 7,
                    ..RedirectedDoc::default()
                };
                let before = self.redirected.insert(*place, doc);
                assert!(before.is_none_or(|before| before.target == *target));
                DriverReply::Done
            }
            DriverRequest::EndRedirect { place } => match self.redirected.remove(place) {
                Some(_) => DriverReply::Done,
                None => failed("no such place"),
            },
            other => panic!("{other:?} redirects nothing"),
        }
    }

    /// Changes a flow that the driver has.
    fn change(&mut self, ask: &DriverRequest) -> DriverReply {
        match ask {
            DriverRequest::Change {
                flow,
                contract,
                granted,
            } => {
                self.check_work_ahead(contract);
                let flow = self.flows.get_mut(flow).expect("a flow");
                (flow.contract, flow.granted) = (contract.clone(), granted.clone());
            }
            DriverRequest::Readdress {
                flow,
                next_hop,
                mtu,
            } => {
                let flow = self.flows.get_mut(flow).expect("a flow");
                (flow.next_hop, flow.mtu) = (*next_hop, *mtu);
            }
            DriverRequest::Withdraw { flow } => self.withdrawn.push(*flow),
            other => panic!("{other:?} changes no flow"),
        }
        DriverReply::Done
    }

    fn take_policy(&mut self, ask: &DriverRequest) -> DriverReply {
        match ask {
            DriverRequest::Discard { patterns } => self.discards = Some(patterns.clone()),
            DriverRequest::CodePoints(code_points) => self.code_points = *code_points,
            DriverRequest::AwakeLimit { most_ppm } => self.awake_limit_ppm = Some(*most_ppm),
            _ => {}
        }
        DriverReply::Done
    }

    /// A driver serves packets with times of their own at the shortest work-ahead.
    fn check_work_ahead(&self, contract: &str) {
        let contract: Contract = contract.parse().expect("a contract");
        let is_exact = contract.cell().is_some() || contract.channel().is_some();
        assert!(!is_exact || self.ahead_ns <= SEND_AHEAD_NS, "{contract}");
    }

    fn counts(&self) -> FlowCounts {
        FlowCounts {
            sent: self.sent.0.max(5),
            sent_bytes: self.sent.1,
            ..FlowCounts::default()
        }
    }

    fn census(&self) -> CensusDoc {
        CensusDoc {
            iface: "eth0".to_owned(),
            mode: match self.is_fallback {
                true => "fallback".to_owned(),
                false => "native".to_owned(),
            },
            redirected: self.redirected.values().cloned().collect(),
            rate: self.rate,
            programs: self
                .programs
                .iter()
                .map(|(program, pid)| ProgramDoc {
                    program: *program,
                    pid: *pid,
                    bytes: 1 << 20,
                    uid: None,
                    flows: 10,
                    secret: self.secrets[program].clone(),
                })
                .collect(),
            flows: self
                .flows
                .iter()
                .map(|(flow, setup)| DriverFlowDoc {
                    flow: *flow,
                    setup: setup.clone(),
                    counts: self.counts(),
                    held: 2,
                    slot: *flow,
                })
                .collect(),
            discarded: vec![("checksum".to_owned(), 4)],
            frames: Some(FramesDoc {
                total: 100,
                free: 20,
                driver: 1,
                filling: 70,
                sending: 9,
            }),
            unrequested_doorbells: 11,
            pm_qos_held: true,
            thread: Some(PacketThreadDoc {
                id: 3,
                processor: None,
            }),
            code_points: self.code_points,
            awake_limit_ppm: self.awake_limit_ppm,
            discard_patterns: self.discards.as_ref().map_or(0, |text| text.len() as u32),
            ..CensusDoc::default()
        }
    }
}

fn failed(why: &str) -> DriverReply {
    DriverReply::Failed {
        why: why.to_owned(),
    }
}

/// The driver's process. Its packet thread has the next number.
pub(super) const DRIVER_PROCESS: u32 = 500;

/// Any descriptor.
pub(super) fn any_fd() -> OwnedFd {
    File::open("/dev/null").expect("it is there").into()
}
