//! Tests the registry with a packet thread, on a fake link.

use std::os::unix::net::UnixDatagram;
use std::sync::{Arc, Mutex};
use std::thread;

use netnice_api::direct::{Endpoint, ShapeDoc};

use super::*;
use crate::commands;
use crate::datapath::Datapath;
use crate::event_loop::EventLoop;
use crate::link::{Interface, Link};
use crate::test_frames::OWN;

const RATE: u64 = 1_000_000_000;
const SHAPE: ShapeDoc = ShapeDoc {
    chunk_bytes: 2048,
    chunks: 64,
    transmit_entries: 64,
    receive_entries: 64,
};

/// A registry whose packet thread ends with it.
fn registry() -> Registry {
    registry_with(Err)
}

/// The same, with a packet thread that executes only the commands that `instead` returns.
fn registry_with(
    mut instead: impl FnMut(Command) -> Result<Report, Command> + Send + 'static,
) -> Registry {
    let interface = Interface {
        name: "fake".to_owned(),
        index: 1,
        mac: OWN,
        mtu: 1500,
        is_up: true,
        cuts_segments: false,
        is_virtual: true,
    };
    let (socket, _) = UnixDatagram::pair().unwrap();
    socket.set_nonblocking(true).unwrap();
    let (link, ingress) = Link::fake(&interface, socket.into());
    let datapath = Datapath::new(wire(RATE, 24).unwrap(), OWN).unwrap();
    let mut event_loop = EventLoop::new(datapath, link).unwrap();
    let (sender, mut receiver) = commands::pair().unwrap();
    event_loop.watch_wakeup(receiver.wakeup_fd()).unwrap();
    thread::spawn(move || {
        while receiver.execute_unless(&mut event_loop, &mut instead) {
            event_loop.iterate(Nanos::from_secs(1));
        }
    });
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
    Registry::new(sender, ingress, RATE, epoll, MemoryFiles::new().unwrap())
}

impl Registry {
    /// Attaches this process as a program.
    fn program(&mut self) -> u32 {
        let pid = std::process::id();
        let pidfd = PidFd::open(pid).unwrap().duplicate().unwrap();
        let budget = Budget {
            flows: 4,
            bytes: 4 << 20,
        };
        let identity = ProgramIdentity {
            secret: None,
            pid,
            uid: 1000,
            memory_limit: 1 << 30,
        };
        self.attach(&identity, budget, Some(pidfd)).unwrap().program
    }

    /// Opens a flow of the program, from this port.
    fn opened(&mut self, program: u32, port: u16) -> u32 {
        self.try_open(program, port).unwrap()
    }

    fn try_open(&mut self, program: u32, port: u16) -> Result<u32, RegistryError> {
        let setup = DriverFlow {
            program,
            number: port.into(),
            endpoint: Endpoint::Udp {
                local: format!("10.0.0.1:{port}").parse().unwrap(),
                remote: Some("10.0.0.2:9".parse().unwrap()),
            },
            next_hop: Some([2, 0, 0, 0, 0, 2]),
            mtu: 1500,
            contract: "weight 100".to_owned(),
            granted: None,
            shape: SHAPE,
            in_order: false,
            receive_budget: None,
        };
        Ok(self.open(setup)?.0)
    }
}

#[test]
fn a_late_call_for_a_closed_flow_does_not_reach_the_flow_in_its_place() {
    let mut registry = registry();
    let other = registry.program();
    // The flow ends with its program, and by itself.
    for by_itself in [false, true] {
        let gone = registry.program();
        let late = registry.opened(gone, 5000);
        let number = registry.flows.get(late).unwrap().datapath_no;
        match by_itself {
            true => drop(registry.close(late, false).unwrap()),
            false => registry.detach(gone).unwrap(),
        }
        let present = registry.opened(other, 5000);
        assert_eq!(registry.flows.get(present).unwrap().datapath_no, number);
        let before = registry.census().unwrap().flows;
        let calls = [
            registry.change(late, "up 1mbit".to_owned(), None),
            registry.readdress(late, None, 576),
            registry.close(late, false).map(drop),
        ];
        for call in calls {
            let refused = call.unwrap_err().to_string();
            assert_eq!(refused, format!("flow {late} is not open (any more)"));
        }
        assert_eq!(registry.census().unwrap().flows, before);
        assert_eq!((before[0].flow, before[0].held), (present, 0));
        // Calls for the present flow succeed.
        registry.readdress(present, None, 576).unwrap();
        let counts = registry.close(present, false).unwrap();
        assert_eq!(counts, FlowCounts::default());
    }
}

