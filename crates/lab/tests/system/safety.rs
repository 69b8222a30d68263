//! Changes that last until a process ends. (`stays.rs` and `telling.rs` have `--for`, `--confirm`
//! and `--dry-run`.)

use netnice_lab::desk::{Desk, soon};
use netnice_lab::process::{PATIENCE, Proc};
use netnice_lab::world::Cgroup;
use serde_json::Value;

fn up(desk: &Desk, target: &str) -> Value {
    desk.target(target)["effective"]["up"].clone()
}

#[test]
fn a_change_lasts_as_long_as_the_process_that_it_names_also_over_a_restart() {
    let mut desk = Desk::new().expect("a desk");
    let group = Cgroup::create("until").expect("a group");
    let target = format!("cgroup:{}", group.path());
    let (one, other) = (desk.sleeper(), desk.sleeper());
    desk.types(&format!("set {target} --up 8mbit"));
    let line = format!("set {target} --up 4mbit --until-exit={}", one.pid());
    let said = desk.types(&line).stdout;
    let when = format!("when process {} ends", one.pid());
    assert!(said.contains(&when), "{said}");
    desk.types(&format!("clear {target} --until-exit={}", other.pid()));
    assert!(desk.target(&target).is_null());
    drop(other);
    assert!(
        soon(|| up(&desk, &target) == 4_000_000),
        "what was cleared is there again"
    );
    let line = format!("set {target} --up 2mbit --until-exit={}", one.pid());
    desk.types(&line);
    let said = desk.types(&format!("explain {target}")).stdout;
    assert!(said.contains(&when), "{said}");
    desk.netnice.stop_daemon();
    desk.netnice.start_daemon().expect("the daemon again");
    assert_eq!(up(&desk, &target), 2_000_000);
    drop(one);
    assert!(
        soon(|| up(&desk, &target) == 4_000_000),
        "what was there before is there again"
    );
}

#[test]
fn without_a_number_it_is_the_shell_that_runs_netnice() {
    let desk = Desk::new().expect("a desk");
    let group = Cgroup::create("shell").expect("a group");
    let target = format!("cgroup:{}", group.path());
    let words = ["set", &target, "--up", "4mbit", "--until-exit"];
    let netnice = desk.netnice.command(&words);
    let mut shell = desk.world.client().ns.command("sh");
    // The shell lives on after its command line until it is told to go.
    shell.args(["-c", "\"$0\" \"$@\" && read go"]);
    shell.arg(netnice.get_program()).args(netnice.get_args());
    shell.env("NETNICE_RUNTIME_DIR", desk.netnice.runtime());
    let mut shell = Proc::start(shell).expect("a shell");
    assert!(soon(|| up(&desk, &target) == 4_000_000), "it is set");
    shell.tell("go").expect("it reads");
    assert!(shell.wait(PATIENCE).expect("it ends").success());
    assert!(soon(|| desk.target(&target).is_null()), "it is gone");
    let gone = desk.answers(&format!("set {target} --up 4mbit --until-exit=4194303"), 2);
    assert!(
        gone.stderr.contains("--until-exit: `4194303`"),
        "{}",
        gone.stderr
    );
    let read = desk.answers("show --until-exit", 2);
    let said = "--until-exit has no meaning with show";
    assert!(read.stderr.contains(said), "{}", read.stderr);
}
