//! Tests quotas: one user's share of common resources (connections, targets, pending changes,
//! programs on the direct path, log lines, and the daemon's time), and the longest duration of a
//! change. No user's requests may prevent those of other users and of root.

use std::fs::{self, File};
use std::io::Write;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use netnice_api::direct::{Attach, DirectRequest};
use netnice_api::{
    Clear, ClearWhat, Client, Connections, Ping, Request, Response, RuntimeDir, Set,
};
use netnice_kernel::process::PidFd;
use netnice_lab::process::{EVENT_TIMEOUT, Proc};
use netnice_lab::sys;
use netnice_lab::testbed::{TestBed, becomes_true};
use netnice_lab::traffic::{self, Direct};
use serde_json::Value;

use crate::users::{ANN, BOB, as_user, process_of, run_as};

/// A test bed whose daemon has loaded these quotas.
fn test_bed(quotas: &str) -> TestBed {
    let bed = TestBed::new().expect("a test bed");
    let text = format!("[quotas]\n{quotas}\n");
    fs::write(bed.netnice.policy(), text).expect("a policy");
    bed.run_ok("reload");
    bed
}

/// Runs `what` as a user, in a thread.
fn as_uid<T: Send>(uid: u32, what: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| {
        let thread = scope.spawn(|| {
            sys::become_user(uid).expect("another user");
            what()
        });
        thread.join().expect("it does not panic")
    })
}

fn client(runtime: &Path) -> Client {
    let folder = RuntimeDir::choose(Some(runtime.to_owned()), None);
    Client::connect(&folder).expect("a connection")
}

/// A user's use of a quota, as root sees it.
fn used(bed: &TestBed, uid: u32, quota: &str) -> u64 {
    let shown = bed.run_ok("show --users --json").stdout;
    let shown: Value = serde_json::from_str(&shown).expect("a document");
    let users = shown["users"].as_array().expect("a list");
    let user = users.iter().find(|user| user["uid"] == uid);
    user.map_or(0, |user| user["used"][quota].as_u64().unwrap_or(0))
}

fn refused(response: Response) -> String {
    match response {
        Response::Refused(refused) => refused.text,
        other => panic!("{other:?}"),
    }
}

#[test]
fn connections_of_a_user_are_bounded_and_the_oldest_idle_one_is_closed() {
    let bed = test_bed("connections = 2");
    let runtime = bed.netnice.runtime().to_owned();
    let answers = |client: &mut Client| {
        let pong = client.call(&Request::Ping(Ping {}), None);
        matches!(pong, Ok(Response::Pong(_)))
    };
    let open = |count: usize| {
        as_uid(ANN, || {
            let opened = (0..count).map(|_| {
                let mut client = client(&runtime);
                assert!(answers(&mut client), "a new connection is served");
                client
            });
            opened.collect::<Vec<_>>()
        })
    };
    let mut clients = open(3);
    assert_eq!(used(&bed, ANN, "connections"), 2);
    let served: Vec<bool> = clients.iter_mut().map(answers).collect();
    assert_eq!(served, [false, true, true], "the eldest made room");
    fs::write(bed.netnice.policy(), "[quotas]\nconnections = 4\n").expect("a policy");
    bed.run_ok("reload");
    clients.extend(open(2));
    let served: Vec<bool> = clients.iter_mut().map(answers).collect();
    assert_eq!(served, [false, true, true, true, true]);
}

#[test]
fn targets_of_a_user_are_bounded_and_the_refusal_names_the_quota() {
    let bed = test_bed("targets = 2");
    let own = [ANN; 3].map(|uid| process_of(&bed, uid));
    for process in &own[..2] {
        let set = run_as(&bed, ANN, &format!("set pid:{} --up 4mbit", process.pid()));
        assert_eq!(set.status, 0, "{set:?}");
    }
    let line = format!("set pid:{} --up 4mbit", own[2].pid());
    let third = run_as(&bed, ANN, &line);
    assert_eq!(third.status, 3, "{third:?}");
    let policy = bed.netnice.policy().display().to_string();
    for word in ["would have 3 targets", "quota of 2", "`targets`", &policy] {
        assert!(third.stderr.contains(word), "{word}: {third:?}");
    }
    assert_eq!(used(&bed, ANN, "targets"), 2);
    let shown = run_as(&bed, ANN, "show --users");
    assert!(shown.stdout.contains(&ANN.to_string()), "{shown:?}");
    // Other users have quotas of their own, and root has none.
    let bobs = process_of(&bed, BOB);
    let set = run_as(&bed, BOB, &format!("set pid:{} --up 4mbit", bobs.pid()));
    assert_eq!(set.status, 0, "{set:?}");
    let shown = run_as(&bed, BOB, "show --users");
    assert!(!shown.stdout.contains(&ANN.to_string()), "{shown:?}");
    bed.run_ok(&line);
    // A cleared target frees its place.
    run_as(&bed, ANN, &format!("clear pid:{}", own[0].pid()));
    bed.run_ok(&format!("clear pid:{}", own[2].pid()));
    assert_eq!(run_as(&bed, ANN, &line).status, 0);
}

