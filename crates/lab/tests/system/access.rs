//! Tests what a plain user can reach through the daemon. A path to a FIFO or to a file system that
//! never answers must not block the daemon, and errors must not tell which files exist where the
//! user may not look. A runtime folder that others can write is refused, root does not run a driver
//! from another user's folder, and one client of a super-server does not block others.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;
use std::process::Command;

use netnice_lab::process::{self, EVENT_TIMEOUT, Proc};
use netnice_lab::testbed::{TestBed, becomes_true, skip};
use netnice_lab::traffic::{Direct, Program};
use netnice_lab::world::Host;

use crate::users::{ANN, command_as};

/// ANN's client: sends the requests of a test and prints each response.
const CLIENT_SCRIPT: &str = r#"
import json, os, socket, struct, sys
s = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
s.connect(sys.argv[1])
def ask(request):
    body = json.dumps({"version": 1, "request": request}).encode()
    s.sendall(struct.pack('>I', len(body)) + body)
    head = s.recv(4, socket.MSG_WAITALL)
    return s.recv(struct.unpack('>I', head)[0], socket.MSG_WAITALL).decode()
print('connected', flush=True)
"#;

fn start_client(bed: &TestBed, program: &str, args: &[&str]) -> Proc {
    let socket = bed.netnice.runtime().join("netnice.sock");
    let program = format!("{CLIENT_SCRIPT}{program}");
    let mut command = command_as(bed.world.client(), ANN);
    command.args(["/usr/bin/python3", "-c", &program]);
    command.arg(socket).args(args);
    let mut process = Proc::start(command).expect("a client");
    let said = process.next_line(EVENT_TIMEOUT);
    said.unwrap_or_else(|error| panic!("{error:#}: {}", process.take_stderr()));
    process
}

/// Whether the daemon answers root.
fn daemon_answers(bed: &TestBed) -> bool {
    let ping = bed.netnice.command(&["show", "--json"]);
    let mut within = Command::new("timeout");
    within
        .arg("20")
        .arg(ping.get_program())
        .args(ping.get_args());
    within.env("NETNICE_RUNTIME_DIR", bed.netnice.runtime());
    within.output().is_ok_and(|output| output.status.success())
}

/// A program that is exchanged with a FIFO all the time. Its path is long, so that the file often
/// changes between two accesses to it.
const SWAP_SCRIPT: &str = r#"
import ctypes, threading
folder = sys.argv[2]
program, fifo = folder + '/program', folder + '/fifo'
with open(program, 'wb') as file: file.write(b'\x7fELF')
os.chmod(program, 0o755)
os.mkfifo(fifo, 0o755)
os.symlink('./' * 2000, folder + '/way')
os.symlink('way/' * 30, folder + '/long')
if os.fork() == 0:
    rename, parent = ctypes.CDLL(None, use_errno=True).renameat2, os.getppid()
    while os.getppid() == parent:
        for _ in range(1000): rename(-100, program.encode(), -100, fifo.encode(), 2)
for _ in range(300):
    ask({"explain": {"target": "app:" + folder + '/long/program'}})
print('done', flush=True)
"#;

#[test]
fn a_fifo_in_place_of_a_program_does_not_block_the_daemon() {
    let bed = TestBed::new().expect("a test bed");
    let folder = bed.world.folder().join("hers");
    fs::create_dir(&folder).expect("a folder");
    chown(&folder, Some(ANN), Some(ANN)).expect("it is hers");
    let mut asks = start_client(&bed, SWAP_SCRIPT, &[folder.to_str().expect("plain")]);
    let done = asks.next_line(EVENT_TIMEOUT);
    assert!(daemon_answers(&bed), "the daemon hangs");
    assert_eq!(done.expect("all was answered"), "done");
    // Root may limit a program that ANN can replace.
    let path = folder.join("program");
    bed.netnice
        .run(&["set", &format!("app:{}", path.display()), "--up", "4mbit"])
        .expect("netnice can be started");
    assert!(daemon_answers(&bed), "the daemon hangs");
}

/// Sends a `find` request for each path.
const FIND_SCRIPT: &str = r#"
for path in sys.argv[2:]:
    print(ask({"find": {"target": "app:" + path}}).replace(path, 'PATH'), flush=True)
"#;

#[test]
fn errors_do_not_reveal_files_in_folders_that_a_user_cannot_read() {
    let bed = TestBed::new().expect("a test bed");
    let closed = bed.world.folder().join("closed");
    let open = bed.world.folder().join("open");
    for (folder, mode) in [(&closed, 0o700), (&open, 0o755)] {
        fs::create_dir(folder).expect("a folder");
        for (name, text, mode) in [("program", "\x7fELF", 0o755), ("text", "no", 0o644)] {
            fs::write(folder.join(name), text).expect("a file");
            fs::set_permissions(folder.join(name), fs::Permissions::from_mode(mode)).expect("ours");
        }
        fs::set_permissions(folder, fs::Permissions::from_mode(mode)).expect("ours");
    }
    let path = |folder: &Path, name: &str| folder.join(name).display().to_string();
    let paths = [
        path(&open, "program"),
        path(&closed, "none"),
        path(&closed, "program"),
        path(&closed, "text"),
        path(&closed, "program/below"),
        path(&open, "none"),
    ];
    let paths: Vec<&str> = paths.iter().map(String::as_str).collect();
    let mut asks = start_client(&bed, FIND_SCRIPT, &paths);
    let mut answer = || asks.next_line(EVENT_TIMEOUT).expect("an answer");
    assert!(answer().contains("found"));
    let missing = answer();
    assert!(missing.contains("not yours to see"), "{missing}");
    for _ in 2..paths.len() {
        assert_eq!(answer(), missing);
    }
}

