//! The file with the stops of the packet thread, for experiments ([`StopFile`]): a line for each
//! stop, as the text of [`Stop`] says. The process opens the file during set-up, because its
//! threads cannot open files later. The control thread writes what the packet thread has recorded.
//! Opening fails if the file cannot be made. A write that fails is logged, and ends the file.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

use netnice_core::stops::Stop;
use rtrb::Consumer;

/// The file, and the stops that it does not have yet.
pub(crate) struct StopFile {
    stops: Consumer<Stop>,
    file: Option<File>,
    lines_left: u64,
}

impl StopFile {
    /// Makes the file, and truncates an existing one. Fails if it cannot be made.
    pub(crate) fn create(path: &Path) -> io::Result<File> {
        File::options()
            .create(true)
            .write(true)
            .truncate(true)
            .open(path)
    }

    /// Writes the stops of a queue to a file.
    pub(crate) fn new(file: File, stops: Consumer<Stop>) -> StopFile {
        StopFile {
            stops,
            file: Some(file),
            lines_left: MOST_LINES,
        }
    }

    /// Writes the stops that were recorded since the last call. After [`MOST_LINES`] lines, further
    /// stops are dropped.
    pub(crate) fn write(&mut self) {
        let mut text = String::new();
        while let Ok(stop) = self.stops.pop() {
            if self.lines_left > 0 {
                self.lines_left -= 1;
                text.push_str(&format!("{stop}\n"));
            }
        }
        let Some(file) = self.file.as_mut().filter(|_| !text.is_empty()) else {
            return;
        };
        if let Err(error) = file.write_all(text.as_bytes()) {
            tracing::warn!(%error, "cannot write the file of stops");
            self.file = None;
        }
    }
}

/// Lines of a file: at about 30 bytes each, 30 MB.
const MOST_LINES: u64 = 1_000_000;

#[cfg(test)]
mod tests {
    use std::fs;

    use netnice_core::stops;
    use netnice_core::units::Instant;
    use rtrb::RingBuffer;

    use super::*;

    #[test]
    fn a_file_has_each_stop_once() {
        let name = format!("netnice-stops-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::write(&path, "of an earlier driver\n").expect("written");
        let (mut sender, stops) = RingBuffer::new(8);
        let mut file = StopFile::new(StopFile::create(&path).expect("a file"), stops);
        file.write();
        let recorded: Vec<Stop> = (1..4)
            .filter_map(|k| stops::woken(Instant(k), Instant(k * 100_000)))
            .collect();
        for stop in &recorded {
            sender.push(*stop).expect("room");
            file.write();
        }
        let text = fs::read_to_string(&path).expect("text");
        let read: Result<Vec<Stop>, _> = text.lines().map(str::parse).collect();
        assert_eq!(read, Ok(recorded));
        fs::remove_file(&path).expect("it was there");
    }
}
