use super::*;

const RUN: &str = "\
INFO: Running with entropic power schedule (0xFF, 100).
INFO: seed corpus: files: 47 min: 1b max: 8187b total: 20000b rss: 40Mb
#48\tINITED cov: 300 ft: 700 corp: 40/9Kb exec/s: 0 rss: 41Mb
#90\tNEW    cov: 301 ft: 702 corp: 41/9Kb lim: 4096 exec/s: 0 rss: 41Mb L: 9/99 MS: 1 Custom-
#1048576\tpulse  cov: 310 ft: 900 corp: 90/12Kb lim: 4096 exec/s: 9000 rss: 90Mb
";

#[test]
fn the_log_of_a_run_without_a_finding_is_parsed() {
    let end = "#2000000\tDONE   cov: 311 ft: 910 corp: 91/12Kb lim: 4096 exec/s: 9000 rss: 90Mb
Done 2000000 runs in 61 second(s)
stat::number_of_executed_units: 2000000
stat::peak_rss_mb:              90
";
    let log = Log::read(&[RUN, end].concat());
    let coverage = |edges, features| Coverage { edges, features };
    assert_eq!(log.runs, 2_000_000);
    assert_eq!(
        (log.first, log.last),
        (coverage(300, 700), coverage(311, 910))
    );
    assert_eq!(log.finding, None);
}

#[test]
fn the_log_of_a_run_with_a_finding_is_parsed_with_its_text() {
    let end = "\
thread '<unnamed>' panicked at crates/api/src/wire/hostile.rs:9:9:
Set and Clear
==77== ERROR: libFuzzer: deadly signal
    #0 0x5581 in __sanitizer_print_stack_trace
artifact_prefix='found/'; Test unit written to found/crash-0a1b
stat::number_of_executed_units: 1048600
";
    let log = Log::read(&[RUN, end].concat());
    assert_eq!(log.finding, Some(PathBuf::from("found/crash-0a1b")));
    assert_eq!(log.runs, 1_048_600);
    assert_eq!(log.last.edges, 310);
    assert!(log.text.starts_with("thread '<unnamed>' panicked at"));
    assert!(log.text.contains("Set and Clear"));
    // A seed may be the finding.
    let log = Log::read(end);
    assert_eq!(log.first, Coverage::default());
    assert!(log.text.contains("Set and Clear"));
}

/// Each program has a corpus that is not empty, and each corpus has a program.
#[test]
fn the_targets_are_those_of_the_manifest() {
    let tree = Tree::find().expect("a workspace");
    let text = fs::read_to_string(tree.root.join("fuzz/Cargo.toml")).expect("a manifest");
    let manifest: toml::Table = text.parse().expect("a manifest");
    let programs = manifest["bin"].as_array().expect("programs").iter();
    let programs: Vec<&str> = programs
        .map(|one| one["name"].as_str().expect("a name"))
        .collect();
    let targets = targets(&tree).expect("targets");
    let names: Vec<&str> = targets.iter().map(|one| one.name.as_str()).collect();
    assert_eq!(names, programs);
    assert_eq!(
        names,
        [
            "channel",
            "connection",
            "cut",
            "endpoint",
            "frames",
            "receive",
            "ring",
            "segment",
            "signalling",
            "stream",
            "transmit"
        ]
    );
    for target in &targets {
        assert!(!files(&target.corpus).expect("a corpus").is_empty());
        let source = format!("fuzz/fuzz_targets/{}.rs", target.name);
        assert!(tree.root.join(source).is_file());
    }
}

#[test]
fn the_name_of_an_input_contains_its_outcome() {
    assert_eq!(outcome("a/checksum-2.bin"), "checksum");
    assert_eq!(outcome("odd-length-12.bin"), "odd-length");
}
