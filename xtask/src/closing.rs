//! The closing line of a test runner (`test result: ok. 3 passed; …`), read, and added up.
//!
//! A run of the whole workspace has dozens of them, scrolled away long before the end. They are kept, with
//! the name of the runner that wrote each, and one more of the same form is written at the very end.
//! A test that failed and then passed alone ([`Ledger::forgive`]) is counted as passed, and told of beside.

use std::fmt;
use std::time::Duration;

/// What one runner's closing line says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Closing {
    /// The runner said `FAILED`.
    pub failed_runner: bool,
    /// Tests that passed.
    pub passed: u64,
    /// Tests that failed.
    pub failed: u64,
    /// Tests that did not run, because they are marked so.
    pub ignored: u64,
    /// Tests among those that passed which failed at first.
    pub second: u64,
    /// How long it took.
    pub took: Duration,
}

impl Closing {
    /// Reads a closing line; every other line gives none.
    pub fn parse(line: &str) -> Option<Closing> {
        let rest = line.trim().strip_prefix("test result: ")?;
        let (verdict, counts) = rest.split_once(". ")?;
        let mut closing = Closing {
            failed_runner: verdict != "ok",
            ..Closing::default()
        };
        for part in counts.split(';') {
            let mut words = part.split_whitespace();
            let (Some(count), Some(what)) = (words.next(), words.next()) else {
                continue;
            };
            match (count.parse(), what) {
                (Ok(count), "passed") => closing.passed = count,
                (Ok(count), "failed") => closing.failed = count,
                (Ok(count), "ignored") => closing.ignored = count,
                _ => {}
            }
            let seconds = part.trim().strip_prefix("finished in ");
            let seconds = seconds.and_then(|text| text.strip_suffix('s')?.parse().ok());
            let took = seconds.and_then(|text| Duration::try_from_secs_f64(text).ok());
            closing.took = took.unwrap_or(closing.took);
        }
        Some(closing)
    }
}

/// The closing lines of many runners.
#[derive(Debug, Default)]
pub struct Ledger {
    runner: String,
    /// A runner was announced and has not closed.
    open: bool,
    rows: Vec<(String, Closing)>,
    /// Rows of the steps that are over.
    judged: usize,
    /// The lines are those of a runner's list of what failed.
    listing: bool,
    /// The runner and the name of each test that failed.
    failures: Vec<(String, String)>,
    /// Steps that ended badly without (or besides) a closing line that says so: a build that failed,
    /// a runner that was killed.
    broken: Vec<String>,
    /// How long each step took, with what it built.
    steps: Vec<(String, Duration)>,
}

impl Ledger {
    /// Takes the next line of output.
    pub fn line(&mut self, line: &str) {
        if let Some(runner) = runner_name(line) {
            self.closed();
            self.runner = runner;
            self.open = true;
        } else if let Some(closing) = Closing::parse(line) {
            self.rows.push((self.runner.clone(), closing));
            self.open = false;
        }
        match line.strip_prefix("    ") {
            Some(test) if self.listing => {
                self.failures.push((self.runner.clone(), test.to_owned()));
            }
            _ => self.listing = line == "failures:",
        }
    }

    /// Notes that a step is over. One that ended badly, where no test that failed says why, is broken.
    pub fn ended(&mut self, step: &str, status: std::process::ExitStatus) {
        let closed = self.closed();
        let rows = &self.rows[self.judged..];
        let told = closed && rows.iter().any(|(_, row)| row.failed > 0);
        self.judged = self.rows.len();
        if !status.success() && !told {
            self.broke(&format!("{step}: {status}"));
        }
    }

    /// True if the last runner that was announced has closed; one that has not was killed.
    fn closed(&mut self) -> bool {
        let open = std::mem::take(&mut self.open);
        if open {
            self.broke(&format!("{} ended without a closing line", self.runner));
        }
        !open
    }

    /// The tests that failed and were not forgiven, each with the name of its program.
    pub fn failures(&self) -> Vec<(String, String)> {
        let program = |runner: &str| runner.split(':').next().unwrap_or(runner).to_owned();
        let failures = self.failures.iter();
        failures
            .map(|(runner, test)| (program(runner), test.clone()))
            .collect()
    }

