use std::os::unix::net::UnixStream;
use std::path::Path;

use super::*;
use crate::config::Config;

/// The message for a session whose helper ends with this exit status.
fn message(status: u8) -> Option<String> {
    let config = Config::parse(Path::new("inetd.conf"), "ftp cat\n", None).expect("good");
    let gate = StartGateCommand {
        helper: "/bin/sh".into(),
        args: vec!["-c".into(), format!("exit {status}").into()],
    };
    let (socket, _client) = UnixStream::pair().expect("a pair");
    let started = Session::start(0, &config.services[0], &gate, socket.into(), None);
    let (mut session, _member) = started.expect("a session");
    session.ended()
}

#[test]
fn a_program_that_cannot_be_started_is_reported() {
    assert_eq!(message(0), None);
    assert_eq!(message(1), None);
    let text = "a session ended with status 126: its program cannot be executed, or its rights and \
                limits cannot be taken";
    assert_eq!(message(126).as_deref(), Some(text));
    let text = "cannot execute the program of a session";
    assert_eq!(message(127).as_deref(), Some(text));
}
