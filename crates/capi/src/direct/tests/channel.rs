//! Tests of the calls of channels between hosts, beside a netnice-peer that the test plays. No
//! channel is established here; the system tests `between_hosts` have whole channels.

use std::io::{Read as _, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use netnice_api::channels::{
    FromProgram, LONGEST_FROM_PROGRAM, Listening, NotListening, OpenChannel, OpenRefused,
    ToProgram, decode, encode_to_program,
};
use netnice_api::frame::Decoder;

use super::*;

const CONTRACT: &CStr = c"channel mmax=10000B,rmax=50/s,bmax=2,deadline=20ms";

/// A netnice-peer that replies as the test says.
struct FakePeer {
    folder: PathBuf,
    listener: UnixListener,
}

/// Its connection to the program.
struct AtPeer {
    stream: UnixStream,
    decoder: Decoder,
}

fn folder_dir(folder: &std::path::Path) -> RuntimeDir {
    RuntimeDir::choose(Some(folder.to_owned()), None)
}

fn folder(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("netnice-capi-{}-{name}", std::process::id()))
}

impl FakePeer {
    fn new(name: &str) -> FakePeer {
        let folder = folder(name);
        let dir = folder_dir(&folder);
        std::fs::create_dir(dir.peer_folder()).unwrap();
        let listener = UnixListener::bind(dir.peer_socket()).unwrap();
        FakePeer { folder, listener }
    }

    /// A network of the program, and its connection here.
    fn network(&self) -> (c_int, AtPeer) {
        let network = connect(&folder_dir(&self.folder), &empty()).unwrap();
        let (stream, _) = self.listener.accept().unwrap();
        let patience = Duration::from_millis(TIMEOUT as u64);
        stream.set_read_timeout(Some(patience)).unwrap();
        let decoder = Decoder::new(LONGEST_FROM_PROGRAM);
        (network, AtPeer { stream, decoder })
    }
}

impl Drop for FakePeer {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(folder_dir(&self.folder).peer_folder());
    }
}

impl AtPeer {
    fn send(&mut self, message: &ToProgram) {
        let frame = encode_to_program(message).unwrap();
        self.stream.write_all(&frame).unwrap();
    }

    fn next(&mut self) -> FromProgram {
        loop {
            if let Some(body) = self.decoder.poll().unwrap() {
                return decode(&body).unwrap();
            }
            let mut bytes = [0; 4096];
            let length = self.stream.read(&mut bytes).unwrap();
            assert!(length > 0, "it was closed");
            self.decoder.push(&bytes[..length]);
        }
    }

    /// Replies to the next request for a channel.
    fn refuse(&mut self, best_ns: Option<u64>) -> OpenChannel {
        let FromProgram::Open(open) = self.next() else {
            panic!("no request");
        };
        self.send(&ToProgram::OpenRefused(OpenRefused {
            channel: open.channel.clone(),
            host: "router".to_owned(),
            reason: "it does not fit".to_owned(),
            best_deadline_ns: best_ns,
        }));
        open
    }
}

fn fails(result: i64, number: c_int, text: &str) {
    assert_eq!((result, errno()), (-1, number), "{text}: {}", last_error());
    assert!(last_error().contains(text), "{}", last_error());
}

fn described(contract: &CStr) -> Channel {
    Channel {
        contract: contract.as_ptr(),
        ..empty()
    }
}

fn open(network: c_int, to: &CStr, channel: &Channel) -> i64 {
    netnice_channel_open(network, to.as_ptr(), channel, null_mut()).into()
}

#[test]
fn without_netnice_peer_no_network_is_had() {
    let dir = folder_dir(&folder("none"));
    let error = connect(&dir, &empty()).unwrap_err();
    assert_eq!(error.errno(), libc::ECONNREFUSED);
    let text = error.to_string();
    assert!(text.starts_with("no netnice-peer listens at "), "{text}");
    let wrong = |parameters: NetworkParameters, number, part: &str| {
        let error = connect(&dir, &parameters).unwrap_err();
        assert_eq!(error.errno(), number, "{error}");
        assert!(error.to_string().contains(part), "{error}");
    };
    let none: NetworkParameters = empty();
    let (invalid, slice) = (libc::EINVAL, 2_000_000);
    wrong(NetworkParameters { flags: 1, ..none }, invalid, "invalid");
    let packet = 127;
    let text = "the longest packet is 127: 128 to 1658";
    wrong(NetworkParameters { packet, ..none }, invalid, text);
    let receiving = 16_385;
    let text = "the number of buffers is 16385: 1 to 16384";
    wrong(NetworkParameters { receiving, ..none }, invalid, text);
    wrong(NetworkParameters { slice, ..none }, invalid, "period");
    let period = 1_000_000;
    let above = NetworkParameters {
        slice,
        period,
        ..none
    };
    wrong(above, invalid, "2ms");
    fails(
        netnice_channel_connect(null()).into(),
        libc::EFAULT,
        "description",
    );
}

