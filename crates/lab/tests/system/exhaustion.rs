//! Tests a machine that lacks disk space, lockable memory, or memory. A change that cannot be made
//! must be refused with an error that names what is missing. Limits in force must stay.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use netnice_lab::experiment::bench::{R4M, at};
use netnice_lab::process;
use netnice_lab::testbed::{TestBed, becomes_true};
use netnice_lab::traffic::{self, Direct, Tcp};
use netnice_lab::world::Family;

/// Fills the file system of a folder to its last byte.
fn fill(folder: &Path) {
    let mut file = File::create(folder.join("filler")).expect("room for a name");
    for size in [4096, 1] {
        while file.write_all(&vec![7; size]).is_ok() {}
    }
}

#[test]
fn on_a_full_disk_a_change_is_refused_and_limits_stay() {
    let mut bed = TestBed::new().expect("a test bed");
    let runtime = bed.netnice.runtime().to_owned();
    bed.netnice.stop_daemon();
    // The world unmounts everything below its folder.
    let mut mount = Command::new("mount");
    mount.args(["-t", "tmpfs", "-o", "size=256k,mode=755", "none"]);
    process::run(mount.arg(&runtime)).expect("a small file system");
    bed.netnice.start_daemon().expect("it starts there");
    let to = bed.sink(5001).expect("a sink");
    let source = Tcp::connect(to, 2).source();
    let program = traffic::start_now(bed.world.client(), &source).expect("a program");
    let (held, other) = (program.pid(), bed.sleeper());
    bed.run_ok(&format!("set pid:{held} --up 4mbit"));
    let before = bed.netnice.show_without_counters().expect("a show");

    fill(&runtime);
    for line in [
        format!("set pid:{} --up 1mbit", other.pid()),
        format!("set pid:{held} --up 2mbit"),
        "link eth0 --rate 50mbit".to_owned(),
    ] {
        let said = bed.run_with_status(&line, 1).stderr;
        assert!(said.contains("No space left on device"), "{line}: {said}");
        assert!(said.contains(&*runtime.to_string_lossy()), "{line}: {said}");
        assert_eq!(bed.netnice.show_without_counters().expect("a show"), before);
    }
    bed.await_limited(|| bed.sent_rate(0.3, 1.0).expect("a rate"), R4M, "then");
    bed.netnice.kill_daemon();
    bed.netnice
        .start_daemon()
        .expect("it starts on a full disk");
    assert_eq!(bed.netnice.show_without_counters().expect("a show"), before);
    bed.await_limited(
        || bed.sent_rate(0.3, 1.0).expect("a rate"),
        R4M,
        "after a restart",
    );

    std::fs::remove_file(runtime.join("filler")).expect("it is there");
    bed.run_ok(&format!("set pid:{} --up 1mbit", other.pid()));
    bed.netnice.kill_daemon();
    bed.netnice.start_daemon().expect("it starts again");
    let number = |pid| !bed.target(&format!("pid:{pid}")).is_null();
    assert!(number(held) && number(other.pid()), "both are held");
}

/// Starts a source of a direct flow on the client.
fn flow(bed: &TestBed, port: u16) -> anyhow::Result<traffic::Running> {
    let (client, server) = (bed.world.client(), bed.world.server());
    let source = Direct::source(at(client, Family::V4, port), at(server, Family::V4, 9));
    let source = source.contract("up 10mbit").by(bed.netnice.runtime());
    traffic::start_waiting(client, &source)
}

#[test]
fn without_lockable_memory_limits_hold_and_flows_open() {
    const NO_MEMORY: [&str; 3] = ["prlimit", "--memlock=0:0", "--"];
    const NOT_LIFTED: [&str; 3] = ["setpriv", "--bounding-set", "-sys_resource"];
    const NOT_LOCKED: [&str; 3] = ["setpriv", "--bounding-set", "-sys_resource,-ipc_lock"];
    let mut bed = TestBed::new().expect("a test bed");
    let to = bed.sink(5001).expect("a sink");
    let source = Tcp::connect(to, 2).source();
    let program = traffic::start_now(bed.world.client(), &source).expect("a program");
    for (k, rights) in [&[][..], &NOT_LIFTED, &NOT_LOCKED].iter().enumerate() {
        bed.netnice.stop_daemon();
        let words = [&NO_MEMORY[..], rights].concat();
        bed.netnice.start_daemon_through(&words).expect("it starts");
        bed.run_ok(&format!("set pid:{} --up 4mbit", program.pid()));
        bed.run_ok("link eth0 --rate 100mbit");
        let sent = || bed.sent_rate(0.3, 1.0).expect("a rate");
        bed.await_limited(sent, R4M, &format!("{words:?}"));
        let flow = flow(&bed, 5100 + k as u16).unwrap_or_else(|why| panic!("{words:?}: {why:#}"));
        let shown = bed.netnice.show().expect("a show");
        assert_eq!(shown["direct"][0]["pid"], flow.pid(), "{words:?}");
        drop(flow);
        bed.run_ok("clear --all");
    }
}

