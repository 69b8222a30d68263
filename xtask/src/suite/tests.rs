use super::*;

#[test]
fn the_arguments_of_test_are_parsed() {
    for (words, expected) in [
        (&[][..], (Scope::All, &[][..])),
        (&["--unit"][..], (Scope::Unit, &[][..])),
        (
            &["--system", "limits"][..],
            (Scope::System, &["limits"][..]),
        ),
        (&["a", "b"][..], (Scope::All, &["a", "b"][..])),
    ] {
        assert_eq!(
            Scope::parse(words).expect("well formed"),
            expected,
            "{words:?}"
        );
    }
    for words in [
        &["--fast"][..],
        &["a", "--b"][..],
        &["--unit", "--system"][..],
    ] {
        assert!(Scope::parse(words).is_err(), "{words:?}");
    }
}

#[test]
fn the_programs_are_targets_of_this_workspace() {
    let tree = Tree::find().expect("cargo metadata");
    let all: Vec<_> = tree.crates.iter().flat_map(|one| &one.targets).collect();
    for program in PROGRAMS {
        assert!(
            all.iter()
                .any(|(kind, name)| kind == "bin" && name == program),
            "{program}"
        );
    }
}

#[test]
fn the_system_tests_share_no_name_with_other_tests() {
    let tree = Tree::find().expect("cargo metadata");
    let system = system_test_names(&tree);
    let others = tree.crates.iter().filter(|one| one.name != LAB);
    for (kind, name) in others.flat_map(|one| &one.targets) {
        assert!(kind != "test" || !system.contains(&name.as_str()), "{name}");
    }
}

#[test]
fn a_line_of_the_documentation_tests_is_parsed() {
    let read = |line: &str| parse_doc_test(line).map(|test| (test.name, test.outcome));
    let name = "crates/core/src/units.rs - units::Rate (line 12)";
    let line = |outcome| format!("test {name} ... {outcome}");
    assert_eq!(read(&line("ok")), Some((name.to_owned(), Outcome::Passed)));
    assert_eq!(
        read(&line("FAILED")),
        Some((name.to_owned(), Outcome::Failed))
    );
    assert_eq!(read(&line("ignored")), None);
    assert_eq!(read("test result: ok. 3 passed; 0 failed"), None);
}
