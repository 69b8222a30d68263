use std::io::{Read as _, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::mpsc::{Sender, channel};

use netnice_api::frame::{Decoder, LONGEST_REQUEST};
use netnice_api::{Done, Request, Response, ShowDoc, TargetDoc};

use super::*;

/// A daemon of one client, which has one target: that of the last limit. It responds to the request
/// for a limit after the process of the target has ended, and passes on all requests.
fn serve_client(mut stream: UnixStream, requests: &Sender<Request>) {
    let mut decoder = Decoder::new(LONGEST_REQUEST);
    let mut target = TargetDoc::default();
    let mut bytes = [0; 4096];
    loop {
        while let Some(body) = decoder.poll().expect("a frame") {
            let call = netnice_api::decode_client_call(&body).expect("a request");
            let response = match &call.request {
                Request::Set(set) => {
                    target.target = set.target.clone();
                    wait_for_end(&set.target);
                    Response::Done(Done::default())
                }
                Request::Show(_) => Response::Shown(ShowDoc {
                    targets: vec![target.clone()],
                    ..ShowDoc::default()
                }),
                _ => Response::Done(Done::default()),
            };
            requests.send(call.request).expect("the test runs");
            let frame = netnice_api::encode_response(&response).expect("fits");
            stream.write_all(&frame).expect("sent");
        }
        match stream.read(&mut bytes).expect("bytes") {
            0 => return,
            count => decoder.push(&bytes[..count]),
        }
    }
}

/// Waits until the process of a target has ended. It need not be reaped.
fn wait_for_end(target: &str) {
    let pid = target.strip_prefix("pid:").expect("a process");
    let member = Member::open(pid.parse().expect("a number")).expect("a process");
    let mut ends = [PollFd::new(&member.pidfd, PollFlags::IN)];
    rustix::event::poll(&mut ends, None).expect("it ends");
}

/// Descendants of the process can live on in the target, although they have sent nothing yet.
#[test]
fn the_target_of_a_process_that_ended_while_its_share_was_set_is_not_cleared() {
    let folder = std::env::temp_dir().join(format!("netnice-{}-inetd", std::process::id()));
    std::fs::create_dir(&folder).expect("a folder");
    let dir = RuntimeDir::choose(Some(folder.clone()), None);
    let listener = UnixListener::bind(dir.socket()).expect("bound");
    let (sender, requests) = channel();
    let daemon = std::thread::spawn(move || {
        serve_client(listener.accept().expect("a client").0, &sender);
    });
    let text = "total = \"1mbit\"\nlines = \"ftp cat\"\n";
    let config = Config::parse(Path::new("inetd.toml"), text, None).expect("good");
    // The gate cannot be opened, because the helper has ended.
    let mut log = |_: &str| ();
    let mut server = SuperServer {
        pool: Pool {
            total: config.total.map(Rate::bits_per_second),
            floor: config.floor.bits_per_second(),
        },
        config,
        keeper: Keeper::new(Daemon::connect(&dir, None).expect("connected")),
        gate: StartGateCommand {
            helper: "/bin/sh".into(),
            args: vec!["-c".into(), "sleep 0.3".into()],
        },
        listeners: Vec::new(),
        sessions: BTreeMap::new(),
        log: &mut log,
    };
    let (socket, _client) = UnixStream::pair().expect("a pair");
    server.start(0, socket.into(), None);
    while !server.sessions.is_empty() || server.keeper.time_to_next_work(false).is_some() {
        server.iterate().expect("it waits");
    }
    drop(server);
    daemon.join().expect("the daemon's side");
    std::fs::remove_dir_all(folder).expect("removed");
    let requests: Vec<Request> = requests.iter().collect();
    assert!(matches!(requests[..], [Request::Set(_)]), "{requests:?}");
}
