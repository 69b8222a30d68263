//! The policy file of netnice-peer, over a router: what is before the interface of a receiver, and
//! the quotas of neighbours.

use netnice_lab::process::EVENT_TIMEOUT;
use netnice_lab::world::Netnice;
use serde_json::Value;

use crate::between_hosts::{Hosts, wait_for};

/// A client without a policy, and a router and a server with these.
fn hosts(router: &str, server: &str) -> Hosts {
    Hosts::with([None, Some(router), Some(server)])
}

/// What is before `eth0`.
fn port(before: &str) -> String {
    format!("[[port]]\ninterface = \"eth0\"\nbefore = \"{before}\"\n")
}

/// The mark of each host in the first channel of a list.
fn marks(listed: &Value) -> Vec<(String, Option<String>)> {
    let hops = listed["channels"][0]["hops"].as_array();
    let mark = |hop: &Value| {
        let host = hop["host"].as_str().expect("a host").to_owned();
        (host, hop["unguarded"].as_str().map(str::to_owned))
    };
    hops.expect("hops").iter().map(mark).collect()
}

/// What `netnice peer ls` prints at a host.
fn peer_list(netnice: &Netnice) -> String {
    let output = netnice.run_line("peer ls").expect("it runs");
    output.ok().expect("a list").stdout
}

const SMALL: &str = "open camera@server --mmax 1KiB --rate 50/s --deadline 300ms";

#[test]
fn a_channel_is_guarded_by_cables_and_unguarded_where_nothing_is_declared() {
    let mut hosts = hosts(&port("cable"), "");
    let _sink = hosts.listen("camera --discard");
    let mut source = hosts.start("client", SMALL);
    let said = wait_for(&mut source, "see [[port]]");
    assert!(
        said.contains("unguarded: server") && said.contains("the port before its eth0"),
        "{said}"
    );
    assert!(!said.contains("unguarded: router"), "{said}");
    let of = |name: &str, mark: Option<&str>| (name.to_owned(), mark.map(str::to_owned));
    let unguarded = [
        of("client", None),
        of("router", None),
        of("server", Some("eth0")),
    ];
    for host in ["client", "router", "server"] {
        assert_eq!(marks(&hosts.channels(host)), unguarded, "{host}");
    }
    let listed = hosts.netnice("router").run_line("channel ls");
    let listed = listed.expect("it runs").ok().expect("a list").stdout;
    assert!(listed.contains("(unguarded: eth0)"), "{listed}");
    let listed = peer_list(hosts.netnice("server"));
    assert!(listed.contains("eth0 unguarded, 1 channel"), "{listed}");
    let listed = peer_list(hosts.netnice("router"));
    assert!(listed.contains("eth0 cable, 1 channel"), "{listed}");
    source.close_input();
    source.wait(EVENT_TIMEOUT).expect("it ends");

    // After the declaration a new channel is guarded. A wrong file changes nothing.
    hosts.reload("server", &port("cable"), "has read the policy file");
    let wrong = "[quotas]\nchannels = 9000\n";
    hosts.reload(
        "server",
        wrong,
        "server.toml:2: channels is 0 to 8000, not 9000",
    );
    let mut source = hosts.open(SMALL);
    let guarded = [of("client", None), of("router", None), of("server", None)];
    assert_eq!(marks(&hosts.channels("client")), guarded);
    source.close_input();
    source.wait(EVENT_TIMEOUT).expect("it ends");
}

#[test]
fn a_switch_before_the_server_takes_its_part_and_refuses_what_would_wait_longer() {
    // Messages of 1 KiB take 92 us of the port. In the deadline of 300 ms come 15 of them.
    let priority = format!("{}rate = \"100mbit\"\n", port("priority=5ms"));
    let hosts = hosts("", &priority);
    let _sink = hosts.listen("camera --discard");
    let mut source = hosts.open(SMALL);
    let listed = hosts.channels("server");
    let hop = &listed["channels"][0]["hops"][2];
    assert_eq!(
        (&hop["host"], &hop["unguarded"]),
        (&"server".into(), &Value::Null)
    );
    assert!(hop["bound_ns"].as_u64() > Some(5_000_000), "{hop}");
    let port = &listed["ports"][0];
    assert_eq!(port["before"], "priority=5ms", "{port}");
    let delay = port["delay_ns"].as_u64().expect("a delay");
    assert!((1..=5_000_000).contains(&delay), "{port}");
    // A message of 60 KiB alone takes more than 5 ms.
    let text = hosts.refused("open camera@server --mmax 60KiB --rate 50/s --deadline 300ms");
    assert!(
        text.contains("server refuses") && text.contains("the switch before eth0 could delay"),
        "{text}"
    );
    assert!(
        text.contains("more than the 5ms that are declared (priority=5ms)"),
        "{text}"
    );
    let (_, bound) = text.split_once("packets of channels by ").expect("a bound");
    let (bound, _) = bound.split_once(',').expect("a bound");
    let bound: netnice_core::units::Nanos = bound.parse().expect("a time");
    assert!(bound.0 > 5_000_000, "{text}");
    // What was refused has left no trace, so the same small channel has room again.
    assert_eq!(hosts.channels("server")["ports"][0]["delay_ns"], delay);
    source.close_input();
    source.wait(EVENT_TIMEOUT).expect("it ends");
}

#[test]
fn a_quota_of_the_file_is_kept_and_named_in_the_refusal() {
    let quota = "[[neighbour]]\nname = \"client\"\nchannels = 1\n";
    let hosts = hosts(quota, "");
    let _sink = hosts.listen("camera --discard");
    let mut source = hosts.open(SMALL);
    let text = hosts.refused(SMALL);
    assert!(
        text.contains("router refuses")
            && text.contains("the channels that client opens: at most 1 channels are allowed")
            && text.contains("(quota channels)"),
        "{text}"
    );
    source.close_input();
    source.wait(EVENT_TIMEOUT).expect("it ends");
    let mut source = hosts.open(SMALL);
    source.close_input();
    source.wait(EVENT_TIMEOUT).expect("it ends");
}
