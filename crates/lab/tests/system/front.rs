//! Tests of the front process, which reads the daemon's socket. Nothing that a client sends or
//! leaves open may delay other clients, and the process must have no rights except to read the
//! socket and to answer.

use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use netnice_api::{
    ClearWhat, Client, ClientError, Doctor, Ping, Request, Response, RuntimeDir, Show,
    encode_request, fds,
};
use netnice_lab::process::{self, EVENT_TIMEOUT, Proc};
use netnice_lab::storm::{clear_request, pidfd, set_request};
use netnice_lab::sys;
use netnice_lab::testbed::{TestBed, becomes_true};

use crate::users::{ANN, BOB};

/// Runs `what` as a user in a thread of its own. ANN is the hostile user, BOB is not.
fn as_user<T: Send + 'static>(
    uid: u32,
    what: impl FnOnce() -> T + Send + 'static,
) -> thread::JoinHandle<T> {
    thread::spawn(move || {
        sys::become_user(uid).expect("root may");
        what()
    })
}

fn ping() -> Request {
    Request::Ping(Ping {})
}

/// A user that pings on a new connection each time, while another user attacks.
struct Pings {
    stop: Arc<AtomicBool>,
    answered: Arc<AtomicUsize>,
    thread: thread::JoinHandle<Result<Vec<Duration>, String>>,
}

impl Pings {
    /// Starts the pings. A ping without an answer within the bound ends them with an error.
    fn start(dir: &RuntimeDir) -> Pings {
        let stop = Arc::new(AtomicBool::new(false));
        let answered = Arc::new(AtomicUsize::new(0));
        let (dir, over, count) = (dir.clone(), stop.clone(), answered.clone());
        let thread = as_user(BOB, move || {
            let mut took = Vec::new();
            while !over.load(Ordering::Relaxed) {
                let begun = Instant::now();
                let pong = Client::connect(&dir)
                    .and_then(|mut client| client.call_within(PING_TIMEOUT, &ping(), None))
                    .map_err(|error| format!("ping {}: {error}", took.len()))?;
                assert!(matches!(pong, Response::Pong(_)), "{pong:?}");
                took.push(begun.elapsed());
                count.store(took.len(), Ordering::Relaxed);
                thread::sleep(Duration::from_millis(5));
            }
            Ok(took)
        });
        Pings {
            stop,
            answered,
            thread,
        }
    }

    /// Waits for `least`, and until enough pings were answered or one failed.
    fn await_enough(&self, least: Duration) {
        thread::sleep(least);
        let answered = self.answered.clone();
        becomes_true(|| answered.load(Ordering::Relaxed) >= MIN_PINGS || self.thread.is_finished());
    }

    /// Ends the pings and prints their durations; returns their p99.
    fn stop(self, what: &str) -> Duration {
        self.stop.store(true, Ordering::Relaxed);
        let took = self.thread.join().expect("the pings");
        let mut took = took.unwrap_or_else(|error| panic!("while {what}: {error}"));
        took.sort_unstable();
        let at = |part: usize| took[(took.len() - 1) * part / 100];
        println!(
            "{what}: {} pings of another user, p50 {:?}, p99 {:?}, worst {:?}",
            took.len(),
            at(50),
            at(99),
            at(100)
        );
        assert!(took.len() >= MIN_PINGS, "{} pings only", took.len());
        at(99)
    }
}

/// A TCP connection that lingers: closing its last descriptor blocks until the peer has read the
/// sent data or is gone.
struct Lingering {
    near: TcpStream,
    far: TcpStream,
}

impl Lingering {
    fn new() -> Lingering {
        use std::io::Write;
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let mut near = TcpStream::connect(listener.local_addr().expect("its name")).expect("there");
        let (far, _) = listener.accept().expect("it comes");
        near.set_nonblocking(true).expect("a flag");
        let chunk = [0; 64 * 1024];
        while near.write(&chunk).is_ok() {}
        let socket = socket2::SockRef::from(&near);
        socket
            .set_linger(Some(Duration::from_secs(600)))
            .expect("an option");
        Lingering { near, far }
    }