#[test]
fn what_is_no_channel_is_not_asked_for() {
    let peer = FakePeer::new("invalid");
    let (network, mut at_peer) = peer.network();
    let contract = |text: &str| {
        let text = CString::new(text).unwrap();
        open(network, c"camera@recorder", &described(&text))
    };
    let channel = |mmax: &str, rmax: &str, deadline: &str| {
        contract(&format!(
            "channel mmax={mmax},rmax={rmax},bmax=1,deadline={deadline}"
        ))
    };
    for (mmax, rmax, deadline, text) in [
        ("0B", "50/s", "20ms", "mmax"),
        ("1KiB", "0/s", "20ms", "rmax"),
        ("1KiB", "50/s", "0ms", "deadline"),
    ] {
        fails(channel(mmax, rmax, deadline), libc::EINVAL, text);
    }
    for text in ["", "up 1mbit", "channel mmax=1KiB", "min 1mbit", "\u{1}"] {
        fails(contract(text), libc::EINVAL, "");
    }
    let both = "channel mmax=1KiB,rmax=50/s,bmax=1,deadline=20ms up 1mbit";
    fails(contract(both), libc::EINVAL, "");
    fails(contract("up 1mbit"), libc::EINVAL, "no other, for example");
    let good = described(CONTRACT);
    for to in [c"camera", c"@recorder", c"camera@", c""] {
        fails(open(network, to, &good), libc::EINVAL, "NAME@HOST");
    }
    let long = |service: usize, host: usize| {
        let to = format!("{}@{}", "s".repeat(service), "h".repeat(host));
        open(network, &CString::new(to).unwrap(), &good)
    };
    fails(long(65, 1), libc::EINVAL, "name is 65: 1 to 64");
    fails(long(1, 254), libc::EINVAL, "name is 254: 1 to 253");
    let camera = c"camera@recorder";
    fails(
        open(network, c"\xff@recorder", &good),
        libc::EINVAL,
        "UTF-8",
    );
    fails(
        open(network, camera, &Channel { flags: 2, ..good }),
        libc::EINVAL,
        "invalid",
    );
    fails(open(network, camera, &empty()), libc::EFAULT, "contract");
    let missing = netnice_channel_open(network, camera.as_ptr(), null(), null_mut());
    fails(missing.into(), libc::EFAULT, "description");
    let missing = netnice_channel_open(network, null(), &good, null_mut());
    fails(missing.into(), libc::EFAULT, "service");
    // netnice-peer gets no request before this one.
    let asking = std::thread::spawn(move || {
        open(network, c"camera@recorder", &described(CONTRACT));
        last_error()
    });
    assert_eq!(at_peer.refuse(None).sink, "recorder");
    assert!(asking.join().unwrap().contains("does not fit"));
    assert_eq!(netnice_channel_close(network), 0);
}

#[test]
fn a_refusal_has_its_host_its_reason_and_the_best_deadline() {
    let peer = FakePeer::new("refusal");
    let (network, mut at_peer) = peer.network();
    let refused = move || {
        let secret = [7_u8; 32];
        let mut channel = described(CONTRACT);
        channel.secret = secret.as_ptr();
        channel.flags = 1;
        let mut refusal: Refusal = empty();
        let to = c"camera@recorder".as_ptr();
        let result = netnice_channel_open(network, to, &channel, &mut refusal);
        // SAFETY: the host ends with a 0.
        let host = unsafe { CStr::from_ptr(refusal.host.as_ptr()) };
        let host = host.to_str().unwrap().to_owned();
        (result, errno(), refusal.best_deadline, host, last_error())
    };
    for (best, number) in [(Some(41_900_000), libc::ENOSPC), (None, libc::ECONNREFUSED)] {
        let asking = std::thread::spawn(refused);
        let asked = at_peer.refuse(best);
        assert_eq!((&*asked.service, &*asked.sink), ("camera", "recorder"));
        // Eight packets of up to 1,400 bytes, with 20 bytes more each of checksum and encryption.
        assert_eq!(
            (asked.contract.mmax, asked.contract.packet),
            (10_160, 1_452)
        );
        let (result, errno, deadline, host, text) = asking.join().unwrap();
        assert_eq!((result, errno), (-1, number), "{text}");
        assert_eq!((deadline, &*host), (best.unwrap_or(0), "router"));
        let whole = "router refuses the channel: it does not fit";
        assert!(text.starts_with(whole), "{text}");
        assert_eq!(best.is_some(), text.contains("41.9ms"), "{text}");
    }
    assert_eq!(netnice_channel_close(network), 0);
    assert_eq!(errno_of(netnice_channel_close(network)), libc::EBADF);
}

