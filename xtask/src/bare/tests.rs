use super::*;

#[test]
fn words_of_bare() {
    let plain = Order {
        keep: false,
        suite: "bookworm",
        targets: vec!["demo", "test"],
    };
    assert_eq!(Order::parse(&[]).expect("nothing is fine"), plain);
    let all = Order {
        keep: true,
        suite: "trixie",
        targets: vec!["build"],
    };
    assert_eq!(
        Order::parse(&["--keep", "--suite", "trixie", "build"]).expect("well formed"),
        all
    );
    assert!(Order::parse(&["--fast"]).is_err());
    assert!(Order::parse(&["--suite"]).is_err());
}