    /// Sends the descriptor in all ways. Returns whether the kernel passed it in any way, and the
    /// connections that stay open. Each way adds copies that one thread closes one after the other,
    /// so this process's copy is closed long before the last one.
    fn send_all_ways(&self, socket: &Path) -> (bool, Vec<UnixStream>) {
        let ways = [
            SendKind::One,
            SendKind::Three,
            SendKind::Queued,
            SendKind::Part,
        ];
        let gone = ways.map(|kind| kind.send(socket, self.near.as_fd()));
        let went = gone.iter().any(|(went, _)| *went);
        (
            went,
            gone.into_iter().filter_map(|(_, stream)| stream).collect(),
        )
    }

    /// Closes this process's copy in a thread, because the close blocks if it is the last copy.
    /// Returns the other end, which must be kept.
    fn close_in_thread(self) -> TcpStream {
        let near = self.near;
        thread::spawn(move || drop(near));
        self.far
    }
}

/// A way to send descriptors so that the front process must close them.
#[derive(Clone, Copy, Debug)]
enum SendKind {
    /// One descriptor with a whole request.
    One,
    /// Three descriptors with a whole request.
    Three,
    /// One descriptor with each of many bytes; the sender closes the connection at once.
    Queued,
    /// One descriptor with a part of a request that is never completed.
    Part,
}

impl SendKind {
    /// Connects and sends; returns whether the kernel passed a descriptor.
    fn send(self, socket: &Path, fd: BorrowedFd<'_>) -> (bool, Option<UnixStream>) {
        let frame = encode_request(&ping()).expect("short");
        let Ok(stream) = UnixStream::connect(socket) else {
            return (false, None);
        };
        let send = |bytes: &[u8], many: usize| fds::send(stream.as_fd(), bytes, &vec![fd; many]);
        let sent = match self {
            SendKind::One => send(&frame, 1),
            SendKind::Three => send(&frame, 3),
            SendKind::Queued => frame
                .chunks(1)
                .map(|byte| send(byte, 1))
                .next_back()
                .expect("a byte"),
            SendKind::Part => send(&frame[..3], 1),
        };
        let keeps = !matches!(self, SendKind::Queued);
        (sent.is_ok(), keeps.then_some(stream))
    }
}

/// One user sends descriptors whose close blocks, in all ways, while another user pings. Returns
/// the number that the kernel passed.
fn send_blocking_descriptors(bed: &TestBed) -> usize {
    let dir = RuntimeDir::choose(Some(bed.netnice.runtime().to_owned()), None);
    let others = Pings::start(&dir);
    let sockets: Vec<Lingering> = (0..50).map(|_| Lingering::new()).collect();
    let passed = Arc::new(AtomicUsize::new(0));
    let count = passed.clone();
    let attack = as_user(ANN, move || {
        let mut held = Vec::new();
        let mut far = Vec::new();
        for socket in sockets {
            let (went, streams) = socket.send_all_ways(&dir.socket());
            count.fetch_add(usize::from(went), Ordering::Relaxed);
            held.push(streams);
            far.push(socket.close_in_thread());
        }
        (held, far)
    });
    let kept = attack.join().expect("the attack");
    others.await_enough(Duration::from_secs(2));
    others.stop("50 descriptors whose close blocks");
    let passed = passed.load(Ordering::Relaxed);
    println!("{passed} of 50 were let through by the kernel");
    // The other ends close, so that the lingering connections end.
    drop(kept);
    passed
}

/// Blocks the front's thread of a user: the front is stopped until this process has closed its copy
/// of the sent descriptor. Returns what the caller must keep open.
fn block_users_thread(bed: &TestBed) -> (Vec<UnixStream>, TcpStream) {
    let front = front(daemon(bed)).expect("a front") as i32;
    let path = bed.netnice.runtime().join("netnice.sock");
    sys::kill(front, libc::SIGSTOP).expect("root may");
    let sent = as_user(ANN, move || {
        let socket = Lingering::new();
        let (went, held) = socket.send_all_ways(&path);
        assert!(went, "nothing came through");
        let far = socket.close_in_thread();
        thread::sleep(Duration::from_millis(100));
        (held, far)
    });
    let kept = sent.join().expect("it is sent");
    sys::kill(front, libc::SIGCONT).expect("root may");
    kept
}

