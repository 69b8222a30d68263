//! Tests of libnetnice from C programs, with a daemon: the values that a call sets and returns, its
//! targets, and every errno.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use netnice_lab::experiment::bench::Rate;
use netnice_lab::process::{self, EVENT_TIMEOUT, Proc};
use netnice_lab::sys;
use netnice_lab::testbed::{TestBed, becomes_true};
use netnice_lab::traffic::{self, Tcp};

use crate::c_compiler::{Link, compile, crate_file};
use crate::users::{CAROL, command_as, process_of};

/// A test bed, the library installed in its folder, and the test program linked with it.
struct LibraryBed {
    bed: TestBed,
    calls: PathBuf,
}

impl LibraryBed {
    fn new() -> LibraryBed {
        let bed = TestBed::new().expect("a test bed");
        let root = bed.world.folder().join("usr");
        crate::c_compiler::install(&root);
        let calls = root.join("calls");
        compile(&root, "tests/calls.c", &calls, Link::Static);
        LibraryBed { bed, calls }
    }

    /// The output of the test program for these calls by root.
    fn run(&self, words: &str) -> String {
        self.run_command(self.bed.world.client().ns.command(&self.calls), words)
    }

    /// The output of the test program for these calls by CAROL.
    fn run_as_user(&self, words: &str) -> String {
        let mut command = command_as(self.bed.world.client(), CAROL);
        command.arg(&self.calls);
        self.run_command(command, words)
    }

    fn run_command(&self, mut command: Command, words: &str) -> String {
        command.env("NETNICE_RUNTIME_DIR", self.bed.netnice.runtime());
        process::run(command.args(words.split(' '))).expect("it runs")
    }
}

#[test]
fn the_papers_call_limits_a_running_program() {
    let library_bed = LibraryBed::new();
    let to = library_bed.bed.sink(5001).expect("a sink");
    let flows = Tcp::connect(to, 2).source();
    let sender = traffic::start_now(library_bed.bed.world.client(), &flows).expect("a program");
    let pid = sender.pid();
    // setpriority(PRIO_NET, 1234, 128 * 1024), for an existing process.
    assert_eq!(
        library_bed.run(&format!(
            "get 0 {pid} set 0 {pid} {} get 0 {pid}",
            128 * 1024
        )),
        "0 ok\n0 ok\n131072 ok\n"
    );
    let limit = Rate {
        text: "128Kbyte/s",
        bits: 128 * 1024 * 8,
    };
    let rate = library_bed.bed.sent_rate(0.7, 1.5).expect("a rate");
    library_bed.bed.assert_limited(rate, limit, "128 * 1024");
    assert_eq!(
        library_bed.run(&format!("set 0 {pid} 0 get 0 {pid}")),
        "0 ok\n0 ok\n"
    );
    library_bed.bed.await_unlimited((0.1, 0.5), limit, "0");
}

#[test]
fn who_0_is_the_caller_its_group_or_its_user() {
    let library_bed = LibraryBed::new();
    // A value of the caller's process does not change its group's value. A lower value of the group
    // applies to the process too.
    assert_eq!(
        library_bed.run("get 0 0 set 0 0 65536 get 0 0 get 1 0 set 1 0 32768 get 0 0 get 1 0"),
        "0 ok\n0 ok\n65536 ok\n65536 ok\n0 ok\n32768 ok\n32768 ok\n"
    );
    assert_eq!(
        library_bed.run("set 2 0 262144 get 2 0 set 2 0 0 get 2 0"),
        "0 ok\n262144 ok\n0 ok\n0 ok\n"
    );
}

/// A user whose processes only this test starts.
const LONE_USER: u32 = 61_240;

#[test]
fn a_group_and_a_user_share_one_limit() {
    let library_bed = LibraryBed::new();
    let mut command = library_bed.bed.world.client().ns.command("sh");
    command.args(["-c", "sleep 600 & echo $!; wait"]);
    let mut group = Proc::start(command).expect("a group");
    let child = group.next_line(EVENT_TIMEOUT).expect("it runs");
    let leader = group.pid();
    assert_eq!(
        library_bed.run(&format!(
            "get 1 {leader} set 1 {leader} 65536 get 1 {leader}"
        )),
        "0 ok\n0 ok\n65536 ok\n"
    );
    assert_eq!(
        library_bed.run(&format!("get 0 {leader} get 0 {child}")),
        "65536 ok\n65536 ok\n"
    );
    let name = format!("name:pgrp-{leader}");
    assert_eq!(
        library_bed.bed.target(&name)["effective"]["both"],
        65536 * 8
    );
    assert_eq!(
        library_bed.run(&format!("set 1 {leader} 131072 get 0 {child}")),
        "0 ok\n131072 ok\n"
    );
    assert_eq!(
        library_bed.run(&format!("set 1 {leader} 0 get 1 {leader} set 1 {leader} 0")),
        "0 ok\n0 ok\n0 ok\n"
    );
    assert!(library_bed.bed.target(&name).is_null());
    // A user with a process; a user without a process gives ESRCH.
    assert_eq!(library_bed.run(&format!("get 2 {LONE_USER}")), "-1 ESRCH\n");
    let _process = process_of(&library_bed.bed, LONE_USER);
    assert_eq!(
        library_bed.run(&format!(
            "get 2 {LONE_USER} set 2 {LONE_USER} 65536 get 2 {LONE_USER}"
        )),
        "0 ok\n0 ok\n65536 ok\n"
    );
    assert_eq!(
        library_bed.bed.target(&format!("user:{LONE_USER}"))["effective"]["both"],
        65536 * 8
    );
}