fn errno_of(result: c_int) -> c_int {
    assert_eq!(result, -1);
    errno()
}

#[test]
fn a_service_is_offered_once_and_ends_with_netnice_peer() {
    let peer = FakePeer::new("service");
    let (network, mut at_peer) = peer.network();
    let listen = move |name: &CStr| {
        let service: Service = empty();
        let number = netnice_channel_listen(network, name.as_ptr(), &service);
        (number, errno(), last_error())
    };
    let asking = std::thread::spawn(move || listen(c"camera"));
    let FromProgram::Listen(asked) = at_peer.next() else {
        panic!("no request");
    };
    assert_eq!(asked.service, "camera");
    at_peer.send(&ToProgram::Listening(Listening {
        service: "camera".to_owned(),
        host: "recorder".to_owned(),
    }));
    let (service, _, text) = asking.join().unwrap();
    assert!(service > 0, "{text}");
    for (room, seen) in [(256, "recorder"), (9, "recorder"), (5, "reco"), (1, "")] {
        let mut host: [c_char; 256] = [1; 256];
        assert_eq!(netnice_channel_host(service, host.as_mut_ptr(), room), 8);
        // SAFETY: the text ends with a 0.
        let text = unsafe { CStr::from_ptr(host.as_ptr()) };
        assert_eq!(text.to_str(), Ok(seen), "{room}");
        assert_eq!(host[seen.len() + 1], 1, "{room}");
    }
    assert_eq!(netnice_channel_host(service, null_mut(), 0), 8);
    let (number, why, text) = listen(c"camera");
    assert_eq!((number, why), (-1, libc::EADDRINUSE), "{text}");
    let asking = std::thread::spawn(move || listen(c"Video"));
    at_peer.next();
    at_peer.send(&ToProgram::NotListening(NotListening {
        service: "Video".to_owned(),
        reason: "no such letter".to_owned(),
    }));
    let (number, why, text) = asking.join().unwrap();
    assert_eq!((number, why), (-1, libc::EADDRINUSE));
    assert!(text.ends_with("no such letter"), "{text}");
    fails(netnice_channel_accept(service, 0).into(), libc::EAGAIN, "");
    fails(
        netnice_channel_accept(service, -2).into(),
        libc::EINVAL,
        "invalid",
    );
    // One thread at a time uses a service.
    let waiting = std::thread::spawn(move || {
        loop {
            match netnice_channel_accept(service, TIMEOUT) {
                // The other thread was in a call.
                -1 if errno() == libc::EBUSY => std::thread::yield_now(),
                result => return (result, errno(), last_error()),
            }
        }
    });
    let until = Instant::now() + Duration::from_millis(TIMEOUT as u64);
    while netnice_channel_host(service, null_mut(), 0) == 8 {
        assert!(Instant::now() < until, "no thread waits");
        std::thread::yield_now();
    }
    fails(
        netnice_channel_close(service).into(),
        libc::EBUSY,
        "another thread",
    );
    drop(at_peer);
    let (result, why, text) = waiting.join().unwrap();
    assert_eq!((result, why), (-1, libc::ECONNRESET), "{text}");
    assert!(text.contains("netnice-peer has ended"), "{text}");
    let open = open(network, c"camera@recorder", &described(CONTRACT));
    fails(open, libc::ECONNRESET, "netnice-peer has ended");
    // A service outlives the number of its network.
    assert_eq!(netnice_channel_close(network), 0, "{}", last_error());
    let ended = netnice_channel_accept(service, TIMEOUT);
    fails(ended.into(), libc::ECONNRESET, "netnice-peer has ended");
    assert_eq!(netnice_channel_close(service), 0, "{}", last_error());
    for number in [service, network] {
        fails(netnice_channel_close(number).into(), libc::EBADF, "service");
    }
}

