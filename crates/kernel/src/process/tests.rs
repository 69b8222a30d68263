//! Tests of the properties of processes in /proc, and of closing the last copy of another process's
//! socket without blocking.

use std::path::Path;

use rustix::thread::{CpuSet, sched_setaffinity};

use super::*;

#[test]
fn a_process_is_running_until_it_begins_to_end() {
    assert!(is_running(std::process::id()));
    let mut child = std::process::Command::new("true").spawn().expect("a child");
    // Nothing has waited for the child: it is a zombie, which exists but does not go on.
    let until = std::time::Instant::now() + std::time::Duration::from_secs(5);
    while is_running(child.id()) {
        assert!(std::time::Instant::now() < until, "it never ends");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    assert!(Path::new(&format!("/proc/{}", child.id())).exists());
    child.wait().expect("waited for");
    assert!(!is_running(child.id()));
}

#[test]
fn a_process_whose_name_is_not_valid_text_is_found() {
    let name = [b'a', 0xff, 0x1b, b')', b'b'];
    let (send_tid, tid) = std::sync::mpsc::channel();
    let (end, ended) = std::sync::mpsc::channel::<()>();
    let thread = std::thread::spawn(move || {
        fs::write("/proc/thread-self/comm", name).expect("its name is its own");
        let own = fs::read_link("/proc/thread-self").expect("a thread");
        let tid = own.file_name().and_then(|n| n.to_str()?.parse().ok());
        send_tid
            .send(tid.expect("a number"))
            .expect("the test receives it");
        let _ = ended.recv();
    });
    let tid: u32 = tid.recv().expect("a thread id");
    let found = facts(tid).expect("it is there");
    assert_eq!(found.name, "a\u{fffd}\u{fffd})b");
    assert_eq!(thread_group(tid), Some(std::process::id()));
    assert!(start_time(tid).is_some() && is_running(tid));
    end.send(()).expect("it waits");
    thread.join().expect("no panic");
}

#[test]
fn the_last_copy_of_a_lingering_socket_is_closed_without_waiting() {
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let mut near = TcpStream::connect(listener.local_addr().expect("its name")).expect("there");
    let (_far, _) = listener.accept().expect("it comes");
    near.set_nonblocking(true).expect("a flag");
    while near.write(&[0; 65_536]).is_ok() {}
    let linger = std::time::Duration::from_secs(600);
    rustix::net::sockopt::set_socket_linger(&near, Some(linger)).expect("set");
    let process = PidFd::open(std::process::id()).expect("it lives");
    let number = near.as_raw_fd();
    let (taken, is_taken) = std::sync::mpsc::channel();
    let (closed, is_closed) = std::sync::mpsc::channel::<()>();
    let closer = std::thread::spawn(move || {
        let thread: u32 = is_taken.recv().expect("it is taken");
        drop(near);
        closed.send(()).expect("it waits");
        thread
    });
    copies::with_own_descriptors(move |own| {
        let copy = own.take(&process, number).expect("a copy").expect("open");
        let facts = copies::SocketFacts::of(copy.as_fd()).expect("a socket");
        let tcp = Some(rustix::net::ipproto::TCP);
        assert_eq!((facts.protocol, facts.listens), (tcp, false));
        let thread = fs::read_link("/proc/thread-self").expect("a thread");
        let thread = thread
            .file_name()
            .and_then(|name| name.to_str()?.parse().ok());
        taken
            .send(thread.expect("a number"))
            .expect("it is awaited");
        is_closed.recv().expect("it is closed");
    })
    .expect("a thread");
    let thread = closer.join().expect("no panic");
    let task = format!("/proc/self/task/{thread}");
    let until = std::time::Instant::now() + std::time::Duration::from_secs(30);
    while Path::new(&task).exists() {
        assert!(std::time::Instant::now() < until, "it lingers");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

#[test]
fn the_run_delay_counts_waiting_for_a_processor_and_not_sleep() {
    let mut own = CpuSet::new();
    own.set(rustix::thread::sched_getcpu());
    sched_setaffinity(None, &own).expect("the processor of this thread");
    // The new thread inherits the one processor, so each waits while the other runs.
    let end = Instant(monotonic().0 + 300_000_000);
    let busy = std::thread::spawn(move || while monotonic() < end {});
    let before = run_delay();
    while monotonic() < end {}
    let waited = run_delay().0 - before.0;
    busy.join().expect("the other thread ends");
    assert!(waited > 30_000_000, "waited {waited} ns of 300 ms");

    let (before, began) = (run_delay(), monotonic());
    std::thread::sleep(std::time::Duration::from_millis(300));
    let waited = run_delay().0 - before.0;
    let awake = monotonic().since(began).0 - 300_000_000;
    assert!(
        waited <= awake,
        "{waited} ns of {awake} ns beside the sleep"
    );
}

#[test]
fn a_thread_is_found_in_its_own_process_only() {
    let (own, parent) = (std::process::id(), rustix::process::getppid());
    let named = std::thread::spawn(move || {
        let id = rustix::thread::gettid().as_raw_nonzero().get() as u32;
        (id, thread(own, id))
    });
    let (id, found) = named.join().expect("it ends");
    assert_eq!(found, Some(id));
    assert_eq!(thread(own, own), Some(own));
    let parent = parent.map_or(1, |parent| parent.as_raw_pid() as u32);
    assert_eq!(thread(own, parent), None);
    assert_eq!(thread(u32::MAX >> 1, own), None);
}

#[test]
fn the_processor_time_of_a_process_grows_as_it_works() {
    let own = std::process::id();
    let before = processor_time(own).expect("it runs");
    let until = std::time::Instant::now() + std::time::Duration::from_secs(10);
    while processor_time(own).expect("it runs").0 < before.0 + 1_000_000 {
        assert!(std::time::Instant::now() < until, "it does not grow");
    }
    assert_eq!(processor_time(0), None);
    assert_eq!(processor_time(u32::MAX), None);
    assert_eq!(processor_time(u32::MAX >> 1), None);
}

#[test]
fn threads_of_the_kernel_are_told_from_processes() {
    assert!(!is_kernel_thread(std::process::id()));
    // In a PID namespace of its own, process 2 is an ordinary one, or there is none.
    assert_eq!(is_kernel_thread(2), has_command(2, "kthreadd"));
}
