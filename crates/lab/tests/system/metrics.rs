//! Tests counters for other programs: metrics for Prometheus, and the history of targets.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use netnice_lab::experiment::bench;
use netnice_lab::process::EVENT_TIMEOUT;
use netnice_lab::testbed::{TestBed, becomes_true};
use netnice_lab::traffic::{self, Tcp};

const METRICS_ADDRESS: &str = "127.0.0.1:9469";

fn connect(bed: &TestBed) -> Result<TcpStream> {
    let at: SocketAddr = METRICS_ADDRESS.parse()?;
    bed.world.client().ns.enter(|| {
        let stream = TcpStream::connect_timeout(&at, EVENT_TIMEOUT)?;
        stream.set_read_timeout(Some(EVENT_TIMEOUT))?;
        stream.set_write_timeout(Some(EVENT_TIMEOUT))?;
        Ok(stream)
    })
}

/// The answer to a request.
fn send(bed: &TestBed, request: &[u8]) -> Result<String> {
    let mut stream = connect(bed)?;
    stream.write_all(request)?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

/// The page of metrics.
fn scrape(bed: &TestBed) -> Result<String> {
    let answer = send(bed, b"GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n")?;
    let (head, page) = answer
        .split_once("\r\n\r\n")
        .context("no end of the head")?;
    ensure!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    ensure!(
        head.contains(&format!("Content-Length: {}", page.len())),
        "{head}"
    );
    Ok(page.to_string())
}

/// Values by name and labels, parsed by the Prometheus client's own parser; fails if that parser
/// does.
fn parse_metrics(page: &str) -> Result<BTreeMap<String, f64>> {
    let mut python = Command::new("/usr/bin/python3")
        .args(["-c", PARSE_SCRIPT])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    python
        .stdin
        .take()
        .context("a pipe")?
        .write_all(page.as_bytes())?;
    let output = python.wait_with_output()?;
    ensure!(
        output.status.success(),
        "the parser refuses it: {}\n{page}",
        output.status
    );
    let text = String::from_utf8(output.stdout)?;
    let values = text.lines().map(|line| {
        let (name, value) = line.rsplit_once(' ').context("a value")?;
        Ok((name.to_string(), value.parse()?))
    });
    values.collect()
}

const PARSE_SCRIPT: &str = r#"
import sys
from prometheus_client.parser import text_string_to_metric_families
for family in text_string_to_metric_families(sys.stdin.read()):
    assert family.documentation and family.type in ("counter", "gauge"), family
    for s in family.samples:
        labels = ",".join(f"{k}={v}" for k, v in sorted(s.labels.items()))
        print(f"{s.name}{{{labels}}} {s.value!r}")
"#;

#[test]
fn metrics_are_valid_and_sums_agree() {
    let mut bed = TestBed::new().expect("a test bed");
    assert!(connect(&bed).is_err(), "no option asked for it");
    bed.netnice.restart_with(&["--metrics"]).expect("a daemon");
    // The kernel verifies the programs before the traffic loads the machine.
    bed.run_ok("set user:65533 --both 1gbit");
    let to = bed.sink(5001).expect("a sink");
    let flows = Tcp::connect(to, 4).source();
    let program = traffic::start_now(bed.world.client(), &flows).expect("a program");
    bed.run_ok(&format!("set pid:{} --up 4mbit", program.pid()));
    bed.run_ok("link eth0 --rate 100mbit");
    bed.run_with_status("set user:65533 --min 200mbit", 3);
    let labels =
        |direction: &str| format!("{{direction={direction},target=pid:{}}}", program.pid());
    let sent = format!("netnice_sent_bytes_total{}", labels("up"));
    let page = || parse_metrics(&scrape(&bed).expect("a page")).expect("metrics");
    let first = page()[&sent];
    assert!(
        becomes_true(|| page()[&sent] > first + 400_000.0),
        "{:?}",
        page()
    );
    for _ in 0..5 {
        let values = page();
        for direction in ["up", "down"] {
            for (unit, level) in [("bytes", "bytes"), ("packets", "packets")] {
                let of = |what: &str| values[&format!("netnice_{what}{}", labels(direction))];
                let parts = of(&format!("sent_{unit}_total"))
                    + of(&format!("dropped_{unit}_total"))
                    + of(&format!("queued_{level}"));
                assert_eq!(
                    of(&format!("offered_{unit}_total")),
                    parts,
                    "{direction} {unit}: {values:?}"
                );
            }
        }
        bench::pause(0.3);
    }
    let values = page();
    assert_eq!(values["netnice_targets{}"], 2.0);
    assert_eq!(values["netnice_grants_total{}"], 2.0);
    assert_eq!(values["netnice_refusals_total{}"], 1.0);
    assert_eq!(
        values["netnice_limit_bits_per_second{clause=both,target=user:65533}"],
        1e9
    );
    assert_eq!(
        values["netnice_link_capacity_bits_per_second{direction=up,link=eth0}"],
        1e8
    );
}

#[test]
fn the_daemon_that_follows_a_killed_one_has_its_options() {
    let mut bed = TestBed::new().expect("a test bed");
    bed.netnice.restart_with(&["--metrics"]).expect("a daemon");
    let program = bed.sleeper();
    bed.run_ok(&format!("set pid:{} --up 4mbit", program.pid()));
    bed.netnice.kill_daemon();
    assert!(scrape(&bed).is_err(), "it serves metrics after its death");
    // The next command starts another daemon.
    bed.run_ok("show");
    let page = scrape(&bed).expect("a page");
    let target = format!("target=\"pid:{}\"", program.pid());
    assert!(page.contains(&target), "{page}");
    let signal = |bed: &TestBed, number: i32| {
        let lock = bed.netnice.runtime().join("lock");
        let pid = std::fs::read_to_string(lock).expect("a file");
        let pid: u32 = pid.trim().parse().expect("a number");
        netnice_lab::sys::kill(pid as i32, number).expect("root may");
        assert!(
            becomes_true(|| !netnice_lab::sys::is_alive(pid)),
            "{pid} does not end"
        );
    };
    signal(&bed, libc::SIGKILL);
    // An address that another program has taken meanwhile does not prevent the start.
    let ns = &bed.world.client().ns;
    let taken = ns.enter(|| Ok(std::net::TcpListener::bind("127.0.0.1:9469")?));
    let taken = taken.expect("the port is free");
    bed.run_ok("show");
    drop(taken);
    signal(&bed, libc::SIGTERM);
}

#[test]
fn a_public_address_for_metrics_needs_an_explicit_option() {
    let netniced = netnice_lab::process::binary("netniced").expect("a daemon");
    let mut command = netnice_lab::process::own_group(netniced);
    let output = command
        .args(["--metrics", "0.0.0.0:9469"])
        .output()
        .expect("started");
    assert_eq!(output.status.code(), Some(2));
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        text.contains("--metrics-open") && text.contains("0.0.0.0:9469"),
        "{text}"
    );
    let mut bed = TestBed::new().expect("a test bed");
    let open = ["--metrics", "0.0.0.0:9469", "--metrics-open"];
    bed.netnice.restart_with(&open).expect("a daemon");
    assert!(scrape(&bed).is_ok());
}

