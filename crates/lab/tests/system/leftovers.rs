//! Tests that netnice leaves nothing behind, and changes nothing of other programs.

use std::collections::BTreeSet;

use netnice_lab::process::{self, Proc};
use netnice_lab::testbed::becomes_true;
use netnice_lab::traffic::{self, Tcp, Udp};
use netnice_lab::world::{self, Cgroup, Host, Pair, Snapshot, World};

use crate::users::ANN;

/// The state of the world and the machine before a test.
struct Before {
    snapshot: Snapshot,
    daemons: BTreeSet<u32>,
}

impl Before {
    fn take(world: &World) -> Before {
        // The runtime folder belongs to the lab; its contents do not.
        std::fs::create_dir_all(world.folder().join("client")).expect("a folder");
        Before {
            daemons: daemons(),
            snapshot: Snapshot::take(world).expect("a snapshot"),
        }
    }

    /// Fails unless the state is as before. eBPF objects, mounts and cgroups are those of the whole
    /// machine. Removed ones without this process's name belong to others, because netnice had none
    /// at first. If another daemon was started meanwhile, added ones may belong to it.
    fn assert_restored(&self, world: &World) {
        // The kernel frees programs and maps some time after their last user has gone.
        let left = || self.differences(world);
        assert!(becomes_true(|| left().is_empty()), "{:#?}", left());
    }

    /// The current differences from the state before.
    fn differences(&self, world: &World) -> Vec<String> {
        let now = Snapshot::take(world).expect("a snapshot");
        let mut left = self.snapshot.difference(&now);
        let alone = daemons().difference(&self.daemons).next().is_none();
        if !alone {
            eprintln!(
                "another netniced was started meanwhile: what came to the machine may be its"
            );
        }
        let own = format!("nn-{}-", std::process::id());
        left.retain(|line| {
            let (sign, what) = line.split_at(2);
            let wide = ["bpf", "mounts", "cgroups"]
                .iter()
                .any(|w| what.starts_with(w));
            !wide || line.contains(&own) || (alone && sign == "+ ")
        });
        left
    }
}

/// The daemons that run on this machine.
fn daemons() -> BTreeSet<u32> {
    let processes = std::fs::read_dir("/proc").expect("/proc").flatten();
    let numbers = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    numbers
        .filter(|pid: &u32| {
            let name = std::fs::read_to_string(format!("/proc/{pid}/comm"));
            name.is_ok_and(|name| name.trim() == "netniced")
        })
        .collect()
}

#[test]
fn after_clear_and_stop_everything_is_as_before() {
    world::begin().expect("a clean start");
    let world = World::pair(Pair {
        cables: 2,
        ..Pair::default()
    })
    .expect("a world");
    let group = Cgroup::create("trace.slice").expect("a group");
    let before = Before::take(&world);
    {
        let mut netnice = world.netnice("client").expect("a daemon");
        let client = world.client();
        let to = "10.77.0.2:5001".parse().expect("an address");
        let here = "127.0.0.1:5001".parse().expect("an address");
        let _sink = traffic::start_now(world.server(), &Tcp::listen(to).sink()).expect("a sink");
        let _local = traffic::start_now(client, &Tcp::listen(here).sink()).expect("a sink");
        let mut program = traffic::ParentProcess::start(client).expect("a program");
        let options = traffic::RunOptions::at_once();
        for to in [to, here] {
            let flows = Tcp::connect(to, 4).source();
            program.traffic(&flows, options).expect("a child");
        }
        let mut command = client.ns.command("sleep");
        command.arg("600");
        let sleeper = Proc::start(command).expect("a process");
        for line in [
            "link eth0 --rate 100mbit --down-rate 100mbit".to_owned(),
            format!(
                "set pid:{} --up 20mbit --down 4mbit --min 10mbit",
                program.pid()
            ),
            format!("set pid:{} --up 4mbit", sleeper.pid()),
            format!("set cgroup:{} --down 2mbit", group.path()),
            "set cgroup:/ --up 200mbit".to_owned(),
            format!("set user:{ANN} --both 8mbit"),
            "set app:/bin/true --up 8mbit".to_owned(),
            "run --up 1mbit -- true".to_owned(),
        ] {
            netnice.run_line(&line).expect("it is granted");
        }
        // Traffic passes during the work.
        let received = || {
            world
                .server()
                .ns
                .counters("eth0")
                .expect("counters")
                .rx_bytes
        };
        let begun = received();
        assert!(
            becomes_true(|| received() > begun + 100_000),
            "nothing passes"
        );
        let now = Snapshot::take(&world).expect("a snapshot");
        let during = before.snapshot.difference(&now);
        for wanted in ["+ bpf progs", "nn0", "htb"] {
            assert!(
                during.iter().any(|l| l.contains(wanted)),
                "no {wanted} while it worked? {during:#?}"
            );
        }
        netnice.run_line("clear --all").expect("it clears");
        netnice.stop_daemon();
    }
    before.assert_restored(&world);
}

#[test]
fn the_next_daemon_clears_the_objects_of_a_killed_one() {
    world::begin().expect("a clean start");
    let world = World::pair(Pair::default()).expect("a world");
    let before = Before::take(&world);
    {
        let mut netnice = world.netnice("client").expect("a daemon");
        let mut command = world.client().ns.command("sleep");
        command.arg("600");
        let sleeper = Proc::start(command).expect("a process");
        for line in [
            "link eth0 --rate 100mbit --down-rate 100mbit".to_owned(),
            format!("set pid:{} --up 4mbit --min 1mbit", sleeper.pid()),
        ] {
            netnice.run_line(&line).expect("it is granted");
        }
        netnice.kill_daemon();
        netnice.start_daemon().expect("another daemon");
        netnice.run_line("clear --all").expect("it clears");
        netnice.stop_daemon();
    }
    before.assert_restored(&world);
}

