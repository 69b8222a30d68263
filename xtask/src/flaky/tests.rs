use super::*;

const ONE: &str = r#"
[[test]]
program = "netnice-lab::limits"
name = "holds"
since = "2026-11-22"
cause = "the meter loses packets"
"#;

#[test]
fn a_listed_test_has_its_cause() {
    let known = KnownFlaky::parse(ONE).expect("well formed");
    assert_eq!(
        known.cause("netnice-lab::limits", "holds"),
        Some("the meter loses packets")
    );
    assert_eq!(known.cause("netnice-lab::limits", "other"), None);
    assert_eq!(known.cause("netnice-lab::groups", "holds"), None);
}

#[test]
fn an_empty_list_is_well_formed_and_a_test_without_a_cause_is_not() {
    assert!(KnownFlaky::parse("# none\n").is_ok());
    let without = ONE.replace("the meter loses packets", " ");
    let error = KnownFlaky::parse(&without)
        .expect_err("no cause")
        .to_string();
    assert!(error.contains("`cause` is empty"), "{error}");
    let unknown = ONE.replace("since", "from");
    assert!(KnownFlaky::parse(&unknown).is_err());
}

#[test]
fn the_list_of_this_tree_is_well_formed() {
    let tree = crate::tree::Tree::find().expect("cargo metadata");
    KnownFlaky::read(&tree.root).expect("a list");
}
