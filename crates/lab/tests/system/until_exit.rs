//! Tests changes that last until a process ends. (`persistence.rs` and `output.rs` have `--for`,
//! `--confirm` and `--dry-run`.)

use netnice_lab::process::{EVENT_TIMEOUT, Proc};
use netnice_lab::testbed::{TestBed, becomes_true};
use netnice_lab::world::Cgroup;

#[test]
fn a_change_lasts_until_the_named_process_exits_also_over_a_restart() {
    let mut bed = TestBed::new().expect("a test bed");
    let group = Cgroup::create("until").expect("a group");
    let target = format!("cgroup:{}", group.path());
    let (one, other) = (bed.sleeper(), bed.sleeper());
    bed.run_ok(&format!("set {target} --up 8mbit"));
    let line = format!("set {target} --up 4mbit --until-exit={}", one.pid());
    let said = bed.run_ok(&line).stdout;
    let when = format!("when process {} ends", one.pid());
    assert!(said.contains(&when), "{said}");
    bed.run_ok(&format!("clear {target} --until-exit={}", other.pid()));
    assert!(bed.target(&target).is_null());
    drop(other);
    assert!(
        becomes_true(|| bed.effective_up(&target) == 4_000_000),
        "what was cleared is there again"
    );
    let line = format!("set {target} --up 2mbit --until-exit={}", one.pid());
    bed.run_ok(&line);
    let said = bed.run_ok(&format!("explain {target}")).stdout;
    assert!(said.contains(&when), "{said}");
    bed.netnice.stop_daemon();
    bed.netnice.start_daemon().expect("the daemon again");
    assert_eq!(bed.effective_up(&target), 2_000_000);
    drop(one);
    assert!(
        becomes_true(|| bed.effective_up(&target) == 4_000_000),
        "what was there before is there again"
    );
}

#[test]
fn without_a_process_number_a_change_lasts_until_the_calling_shell_exits() {
    let bed = TestBed::new().expect("a test bed");
    let group = Cgroup::create("shell").expect("a group");
    let target = format!("cgroup:{}", group.path());
    let words = ["set", &target, "--up", "4mbit", "--until-exit"];
    let netnice = bed.netnice.command(&words);
    let mut shell = bed.world.client().ns.command("sh");
    // The shell lives on after its command line until it is told to go.
    shell.args(["-c", "\"$0\" \"$@\" && read go"]);
    shell.arg(netnice.get_program()).args(netnice.get_args());
    shell.env("NETNICE_RUNTIME_DIR", bed.netnice.runtime());
    let mut shell = Proc::start(shell).expect("a shell");
    assert!(
        becomes_true(|| bed.effective_up(&target) == 4_000_000),
        "it is set"
    );
    shell.write_line("go").expect("it reads");
    assert!(shell.wait(EVENT_TIMEOUT).expect("it ends").success());
    assert!(becomes_true(|| bed.target(&target).is_null()), "it is gone");
    let gone = bed.run_with_status(&format!("set {target} --up 4mbit --until-exit=4194303"), 2);
    assert!(
        gone.stderr.contains("no process `4194303` is running"),
        "{}",
        gone.stderr
    );
    let read = bed.run_with_status("show --until-exit", 2);
    let said = "--until-exit has no meaning with show";
    assert!(read.stderr.contains(said), "{}", read.stderr);
}
