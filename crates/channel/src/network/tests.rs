//! The thread of a network beside a netnice-peer that the test plays. No netniced runs, so no end
//! holds a bound; the system tests `remote_channels` have whole channels.

use std::io::{Read as _, Write as _};
use std::num::NonZeroU32;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;

use netnice_api::channels::{
    CountHop, Ended, HoldBound, LONGEST_FROM_PROGRAM, Listening, NotExplained, NotListening,
    OpenRefused, Ping, RelaxBound, RemoteContract, ToProgram, Way, decode, encode_to_program,
};
use netnice_api::frame::Decoder;
use netnice_core::admission::timing::Processor;
use netnice_core::contract::{Channel, MessageRate, Weight};

use super::*;
use crate::options::{ChannelClass, ExecutorSettings, OpenError};
use crate::{Checksum, HandlerThreadOptions};

/// A netnice-peer that replies as the test says.
struct FakePeer {
    folder: PathBuf,
    listener: UnixListener,
}

struct Accepted {
    stream: UnixStream,
    decoder: Decoder,
}

impl FakePeer {
    fn new(name: &str) -> FakePeer {
        let folder =
            std::env::temp_dir().join(format!("netnice-net-{}-{name}", std::process::id()));
        let dir = RuntimeDir::choose(Some(folder.clone()), None);
        std::fs::create_dir(dir.peer_folder()).expect("a folder");
        let listener = UnixListener::bind(dir.peer_socket()).expect("a socket");
        FakePeer { folder, listener }
    }

    fn dir(&self) -> RuntimeDir {
        RuntimeDir::choose(Some(self.folder.clone()), None)
    }

    fn accept(&self) -> Accepted {
        let (stream, _) = self.listener.accept().expect("a program");
        let patience = Some(Duration::from_secs(20));
        stream.set_read_timeout(patience).expect("set");
        Accepted {
            stream,
            decoder: Decoder::new(LONGEST_FROM_PROGRAM),
        }
    }

    fn network(&self) -> (Network, Accepted) {
        let processor = Processor {
            switch: Nanos(0),
            cache_miss: Nanos(0),
            first: Nanos::from_micros(2),
            later: Nanos::from_micros(1),
            link_scheduling: Nanos(0),
            block: NonZeroU32::new(4).expect("above zero"),
            largest: Bytes(1_400),
            leftover: Nanos(0),
        };
        let settings = ExecutorSettings::new(processor);
        let options = NetworkOptions::new(HandlerThreadOptions::new(settings));
        let network = Network::connect(&self.dir(), options).expect("connected");
        (network, self.accept())
    }
}

impl Drop for FakePeer {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(self.dir().peer_folder());
    }
}

impl Accepted {
    fn send(&mut self, message: &ToProgram) {
        let frame = encode_to_program(message).expect("short");
        self.stream.write_all(&frame).expect("written");
    }

    fn next(&mut self) -> FromProgram {
        loop {
            if let Some(body) = self.decoder.poll().expect("a frame") {
                return decode(&body).expect("valid");
            }
            let mut bytes = [0; 4096];
            let length = self.stream.read(&mut bytes).expect("a message");
            assert!(length > 0, "it was closed");
            self.decoder.push(&bytes[..length]);
        }
    }
}

fn request(channel: u8, stages: Vec<Box<dyn Stage>>) -> RemoteChannel {
    let rate = MessageRate::new(50).expect("in range");
    let contract = Channel::new(Bytes(10_000), rate, 2, Nanos::from_millis(20));
    let class = ChannelClass::RealTime(contract.expect("valid"));
    RemoteChannel {
        service: "camera".to_owned(),
        host: "recorder".to_owned(),
        options: ChannelOptions {
            stages,
            ..ChannelOptions::new(ChannelId([channel; 16]), class)
        },
    }
}

fn hold(number: u64, channel: u8, arrival: Option<Way>) -> ToProgram {
    ToProgram::Hold(Box::new(HoldBound {
        hold: number,
        channel: ChannelId([channel; 16]).to_string(),
        service: "camera".to_owned(),
        contract: RemoteContract {
            mmax: 10_000,
            rmax: 50,
            bmax: 2,
            deadline_ns: 20_000_000,
            packet: 1_400,
        },
        sink_address: [192, 0, 2, 7].into(),
        arrival,
    }))
}

