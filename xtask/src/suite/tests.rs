use super::*;

#[test]
fn words_of_test() {
    for (words, expected) in [
        (&[][..], (Scope::All, None)),
        (&["--unit"][..], (Scope::Unit, None)),
        (&["--system", "limits"][..], (Scope::System, Some("limits"))),
        (&["limits"][..], (Scope::All, Some("limits"))),
    ] {
        assert_eq!(
            Scope::parse(words).expect("well formed"),
            expected,
            "{words:?}"
        );
    }
    for words in [
        &["--fast"][..],
        &["a", "b"][..],
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
fn what_runs_side_by_side_are_system_tests() {
    let tree = Tree::find().expect("cargo metadata");
    let system = system_test_names(&tree);
    for name in SIDE_BY_SIDE {
        assert!(system.contains(&name), "{name}");
    }
}