/// A cgroup with a memory limit, of either cgroup version.
struct MemoryGroup {
    folder: PathBuf,
    limit: PathBuf,
    usage: PathBuf,
    /// The limit's text for no limit.
    all: &'static str,
}

impl MemoryGroup {
    /// A new, empty group without a limit; `None` if the machine has no memory controller or
    /// refuses the group.
    fn new() -> Option<MemoryGroup> {
        let name = format!("nn-{}-memory", std::process::id());
        let second = [
            Path::new("/sys/fs/cgroup"),
            Path::new("/sys/fs/cgroup/unified"),
        ];
        let second = second.into_iter().find(|root| {
            let there = fs::read_to_string(root.join("cgroup.controllers"));
            there.is_ok_and(|there| there.split(' ').any(|one| one.trim() == "memory"))
        });
        let (root, limit, usage, all) = match second {
            Some(root) => {
                fs::write(root.join("cgroup.subtree_control"), "+memory").ok()?;
                (root, "memory.max", "memory.current", "max")
            }
            None => (
                Path::new("/sys/fs/cgroup/memory"),
                "memory.limit_in_bytes",
                "memory.usage_in_bytes",
                "-1",
            ),
        };
        let folder = root.join(name);
        fs::create_dir(&folder).ok()?;
        let (limit, usage) = (folder.join(limit), folder.join(usage));
        let exists = limit.exists();
        exists.then_some(MemoryGroup {
            folder,
            limit,
            usage,
            all,
        })
    }

    fn add_process(&self, pid: u32) {
        fs::write(self.folder.join("cgroup.procs"), pid.to_string()).expect("it is taken in");
    }

    /// Limits the group to so many bytes more than it uses now.
    fn limit_to_spare(&self, spare: u64) {
        // The first cgroup version refuses a limit below the usage, which may grow meanwhile.
        let is_set = becomes_true(|| {
            let used = fs::read_to_string(&self.usage).expect("a usage");
            let used: u64 = used.trim().parse().expect("a number");
            fs::write(&self.limit, (used + spare).max(4096).to_string()).is_ok()
        });
        assert!(is_set, "no limit could be set");
    }

    fn remove_limit(&self) {
        fs::write(&self.limit, self.all).expect("no limit");
    }
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        let processes = fs::read_to_string(self.folder.join("cgroup.procs"));
        for pid in processes.unwrap_or_default().lines() {
            if let Some(root) = self.folder.parent() {
                let _ = fs::write(root.join("cgroup.procs"), pid);
            }
        }
        let _ = fs::remove_dir(&self.folder);
    }
}

#[test]
fn without_free_memory_a_change_is_made_or_refused_and_limits_stay() {
    let mut bed = TestBed::new().expect("a test bed");
    let Some(group) = MemoryGroup::new() else {
        netnice_lab::testbed::skip("this machine has no memory controller");
        return;
    };
    let to = bed.sink(5001).expect("a sink");
    let source = Tcp::connect(to, 2).source();
    let program = traffic::start_now(bed.world.client(), &source).expect("a program");
    let held = format!("pid:{}", program.pid());
    bed.run_ok(&format!("set {held} --up 4mbit"));
    let others: Vec<_> = (0..8).map(|_| bed.sleeper()).collect();
    let set = |k: usize| format!("set pid:{} --up 1mbit", others[k].pid());
    for (k, spare) in [0_u64, 64 << 10, 512 << 10, 2 << 20]
        .into_iter()
        .enumerate()
    {
        let pid = bed.netnice.pid().expect("a daemon");
        group.add_process(pid);
        // Memory that the daemon already has is charged to its earlier cgroup; new memory is
        // charged here.
        group.limit_to_spare(spare);
        let line = set(k);
        let words: Vec<&str> = line.split(' ').collect();
        let answer = bed.netnice.run(&words).expect("an answer");
        println!("{spare} bytes to spare: {answer:?}");
        group.remove_limit();
        // A process that the kernel kills for want of memory closes its connections before it ends.
        let killed =
            answer.stderr.contains("closed the connection") || !bed.netnice.daemon_is_running();
        if killed {
            bed.netnice.kill_daemon();
            bed.netnice.start_daemon().expect("it starts again");
        } else {
            let named = ["memory", "Memory", "ENOMEM"];
            let named = named.iter().any(|word| answer.stderr.contains(word));
            assert!(answer.status == 0 || named, "{spare}: {answer:?}");
        }
        assert!(
            !bed.target(&held).is_null(),
            "{spare}: root's limit is shown"
        );
        bed.run_ok(&set(k));
    }
    bed.await_limited(
        || bed.sent_rate(0.3, 1.0).expect("a rate"),
        R4M,
        "after all",
    );
    let all = others.iter().map(|other| format!("pid:{}", other.pid()));
    let all: Vec<String> = all.take(4).collect();
    assert!(becomes_true(|| all
        .iter()
        .all(|one| !bed.target(one).is_null())));
}
