//! Tests of `netnice check` as a process without a daemon: its output and its exit status.

use std::io::Write;
use std::process::{Command, Output, Stdio};

/// A pcap of packets of 1000 bytes without captured bytes, at these times in microseconds.
fn capture(times: &[u32]) -> Vec<u8> {
    let words = |words: &[u32]| -> Vec<u8> { words.iter().flat_map(|w| w.to_le_bytes()).collect() };
    let mut file = words(&[0xa1b2_c3d4, 0x0004_0002, 0, 0, 65_535, 1]);
    for at in times {
        file.extend(words(&[1, *at, 0, 1000]));
    }
    file
}

/// Runs `netnice check -` with a file on its standard input.
fn check(options: &[&str], file: &[u8]) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_netnice"))
        .args(["check", "-"])
        .args(options)
        .env("NETNICE_RUNTIME_DIR", "/nonexistent/netnice")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("started");
    // The command may have closed its input without reading it.
    let _ = child.stdin.take().expect("a pipe").write_all(file);
    child.wait_with_output().expect("ended")
}

fn status_and_text(options: &[&str], file: &[u8]) -> (i32, String) {
    let output = check(options, file);
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8(text).expect("text");
    (output.status.code().expect("a status"), text)
}

#[test]
fn the_exit_status_follows_from_the_verdict() {
    let cell = ["--cell", "pcr=8mbit,cdvt=0s"];
    let (status, text) = status_and_text(&cell, &capture(&[0, 1000, 2000]));
    assert_eq!(status, 0, "{text}");
    assert!(text.starts_with("standard input: conforms\n"), "{text}");
    let (status, text) = status_and_text(&cell, &capture(&[0, 1000, 1999]));
    assert_eq!(status, 3, "{text}");
    assert!(
        text.contains("packet 3, 1000B long, is 1us too early"),
        "{text}"
    );
    let tolerant = ["--cell", "pcr=8mbit,cdvt=0s", "--tolerance", "1us"];
    assert_eq!(status_and_text(&tolerant, &capture(&[0, 1000, 1999])).0, 0);
    for (file, why) in [
        (capture(&[]), "has no packet to check"),
        (b"not a capture".to_vec(), "is no capture"),
        (
            capture(&[0])[..30].to_vec(),
            "ends in the middle of a block",
        ),
    ] {
        let (status, text) = status_and_text(&cell, &file);
        assert_eq!(status, 1, "{text}");
        assert!(
            text.starts_with("netnice: - ") && text.contains(why),
            "{text}"
        );
        assert_eq!(text.lines().count(), 1, "{text}");
    }
    for (options, why) in [
        (
            ["--min", "8mbit"],
            "no clause of this contract restricts the times of packets",
        ),
        (["--cell", "pcr=8mbit"], "cell"),
        (["--flow", "udp"], "no clause of this contract"),
        (["--up", "8mbps"], "8mbps"),
    ] {
        let (status, text) = status_and_text(&options, &capture(&[0]));
        assert_eq!(status, 2, "{text}");
        assert!(text.contains(why), "{text}");
    }
    let two = [
        "--up",
        "8mbit",
        "--channel",
        "mmax=1kB,rmax=1/s,bmax=1,deadline=1s",
    ];
    let (status, text) = status_and_text(&two, &capture(&[0]));
    assert_eq!(
        (status, text.contains("one of cell, channel")),
        (2, true),
        "{text}"
    );
}

#[test]
fn with_json_the_answer_is_json() {
    let output = check(
        &["--up", "8mbit", "--burst", "1ms", "--json"],
        &capture(&[0, 1, 2]),
    );
    assert_eq!(output.status.code(), Some(3));
    let doc: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(doc["contract"], "up 8mbit burst 1ms");
    assert_eq!((&doc["judged"], &doc["wrong"]), (&3.into(), &1.into()));
    assert_eq!(doc["first"]["early_by_ns"], 998_000);
    let output = check(&["--up", "8mbit", "--json"], b"");
    assert_eq!(output.status.code(), Some(1));
    let doc: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert!(doc.to_string().contains("is no capture"), "{doc}");
}

#[test]
fn a_missing_file_is_named() {
    let output = Command::new(env!("CARGO_BIN_EXE_netnice"))
        .args(["check", "/nonexistent/x.pcap", "--up", "8mbit"])
        .output()
        .expect("run");
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(
        text.starts_with("netnice: /nonexistent/x.pcap cannot be read: "),
        "{text}"
    );
}