/// A file system that never answers: an automount without its daemon, at `sys.argv[1]`.
const HANGING_FILE_SYSTEM_SCRIPT: &str = r#"
import ctypes, os, sys, time
read, write = os.pipe()
os.setpgid(0, 0)
options = 'fd=%d,pgrp=%d,minproto=5,maxproto=5,indirect' % (write, os.getpgrp())
libc = ctypes.CDLL(None, use_errno=True)
failed = libc.mount(b'none', sys.argv[1].encode(), b'autofs', 0, options.encode())
os.set_inheritable(write, False)
os.close(write)
print('mounted' if failed == 0 else os.strerror(ctypes.get_errno()), flush=True)
sys.stdin.readline()
import fcntl
root = os.open(sys.argv[1], os.O_RDONLY)
fcntl.ioctl(root, 0x9362, 0)  # AUTOFS_IOC_CATATONIC: who waits is sent away
os.close(root)
libc.umount2(sys.argv[1].encode(), 2)
os.close(read)
print('gone', flush=True)
"#;

#[test]
fn a_hanging_file_system_blocks_only_the_requests_that_name_it() {
    let bed = TestBed::new().expect("a test bed");
    let folder = bed.world.folder().join("silent");
    fs::create_dir(&folder).expect("a folder");
    let mut command = process::own_group("/usr/bin/python3");
    command
        .args(["-c", HANGING_FILE_SYSTEM_SCRIPT])
        .arg(&folder);
    let mut silent = Proc::start(command).expect("python");
    let said = silent.next_line(EVENT_TIMEOUT).expect("it says");
    if said != "mounted" {
        return skip(format!("autofs cannot be mounted: {said}"));
    }
    let path = folder.join("any/program").display().to_string();
    let paths = [path.as_str(); 8];
    let mut asks = start_client(&bed, FIND_SCRIPT, &paths);
    let first = asks.next_line(EVENT_TIMEOUT);
    let alive = daemon_answers(&bed);
    let rest: Vec<_> = (1..paths.len())
        .map(|_| asks.next_line(EVENT_TIMEOUT))
        .collect();
    let still = daemon_answers(&bed);
    silent.write_line("end").expect("it ends");
    silent.next_line(EVENT_TIMEOUT).expect("it is unmounted");
    assert!(alive && still, "the daemon hangs");
    let first = first.expect("an answer");
    assert!(first.contains("did not answer"), "{first}");
    let rest = rest.into_iter().map(|answer| answer.expect("an answer"));
    let last = rest.last().expect("eight");
    assert!(
        last.contains("earlier look-ups of yours still wait"),
        "{last}"
    );
}

/// Runs `netniced` in a runtime folder for at most 5 s; returns its exit status and messages.
fn start_daemon_in(bed: &TestBed, folder: &Path) -> (Option<i32>, String) {
    let mut command = bed.world.client().ns.command("timeout");
    command
        .arg("5")
        .arg(process::binary("netniced").expect("it is built"));
    command.arg("--runtime-dir").arg(folder);
    command
        .arg("--policy")
        .arg(bed.world.folder().join("none.toml"));
    let output = command.output().expect("it can be started");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    (output.status.code(), said)
}

#[test]
fn a_runtime_folder_that_others_can_write_is_refused() {
    let bed = TestBed::new().expect("a test bed");
    let around = bed.world.folder().join("around");
    let folder = around.join("runtime");
    fs::create_dir_all(&folder).expect("a folder");
    let mode = |path: &Path, mode: u32| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("ours");
    };
    let refused = |what: &str| {
        let (status, said) = start_daemon_in(&bed, &folder);
        assert_eq!(status, Some(1), "{said}");
        assert!(
            said.contains("users other than root can change the runtime folder")
                && said.contains(what),
            "{said}"
        );
        assert!(!folder.join("netnice.sock").exists());
    };
    chown(&folder, Some(ANN), None).expect("it is given away");
    refused(&format!("belongs to user {ANN}"));
    chown(&folder, Some(0), None).expect("it is taken back");
    mode(&folder, 0o777);
    refused("can be written by others");
    mode(&folder, 0o755);
    mode(&around, 0o777);
    refused("can be written by others");
    mode(&around, 0o755);
    // `timeout` ends a daemon that serves, with status 124.
    let (status, said) = start_daemon_in(&bed, &folder);
    assert_eq!(status, Some(124), "{said}");
}