#[test]
fn errors_are_those_of_setpriority() {
    let library_bed = LibraryBed::new();
    let sleeper = library_bed.bed.sleeper();
    let pid = sleeper.pid();
    // Invalid arguments.
    assert_eq!(
        library_bed
            .run("get 3 0 get -1 0 set 3 0 1000 set 0 0 -1 set 0 0 124 set 0 0 125000000001"),
        "-1 EINVAL\n".repeat(6)
    );
    // No such target: a process that ended (waited for or not), invalid numbers, no such group.
    let mut ended = library_bed.bed.sleeper();
    ended.kill();
    let gone = ended.pid();
    assert_eq!(
        library_bed.run(&format!(
            "get 0 {gone} set 0 {gone} 65536 get 0 4194305 set 0 4294967295 65536 get 1 {gone} set 1 {gone} 65536"
        )),
        "-1 ESRCH\n".repeat(6)
    );
    let mut zombie = Command::new("true").spawn().expect("it runs");
    let dead = zombie.id();
    assert!(
        becomes_true(|| sys::state(dead) == Some('Z')),
        "{dead} lives"
    );
    assert_eq!(
        library_bed.run(&format!("get 0 {dead} set 0 {dead} 65536")),
        "-1 ESRCH\n".repeat(2)
    );
    zombie.wait().expect("it ended");
    // A thread's number means its process.
    let daemon = library_bed.bed.netnice.pid().expect("it runs");
    let threads = fs::read_dir(format!("/proc/{daemon}/task")).expect("it has threads");
    let threads: Vec<_> = threads.map(|thread| thread.expect("an entry")).collect();
    assert!(!threads.is_empty(), "{daemon} has no thread");
    for thread in threads {
        let name = thread.file_name();
        let thread = name.to_str().expect("a number");
        assert_eq!(library_bed.run(&format!("get 0 {thread}")), "0 ok\n");
    }
    // Permission: a process of another user, a user as a whole; and a user cannot clear root's
    // limit.
    library_bed.run(&format!("set 0 {pid} 65536"));
    assert_eq!(
        library_bed.run_as_user(&format!(
            "set 0 {pid} 32768 get 0 {pid} set 2 0 65536 set 1 {pid} 1000"
        )),
        "-1 EPERM\n65536 ok\n-1 EPERM\n-1 EPERM\n"
    );
    assert_eq!(
        library_bed.run_as_user("set 0 0 65536 get 0 0 set 0 0 0 get 0 0"),
        "0 ok\n65536 ok\n0 ok\n0 ok\n"
    );
    // No daemon; bad arguments are reported all the same.
    let mut alone = Command::new(&library_bed.calls);
    alone.env("NETNICE_RUNTIME_DIR", "/run/nobody");
    alone.args("get 0 0 set 0 0 65536 set 2 0 0 set 0 0 -1".split(' '));
    assert_eq!(
        process::run(&mut alone).expect("it runs"),
        "-1 ECONNREFUSED\n-1 ECONNREFUSED\n-1 ECONNREFUSED\n-1 EINVAL\n"
    );
}

#[test]
fn a_foreign_program_builds_with_the_installed_library_and_header() {
    let library_bed = LibraryBed::new();
    let root = library_bed.bed.world.folder().join("usr");
    let shared = root.join("shared");
    compile(&root, "tests/calls.c", &shared, Link::Shared);
    let command = library_bed.bed.world.client().ns.command(&shared);
    assert_eq!(
        library_bed.run_command(command, "set 0 0 65536 get 0 0"),
        "0 ok\n65536 ok\n"
    );
    let mut cxx = Command::new("c++");
    cxx.args(["-std=c++11", "-Wall", "-Wextra", "-Werror", "-pedantic"]);
    cxx.args(["-fsyntax-only", "-x", "c++"]);
    cxx.arg("-I").arg(root.join("include"));
    process::run(cxx.arg(root.join("include/netnice_channel.h"))).expect("C++ reads both");
    let mut tool = Command::new("pkg-config");
    tool.env("PKG_CONFIG_PATH", root.join("lib/pkgconfig"));
    let said = process::run(tool.args(["--cflags", "--libs", "netnice"])).expect("found");
    assert!(
        said.contains("-lnetnice") && said.contains("include"),
        "{said}"
    );
    // The example runs a command under a limit.
    let limit = root.join("limit");
    compile(&root, "examples/limit.c", &limit, Link::Shared);
    let mut command = library_bed.bed.world.client().ns.command(&limit);
    command.arg("65536").arg(&library_bed.calls);
    assert_eq!(library_bed.run_command(command, "get 0 0"), "65536 ok\n");
    // The other examples compile; crates/lab/tests/system/direct_programs.rs and between_hosts.rs
    // run them.
    compile(&root, "examples/direct.c", &limit, Link::Static);
    compile(&root, "examples/channel.c", &limit, Link::Static);
    // Every function of the headers has its page.
    let headers = ["include/netnice.h", "include/netnice_channel.h"]
        .map(|header| fs::read_to_string(crate_file(header)).expect("it is there"));
    let names = headers.iter().flat_map(|header| header.lines());
    let names = names.filter_map(|line| {
        let (before, _) = line.split_once('(')?;
        let declares = before.starts_with(|first: char| first.is_ascii_lowercase());
        let name = before.rsplit([' ', '*']).next()?;
        (declares && name.starts_with("netnice_")).then_some(name)
    });
    let names: Vec<&str> = names.collect();
    assert!(names.len() > 25, "{names:?}");
    for name in names {
        let page = fs::read_to_string(crate_file("man").join(format!("{name}.3")));
        let page = page.unwrap_or_else(|error| panic!("{name}.3: {error}"));
        let page = match page.strip_prefix(".so man3/") {
            Some(other) => fs::read_to_string(crate_file("man").join(other.trim())).expect(other),
            None => page,
        };
        assert!(page.contains(name), "{name} is not on its page");
    }
}
