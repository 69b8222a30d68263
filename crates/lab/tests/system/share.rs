//! Tests that `netnice share` divides a total among the sessions of running programs, follows the
//! sessions, and leaves nothing behind.

use std::collections::BTreeMap;
use std::net::TcpStream;
use std::ops::Range;
use std::time::Instant;

use netnice_lab::experiment::bench::{SECOND, pause};
use netnice_lab::process::{EVENT_TIMEOUT, Proc};
use netnice_lab::sys;
use netnice_lab::testbed::{TestBed, becomes_true};
use netnice_lab::traffic::{self, Running, Tcp, ftp};
use netnice_lab::wire::{Record, Tap, WireFlow};
use netnice_lab::world::{Cgroup, Netns};
use serde_json::Value;

/// A Kbyte/s of the paper, in bit/s.
const KBYTE: f64 = 1024.0 * 8.0;

/// A running `netnice share WORDS…` on the test bed's client.
struct Share(Proc);

impl Share {
    fn start(bed: &TestBed, line: &str) -> Share {
        let words: Vec<&str> = line.split_whitespace().collect();
        let command = bed
            .netnice
            .command(&[&["share", "--json"], &words[..]].concat());
        Share(Proc::start(command).expect("it starts"))
    }

    /// Waits until there are this many sessions; returns the shares in bit/s, by session.
    fn await_sessions(&mut self, sessions: usize) -> BTreeMap<String, u64> {
        self.await_shares(|shares| shares.len() == sessions)
    }

    /// Waits until `are` accepts the shares.
    fn await_shares(
        &mut self,
        are: impl Fn(&BTreeMap<String, u64>) -> bool,
    ) -> BTreeMap<String, u64> {
        let until = Instant::now() + EVENT_TIMEOUT;
        loop {
            let line = self.0.next_json("sessions", EVENT_TIMEOUT);
            let shares = parse_shares(&line.expect("shares"));
            if are(&shares) {
                return shares;
            }
            assert!(Instant::now() < until, "they never came; now: {shares:?}");
        }
    }

    /// Ends it with SIGINT, as a person does; it must exit with success.
    fn end(mut self) {
        sys::kill(self.0.pid() as i32, libc::SIGINT).expect("it runs");
        let status = self.0.wait(EVENT_TIMEOUT).expect("it ends");
        assert!(status.success(), "{status:?}: {}", self.0.take_stderr());
    }
}

fn parse_shares(line: &Value) -> BTreeMap<String, u64> {
    let sessions = line["sessions"].as_array().expect("a list").iter();
    let one = |session: &Value| {
        let share = session["share"].as_u64().expect("a number");
        (
            session["session"].as_str().expect("text").to_string(),
            share,
        )
    };
    sessions.map(one).collect()
}

/// Starts a program on the client that sends to a port of the server as fast as it can.
fn start_sender(bed: &TestBed, port: u16) -> Running {
    let to = bed.sink(port).expect("a sink");
    traffic::start_now(bed.world.client(), &Tcp::connect(to, 1).source()).expect("a program")
}

/// The least fraction of its share that a sender must reach, see [`assert_near`].
const MIN_FRACTION: f64 = 0.6;

/// Fails unless `rate` is at most the fraction `over` above `kbytes` Kbyte/s, and at least
/// [`MIN_FRACTION`] of it. A sender on a busy machine sends less than it may; the next smaller
/// share in these tests is always below this bound. The experiment `nice-fig5` judges exact shares.
fn assert_near(what: &str, rate: f64, kbytes: f64, over: f64) {
    assert!(
        (MIN_FRACTION..=1.0 + over).contains(&(rate / KBYTE / kbytes)),
        "{what}: {:.2} Kbyte/s for {kbytes}",
        rate / KBYTE
    );
}

/// Start and end of the flows' data, to 10 ms.
fn span_of(
    record: &Record,
    of: impl Fn(&WireFlow) -> bool + Copy,
    from: u64,
    to: u64,
) -> (u64, u64) {
    const BIN: u64 = SECOND / 100;
    let bins = record.bins(of, from, to, BIN);
    // At least one full packet: more than a control connection sends.
    let carries = |rate: &f64| *rate * BIN as f64 / 8e9 > 1500.0;
    let first = bins.iter().position(carries).expect("data");
    let last = bins.iter().rposition(carries).expect("data");
    (from + first as u64 * BIN, from + (last as u64 + 1) * BIN)
}

/// The payload that the open TCP connections from these local ports have received.
fn received_on(host: &Netns, ports: &Range<u16>) -> u64 {
    let open = host.run("ss", "-HOtni state established");
    let of_line = |line: &str| -> Option<u64> {
        let mut words = line.split_whitespace();
        let port = words.nth(2)?.rsplit(':').next()?.parse().ok()?;
        let bytes = words.find_map(|word| word.strip_prefix("bytes_received:"))?;
        ports.contains(&port).then(|| bytes.parse().ok())?
    };
    open.expect("ss lists sockets")
        .lines()
        .filter_map(of_line)
        .sum()
}

