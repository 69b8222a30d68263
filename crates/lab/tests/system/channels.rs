//! Channels of handlers between two hosts through what is shipped: netniced and netnice-driver on
//! both, and programs with `netnice-channel`.

use std::fs;
use std::net::SocketAddr;

use netnice_lab::traffic::{
    self, ChannelPlan, ChannelProgram, Messages, PlannedChannel, SendPlan, Udp,
};
use netnice_lab::world::{Netnice, World};

/// Two hosts with netnice on both, and links of this rate.
struct Hosts {
    client: Netnice,
    server: Netnice,
    world: World,
}

const SOURCE: u16 = 5_000;
const SINK: u16 = 6_000;

impl Hosts {
    fn new(rate: &str) -> Hosts {
        let world = World::pair(Default::default()).expect("a world");
        let start = |host: &str| {
            let netnice = world.netnice(host).expect("a daemon");
            netnice
                .run_line(&format!("link eth0 --rate {rate}"))
                .expect("it runs")
                .ok()
                .expect("a link");
            netnice
        };
        let (client, server) = (start("client"), start("server"));
        Hosts {
            client,
            server,
            world,
        }
    }

    fn sink(&self) -> SocketAddr {
        (self.world.server().port().v4, SINK).into()
    }

    fn programs(&self, plan: &ChannelPlan) -> (ChannelProgram, ChannelProgram) {
        let server = self.world.server();
        let sink = ChannelProgram::start(server, self.server.runtime(), (self.sink(), None), plan);
        let sink = sink.expect("a sink");
        (self.source(plan).expect("a source"), sink)
    }

    fn source(&self, plan: &ChannelPlan) -> anyhow::Result<ChannelProgram> {
        let client = self.world.client();
        let local = (client.port().v4, SOURCE).into();
        let ends = (local, Some(self.sink()));
        ChannelProgram::start(client, self.client.runtime(), ends, plan)
    }
}

fn plan(channels: &[(&str, &[&str])]) -> ChannelPlan {
    let planned = |(contract, stages): &(&str, &[&str])| PlannedChannel {
        contract: (*contract).to_owned(),
        best_effort: (16_384, 8),
        stages: stages.iter().map(|stage| (*stage).to_owned()).collect(),
    };
    ChannelPlan {
        largest: 1_400,
        block: 4,
        horizon_ns: 0,
        early_before_best_effort: false,
        computes_ns: (0, 0),
        switch_ns: 0,
        reservation: None,
        records_stops: true,
        channels: channels.iter().map(planned).collect(),
    }
}

/// The names of a process's threads that have SCHED_DEADLINE.
fn exact_threads(pid: u32) -> Vec<String> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).expect("the process lives");
    let name = |task: std::io::Result<fs::DirEntry>| {
        let task = task.expect("an entry").path();
        let stat = fs::read_to_string(task.join("stat")).expect("the thread lives");
        // The policy is the 41st field; the name, in parentheses, is the second one.
        let policy = stat[stat.rfind(')')? + 2..].split_whitespace().nth(38)?;
        let name = fs::read_to_string(task.join("comm")).expect("the thread lives");
        (policy == SCHED_DEADLINE).then(|| name.trim_end().to_owned())
    };
    tasks.filter_map(name).collect()
}

/// The number of this policy in `/proc/PID/stat` (sched(7)).
const SCHED_DEADLINE: &str = "6";
const CAMERA: &str = "channel mmax=60KiB,rmax=50/s,bmax=2,deadline=60ms,processing=20ms";
const CONTROL: &str = "channel mmax=1KiB,rmax=200/s,bmax=1,deadline=30ms,processing=10ms";

