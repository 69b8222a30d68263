//! The transmit check from bytes: the first says whose template it is, the others are the frame.

use netnice_cases::Corpus;

use super::*;

fn owner(which: u8) -> Sender {
    let (from, to) = [
        ("10.0.0.1:5000", "10.0.0.2:53"),
        ("[fd00::1]:5000", "[fd00::2]:53"),
    ][usize::from(which & 1)];
    let bit = |at: u8| which >> at & 1 == 1;
    let (local, remote) = (end(from), bit(1).then(|| end(to)));
    let mut sender = sender(from, bit(1).then_some(to));
    sender.next_hop = bit(2).then_some(PEER);
    let ports = |transport| Sends::Ports {
        transport,
        local,
        remote,
    };
    sender.sends = match which >> 3 & 3 {
        0 => Sends::EtherType(EtherType::new(0x88b5).unwrap()),
        1 => Sends::Protocol {
            protocol: IpProtocol::new(132).unwrap(),
            local: local.ip(),
            remote: remote.map(|remote| remote.ip()),
        },
        2 => ports(Transport::Udp),
        _ => ports(Transport::Tcp),
    };
    sender
}

/// What comes of a frame, which is what the independent checker says; what leaves is what was checked.
fn judged(bytes: &[u8]) -> String {
    let Some((which, frame)) = bytes.split_first() else {
        return "nothing".to_owned();
    };
    let sender = owner(*which);
    let template = Template::new(&sender).unwrap();
    let wanted = addressed(&sender, frame);
    let judged = judge(&template, frame);
    assert_eq!(judged.is_ok(), naive(&sender, &wanted), "{bytes:02x?}");
    match judged {
        Ok(left) => {
            assert_eq!(left, wanted);
            "allowed".to_owned()
        }
        Err(forbidden) => format!("{forbidden:?}").to_lowercase(),
    }
}

fn corpus() -> Corpus {
    Corpus::of(concat!(env!("CARGO_MANIFEST_DIR"), "/corpus/transmit"))
}

#[test]
fn frames_that_are_kept_are_judged_as_they_were() {
    corpus().replay(judged, &OUTCOMES);
}

proptest! {
    #![proptest_config(cases(2000))]

    #[test]
    fn frames_near_those_that_are_kept(bytes in corpus().near(), mend in any::<bool>()) {
        let mut bytes = bytes;
        if mend && !bytes.is_empty() {
            mend_checksum(&mut bytes[1..]);
        }
        judged(&bytes);
    }
}

/// Every way to be judged.
const OUTCOMES: [&str; 15] = [
    "allowed",
    "short",
    "long",
    "nexthop",
    "ethertype",
    "version",
    "length",
    "fragment",
    "hops",
    "protocol",
    "checksum",
    "source",
    "destination",
    "sourceport",
    "destinationport",
];