/// The names of all targets of the daemon.
fn targets(bed: &TestBed) -> Vec<String> {
    let shown = bed.netnice.show().expect("a show");
    let targets = shown["targets"].as_array().expect("a list").iter();
    targets
        .filter_map(|t| Some(t["target"].as_str()?.to_string()))
        .collect()
}

/// Starts a vsftpd in a unit on the client, and waits until it listens.
fn start_vsftpd(bed: &TestBed, unit: &Cgroup) -> Proc {
    let (server, client) = (bed.world.client(), &bed.world.server().ns);
    let address = server.port().v4;
    let conf = ftp::Server {
        folder: bed.world.folder(),
        bytes: 1 << 38,
        listen: Some(address),
    };
    let conf = conf.configure().expect("a configuration");
    let mut vsftpd = server.ns.command("sh");
    vsftpd.args([
        "-c",
        &format!(
            "echo 0 > {}; exec vsftpd {}",
            unit.procs().display(),
            conf.display()
        ),
    ]);
    let mut vsftpd = Proc::start(vsftpd).expect("vsftpd");
    let listens = || {
        client
            .enter(|| Ok(TcpStream::connect((address, 21))?))
            .is_ok()
    };
    assert!(becomes_true(listens), "{}", vsftpd.take_stderr());
    assert!(vsftpd.is_running(), "{}", vsftpd.take_stderr());
    vsftpd
}

#[test]
fn sessions_of_a_running_ftp_server_share_a_total() {
    ftp::needed().expect("what cargo xtask setup installs");
    let bed = TestBed::new().expect("a test bed");
    let client = &bed.world.server().ns;
    let address = bed.world.client().port().v4;
    let unit = Cgroup::create("vsftpd.service").expect("a control group");
    let _vsftpd = start_vsftpd(&bed, &unit);
    let curl = |session| {
        Proc::start(ftp::fetch(client, address, &ftp::ports(session), 60.0)).expect("curl")
    };
    // One session starts before the manager.
    let received = || client.counters("eth0").expect("counters").rx_bytes;
    let before = received();
    let _first = curl(0);
    assert!(
        becomes_true(|| received() > before + 1_000_000),
        "nothing is fetched"
    );
    let mut share = Share::start(&bed, &format!("512Kbyte/s unit:{}", unit.name()));
    share.await_sessions(1);
    // Before, the first session was as fast as the machine, and TCP retransmits its losses first.
    let half_a_second = || {
        let from = received();
        pause(0.5);
        (received() - from) as f64 * 8.0 * 2.0 / KBYTE
    };
    assert!(
        becomes_true(|| (0.9..1.1).contains(&(half_a_second() / 512.0))),
        "the first session never comes near its share"
    );
    let tap = Tap::start(client, "eth0").expect("a tap");
    let alone = sys::now_ns();
    pause(1.5);
    let second = curl(1);
    share.await_sessions(2);
    // A login takes seconds on a busy machine.
    let ports = ftp::ports(1);
    assert!(
        becomes_true(|| received_on(client, &ports) > 10_000),
        "the second session fetches nothing"
    );
    pause(2.5);
    let ends = sys::now_ns();
    drop(second);
    share.await_sessions(1);
    pause(2.0);
    let end = sys::now_ns();
    let record = tap.stop(client).expect("a record");
    record.validate().expect("a valid record");
    // The second session's times according to its packets: it has a share during its login, and
    // leaves a queue behind.
    let asked = record.first_of(ftp::of_session(1)).expect("it connects");
    let (came, left) = span_of(&record, ftp::of_session(1), alone, end);
    let half = SECOND / 2;
    let of = |session, from, to| record.rate(ftp::of_session(session), from, to);
    assert_near("alone", of(0, alone, asked), 512.0, 0.05);
    assert_near("the first of two", of(0, came + half, ends), 256.0, 0.05);
    // The first second is left out: TCP is still starting.
    assert_near("the second", of(1, came + SECOND, ends), 256.0, 0.05);
    assert_near("alone again", of(0, left + half, end), 512.0, 0.05);
    share.end();
    assert!(
        becomes_true(|| targets(&bed).is_empty()),
        "{:?} stay",
        targets(&bed)
    );
    bed.await_unlimited(
        (0.3, 0.7),
        netnice_lab::experiment::bench::R512K,
        "nothing is limited any more",
    );
}