/// Root does not run a driver from a folder that another user owns.
#[test]
fn root_does_not_run_a_driver_from_another_users_folder() {
    let bed = TestBed::new().expect("a test bed");
    let folder = bed.world.folder().join("bin");
    fs::create_dir(&folder).expect("a folder");
    let marker = bed.world.folder().join("ran");
    let driver = folder.join("netnice-driver");
    fs::write(
        &driver,
        format!("#!/bin/sh\nid -u > {}\n", marker.display()),
    )
    .expect("a script");
    fs::set_permissions(&driver, fs::Permissions::from_mode(0o755)).expect("its mode");
    let alone = bed.world.folder().join("alone");
    fs::create_dir(&alone).expect("a folder");
    // A daemon without a driver in its folder searches the folder in the environment.
    let netniced = alone.join("netniced");
    fs::copy(process::binary("netniced").expect("it is built"), &netniced).expect("a copy");
    let runtime = bed.world.folder().join("second");
    let try_it = |owner: u32| {
        chown(&folder, Some(owner), None).expect("it is given");
        let mut command = bed.world.client().ns.command(&netniced);
        command.arg("--runtime-dir").arg(&runtime);
        command
            .arg("--policy")
            .arg(bed.world.folder().join("none.toml"));
        command.env("NETNICE_BIN_DIR", &folder);
        let mut daemon = Proc::start(command).expect("a daemon");
        assert!(
            becomes_true(|| runtime.join("netnice.sock").exists()),
            "it does not serve"
        );
        let mut link = bed.netnice.command(&["link", "eth0", "--rate", "100mbit"]);
        link.env("NETNICE_RUNTIME_DIR", &runtime);
        process::run(&mut link).expect("the link is managed");
        let lab = process::binary("netnice-lab").expect("it is built");
        let mut attach = bed.world.client().ns.command("timeout");
        let flow = Direct::source(bed.client(6001), bed.server(5001));
        attach.arg("10").arg(lab).arg("traffic");
        attach.args(flow.by(&runtime).on("eth0").args());
        let output = attach.output().expect("it can be started");
        let mut clear = bed.netnice.command(&["clear", "--all"]);
        clear.env("NETNICE_RUNTIME_DIR", &runtime);
        process::run(&mut clear).expect("all is cleared");
        daemon.terminate(EVENT_TIMEOUT);
        let said = String::from_utf8_lossy(&output.stderr).into_owned() + &daemon.take_stderr();
        let ran = marker.exists();
        let _ = fs::remove_file(&marker);
        (ran, said)
    };
    let (ran, said) = try_it(ANN);
    assert!(!ran, "{said}");
    let (ran, said) = try_it(0);
    assert!(ran, "root's own is not run: {said}");
}

/// Opens connections of one client and keeps them; prints how many are served.
const GREEDY_CLIENT_SCRIPT: &str = r"
import socket, sys, time
held = []
for _ in range(int(sys.argv[3])):
    s = socket.socket()
    s.settimeout(20)
    try:
        s.connect((sys.argv[1], int(sys.argv[2])))
        if s.recv(1): held.append(s)
    except OSError: pass
print(len(held), flush=True)
time.sleep(600)
";

#[test]
fn one_client_of_a_super_server_does_not_block_other_clients() {
    let bed = TestBed::new().expect("a test bed");
    let file = bed.world.folder().join("inetd.toml");
    let program = bed.world.folder().join("program");
    fs::write(&program, "#!/bin/sh\nprintf x\nexec cat\n").expect("a program");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("its mode");
    let config = format!("sessions = 24\nlines = \"8001 {}\"\n", program.display());
    fs::write(&file, config).expect("a configuration");
    let mut command = bed.netnice.command(&["inetd"]);
    command.arg(&file);
    let mut server = Proc::start(command).expect("it starts");
    let at = bed.client(8001);
    let connect = |host: &Host, count: u32| {
        let mut command = host.ns.command("/usr/bin/python3");
        command.args([
            "-c",
            GREEDY_CLIENT_SCRIPT,
            &at.ip().to_string(),
            "8001",
            &count.to_string(),
        ]);
        let mut process = Proc::start(command).expect("a client");
        let served: u32 = process
            .next_line(EVENT_TIMEOUT)
            .expect("a count")
            .parse()
            .expect("a number");
        (process, served)
    };
    let listens = || {
        let ss = bed.world.client().ns.run("ss", "-Hltn sport = :8001");
        ss.is_ok_and(|said| !said.is_empty())
    };
    assert!(
        becomes_true(listens),
        "it does not listen: {}",
        server.take_stderr()
    );
    let (_greedy, served) = connect(bed.world.server(), 30);
    assert_eq!(served, 16, "{}", server.take_stderr());
    let (_other, served) = connect(bed.world.client(), 4);
    assert_eq!(served, 4, "{}", server.take_stderr());
    let said = server.take_stderr();
    assert!(
        said.contains("16 sessions of one client run, the limit is 16"),
        "{said}"
    );
}
