//! The flow manager with a fake network and a fake driver.

mod connection;
mod dividing;
mod fake;
mod late;
mod lives;
mod scenarios;
mod telling;

use netnice_api::direct::{
    Attach, ChangeFlow, CloseFlow, DirectReply, DirectRequest, Endpoint, FindNextHop,
    FlowNotification, FlowOpened, OpenFlow, ShapeDoc,
};
use netnice_api::{LinkChange, Request, Response, Set};
use netnice_core::units::{Instant, Nanos};
use netnice_kernel::routes::Change;
use tokio::sync::{mpsc, oneshot};

use super::promises::Promises;
use super::*;
use crate::host::machine::Machine;
use crate::service::{Named, Service};
use fake::{Driver, FakeNetwork};

const ANN: Peer = Peer {
    uid: 1000,
    privileged: false,
    groups: Vec::new(),
};

/// A service and a flow manager, with a fake driver and network.
struct Stage {
    service: Service<Machine>,
    flows: Flows<FakeNetwork>,
    driver: Driver,
    /// True if the driver answers.
    answers: bool,
    /// Calls that the driver has not answered.
    unanswered: Vec<(IfName, DriverCall)>,
    now: Now,
}

/// A program's side of its connection.
struct Seat {
    guest: Guest,
    news: mpsc::Receiver<FlowNotification>,
    peer: Peer,
    pid: u32,
}

fn eth0() -> IfName {
    "eth0".parse().expect("a name")
}

impl Stage {
    /// eth0 carries 100 Mbit/s; process 7 is root's, process 8 is Ann's.
    fn new() -> Stage {
        let mut stage = Stage::unmanaged();
        stage.link("100mbit");
        stage
    }

    fn unmanaged() -> Stage {
        let mut machine = Machine::default();
        machine.spawn(1, 0);
        machine.spawn(7, 0);
        machine.spawn(8, 1000);
        machine.groups.insert("/".to_owned(), 1);
        machine.interfaces.insert("eth0".to_owned(), true);
        machine.interfaces.insert("eth1".to_owned(), true);
        Stage {
            service: Service::new(machine, None),
            flows: Flows::new(FakeNetwork::default()),
            driver: Driver::default(),
            answers: true,
            unanswered: Vec::new(),
            now: Now {
                monotonic: Instant(0).after(Nanos::from_secs(100)),
                wall_ns: 1,
            },
        }
    }

    fn link(&mut self, rate: &str) -> Response {
        let change = LinkChange {
            iface: "eth0".to_owned(),
            rate: Some(rate.to_owned()),
            ..LinkChange::default()
        };
        self.ask(Request::Link(change), None)
    }

    /// Sets the sending rate of the managed link eth0 without a check of its contracts: a contract
    /// that no longer fits is degraded.
    fn relink(&mut self, rate: &str) {
        let mut managed = self.service.ledger().link("eth0").expect("managed").clone();
        managed.link.up.as_mut().expect("a rate").rate = rate.parse().expect("a rate");
        self.service.force_link(managed);
        self.flows.settle_all(&mut self.service, self.now);
        self.pump();
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
        let named = pid.map(|pid| Named {
            pid,
            lives: Box::new(|| true),
        });
        let answer = self.service.handle(&Peer::ROOT, &request, named, self.now);
        self.flows.settle_all(&mut self.service, self.now);
        self.pump();
        answer
    }

    fn seat(&self, peer: &Peer, pid: u32) -> Seat {
        let (guest, news) = Guest::new();
        Seat {
            guest,
            news,
            peer: peer.clone(),
            pid,
        }
    }

    /// A program that has attached with ten flows.
    fn program(&mut self, peer: &Peer, pid: u32) -> Seat {
        let seat = self.seat(peer, pid);
        let answer = self.attach(&seat, 10);
        match answer {
            Response::Direct(DirectReply::Attached(attached)) => {
                assert_eq!(attached.mode, "native");
            }
            other => panic!("{other:?}"),
        }
        seat
    }

    fn attach(&mut self, seat: &Seat, flows: u32) -> Response {
        let attach = Attach {
            iface: None,
            flows,
            bytes: 1 << 20,
        };
        self.tell(seat, DirectRequest::Attach(attach))
            .expect("an answer")
    }

    fn tell(&mut self, seat: &Seat, request: DirectRequest) -> Option<Response> {
        let mut answer = self.begin(seat, request);
        answer.try_recv().ok().map(|told| told.response)
    }

