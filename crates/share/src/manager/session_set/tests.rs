use std::cell::RefCell;

use super::*;

/// A fake process.
#[derive(Clone, Copy)]
struct FakeProcess {
    parent: u32,
    user: u32,
    listens: bool,
    inside: bool,
}

/// A fake machine.
#[derive(Default)]
struct FakeProcesses(RefCell<BTreeMap<u32, FakeProcess>>);

impl FakeProcesses {
    fn spawn(&self, pid: u32, parent: u32) {
        let process = FakeProcess {
            parent,
            user: 0,
            listens: false,
            inside: true,
        };
        self.0.borrow_mut().insert(pid, process);
    }

    fn change(&self, pid: u32, change: impl FnOnce(&mut FakeProcess)) {
        change(self.0.borrow_mut().get_mut(&pid).expect("it lives"));
    }

    /// Ends a process; its children become those of process 1.
    fn end(&self, pid: u32) {
        let mut all = self.0.borrow_mut();
        all.remove(&pid);
        for child in all.values_mut().filter(|child| child.parent == pid) {
            child.parent = 1;
        }
    }
}

impl Processes for FakeProcesses {
    fn members(&self, of: &Found) -> Vec<u32> {
        match of {
            Found::Processes(named) => named.clone(),
            _ => {
                let all = self.0.borrow();
                let inside = all.iter().filter(|(_, process)| process.inside);
                inside.map(|(pid, _)| *pid).collect()
            }
        }
    }

    fn parent(&self, pid: u32) -> Option<u32> {
        self.0.borrow().get(&pid).map(|process| process.parent)
    }

    fn children(&self, pid: u32) -> Vec<u32> {
        let all = self.0.borrow();
        let children = all.iter().filter(|(_, process)| process.parent == pid);
        children.map(|(pid, _)| *pid).collect()
    }

    fn listens(&self, pid: u32) -> bool {
        self.0
            .borrow()
            .get(&pid)
            .is_some_and(|process| process.listens)
    }

    fn user(&self, pid: u32) -> Option<u32> {
        self.0.borrow().get(&pid).map(|process| process.user)
    }

    fn name(&self, _: u32) -> Option<String> {
        None
    }
}

fn unit() -> SessionSet {
    let found = Found::Cgroup("/s/ftp.service".to_string());
    SessionSet::new("unit:ftp.service".to_string(), found, false)
}

fn pids<const N: usize>(pids: [u32; N]) -> BTreeSet<u32> {
    pids.into()
}

#[test]
fn children_of_a_server_are_sessions_in_any_cgroup() {
    let (processes, now) = (FakeProcesses::default(), Instant::now());
    processes.spawn(10, 1);
    processes.change(10, |server| server.listens = true);
    let mut set = unit();
    assert_eq!(set.sessions(&processes, now), pids([]));
    processes.spawn(11, 10);
    processes.spawn(12, 11);
    processes.spawn(13, 10);
    // A child that also has the listening socket is a session.
    processes.change(13, |child| child.listens = true);
    assert_eq!(set.sessions(&processes, now), pids([11, 13]));
    processes.change(13, |child| child.inside = false);
    assert_eq!(set.sessions(&processes, now), pids([11, 13]));
    // The server ends: a process that is left inside is a session itself.
    processes.end(10);
    assert_eq!(set.sessions(&processes, now), pids([11]));
    processes.end(11);
    assert_eq!(set.sessions(&processes, now), pids([12]));
}

#[test]
fn a_process_that_does_not_listen_is_one_session_with_its_descendants() {
    let (processes, now) = (FakeProcesses::default(), Instant::now());
    processes.spawn(10, 1);
    processes.spawn(11, 10);
    processes.spawn(20, 1);
    assert_eq!(unit().sessions(&processes, now), pids([10, 20]));
    // Processes named one by one: each is a session, even if one started another.
    let named = Found::Processes(vec![10, 11, 99]);
    let mut set = SessionSet::new("name:n".to_string(), named, false);
    assert_eq!(set.sessions(&processes, now), pids([10, 11]));
    // A process as the only target: its children are the sessions.
    let mut set = SessionSet::new("pid:10".to_string(), Found::Processes(vec![10]), true);
    assert_eq!(set.sessions(&processes, now), pids([11]));
    assert!(!set.has_ended());
    processes.end(10);
    assert_eq!(set.sessions(&processes, now), pids([]));
    assert!(set.has_ended());
}

#[test]
fn a_session_is_a_server_after_three_checks_that_find_it_listening() {
    let (processes, start) = (FakeProcesses::default(), Instant::now());
    let at = |seconds: u64| start + Duration::from_secs(seconds);
    processes.spawn(10, 1);
    processes.spawn(11, 10);
    let mut set = unit();
    assert_eq!(set.sessions(&processes, at(0)), pids([10]));
    processes.change(10, |session| session.listens = true);
    assert_eq!(set.sessions(&processes, at(1)), pids([10]));
    assert_eq!(set.sessions(&processes, at(2)), pids([10]));
    processes.change(10, |session| session.listens = false);
    assert_eq!(set.sessions(&processes, at(3)), pids([10]));
    processes.change(10, |session| session.listens = true);
    for second in [4, 5] {
        assert_eq!(set.sessions(&processes, at(second)), pids([10]));
    }
    assert_eq!(set.sessions(&processes, at(6)), pids([11]));
    processes.change(10, |server| server.listens = false);
    assert_eq!(set.sessions(&processes, at(9)), pids([11]), "it stays one");
}

#[test]
fn the_user_of_a_session_may_be_that_of_a_descendant() {
    let processes = FakeProcesses::default();
    processes.spawn(10, 1);
    assert_eq!(session_user(&processes, 10), 0);
    processes.spawn(11, 10);
    processes.spawn(12, 11);
    processes.change(12, |process| process.user = 1000);
    assert_eq!(session_user(&processes, 10), 1000);
    processes.change(10, |process| process.user = 33);
    assert_eq!(session_user(&processes, 10), 33);
}
