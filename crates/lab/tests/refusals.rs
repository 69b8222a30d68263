//! What does not fit is refused with the reason, and what makes no sense with one clear error.
//! Nothing is changed by either, and others are served meanwhile.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use netnice_lab::desk::Desk;
use netnice_lab::process::Proc;
use netnice_lab::world::{Answer, htb};
use serde_json::Value;

/// A process to set things on.
fn sleeper(desk: &Desk) -> Proc {
    let mut command = desk.world.client().ns.command("sleep");
    command.arg("600");
    Proc::start(command).expect("a process")
}

fn standing(desk: &Desk) -> Value {
    desk.netnice.show_standing().expect("a show")
}

/// Types a line that must fail with this status, say all of `words`, and change nothing.
fn refused(desk: &Desk, line: &str, status: i32, words: &[&str]) -> Answer {
    let before = standing(desk);
    let answer = desk.answers(line, status);
    for word in words {
        assert!(
            answer.stderr.contains(word),
            "`{line}` does not speak of `{word}`: {}",
            answer.stderr
        );
    }
    assert_eq!(before, standing(desk), "`{line}` changed something");
    answer
}

#[test]
fn a_minimum_that_does_not_fit_is_refused_with_everything_one_needs_to_know() {
    let desk = Desk::new().expect("a desk");
    let (a, b) = (sleeper(&desk), sleeper(&desk));
    desk.types("link eth0 --rate 100mbit --down-rate 100mbit");
    desk.types(&format!(
        "set pid:{} --min 60mbit --min-down 60mbit",
        a.pid()
    ));
    let holder = format!("pid:{}", a.pid());
    let line = format!("set pid:{} --min 50mbit", b.pid());
    let wanted = [
        "eth0",
        "100 Mbit/s",
        "operator",
        &holder,
        "60 Mbit/s",
        "40 Mbit/s",
    ];
    refused(&desk, &line, 3, &wanted);
    // Of what comes in, 97 % can be promised.
    let line = format!("set pid:{} --min-down 38mbit", b.pid());
    refused(
        &desk,
        &line,
        3,
        &["eth0", "97 Mbit/s", &holder, "37 Mbit/s"],
    );
    desk.types(&format!(
        "set pid:{} --min 40mbit --min-down 37mbit",
        b.pid()
    ));
    // A link cannot become too small for what was promised on it.
    refused(
        &desk,
        "link eth0 --rate 90mbit",
        3,
        &["eth0", "90 Mbit/s", &holder],
    );
    // What is given back can be promised again.
    desk.types(&format!("clear pid:{}", a.pid()));
    desk.types(&format!("set pid:{} --min 100mbit", b.pid()));
}

#[test]
fn a_minimum_needs_a_managed_link() {
    let desk = Desk::new().expect("a desk");
    let a = sleeper(&desk);
    let line = format!("set pid:{} --min 1mbit", a.pid());
    refused(&desk, &line, 3, &["netnice link"]);
    let line = format!("set pid:{} --min 1mbit --on eth7", a.pid());
    refused(&desk, &line, 3, &["eth7"]);
}

#[test]
fn a_link_with_somebody_elses_queue_is_refused_and_left_alone() {
    let desk = Desk::new().expect("a desk");
    let ns = &desk.world.client().ns;
    htb::limit(ns, "eth0", 50_000_000, htb::Leaf::Default).expect("a foreign queue");
    let before = ns.tc("qdisc show dev eth0").expect("tc");
    refused(&desk, "link eth0 --rate 100mbit", 3, &["eth0", "htb"]);
    assert_eq!(before, ns.tc("qdisc show dev eth0").expect("tc"));
}

#[test]
fn bad_input_gets_one_clear_error() {
    let desk = Desk::new().expect("a desk");
    let process = sleeper(&desk);
    let pid = process.pid();
    desk.types("link eth0 --rate 100mbit");
    desk.types(&format!("set pid:{pid} --up 50mbit"));
    let set = |rest: &str| format!("set pid:{pid} {rest}");
    let bad_usage = [
        (set("--up 10mbps"), "mbit"),
        (set("--up 10"), "10"),
        (set("--up -5mbit"), "-5mbit"),
        (set("--up 1e99gbit"), "1e99gbit"),
        (set("--up 1bit"), "kbit"),
        (set("--up"), "--up"),
        (set("").trim_end().to_owned(), "nothing is asked"),
        (set("--weight 1001"), "1000"),
        (set("--priority 8"), "7"),
        (set("--burst 0ms"), "burst"),
        (set("--on a-name-that-is-too-long --min 1mbit"), "15"),
        ("set unit: --up 1mbit".into(), "unit"),
        ("set what:ever --up 1mbit".into(), "what"),
        ("set cgroup:/a/../b --up 1mbit".into(), ".."),
        ("frobnicate".into(), "frobnicate"),
    ];
    for (line, word) in &bad_usage {
        refused(&desk, line, 2, &[word]);
    }
    // A contradiction shows when the change meets what stands already.
    let answer = desk
        .netnice
        .run(&["set", &format!("pid:{pid}"), "--min", "60mbit"]);
    let answer = answer.expect("it answers");
    assert!([2, 3].contains(&answer.status), "{answer:?}");
    assert!(answer.stderr.contains("50 Mbit/s"), "{answer:?}");
    let unknown = [
        ("set pid:4194303 --up 1mbit", "4194303"),
        (
            "set unit:nobody-has-this.service --up 1mbit",
            "nobody-has-this.service",
        ),
        (
            "set user:nobody-is-called-this --up 1mbit",
            "nobody-is-called-this",
        ),
        (
            "set cgroup:/nobody/made/this --up 1mbit",
            "/nobody/made/this",
        ),
        ("link nosuch0 --rate 10mbit", "nosuch0"),
        ("clear pid:4194303", "4194303"),
        ("explain pid:4194303", "4194303"),
    ];
    for (line, word) in unknown {
        let before = standing(&desk);
        let words: Vec<&str> = line.split(' ').collect();
        let answer = desk.netnice.run(&words).expect("it answers");
        assert!((1..=3).contains(&answer.status), "{answer:?}");
        assert!(answer.stderr.contains(word), "{answer:?}");
        assert_eq!(before, standing(&desk), "`{line}` changed something");
    }
}

