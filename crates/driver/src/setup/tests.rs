use netnice_api::direct::Term as ApiTerm;
use netnice_core::contract::Weight;

use super::*;
use crate::datapath::LATENESS;

const OWN: Mac = Mac([2, 0, 0, 0, 0, 1]);

fn request(endpoint: Endpoint) -> DriverFlow {
    DriverFlow {
        program: 0,
        number: 1,
        endpoint,
        next_hop: Some([2, 0, 0, 0, 0, 2]),
        mtu: 1500,
        contract: "none".to_owned(),
        granted: None,
        shape: ShapeDoc {
            chunk_bytes: 2048,
            chunks: 64,
            transmit_entries: 32,
            receive_entries: 16,
        },
        in_order: false,
        receive_budget: None,
    }
}

fn udp(remote: Option<&str>) -> Endpoint {
    Endpoint::Udp {
        local: "10.0.0.1:5000".parse().unwrap(),
        remote: remote.map(|remote| remote.parse().unwrap()),
    }
}

#[test]
fn an_endpoint_gives_what_a_flow_sends_receives_and_takes_from_the_kernel() {
    let (parameters, frame_match) = flow(&request(udp(Some("10.0.0.2:53"))), OWN, 1500).unwrap();
    assert!(matches!(parameters.matches[..], [Match::Connected { .. }]));
    assert_eq!(parameters.sender.longest, 1514);
    assert_eq!(parameters.service, Service::best_effort(Weight::default()));
    let local = ("10.0.0.1".parse().unwrap(), 5000);
    let remote = Some(("10.0.0.2".parse().unwrap(), 53));
    let protocol = 17;
    assert_eq!(
        frame_match,
        FrameMatch::Endpoints {
            protocol,
            local,
            remote
        }
    );

    let (parameters, frame_match) = flow(&request(udp(None)), OWN, 1000).unwrap();
    assert!(matches!(parameters.matches[..], [Match::Port { .. }]));
    assert_eq!(
        parameters.sender.longest, 1014,
        "the interface's, which is less"
    );
    let remote = None;
    assert_eq!(
        frame_match,
        FrameMatch::Endpoints {
            protocol,
            local,
            remote
        }
    );

    let group = Endpoint::Group {
        local: "10.0.0.1:5000".parse().unwrap(),
        group: "239.1.2.3:6000".parse().unwrap(),
    };
    let (parameters, frame_match) = flow(&request(group), OWN, 1500).unwrap();
    assert!(matches!(parameters.matches[..], [Match::Group { .. }]));
    let local = ("239.1.2.3".parse().unwrap(), 6000);
    assert_eq!(
        frame_match,
        FrameMatch::Endpoints {
            protocol,
            local,
            remote
        }
    );
}

#[test]
fn the_flows_of_tcp_differ_in_what_they_receive() {
    let local: SocketAddr = "10.0.0.1:80".parse().unwrap();
    let own = (local.ip(), local.port());
    let peer: SocketAddr = "10.0.0.2:4000".parse().unwrap();
    let with = |remote: Option<SocketAddr>| FrameMatch::Endpoints {
        protocol: 6,
        local: own,
        remote: remote.map(|remote| (remote.ip(), remote.port())),
    };
    let connection = Endpoint::Tcp {
        local,
        remote: peer,
    };
    let all = [
        (connection, Some(peer), with(Some(peer))),
        (Endpoint::TcpListener { local }, None, with(None)),
        (
            Endpoint::TcpSyn { local },
            None,
            FrameMatch::Syn { local: own },
        ),
    ];
    for (endpoint, remote, frames) in all {
        let (parameters, frame_match) = flow(&request(endpoint.clone()), OWN, 1500).unwrap();
        assert_eq!(frame_match, frames);
        let sends = Sends::Ports {
            transport: Transport::Tcp,
            local,
            remote,
        };
        assert_eq!(parameters.sender.sends, sends);
        let [what] = &parameters.matches[..] else {
            panic!("{:?}", parameters.matches);
        };
        let is_its = matches!(
            (&endpoint, what),
            (Endpoint::Tcp { .. }, Match::Connected { .. })
                | (Endpoint::TcpListener { .. }, Match::Port { .. })
                | (Endpoint::TcpSyn { .. }, Match::Syn { .. })
        );
        assert!(is_its, "{endpoint:?}: {what:?}");
    }
}