    fn begin(&mut self, seat: &Seat, request: DirectRequest) -> oneshot::Receiver<Told> {
        let (reply, answer) = oneshot::channel();
        let pid = seat.pid;
        let asked = Asked {
            peer: seat.peer.clone(),
            guest: seat.guest.clone(),
            request,
            caller: Some(Caller {
                pid,
                handle: fake::any_fd(),
                lives: Box::new(|| true),
            }),
            reply,
        };
        self.flows.handle(&mut self.service, asked, self.now);
        self.pump();
        answer
    }

    fn open(&mut self, seat: &Seat, to: &str, contract: &str) -> Response {
        let open = udp("0.0.0.0:0", Some(to), contract);
        self.tell(seat, DirectRequest::Open(open))
            .expect("an answer")
    }

    /// Opens a flow, which must succeed.
    fn opened(&mut self, seat: &Seat, to: &str, contract: &str) -> FlowOpened {
        match self.open(seat, to, contract) {
            Response::Direct(DirectReply::Opened(opened)) => opened,
            other => panic!("{other:?}"),
        }
    }

    fn close(&mut self, seat: &Seat, flow: u32) -> Option<Response> {
        self.tell(seat, DirectRequest::Close(CloseFlow { flow }))
    }

    fn change(&mut self, seat: &Seat, flow: u32, change: &str) -> Response {
        let change = ChangeFlow {
            flow,
            change: change.to_owned(),
        };
        self.tell(seat, DirectRequest::Change(change))
            .expect("an answer")
    }

    /// Passes commands to the driver and answers to the manager until there are no more.
    fn pump(&mut self) {
        loop {
            let orders = self.flows.take_orders();
            if orders.is_empty() {
                return;
            }
            for order in orders {
                let (link, heard) = match order {
                    Order::Reach(link, start) => {
                        self.driver.starts += usize::from(start.is_some());
                        (link, driver::Heard::Came)
                    }
                    Order::Call(link, call, _) if self.answers => {
                        let heard = self.answer(&call);
                        (link, heard)
                    }
                    Order::Call(link, call, _) => {
                        self.unanswered.push((link, call));
                        continue;
                    }
                    Order::Leave(_) | Order::Watch(_) => continue,
                };
                self.flows.heard(&mut self.service, &link, heard, self.now);
            }
        }
    }

    fn answer(&mut self, call: &DriverCall) -> driver::Heard {
        let (answer, fds) = self.driver.answer(&call.request);
        let id = call.id;
        driver::Heard::Said(
            netnice_api::driver::DriverMessage::Reply { id, reply: answer },
            fds,
        )
    }

    /// Makes the driver answer again, first the calls made meanwhile.
    fn answer_late(&mut self) {
        self.answers = true;
        for (link, call) in std::mem::take(&mut self.unanswered) {
            let heard = self.answer(&call);
            self.flows.heard(&mut self.service, &link, heard, self.now);
            self.pump();
        }
    }

    fn pass(&mut self, time: Nanos) {
        self.now.monotonic = self.now.monotonic.after(time);
        self.flows.look(&mut self.service, self.now);
        self.pump();
    }

    fn changed(&mut self, change: Change) {
        self.flows
            .ways_changed(&mut self.service, &[change], self.now);
        self.flows.look(&mut self.service, self.now);
        self.pump();
    }

    /// Restarts the daemon; driver and programs stay.
    fn restart(&mut self) {
        let paper = FakeNetwork {
            taken: Default::default(),
            ..self.flows.network.clone()
        };
        self.flows = Flows::new(paper);
        self.service.set_part(&eth0(), None).expect("given back");
        self.flows.find(&eth0(), self.now);
        self.pump();
    }

    fn part(&self) -> Option<crate::ledger::part::Part> {
        self.service.ledger().part(&eth0()).copied()
    }
}

impl Seat {
    fn heard(&mut self) -> Vec<FlowNotification> {
        let mut all = Vec::new();
        while let Ok(news) = self.news.try_recv() {
            all.push(news);
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
    }
}

/// The text of a refusal.
fn words(response: &Response) -> String {
    match response {
        Response::Refused(refused) => refused.text.clone(),
        Response::Failed(failed) => failed.text.clone(),
        other => panic!("{other:?}"),
    }
}
