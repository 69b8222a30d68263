use std::cell::RefCell;

use super::*;

/// A fake process.
#[derive(Clone, Copy)]
struct Paper {
    parent: u32,
    user: u32,
    listens: bool,
    inside: bool,
}

/// A fake machine.
#[derive(Default)]
struct Machine(RefCell<BTreeMap<u32, Paper>>);

impl Machine {
    fn spawn(&self, pid: u32, parent: u32) {
        let paper = Paper {
            parent,
            user: 0,
            listens: false,
            inside: true,
        };
        self.0.borrow_mut().insert(pid, paper);
    }

    fn change(&self, pid: u32, change: impl FnOnce(&mut Paper)) {
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

impl Processes for Machine {
    fn members(&self, of: &Found) -> Vec<u32> {
        match of {
            Found::Processes(named) => named.clone(),
            _ => {
                let all = self.0.borrow();
                let inside = all.iter().filter(|(_, paper)| paper.inside);
                inside.map(|(pid, _)| *pid).collect()
            }
        }
    }

    fn parent(&self, pid: u32) -> Option<u32> {
        self.0.borrow().get(&pid).map(|paper| paper.parent)
    }

    fn children(&self, pid: u32) -> Vec<u32> {
        let all = self.0.borrow();
        let children = all.iter().filter(|(_, paper)| paper.parent == pid);
        children.map(|(pid, _)| *pid).collect()
    }

    fn listens(&self, pid: u32) -> bool {
        self.0.borrow().get(&pid).is_some_and(|paper| paper.listens)
    }

    fn user(&self, pid: u32) -> Option<u32> {
        self.0.borrow().get(&pid).map(|paper| paper.user)
    }

    fn name(&self, _: u32) -> Option<String> {
        None
    }
}

fn unit() -> Crowd {
    let found = Found::Cgroup("/s/ftp.service".to_string());
    Crowd::new("unit:ftp.service".to_string(), found, false)
}

fn set<const N: usize>(pids: [u32; N]) -> BTreeSet<u32> {
    pids.into()
}

#[test]
fn what_a_server_starts_are_sessions_wherever_they_go() {
    let (machine, now) = (Machine::default(), Instant::now());
    machine.spawn(10, 1);
    machine.change(10, |server| server.listens = true);
    let mut crowd = unit();
    assert_eq!(crowd.sessions(&machine, now), set([]));
    machine.spawn(11, 10);
    machine.spawn(12, 11);
    machine.spawn(13, 10);
    // A child that also has the listening socket is a session.
    machine.change(13, |child| child.listens = true);
    assert_eq!(crowd.sessions(&machine, now), set([11, 13]));
    machine.change(13, |child| child.inside = false);
    assert_eq!(crowd.sessions(&machine, now), set([11, 13]));
    // The server ends: a process that is left inside is a session itself.
    machine.end(10);
    assert_eq!(crowd.sessions(&machine, now), set([11]));
    machine.end(11);
    assert_eq!(crowd.sessions(&machine, now), set([12]));
}

#[test]
fn whoever_does_not_listen_is_a_session_with_all_that_it_starts() {
    let (machine, now) = (Machine::default(), Instant::now());
    machine.spawn(10, 1);
    machine.spawn(11, 10);
    machine.spawn(20, 1);
    assert_eq!(unit().sessions(&machine, now), set([10, 20]));
    // Processes named one by one: each is a session, even if one started another.
    let named = Found::Processes(vec![10, 11, 99]);
    let mut crowd = Crowd::new("name:n".to_string(), named, false);
    assert_eq!(crowd.sessions(&machine, now), set([10, 11]));
    // A process as the only target: its children are the sessions.
    let mut crowd = Crowd::new("pid:10".to_string(), Found::Processes(vec![10]), true);
    assert_eq!(crowd.sessions(&machine, now), set([11]));
    assert!(!crowd.has_ended());
    machine.end(10);
    assert_eq!(crowd.sessions(&machine, now), set([]));
    assert!(crowd.has_ended());
}

#[test]
fn a_session_that_listens_for_a_moment_is_no_server_but_one_that_goes_on_is() {
    let (machine, start) = (Machine::default(), Instant::now());
    let at = |seconds: u64| start + Duration::from_secs(seconds);
    machine.spawn(10, 1);
    machine.spawn(11, 10);
    let mut crowd = unit();
    assert_eq!(crowd.sessions(&machine, at(0)), set([10]));
    machine.change(10, |session| session.listens = true);
    assert_eq!(crowd.sessions(&machine, at(1)), set([10]));
    assert_eq!(crowd.sessions(&machine, at(2)), set([10]));
    machine.change(10, |session| session.listens = false);
    assert_eq!(crowd.sessions(&machine, at(3)), set([10]));
    machine.change(10, |session| session.listens = true);
    for second in [4, 5] {
        assert_eq!(crowd.sessions(&machine, at(second)), set([10]));
    }
    assert_eq!(crowd.sessions(&machine, at(6)), set([11]));
    machine.change(10, |server| server.listens = false);
    assert_eq!(crowd.sessions(&machine, at(9)), set([11]), "it stays one");
}

#[test]
fn a_session_is_its_users_whose_process_may_lie_behind_one_of_root() {
    let machine = Machine::default();
    machine.spawn(10, 1);
    assert_eq!(user(&machine, 10), 0);
    machine.spawn(11, 10);
    machine.spawn(12, 11);
    machine.change(12, |paper| paper.user = 1000);
    assert_eq!(user(&machine, 10), 1000);
    machine.change(10, |paper| paper.user = 33);
    assert_eq!(user(&machine, 10), 33);
}
