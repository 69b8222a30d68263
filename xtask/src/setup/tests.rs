use super::*;

#[test]
fn a_complete_machine_lacks_nothing() {
    for what in [Build, Run, Vm, Bare, Fuzz] {
        assert!(missing(what, |_| true).is_empty());
    }
}

#[test]
fn an_empty_machine_lacks_exactly_what_the_use_needs() {
    let build = packages(&missing(Build, |_| false));
    assert!(build.contains(&"clang"));
    assert!(!build.contains(&"iperf3"), "building runs no traffic");
    let run = packages(&missing(Run, |_| false));
    assert!(
        build.iter().all(|package| run.contains(package)),
        "the programs that run are built first"
    );
    assert!(!run.contains(&"qemu-system-x86"));
}

#[test]
fn a_package_is_listed_once() {
    let twice = [&NEEDS[0], &NEEDS[0]];
    assert_eq!(packages(&twice).len(), 1);
}

#[test]
fn a_probe_finds_programs_and_files() {
    assert!(need(Program("sh"), "dash", &[Run]).is_there());
    assert!(!need(Program("no-such-program"), "x", &[Run]).is_there());
    assert!(need(File(&["/nowhere", "/proc"]), "x", &[Run]).is_there());
    assert!(!need(File(&["/nowhere"]), "x", &[Run]).is_there());
}