/// The counter of a foreign filter: the filter copies packets to a device of its own.
struct Counter {
    device: String,
}

impl Counter {
    /// Makes a filter on `hook` of eth0 in `ns`, with this preference, for UDP to this port.
    fn add(ns: &world::Netns, name: &str, hook: &str, pref: u32, port: u16) -> Counter {
        let device = format!("c{name}");
        ns.ip(&format!("link add {device} type veth peer name {device}x"))
            .expect("a device");
        for end in [format!("{device}x"), device.clone()] {
            // Without an IPv6 address it sends no packets of its own.
            ns.ip(&format!("link set {end} addrgenmode none"))
                .expect("a device");
            ns.ip(&format!("link set {end} up")).expect("a device");
        }
        // The clsact may exist already, made by netnice or by the test.
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

/// Whether the kernel runs netnice's programs before all filters, in any order of attachment (tcx,
/// Linux 6.6 and later). On older kernels a filter before netnice's sees limited packets twice, on
/// their way to the stage and back.
fn has_tcx() -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").expect("a kernel");
    let mut numbers = release
        .split(['.', '-'])
        .map_while(|part| part.parse::<u32>().ok());
    (numbers.next(), numbers.next()) >= (Some(6), Some(6))
}

#[test]
fn foreign_filters_see_every_packet_once_before_during_and_after() {
    world::begin().expect("a clean start");
    let world = World::pair(Pair::default()).expect("a world");
    let (client, server) = (world.client(), world.server());
    // Before and after netnice's programs, in both directions, and on the next interface.
    let places = [
        (&client.ns, "efirst", "egress", 1, UP),
        (&client.ns, "elast", "egress", 65_000, UP),
        (&client.ns, "ifirst", "ingress", 1, DOWN),
        (&client.ns, "ilast", "ingress", 65_000, DOWN),
        (&server.ns, "next", "ingress", 1, UP),
    ];
    let places =
        places.map(|(ns, name, hook, pref, port)| (ns, Counter::add(ns, name, hook, pref, port)));
    let before = Before::take(&world);
    let mut netnice = world.netnice("client").expect("a daemon");
    for phase in ["before", "limited", "on a managed link too", "after"] {
        if phase == "on a managed link too" {
            netnice
                .run_line("link eth0 --rate 100mbit --down-rate 100mbit")
                .expect("a link");
        }
        if phase == "after" {
            netnice.run_line("clear --all").expect("it clears");
        }
        let during = !["before", "after"].contains(&phase);
        let counted: Vec<u64> = places.iter().map(|(ns, c)| c.packets(ns)).collect();
        exchange(&world, |pid| {
            if during {
                netnice
                    .run_line(&format!("set pid:{pid} --up 20mbit --down 20mbit"))
                    .expect("a limit");
            }
        });
        for ((ns, counter), before) in places.iter().zip(counted) {
            let seen = counter.packets(ns) - before;
            let twice = during && !has_tcx() && counter.device.ends_with("first");
            assert!(
                seen == PACKETS || (twice && seen > PACKETS && seen <= 3 * PACKETS),
                "{phase}, at {}: {seen} of {PACKETS}",
                counter.device
            );
        }
    }
    netnice.stop_daemon();
    drop(netnice);
    before.assert_restored(&world);
}

/// Number of UDP datagrams that programs of a host have read.
fn datagrams_read(host: &Host) -> u64 {
    let mut cat = host.ns.command("cat");
    let text = process::run(cat.arg("/proc/net/snmp")).expect("counters");
    let mut lines = text.lines().filter_map(|line| line.strip_prefix("Udp: "));
    let read = lines.nth(1).expect("values").split(' ').next();
    read.expect("InDatagrams").parse().expect("a number")
}

/// One process sends and receives [`PACKETS`] datagrams; `named` gets its process id before it
/// starts.
fn exchange(world: &World, named: impl FnOnce(u32)) {
    let at = |host: &str, port| std::net::SocketAddr::new(world.host(host).port().v4.into(), port);
    let server = world.server();
    let sink = traffic::start_now(server, &Udp::sink(at("server", UP))).expect("a sink");
    let mut program = traffic::ParentProcess::start(world.client()).expect("a program");
    let own = traffic::RunOptions::default();
    let receiver = program
        .traffic(&Udp::sink(at("client", DOWN)), own)
        .expect("a child");
    // 1514 bytes at 4.8448 Mbit/s are 400 packets each second: 200 in half a second.
    let source = |from, to| Udp::source(from, to).rate(1514 * 8 * 400).count(PACKETS);
    let sender = source(at("client", 7003), at("server", UP));
    let sender = program.traffic(&sender, own).expect("a child");
    named(program.pid());
    let before = [server, world.client()].map(datagrams_read);
    program.write_line(receiver, "go").expect("it listens");
    program.write_line(sender, "go").expect("it listens");
    let back = source(at("server", 7004), at("client", DOWN));
    let back = traffic::start_now(server, &back).expect("a source");
    // The checks below detect missing datagrams.
    let all = || [server, world.client()].map(datagrams_read);
    becomes_true(|| {
        all()
            .iter()
            .zip(before)
            .all(|(now, before)| *now >= before + PACKETS)
    });
    let got = program.stop(receiver).expect("it reports").received / 1472;
    assert_eq!(got, PACKETS, "received by the program");
    assert_eq!(
        sink.stop().expect("it reports").received / 1472,
        PACKETS,
        "received by the server"
    );
    drop(back);
}
