//! Parses the value of `--until-exit`: the process whose exit undoes a change ([`Until`]). Fails if
//! the value is no process number, or if the process does not exist.
//!
//! Without a value, the process is the one that runs netnice: the shell or the script. A program
//! that only changes the user for one command (sudo and similar) is skipped, and its parent taken,
//! because the program ends together with netnice.

use netnice_api::Until;

use super::BadUsage;
use crate::process;

/// The value that the parser puts in if the user writes `--until-exit` without a value.
pub(super) const PARENT: &str = "parent";

/// Parses the option's value. Fails as the module's documentation states.
pub(super) fn parse(text: &str) -> Result<Until, BadUsage> {
    let refused = || BadUsage::Until(text.to_owned());
    let pid = match text {
        PARENT => process::invoking_process().ok_or_else(refused)?,
        _ => text.parse().map_err(|_| refused())?,
    };
    process::exit_of(pid).ok_or_else(refused)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_value_is_a_pid_or_the_invoking_process() {
        let own = parse(&std::process::id().to_string()).expect("it runs");
        assert_eq!(own.pid, std::process::id());
        assert!(parse(PARENT).expect("a parent process").pid != own.pid);
        for text in ["0", "-1", "4194305", "ann", ""] {
            let error = parse(text).expect_err(text).to_string();
            assert!(error.contains("--until-exit"), "{text}: {error}");
        }
    }
}
