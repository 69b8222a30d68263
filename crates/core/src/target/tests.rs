use alloc::format;
use alloc::string::{String, ToString};

use proptest::prelude::*;

use super::Target;

#[test]
fn targets_parse_and_print_in_full_form() {
    let cases = [
        ("a process", "pid:1234", "pid:1234"),
        ("a bare number", "1234", "pid:1234"),
        ("zeros in front", "pid:0007", "pid:7"),
        ("the largest pid", "4194304", "pid:4194304"),
        ("a name", "name:backup-2", "name:backup-2"),
        ("a program", "app:/usr/bin/rsync", "app:/usr/bin/rsync"),
        (
            "a program with a space",
            "app:/opt/my app/x",
            "app:/opt/my app/x",
        ),
        ("a control group", "cgroup:/a.slice/b", "cgroup:/a.slice/b"),
        ("the root control group", "cgroup:/", "cgroup:/"),
        ("a unit", "unit:nginx.service", "unit:nginx.service"),
        ("a unit without suffix", "unit:nginx", "unit:nginx.service"),
        ("a slice", "unit:user-1000.slice", "unit:user-1000.slice"),
        ("the root slice", "unit:-.slice", "unit:-.slice"),
        (
            "a template's instance",
            "unit:getty@tty1.service",
            "unit:getty@tty1.service",
        ),
        ("a container", "container:web_1", "container:web_1"),
        ("a user", "user:ann", "user:ann"),
        ("a user by number", "user:1000", "user:1000"),
        ("a flow", "flow:7", "flow:7"),
        ("all flows of a link", "direct:eth0", "direct:eth0"),
    ];
    for (why, text, full) in cases {
        let target: Target = text.parse().expect(why);
        assert_eq!(target.to_string(), full, "{why}");
        assert_eq!(full.parse(), Ok(target), "{why}");
    }
}

#[test]
fn invalid_targets_are_refused_with_the_reason() {
    let long = format!("name:{}", "x".repeat(65));
    let long_path = format!("app:/{}", "x".repeat(1100));
    let cases = [
        ("empty", "", "is not a target: write pid:1234"),
        ("a word", "nginx", "is not a target"),
        ("unknown kind", "job:7", "is not a kind of target"),
        ("pid zero", "0", "a number from 1 to 4194304"),
        ("pid too large", "pid:4194305", "a number from 1 to 4194304"),
        (
            "pid beyond 64 bits",
            "99999999999999999999",
            "a number from 1 to 4194304",
        ),
        ("flow zero", "flow:0", "is not the number of a flow"),
        ("a flow by name", "flow:x", "is not the number of a flow"),
        ("no link", "direct:a/b", "is not the name of an interface"),
        ("negative pid", "pid:-1", "a number from 1 to 4194304"),
        ("signed pid", "pid:+1", "a number from 1 to 4194304"),
        ("no pid", "pid:", "a number from 1 to 4194304"),
        ("no name", "name:", "1 to 64 letters"),
        ("a long name", &long, "1 to 64 letters"),
        (
            "a name like an option",
            "name:-x",
            "beginning with a letter",
        ),
        (
            "a name with a slash",
            "container:a/b",
            "letters, digits or -_.",
        ),
        ("a relative path", "app:rsync", "it must begin with /"),
        ("dots", "app:/usr/../bin/x", "must not contain . or .."),
        ("dot", "cgroup:/./x", "must not contain . or .."),
        (
            "double slash",
            "cgroup:/a//b",
            "must not contain // or end with /",
        ),
        (
            "slash at the end",
            "cgroup:/a/",
            "must not contain // or end with /",
        ),
        ("a folder", "app:/", "it is a folder"),
        ("a control character", "app:/a\nb", "control character"),
        ("a long path", &long_path, "longer than 1024"),
        ("only a suffix", "unit:.service", "1 to 255 letters"),
        ("no unit", "unit:", "1 to 255 letters"),
        ("a user with a space", "user:a b", "1 to 64 letters"),
    ];
    for (why, text, expected) in cases {
        let error = text.parse::<Target>().expect_err(why).to_string();
        assert!(error.contains(expected), "{why}: {error}");
        assert!(!error.contains('\n') && error.len() < 400, "{why}: {error}");
    }
}

#[test]
fn the_more_specific_target_comes_first() {
    let order = ["7", "name:a", "app:/a", "cgroup:/a", "user:a"];
    let specificity = |text: &str| text.parse::<Target>().expect("a target").specificity();
    for pair in order.windows(2) {
        assert!(specificity(pair[0]) < specificity(pair[1]), "{pair:?}");
    }
    assert_eq!(specificity("unit:a"), specificity("cgroup:/a"));
    assert_eq!(specificity("container:a"), specificity("cgroup:/a"));
}

proptest! {
    #[test]
    fn a_parsed_target_prints_to_the_same_target(
        scheme in "(pid|name|app|cgroup|unit|container|user)?",
        rest in "[:/]?[a-z0-9./_@-]{0,20}",
    ) {
        let text = if scheme.is_empty() { rest } else { format!("{scheme}:{rest}") };
        if let Ok(target) = text.parse::<Target>() {
            let full = target.to_string();
            prop_assert_eq!(full.parse(), Ok(target));
        }
    }

    #[test]
    fn no_text_makes_the_parser_panic(text in any::<String>()) {
        let _ = text.parse::<Target>().map_err(|e| e.to_string());
    }
}