/// A process of the hostile user with many sockets whose close blocks.
fn start_lingering(bed: &TestBed, connections: usize) -> Proc {
    let mut command = crate::users::as_user(bed, ANN);
    command.arg(bed.copy_for_all("netnice-lab").expect("a copy"));
    command.args(["storm", "lingering", "--count", &connections.to_string()]);
    let mut process = Proc::start(command).expect("a process");
    process.next_line(EVENT_TIMEOUT).expect("it has them");
    process
}

/// Requests a limit of a process as its user.
fn limit(
    dir: &RuntimeDir,
    (pid, pidfd): (u32, &OwnedFd),
    mbit: u32,
) -> Result<Response, ClientError> {
    let request = set_request(pid, &format!("up {mbit}mbit"));
    let client = Client::connect(dir);
    client.and_then(|mut it| it.call_within(EVENT_TIMEOUT, &request, Some(pidfd.as_fd())))
}

#[test]
#[ignore = "long: a process with 10,000 connections, and a time that is judged"]
fn a_process_with_twenty_thousand_sockets_delays_others_little() {
    let bed = TestBed::new().expect("a test bed");
    let dir = RuntimeDir::choose(Some(bed.netnice.runtime().to_owned()), None);
    let own = bed.sleeper();
    // The eBPF programs for the first limit are loaded before.
    bed.run_ok(&format!("set pid:{} --up 1mbit", own.pid()));
    let process = start_lingering(&bed, 9_900);
    let others = Pings::start(&dir);
    let stop = Arc::new(AtomicBool::new(false));
    let (pid, over) = (process.pid(), stop.clone());
    let opened = pidfd(pid).expect("it lives");
    let sets = as_user(ANN, move || {
        let mut done = 0;
        while !over.load(Ordering::Relaxed) {
            let answer = limit(&dir, (pid, &opened), 1 + done % 2);
            assert!(matches!(answer, Ok(Response::Done(_))), "{answer:?}");
            let cleared = Client::connect(&dir).and_then(|mut client| {
                client.call_within(
                    EVENT_TIMEOUT,
                    &clear_request(ClearWhat::Target(format!("pid:{}", pid))),
                    None,
                )
            });
            assert!(matches!(cleared, Ok(Response::Done(_))), "{cleared:?}");
            done += 1;
        }
        done
    });
    others.await_enough(Duration::from_secs(10));
    stop.store(true, Ordering::Relaxed);
    println!("{} times set and cleared", sets.join().expect("it sets"));
    let p99 = others.stop("a process with 19,800 sockets is set and cleared");
    assert!(p99 <= Duration::from_millis(50), "{p99:?}");
}

#[test]
fn a_process_that_ends_while_its_sockets_are_tagged_blocks_no_request() {
    let bed = TestBed::new().expect("a test bed");
    let dir = RuntimeDir::choose(Some(bed.netnice.runtime().to_owned()), None);
    let others = Pings::start(&dir);
    let own = bed.sleeper();
    // The eBPF programs for the first limit are loaded before.
    bed.run_ok(&format!("set pid:{} --up 1mbit", own.pid()));
    let mut limited = 0;
    for tries in 0..12 {
        let process = start_lingering(&bed, 400);
        let (pid, dir) = (process.pid(), dir.clone());
        // Opened while the process lives.
        let opened = pidfd(pid).expect("it lives");
        let asked = as_user(ANN, move || limit(&dir, (pid, &opened), 1));
        thread::sleep(Duration::from_millis(2 + 3 * tries));
        drop(process);
        // The process can have ended before the request is read.
        match asked.join().expect("it asks") {
            Ok(_) => limited += 1,
            Err(error) => assert!(error.to_string().contains("has ended"), "{tries}: {error}"),
        }
    }
    assert!(limited > 0, "no request came before the end of its process");
    others.await_enough(Duration::ZERO);
    others.stop("processes end while their sockets are tagged");
}

/// Whether a ping of the hostile user is answered.
fn hostile_user_is_served(bed: &TestBed, within: Duration) -> bool {
    let dir = RuntimeDir::choose(Some(bed.netnice.runtime().to_owned()), None);
    let pinged = as_user(ANN, move || {
        let client = Client::connect(&dir);
        client.and_then(|mut it| it.call_within(within, &ping(), None))
    });
    matches!(pinged.join().expect("it asks"), Ok(Response::Pong(_)))
}