#[test]
fn a_share_that_a_quota_refused_is_set_once_the_quota_allows_it() {
    let bed = test_bed("targets = 1");
    let copy = bed.copy_for_all("netnice").expect("a copy");
    let own = [ANN; 2].map(|uid| process_of(&bed, uid));
    let named = own
        .each_ref()
        .map(|process| format!("pid:{}", process.pid()));
    let mut command = as_user(&bed, ANN);
    command
        .arg(&copy)
        .args(["share", "512Kbyte/s"])
        .args(&named);
    let share = Proc::start(command).expect("it starts");
    let limited = || {
        named
            .iter()
            .filter(|name| !bed.target(name).is_null())
            .count()
    };
    assert!(becomes_true(|| limited() == 1), "{}", limited());
    fs::write(bed.netnice.policy(), "[quotas]\ntargets = 2\n").expect("a policy");
    bed.run_ok("reload");
    assert!(becomes_true(|| limited() == 2), "{}", limited());
    drop(share);
}

#[test]
fn the_duration_of_a_users_change_is_bounded() {
    let bed = TestBed::new().expect("a test bed");
    let own = process_of(&bed, ANN);
    let line = format!("set pid:{} --up 4mbit --for 8784h", own.pid());
    let answer = run_as(&bed, ANN, &line);
    assert_eq!(answer.status, 3, "{answer:?}");
    assert!(answer.stderr.contains("quota of 744h"), "{answer:?}");
    bed.run_ok(&line);
}

#[test]
fn pending_changes_of_a_user_are_bounded() {
    let bed = test_bed("undos = 2");
    let own = [ANN; 3].map(|uid| process_of(&bed, uid));
    let line = |n: usize| format!("set pid:{} --up 4mbit --for 1h", own[n].pid());
    for n in 0..2 {
        assert_eq!(run_as(&bed, ANN, &line(n)).status, 0);
    }
    let third = run_as(&bed, ANN, &line(2));
    assert_eq!(third.status, 3, "{third:?}");
    assert!(third.stderr.contains("3 changes that wait"), "{third:?}");
    assert_eq!(used(&bed, ANN, "undos"), 2);
}

#[test]
fn refusals_of_a_user_do_not_erase_the_log() {
    let bed = TestBed::new().expect("a test bed");
    let roots = bed.sleeper();
    bed.run_ok(&format!("set pid:{} --up 4mbit", roots.pid()));
    let runtime = bed.netnice.runtime();
    as_uid(ANN, || {
        let mut client = client(runtime);
        let set = Set {
            target: format!("user:{BOB}"),
            change: Some("up 1mbit".to_owned()),
            ..Set::default()
        };
        let request = Request::Set(set);
        for _ in 0..2_500 {
            refused(client.call(&request, None).expect("an answer"));
        }
    });
    let log = bed.run_ok("log").stdout;
    let ours = format!("root set pid:{}", roots.pid());
    assert!(log.contains(&ours), "root's line is gone");
    let lines = log.lines().filter(|line| line.contains(&ANN.to_string()));
    let lines: Vec<&str> = lines.collect();
    // The flood may fall into two minutes.
    assert!(lines.len() <= 2 * 241, "{} lines", lines.len());
    assert!(log.contains("more refusals of user"), "{:?}", lines.last());
    assert!(used(&bed, ANN, "log-lines") > 0);
}

#[test]
fn log_lines_of_a_driver_are_bounded() {
    let bed = TestBed::new().expect("a test bed");
    let device = &bed.world.client().port().device;
    bed.run_ok(&format!("link {device} --rate 100mbit"));
    let source = Direct::source(bed.client(6001), bed.server(6001));
    let source = source.by(bed.netnice.runtime()).rate(1_000_000);
    let _flow = traffic::start_now(bed.world.client(), &source).expect("a flow");
    let path = bed.netnice.runtime().join(format!("driver-{device}.log"));
    assert!(path.exists(), "{}", path.display());
    // Appends, as the driver does.
    let mut log = File::options().append(true).open(&path).expect("the file");
    let line = [b'x'; 1023];
    for _ in 0..2_048 {
        log.write_all(&line)
            .and_then(|()| log.write_all(b"\n"))
            .expect("written");
    }
    let length = || fs::metadata(&path).expect("the file").len();
    assert!(becomes_true(|| length() < 300 * 1024), "{} bytes", length());
    assert!(
        path.with_extension("log.1").exists(),
        "the part before is kept"
    );
    log.write_all(b"the last\n").expect("written");
    let kept = fs::read_to_string(&path).expect("text");
    assert_eq!(kept.matches("the last").count(), 1);
    assert!(!kept.contains('\0'), "it goes on where the file ends");
}

