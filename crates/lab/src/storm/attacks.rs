//! The attacks of a hostile user on the daemon: one function for each, and their table,
//! [`ATTACKS`].
//!
//! An attack over the daemon's socket waits at most 2 s for each response
//! (`hostile::IO_TIMEOUT`). If the daemon grants something that the user must not have, the attack
//! reports a finding (`HostileUser::report_finding`). An attack returns an error if it cannot go
//! on: for example if the daemon refuses a connection or does not respond, or if a process has
//! ended. Such an error is no finding.
//!
//! **A new attack** is a function and a line in [`ATTACKS`]. The program `netnice-lab storm
//! hostile` draws attacks from the table at random; with `--only NAME` it repeats one.

use std::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use netnice_api::{
    ClearWhat, Client, Confirm, Connections, Doctor, Explain, Find, History, LinkChange, Log,
    PacketCostsDoc, Ping, Programs, Reload, Request, Reserve, Response, Set, Show, Watch,
};
use netnice_stack::Program;
use netnice_stack::udp::{Buffers, Remote, UdpOptions};
use rustix::event::EventfdFlags;
use rustix::fs::MemfdFlags;
use rustix::pipe::PipeFlags;

use super::hostile::{
    HostileUser, MAX_DESCRIPTORS, frame, read_response, send, send_with_descriptors, sleeper,
};
use super::{clear_request, pidfd, set_request};
use crate::sys;

/// An attack of a hostile user. It fails if it cannot continue, for example because the daemon
/// refuses a connection or does not respond. A failure is no finding.
pub(crate) type Attack = fn(&mut HostileUser) -> Result<()>;

/// All attacks by name.
pub const ATTACKS: &[(&str, Attack)] = &[
    // Bytes.
    ("random-bytes", random_bytes),
    ("nested-json", nested_json),
    ("invalid-requests", invalid_requests),
    ("huge-frame", huge_frame),
    ("slow-frame", slow_frame),
    ("cut-frame", cut_frame),
    ("long-names", long_names),
    // Connections.
    ("many-connections", many_connections),
    ("idle-connections", idle_connections),
    ("unread-responses", unread_responses),
    ("stopped-reader", stopped_reader),
    ("close-before-response", close_before_response),
    // Descriptors.
    ("many-descriptors", many_descriptors),
    ("queued-descriptors", queued_descriptors),
    ("wrong-descriptor", wrong_descriptor),
    // Processes.
    ("dead-pidfd", dead_pidfd),
    ("foreign-pidfd", foreign_pidfd),
    ("forking-process", forking_process),
    ("invalid-process-name", invalid_process_name),
    ("end-while-tagged", end_while_tagged),
    // Requests.
    ("set-and-clear", set_and_clear),
    ("short-durations", short_durations),
    ("privileged-requests", privileged_requests),
    ("read-requests", read_requests),
    ("clear-all", clear_all),
    // The direct path.
    ("attach-detach", attach_detach),
    ("end-with-open-flow", end_with_open_flow),
];

/// Random bytes, half of the time as a frame.
fn random_bytes(hostile: &mut HostileUser) -> Result<()> {
    for _ in 0..8 {
        let mut stream = hostile.connect()?;
        let length = hostile.random.below(512) as usize;
        let bytes: Vec<u8> = (0..length)
            .map(|_| hostile.random.below(256) as u8)
            .collect();
        let framed = hostile.random.below(2) == 0;
        send(&mut stream, &if framed { frame(&bytes) } else { bytes })?;
        stream.shutdown(std::net::Shutdown::Write)?;
        read_response(&mut stream);
    }
    Ok(())
}

/// JSON nested as deep as the maximum length of a request allows.
fn nested_json(hostile: &mut HostileUser) -> Result<()> {
    let open = ["[", "{\"a\":", "{\"version\":1,\"request\":{\"set\":"];
    let open = open[hostile.random.below(3) as usize];
    let mut stream = hostile.connect()?;
    send(
        &mut stream,
        &frame(open.repeat(60_000 / open.len()).as_bytes()),
    )?;
    read_response(&mut stream);
    Ok(())
}

