//! Tests programs that people use, each inside a limit: curl and wget from an nginx, a QUIC client
//! from a QUIC server, rsync over SSH in both directions. Each ends without an error and has the
//! whole file, its limit holds over the whole run, and `show` has the bytes that were on the wire.
//! A Go program is in `programs`.
//!
//! The client runs as the child of a shell whose process is the target, so that the counters are
//! still there when the client has ended.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use netnice_lab::experiment::bench::{Rate, at};
use netnice_lab::process::{self, EVENT_TIMEOUT, Proc};
use netnice_lab::testbed::TestBed;
use netnice_lab::traffic::real_programs;
use netnice_lab::world::{Family, Host};

const R8M: Rate = Rate {
    text: "8mbit",
    bits: 8_000_000,
};
/// Bytes of each file: about two seconds in the limit.
const FILE: u64 = 2 << 20;
/// The limit's burst is 5 ms, and a message of TCP or QUIC may be under way when the run is judged.
const TOLERANCE: f64 = 0.03;

/// The direction in which a file goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    Up,
    Down,
    /// Up, with a cell contract that the driver keeps in place of a limit.
    UpByDriver,
}

impl Direction {
    /// The option of `netnice set` that holds the rate.
    fn option(self) -> String {
        match self {
            Direction::Up => format!("--up {}", R8M.text),
            Direction::Down => format!("--down {}", R8M.text),
            Direction::UpByDriver => format!("--cell pcr={},cdvt=1ms", R8M.text),
        }
    }
}

/// Manages the client's link, so that a driver can serve it.
fn manage_link(bed: &TestBed) {
    let device = &bed.world.client().port().device;
    bed.run_ok(&format!("link {device} --rate 100mbit"));
}

fn assert_redirected(bed: &TestBed, target: &str) {
    let explained = bed.run_ok(&format!("explain {target}")).stdout;
    assert!(explained.contains("the driver of"), "{explained}");
}

/// Runs a client's command line inside a limit of 8 Mbit/s in one direction, and judges status,
/// rate and counters. The host at the other end of the limit is judged by what its IP has received.
fn run_limited(bed: &TestBed, direction: Direction, words: &[&str]) {
    let name = words[0];
    let (client, server) = (bed.world.client(), bed.world.server());
    let mut command = client.ns.command("sh");
    let script =
        "echo ready; read go; \"$@\" >&2 </dev/null; echo \"{\\\"status\\\": $?}\"; read end";
    command.args(["-c", script, "sh"]).args(words);
    let mut shell = Proc::start(command).expect("a shell");
    shell.next_line(EVENT_TIMEOUT).expect("the shell waits");
    let target = format!("pid:{}", shell.pid());
    let (key, receiver) = match direction {
        Direction::Up | Direction::UpByDriver => ("up", server),
        Direction::Down => ("down", client),
    };
    bed.run_ok(&format!("set {target} {}", direction.option()));
    if direction == Direction::UpByDriver {
        assert_redirected(bed, &target);
    }
    let before = receiver.ns.delivered().expect("counts");
    shell.write_line("go").expect("the shell reads");
    let said = shell.next_json("status", EVENT_TIMEOUT);
    let said = said.unwrap_or_else(|error| panic!("{name}: {error:#}"));
    assert_eq!(said["status"], 0, "{name}: {}", shell.take_stderr());
    let after = receiver.ns.delivered().expect("counts");
    let wire = (after.wire - before.wire) as f64;
    let seconds = (after.at_ns - before.at_ns) as f64 / 1e9;
    assert!(wire > FILE as f64, "{name}: {wire} bytes on the wire");
    assert_at_most(wire * 8.0 / seconds, name);
    let counted = bed.target(&target)["counters"][key]["sent_bytes"]
        .as_f64()
        .expect("a count");
    assert!(
        (counted - wire).abs() <= wire * TOLERANCE,
        "{name}: {counted} bytes counted, {wire} on the wire"
    );
    shell.write_line("end").expect("the shell reads");
}