#[test]
fn what_the_direct_path_brings_is_refused_as_not_supported_yet() {
    let desk = Desk::new().expect("a desk");
    let process = sleeper(&desk);
    desk.types("link eth0 --rate 100mbit");
    for contract in [
        "--cell pcr=10mbit,cdvt=100us",
        "--channel mmax=60KiB,rmax=30/s,bmax=4,deadline=20ms",
        "--cpu 2ms/10ms",
    ] {
        let line = format!("set pid:{} {contract}", process.pid());
        let before = standing(&desk);
        let words: Vec<&str> = line.split(' ').collect();
        let answer = desk.netnice.run(&words).expect("it answers");
        assert!((1..=3).contains(&answer.status), "{answer:?}");
        assert!(answer.stderr.contains("not supported yet"), "{answer:?}");
        assert_eq!(before, standing(&desk));
    }
}

#[test]
fn a_sixth_level_of_nesting_is_refused() {
    let desk = Desk::new().expect("a desk");
    // Each shell says its number and becomes the parent of the next.
    let mut script = "echo $$; sleep 600".to_owned();
    for _ in 0..5 {
        script = format!("echo $$; sh -c '{}' & wait", script.replace('\'', "'\\''"));
    }
    let mut command = desk.world.client().ns.command("sh");
    command.args(["-c", &script]);
    let mut shells = Proc::start(command).expect("shells");
    let mut pids = Vec::new();
    for _ in 0..6 {
        pids.push(shells.next_line(Duration::from_secs(5)).expect("a number"));
    }
    for (i, pid) in pids[..5].iter().enumerate() {
        desk.types(&format!("set pid:{pid} --up {}mbit", 60 - 10 * i));
    }
    let line = format!("set pid:{} --up 5mbit", pids[5]);
    refused(&desk, &line, 3, &["5"]);
}

#[test]
fn a_process_that_dies_meanwhile_leaves_nothing() {
    let desk = Desk::new().expect("a desk");
    for i in 0..30u32 {
        let mut command = desk.world.client().ns.command("sh");
        command.args(["-c", "sleep 0.0$0", &format!("{}", i % 4)]);
        let process = Proc::start(command).expect("a process");
        let answer = desk
            .netnice
            .run(&["set", &format!("pid:{}", process.pid()), "--up", "4mbit"])
            .expect("it answers");
        assert!((0..=3).contains(&answer.status), "{answer:?}");
    }
    let until = Instant::now() + Duration::from_secs(5);
    while standing(&desk)["targets"] != serde_json::json!([]) {
        assert!(Instant::now() < until, "{}", standing(&desk));
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn garbage_floods_and_idle_guests_do_not_keep_others_from_being_served() {
    let desk = Desk::new().expect("a desk");
    let process = sleeper(&desk);
    let socket = desk.netnice.runtime().join("netnice.sock");
    let connect = || UnixStream::connect(&socket).expect("the socket is open to all");
    netnice_lab::sys::raise_file_limit().expect("descriptors");
    let mut idle = Vec::new();
    for _ in 0..1000 {
        // Beyond its bound the daemon may close, but it must not stop accepting.
        idle.push(connect());
    }
    for junk in [
        &b"\xff\xff\xff\xff"[..],
        &b"GET / HTTP/1.1\r\n\r\n"[..],
        &b"\x00\x00\x00\x05{\"a\":"[..],
        &b"\x00\x00\x00\x02[]"[..],
    ] {
        let mut guest = connect();
        let _ = guest.write_all(junk);
        let _ = guest.shutdown(std::net::Shutdown::Write);
        let _ = guest.set_read_timeout(Some(Duration::from_secs(5)));
        let _ = guest.read(&mut [0u8; 4096]);
    }
    let mut large = connect();
    let mut message = (1u32 << 20).to_be_bytes().to_vec();
    message.resize(1 << 20, b' ');
    let _ = large.set_write_timeout(Some(Duration::from_secs(5)));
    let _ = large.write_all(&message);
    let answer = desk.types(&format!("set pid:{} --up 4mbit", process.pid()));
    assert!(
        answer.took() < Duration::from_secs(1),
        "{:?}",
        answer.took()
    );
    drop(idle);
    let memory = desk.netnice.daemon_memory().expect("it lives");
    assert!(memory < 64 << 20, "{memory} bytes");
}