#[test]
fn a_connection_of_an_ended_program_counts_until_it_is_closed() {
    let bed = TestBed::new().expect("a test bed");
    let device = &bed.world.client().port().device;
    bed.run_ok(&format!("link {device} --rate 100mbit"));
    let runtime = bed.netnice.runtime();
    let mut open = Vec::new();
    let mut said = None;
    for _ in 0..70 {
        let mut child = process_of(&bed, ANN);
        let pid = child.pid();
        let (client, answer) = as_uid(ANN, || {
            let mut client = client(runtime);
            let attach = Attach {
                iface: None,
                flows: 1,
                bytes: 1 << 16,
                moves: false,
            };
            let request = Request::Direct(DirectRequest::Attach(attach));
            let handle = PidFd::open(pid).expect("it runs");
            let handle = handle.duplicate().expect("a descriptor");
            let answer = client.call(&request, Some(handle.as_fd()));
            (client, answer.expect("an answer"))
        });
        child.kill();
        match answer {
            Response::Direct(_) => open.push(client),
            other => {
                said = Some(refused(other));
                break;
            }
        }
    }
    let said = said.unwrap_or_else(|| panic!("{} connections, and no end of it", open.len()));
    assert_eq!(open.len(), 64, "{said}");
    assert!(said.contains("65 programs on the direct path"), "{said}");
    assert_eq!(used(&bed, ANN, "programs"), 64);
    drop(open);
    assert!(becomes_true(|| used(&bed, ANN, "programs") == 0));
}

/// A process of a user with many sockets.
fn with_sockets(bed: &TestBed, uid: u32, sockets: u32) -> Proc {
    let script = format!(
        "import socket, time\nall = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range({sockets})]\n\
         print('here', flush=True)\ntime.sleep(600)"
    );
    let mut command = as_user(bed, uid);
    let shell = "ulimit -n $(ulimit -Hn); exec /usr/bin/python3 -c \"$0\"";
    command.args(["sh", "-c", shell, &script]);
    let mut process = Proc::start(command).expect("a process");
    process.next_line(EVENT_TIMEOUT).expect("it runs");
    process
}

#[test]
fn a_user_with_costly_requests_waits_and_others_do_not() {
    let bed = TestBed::new().expect("a test bed");
    let busy = with_sockets(&bed, ANN, 3_000);
    // The eBPF programs are loaded and stay loaded.
    let roots = bed.sleeper();
    bed.run_ok(&format!("set pid:{} --up 4mbit", roots.pid()));
    let target = format!("pid:{}", busy.pid());
    let (runtime, pid) = (bed.netnice.runtime(), busy.pid());
    let over = AtomicBool::new(false);
    let (mut pings, answered) = thread::scope(|scope| {
        let floods: Vec<_> = (0..8)
            .map(|_| {
                scope.spawn(|| {
                    sys::become_user(ANN).expect("another user");
                    flood(runtime, &target, pid, &over)
                })
            })
            .collect();
        thread::sleep(Duration::from_secs(1));
        let pings = as_uid(BOB, || {
            let mut client = client(runtime);
            let request = Request::Ping(Ping {});
            let ping = |_| {
                thread::sleep(Duration::from_millis(50));
                let begun = Instant::now();
                let answer = client.call(&request, None);
                assert!(matches!(answer, Ok(Response::Pong(_))), "{answer:?}");
                begun.elapsed()
            };
            (0..40).map(ping).collect::<Vec<Duration>>()
        });
        over.store(true, Ordering::Relaxed);
        let answered = floods
            .into_iter()
            .map(|flood| flood.join().expect("a count"));
        (pings, answered.sum::<u64>())
    });
    pings.sort_unstable();
    let half = pings[pings.len() / 2];
    println!(
        "half of the pings within {half:?}, all within {:?}; {answered} answers",
        pings[39]
    );
    assert!(answered > 0, "a request that waits is answered in the end");
    assert!(
        half < MAX_MEDIAN_PING,
        "half of the pings took {half:?} and more"
    );
}

/// Repeats slow requests; returns the number of answers.
fn flood(runtime: &Path, target: &str, pid: u32, over: &AtomicBool) -> u64 {
    let mut client = client(runtime);
    let handle = PidFd::open(pid).expect("it runs");
    let handle = handle.duplicate().expect("a descriptor");
    let set = Request::Set(Set {
        target: target.to_owned(),
        change: Some("up 4mbit".to_owned()),
        ..Set::default()
    });
    let clear = Request::Clear(Clear {
        what: ClearWhat::Target(target.to_owned()),
        dry_run: false,
        confirm_ns: None,
        for_ns: None,
        until: None,
    });
    let connections = Request::Connections(Connections {
        target: target.to_owned(),
        own: false,
    });
    let mut answered = 0;
    while !over.load(Ordering::Relaxed) {
        for (request, fd) in [
            (&set, Some(handle.as_fd())),
            (&connections, None),
            (&clear, None),
        ] {
            client.call(request, fd).expect("an answer");
            answered += 1;
            if over.load(Ordering::Relaxed) {
                break;
            }
        }
    }
    answered
}

/// The median duration of another user's requests must be below this while one user makes requests
/// without a pause.
const MAX_MEDIAN_PING: Duration = Duration::from_millis(60);
