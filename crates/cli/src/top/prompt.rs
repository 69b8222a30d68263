//! The input line at the bottom of the screen ([`Prompt`]): its text, its cursor, and what keys do.
//! No function fails.

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

/// A line and its cursor position.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Prompt {
    text: Vec<char>,
    /// Characters before the cursor.
    at: usize,
}

/// The effect of a key on the line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KeyEffect {
    /// The user is still typing.
    Editing,
    /// The line is complete.
    Submitted,
    /// The user cancelled the line.
    Cancelled,
}

impl Prompt {
    /// A line that begins with this text.
    pub(super) fn with_text(text: &str) -> Prompt {
        let text: Vec<char> = text.chars().collect();
        Prompt {
            at: text.len(),
            text,
        }
    }

    /// The text of the line.
    pub(super) fn text(&self) -> String {
        self.text.iter().collect()
    }

    /// Number of characters before the cursor.
    pub(super) fn cursor(&self) -> usize {
        self.at
    }

    /// Processes a key.
    pub(super) fn handle_key(&mut self, key: KeyEvent) -> KeyEffect {
        let control = key.modifiers.contains(KeyModifiers::CONTROL);
        match key.code {
            KeyCode::Enter => return KeyEffect::Submitted,
            KeyCode::Esc => return KeyEffect::Cancelled,
            KeyCode::Char('c' | 'g') if control => return KeyEffect::Cancelled,
            KeyCode::Char('u') if control => {
                self.text.drain(..self.at);
                self.at = 0;
            }
            KeyCode::Char('w') if control => {
                let blank = |c: &char| c.is_whitespace();
                while self.at > 0 && blank(&self.text[self.at - 1]) {
                    self.delete_before();
                }
                while self.at > 0 && !blank(&self.text[self.at - 1]) {
                    self.delete_before();
                }
            }
            KeyCode::Char('a') if control => self.at = 0,
            KeyCode::Char('e') if control => self.at = self.text.len(),
            KeyCode::Char('h') if control => self.delete_before(),
            KeyCode::Char(_) if control => {}
            KeyCode::Char(c) if self.text.len() < MAX_LENGTH => {
                self.text.insert(self.at, c);
                self.at += 1;
            }
            KeyCode::Backspace => self.delete_before(),
            KeyCode::Delete if self.at < self.text.len() => {
                self.text.remove(self.at);
            }
            KeyCode::Left => self.at = self.at.saturating_sub(1),
            KeyCode::Right => self.at = (self.at + 1).min(self.text.len()),
            KeyCode::Home => self.at = 0,
            KeyCode::End => self.at = self.text.len(),
            _ => {}
        }
        KeyEffect::Editing
    }

    fn delete_before(&mut self) {
        if self.at > 0 {
            self.at -= 1;
            self.text.remove(self.at);
        }
    }
}

/// Longest line in characters; no contract is longer.
const MAX_LENGTH: usize = 500;