#[test]
fn a_source_asks_with_what_its_stages_add_and_gets_the_refusal() {
    let peer = FakePeer::new("refusal");
    let (network, mut at_peer) = peer.network();
    let asking = std::thread::spawn(move || {
        let stages: Vec<Box<dyn Stage>> = vec![Box::new(Checksum::new(Nanos(500)))];
        network.open(request(1, stages))
    });
    let FromProgram::Open(open) = at_peer.next() else {
        panic!("no request");
    };
    assert_eq!(
        (open.service.as_str(), open.sink.as_str()),
        ("camera", "recorder")
    );
    // Eight packets of 1,364 bytes, with 4 bytes more each.
    assert_eq!((open.contract.mmax, open.contract.packet), (10_032, 1_400));
    at_peer.send(&hold(5, 1, None));
    let FromProgram::NotHeld(not) = at_peer.next() else {
        panic!("held without netniced");
    };
    assert_eq!(not.hold, 5);
    at_peer.send(&ToProgram::OpenRefused(OpenRefused {
        channel: open.channel,
        host: "router".to_owned(),
        reason: "it is full".to_owned(),
        best_deadline_ns: Some(41_000_000),
    }));
    let error = asking.join().expect("no panic").map(drop);
    let text = error.expect_err("refused").to_string();
    assert_eq!(
        text,
        "router refuses the channel: it is full; would be granted: a deadline of 41ms"
    );
}

#[test]
fn invalid_options_are_refused_without_a_word_to_netnice_peer() {
    let peer = FakePeer::new("options");
    let (network, mut at_peer) = peer.network();
    let mut best_effort = request(1, Vec::new());
    best_effort.options.class = ChannelClass::BestEffort {
        weight: Weight::default(),
        mmax: Bytes(1_000),
        queue: 4,
        when_full: WhenFull::Wait,
    };
    let error = network
        .open(best_effort)
        .map(drop)
        .expect_err("no deadline");
    assert!(error.to_string().contains("deadline"), "{error}");
    let mut long = request(1, Vec::new());
    long.service = "x".repeat(100_000);
    let error = network.open(long).map(drop).expect_err("a long name");
    assert!(
        error.to_string().contains("1 to 64 bytes, not 100000"),
        "{error}"
    );
    let error = network.listen("", ServiceOptions::default()).map(drop);
    let error = error.expect_err("no name").to_string();
    assert!(error.contains("not 0"), "{error}");
    // The next message is another one.
    let asking = std::thread::spawn(move || network.open(request(2, Vec::new())).map(drop));
    let FromProgram::Open(open) = at_peer.next() else {
        panic!("no request");
    };
    assert_eq!(open.channel, ChannelId([2; 16]).to_string());
    // The end of netnice-peer ends what waits.
    drop(at_peer);
    let error = asking.join().expect("no panic").expect_err("it ended");
    assert!(matches!(error, NetworkError::Ended(_)), "{error}");
}