#[test]
fn descriptors_whose_close_blocks_delay_no_other_user() {
    let bed = TestBed::new().expect("a test bed");
    let before = descriptors_of(daemon(&bed));
    send_blocking_descriptors(&bed);
    bed.run_ok("show");
    assert!(
        becomes_true(|| descriptors_of(daemon(&bed)) <= before),
        "the daemon keeps descriptors: {before}, then {}",
        descriptors_of(daemon(&bed))
    );
}

#[test]
fn descriptors_whose_close_blocks_delay_no_other_user_if_the_kernel_passes_them() {
    let mut bed = TestBed::new().expect("a test bed");
    bed.netnice
        .restart_with(&["--take-descriptors"])
        .expect("it starts");
    let kept = block_users_thread(&bed);
    assert!(
        !hostile_user_is_served(&bed, Duration::from_millis(500)),
        "nothing blocks"
    );
    let passed = send_blocking_descriptors(&bed);
    assert!(passed >= 10, "{passed} came through, so nothing was tried");
    assert!(
        !hostile_user_is_served(&bed, Duration::from_millis(500)),
        "nothing blocks"
    );
    // The user that sent the descriptors is served again when the other ends have closed.
    drop(kept);
    let served = || hostile_user_is_served(&bed, PING_TIMEOUT);
    assert!(
        becomes_true(served),
        "the user's own pings are not answered"
    );
}

#[test]
fn a_user_whose_thread_is_blocked_gets_an_error_and_others_are_served() {
    let mut bed = TestBed::new().expect("a test bed");
    bed.netnice
        .restart_with(&["--take-descriptors"])
        .expect("it starts");
    let dir = RuntimeDir::choose(Some(bed.netnice.runtime().to_owned()), None);
    let kept = block_users_thread(&bed);
    let others = Pings::start(&dir);
    let attack = as_user(ANN, move || {
        // More connections than the user may have; the blocked thread accepts none of them.
        let connected: Vec<_> = (0..70).filter_map(|_| Client::connect(&dir).ok()).collect();
        let patience = Duration::from_millis(200);
        let answers = connected
            .into_iter()
            .rev()
            .map(|mut client| client.call_within(patience, &ping(), None));
        // Responses to the last ones; the first ones get none.
        answers.take(10).find_map(|answer| match answer {
            Ok(Response::Failed(failed)) => Some(failed.text),
            _ => None,
        })
    });
    let told = attack.join().expect("the attack").expect("a refusal");
    others.await_enough(Duration::from_secs(1));
    assert!(
        told.contains("file descriptor") && told.contains(&ANN.to_string()),
        "{told}"
    );
    drop(kept);
    others.stop("a user's thread is stuck");
}

#[test]
fn a_user_with_the_maximum_of_connections_delays_others_little() {
    let bed = TestBed::new().expect("a test bed");
    let dir = RuntimeDir::choose(Some(bed.netnice.runtime().to_owned()), None);
    let stop = Arc::new(AtomicBool::new(false));
    let others = Pings::start(&dir);
    let greedy: Vec<_> = (0..32)
        .map(|n| {
            let (dir, stop) = (dir.clone(), stop.clone());
            as_user(ANN, move || {
                let request = match n % 2 {
                    0 => Request::Show(Show { target: None }),
                    _ => Request::Doctor(Doctor {}),
                };
                let mut answered = 0;
                while !stop.load(Ordering::Relaxed) {
                    let Ok(mut client) = Client::connect(&dir) else {
                        continue;
                    };
                    while !stop.load(Ordering::Relaxed)
                        && client.call_within(PING_TIMEOUT, &request, None).is_ok()
                    {
                        answered += 1;
                    }
                }
                answered
            })
        })
        .collect();
    others.await_enough(Duration::from_secs(3));
    stop.store(true, Ordering::Relaxed);
    let answered: u32 = greedy
        .into_iter()
        .map(|one| one.join().expect("it asks"))
        .sum();
    println!("{answered} answers to 32 connections that ask without a pause");
    others.stop("32 connections ask without a pause");
}

