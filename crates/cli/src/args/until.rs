//! `--until-exit`: finds the process whose exit undoes a change.
//!
//! Without a pid that process is the one that runs netnice: the shell or the script. Programs that
//! only change the user for one command (sudo and similar) end together with netnice, so they are
//! skipped, and their parent counts. Fails if the process does not exist.

use netnice_api::Until;

use super::BadUsage;

/// The value of the option if the user gives none.
pub(super) const PARENT: &str = "parent";

/// This process; `None` if its `/proc` entry cannot be read.
pub(crate) fn own() -> Option<Until> {
    let pid = std::process::id();
    let started = stat(pid)?.started;
    Some(Until { pid, started })
}

/// The process that the option's value means.
pub(super) fn of(text: &str) -> Result<Until, BadUsage> {
    let refused = || BadUsage::Until(text.to_owned());
    let pid = match text {
        PARENT => caller().ok_or_else(refused)?,
        _ => text.parse().map_err(|_| refused())?,
    };
    let started = stat(pid).ok_or_else(refused)?.started;
    Ok(Until { pid, started })
}

/// The nearest ancestor that is not one of [`HANDS`].
fn caller() -> Option<u32> {
    let mut pid = rustix::process::getppid()?.as_raw_nonzero().get() as u32;
    for _ in 0..MOST_HANDS {
        let about = stat(pid)?;
        if !HANDS.contains(&about.name.as_str()) {
            return Some(pid);
        }
        pid = about.parent;
    }
    None
}

struct Stat {
    name: String,
    parent: u32,
    started: u64,
}

/// Reads `/proc/PID/stat` (proc_pid_stat(5)). The name is in parentheses and may contain any
/// character; state, parent and the other fields follow.
fn stat(pid: u32) -> Option<Stat> {
    let stat = std::fs::read(format!("/proc/{pid}/stat")).ok()?;
    parse(&String::from_utf8_lossy(&stat))
}

fn parse(text: &str) -> Option<Stat> {
    let (head, tail) = text.rsplit_once(')')?;
    let (_, name) = head.split_once('(')?;
    let fields: Vec<&str> = tail.split_whitespace().collect();
    Some(Stat {
        name: name.to_owned(),
        parent: fields.get(1)?.parse().ok()?,
        started: fields.get(19)?.parse().ok()?,
    })
}

/// Programs that run another program as another user and end together with it.
const HANDS: [&str; 6] = ["sudo", "doas", "su", "pkexec", "run0", "setpriv"];
/// Largest number of [`HANDS`] in a row; sudo may be its own parent.
const MOST_HANDS: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_proc_is_read_whatever_the_name_is() {
        let line = "77 (a) b( c) S 7 77 77 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 4711 1 2";
        let about = parse(line).expect("a line");
        assert_eq!(
            (about.name.as_str(), about.parent, about.started),
            ("a) b( c", 7, 4711)
        );
        assert!(parse("77 (a) S 7").is_none());
    }

    #[test]
    fn a_process_is_meant_by_number_or_the_one_that_runs_us() {
        let own = of(&std::process::id().to_string()).expect("it runs");
        assert_eq!(own.pid, std::process::id());
        assert!(of(PARENT).expect("somebody runs us").pid != own.pid);
        for text in ["0", "-1", "4194305", "ann", ""] {
            assert!(
                of(text)
                    .expect_err(text)
                    .to_string()
                    .contains("--until-exit"),
                "{text}"
            );
        }
    }
}
