//! A terminal for tests: [`Terminal`] starts a program on a pseudoterminal, types keys, and reads
//! the screen.
//!
//! The output of the program goes through an emulator of a terminal, so a test reads the characters
//! at their positions on the screen.
//!
//! Starting fails if no terminal can be made, if the size is 0, if the program cannot start, or if
//! stty(1) fails. Typing fails if the terminal does not take the keys, resizing if the size is 0 or
//! the kernel refuses it, and waiting after the time that the caller names. Reading the settings
//! fails if stty(1) fails.

use std::fs::File;
use std::io::{Read, Write};
use std::num::NonZeroU16;
use std::process::{Child, Command, ExitStatus};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::sys;

/// A program in a terminal. Dropping it kills the program's process group, unless the program has
/// ended.
pub struct Terminal {
    child: Child,
    user_end: File,
    /// Kept open, so that the settings can be read after the program has ended.
    program_end: File,
    /// The line settings before the program was started.
    initial: String,
    parser: Arc<Mutex<vt100::Parser>>,
}

impl Terminal {
    /// Starts a command (made by [`crate::world::Netns::command`] or [`crate::process::own_group`])
    /// in a terminal of this size in characters. Fails if the size is 0, if the terminal cannot be
    /// made, if the command cannot start, or if stty(1) fails.
    pub fn start(mut command: Command, columns: u16, rows: u16) -> Result<Terminal> {
        let (user_end, program_end) =
            sys::open_terminal(columns, rows).context("cannot make a terminal")?;
        let initial = settings(&program_end)?;
        let (high, wide) = (size(rows)?, size(columns)?);
        sys::start_in_terminal(&mut command);
        let child = command
            .env("TERM", "xterm-256color")
            .stdin(program_end.try_clone()?)
            .stdout(program_end.try_clone()?)
            .stderr(program_end.try_clone()?)
            .spawn()
            .with_context(|| format!("cannot start {:?}", command.get_program()))?;
        let parser = Arc::new(Mutex::new(vt100::Parser::new(high, wide, 0)));
        feed_emulator(user_end.try_clone()?, parser.clone());
        Ok(Terminal {
            child,
            user_end,
            program_end,
            initial,
            parser,
        })
    }

    /// The program's process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Types keys: `\r` is Enter, `\x1b` is Esc. Fails if the terminal does not take them.
    pub fn type_keys(&mut self, keys: &str) -> Result<()> {
        self.user_end
            .write_all(keys.as_bytes())
            .with_context(|| format!("cannot type {keys:?}"))
    }

    /// Changes the size of the terminal, in characters. Fails if it is 0, or if the kernel refuses
    /// the change.
    pub fn resize(&mut self, columns: u16, rows: u16) -> Result<()> {
        let (high, wide) = (size(rows)?, size(columns)?);
        self.parser().screen_mut().set_size(high, wide);
        sys::resize_terminal(&self.user_end, columns, rows).context("cannot resize the terminal")
    }

    /// The text on the screen, in lines.
    pub fn text(&self) -> String {
        self.parser().screen().contents()
    }

    /// Whether the program uses the alternate screen. A full-screen program leaves it at its end.
    pub fn is_full_screen(&self) -> bool {
        self.parser().screen().alternate_screen()
    }

    /// Whether the cursor is hidden.
    pub fn hides_cursor(&self) -> bool {
        self.parser().screen().hide_cursor()
    }

    /// Whether any character on the screen has a colour.
    pub fn has_colour(&self) -> bool {
        let parser = self.parser();
        let screen = parser.screen();
        let (rows, columns) = screen.size();
        let coloured = |(row, column): (u16, u16)| {
            screen.cell(row, column).is_some_and(|cell| {
                cell.fgcolor() != vt100::Color::Default || cell.bgcolor() != vt100::Color::Default
            })
        };
        let places = (0..rows.get()).flat_map(|row| (0..columns.get()).map(move |c| (row, c)));
        places.into_iter().any(coloured)
    }

    /// Waits until `is` accepts the text on the screen. Fails after `within` with an error that
    /// contains `what` and the text.
    pub fn wait_for(&self, what: &str, within: Duration, is: impl Fn(&str) -> bool) -> Result<()> {
        let until = Instant::now() + within;
        loop {
            let text = self.text();
            if is(&text) {
                return Ok(());
            }
            if Instant::now() > until {
                bail!("no {what} within {within:?}; the screen has:\n{text}");
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Whether the line settings are the same as before the program was started. Fails if stty(1)
    /// cannot start or fails.
    pub fn settings_are_restored(&self) -> Result<bool> {
        Ok(settings(&self.program_end)? == self.initial)
    }

    /// Waits for the program to end, and returns its status. Fails after `within`.
    pub fn wait(&mut self, within: Duration) -> Result<ExitStatus> {
        let until = Instant::now() + within;
        loop {
            if let Some(status) = self.child.try_wait()? {
                // The emulator reads the program's last output in this time.
                std::thread::sleep(Duration::from_millis(50));
                return Ok(status);
            }
            if Instant::now() > until {
                bail!(
                    "the program still runs after {within:?}; the screen has:\n{}",
                    self.text()
                );
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn parser(&self) -> MutexGuard<'_, vt100::Parser> {
        self.parser.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        if self.child.try_wait().is_ok_and(|ended| ended.is_none()) {
            let _ = sys::kill(-(self.child.id().cast_signed()), libc::SIGKILL);
            let _ = self.child.wait();
        }
    }
}

fn size(lines: u16) -> Result<NonZeroU16> {
    NonZeroU16::new(lines).context("the size of a terminal must not be 0")
}

/// The line settings, as stty(1) prints them.
fn settings(line: &File) -> Result<String> {
    let output = Command::new("stty")
        .arg("-g")
        .stdin(line.try_clone()?)
        .output()
        .context("cannot start stty")?;
    // Without this check, two failures would count as equal settings.
    if !output.status.success() {
        let why = String::from_utf8_lossy(&output.stderr);
        bail!("cannot read the settings of a terminal: {}", why.trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Feeds the emulator in a thread until the terminal is closed.
fn feed_emulator(mut from: File, parser: Arc<Mutex<vt100::Parser>>) {
    std::thread::spawn(move || {
        let mut bytes = vec![0; 64 * 1024];
        while let Ok(read) = from.read(&mut bytes)
            && read > 0
        {
            let mut parser = parser.lock().unwrap_or_else(PoisonError::into_inner);
            parser.process(&bytes[..read]);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_read_of_a_terminal_only() {
        let (_user_end, program_end) = sys::open_terminal(80, 24).expect("a terminal");
        assert!(!settings(&program_end).expect("settings").is_empty());
        let other = File::open("/dev/null").expect("a file");
        assert!(settings(&other).is_err());
    }
}
