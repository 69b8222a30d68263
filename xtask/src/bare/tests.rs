use super::*;

#[test]
fn the_arguments_of_bare_are_parsed() {
    let plain = Options {
        keep: false,
        suite: "bookworm",
        targets: vec!["demo", "test"],
    };
    assert_eq!(Options::parse(&[]).expect("nothing is fine"), plain);
    let all = Options {
        keep: true,
        suite: "trixie",
        targets: vec!["build"],
    };
    assert_eq!(
        Options::parse(&["--keep", "--suite", "trixie", "build"]).expect("well formed"),
        all
    );
    assert!(Options::parse(&["--fast"]).is_err());
    assert!(Options::parse(&["--suite"]).is_err());
}