#[test]
fn hostile_peers_disturb_neither_the_daemon_nor_other_readers() {
    let mut bed = TestBed::new().expect("a test bed");
    bed.netnice.restart_with(&["--metrics"]).expect("a daemon");
    let long = [b"GET /metrics HTTP/1.1\r\nX: ".as_slice(), &[b'a'; 20_000]].concat();
    for (request, status) in [
        (b"GET / HTTP/1.1\r\n\r\n".as_slice(), "404"),
        (b"POST /metrics HTTP/1.1\r\n\r\n", "405"),
        (b"\x16\x03\x01\x00\x00\r\n\r\n", "400"),
        (b"GET /metrics\r\n\r\n", "400"),
        (b"GET /metrics HTTP/9.1\r\n\r\n", "400"),
        (&long, "431"),
        (b"GET /metr", "408"),
        (b"GET /metrics?a=b HTTP/1.0\r\n\r\n", "200"),
    ] {
        let answer = send(&bed, request).expect("an answer");
        let words = answer.split(' ').nth(1);
        assert_eq!(
            words,
            Some(status),
            "{}: {answer}",
            String::from_utf8_lossy(request)
        );
    }
    let head = send(&bed, b"HEAD /metrics HTTP/1.1\r\n\r\n").expect("a head");
    assert!(
        head.ends_with("\r\n\r\n") && head.contains("200 OK"),
        "{head}"
    );
    let before = bed.netnice.daemon_memory().expect("memory");
    // Some send nothing, some send a request and never read, some send one letter.
    let mut crowd = Vec::new();
    for number in 0..1000 {
        let mut stream = connect(&bed).expect("a connection");
        let text: &[u8] = match number % 3 {
            0 => b"",
            1 => b"GET /metrics HTTP/1.1\r\n\r\n",
            _ => b"G",
        };
        // The daemon closes the oldest connections meanwhile.
        let _ = stream.write_all(text);
        crowd.push(stream);
    }
    scrape(&bed).expect("a page beside a thousand others");
    bed.run_ok("show");
    let pid = bed.netnice.pid().expect("a daemon");
    let open = std::fs::read_dir(format!("/proc/{pid}/fd"))
        .expect("descriptors")
        .count();
    assert!(open < 200, "{open} descriptors are open");
    let after = bed.netnice.daemon_memory().expect("memory");
    assert!(after < before + (8 << 20), "{before} bytes grew to {after}");
    drop(crowd);
    scrape(&bed).expect("a page");
}

