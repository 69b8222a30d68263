//! Costs that were measured before, in a file ([`CostsFile`]), so that a program that is started
//! anew asks for the same as the one before it. Functions fail with [`ChannelError::Costs`] if the
//! file cannot be read or written, or is no file of costs.
//!
//! The file has a line for each thing that was measured:
//!
//! ```text
//! packets of 1452 bytes in blocks of 4: switch=2us waking=1us cache-miss=910ns first=3us later=2us
//! checksum of 1452 bytes: packet=154ns
//! ```
//! Of several lines for the same thing the first one counts. Programs that measure at the same time
//! each append a line, so the costs of one of them are kept.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read as _, Write as _};
use std::path::{Path, PathBuf};

use netnice_core::units::Nanos;

use crate::error::ChannelError;

/// A file of costs, as it was read.
pub(super) struct CostsFile {
    path: PathBuf,
    text: String,
}

impl CostsFile {
    /// Reads a file. One that does not exist yet has no lines.
    pub(super) fn read(path: &Path) -> Result<CostsFile, ChannelError> {
        let mut text = String::new();
        let read = match File::open(path) {
            Ok(file) => file.take(LARGEST + 1).read_to_string(&mut text),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(0),
            Err(error) => Err(error),
        };
        let path = path.to_owned();
        let file = CostsFile { path, text };
        match read {
            Ok(bytes) if bytes as u64 <= LARGEST => Ok(file),
            Ok(_) => Err(file.fault(format!("it has more than {LARGEST} bytes"))),
            Err(error) => Err(file.fault(error.to_string())),
        }
    }

    /// The costs with these names of a thing, if they are kept. They have to be in this order.
    pub(super) fn find<const N: usize>(
        &self,
        thing: &str,
        names: [&str; N],
    ) -> Result<Option<[Nanos; N]>, ChannelError> {
        let values = |line: &str| {
            line.strip_prefix(thing)?
                .strip_prefix(": ")
                .map(str::to_owned)
        };
        let Some(line) = self.text.lines().find_map(values) else {
            return Ok(None);
        };
        let mut words = line.split_whitespace();
        let mut costs = [Nanos(0); N];
        for (cost, name) in costs.iter_mut().zip(names) {
            let value = words.next().and_then(|word| {
                let (found, value) = word.split_once('=')?;
                (found == name).then_some(value)?.parse().ok()
            });
            *cost = value.ok_or_else(|| self.fault(format!("no {name}=TIME for {thing}")))?;
        }
        match words.next() {
            None => Ok(Some(costs)),
            Some(word) => Err(self.fault(format!("{word} for {thing} is unknown"))),
        }
    }

    /// Appends the costs of a thing.
    pub(super) fn keep<const N: usize>(
        &self,
        thing: &str,
        costs: [(&str, Nanos); N],
    ) -> Result<(), ChannelError> {
        let costs = costs.map(|(name, cost)| format!(" {name}={cost}")).concat();
        let opened = OpenOptions::new()
            .append(true)
            .create(true)
            .open(&self.path);
        // In one call, so that lines of several programs do not mix.
        let written =
            opened.and_then(|mut file| file.write_all(format!("{thing}:{costs}\n").as_bytes()));
        written.map_err(|error| self.fault(error.to_string()))
    }

    fn fault(&self, problem: String) -> ChannelError {
        ChannelError::Costs {
            file: self.path.clone(),
            problem,
        }
    }
}

/// The longest file that is read, in bytes.
const LARGEST: u64 = 1 << 16;

#[cfg(test)]
mod tests {
    use super::*;

    const THING: &str = "packets of 1452 bytes in blocks of 4";

    /// A file with this text, that a test reads.
    fn file(name: &str, text: &str) -> Result<CostsFile, ChannelError> {
        let name = format!("netnice-costs-{}-{name}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::write(&path, text).expect("written");
        let file = CostsFile::read(&path);
        std::fs::remove_file(&path).expect("it was ours");
        file
    }

    #[test]
    fn what_is_kept_is_found_exactly_and_the_first_line_counts() {
        let file = file("found", "").expect("empty");
        let none = file.find(THING, ["switch"]).expect("no line");
        assert_eq!(none, None);
        let costs = |ns| [("switch", Nanos(ns)), ("first", Nanos(3_000_000))];
        file.keep(THING, costs(1_234_567)).expect("kept");
        file.keep("other", costs(9)).expect("kept");
        file.keep(THING, costs(7)).expect("kept");
        let again = CostsFile::read(&file.path).expect("there");
        std::fs::remove_file(&file.path).expect("it was ours");
        let found = again.find(THING, ["switch", "first"]).expect("valid");
        assert_eq!(found, Some([Nanos(1_234_567), Nanos(3_000_000)]));
    }

    #[test]
    fn a_file_that_is_none_of_costs_is_named_with_the_problem() {
        for (text, problem) in [
            (": switch=1us", "no first=TIME"),
            (": switch=1us first=x", "no first=TIME"),
            (": first=1us switch=1us", "no switch=TIME"),
            (": switch=1us first=1us later=1us", "later=1us"),
        ] {
            let file = file("invalid", &format!("{THING}{text}\n")).expect("read");
            let error = file.find(THING, ["switch", "first"]).expect_err(text);
            let error = error.to_string();
            assert!(error.contains(problem), "{text}: {error}");
            assert!(error.contains("netnice-costs-"), "{error}");
        }
        let long = "x".repeat(LARGEST as usize + 1);
        let error = file("long", &long).err().expect("too long").to_string();
        assert!(error.contains("more than 65536 bytes"), "{error}");
        let folder = CostsFile::read(&std::env::temp_dir()).err();
        assert!(folder.is_some(), "a folder is no file of costs");
    }
}
