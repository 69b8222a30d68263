//! Tests of the classification of interfaces.

use super::*;

#[test]
fn only_veths_with_a_name_of_netnice_are_its_own() {
    let device = |name: &str, kind: &str| Device {
        index: 7,
        name: name.into(),
        mtu: 1_500,
        up: true,
        carrier: true,
        mac: None,
        hardware: 1,
        kind: kind.into(),
        port_of: String::new(),
        lower: None,
        shares_address: false,
        peer_namespace: None,
    };
    for name in ["nn0", "nn1", "nnd12", "nne3"] {
        assert!(device(name, "veth").is_ours());
        assert!(device(name, "dummy").carries_own_packets());
    }
    for name in ["nn", "nn2", "nnet0", "nnd", "nnd1x", "eth0"] {
        assert!(device(name, "veth").carries_own_packets(), "{name}");
    }
}