#[test]
fn a_client_that_reads_no_responses_delays_no_other() {
    let bed = TestBed::new().expect("a test bed");
    let dir = RuntimeDir::choose(Some(bed.netnice.runtime().to_owned()), None);
    let others = Pings::start(&dir);
    let deaf = as_user(ANN, move || {
        let frame = encode_request(&Request::Doctor(Doctor {})).expect("short");
        let frames = frame.repeat(1000);
        let streams: Vec<_> = (0..32)
            .filter_map(|_| {
                use std::io::Write;
                let mut stream = UnixStream::connect(dir.socket()).ok()?;
                stream.set_nonblocking(true).ok()?;
                let _ = stream.write(&frames);
                Some(stream)
            })
            .collect();
        streams
    });
    let deaf = deaf.join().expect("it is deaf");
    assert!(!deaf.is_empty());
    others.await_enough(Duration::from_secs(2));
    others.stop("32 connections take no answers");
}

/// The daemon's process.
fn daemon(bed: &TestBed) -> u32 {
    bed.netnice.pid().expect("it runs")
}

/// The daemon comes before ordinary programs, and the front, which reads what users send, does not.
#[test]
fn the_front_does_not_have_the_daemons_priority() {
    let bed = TestBed::new().expect("a test bed");
    let daemon = daemon(&bed);
    let front = front(daemon).expect("a front");
    // Fields of proc_pid_stat(5): the session is the sixth, the nice value the 19th.
    let fields = |pid: u32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("a process");
        let (_, rest) = stat.rsplit_once(") ").expect("a name in brackets");
        let rest: Vec<i64> = rest
            .split(' ')
            .skip(1)
            .filter_map(|field| field.trim().parse().ok())
            .collect();
        (rest[6 - 4], rest[19 - 4])
    };
    assert_eq!(fields(daemon).1, -10);
    assert_eq!(fields(front), (i64::from(front), 0));
}

/// The front process of a daemon, once it is confined.
fn front(daemon: u32) -> Option<u32> {
    let path = format!("/proc/{daemon}/task/{daemon}/children");
    let children = std::fs::read_to_string(path).ok()?;
    let mut children = children
        .split_whitespace()
        .filter_map(|word| word.parse().ok());
    children.find(|pid| {
        let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        name.trim() == "netnice-front" && field(*pid, "Seccomp:") == "2"
    })
}

fn field(pid: u32, name: &str) -> String {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    line.unwrap_or_default().trim().to_owned()
}

fn descriptors_of(pid: u32) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count)
}

#[test]
fn the_front_process_has_no_rights_but_to_read_the_socket() {
    let bed = TestBed::new().expect("a test bed");
    let front = front(daemon(&bed)).expect("a front");
    let users = field(front, "Uid:");
    assert!(users.split_whitespace().all(|uid| uid != "0"), "{users}");
    assert_eq!(field(front, "Groups:"), "");
    for set in ["CapInh:", "CapPrm:", "CapEff:", "CapBnd:", "CapAmb:"] {
        assert_eq!(field(front, set), "0000000000000000", "{set}");
    }
    assert_eq!(
        (
            field(front, "NoNewPrivs:"),
            field(front, "Seccomp_filters:")
        ),
        ("1".into(), "2".into())
    );
    let root = std::fs::read_dir(format!("/proc/{front}/root")).expect("root may look");
    assert_eq!(root.count(), 0, "its root folder is not empty");
    let said = bed.run_ok("doctor").stdout;
    let line = said.lines().find(|line| line.contains("reads the socket"));
    println!("{}", line.expect("a line of the front"));
    // The same program, with the same confinement, tries what must be impossible.
    let mut command = process::own_group(process::binary("netniced").expect("it is built"));
    command
        .args(["--try-front", "65534:65534"])
        .current_dir(bed.world.folder());
    let tried = process::run(&mut command).expect("it ends well");
    print!("{tried}");
    assert!(tried.lines().count() > 15, "{tried}");
    assert!(!tried.contains("POSSIBLE"), "{tried}");
    for what in [
        "open /etc/passwd",
        "kill",
        "trace",
        "make a socket",
        "start a program",
        "fork",
    ] {
        let refused = format!("{what}: Operation not permitted (os error 1)");
        assert!(
            tried.lines().any(|line| line == refused),
            "{refused} is not in {tried}"
        );
    }
    let left = std::fs::read_dir(bed.world.folder()).expect("the folder");
    let left: Vec<PathBuf> = left.flatten().map(|entry| entry.path()).collect();
    assert!(
        left.iter()
            .all(|path| !path.to_string_lossy().contains("front.")),
        "{left:?}"
    );
}

