use std::ffi::OsString;
use std::time::Duration;

use super::*;
use crate::args::parse;

/// Parses `netnice channel LINE`.
fn channel(line: &str) -> Result<ChannelCommand, BadUsage> {
    let words = ["netnice", "channel"].into_iter().chain(line.split(' '));
    let command = parse(words.map(OsString::from).collect())?;
    match command.verb {
        Verb::Channel(channel) => Ok(channel),
        other => panic!("{line}: {other:?}"),
    }
}

fn open(line: &str) -> Open {
    match channel(line) {
        Ok(ChannelCommand::Open(open)) => *open,
        other => panic!("{line}: {other:?}"),
    }
}

fn error(line: &str) -> String {
    match channel(line) {
        Err(error) => error.to_string(),
        Ok(command) => panic!("{line}: {command:?}"),
    }
}

const CAMERA: &str = "camera@recorder --mmax 64KiB --rate 50/s --deadline 20ms";

#[test]
fn the_contract_is_that_of_the_options() {
    let camera = open(&format!("open {CAMERA} --burst 2 --cpu 2ms/10ms"));
    assert_eq!(
        (camera.service.as_str(), camera.host.as_str()),
        ("camera", "recorder")
    );
    let text = "channel mmax=64KiB,rmax=50/s,bmax=2,deadline=20ms";
    let contract: Contract = text.parse().expect("valid");
    assert_eq!(Some(camera.channel), contract.channel());
    assert_eq!(camera.input, Input::Reads);
    let cpu = match camera.end.cpu {
        ReservedTime::Slice(slice) => (slice.slice(), slice.period()),
        other => panic!("{other:?}"),
    };
    assert_eq!(cpu, (Nanos::from_millis(2), Nanos::from_millis(10)));
    let reserved = |more: &str| open(&format!("open {CAMERA}{more}")).end.cpu;
    assert_eq!(reserved(""), ReservedTime::None);
    assert_eq!(reserved(" --cpu auto"), ReservedTime::Least);
    let lines = open(&format!(
        "open {CAMERA} --lines --processing 4ms --overload drop"
    ));
    assert_eq!(lines.input, Input::Lines);
    assert_eq!(lines.channel.processing(), Nanos::from_millis(4));
    let test = open(&format!("test {CAMERA} --lasts 3s"));
    assert_eq!(test.input, Input::Test(Duration::from_secs(3)));
    assert!(open(&format!("carry {CAMERA} --udp 127.0.0.1:5000 --replies")).replies);
    let carry = open(&format!("carry {CAMERA} --udp 127.0.0.1:5000"));
    assert!(!carry.replies);
    assert_eq!(carry.input, Input::Udp(([127, 0, 0, 1], 5_000).into()));
}

#[test]
fn a_service_has_one_output() {
    let listen = |line: &str| match channel(line) {
        Ok(ChannelCommand::Listen(listen)) => *listen,
        other => panic!("{line}: {other:?}"),
    };
    assert_eq!(listen("listen camera").output, Output::Bytes);
    assert_eq!(listen("listen camera --lines").output, Output::Lines);
    assert_eq!(listen("listen camera --discard --count 3").count, Some(3));
    let to = Output::Udp(([127, 0, 0, 1], 5_000).into());
    assert_eq!(listen("listen camera --udp 127.0.0.1:5000").output, to);
    channel("listen camera --udp 127.0.0.1:5000 --lines").expect_err("two outputs");
    assert!(listen("listen camera --udp 127.0.0.1:5000 --replies").replies);
    channel("listen camera --replies").expect_err("no program that answers");
    assert!(matches!(channel("ls"), Ok(ChannelCommand::List)));
}

#[test]
fn invalid_values_are_named() {
    let of = |more: &str| error(&format!("open camera@recorder --mmax 64KiB {more}"));
    for bad in ["camera", "@recorder", "camera@"] {
        let text = error(&format!("open {bad} --mmax 1KiB --rate 1/s --deadline 1s"));
        assert!(text.contains("NAME@HOST"), "{text}");
    }
    let text = of("--rate 0/s --deadline 20ms");
    assert!(text.contains("rmax"), "{text}");
    let text = of("--rate 50/s --deadline 20ms --burst 0");
    assert!(text.contains("bmax"), "{text}");
    let text = of("--rate 50/s --deadline 0ms");
    assert!(text.contains("deadline"), "{text}");
    let text = of("--rate 50/s --deadline 20ms --processing 30ms");
    assert!(
        text.contains("processing") && text.contains("20ms"),
        "{text}"
    );
    let text = of("--rate 50/s --deadline 20ms --packet 64B");
    assert!(text.contains("--packet") && text.contains("128B"), "{text}");
    let text = of("--rate 50/s --deadline 20ms --cpu 20ms/10ms");
    assert!(text.contains("20ms"), "{text}");
    let text = error("open camera@recorder --mmax 0B --rate 50/s --deadline 20ms");
    assert!(text.contains("mmax"), "{text}");
    let text = error(&format!("carry {CAMERA} --udp localhost"));
    assert!(text.contains("localhost"), "{text}");
    let text = error(&format!("open {CAMERA} --json"));
    assert!(text.contains("--json"), "{text}");
}

#[test]
fn a_channel_is_explained_by_its_first_digits() {
    let explain = |target: &str| {
        let words = ["netnice", "explain", target].map(OsString::from);
        parse(words.to_vec())
    };
    for digits in ["7", "1f0c27d9", &"0a".repeat(16)] {
        match explain(&format!("channel:{digits}")).map(|command| command.verb) {
            Ok(Verb::Channel(ChannelCommand::Explain(found))) => assert_eq!(found, digits),
            other => panic!("{digits}: {other:?}"),
        }
    }
    for digits in ["", "camera", "1F0C27D9", "0x7", &"0".repeat(33)] {
        let error = explain(&format!("channel:{digits}")).expect_err(digits);
        let text = error.to_string();
        assert!(text.contains("netnice channel ls"), "{digits}: {text}");
    }
    let dry = ["netnice", "explain", "channel:7", "--dry-run"].map(OsString::from);
    let error = parse(dry.to_vec()).expect_err("nothing is changed");
    assert!(error.to_string().contains("--dry-run"), "{error}");
}
