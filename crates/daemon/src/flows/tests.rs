//! Tests of the flow manager with a fake network and a fake driver, and of the connection to a
//! driver.

mod budgets;
mod classes;
mod connection;
mod division;
mod driver_ends;
mod driver_threads;
mod end_flow;
mod events;
mod fake;
mod flow_replies;
mod holds;
mod icmp_errors;
mod late_answers;
mod many_flows;
mod move_flow;
mod open_flow;
mod receive_shares;
mod redirected_targets;
mod resume;
mod tcp_flows;

use std::net::SocketAddr;

use netnice_api::direct::{
    Attach, ChangeFlow, CloseFlow, DirectReply, DirectRequest, Endpoint, FindNextHop,
    FlowNotification, FlowOpened, OpenFlow, ShapeDoc,
};
use netnice_api::{LinkChange, Request, Response, Set};
use netnice_core::units::{Instant, Nanos};
use netnice_kernel::routes::RouteChange;
use tokio::sync::{mpsc, oneshot};

use super::promises::{Promises, TargetCheck, TargetDraft};
use super::*;
use crate::host::fake::FakeMachine;
use crate::service::{NamedProcess, Service};
use fake::{DRIVER_PROCESS, Driver, FakeNetwork};

const ANN: Peer = Peer {
    uid: 1000,
    privileged: false,
    groups: Vec::new(),
};

/// A service and a flow manager, with a fake driver and network.
struct Fixture {
    service: Service<FakeMachine>,
    flows: Flows<FakeNetwork>,
    driver: Driver,
    /// True if the driver answers.
    driver_answers: bool,
    /// Calls that the driver has not answered.
    unanswered: Vec<(IfName, DriverCall)>,
    now: Now,
}

/// A program's side of its connection.
struct TestClient {
    connection: ConnectionHandle,
    notifications: mpsc::Receiver<FlowNotification>,
    peer: Peer,
    pid: u32,
}

fn eth0() -> IfName {
    "eth0".parse().expect("a name")
}

impl Fixture {
    /// eth0 carries 100 Mbit/s; process 7 is root's, process 8 is Ann's.
    fn new() -> Fixture {
        let mut fixture = Fixture::unmanaged();
        fixture.link("100mbit");
        fixture
    }

    fn unmanaged() -> Fixture {
        let mut machine = FakeMachine::default();
        machine.spawn(1, 0);
        machine.spawn(7, 0);
        machine.spawn(8, 1000);
        machine.groups.insert("/".to_owned(), 1);
        machine.interfaces.insert("eth0".to_owned(), true);
        machine.interfaces.insert("eth1".to_owned(), true);
        Fixture {
            service: Service::new(machine, None),
            flows: Flows::new(FakeNetwork::default()),
            driver: Driver::default(),
            driver_answers: true,
            unanswered: Vec::new(),
            now: Now {
                monotonic: Instant(0).after(Nanos::from_secs(100)),
                wall_ns: 1,
            },
        }
    }

    /// Moves a process to another network namespace.
    fn leaves_network(&mut self, pid: u32) {
        let living = self.service.host().processes.get_mut(&pid);
        living.expect("a process").process.in_own_network = Some(false);
    }

    fn link(&mut self, rate: &str) -> Response {
        self.link_of("eth0", rate)
    }

    fn link_of(&mut self, iface: &str, rate: &str) -> Response {
        let change = LinkChange {
            iface: iface.to_owned(),
            rate: Some(rate.to_owned()),
            ..LinkChange::default()
        };
        self.ask(Request::Link(Box::new(change)), None)
    }

    /// Sets the sending rate of the managed link eth0 without a check of its contracts: a contract
    /// that no longer fits is degraded.
    fn relink(&mut self, rate: &str) {
        let mut managed = self.service.ledger().link("eth0").expect("managed").clone();
        managed.link.up.as_mut().expect("a rate").rate = rate.parse().expect("a rate");
        self.service.force_link(managed);
        self.flows.settle_all(&mut self.service, self.now);
        self.exchange();
    }

