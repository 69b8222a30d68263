//! Tests of the command as a process: its requests, its output and its exit status. A thread of the
//! test is the daemon: it records the requests and returns given answers.

use std::fs;
use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use netnice_api::frame::{Decoder, LONGEST_REQUEST};
use netnice_api::{
    ClientCall, Done, Request, Response, RuntimeDir, ShowDoc, WatchDoc, decode_client_call,
    encode_response, fds,
};
use procfs_core::{FromRead, process::Stat};

/// A temporary folder that is removed on drop.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("netnice-cli-{}-{name}", std::process::id()));
        fs::create_dir(&path).expect("a folder");
        Folder(path)
    }

    fn dir(&self) -> RuntimeDir {
        RuntimeDir::choose(Some(self.0.clone()), None)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A fake daemon that answers each request with the next of its answers.
struct Daemon {
    folder: Folder,
    calls: Receiver<ClientCall>,
}

impl Daemon {
    fn answering(name: &str, answers: Vec<Response>) -> Daemon {
        let folder = Folder::new(name);
        let listener = UnixListener::bind(folder.dir().socket()).expect("bound");
        let (sender, calls) = channel();
        thread::spawn(move || {
            let mut answers = answers.into_iter();
            // The thread ends with the test: no client connects, or the receiver is gone.
            while let Ok((mut stream, _)) = listener.accept() {
                while let Some(call) = read_request(&stream) {
                    let Some(answer) = answers.next() else { return };
                    let _ = stream.write_all(&encode_response(&answer).expect("fits"));
                    if sender.send(call).is_err() {
                        return;
                    }
                }
            }
        });
        Daemon { folder, calls }
    }

    /// The next request that the daemon received.
    fn next_call(&self) -> ClientCall {
        self.calls
            .recv_timeout(Duration::from_secs(5))
            .expect("a request")
    }

    /// The command `netnice` with this daemon and these arguments.
    fn netnice(&self, words: &[&str]) -> Command {
        netnice(
            Path::new(env!("CARGO_BIN_EXE_netnice")),
            &self.folder,
            words,
        )
    }
}

fn netnice(program: &Path, folder: &Folder, words: &[&str]) -> Command {
    let mut command = Command::new(program);
    command
        .args(words)
        .env(RuntimeDir::VARIABLE, &folder.0)
        .env_remove("NO_COLOR")
        .stdin(Stdio::null());
    command
}

fn read_request(stream: &UnixStream) -> Option<ClientCall> {
    let mut decoder = Decoder::new(LONGEST_REQUEST);
    let mut bytes = [0; 4096];
    loop {
        if let Some(body) = decoder.poll().expect("a frame") {
            return Some(decode_client_call(&body).expect("a request"));
        }
        let got = fds::receive(stream.as_fd(), &mut bytes, 1).ok()?;
        if got.bytes == 0 {
            return None;
        }
        assert!(got.fds.is_empty(), "no descriptor travels with a request");
        decoder.push(&bytes[..got.bytes]);
    }
}

/// When a process was started (proc_pid_stat(5), field 22).
fn started(pid: u32) -> u64 {
    let stat = Stat::from_file(format!("/proc/{pid}/stat"));
    stat.expect("it lives").starttime
}

fn granted() -> Response {
    Response::Done(Done {
        target: Some("pid:7".into()),
        contract: Some("up 4mbit".into()),
        effective: Some("up 4mbit".into()),
        ..Done::default()
    })
}

fn out(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn err(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_request_identifies_a_process_by_pid_and_start_time() {
    let daemon = Daemon::answering("set", vec![granted()]);
    let mut child = Command::new("sleep").arg("60").spawn().expect("sleep");
    let pid = child.id().to_string();
    let output = daemon
        .netnice(&["set", &pid, "--up", "4mbit"])
        .output()
        .expect("ran");
    let ClientCall { process, request } = daemon.next_call();
    let process = process.expect("the process is named");
    assert_eq!(process.pid, child.id());
    assert_eq!(process.started, started(child.id()));
    child.kill().expect("killed");
    child.wait().expect("gone");
    let Request::Set(set) = request else {
        panic!("{request:?}")
    };
    assert_eq!(set.target, format!("pid:{pid}"));
    assert_eq!(set.change.as_deref(), Some("up 4mbit"));
    assert_eq!(out(&output), "pid:7  up 4 Mbit/s (500 kB/s)\n");
    assert_eq!((output.status.code(), err(&output).as_str()), (Some(0), ""));
}

#[test]
fn a_request_about_a_missing_process_is_not_sent() {
    let daemon = Daemon::answering("gone", vec![]);
    let mut child = Command::new("true").spawn().expect("true");
    child.wait().expect("gone");
    let pid = child.id().to_string();
    let output = daemon
        .netnice(&["set", &pid, "--up", "4mbit"])
        .output()
        .expect("ran");
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(
        err(&output),
        format!("netnice: no process has the number {pid}\n")
    );
    assert!(daemon.calls.try_recv().is_err());
}

#[test]
fn the_id_of_a_thread_is_refused_with_the_pid_of_its_process() {
    let daemon = Daemon::answering("thread", vec![]);
    let (sender, thread_id) = channel();
    let (stop, stopped) = channel::<()>();
    let thread = thread::spawn(move || {
        let own = fs::read_link("/proc/thread-self").expect("this thread");
        let id = own
            .file_name()
            .expect("its number")
            .to_string_lossy()
            .into_owned();
        sender.send(id).expect("sent");
        let _ = stopped.recv();
    });
    let id = thread_id.recv().expect("its number");
    let output = daemon
        .netnice(&["set", &id, "--up", "4mbit"])
        .output()
        .expect("ran");
    drop(stop);
    thread.join().expect("ended");
    let own = std::process::id();
    let expected = format!("netnice: {id} is a thread, not a process; its process is {own}\n");
    assert_eq!((err(&output), output.status.code()), (expected, Some(1)));
}

#[test]
fn the_exit_status_and_the_output_follow_from_the_answer() {
    let refusal = "refused: pid:7 asks …\n  would fit   at most 30 Mbit/s";
    let cases = [
        ("done", granted(), 0, "", "pid:7"),
        (
            "shown",
            Response::Shown(ShowDoc::default()),
            0,
            "",
            "no target",
        ),
        (
            "refused",
            Response::not_admitted(refusal),
            3,
            "netnice: refused: pid:7 asks …\n  would fit",
            "",
        ),
        (
            "not permitted",
            Response::not_permitted("not yours"),
            3,
            "netnice: not yours",
            "",
        ),
        (
            "bad usage",
            Response::bad_usage("no such unit"),
            2,
            "netnice: no such unit",
            "",
        ),
        (
            "failed",
            Response::failed("the kernel says no"),
            1,
            "netnice: the kernel says no",
            "",
        ),
    ];
    for (name, answer, status, error, printed) in cases {
        let daemon = Daemon::answering(&format!("ends-{name}").replace(' ', "-"), vec![answer]);
        let output = daemon.netnice(&["show"]).output().expect("ran");
        assert_eq!(output.status.code(), Some(status), "{name}");
        assert!(err(&output).starts_with(error), "{name}: {}", err(&output));
        assert!(
            out(&output).starts_with(printed),
            "{name}: {}",
            out(&output)
        );
    }
}

#[test]
fn json_goes_to_standard_output_for_refusals_too() {
    let answers = vec![
        Response::Shown(ShowDoc::default()),
        Response::not_admitted("too much"),
    ];
    let daemon = Daemon::answering("json", answers);
    let shown = daemon.netnice(&["show", "--json"]).output().expect("ran");
    let document: serde_json::Value = serde_json::from_slice(&shown.stdout).expect("JSON");
    assert_eq!(
        document,
        serde_json::json!({"version": 0, "links": [], "targets": [], "direct": []})
    );
    let refused = daemon.netnice(&["show", "--json"]).output().expect("ran");
    let document: serde_json::Value = serde_json::from_slice(&refused.stdout).expect("JSON");
    assert_eq!(document["refused"]["text"], "too much");
    assert_eq!(refused.status.code(), Some(3));
}

#[test]
fn run_registers_itself_and_becomes_the_command() {
    let daemon = Daemon::answering("run", vec![granted(), granted(), granted(), granted()]);
    let words = ["run", "--up", "4mbit", "--", "sh", "-c", "echo $$; exit 42"];
    let child = daemon
        .netnice(&words)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let child = child.expect("spawned");
    let pid = child.id();
    let ClientCall { process, request } = daemon.next_call();
    let output = child.wait_with_output().expect("ended");
    let Request::Set(set) = request else {
        panic!("{request:?}")
    };
    assert_eq!(set.target, format!("pid:{pid}"));
    assert_eq!(process.map(|process| process.pid), Some(pid));
    assert_eq!(
        out(&output),
        format!("{pid}\n"),
        "the same process, and its output untouched"
    );
    assert_eq!(output.status.code(), Some(42));
    assert_eq!(err(&output), "pid:7  up 4 Mbit/s (500 kB/s)\n");

    let quiet = daemon
        .netnice(&["run", "-q", "--name", "b", "true"])
        .output()
        .expect("ran");
    let request = daemon.next_call().request;
    let Request::Set(set) = request else {
        panic!("{request:?}")
    };
    assert_eq!(
        (set.target.as_str(), set.change, set.pid.is_some()),
        ("name:b", None, true)
    );
    assert_eq!((err(&quiet).as_str(), quiet.status.code()), ("", Some(0)));

    let missing = daemon
        .netnice(&["run", "--up", "4mbit", "/no/such/program"])
        .output();
    let missing = missing.expect("ran");
    assert_eq!(missing.status.code(), Some(127));
    assert!(
        err(&missing).contains("/no/such/program"),
        "{}",
        err(&missing)
    );
    let folder = daemon
        .netnice(&["run", "-q", "--up", "4mbit", "/"])
        .output()
        .expect("ran");
    assert_eq!(folder.status.code(), Some(126));
}

#[test]
fn a_signal_to_netnice_run_reaches_the_command() {
    use std::os::unix::process::ExitStatusExt;
    let daemon = Daemon::answering("signal", vec![granted()]);
    let mut child = daemon
        .netnice(&["run", "-q", "--up", "4mbit", "sleep", "60"])
        .spawn()
        .expect("ran");
    let _ = daemon.next_call();
    let comm = format!("/proc/{}/comm", child.id());
    let until = Instant::now() + Duration::from_secs(5);
    while fs::read_to_string(&comm).expect("alive").trim() != "sleep" {
        assert!(Instant::now() < until, "it never became sleep");
        thread::sleep(Duration::from_millis(5));
    }
    let killed = Command::new("kill")
        .args(["-TERM", &child.id().to_string()])
        .status();
    assert!(killed.expect("kill").success());
    assert_eq!(child.wait().expect("ended").signal(), Some(15));
}

#[test]
fn a_refused_command_is_not_run() {
    let daemon = Daemon::answering("refused-run", vec![Response::not_admitted("no"), granted()]);
    let file = daemon.folder.0.join("touched");
    let path = file.to_string_lossy().into_owned();
    let words = ["run", "--min", "4mbit", "touch", &path];
    let output = daemon.netnice(&words).output().expect("ran");
    assert_eq!(output.status.code(), Some(3));
    let words = ["run", "--up", "4mbit", "--dry-run", "touch", &path];
    let output = daemon.netnice(&words).output().expect("ran");
    assert_eq!(output.status.code(), Some(0));
    assert!(!file.exists());
}

#[test]
fn top_prints_tables_and_ends_when_its_output_is_closed() {
    let answers = std::iter::repeat_n(Response::Watched(WatchDoc::default()), 200).collect();
    let daemon = Daemon::answering("top", answers);
    let output = daemon
        .netnice(&["top", "--targets", "-d", "100ms", "-n", "3"])
        .output()
        .expect("ran");
    assert_eq!(out(&output).matches("no target").count(), 3);
    assert!(!out(&output).contains('\x1b'), "not a terminal");
    let mut child = daemon
        .netnice(&["top", "--targets", "-d", "100ms"])
        .stdout(Stdio::piped())
        .spawn()
        .expect("ran");
    drop(child.stdout.take());
    assert_eq!(child.wait().expect("ended").code(), Some(0));
}

/// The two ends of a pseudoterminal: the test's, and the command's.
fn terminal() -> (fs::File, fs::File) {
    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
    let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a terminal");
    grantpt(&ours).expect("granted");
    unlockpt(&ours).expect("unlocked");
    let name = ptsname(&ours, Vec::new()).expect("its name");
    let name = name.to_str().expect("a path");
    let theirs = fs::File::options()
        .read(true)
        .write(true)
        .open(name)
        .expect("opened");
    (ours.into(), theirs)
}

#[test]
fn a_change_is_confirmed_only_by_a_yes() {
    let cases = [
        ("yes", "y\n", "30s", true),
        ("no", "n\n", "30s", false),
        ("silence", "", "300ms", false),
    ];
    for (name, typed, within, kept) in cases {
        let change = Response::Done(Done {
            confirm: Some(3),
            ..Done::default()
        });
        let answers = vec![change, Response::Done(Done::default())];
        let daemon = Daemon::answering(&format!("confirm-{name}"), answers);
        let (mut ours, theirs) = terminal();
        ours.write_all(typed.as_bytes()).expect("typed");
        let words = ["set", "user:ann", "--up", "4mbit", "--confirm", within];
        let start = Instant::now();
        let output = daemon.netnice(&words).stdin(theirs).output().expect("ran");
        assert_eq!(output.status.code(), Some(0), "{name}: {}", err(&output));
        assert!(start.elapsed() < Duration::from_secs(5), "{name}");
        let printed = out(&output);
        assert!(
            printed.contains(&format!("It is undone in {within} unless")),
            "{name}: {printed}"
        );
        assert_eq!(
            printed.contains("not confirmed"),
            !kept,
            "{name}: {printed}"
        );
        let first = daemon.next_call().request;
        assert!(matches!(first, Request::Set(_)), "{name}");
        let confirmed = daemon.calls.recv_timeout(Duration::from_millis(100)).ok();
        let id = confirmed.map(|call| match call.request {
            Request::Confirm(confirm) => confirm.id,
            other => panic!("{name}: {other:?}"),
        });
        assert_eq!(id, kept.then_some(3), "{name}");
    }
}

#[test]
fn without_a_terminal_the_number_to_confirm_is_printed() {
    let change = Response::Done(Done {
        confirm: Some(3),
        ..Done::default()
    });
    let daemon = Daemon::answering("confirm-later", vec![change]);
    let words = ["set", "user:ann", "--up", "4mbit", "--confirm", "30s"];
    let output = daemon.netnice(&words).output().expect("ran");
    assert_eq!(
        out(&output),
        "undone unless confirmed in time: netnice confirm 3\n"
    );
}

/// A folder with a copy of the command and, beside it, a given program as the daemon.
fn installed(name: &str, netniced: Option<&str>) -> (Folder, PathBuf) {
    let folder = Folder::new(name);
    let program = folder.0.join("netnice");
    // Separate processes write the files. A file that this process holds open for writing is
    // briefly inherited by the processes of other tests, and then cannot be executed ("text file
    // busy").
    let made = Command::new("cp")
        .args([Path::new(env!("CARGO_BIN_EXE_netnice")), &program])
        .status();
    assert!(made.is_ok_and(|status| status.success()), "copied");
    if let Some(script) = netniced {
        let made = Command::new("sh")
            .args(["-c", "printf '%s' \"$1\" >\"$2\" && chmod 755 \"$2\"", "sh"])
            .arg(format!("#!/bin/sh\n{script}\n"))
            .arg(folder.0.join("netniced"))
            .status();
        assert!(made.is_ok_and(|status| status.success()), "written");
    }
    (folder, program)
}

fn is_root() -> bool {
    fs::metadata("/proc/self").is_ok_and(|own| std::os::unix::fs::MetadataExt::uid(&own) == 0)
}

/// Not a test: the daemon's program of the test below, which runs this test binary as it. It serves
/// one answer, and records its pid and session.
#[test]
#[ignore = "the daemon of the_daemon_is_started_if_none_runs"]
fn fake_daemon() {
    let Some(path) = std::env::var_os("NETNICE_TEST_SERVES") else {
        return;
    };
    let dir = RuntimeDir::choose(Some(path.into()), None);
    let listener = UnixListener::bind(dir.socket()).expect("bound");
    let stat = fs::read_to_string("/proc/self/stat").expect("own");
    fs::write(dir.path().join("stat"), stat).expect("written");
    for stream in listener.incoming() {
        let mut stream = stream.expect("a client");
        // A client that only checks whether a daemon serves sends nothing.
        if read_request(&stream).is_some() {
            let answer = Response::Shown(ShowDoc::default());
            stream
                .write_all(&encode_response(&answer).expect("fits"))
                .expect("answered");
            return;
        }
    }
}

#[test]
fn the_daemon_is_started_if_none_runs() {
    if !is_root() {
        eprintln!("not run: only root starts daemons");
        return;
    }
    let own = std::env::current_exe().expect("this test");
    let script = format!(
        "[ \"$1\" = --runtime-dir ] || exit 9\n\
         NETNICE_TEST_SERVES=\"$2\" exec {} --exact fake_daemon --ignored",
        own.display()
    );
    let (folder, program) = installed("starts", Some(&script));
    let output = netnice(&program, &folder, &["show"]).output().expect("ran");
    assert_eq!(err(&output), "");
    assert_eq!(
        (output.status.code(), out(&output).as_str()),
        (Some(0), "no target is limited or guaranteed\n")
    );
    let daemon = Stat::from_file(folder.0.join("stat")).expect("the daemon was there");
    let ours = Stat::from_file("/proc/self/stat").expect("own");
    assert_ne!(daemon.session, ours.session, "a session of its own");
    let left: Vec<_> = fs::read_dir(&folder.0)
        .expect("the folder")
        .flatten()
        .collect();
    assert_eq!(
        left.len(),
        4,
        "netnice, netniced, socket, stat: nothing else is left: {left:?}"
    );
}

#[test]
fn a_daemon_that_cannot_start_is_reported_with_its_reason() {
    if !is_root() {
        eprintln!("not run: only root starts daemons");
        return;
    }
    let cases = [
        (
            "ends",
            Some("echo 'the state file is damaged' >&2; exit 1"),
            "netnice: netniced could not start: the state file is damaged\n",
        ),
        (
            "silent",
            Some("exit 7"),
            "netnice: netniced could not start: it ended with exit status: 7\n",
        ),
        ("none", None, "and there is no"),
    ];
    for (name, script, part) in cases {
        let (folder, program) = installed(&format!("start-{name}"), script);
        let output = netnice(&program, &folder, &["show"]).output().expect("ran");
        assert_eq!(output.status.code(), Some(4), "{name}");
        assert!(err(&output).contains(part), "{name}: {}", err(&output));
    }
}

#[test]
fn the_doctor_examines_the_kernel_without_a_daemon() {
    let report = r#"{"items":[{"name":"kernel","status":"good","detail":"6.18"}]}"#;
    let script = format!("[ \"$*\" = '--probe --json' ] || exit 9\necho '{report}'");
    let (folder, program) = installed("doctor", Some(&script));
    let output = netnice(&program, &folder, &["doctor"])
        .output()
        .expect("ran");
    assert_eq!(output.status.code(), Some(0), "{}", err(&output));
    assert!(
        out(&output).starts_with("good     kernel  6.18\n"),
        "{}",
        out(&output)
    );
    assert!(err(&output).contains("examining the kernel without one"));
    let (folder, program) = installed("doctor-ill", Some("echo 'no eBPF here' >&2; exit 1"));
    let output = netnice(&program, &folder, &["doctor"])
        .output()
        .expect("ran");
    assert_eq!(output.status.code(), Some(1));
    assert!(err(&output).contains("no eBPF here"), "{}", err(&output));
}

#[test]
fn certificates_are_issued_once() {
    let folder = Folder::new("certificates");
    let program = Path::new(env!("CARGO_BIN_EXE_netnice"));
    let to = folder.0.join("laboratory");
    let issue = |hosts: &[&str]| {
        let to = to.to_string_lossy();
        let words = [&["peer", "issue", "--folder", &to], hosts].concat();
        netnice(program, &folder, &words).output().expect("ran")
    };
    let files = || fs::read_dir(&to).map_or(0, Iterator::count);
    let output = issue(&["ann", "bob"]);
    assert_eq!(output.status.code(), Some(0), "{}", err(&output));
    assert_eq!(files(), 6);
    let key = to.join("authority.key").display().to_string();
    assert!(out(&output).contains(&key), "{}", out(&output));
    assert!(out(&output).contains("/etc/netnice/peer/host.key"));
    let again = issue(&["eve", "bob"]);
    assert_eq!(again.status.code(), Some(1), "{}", out(&again));
    let part = "bob.key exists and is not replaced; no certificate was issued";
    assert!(err(&again).contains(part), "{}", err(&again));
    assert_eq!(files(), 6);
    assert_eq!(issue(&["eve"]).status.code(), Some(0));
    assert_eq!(files(), 8);
}

#[test]
fn man_pages_and_completions_are_made() {
    let folder = Folder::new("pages");
    let program = Path::new(env!("CARGO_BIN_EXE_netnice"));
    let man = folder.0.join("man");
    let man_path = man.to_string_lossy().into_owned();
    let output = netnice(program, &folder, &["man", &man_path])
        .output()
        .expect("ran");
    assert_eq!(output.status.code(), Some(0), "{}", err(&output));
    let mut pages: Vec<String> = fs::read_dir(&man)
        .expect("pages")
        .map(|page| {
            page.expect("a page")
                .file_name()
                .to_string_lossy()
                .into_owned()
        })
        .collect();
    pages.sort();
    for page in [
        "netnice.1",
        "netnice-set.1",
        "netnice-run.1",
        "netnice-link.1",
        "netnice-peer-issue.1",
    ] {
        assert!(pages.contains(&page.to_string()), "{page} in {pages:?}");
    }
    let hidden = [
        "netnice-man.1",
        "netnice-completions.1",
        "netnice-start-daemon.1",
    ];
    assert!(
        !pages.iter().any(|page| hidden.contains(&page.as_str())),
        "{pages:?}"
    );
    for shell in ["bash", "zsh", "fish"] {
        let output = netnice(program, &folder, &["completions", shell])
            .output()
            .expect("ran");
        assert!(out(&output).contains("min-down"), "{shell}");
    }
}