#[test]
fn history_shows_past_rates() {
    let bed = TestBed::new().expect("a test bed");
    // The kernel verifies the programs before the traffic loads the machine.
    bed.run_ok("set user:65533 --up 1mbit");
    let to = bed.sink(5001).expect("a sink");
    let flows = Tcp::connect(to, 4).source();
    let program = traffic::start_now(bed.world.client(), &flows).expect("a program");
    let name = format!("pid:{}", program.pid());
    bed.run_ok(&format!("set {name} --up 4mbit"));
    let told = || -> serde_json::Value {
        let text = bed.run_ok(&format!("show {name} --history --json")).stdout;
        serde_json::from_str(&text).unwrap_or_else(|e| panic!("no JSON ({e}): {text}"))
    };
    let column = |told: &serde_json::Value, of: &str| -> Vec<u64> {
        let column = told["targets"][0][of]
            .as_array()
            .cloned()
            .unwrap_or_default();
        column
            .iter()
            .filter_map(serde_json::Value::as_u64)
            .collect()
    };
    // The number of points, their mean rate, and the points; the oldest is left out, because it
    // begins before the limit.
    let points = || {
        let now = told();
        let (times, rates) = (column(&now, "time_ns"), column(&now, "up_rate"));
        let both = times.into_iter().zip(rates).skip(1);
        let known: Vec<(u64, u64)> = both.collect();
        let time: f64 = known.iter().map(|(time, _)| *time as f64).sum();
        let bits: f64 = known
            .iter()
            .map(|(time, rate)| *time as f64 * *rate as f64)
            .sum();
        (known.len(), bits / time, known)
    };
    // At most 3 % over the limit, and at least half of it, because a sender on a busy machine sends
    // less (`accuracy` judges the limit). On such a machine a point may be sampled later than its
    // time; each further point reduces that error.
    let right = || {
        let (count, mean, _) = points();
        count >= 3 && (2e6..4.12e6).contains(&mean)
    };
    assert!(
        becomes_true(right),
        "in a limit of 4 Mbit/s: {:?}",
        points()
    );
    assert_eq!(told()["targets"][0]["up"], 4_000_000);
    assert_eq!(told()["step_ns"], 1_000_000_000);
    let text = bed.run_ok(&format!("show {name} --history")).stdout;
    assert!(
        text.contains("of 4 Mbit/s") && text.contains("UNTIL"),
        "{text}"
    );
    assert!(
        text.lines().all(|line| line.chars().count() <= 80),
        "{text}"
    );
    let minutes = bed.run_ok("show --history=1h").stdout;
    assert!(minutes.contains(&name), "{minutes}");
    // The log of the daemon's actions is separate.
    let log = bed.run_ok("log").stdout;
    assert!(log.contains(&format!("root set {name}")), "{log}");
}
