use std::ffi::OsString;

use netnice_api::ContractDoc;

use super::{Shell, ShellCommand, format_limits, init, parse_at};

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
fn without_a_rate_the_command_keeps_all_its_words() {
    for line in ["git log @~3", "curl", "@4mbit", "curl @4mbit x"] {
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