    /// Counts a test that failed as passed: it ran once more and passed.
    pub fn forgive(&mut self, program: &str, test: &str) {
        let is_it = |(runner, name): &(String, String)| {
            name == test && runner.split(':').next() == Some(program)
        };
        let Some(place) = self.failures.iter().position(is_it) else {
            return;
        };
        let (runner, _) = self.failures.remove(place);
        let row = self
            .rows
            .iter_mut()
            .find(|(name, row)| *name == runner && row.failed > 0);
        if let Some((_, row)) = row {
            row.failed -= 1;
            row.passed += 1;
            row.second += 1;
            row.failed_runner = row.failed > 0;
        }
    }

    /// Notes that a step ended badly.
    pub fn broke(&mut self, step: &str) {
        self.broken.push(step.to_owned());
    }

    /// Notes how long a step took.
    pub fn took(&mut self, step: &str, time: Duration) {
        self.steps.push((step.to_owned(), time));
    }

    /// Takes what another has noted, after its own.
    pub fn add(&mut self, other: Ledger) {
        self.rows.extend(other.rows);
        self.failures.extend(other.failures);
        self.broken.extend(other.broken);
        self.steps.extend(other.steps);
    }

    /// True if no runner has closed and no step broke.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty() && self.broken.is_empty()
    }

    /// The sum of all.
    pub fn total(&self) -> Closing {
        let mut total = Closing {
            failed_runner: !self.broken.is_empty(),
            ..Closing::default()
        };
        for (_, row) in &self.rows {
            total.failed_runner |= row.failed_runner;
            total.passed += row.passed;
            total.failed += row.failed;
            total.ignored += row.ignored;
            total.second += row.second;
            total.took += row.took;
        }
        // A run of nothing has proved nothing.
        total.failed_runner |= total.failed > 0 || total.passed == 0;
        total
    }
}

impl fmt::Display for Ledger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (runner, row) in &self.rows {
            if row.passed + row.failed + row.ignored > 0 || row.failed_runner {
                writeln!(f, "{row}  {runner}, {:.1} s", row.took.as_secs_f64())?;
            }
        }
        for (step, took) in &self.steps {
            writeln!(f, "{:6.0} s  {step}", took.as_secs_f64())?;
        }
        for step in &self.broken {
            writeln!(f, "FAILED  {step}")?;
        }
        let total = self.total();
        write!(f, "test result: {total}")
    }
}

impl fmt::Display for Closing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = if self.failed_runner { "FAILED" } else { "ok" };
        write!(
            f,
            "{verdict}. {} passed; {} failed; {} ignored",
            self.passed, self.failed, self.ignored
        )?;
        match self.second {
            0 => Ok(()),
            some => write!(f, "; {some} passed at the second try"),
        }
    }
}

/// The runner that a line of cargo announces (`Running tests/limits.rs (…)`, `Doc-tests netnice_core`),
/// without colours.
fn runner_name(line: &str) -> Option<String> {
    let plain = without_colours(line);
    let plain = plain.trim();
    if let Some(rest) = plain.strip_prefix("Running ") {
        let (source, program) = rest.split_once(" (")?;
        let program = program.trim_end_matches(')');
        let name = program.rsplit('/').next().unwrap_or(program);
        let name = name.rsplit_once('-').map_or(name, |(name, _hash)| name);
        return Some(format!("{name}: {source}"));
    }
    plain
        .strip_prefix("Doc-tests ")
        .map(|name| format!("{name}: documentation"))
}

fn without_colours(line: &str) -> String {
    let mut out = String::with_capacity(line.len());
    let mut chars = line.chars();
    while let Some(c) = chars.next() {
        if c == '\u{1b}' {
            for inner in chars.by_ref() {
                if inner.is_ascii_alphabetic() {
                    break;
                }
            }
        } else {
            out.push(c);
        }
    }
    out
}

#[cfg(test)]
mod tests;
