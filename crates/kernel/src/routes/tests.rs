//! Tests of route and neighbour lookups in the namespace of the test run, where only lo is
//! expected.

use super::*;

#[test]
fn the_route_to_this_host_is_local() {
    let mut netlink = NetlinkClient::open().expect("a connection");
    let to = IpAddr::from([127, 0, 0, 1]);
    let route = lookup(&mut netlink, to, None, None).expect("a reply");
    let route = route.expect("there is a route");
    assert_eq!(route.kind, HostKind::Local);
    assert_eq!((route.index, route.next_hop), (1, to));
}

#[test]
fn an_unreachable_host_has_no_route_and_is_no_error() {
    let mut netlink = NetlinkClient::open().expect("a connection");
    // An interface that does not exist.
    let to = IpAddr::from([192, 0, 2, 7]);
    let found = lookup(&mut netlink, to, None, Some(u32::MAX / 2)).expect("a reply");
    assert_eq!(found, None);
}

#[test]
fn an_address_is_found_on_its_interface() {
    let mut netlink = NetlinkClient::open().expect("a connection");
    let mut with = |text: &str| {
        let address = text.parse().expect("an address");
        interfaces_with(&mut netlink, address).expect("a list")
    };
    assert_eq!(with("127.0.0.1"), [1]);
    assert!(with("192.0.2.7").is_empty());
    assert!(with("2001:db8::7").is_empty());
}

#[test]
fn a_next_hop_that_was_never_resolved_is_unknown() {
    let mut netlink = NetlinkClient::open().expect("a connection");
    let next_hop = IpAddr::from([192, 0, 2, 99]);
    let known = neighbour(&mut netlink, 1, next_hop).expect("a reply");
    assert_eq!(known, Neighbour::Unknown);
}

#[test]
fn multicast_macs_follow_rfc_1112_and_rfc_2464() {
    let mac = |text: &str| multicast_mac(text.parse().expect("an address"));
    assert_eq!(mac("239.129.2.3"), Some([0x01, 0, 0x5e, 0x01, 2, 3]));
    assert_eq!(mac("ff02::1:ff00:7"), Some([0x33, 0x33, 0xff, 0, 0, 7]));
    assert_eq!(mac("10.0.0.1"), None);
}