#[test]
fn a_service_replies_to_netnice_peer_and_ends_with_its_owner() {
    let peer = FakePeer::new("service");
    let (network, mut at_peer) = peer.network();
    let listening = {
        let network = network.clone();
        std::thread::spawn(move || network.listen("camera", ServiceOptions::default()))
    };
    let FromProgram::Listen(listen) = at_peer.next() else {
        panic!("no service");
    };
    at_peer.send(&ToProgram::Listening(Listening {
        service: listen.service,
        host: "recorder".to_owned(),
    }));
    let service = listening.join().expect("no panic").expect("offered");
    assert_eq!(service.host(), "recorder");
    // A second one of this program is refused here.
    let again = network
        .listen("camera", ServiceOptions::default())
        .map(drop);
    let error = again.expect_err("offered already").to_string();
    assert!(error.contains("camera"), "{error}");
    let error = service.accept(Some(Duration::from_millis(10))).map(drop);
    assert!(matches!(error, Err(NetworkError::Timeout)));
    // It says that it runs, and what it cannot hold.
    at_peer.send(&ToProgram::Ping(Ping {}));
    assert!(matches!(at_peer.next(), FromProgram::Pong(_)));
    let way = Way {
        from: [192, 0, 2, 1].into(),
        to: [192, 0, 2, 7].into(),
    };
    let ToProgram::Hold(mut other_packets) = hold(9, 3, Some(way)) else {
        panic!("a hold");
    };
    other_packets.contract.packet = 1_200;
    at_peer.send(&ToProgram::Hold(other_packets));
    let FromProgram::NotHeld(not) = at_peer.next() else {
        panic!("held");
    };
    assert!(
        not.reason.contains("1200B") && not.reason.contains("1400B"),
        "{not:?}"
    );
    // It has counted nothing of a channel that is not open.
    let channel = ChannelId([3; 16]).to_string();
    at_peer.send(&ToProgram::Count(CountHop { number: 4, channel }));
    let FromProgram::Counted(counted) = at_peer.next() else {
        panic!("no counts");
    };
    assert_eq!((counted.number, counted.counts), (4, None));
    // Messages about holds that it does not have change nothing.
    at_peer.send(&ToProgram::Relax(RelaxBound {
        hold: 77,
        bound_ns: 1,
        next: None,
    }));
    let FromProgram::NotRelaxed(not) = at_peer.next() else {
        panic!("relaxed");
    };
    assert_eq!(not.hold, 77);
    at_peer.send(&ToProgram::Ended(Ended {
        channel: ChannelId([9; 16]).to_string(),
        host: "router".to_owned(),
        reason: "nothing".to_owned(),
    }));
    drop(service);
    let FromProgram::EndService(end) = at_peer.next() else {
        panic!("the service stays");
    };
    assert_eq!(end.service, "camera");
    // A refused one has the reason.
    let listening = std::thread::spawn(move || network.listen("audio", ServiceOptions::default()));
    let FromProgram::Listen(listen) = at_peer.next() else {
        panic!("no service");
    };
    at_peer.send(&ToProgram::NotListening(NotListening {
        service: listen.service,
        reason: "another program offers it".to_owned(),
    }));
    let error = listening.join().expect("no panic").map(drop);
    let text = error.expect_err("refused").to_string();
    assert!(
        text.contains("audio") && text.contains("another program"),
        "{text}"
    );
}

#[test]
fn without_netnice_peer_its_socket_is_named() {
    let dir = RuntimeDir::choose(Some("/nonexistent/run".into()), None);
    let error = list(&dir).map(drop).expect_err("none");
    let text = error.to_string();
    assert!(text.contains("/nonexistent/run-peer/peer.sock"), "{text}");
}

#[test]
fn a_message_that_is_too_long_for_a_packet_count_is_refused() {
    let peer = FakePeer::new("packets");
    let (network, _at_peer) = peer.network();
    let mut tiny = request(1, Vec::new());
    struct Long;
    impl Stage for Long {
        fn overhead(&self) -> usize {
            1_368
        }
        fn cost(&self) -> Nanos {
            Nanos(0)
        }
        fn seal(&mut self, _: &crate::PacketHeader, _: &mut [u8], _: usize) {}
        fn open(
            &mut self,
            _: &crate::PacketHeader,
            _: &mut [u8],
        ) -> Result<usize, crate::StageError> {
            Err(crate::StageError)
        }
    }
    tiny.options.stages = vec![Box::new(Long)];
    let error = network.open(tiny).map(drop).expect_err("no room");
    let NetworkError::Channel(ChannelError::Open(OpenError::NoPayload { taken, .. })) = error
    else {
        panic!("{error}");
    };
    assert_eq!(taken, Bytes(1_400));
}

#[test]
fn a_channel_that_is_not_explained_is_named_with_the_reason() {
    let peer = FakePeer::new("explain");
    let dir = peer.dir();
    let asking = std::thread::spawn(move || explain(&dir, "1f0c27d9"));
    let mut at_peer = peer.accept();
    let FromProgram::Explain(asked) = at_peer.next() else {
        panic!("no question");
    };
    at_peer.send(&ToProgram::Ping(Ping {}));
    at_peer.send(&ToProgram::NotExplained(NotExplained {
        channel: asked.channel,
        reason: "only root may ask for it".to_owned(),
        is_forbidden: true,
    }));
    let error = asking.join().expect("no panic").map(drop);
    let error = error.expect_err("not explained");
    let text = "channel 1f0c27d9 cannot be explained: only root may ask for it";
    assert_eq!(error.to_string(), text);
    let NetworkError::NotExplained { is_forbidden, .. } = error else {
        panic!("{error}");
    };
    assert!(is_forbidden);
}
