//! Tests `cpu auto`: a program has the processor time that its direct flows need, by what a packet
//! costs on the machine. Here the costs come from a file, so that no figure depends on the machine.

use std::fs;

use netnice_lab::experiment::bench::at;
use netnice_lab::testbed::{TestBed, becomes_true};
use netnice_lab::traffic::{self, Direct, Running, Udp};
use netnice_lab::world::Family;

use crate::users::{ANN, as_user};

/// A packet takes 20 us of a processor.
const COSTS: &str = r#"{"version":1,"costs":{"udp":{"idle_ppb":1000000,"packet_ps":20000000},
    "tcp":{"idle_ppb":1000000,"packet_ps":30000000}}}"#;

/// A test bed with a link of 1 Gbit/s whose daemon knows what a packet costs.
fn test_bed() -> TestBed {
    let mut bed = TestBed::new().expect("a test bed");
    bed.netnice.stop_daemon();
    let file = bed.netnice.runtime().join("packet-costs.json");
    fs::write(file, COSTS).expect("the file is written");
    bed.netnice.start_daemon().expect("the daemon starts");
    let device = bed.world.client().port().device.clone();
    bed.run_ok(&format!("link {device} --rate 1gbit"));
    bed
}

/// A program with a flow that is promised a rate, and its receiver.
fn program(bed: &TestBed, port: u16, contract: &str) -> (Running, Running) {
    let from = at(bed.world.client(), Family::V4, port);
    let to = at(bed.world.server(), Family::V4, port);
    let sink = traffic::start_now(bed.world.server(), &Udp::sink(to)).expect("a sink");
    let source = Direct::source(from, to).by(bed.netnice.runtime());
    let source = source.contract(contract);
    let source = traffic::start_waiting(bed.world.client(), &source).expect("a flow");
    (source, sink)
}

/// The reserved time of a target in its period, both in us; 0 if it has none.
fn reserved(bed: &TestBed, pid: u32) -> (u64, u64) {
    let time = &bed.target(&format!("pid:{pid}"))["processor_time"]["reserved"];
    let micros = |key: &str| time[key].as_u64().unwrap_or(0) / 1_000;
    (micros("slice_ns"), micros("period_ns"))
}

#[test]
fn cpu_auto_is_refused_before_the_costs_are_known() {
    let bed = TestBed::new().expect("a test bed");
    let device = bed.world.client().port().device.clone();
    bed.run_ok(&format!("link {device} --rate 1gbit"));
    let (source, _sink) = program(&bed, 5001, "slice 1ms/20ms");
    let answer = bed.run_with_status(&format!("set pid:{} --cpu auto", source.pid()), 3);
    assert!(
        answer.stderr.contains("netnice doctor --measure"),
        "{}",
        answer.stderr
    );
    assert_eq!(bed.shown()["targets"].as_array().map(Vec::len), Some(0));
}

#[test]
fn cpu_auto_is_what_the_flows_of_a_program_need() {
    let mut bed = test_bed();
    let (source, _sink) = program(&bed, 5001, "slice 1200us/20ms");
    let pid = source.pid();
    // 60 Mbit/s are 5,000 packets a second of 20 us: 10 %, 0.1 % beside them, and a tenth more.
    bed.run_ok(&format!("set pid:{pid} --cpu auto"));
    let (time, period) = reserved(&bed, pid);
    assert_eq!(period, 20_000);
    assert!((2_200..2_300).contains(&time), "{time} us");
    let text = bed.run_ok(&format!("explain pid:{pid}")).stdout;
    assert!(text.contains("cpu auto"), "{text}");

    // It outlives the daemon, which then finds its flows again.
    bed.netnice.kill_daemon();
    bed.netnice.start_daemon().expect("the daemon starts");
    assert_eq!(reserved(&bed, pid), (time, period));

    // 700 Mbit/s are 58,333 packets a second, which no single processor can send.
    let (large, _large_sink) = program(&bed, 5002, "slice 14ms/20ms");
    let answer = bed.run_with_status(&format!("set pid:{} --cpu auto", large.pid()), 3);
    let why = "129 % of a processor, more than the 100 %";
    assert!(answer.stderr.contains(why), "{}", answer.stderr);
    bed.run_ok(&format!("clear pid:{pid}"));
    assert!(bed.shown()["targets"].as_array().is_some_and(Vec::is_empty));
}

#[test]
fn cpu_auto_follows_flows_that_come_and_go() {
    let bed = test_bed();
    let (first, _first_sink) = program(&bed, 5001, "slice 1200us/20ms");
    let pid = first.pid();
    bed.run_ok(&format!("set pid:{pid} --cpu auto"));
    let before = reserved(&bed, pid).0;
    assert!(before > 0);
    let shown = bed.shown();
    let flow = shown["direct"][0]["flow"].as_str().expect("a flow");
    bed.run_ok(&format!("flow close {flow}"));
    let gone = becomes_true(|| reserved(&bed, pid).0 == 0);
    assert!(gone, "it still has {:?}", reserved(&bed, pid));
}

/// It fails before it makes anything, and a plain user cannot invent costs.
#[test]
fn a_plain_user_measures_no_costs() {
    let bed = TestBed::new().expect("a test bed");
    let netnice = bed.copy_for_all("netnice").expect("a copy");
    let mut command = as_user(&bed, ANN);
    command.arg(&netnice).args(["doctor", "--measure"]);
    let output = command.output().expect("it runs");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(
        !output.status.success() && text.contains("only root can measure"),
        "{text}"
    );
    assert!(!bed.netnice.runtime().join("packet-costs.json").exists());
}

#[test]
#[ignore = "takes minutes, on a quiet machine"]
fn costs_are_measured_and_kept() {
    let bed = TestBed::new().expect("a test bed");
    for _ in 0..3 {
        println!("{}", bed.run_ok("doctor --measure").stdout);
    }
    let text = fs::read_to_string(bed.netnice.runtime().join("packet-costs.json"));
    let kept: serde_json::Value =
        serde_json::from_str(&text.expect("they are kept")).expect("JSON");
    for protocol in ["udp", "tcp"] {
        let packet = kept["costs"][protocol]["packet_ps"].as_u64().unwrap_or(0);
        // Between a tenth of a microsecond and a hundred.
        assert!(
            (100_000..100_000_000).contains(&packet),
            "{protocol}: {kept}"
        );
    }
    assert!(
        !fs::read_dir("/run")
            .expect("a folder")
            .flatten()
            .any(|entry| {
                let name = entry.file_name();
                name.to_string_lossy().starts_with("netnice-measure-")
            })
    );
}