/// Invalid requests, unknown versions and unknown keys.
fn invalid_requests(hostile: &mut HostileUser) -> Result<()> {
    let texts = [
        "{\"version\":1,\"request\":{\"reboot\":{}}}",
        "{\"version\":99,\"request\":{\"ping\":{}}}",
        "{\"version\":1,\"request\":{\"ping\":{\"uid\":0}}}",
        "{\"version\":1,\"request\":{\"set\":{\"target\":\"pid:1\",\"pid\":-1}}}",
        "{\"version\":1,\"request\":{\"set\":{\"target\":\"pid:18446744073709551616\"}}}",
        "{\"version\":1,\"request\":{\"log\":{\"since_ns\":-5,\"lines\":4294967295}}}",
        "{\"version\":1}",
        "null",
    ];
    for text in texts {
        let mut stream = hostile.connect()?;
        send(&mut stream, &frame(text.as_bytes()))?;
        stream.shutdown(std::net::Shutdown::Write)?;
        read_response(&mut stream);
    }
    Ok(())
}

/// A frame with an invalid length field, and 1 MiB of data.
fn huge_frame(hostile: &mut HostileUser) -> Result<()> {
    let lengths = [u32::MAX, 1 << 30, 1 << 20, 65_537, 0];
    let length = lengths[hostile.random.below(5) as usize];
    let mut stream = hostile.connect()?;
    send(&mut stream, &length.to_be_bytes())?;
    let _ = send(&mut stream, &vec![b' '; 1 << 20]);
    read_response(&mut stream);
    Ok(())
}

