//! Nothing is left behind, and nothing of others is touched.

use std::time::Duration;

use netnice_lab::experiment::bench::pause;
use netnice_lab::process::Proc;
use netnice_lab::traffic::{self, Tcp, Udp};
use netnice_lab::world::{self, Pair, Snapshot, World};

#[test]
fn after_clear_and_stop_everything_is_as_before() {
    world::begin().expect("a clean start");
    let world = World::pair(Pair {
        cables: 2,
        ..Pair::default()
    })
    .expect("a world");
    // The runtime folder is the lab's own; what is in it is not.
    std::fs::create_dir_all(world.folder().join("client")).expect("a folder");
    let before = Snapshot::take(&world).expect("a picture");
    {
        let mut netnice = world.netnice("client").expect("a daemon");
        let client = world.client();
        let to = "10.77.0.2:5001".parse().expect("an address");
        let _sink = traffic::eager(world.server(), &Tcp::listen(to).sink()).expect("a sink");
        let program = traffic::eager(client, &Tcp::connect(to, 4).source()).expect("a program");
        let mut command = client.ns.command("sleep");
        command.arg("600");
        let sleeper = Proc::start(command).expect("a process");
        for line in [
            "link eth0 --rate 100mbit --down-rate 100mbit".to_owned(),
            format!(
                "set pid:{} --up 20mbit --down 4mbit --min 10mbit",
                program.pid()
            ),
            format!("set pid:{} --up 3mbit --down 3mbit", sleeper.pid()),
            "set cgroup:/ --up 200mbit".to_owned(),
        ] {
            netnice.type_line(&line).expect("it is granted");
        }
        pause(1.0);
        let during = before.difference(&Snapshot::take(&world).expect("a picture"));
        assert!(
            during.iter().any(|l| l.starts_with("+ ")),
            "it left no trace while it worked?"
        );
        netnice.type_line("clear --all").expect("it clears");
        netnice.stop_daemon();
    }
    let left = before
        .await_same(&world, Duration::from_secs(5))
        .expect("pictures");
    assert!(left.is_empty(), "{left:#?}");
}

/// Where a foreign filter counts: it copies what it sees into a device of its own.
struct Counter {
    device: String,
}

impl Counter {
    /// A filter on `hook` of eth0 in `ns`, at this preference, for UDP to this port.
    fn place(ns: &world::Netns, name: &str, hook: &str, pref: u32, port: u16) -> Counter {
        let device = format!("c{name}");
        ns.ip(&format!("link add {device} type veth peer name {device}x"))
            .expect("a device");
        for end in [format!("{device}x"), device.clone()] {
            // Without an IPv6 address it sends nothing of its own.
            ns.ip(&format!("link set {end} addrgenmode none"))
                .expect("a device");
            ns.ip(&format!("link set {end} up")).expect("a device");
        }
        // The clsact may be there, whoever made it.
        let _ = ns.tc("qdisc add dev eth0 clsact");
        ns.tc(&format!(
            "filter add dev eth0 {hook} protocol ip pref {pref} u32 match ip protocol 17 0xff \
             match ip dport {port} 0xffff action mirred egress mirror dev {device} continue"
        ))
        .expect("a foreign filter");
        Counter { device }
    }

    fn packets(&self, ns: &world::Netns) -> u64 {
        ns.counters(&self.device).expect("counters").tx_packets
    }
}

const UP: u16 = 7001;
const DOWN: u16 = 7002;
const PACKETS: u64 = 200;

#[test]
fn foreign_filters_see_every_packet_once_before_during_and_after() {
    world::begin().expect("a clean start");
    let world = World::pair(Pair::default()).expect("a world");
    let (client, server) = (world.client(), world.server());
    let netnice = world.netnice("client").expect("a daemon");
    // Before and behind ours, both ways, and on the next interface.
    let places = [
        (
            &client.ns,
            Counter::place(&client.ns, "efirst", "egress", 1, UP),
        ),
        (
            &client.ns,
            Counter::place(&client.ns, "elast", "egress", 65_000, UP),
        ),
        (
            &client.ns,
            Counter::place(&client.ns, "ifirst", "ingress", 1, DOWN),
        ),
        (
            &client.ns,
            Counter::place(&client.ns, "ilast", "ingress", 65_000, DOWN),
        ),
        (
            &server.ns,
            Counter::place(&server.ns, "next", "ingress", 1, UP),
        ),
    ];
    let mut limited: Option<u32> = None;
    for phase in ["before", "during", "after"] {
        match (phase, limited) {
            ("after", Some(_)) => {
                netnice.type_line("clear --all").expect("it clears");
            }
            _ => limited = None,
        }
        let before: Vec<u64> = places.iter().map(|(ns, c)| c.packets(ns)).collect();
        exchange(&world, |pid| {
            if phase == "during" {
                netnice
                    .type_line(&format!("set pid:{pid} --up 20mbit --down 20mbit"))
                    .expect("a limit");
                limited = Some(pid);
            }
        });
        for ((ns, counter), before) in places.iter().zip(before) {
            let seen = counter.packets(ns) - before;
            assert_eq!(seen, PACKETS, "{phase}, at {}", counter.device);
        }
    }
}

/// One process sends and receives so many datagrams; `named` hears its number before it starts.
fn exchange(world: &World, named: impl FnOnce(u32)) {
    let at = |host: &str, port| std::net::SocketAddr::new(world.host(host).port().v4.into(), port);
    let server = world.server();
    let sink = traffic::eager(server, &Udp::sink(at("server", UP))).expect("a sink");
    let mut program = traffic::Family::start(world.client()).expect("a program");
    let own = traffic::Life::default();
    let receiver = program
        .traffic(&Udp::sink(at("client", DOWN)), own)
        .expect("a child");
    // 1514 bytes at 4.8448 Mbit/s are 400 packets each second: 200 in half a second.
    let source = |from, to| Udp::source(from, to).rate(1514 * 8 * 400).count(PACKETS);
    let sender = source(at("client", 7003), at("server", UP));
    let sender = program.traffic(&sender, own).expect("a child");
    named(program.pid());
    program.tell(receiver, "go").expect("it listens");
    program.tell(sender, "go").expect("it listens");
    let back = source(at("server", 7004), at("client", DOWN));
    let back = traffic::eager(server, &back).expect("a source");
    pause(1.5);
    let got = program.stop(receiver).expect("it reports").received / 1472;
    assert_eq!(got, PACKETS, "received by the program");
    assert_eq!(
        sink.stop().expect("it reports").received / 1472,
        PACKETS,
        "received by the server"
    );
    drop(back);
}