#[test]
fn a_killed_front_process_is_replaced_and_limits_stay() {
    let bed = TestBed::new().expect("a test bed");
    let process = bed.sleeper();
    bed.run_ok(&format!("set pid:{} --up 4mbit", process.pid()));
    let before = bed.netnice.show_without_counters().expect("a show");
    let own = daemon(&bed);
    let dir = RuntimeDir::choose(Some(bed.netnice.runtime().to_owned()), None);
    for _ in 0..3 {
        let was = front(own).expect("a front");
        let mut client = Client::connect(&dir).expect("it listens");
        client.call(&ping(), None).expect("a pong");
        sys::kill(was as i32, libc::SIGKILL).expect("root may");
        let error = client.call(&ping(), None).expect_err("its connections end");
        assert!(
            matches!(error, ClientError::HungUp | ClientError::Io(_)),
            "{error}"
        );
        assert!(
            becomes_true(|| front(own).is_some_and(|now| now != was)),
            "no other one"
        );
        assert_eq!(bed.netnice.show_without_counters().expect("a show"), before);
    }
    assert_eq!(daemon(&bed), own);
    assert!(sys::is_alive(own));
}

#[test]
fn the_front_process_ends_with_its_daemon() {
    let mut bed = TestBed::new().expect("a test bed");
    for signal in [libc::SIGKILL, libc::SIGTERM] {
        let own = daemon(&bed);
        let front = front(own).expect("a front");
        sys::kill(own as i32, signal).expect("root may");
        assert!(
            becomes_true(|| !sys::is_alive(own) && !sys::is_alive(front)),
            "{front} outlives it"
        );
        bed.netnice.kill_daemon();
        bed.netnice.start_daemon().expect("it starts");
    }
    // A stopped front cannot notice by itself that its daemon has ended.
    let own = daemon(&bed);
    let front = front(own).expect("a front");
    sys::kill(front as i32, libc::SIGSTOP).expect("root may");
    bed.netnice.kill_daemon();
    assert!(
        becomes_true(|| !sys::is_alive(front)),
        "{front} outlives it"
    );
    bed.netnice.start_daemon().expect("it starts");
}

#[test]
fn the_daemon_notifies_the_watchdog_of_its_service_manager() {
    let bed = TestBed::new().expect("a test bed");
    let path = bed.world.folder().join("notify");
    let socket = std::os::unix::net::UnixDatagram::bind(&path).expect("a socket");
    socket
        .set_read_timeout(Some(EVENT_TIMEOUT))
        .expect("a time");
    let runtime = bed.world.folder().join("watched");
    let netniced = process::binary("netniced").expect("it is built");
    let mut command = bed.world.client().ns.command(&netniced);
    command
        .arg("--runtime-dir")
        .arg(&runtime)
        .args(["--policy", "/nonexistent"]);
    command.env("NOTIFY_SOCKET", &path);
    let mut daemon = Proc::start(command).expect("it starts");
    let mut told = Vec::new();
    while told.iter().filter(|line| *line == "WATCHDOG=1").count() < 2 {
        let mut bytes = [0; 256];
        let length = socket.recv(&mut bytes).expect("it tells");
        let text = String::from_utf8_lossy(&bytes[..length]).into_owned();
        told.extend(text.lines().map(str::to_owned));
    }
    assert!(told.contains(&"READY=1".to_owned()), "{told:?}");
    daemon.terminate(EVENT_TIMEOUT);
}

/// The least number of pings for a result.
const MIN_PINGS: usize = 20;
/// Time limit of a response on a loaded machine; a missing response takes longer.
const PING_TIMEOUT: Duration = Duration::from_secs(10);