/// Requests sent byte by byte, without the last byte.
fn slow_frame(hostile: &mut HostileUser) -> Result<()> {
    let request = frame(b"{\"version\":1,\"request\":{\"show\":{}}}");
    let mut streams = Vec::new();
    for _ in 0..8 {
        streams.push(hostile.connect()?);
    }
    for byte in &request[..request.len() - 1] {
        for stream in &mut streams {
            send(stream, &[*byte])?;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// Requests cut off at each length.
fn cut_frame(hostile: &mut HostileUser) -> Result<()> {
    let request = frame(b"{\"version\":1,\"request\":{\"show\":{}}}");
    for cut in 1..request.len() {
        send(&mut hostile.connect()?, &request[..cut])?;
    }
    Ok(())
}

/// Targets whose names make a request almost as long as it may be.
fn long_names(hostile: &mut HostileUser) -> Result<()> {
    let long = "x".repeat(60_000);
    for kind in ["name", "unit", "cgroup:/", "app:/", "user", "container"] {
        let target = match kind.contains(':') {
            true => format!("{kind}{long}"),
            false => format!("{kind}:{long}"),
        };
        let request = Request::Set(Set {
            target,
            change: Some("up 1mbit".to_owned()),
            ..Set::default()
        });
        let answer = hostile.ask(&request, None)?;
        if matches!(answer, Response::Done(_)) {
            hostile.report_finding(format!("a {kind} of 60,000 letters is limited"));
        }
    }
    Ok(())
}

/// Up to 300 connections at once.
fn many_connections(hostile: &mut HostileUser) -> Result<()> {
    let mut streams = Vec::new();
    for _ in 0..300 {
        match hostile.connect() {
            Ok(stream) => streams.push(stream),
            Err(_) => break,
        }
    }
    Ok(())
}

/// Connections that stay open during other attacks.
fn idle_connections(hostile: &mut HostileUser) -> Result<()> {
    if hostile.kept_connections.len() > 100 {
        hostile.kept_connections.clear();
    }
    for _ in 0..20 {
        let stream = hostile.connect()?;
        hostile.kept_connections.push(stream);
    }
    Ok(())
}

/// Requests with long responses that the client does not read.
fn unread_responses(hostile: &mut HostileUser) -> Result<()> {
    let request = frame(b"{\"version\":1,\"request\":{\"log\":{}}}");
    let mut streams = Vec::new();
    for _ in 0..8 {
        let mut stream = hostile.connect()?;
        stream.set_write_timeout(Some(Duration::from_millis(20)))?;
        for _ in 0..200 {
            if send(&mut stream, &request).is_err() {
                break;
            }
        }
        streams.push(stream);
    }
    std::thread::sleep(Duration::from_millis(200));
    Ok(())
}

/// A client that is stopped in the middle of its requests, and killed 300 ms later.
fn stopped_reader(hostile: &mut HostileUser) -> Result<()> {
    let own = std::env::current_exe().context("the running executable has no path")?;
    let mut command = Command::new(own);
    command.args(["storm", "good", "--for-ms", "60000", "--runtime-dir"]);
    command.arg(hostile.dir.path()).stdin(Stdio::null());
    command.stdout(Stdio::null()).stderr(Stdio::null());
    // The client starts a process to limit, which is in its process group and is killed with it.
    let mut child = command.process_group(0).spawn()?;
    std::thread::sleep(Duration::from_millis(100 + hostile.random.below(50)));
    let stopped = sys::kill(child.id() as i32, libc::SIGSTOP);
    std::thread::sleep(Duration::from_millis(300));
    let killed = sys::kill(-(child.id() as i32), libc::SIGKILL);
    child.wait()?;
    Ok(stopped.and(killed)?)
}

/// Requests whose client closes the connection before the response.
fn close_before_response(hostile: &mut HostileUser) -> Result<()> {
    let pid = hostile.own.id();
    let own = pidfd(pid)?;
    for n in 0..10 {
        let stream = hostile.connect()?;
        let request = netnice_api::encode_request(&set_request(pid, &format!("up {}mbit", 1 + n)))?;
        send_with_descriptors(&stream, &request, &[own.as_fd()])?;
    }
    Ok(())
}

/// A request with up to [`MAX_DESCRIPTORS`] descriptors.
fn many_descriptors(hostile: &mut HostileUser) -> Result<()> {
    let all = harmless()?;
    let many: Vec<BorrowedFd<'_>> = all.iter().map(AsFd::as_fd).collect();
    let count = 1 + hostile.random.below(MAX_DESCRIPTORS as u64) as usize;
    let many: Vec<_> = many.iter().cycle().take(count).copied().collect();
    let mut stream = hostile.connect()?;
    send_with_descriptors(
        &stream,
        &frame(b"{\"version\":1,\"request\":{\"ping\":{}}}"),
        &many,
    )?;
    stream.set_read_timeout(Some(Duration::from_millis(500)))?;
    read_response(&mut stream);
    Ok(())
}

/// Descriptors with each byte of a request, on several connections that are closed afterwards.
fn queued_descriptors(hostile: &mut HostileUser) -> Result<()> {
    let all = harmless()?;
    let many: Vec<BorrowedFd<'_>> = all.iter().map(AsFd::as_fd).collect();
    for _ in 0..4 {
        let stream = hostile.connect()?;
        for byte in b"\0\0\0\x40{{{{" {
            if send_with_descriptors(&stream, &[*byte], &many).is_err() {
                break;
            }
        }
    }
    Ok(())
}

/// A descriptor that is not a pidfd, in place of a pidfd.
fn wrong_descriptor(hostile: &mut HostileUser) -> Result<()> {
    let pid = hostile.own.id();
    for wrong in harmless()? {
        let answer = hostile.ask(&set_request(pid, "up 1mbit"), Some(wrong.as_fd()))?;
        if matches!(answer, Response::Done(_)) {
            hostile.report_finding("a descriptor that is no pidfd named a process");
        }
    }
    Ok(())
}

/// Descriptors whose closing has no effect.
fn harmless() -> Result<Vec<OwnedFd>> {
    let (read, write) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
    let null = std::fs::File::open("/dev/null")?;
    Ok(vec![
        read,
        write,
        null.into(),
        rustix::fs::memfd_create("storm", MemfdFlags::CLOEXEC)?,
        rustix::event::eventfd(0, EventfdFlags::CLOEXEC)?,
    ])
}

/// A pidfd of a process that has ended.
fn dead_pidfd(hostile: &mut HostileUser) -> Result<()> {
    for _ in 0..5 {
        let mut child = sleeper()?;
        let pid = child.id();
        let own = pidfd(pid)?;
        child.kill()?;
        child.wait()?;
        let answer = hostile.ask(&set_request(pid, "up 1mbit"), Some(own.as_fd()))?;
        if matches!(answer, Response::Done(_)) {
            hostile.report_finding("a dead process is limited");
        }
    }
    Ok(())
}

/// A process that is killed while the daemon marks its sockets as limited. The close of these
/// sockets blocks.
fn end_while_tagged(hostile: &mut HostileUser) -> Result<()> {
    use std::io::Read;
    let mut program = Command::new(std::env::current_exe()?);
    program.args(["storm", "lingering", "--count", "200"]);
    let mut child = program.stdout(Stdio::piped()).spawn()?;
    let mut said = [0; 4];
    let ready = child.stdout.take().context("a pipe")?.read(&mut said);
    let pid = child.id();
    let wait = Duration::from_micros(hostile.random.below(30_000));
    let killer = std::thread::spawn(move || {
        std::thread::sleep(wait);
        let killed = child.kill();
        child.wait().and(killed)
    });
    let asked = hostile.set(pid, "up 1mbit");
    killer.join().expect("it does not panic")?;
    ready?;
    asked.map(drop)
}

/// A process of another user, and a process of another user with a pidfd of the user's own process.
fn foreign_pidfd(hostile: &mut HostileUser) -> Result<()> {
    for other in hostile.others.clone() {
        let answer = hostile.set(other, "up 1mbit")?;
        if matches!(answer, Response::Done(_)) {
            hostile.report_finding(format!("process {other} of another user is limited"));
        }
        let own = pidfd(hostile.own.id())?;
        let answer = hostile.ask(&set_request(other, "up 1mbit"), Some(own.as_fd()))?;
        if matches!(answer, Response::Done(_)) {
            hostile.report_finding(format!(
                "process {other} of another user is limited by an own pidfd"
            ));
        }
    }
    Ok(())
}

/// A process that makes many descendants while it is limited.
fn forking_process(hostile: &mut HostileUser) -> Result<()> {
    let mut shell = Command::new("sh");
    let script =
        "for i in 1 2 3 4 5 6 7 8; do (for j in 1 2 3 4 5 6; do : & done; wait) & done; wait";
    shell.args(["-c", script]).stdin(Stdio::null());
    let mut child = shell.spawn()?;
    let answer = hostile.set(child.id(), "up 2mbit");
    child.wait()?;
    answer.map(drop)
}

/// A process name that is not UTF-8, has control characters or looks like fields of
/// `/proc/PID/stat`, for a process that is then limited.
fn invalid_process_name(hostile: &mut HostileUser) -> Result<()> {
    let names: [&CStr; 4] = [c"\xff\xfe\xc0", c"\n\x1b[2J", c") R 0 0 0", c" "];
    let name = names[hostile.random.below(4) as usize];
    let before = rustix::thread::name()?;
    rustix::thread::set_name(name)?;
    let own = std::process::id();
    let answer = hostile
        .set(own, "up 100mbit")
        .and_then(|_| clear(hostile, own));
    rustix::thread::set_name(&before)?;
    answer.map(drop)
}

/// A limit that is set and cleared repeatedly.
fn set_and_clear(hostile: &mut HostileUser) -> Result<()> {
    let pid = hostile.own.id();
    for n in 1..=5 {
        hostile.set(pid, &format!("up {n}mbit"))?;
        clear(hostile, pid)?;
    }
    Ok(())
}

fn clear(hostile: &HostileUser, pid: u32) -> Result<Response> {
    let what = ClearWhat::Target(format!("pid:{pid}"));
    hostile.ask(&clear_request(what), None)
}

/// Changes for at most 2 ms, changes that are rolled back unless they are confirmed within 2 ms,
/// and a confirmation of change 1.
fn short_durations(hostile: &mut HostileUser) -> Result<()> {
    let pid = hostile.own.id();
    let own = pidfd(pid)?;
    for n in 1..=5 {
        let time = Some(1 + hostile.random.below(2_000_000));
        let change = Set {
            target: format!("pid:{pid}"),
            change: Some(format!("up {n}mbit")),
            for_ns: time.filter(|_| n % 2 == 0),
            confirm_ns: time.filter(|_| n % 2 == 1),
            ..Set::default()
        };
        hostile.ask(&Request::Set(change), Some(own.as_fd()))?;
    }
    hostile.ask(&Request::Confirm(Confirm { id: 1 }), None)?;
    clear(hostile, pid).map(drop)
}

/// Requests that only root and the netnice group may make.
fn privileged_requests(hostile: &mut HostileUser) -> Result<()> {
    let pid = hostile.own.id();
    let own = pidfd(pid)?;
    for change in ["min 1mbit", "priority 0", "weight 1000", "slice 1ms/50ms"] {
        let answer = hostile.ask(&set_request(pid, change), Some(own.as_fd()))?;
        if matches!(answer, Response::Done(_)) {
            hostile.report_finding(format!("a plain user has `{change}`"));
        }
    }
    for thread in [pid, 1, std::process::id(), u32::MAX] {
        let reserve = Request::Reserve(Reserve {
            thread,
            time_ns: Some(1 + hostile.random.below(10_000_000)),
        });
        let answer = hostile.ask(&reserve, Some(own.as_fd()))?;
        if matches!(answer, Response::Done(_)) {
            hostile.report_finding(format!("a plain user reserves time for thread {thread}"));
        }
    }
    let link = |unmanage: bool| {
        Request::Link(Box::new(LinkChange {
            iface: "eth0".to_owned(),
            rate: (!unmanage).then(|| "1mbit".to_owned()),
            unmanage,
            ..LinkChange::default()
        }))
    };
    let costs = Request::KeepCosts(PacketCostsDoc::default());
    for request in [link(true), link(false), Request::Reload(Reload {}), costs] {
        let answer = hostile.ask(&request, None)?;
        if matches!(answer, Response::Done(_)) {
            hostile.report_finding(format!("a plain user may {request:?}"));
        }
    }
    Ok(())
}

/// All requests that read, about one process: its own or another one. Then 100 requests on one
/// connection, as fast as possible.
fn read_requests(hostile: &mut HostileUser) -> Result<()> {
    let pids = [hostile.own.id(), 1, 4_194_303, std::process::id()];
    let pid = pids[hostile.random.below(4) as usize];
    let target = format!("pid:{pid}");
    let requests = [
        Request::Ping(Ping {}),
        Request::Show(Show::default()),
        Request::Show(Show {
            target: Some(target.clone()),
        }),
        Request::Watch(Watch { within_ns: 0 }),
        Request::Programs(Programs {
            within_ns: 0,
            keep_ns: u64::MAX,
        }),
        Request::Connections(Connections {
            target: target.clone(),
            own: hostile.random.below(2) == 1,
        }),
        Request::History(History {
            target: None,
            last_ns: u64::MAX,
        }),
        Request::Explain(Explain {
            target: target.clone(),
        }),
        Request::Find(Find {
            target: "app:/bin/sleep".to_owned(),
        }),
        Request::Find(Find { target }),
        Request::Log(Log::default()),
        Request::Doctor(Doctor {}),
    ];
    for request in requests {
        hostile.ask(&request, None)?;
    }
    // The same request on one connection, as fast as possible.
    let mut client = Client::over(hostile.connect()?);
    for _ in 0..100 {
        client.call_within(
            super::hostile::IO_TIMEOUT,
            &Request::Show(Show::default()),
            None,
        )?;
    }
    Ok(())
}

/// Clears everything that the user may clear, which is only its own.
fn clear_all(hostile: &mut HostileUser) -> Result<()> {
    hostile.ask(&clear_request(ClearWhat::All), None).map(drop)
}

/// Attaches to the direct path and detaches.
fn attach_detach(hostile: &mut HostileUser) -> Result<()> {
    for _ in 0..3 {
        Program::attach(&hostile.dir, None, 1, 1 << 20)?;
    }
    Ok(())
}

/// A flow that sends some packets and is given up while they wait. Before that, a request for a
/// flow with a guarantee, which a plain user must not get.
fn end_with_open_flow(hostile: &mut HostileUser) -> Result<()> {
    let mut from = hostile.local;
    from.set_port(from.port() + hostile.random.below(100) as u16);
    let options = UdpOptions {
        remote: Remote::One(hostile.remote),
        buffers: Buffers {
            sending: 64,
            receiving: 64,
            ..Buffers::default()
        },
        ..UdpOptions::at(from)
    };
    let bytes = options.buffers.region_bytes()?;
    let program = Program::attach(&hostile.dir, None, 1, bytes)?;
    let mut socket = program.open_udp(&options)?;
    let payload = vec![0x5a; socket.longest()];
    for _ in 0..32 {
        if socket.try_send(&payload).is_err() {
            break;
        }
    }
    let mut more = UdpOptions::at(from);
    more.contract = Some("min 1mbit".to_owned());
    if program.open_udp(&more).is_ok() {
        hostile.report_finding("a plain user has a flow with a guarantee");
        bail!("a plain user has a flow with a guarantee");
    }
    Ok(())
}
