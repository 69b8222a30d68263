//! The closing line of a test runner (`test result: ok. 3 passed; …`), read, and added up.
//!
//! A run of the whole workspace has dozens of them, scrolled away long before the end. They are kept, with
//! the name of the runner that wrote each, and one more of the same form is written at the very end.

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
    rows: Vec<(String, Closing)>,
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
            self.runner = runner;
        } else if let Some(closing) = Closing::parse(line) {
            self.rows.push((self.runner.clone(), closing));
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
        )
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