/// Panics if a rate in bit/s is above the limit. There is no lower bound, because a client's start
/// takes long on a busy or emulated machine.
fn assert_at_most(rate: f64, what: &str) {
    assert!(
        rate <= R8M.bits as f64 * (1.0 + TOLERANCE),
        "{what}: {:.3} Mbit/s in a limit of {}",
        rate / 1e6,
        R8M.text
    );
}

/// A file of [`FILE`] bytes that no program can compress or guess.
fn write_file(path: &Path) -> Vec<u8> {
    let mut state = 1u64;
    let bytes: Vec<u8> = (0..FILE)
        .map(|_| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 56) as u8
        })
        .collect();
    std::fs::write(path, &bytes).expect("the world's folder takes a file");
    bytes
}

fn assert_same(path: &Path, bytes: &[u8], what: &str) {
    let got = std::fs::read(path).expect("the file has come");
    assert!(
        got == bytes,
        "{what}: {} of {} bytes",
        got.len(),
        bytes.len()
    );
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a plain path")
}

#[test]
fn curl_and_wget_fetch_from_nginx_over_both_families() {
    let bed = TestBed::with_offloads().expect("a test bed");
    let folder = bed.world.folder();
    for family in [Family::V4, Family::V6] {
        let web = at(bed.world.server(), family, 80);
        let nginx = real_programs::nginx(bed.world.server(), web, folder, FILE).expect("nginx");
        let _nginx = nginx.expect("cargo xtask setup installs nginx");
        let bytes = write_file(&folder.join("www/file"));
        let url = format!("http://{web}/file");
        let out = folder.join("fetched");
        let out_text = text(&out);
        let clients: [&[&str]; 2] = [
            &["curl", "-gsS", "--fail", "-o", out_text, &url],
            &["wget", "-q", "--tries=1", "-O", out_text, &url],
        ];
        for words in clients {
            run_limited(&bed, Direction::Down, words);
            assert_same(&out, &bytes, words[0]);
        }
    }
}