#[test]
fn wrong_arguments_of_channels_have_errors() {
    let peer = FakePeer::new("misuse");
    let (network, _at_peer) = peer.network();
    let (bad, fault, invalid) = (libc::EBADF, libc::EFAULT, libc::EINVAL);
    let none: Service = empty();
    let listen = |name: *const c_char, service: *const Service| {
        netnice_channel_listen(network, name, service).into()
    };
    let camera = c"camera".as_ptr();
    fails(listen(null(), &none), fault, "name of the service");
    fails(listen(camera, null()), fault, "description");
    fails(listen(c"".as_ptr(), &none), invalid, "name is 0: 1 to 64");
    let longest = (16 << 20) + 1;
    let long = Service { longest, ..none };
    fails(
        listen(camera, &long),
        invalid,
        "longest message is 16777217",
    );
    fails(listen(camera, &Service { flags: 4, ..none }), invalid, "");
    // A network is no channel and no service.
    let number = network;
    let mut byte = [0_u8];
    let place: *mut c_void = byte.as_mut_ptr().cast();
    let (mut hop, mut info, mut departure) = (empty(), empty(), empty());
    let (hop, info, departure) = (&raw mut hop, &raw mut info, &raw mut departure);
    let nothing = null_mut();
    let description = described(CONTRACT);
    let calls: [&dyn Fn() -> i64; 18] = [
        &|| netnice_channel_send(number, place, 1, 0),
        &|| netnice_channel_receive(number, place, 1, nothing, 0) as i64,
        &|| netnice_channel_drain(number, 0).into(),
        &|| netnice_channel_finish(number, 0).into(),
        &|| netnice_channel_departure(number, departure).into(),
        &|| netnice_channel_descriptor(number).into(),
        &|| netnice_channel_arm(number).into(),
        &|| netnice_channel_disarm(number).into(),
        &|| netnice_channel_hops(number, hop, 1).into(),
        &|| netnice_channel_info(number, info).into(),
        &|| netnice_channel_host(number, place.cast(), 1).into(),
        &|| netnice_channel_accept(number, 0).into(),
        &|| netnice_flow_close(number).into(),
        &|| netnice_detach(number).into(),
        &|| netnice_tcp_close(number).into(),
        &|| netnice_channel_close(-1).into(),
        &|| netnice_channel_listen(0, camera, &none).into(),
        &|| open(0, c"camera@recorder", &description),
    ];
    for call in calls {
        fails(call(), bad, "channel, whichever the call takes");
    }
    // Pointers and timeouts are looked at first.
    let calls: [&dyn Fn() -> i64; 5] = [
        &|| netnice_channel_send(number, null(), 1, 0),
        &|| netnice_channel_receive(number, null_mut(), 1, nothing, 0) as i64,
        &|| netnice_channel_departure(number, null_mut()).into(),
        &|| netnice_channel_hops(number, null_mut(), 1).into(),
        &|| netnice_channel_host(number, null_mut(), 1).into(),
    ];
    for call in calls {
        fails(call(), fault, "must not be NULL");
    }
    let calls: [&dyn Fn() -> i64; 7] = [
        &|| netnice_channel_send(number, place, 1, -2),
        &|| netnice_channel_send(number, place, usize::MAX, 0),
        &|| netnice_channel_receive(number, place, 1, nothing, -2) as i64,
        &|| netnice_channel_receive(number, place, usize::MAX, nothing, 0) as i64,
        &|| netnice_channel_drain(number, -2).into(),
        &|| netnice_channel_finish(number, -2).into(),
        &|| netnice_channel_hops(number, hop, -1).into(),
    ];
    for call in calls {
        fails(call(), invalid, "invalid");
    }
    assert_eq!(netnice_channel_close(network), 0);
}

#[test]
fn the_example_is_c99_without_warnings() {
    let root = env!("CARGO_MANIFEST_DIR");
    let mut cc = Command::new("cc");
    cc.args(["-std=c99", "-pedantic", "-Wall", "-Wextra", "-Werror"]);
    cc.args(["-D_XOPEN_SOURCE=700", "-fsyntax-only", "-I"]);
    cc.arg(format!("{root}/include"));
    cc.arg(format!("{root}/examples/channel.c"));
    assert!(cc.status().unwrap().success());
}
