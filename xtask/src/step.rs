//! Runs a program, and prints its command line first, so a log shows the commands that a user would
//! type. ([`Step::capture`] does not print it.) A step fails if the program cannot start.
//! [`Step::run`], [`Step::run_quietly`] and [`Step::capture`] also fail if its exit status is not
//! 0; [`Step::status`], [`Step::watch`] and [`Step::try_quietly`] return the status or the reason.

use std::ffi::{OsStr, OsString};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, ExitStatus, Output, Stdio};

use anyhow::{Context, Result, bail};

/// A command to run, and the words to print for it.
pub struct Step {
    words: Vec<String>,
    command: Command,
}

impl Step {
    /// A step that runs this program, without the variables by which cargo describes this one's
    /// package. Build scripts ask cargo to run them again if such a variable changes, so a build
    /// from here and one that a person starts would each build much of what the other has built.
    pub fn new(program: impl AsRef<OsStr>) -> Step {
        let program = program.as_ref();
        let shown = Path::new(program).file_name().unwrap_or(program);
        let mut command = Command::new(program);
        for (name, _) in std::env::vars_os() {
            let text = name.to_string_lossy();
            if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") {
                command.env_remove(&name);
            }
        }
        Step {
            words: vec![shown.to_string_lossy().into_owned()],
            command,
        }
    }

    /// Adds arguments.
    pub fn args<I, S>(mut self, args: I) -> Step
    where
        I: IntoIterator<Item = S>,
        S: AsRef<OsStr>,
    {
        for arg in args {
            self.words.push(arg.as_ref().to_string_lossy().into_owned());
            self.command.arg(arg);
        }
        self
    }

    /// Sets a variable of the program's environment.
    pub fn env(mut self, key: &str, value: impl AsRef<OsStr>) -> Step {
        self.command.env(key, value);
        self
    }

    /// Removes a variable from the program's environment.
    pub fn without_env(mut self, key: &str) -> Step {
        self.command.env_remove(key);
        self
    }

    /// Runs the program in this folder.
    pub fn folder(mut self, folder: &Path) -> Step {
        self.command.current_dir(folder);
        self
    }

    /// Gives the program an empty standard input.
    pub fn no_input(mut self) -> Step {
        self.command.stdin(Stdio::null());
        self
    }

    /// Runs the program. Fails if it cannot start, and with the command and its status if the
    /// status is not 0.
    pub fn run(mut self) -> Result<()> {
        self.show();
        let status = self
            .command
            .status()
            .with_context(|| format!("cannot start {}", self.words[0]))?;
        self.check_status(status)
    }

    /// Runs the program and returns its status without checking it. Fails if the program cannot
    /// start.
    pub fn status(mut self) -> Result<ExitStatus> {
        self.show();
        let status = self.command.status();
        status.with_context(|| format!("cannot start {}", self.words[0]))
    }

    /// Runs the program without printing its command line, and returns its standard output. Fails
    /// if it cannot start, if its exit status is not 0, or if the output is not UTF-8.
    pub fn capture(mut self) -> Result<String> {
        self.command.stderr(Stdio::inherit());
        let output = self.output()?;
        self.check_status(output.status)?;
        String::from_utf8(output.stdout)
            .with_context(|| format!("{} did not write UTF-8", self.words[0]))
    }

    /// Runs the program without printing its output, so that it can run beside another one. Fails
    /// if it cannot start. If its exit status is not 0, prints all of the output and fails.
    pub fn run_quietly(mut self) -> Result<()> {
        self.show();
        let output = self.output()?;
        if !output.status.success() {
            for text in [&output.stdout, &output.stderr] {
                eprint!("{}", String::from_utf8_lossy(text));
            }
        }
        self.check_status(output.status)
    }

    /// Runs a program that may fail, and prints none of its output. Returns `None` if its exit
    /// status is 0, else the last line of its standard error.
    ///
    /// # Errors
    /// If the program cannot start.
    pub fn try_quietly(mut self) -> Result<Option<String>> {
        self.show();
        let output = self.output()?;
        let stderr = String::from_utf8_lossy(&output.stderr);
        let last = stderr.lines().rfind(|line| !line.trim().is_empty());
        let last = last.unwrap_or_default().trim();
        Ok((!output.status.success()).then(|| last.to_owned()))
    }

    /// Runs the program and returns the output that no other method redirected.
    fn output(&mut self) -> Result<Output> {
        let done = self.command.output();
        done.with_context(|| format!("cannot start {}", self.words[0]))
    }

    /// Runs the program with both outputs on one pipe, which keeps their order. Prints each line
    /// behind `prefix`, and passes it to `line` without the blanks at its end. Returns the status
    /// without checking it. Fails if the program cannot start, or if the pipe cannot be made or
    /// read.
    pub fn watch(mut self, prefix: &str, mut line: impl FnMut(&str)) -> Result<ExitStatus> {
        self.show();
        let (reader, writer) = std::io::pipe().context("cannot make a pipe")?;
        self.command.stdout(writer.try_clone()?).stderr(writer);
        let mut child = self
            .command
            .spawn()
            .with_context(|| format!("cannot start {}", self.words[0]))?;
        // The command holds the write ends, and the pipe ends only when they are closed.
        drop(self);
        let mut reader = BufReader::new(reader);
        let mut bytes = Vec::new();
        while reader.read_until(b'\n', &mut bytes)? > 0 {
            let text = String::from_utf8_lossy(&bytes);
            println!("{prefix}{}", text.trim_end_matches(['\r', '\n']));
            line(text.trim_end());
            bytes.clear();
        }
        child.wait().context("cannot wait for a program")
    }

    fn show(&self) {
        eprintln!("+ {}", self.words.join(" "));
    }

    fn check_status(&self, status: ExitStatus) -> Result<()> {
        if !status.success() {
            bail!("'{}' ended with {status}", self.words.join(" "));
        }
        Ok(())
    }
}

/// The cargo that runs this process, or the one on the `PATH`.
pub fn cargo() -> OsString {
    std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into())
}

/// Fails if this process is not root; the error contains the reason why `what` needs root.
pub fn require_root(what: &str, why: &str) -> Result<()> {
    if is_root() {
        return Ok(());
    }
    bail!("{what} needs root: {why}. Try: sudo env \"PATH=$PATH\" {what}")
}

/// True if this process runs as root.
pub fn is_root() -> bool {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0)
}

/// The path of a program in the `PATH`, or in the system folders that the `PATH` of a normal user
/// lacks; `None` if there is none.
pub fn find_program(name: &str) -> Option<std::path::PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/local/sbin", "/usr/sbin", "/sbin"].map(Into::into))
        .map(|folder| folder.join(name))
        .find(|file| file.is_file())
}

#[cfg(test)]
mod tests {
    use super::Step;

    /// Cargo has set these variables for this test.
    #[test]
    fn variables_of_this_package_are_not_passed_on() {
        assert!(std::env::var_os("CARGO_MANIFEST_DIR").is_some());
        let passed = Step::new("env").capture().expect("it runs");
        let of_package = |line: &&str| line.starts_with("CARGO_PKG_");
        assert_eq!(passed.lines().find(of_package), None);
        assert!(!passed.contains("CARGO_MANIFEST_DIR="), "{passed}");
        assert!(passed.contains("PATH="), "{passed}");
    }
}
