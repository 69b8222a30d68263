use super::*;

#[test]
fn properties_are_the_tests_inside_proptest() {
    let text = "\
#[test]
fn plain() {}

proptest! {
    #![proptest_config(cases(3))]

    /// Said of it.
    #[test]
    #[cfg_attr(miri, ignore)]
    fn first(a in any::<u8>()) {
        if a > 3 {
        }
    }

    #[test]
    fn second(
        a in 0..3,
    ) {
    }
}

fn helper() {}

mod tests {
    proptest! {
        #[test]
        fn third(a in 0..3) {}
    }
}

proptest! {
    #[test]
    fn fourth(a in 0..3) {}
}
";
    assert_eq!(
        properties_in(text),
        [
            (None, "first"),
            (None, "second"),
            (Some("tests"), "third"),
            (None, "fourth")
        ]
    );
}

#[test]
fn the_path_of_a_file_gives_its_module_path() {
    let of = |file: &str| modules(Path::new(file)).join("::");
    assert_eq!(of("sched/tests/cells.rs"), "sched::tests::cells");
    assert_eq!(of("lib.rs"), "");
    assert_eq!(of("sched_fuzz.rs"), "sched_fuzz");
}

/// The properties of the code that reads untrusted input, and one in a separate test program. This
/// test fails if one of them is renamed.
#[test]
fn the_properties_of_the_tree_are_found() {
    let tree = Tree::find().expect("a workspace");
    let all = tree
        .crates
        .iter()
        .map(|one| properties_of(one).expect("read"));
    let all: Vec<String> = all.flatten().map(|one| one.full_name()).collect();
    for wanted in [
        "netnice-ring scenario::fuzz::any_state_of_the_rings_keeps_the_ledger_balanced",
        "netnice-ring scenario::fuzz::script::scenarios_near_the_corpus_keep_the_rules",
        "netnice-driver template::tests::kept::frames_near_the_corpus_keep_the_rules",
        "netnice-driver demux::tests::kept::frames_near_the_corpus_keep_the_rules",
        "netnice-driver control::connection::tests::streams_near_the_corpus_end_without_a_panic",
        "netnice-api wire::tests::corpus::streams_near_the_corpus_decode_without_a_panic",
        "netnice-core sched_fuzz packets_are_conserved_in_any_scenario",
    ] {
        assert!(all.iter().any(|one| one == wanted), "{wanted}: {all:#?}");
    }
    assert!(all.len() > 50, "{all:#?}");
}

#[test]
fn the_arguments_of_fuzz_are_parsed() {
    let parsed = |words: &[&'static str]| parse(words).map_err(|error| error.to_string());
    assert_eq!(parsed(&[]), Ok(FuzzCommand::Properties(DEFAULT_TIME, None)));
    let ring = Some("ring");
    assert_eq!(
        parsed(&["ring"]),
        Ok(FuzzCommand::Properties(DEFAULT_TIME, ring))
    );
    let minute = Duration::from_secs(60);
    assert_eq!(
        parsed(&["--for", "60", "ring"]),
        Ok(FuzzCommand::Properties(minute, ring))
    );
    assert_eq!(
        parsed(&["--learn"]),
        Ok(FuzzCommand::Learn(DEFAULT_TIME, None))
    );
    assert_eq!(
        parsed(&["--learn", "--for", "60", "ring"]),
        Ok(FuzzCommand::Learn(minute, ring))
    );
    let (target, file) = ("ring", "a.bin");
    assert_eq!(
        parsed(&["--replay", target, file]),
        Ok(FuzzCommand::Replay { target, file })
    );
    for wrong in [
        &["--for", "0"][..],
        &["--for"],
        &["--for", "1h"],
        &["a", "b"],
        &["--learn", "--learn"],
        &["--for", "60", "--learn"],
        &["--replay", "ring"],
    ] {
        assert!(parsed(wrong).is_err(), "{wrong:?}");
    }
}

#[test]
fn parallel_work_is_done_once_and_an_error_is_returned() {
    let mut done = run_parallel(vec![1, 2, 3], |one| Ok(2 * one)).expect("done");
    done.sort_unstable();
    assert_eq!(done, [2, 4, 6]);
    let failed = run_parallel(vec![1], |_| -> Result<()> { bail!("no") });
    assert_eq!(failed.expect_err("it failed").to_string(), "no");
}