#[test]
fn a_quic_client_and_a_quic_server_are_limited() {
    let bed = TestBed::with_offloads().expect("a test bed");
    let lab = process::binary("netnice-lab").expect("the lab is built");
    let certificate = bed.world.folder().join("certificate");
    let serve = |host: &Host, at: &str| {
        let mut command = host.ns.command(&lab);
        command.args(["traffic", "quic-serve", "--listen", at]);
        command.arg("--certificate").arg(&certificate);
        let mut server = Proc::start(command).expect("a server");
        server
            .next_json("ready", EVENT_TIMEOUT)
            .expect("it listens");
        server
    };
    let bytes = FILE.to_string();
    let fetch = |from: &str| {
        let words = [text(&lab), "traffic", "quic-fetch", "--connect", from];
        let more = ["--certificate", text(&certificate), "--bytes", &bytes];
        words
            .into_iter()
            .chain(more)
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    for family in [Family::V4, Family::V6] {
        let from = at(bed.world.server(), family, 4433).to_string();
        let _server = serve(bed.world.server(), &from);
        let words = fetch(&from);
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        run_limited(&bed, Direction::Down, &words);
    }
    // The server inside the limit.
    manage_link(&bed);
    for (direction, port) in [(Direction::Up, 4434), (Direction::UpByDriver, 4435)] {
        serve_limited(&bed, direction, port, &serve, &fetch);
    }
}

/// A QUIC server on the client's host inside a limit, from which the other host fetches the file.
fn serve_limited(
    bed: &TestBed,
    direction: Direction,
    port: u16,
    serve: &dyn Fn(&Host, &str) -> Proc,
    fetch: &dyn Fn(&str) -> Vec<String>,
) {
    let from = at(bed.world.client(), Family::V6, port).to_string();
    let server = serve(bed.world.client(), &from);
    let target = format!("pid:{}", server.pid());
    bed.run_ok(&format!("set {target} {}", direction.option()));
    if direction == Direction::UpByDriver {
        assert_redirected(bed, &target);
    }
    let receiver = &bed.world.server().ns;
    let before = receiver.delivered().expect("counts");
    let words = fetch(&from);
    let mut command = receiver.command(&words[0]);
    command.args(&words[1..]);
    process::run(&mut command).expect("the client has the file");
    let after = receiver.delivered().expect("counts");
    let bits = (after.wire - before.wire) as f64 * 8e9;
    assert_at_most(bits / (after.at_ns - before.at_ns) as f64, "a QUIC server");
}

/// An SSH server of root that accepts the key of [`SshServer::key`], with a home folder of its own.
struct SshServer {
    _server: Proc,
    key: PathBuf,
}

impl SshServer {
    fn start(host: &Host, at: SocketAddr, folder: &Path) -> SshServer {
        let home = folder.join("home");
        std::fs::create_dir_all(home.join(".ssh")).expect("a folder");
        let make_key = |name: &str| {
            let file = folder.join(name);
            let mut command = Command::new("dropbearkey");
            command.args(["-t", "ed25519", "-f"]).arg(&file);
            let said = process::run(&mut command).expect("dropbearkey makes a key");
            let public = said.lines().find(|line| line.starts_with("ssh-ed25519 "));
            (file, public.expect("the public key").to_owned())
        };
        let ((host_key, _), (key, public)) = (make_key("host-key"), make_key("user-key"));
        let keys = home.join(".ssh/authorized_keys");
        std::fs::write(&keys, public + "\n").expect("a file");
        // The server reads the keys in the home folder of root, where the folder of this test is
        // mounted for it alone. The mount must not propagate to other namespaces. In a chroot the
        // root is no mount point, so the first command may fail.
        let script = "mount --make-rslave / 2>/dev/null; chmod 700 \"$0\" \"$0/.ssh\" && \
            mount --bind \"$0\" \"$HOME\" && exec \"$@\"";
        let root = "/root";
        let mut command = host.ns.command("unshare");
        command.args(["--mount", "--propagation", "unchanged", "sh", "-c", script]);
        command.arg(&home).env("HOME", root);
        command.args(["dropbear", "-F", "-E", "-s", "-e", "-r"]);
        command.arg(&host_key).arg("-p").arg(at.to_string());
        command.arg("-P").arg(folder.join("dropbear.pid"));
        let mut server = Proc::start(command).expect("dropbear");
        let until = std::time::Instant::now() + EVENT_TIMEOUT;
        while host
            .ns
            .enter(|| Ok(std::net::TcpStream::connect(at)?))
            .is_err()
        {
            assert!(
                server.is_running() && std::time::Instant::now() < until,
                "dropbear does not listen at {at}: {}",
                server.take_stderr()
            );
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        SshServer {
            _server: server,
            key,
        }
    }
}

#[test]
fn rsync_over_ssh_copies_in_both_directions() {
    let bed = TestBed::with_offloads().expect("a test bed");
    let folder = bed.world.folder();
    let to = at(bed.world.server(), Family::V4, 2222);
    let server = SshServer::start(bed.world.server(), to, folder);
    let bytes = write_file(&folder.join("file"));
    let ssh = format!("dbclient -y -y -i {} -p {}", text(&server.key), to.port());
    manage_link(&bed);
    let runs = [
        (Direction::Up, "pushed"),
        (Direction::Down, "pulled"),
        (Direction::UpByDriver, "scheduled"),
    ];
    for (direction, copy) in runs {
        let (here, copy) = (folder.join("file"), folder.join(copy));
        let far = |path: &Path| format!("root@{}:{}", to.ip(), text(path));
        let (from, into) = match direction {
            Direction::Up | Direction::UpByDriver => (text(&here).to_owned(), far(&copy)),
            Direction::Down => (far(&here), text(&copy).to_owned()),
        };
        run_limited(&bed, direction, &["rsync", "-e", &ssh, &from, &into]);
        assert_same(&copy, &bytes, "rsync");
    }
}
