use std::ffi::OsString;

use netnice_api::ContractDoc;

use super::{Shell, ShellCommand, as_at_rate, format_limits, init, parse_at, parse_at_rate};

fn words(line: &str) -> Vec<OsString> {
    line.split(' ').map(OsString::from).collect()
}

#[test]
fn the_last_word_is_the_limit_and_the_others_are_the_command() {
    let run = parse_at(words("ftp ftp.foo.com @128Kbyte/sec")).expect("limited");
    assert_eq!(run.set.change.as_deref(), Some("both 1048576bit"));
    assert!(run.set.short && run.quiet);
    assert_eq!(run.command, words("ftp ftp.foo.com"));
}

#[test]
fn at_rate_takes_the_rate_before_the_command_or_at_its_end() {
    for line in ["@4mbit curl -d @body x", "curl -d @body x @4mbit"] {
        let run = parse_at_rate(words(line)).expect(line);
        assert_eq!(run.set.change.as_deref(), Some("both 4mbit"));
        assert_eq!(run.command, words("curl -d @body x"));
    }
    for line in ["curl x", "@4mbit", "curl -d @body", "curl @4", "@none curl"] {
        parse_at_rate(words(line)).expect_err(line);
    }
}

#[test]
fn the_name_at_rate_is_the_command_at_rate() {
    let called = |line: &str| as_at_rate(words(line));
    assert_eq!(
        called("/usr/bin/at-rate @4mbit x"),
        words("netnice at-rate @4mbit x")
    );
    assert_eq!(called("netnice show"), words("netnice show"));
    assert_eq!(
        called("netnice at-rate @4mbit x"),
        words("netnice at-rate @4mbit x")
    );
}

#[test]
fn without_a_rate_the_command_keeps_all_its_words() {
    for line in [
        "git log @~3",
        "curl",
        "@4mbit",
        "curl @4mbit x",
        "at-rate curl x @4mbit",
        "/usr/bin/netnice at-rate curl x @4mbit",
    ] {
        match parse_at(words(line)) {
            Err(ShellCommand::Exec(same)) => assert_eq!(same, words(line)),
            other => panic!("{line}: {other:?}"),
        }
    }
}

#[test]
fn a_prompt_shows_limits_as_a_user_types_them() {
    let limits = |both, up, down| {
        format_limits(&ContractDoc {
            both,
            up,
            down,
            ..ContractDoc::default()
        })
    };
    assert_eq!(limits(None, None, None), "");
    assert_eq!(limits(Some(1_048_576), None, None), " @128KiB/s");
    assert_eq!(limits(Some(16_777_216), None, None), " @2MiB/s");
    assert_eq!(
        limits(None, Some(4_000_000), Some(64_000)),
        " @up:4mbit @down:64kbit"
    );
}

#[test]
fn the_initialization_text_contains_the_path_of_this_program() {
    for shell in [Shell::Bash, Shell::Zsh] {
        let text = init(shell).expect("a path");
        let here = std::env::current_exe().expect("a path");
        assert!(text.contains(&format!("__netnice='{}'\n", here.display())));
        assert!(!text.contains("@NETNICE@"));
    }
}