#[test]
fn messages_pass_two_hosts_whole_beside_a_flood() {
    let hosts = Hosts::new("100mbit");
    let plan = plan(&[
        (CAMERA, &["checksum"]),
        (CONTROL, &["encryption"]),
        ("", &["checksum", "encryption"]),
    ]);
    let (mut source, mut sink) = hosts.programs(&plan);
    let (client, server) = (hosts.world.client(), hosts.world.server());
    let from = (client.port().v4, 7_000).into();
    let flood = Udp::source(from, (server.port().v4, 7_000).into());
    let flood = flood.rate(200_000_000).size(1_400);
    let flood = traffic::start_now(client, &flood).expect("a flood");
    let every = |size, every_ms: u64| Messages {
        size,
        count: 1,
        every_ns: every_ms * 1_000_000,
        first_ns: 0,
        waits: true,
    };
    let sends = SendPlan {
        lasts_ns: 3_000_000_000,
        channels: vec![every(61_440, 25), every(1_000, 6), every(16_384, 20)],
    };
    let (sent, _) = source.run(&sends).expect("sent");
    flood.stop().expect("stopped");
    // What left the source is at the sink soon.
    std::thread::sleep(std::time::Duration::from_millis(500));
    let (received, port) = sink.counts().expect("counts");
    for (number, (sent, received)) in std::iter::zip(&sent, &received).enumerate() {
        assert!(sent.accepted >= 100, "{number}: {sent:?}");
        assert_eq!((sent.dropped, sent.unsent), (0, 0), "{number}");
        assert_eq!(
            received.messages, sent.accepted,
            "{number}: {received:?}, {port}"
        );
        assert_eq!(
            (received.wrong, received.lost),
            (0, 0),
            "{number}: {received:?}"
        );
    }
    assert_eq!(port["foreign"], 0, "{port}");
    assert_eq!(port["invalid"], 0, "{port}");
}

#[test]
fn what_does_not_fit_is_refused_with_what_would() {
    let hosts = Hosts::new("100mbit");
    // 60 KiB take 5 ms of the link.
    let refused = |contract: &str, reservation: Option<&str>| {
        let mut plan = plan(&[(contract, &[])]);
        plan.reservation = reservation.map(|time| (time.to_owned(), 0));
        let error = hosts.source(&plan).err().expect("refused");
        format!("{error:#}")
    };
    let link = "channel mmax=60KiB,rmax=50/s,bmax=2,deadline=24ms,processing=20ms";
    let text = refused(link, None);
    assert!(text.contains("deadline of at least"), "{text}");
    // The handler's part is shorter than the time for which a reservation may give nothing.
    let processor = "channel mmax=60KiB,rmax=50/s,bmax=2,deadline=60ms,processing=5ms";
    let text = refused(processor, Some("2ms/10ms"));
    assert!(text.contains("does not fit into cpu 2ms/10ms"), "{text}");
    assert!(text.contains("deadline of at least"), "{text}");
    // Nothing is left of what was refused.
    let show = hosts.client.show().expect("show");
    assert!(!show.to_string().contains("60KiB"), "{show}");
    hosts.source(&plan(&[(CAMERA, &[])])).expect("it fits");
}

#[test]
fn the_handlers_have_a_part_of_the_programs_reservation() {
    let hosts = Hosts::new("100mbit");
    let mut plan = plan(&[(
        "channel mmax=60KiB,rmax=50/s,bmax=2,deadline=120ms,processing=80ms",
        &["encryption"],
    )]);
    plan.reservation = Some(("5ms/10ms".to_owned(), 0));
    let (mut source, _sink) = hosts.programs(&plan);
    // The thread of the handlers has a part exactly, and no other thread of the program has.
    let exact = exact_threads(source.pid());
    assert_eq!(exact, ["handlers"], "{exact:?}");
    let sends = SendPlan {
        lasts_ns: 500_000_000,
        channels: vec![Messages {
            size: 61_440,
            count: 1,
            every_ns: 25_000_000,
            first_ns: 0,
            waits: true,
        }],
    };
    let (sent, _) = source.run(&sends).expect("sent");
    assert!(sent[0].accepted >= 15, "{sent:?}");
}
