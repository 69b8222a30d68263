//! What the machine lacks: room on the disk. A change that cannot be written down is refused, and says why; what was in force
//! stays.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::process::Command;

use netnice_lab::desk::Desk;
use netnice_lab::experiment::bench::R4M;
use netnice_lab::process;
use netnice_lab::traffic::{self, Tcp};

/// Fills the file system of a folder to its last byte.
fn fill(folder: &Path) {
    let mut file = File::create(folder.join("filler")).expect("room for a name");
    for size in [4096, 1] {
        while file.write_all(&vec![7; size]).is_ok() {}
    }
}

#[test]
fn on_a_full_disk_a_change_is_refused_and_what_was_there_stays() {
    let mut desk = Desk::new().expect("a desk");
    let runtime = desk.netnice.runtime().to_owned();
    desk.netnice.stop_daemon();
    // The world unmounts what is mounted below its folder.
    let mut mount = Command::new("mount");
    mount.args(["-t", "tmpfs", "-o", "size=256k,mode=755", "none"]);
    process::run(mount.arg(&runtime)).expect("a small file system");
    desk.netnice.start_daemon().expect("it starts there");
    let to = desk.sink(5001).expect("a sink");
    let source = Tcp::connect(to, 2).source();
    let program = traffic::eager(desk.world.client(), &source).expect("a program");
    let (held, other) = (program.pid(), desk.sleeper());
    desk.types(&format!("set pid:{held} --up 4mbit"));
    let before = desk.netnice.show_standing().expect("a show");

    fill(&runtime);
    for line in [
        format!("set pid:{} --up 1mbit", other.pid()),
        format!("set pid:{held} --up 2mbit"),
        "link eth0 --rate 50mbit".to_owned(),
    ] {
        let said = desk.answers(&line, 1).stderr;
        assert!(said.contains("No space left on device"), "{line}: {said}");
        assert!(said.contains(&*runtime.to_string_lossy()), "{line}: {said}");
        assert_eq!(desk.netnice.show_standing().expect("a show"), before);
    }
    desk.keeps(|| desk.sent(0.3, 1.0).expect("a rate"), R4M, "then");
    desk.netnice.kill_daemon();
    desk.netnice
        .start_daemon()
        .expect("it starts on a full disk");
    assert_eq!(desk.netnice.show_standing().expect("a show"), before);
    desk.keeps(
        || desk.sent(0.3, 1.0).expect("a rate"),
        R4M,
        "after a restart",
    );

    std::fs::remove_file(runtime.join("filler")).expect("it is there");
    desk.types(&format!("set pid:{} --up 1mbit", other.pid()));
    desk.netnice.kill_daemon();
    desk.netnice.start_daemon().expect("it starts again");
    let number = |pid| !desk.target(&format!("pid:{pid}")).is_null();
    assert!(number(held) && number(other.pid()), "both are held");
}