#[test]
fn numbers_of_open_flows_are_skipped() {
    let mut registry = registry();
    let program = registry.program();
    let first = registry.opened(program, 5000);
    registry.flows.begin_at(u32::MAX);
    let last = registry.opened(program, 5001);
    let next = registry.opened(program, 5002);
    assert_eq!((first, last, next), (0, u32::MAX, 1));
    let census = registry.census().unwrap();
    let listed: Vec<u32> = census.flows.iter().map(|flow| flow.flow).collect();
    assert_eq!(listed, [0, 1, u32::MAX]);
    assert_eq!(census.frames, None, "the kernel copies");
    let some = registry.census_of(&[u32::MAX, 7, 1]).unwrap();
    assert_eq!(some.programs, []);
    let wanted = [&census.flows[2], &census.flows[1]];
    assert_eq!(some.flows.iter().collect::<Vec<_>>(), wanted);
    registry.detach(program).unwrap();
    assert!(registry.flows.is_empty());
    let program = registry.program();
    assert_eq!(registry.opened(program, 5000), 2);
}

/// The addresses in the packet thread, as its commands set them: the interface's, and those of
/// each flow with its longest frame.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Addresses {
    mac: Option<Mac>,
    flows: BTreeMap<FlowNo, (Mac, Option<Mac>, usize)>,
}

/// A registry, the addresses in its packet thread, and how many more commands for a flow's
/// addresses that thread executes before it refuses one.
type Observed = (Registry, Arc<Mutex<Addresses>>, Arc<Mutex<Option<u32>>>);

fn observed() -> Observed {
    let addresses = Arc::new(Mutex::new(Addresses::default()));
    let left = Arc::new(Mutex::new(None));
    let (seen, countdown) = (addresses.clone(), left.clone());
    let registry = registry_with(move |command| {
        let mut seen = seen.lock().unwrap();
        let mut left = countdown.lock().unwrap();
        match &command {
            Command::Mac(mac) => seen.mac = Some(*mac),
            Command::Readdress(..) if *left == Some(0) => {
                *left = None;
                return Ok(Report::Failed("refused".to_owned()));
            }
            Command::Readdress(flow, mac, next_hop, longest) => {
                *left = left.map(|left| left - 1);
                seen.flows.insert(*flow, (*mac, *next_hop, *longest));
            }
            _ => {}
        }
        Err(command)
    });
    (registry, addresses, left)
}

#[test]
fn a_program_that_was_not_attached_keeps_its_memory_for_its_next_flow() {
    let mut refused = false;
    let mut registry = registry_with(move |command| match command {
        Command::Attach(_, memory, _) if !refused => {
            refused = true;
            Ok(Report::NotAttached("no doorbell".to_owned(), memory))
        }
        command => Err(command),
    });
    let program = registry.program();
    let error = registry.try_open(program, 5000).unwrap_err();
    assert_eq!(error.to_string(), "no doorbell");
    assert_eq!(registry.census().unwrap().flows, []);
    let flow = registry.opened(program, 5000);
    registry.close(flow, false).unwrap();
    registry.detach(program).unwrap();
}

#[test]
fn a_refused_readdress_changes_nothing() {
    let (mut registry, addresses, left) = observed();
    let program = registry.program();
    let flow = registry.opened(program, 5000);
    registry.readdress(flow, None, 1400).unwrap();
    let before = registry.census().unwrap().flows;
    assert_eq!(
        (before[0].setup.next_hop, before[0].setup.mtu),
        (None, 1400)
    );
    let sent = addresses.lock().unwrap().clone();
    *left.lock().unwrap() = Some(0);
    let next_hop = Some([2, 0, 0, 0, 0, 7]);
    let refused = registry.readdress(flow, next_hop, 576).unwrap_err();
    assert!(matches!(refused, RegistryError::Refused(_)), "{refused}");
    assert_eq!(registry.census().unwrap().flows, before);
    // A later change of the interface sends the values from before the refused call.
    registry.update_interface(OWN, 1500).unwrap();
    assert_eq!(addresses.lock().unwrap().flows, sent.flows);
}

#[test]
fn a_refused_change_of_the_interface_is_undone() {
    const NEW: Mac = Mac([2, 0, 0, 0, 0, 9]);
    let (mut registry, addresses, left) = observed();
    let program = registry.program();
    for port in [5000, 5001, 5002] {
        registry.opened(program, port);
    }
    registry.update_interface(OWN, 1500).unwrap();
    let before = (
        registry.ingress().interface().clone(),
        addresses.lock().unwrap().clone(),
    );
    assert_eq!(before.1.flows.len(), 3);
    for executed in 0..3 {
        *left.lock().unwrap() = Some(executed);
        let refused = registry.update_interface(NEW, 576).unwrap_err();
        assert!(matches!(refused, RegistryError::Refused(_)), "{refused}");
        assert_eq!(*registry.ingress().interface(), before.0, "{executed}");
        assert_eq!(*addresses.lock().unwrap(), before.1, "{executed}");
    }
    registry.update_interface(NEW, 576).unwrap();
    let interface = registry.ingress().interface();
    assert_eq!((interface.mac, interface.mtu), (NEW, 576));
    let addresses = addresses.lock().unwrap();
    assert_eq!(addresses.mac, Some(NEW));
    let is_new = |(mac, _, longest): &(Mac, Option<Mac>, usize)| (*mac, *longest) == (NEW, 590);
    assert!(addresses.flows.values().all(is_new), "{addresses:?}");
}