#[test]
fn other_protocols_are_received_by_pattern() {
    let pattern = vec![
        ApiTerm {
            offset: 1,
            mask: 0xf0,
            value: 0x20,
        },
        ApiTerm {
            offset: 5,
            mask: 0xff,
            value: 7,
        },
    ];
    let endpoint = Endpoint::EtherType {
        number: 0x88b5,
        pattern,
    };
    let (parameters, frame_match) = flow(&request(endpoint), OWN, 1500).unwrap();
    assert_eq!(frame_match, FrameMatch::EtherType(0x88b5));
    let [Match::EtherType { pattern, .. }] = &parameters.matches[..] else {
        panic!("{:?}", parameters.matches)
    };
    assert!(pattern.matches(&[0, 0x2f, 0, 0, 0, 7]));
    assert!(!pattern.matches(&[0, 0x3f, 0, 0, 0, 7]));
}

#[test]
fn an_invalid_request_is_refused_with_its_reason() {
    let refusal = |change: &dyn Fn(&mut DriverFlow)| {
        let mut request = request(udp(None));
        change(&mut request);
        flow(&request, OWN, 1500).unwrap_err().to_string()
    };
    let why = refusal(&|flow| flow.contract = "up fast".to_owned());
    assert!(why.contains("\"up fast\""), "{why}");
    let both = "slice 2ms/50ms channel mmax=1kB,rmax=30/s,bmax=4,deadline=20ms";
    let why = refusal(&|flow| flow.contract = both.to_owned());
    assert!(why.contains("make one flow for each"), "{why}");
    let why = refusal(&|flow| flow.receive_budget = Some(1_000_001));
    assert!(why.contains("1000001"), "{why}");
    let why = refusal(&|flow| {
        flow.endpoint = Endpoint::EtherType {
            number: 0x0800,
            pattern: Vec::new(),
        }
    });
    assert!(why.contains("0x0800"), "{why}");
}

#[test]
fn a_server_has_eight_classes_and_a_slice_unless_it_is_suspended() {
    let request = |slice: Option<&str>, minimums: Vec<Option<u64>>| ServerDoc {
        slice: slice.map(str::to_owned),
        minimums,
    };
    let mut minimums = vec![None; 8];
    minimums[3] = Some(5_000_000);
    let parameters = server(&request(Some("2ms/10ms"), minimums.clone())).unwrap();
    let slice = parameters.slice.unwrap();
    assert_eq!(
        (slice.slice(), slice.period()),
        (Nanos(2_000_000), Nanos(10_000_000))
    );
    let least: Vec<_> = parameters.classes.iter().map(|class| class.min).collect();
    assert_eq!(least.iter().flatten().count(), 1);
    assert_eq!(least[3], Rate::new(5_000_000));
    assert!(
        server(&request(None, minimums.clone()))
            .unwrap()
            .slice
            .is_none()
    );
    let refusal = |request: ServerDoc| match server(&request) {
        Ok(_) => panic!("accepted"),
        Err(why) => why.to_string(),
    };
    assert_eq!(
        refusal(request(None, vec![None; 7])),
        "a server has 8 classes, not 7"
    );
    minimums[0] = Some(7);
    let why = refusal(request(None, minimums));
    assert_eq!(why, "a class cannot have a minimum of 7 bit/s");
    let why = refusal(request(Some("fast"), vec![None; 8]));
    assert!(why.contains("slice fast"), "{why}");
}

#[test]
fn lateness_is_reported_without_trailing_zeros() {
    let mut lateness = [0; LATENESS];
    assert!(counts(&FlowCounters::default()).lateness.is_empty());
    lateness[0] = 3;
    lateness[2] = 1;
    let counters = FlowCounters {
        sent: 4,
        lateness,
        ..FlowCounters::default()
    };
    assert_eq!(counts(&counters).lateness, [3, 0, 1]);
}