#[test]
fn services_have_weights_and_earlier_limits_return() {
    let bed = TestBed::new().expect("a test bed");
    let (light, heavy) = (start_sender(&bed, 5001), start_sender(&bed, 5002));
    let [light, heavy] = [&light, &heavy].map(|program| format!("pid:{}", program.pid()));
    // One of them has a limit before.
    bed.run_ok(&format!("set {light} --both 2mbit"));
    let line = format!("512Kbyte/s {light} {heavy} --weight {heavy}=300");
    // First a dry run.
    let words: Vec<&str> = line.split_whitespace().collect();
    let asked = bed
        .netnice
        .run(&[&["share", "--dry-run", "--json"], &words[..]].concat());
    let asked = asked.expect("it runs").ok().expect("good");
    let planned = parse_shares(&serde_json::from_str(&asked.stdout).expect("JSON"));
    let aims = BTreeMap::from([(light.clone(), 1_048_576), (heavy.clone(), 3_145_728)]);
    assert_eq!(planned, aims);
    assert_eq!(targets(&bed), [light.as_str()], "nothing was changed");
    let mut share = Share::start(&bed, &line);
    assert_eq!(share.await_sessions(2), aims);
    // Both sent without a limit: TCP retransmits their losses first.
    let (record, from, to) = bed.record(1.5, 1.5).expect("a record");
    let of = |port| record.rate(|flow: &WireFlow| flow.has_port(port), from, to);
    assert_near("weight 100", of(5001), 128.0, 0.03);
    assert_near("weight 300", of(5002), 384.0, 0.03);
    share.end();
    assert!(
        becomes_true(|| targets(&bed) == [light.as_str()]),
        "{:?}",
        targets(&bed)
    );
    assert!(
        becomes_true(|| bed.target(&light)["effective"]["both"] == 2_000_000),
        "{}",
        bed.target(&light)
    );
}

#[test]
fn users_of_a_process_tree_share_equally_and_use_idle_shares() {
    let bed = TestBed::new().expect("a test bed");
    let to = [5001, 5002, 5003].map(|port| bed.sink(port).expect("a sink"));
    // A parent with two senders of one user, and one of another user that is quiet at first.
    let lab = bed.copy_for_all("netnice-lab").expect("a copy");
    let source = |at: usize| {
        format!(
            "{} traffic tcp --connect {} --flows 4 --source --for-ms 600000",
            lab.display(),
            to[at]
        )
    };
    let as_user = |user: u32, what: &str| {
        format!("perl -e '$) = $( = {user}; $< = $> = {user}; exec @ARGV' sh -c \"{what}\" & ")
    };
    let (a, b, c) = (source(0), source(1), source(2));
    let flag = bed.world.folder().join("go");
    let script = [
        as_user(4001, &format!("exec {a}")),
        as_user(4001, &format!("exec {b}")),
        as_user(
            4002,
            &format!(
                "until [ -e {} ]; do sleep 0.1; done; exec {c}",
                flag.display()
            ),
        ),
    ]
    .concat();
    let mut parent = bed.world.client().ns.command("sh");
    parent.args(["-c", &format!("{script} wait")]);
    let parent = Proc::start(parent).expect("a parent");
    let mut share = Share::start(&bed, &format!("512Kbyte/s {} --per user", parent.pid()));
    let quarter = 512 * 8192 / 4;
    let by_user = |shares: &BTreeMap<String, u64>| {
        let mut sorted: Vec<u64> = shares.values().copied().collect();
        sorted.sort_unstable();
        sorted == [quarter, quarter, 2 * quarter]
    };
    // A child has its parent's user until it has changed it.
    share.await_shares(by_user);
    // After two quiet seconds the second user keeps an eighth of its half and lends the rest to the
    // first.
    let is_lent = |share: &&u64| **share > 7 * quarter / 4;
    share.await_shares(|shares| shares.values().filter(is_lent).count() == 2);
    // In the first window in which no sender was starved.
    let rates = |wanted: [f64; 3]| {
        let of = |record: &Record, from, to| {
            [5001, 5002, 5003]
                .map(|port| record.rate(|flow: &WireFlow| flow.has_port(port), from, to))
        };
        let (record, from, to) = bed
            .record_until(1.0, 1.5, |record, from, to| {
                let rates = of(record, from, to);
                let mut pairs = rates.iter().zip(wanted);
                pairs.all(|(rate, kbytes)| *rate >= MIN_FRACTION * kbytes * KBYTE)
            })
            .expect("a record");
        of(&record, from, to)
    };
    let [one, two, _] = rates([240.0, 240.0, 0.0]);
    assert_near("lent, the first", one, 240.0, 0.05);
    assert_near("lent, the second", two, 240.0, 0.05);
    // It gets its share back when it sends.
    std::fs::write(&flag, []).expect("written");
    share.await_shares(by_user);
    let [one, two, three] = rates([128.0, 128.0, 256.0]);
    assert_near("the first of two", one, 128.0, 0.05);
    assert_near("the second of two", two, 128.0, 0.05);
    assert_near("the other user", three, 256.0, 0.05);
    // The manager ends with the last session.
    drop(parent);
    let status = share.0.wait(EVENT_TIMEOUT).expect("it ends");
    assert!(status.success(), "{}", share.0.take_stderr());
    assert!(
        becomes_true(|| targets(&bed).is_empty()),
        "{:?} stay",
        targets(&bed)
    );
}