    fn set(&mut self, pid: u32, change: &str) -> Response {
        let set = Set {
            target: format!("pid:{pid}"),
            change: Some(change.to_owned()),
            ..Set::default()
        };
        self.ask(Request::Set(set), Some(pid))
    }

    fn ask(&mut self, request: Request, pid: Option<u32>) -> Response {
        let named = pid.map(|pid| NamedProcess {
            pid,
            lives: Box::new(|| true),
        });
        let flows = &mut self.flows;
        let mut check = |draft: &TargetDraft<'_>| flows.check_target(draft);
        let with = (named, &mut check as &mut TargetCheck<'_>);
        let answer = self
            .service
            .handle_checked(&Peer::ROOT, &request, with, self.now);
        self.flows.settle_all(&mut self.service, self.now);
        self.exchange();
        answer
    }

    fn client(&self, peer: &Peer, pid: u32) -> TestClient {
        let (connection, notifications) = ConnectionHandle::new(pid);
        TestClient {
            connection,
            notifications,
            peer: peer.clone(),
            pid,
        }
    }

    /// A program that has attached with ten flows.
    fn attached_client(&mut self, peer: &Peer, pid: u32) -> TestClient {
        let client = self.client(peer, pid);
        let answer = self.attach(&client, 10);
        match answer {
            Response::Direct(DirectReply::Attached(attached)) => {
                assert_eq!(attached.mode, "native");
            }
            other => panic!("{other:?}"),
        }
        client
    }

    fn attach(&mut self, client: &TestClient, flows: u32) -> Response {
        let attach = Attach {
            iface: None,
            flows,
            bytes: 1 << 20,
            moves: false,
        };
        self.request(client, DirectRequest::Attach(attach))
            .expect("an answer")
    }

    fn request(&mut self, client: &TestClient, request: DirectRequest) -> Option<Response> {
        let mut answer = self.begin(client, request);
        answer.try_recv().ok().map(|text| text.response)
    }

    /// Begins to attach a program, which waits for the driver.
    fn begin_attach(&mut self, client: &TestClient) -> oneshot::Receiver<Reply> {
        let attach = DirectRequest::Attach(Attach {
            iface: None,
            flows: 1,
            bytes: 4096,
            moves: false,
        });
        self.begin(client, attach)
    }

    fn begin(&mut self, client: &TestClient, request: DirectRequest) -> oneshot::Receiver<Reply> {
        let (reply, answer) = oneshot::channel();
        let pid = client.pid;
        let program_request = ProgramRequest {
            peer: client.peer.clone(),
            connection: client.connection.clone(),
            request,
            caller: Some(Caller {
                pid,
                handle: fake::any_fd(),
                lives: Box::new(|| true),
            }),
            reply,
        };
        self.flows
            .handle(&mut self.service, program_request, self.now);
        self.exchange();
        answer
    }

    fn open(&mut self, client: &TestClient, to: &str, contract: &str) -> Response {
        let open = udp("0.0.0.0:0", Some(to), contract);
        self.request(client, DirectRequest::Open(open))
            .expect("an answer")
    }

    /// Opens a flow, which must succeed.
    fn opened(&mut self, client: &TestClient, to: &str, contract: &str) -> FlowOpened {
        match self.open(client, to, contract) {
            Response::Direct(DirectReply::Opened(opened)) => opened,
            other => panic!("{other:?}"),
        }
    }

    fn close(&mut self, client: &TestClient, flow: u32) -> Option<Response> {
        self.request(client, DirectRequest::Close(CloseFlow { flow }))
    }

    fn change(&mut self, client: &TestClient, flow: u32, change: &str) -> Response {
        let change = ChangeFlow {
            flow,
            change: change.to_owned(),
        };
        self.request(client, DirectRequest::Change(change))
            .expect("an answer")
    }

    /// Passes commands to the driver and answers to the manager until there are no more.
    fn exchange(&mut self) {
        loop {
            let commands = self.flows.take_commands();
            if commands.is_empty() {
                return;
            }
            for command in commands {
                let (link, event) = match command {
                    Command::Connect(link, start) => {
                        self.driver.starts += usize::from(start.is_some());
                        (
                            link,
                            driver::ConnectionEvent::Connected(Some(DRIVER_PROCESS)),
                        )
                    }
                    Command::Call(link, call, _) if self.driver_answers => {
                        let event = self.answer(&call);
                        (link, event)
                    }
                    Command::Call(link, call, _) => {
                        self.unanswered.push((link, call));
                        continue;
                    }
                    Command::Disconnect(_) | Command::WatchConnection(_) => continue,
                };
                self.flows
                    .handle_driver_event(&mut self.service, &link, event, self.now);
                self.flows.settle_all(&mut self.service, self.now);
            }
        }
    }

    fn answer(&mut self, call: &DriverCall) -> driver::ConnectionEvent {
        let (answer, fds) = self.driver.answer(&call.request);
        let id = call.id;
        driver::ConnectionEvent::Message(
            netnice_api::driver::DriverMessage::Reply { id, reply: answer },
            fds,
        )
    }

    /// Makes the driver answer again, first the calls made meanwhile, in their order.
    fn answer_pending(&mut self) {
        self.driver_answers = false;
        while !self.unanswered.is_empty() {
            let (link, call) = self.unanswered.remove(0);
            let event = self.answer(&call);
            self.flows
                .handle_driver_event(&mut self.service, &link, event, self.now);
            self.flows.settle_all(&mut self.service, self.now);
            self.exchange();
        }
        self.driver_answers = true;
    }

    fn advance(&mut self, time: Nanos) {
        self.now.monotonic = self.now.monotonic.after(time);
        self.flows.handle_timeouts(&mut self.service, self.now);
        self.flows.settle_all(&mut self.service, self.now);
        self.exchange();
    }

    fn changed(&mut self, change: RouteChange) {
        self.flows
            .routes_changed(&mut self.service, &[change], self.now);
        self.advance(routes::ROUTES_SETTLE);
    }

    /// Restarts the daemon; driver and programs stay.
    fn restart(&mut self) {
        self.restart_with_taken(&[]);
    }

    /// As [`Fixture::restart`], with addresses that sockets hold meanwhile.
    fn restart_with_taken(&mut self, taken: &[SocketAddr]) {
        let network = FakeNetwork {
            taken: taken.iter().copied().collect(),
            ..self.flows.network.clone()
        };
        self.flows = Flows::new(network);
        self.service
            .set_direct_part(&eth0(), None)
            .expect("given back");
        self.flows.adopt_driver(&eth0(), self.now);
        self.exchange();
    }

    fn direct_part(&self) -> Option<crate::ledger::direct_part::DirectPart> {
        self.service.ledger().direct_part(&eth0()).copied()
    }
}

impl TestClient {
    fn notifications(&mut self) -> Vec<FlowNotification> {
        let mut all = Vec::new();
        while let Ok(notifications) = self.notifications.try_recv() {
            all.push(notifications);
        }
        all
    }
}

fn udp(local: &str, remote: Option<&str>, contract: &str) -> OpenFlow {
    OpenFlow {
        endpoint: Endpoint::Udp {
            local: local.parse().expect("an address"),
            remote: remote.map(|remote| remote.parse().expect("an address")),
        },
        contract: (!contract.is_empty()).then(|| contract.to_owned()),
        shape: ShapeDoc {
            chunk_bytes: 2048,
            chunks: 64,
            transmit_entries: 64,
            receive_entries: 64,
        },
        in_order: false,
        hold: None,
    }
}

/// The text of a refusal.
fn error_text(response: &Response) -> String {
    match response {
        Response::Refused(refused) => refused.text.clone(),
        Response::Failed(failed) => failed.text.clone(),
        other => panic!("{other:?}"),
    }
}
