//! Tests in the namespace of the test run, where only lo is expected.

use super::*;

#[test]
fn the_way_to_this_host_is_local() {
    let mut route = Route::open().expect("a connection");
    let to = IpAddr::from([127, 0, 0, 1]);
    let way = way(&mut route, to, None, None).expect("an answer");
    let way = way.expect("there is a way");
    assert_eq!(way.kind, Kind::Local);
    assert_eq!((way.index, way.station), (1, to));
}

#[test]
fn a_host_that_cannot_be_reached_is_no_error() {
    let mut route = Route::open().expect("a connection");
    // An interface that does not exist.
    let to = IpAddr::from([192, 0, 2, 7]);
    let found = way(&mut route, to, None, Some(u32::MAX / 2)).expect("an answer");
    assert_eq!(found, None);
}

#[test]
fn nobody_is_known_whom_nobody_asked_for() {
    let mut route = Route::open().expect("a connection");
    let nobody = IpAddr::from([192, 0, 2, 99]);
    let known = neighbour(&mut route, 1, nobody).expect("an answer");
    assert_eq!(known, Neighbour::Unknown);
}

#[test]
fn groups_have_their_stations_by_rfc_1112_and_rfc_2464() {
    let station = |text: &str| group_station(text.parse().expect("an address"));
    assert_eq!(station("239.129.2.3"), Some([0x01, 0, 0x5e, 0x01, 2, 3]));
    assert_eq!(station("ff02::1:ff00:7"), Some([0x33, 0x33, 0xff, 0, 0, 7]));
    assert_eq!(station("10.0.0.1"), None);
}