#[test]
fn limits_of_a_killed_manager_end() {
    let bed = TestBed::new().expect("a test bed");
    let program = start_sender(&bed, 5001);
    let target = format!("pid:{}", program.pid());
    let group = Cgroup::create("shared").expect("a control group");
    group.add_process(program.pid()).expect("it moves");
    bed.run_ok(&format!("set {target} --both 2mbit"));
    let mut share = Share::start(&bed, &format!("1mbit cgroup:{}", group.path()));
    share.await_sessions(1);
    let said = bed.run_ok(&format!("explain {target}")).stdout;
    let words = said.split_whitespace().collect::<Vec<_>>().join(" ");
    let end = format!("when process {} ends", share.0.pid());
    assert!(words.contains(&end), "{said}");
    assert_eq!(bed.target(&target)["effective"]["both"], 1_000_000);
    share.0.kill();
    let left = || targets(&bed) == [target.clone()];
    assert!(becomes_true(left), "{:?} stay", targets(&bed));
    assert_eq!(
        bed.target(&target)["effective"]["both"],
        2_000_000,
        "what was there before is back"
    );
}

#[test]
fn a_zombie_child_is_no_session() {
    let bed = TestBed::new().expect("a test bed");
    let mut parent = bed.world.client().ns.command("perl");
    let script = "$| = 1; for (1 .. 3) { my $child = fork; exit unless $child; say $child } \
                  sleep 600";
    parent.args(["-E", script]);
    let mut parent = Proc::start(parent).expect("a parent");
    for _ in 0..3 {
        let child = parent.next_line(EVENT_TIMEOUT).expect("a child");
        let child = child.trim().parse().expect("a number");
        assert!(
            becomes_true(|| sys::state(child) == Some('Z')),
            "{child} lives"
        );
    }
    let mut share = Share::start(&bed, &format!("1mbit {}", parent.pid()));
    share.await_sessions(0);
    // A manager that polled for the end of such a child without a pause would never sleep.
    let looks = (0..20).map(|_| {
        pause(0.05);
        sys::state(share.0.pid()).expect("it runs")
    });
    let asleep = looks.filter(|state| *state == 'S').count();
    assert!(asleep >= 10, "it slept at {asleep} looks of 20");
    share.end();
}

#[test]
fn an_invalid_share_is_refused_with_the_reason() {
    let bed = TestBed::new().expect("a test bed");
    let sleeper = bed.sleeper();
    let pid = sleeper.pid();
    for (line, status, part) in [
        ("share 512 pid:1".to_string(), 2, "no unit"),
        ("share 512Kbyte/s".to_string(), 2, "TARGET"),
        ("share 1mbit nonsense".to_string(), 2, "nonsense"),
        (format!("share 1mbit {pid} {pid}"), 2, "named twice"),
        (
            format!("share 1mbit {pid} --floor 2mbit"),
            2,
            "more than the total",
        ),
        (
            format!("share 1mbit {pid} --weight unit:web=2"),
            2,
            "unit:web.service",
        ),
        (
            format!("share 1mbit {pid} --weight {pid}=0"),
            2,
            "1 to 1000",
        ),
        (
            format!("share 1mbit {pid} --per host"),
            2,
            "session, user, service",
        ),
        (format!("share 1mbit {pid} --confirm 30s"), 2, "--confirm"),
        (
            "share 1mbit unit:no-such-unit".to_string(),
            1,
            "no-such-unit",
        ),
        ("share 1mbit name:nobody".to_string(), 1, "name:nobody"),
    ] {
        let said = bed.run_with_status(&line, status).stderr;
        assert!(said.contains(part), "{line}: {said}");
    }
    // One-way limits and a total of both ways are incompatible.
    bed.run_ok(&format!("set {pid} --up 1mbit"));
    let said = bed
        .run_with_status(&format!("share 1mbit {pid} --dry-run"), 2)
        .stderr;
    assert!(said.contains("both"), "{said}");
    // It ends by itself after a time.
    let other = bed.sleeper();
    let said = bed
        .run_ok(&format!("share 1mbit {} --for 300ms", other.pid()))
        .stdout;
    assert!(said.starts_with("no session; 1 Mbit/s"), "{said}");
    assert!(
        becomes_true(|| targets(&bed).len() == 1),
        "{:?}",
        targets(&bed)
    );
}
