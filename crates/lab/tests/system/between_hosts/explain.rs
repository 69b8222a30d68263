//! `netnice explain channel:N`: what each host has counted, and which hop was late.

use super::*;

impl Hosts {
    /// The first digits of the only channel, as `netnice channel ls` prints them.
    fn digits(&self, host: &str) -> String {
        let listed = self.channels(host);
        let digits = listed["channels"][0]["channel"].as_str();
        digits.expect("a channel").to_owned()
    }

    /// The hops of the only channel, explained at a host.
    fn explained(&self, host: &str) -> Vec<Value> {
        let line = format!("explain channel:{} --json", self.digits(host));
        let output = self.netnice(host).run_line(&line).expect("an explanation");
        let explained: Value = serde_json::from_str(&output.stdout).expect("JSON");
        assert_eq!(explained["host"], host, "{explained}");
        let hops = explained["hops"].as_array().expect("hops");
        let names: Vec<&str> = hops.iter().filter_map(|hop| hop["host"].as_str()).collect();
        assert_eq!(names, NAMES, "{explained}");
        hops.clone()
    }

    /// Waits until all hosts have counted so many messages.
    fn explained_after(&self, host: &str, messages: u64) -> Vec<Value> {
        let until = Instant::now() + EVENT_TIMEOUT;
        loop {
            let hops = self.explained(host);
            let counted = |hop: &Value| hop["counts"]["messages"] == messages;
            if hops.iter().all(counted) {
                return hops;
            }
            assert!(Instant::now() < until, "{hops:?}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

/// Each host, and whether it was late.
fn late(hops: &[Value]) -> Vec<(&str, bool)> {
    let late = |hop: &Value| hop["counts"]["late"].as_u64().expect("a number") > 0;
    let hosts = hops.iter().map(|hop| hop["host"].as_str().expect("a host"));
    hosts.zip(hops.iter().map(late)).collect()
}

#[test]
fn the_hop_that_kept_messages_too_long_is_named() {
    let hosts = Hosts::new();
    let mut sink = hosts.listen("camera --lines");
    let line = "open camera@server --lines --mmax 1KiB --rate 50/s --burst 2 --deadline 400ms";
    let mut source = hosts.open(line);
    let mut sent = 0;
    let mut pass = |source: &mut Proc, count: usize| {
        for _ in 0..count {
            source.write_line(&format!("{sent}")).expect("written");
            sent += 1;
            std::thread::sleep(Duration::from_millis(25));
        }
    };
    let mut received = 0;
    let mut receive = |sink: &mut Proc, count: usize| {
        for _ in 0..count {
            let line = sink.next_line(EVENT_TIMEOUT).expect("a message");
            assert_eq!(line, received.to_string());
            received += 1;
        }
    };
    pass(&mut source, 100);
    receive(&mut sink, 100);
    // Every host tells the same of all, in the order of the channel.
    let hops = hosts.explained_after("client", 100);
    let clean = |hop: &Value| hop["counts"]["lost"] == 0 && hop["counts"]["late"] == 0;
    assert!(hops.iter().all(clean), "{hops:?}");
    assert!(!hops[1]["counts"]["stops"].is_null(), "{hops:?}");
    let messages = |hops: &[Value]| {
        let counted = hops.iter().map(|hop| hop["counts"]["messages"].clone());
        counted.collect::<Vec<Value>>()
    };
    for host in ["router", "server"] {
        assert_eq!(messages(&hosts.explained(host)), messages(&hops), "{host}");
    }
    // The relay does not run for more than half a second. It has room for what arrives meanwhile.
    let router = &hosts.peers[1];
    router.stop().expect("stopped");
    pass(&mut source, 5);
    // A host that does not answer is named, and what lies behind it.
    let silent = hosts.explained("client");
    assert!(silent[0]["counts"].is_object(), "{silent:?}");
    let fault = |at: usize| silent[at]["fault"].as_str().unwrap_or_default().to_owned();
    assert!(
        fault(1).contains("did not answer within 600ms"),
        "{silent:?}"
    );
    assert!(fault(2).contains("router"), "{silent:?}");
    router.cont().expect("it continues");
    pass(&mut source, 45);
    receive(&mut sink, 50);
    let hops = hosts.explained_after("server", 150);
    let expected = [("client", false), ("router", true), ("server", false)];
    assert_eq!(late(&hops), expected, "{hops:?}");
    // The thread was asleep for all the time that the messages were late.
    let counts = &hops[1]["counts"];
    let number = |name: &str| counts[name].as_u64().expect("a number");
    assert!(number("late") >= 5, "{counts}");
    assert_eq!(number("excused"), number("late"), "{counts}");
    let longest = counts["stops"]["longest_ns"].as_u64().expect("a number");
    assert!(longest > 400_000_000, "{counts}");
    let line = format!("explain channel:{}", hosts.digits("client"));
    let output = hosts.netnice("client").run_line(&line);
    let text = output.expect("an explanation").stdout;
    let late: Vec<&str> = text
        .lines()
        .filter(|line| line.contains("was late"))
        .collect();
    assert_eq!(late.len(), 1, "{text}");
    assert!(late[0].starts_with("router was late: it kept "), "{text}");
    assert!(late[0].contains("stops of its thread cover"), "{text}");
    source.close_input();
    let status = source.wait(EVENT_TIMEOUT).expect("it ends");
    assert!(status.success(), "{}", source.take_stderr());
}

#[test]
fn what_cannot_be_explained_is_one_clear_error() {
    let mut hosts = Hosts::new();
    let _sink = hosts.listen("camera --discard");
    let _source = hosts.open(&format!("open camera@server {CAMERA} --deadline 300ms"));
    let digits = hosts.digits("client");
    let error = |hosts: &Hosts, host: &str, line: &str, status: i32| {
        let words: Vec<&str> = line.split(' ').collect();
        let output = hosts.netnice(host).run(&words).expect("it runs");
        assert_eq!(output.status, status, "{line}: {output:?}");
        assert_eq!(output.stderr.trim().lines().count(), 1, "{output:?}");
        output.stderr
    };
    let text = error(&hosts, "client", "explain channel:00000000", 1);
    assert!(text.contains("client has no such channel"), "{text}");
    let text = error(&hosts, "client", "explain channel:camera", 2);
    assert!(text.contains("hexadecimal digits"), "{text}");
    // Another user, at an end and at a relay.
    for host in ["client", "router"] {
        let mut other = hosts.world.host(host).ns.command("setpriv");
        other.args(["--reuid=64124", "--regid=64124", "--clear-groups", "--"]);
        other.arg(netnice_lab::process::binary("netnice").expect("built"));
        other.env("NETNICE_RUNTIME_DIR", hosts.netnice(host).runtime());
        other.args(["explain", &format!("channel:{digits}")]);
        let mut other = Proc::start(other).expect("it starts");
        let status = other.wait(EVENT_TIMEOUT).expect("it ends");
        let text = other.take_stderr();
        assert_eq!(status.code(), Some(3), "{text}");
        assert!(text.contains("only root may ask"), "{text}");
    }
    hosts.peer("router").kill();
    let text = error(&hosts, "router", &format!("explain channel:{digits}"), 4);
    assert!(text.contains("no netnice-peer listens"), "{text}");
}
