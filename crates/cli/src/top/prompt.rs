//! One line that a person types at the bottom of the screen.

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

/// A line and the place in it where the next letter goes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Prompt {
    text: Vec<char>,
    at: usize,
}

/// What a key did to the line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Typed {
    /// It is still being typed.
    More,
    /// It is done.
    Enter,
    /// It is given up.
    Escape,
}

impl Prompt {
    /// A line that begins with this.
    pub(super) fn with(text: &str) -> Prompt {
        let text: Vec<char> = text.chars().collect();
        Prompt {
            at: text.len(),
            text,
        }
    }

    /// What was typed.
    pub(super) fn text(&self) -> String {
        self.text.iter().collect()
    }

    /// How many letters are left of the cursor.
    pub(super) fn cursor(&self) -> usize {
        self.at
    }

    /// Takes in a key.
    pub(super) fn handle_key(&mut self, key: KeyEvent) -> Typed {
        let control = key.modifiers.contains(KeyModifiers::CONTROL);
        match key.code {
            KeyCode::Enter => return Typed::Enter,
            KeyCode::Esc => return Typed::Escape,
            KeyCode::Char('c' | 'g') if control => return Typed::Escape,
            KeyCode::Char('u') if control => {
                self.text.drain(..self.at);
                self.at = 0;
            }
            KeyCode::Char('w') if control => {
                let blank = |c: &char| c.is_whitespace();
                while self.at > 0 && blank(&self.text[self.at - 1]) {
                    self.rub_out();
                }
                while self.at > 0 && !blank(&self.text[self.at - 1]) {
                    self.rub_out();
                }
            }
            KeyCode::Char('a') if control => self.at = 0,
            KeyCode::Char('e') if control => self.at = self.text.len(),
            KeyCode::Char('h') if control => self.rub_out(),
            KeyCode::Char(_) if control => {}
            KeyCode::Char(letter) if self.text.len() < LONGEST => {
                self.text.insert(self.at, letter);
                self.at += 1;
            }
            KeyCode::Backspace => self.rub_out(),
            KeyCode::Delete if self.at < self.text.len() => {
                self.text.remove(self.at);
            }
            KeyCode::Left => self.at = self.at.saturating_sub(1),
            KeyCode::Right => self.at = (self.at + 1).min(self.text.len()),
            KeyCode::Home => self.at = 0,
            KeyCode::End => self.at = self.text.len(),
            _ => {}
        }
        Typed::More
    }

    fn rub_out(&mut self) {
        if self.at > 0 {
            self.at -= 1;
            self.text.remove(self.at);
        }
    }
}

/// No contract is longer.
const LONGEST: usize = 500;
