//! Tests of what /proc says of processes.

use std::path::Path;

use super::*;

#[test]
fn a_process_goes_on_until_it_begins_to_end() {
    assert!(goes_on(std::process::id()));
    let mut child = std::process::Command::new("true").spawn().expect("a child");
    // Nobody has waited for it: it stays as a zombie, which is there but does not go on.
    let until = std::time::Instant::now() + std::time::Duration::from_secs(5);
    while goes_on(child.id()) {
        assert!(std::time::Instant::now() < until, "it never ends");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    assert!(Path::new(&format!("/proc/{}", child.id())).exists());
    child.wait().expect("waited for");
    assert!(!goes_on(child.id()));
    assert_eq!(
        thread_flags("12 (a) b) S 1 2 3 4 5 4194308 6"),
        Some(0x40_0004)
    );
    assert_eq!(thread_flags("12 (x) S 1"), None);
}

#[test]
fn a_process_that_is_called_by_no_text_is_there() {
    let name = [b'a', 0xff, 0x1b, b')', b'b'];
    let (told, tid) = std::sync::mpsc::channel();
    let (end, ended) = std::sync::mpsc::channel::<()>();
    let thread = std::thread::spawn(move || {
        fs::write("/proc/thread-self/comm", name).expect("its name is its own");
        let own = fs::read_link("/proc/thread-self").expect("a thread");
        let tid = own.file_name().and_then(|n| n.to_str()?.parse().ok());
        told.send(tid.expect("a number")).expect("it is awaited");
        let _ = ended.recv();
    });
    let tid: u32 = tid.recv().expect("it is told");
    let found = facts(tid).expect("it is there");
    assert_eq!(found.name, "a\u{fffd}\u{fffd})b");
    assert_eq!(thread_group(tid), Some(std::process::id()));
    assert!(started(tid).is_some() && goes_on(tid));
    end.send(()).expect("it waits");
    thread.join().expect("no panic");
}
