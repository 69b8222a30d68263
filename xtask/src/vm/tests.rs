use super::*;

#[test]
fn the_arguments_of_vm_are_parsed() {
    for words in [&[][..], &["limits"], &["limits", "clock::"]] {
        assert!(matches!(Job::parse(words), Ok(Job::Tests { filters }) if filters == words));
    }
    assert!(
        matches!(Job::parse(&["--shell", "uname", "-r"]), Ok(Job::Shell { command }) if command == "uname -r")
    );
    for words in [&["--shell"][..], &["--fast"][..], &["a", "--b"][..]] {
        assert!(Job::parse(words).is_err(), "{words:?}");
    }
}

#[test]
fn test_programs_are_read_from_the_list_of_nextest() {
    let list = r#"{"rust-binaries": {"netnice-lab::limits": {"binary-path": "/t/limits-1"}}}"#;
    assert_eq!(
        test_programs(list).expect("JSON"),
        [PathBuf::from("/t/limits-1")]
    );
    assert!(test_programs("{}").is_err());
}

#[test]
fn a_shell_quoted_word_is_one_word() {
    let output = std::process::Command::new("sh")
        .args(["-c", &format!("printf %s {}", shell_quoted("it's $HOME"))])
        .output()
        .expect("sh");
    assert_eq!(output.stdout, b"it's $HOME");
}
