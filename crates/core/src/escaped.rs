//! Prints foreign text inside a message: [`Escaped`] puts it in back-quotes, escapes its control
//! characters, and cuts it after [`LONGEST`] characters.
//!
//! Text from a socket or a command line may be long, and its control characters could move the
//! cursor of the terminal that shows the message.

use core::fmt;

/// Foreign text for messages. `Display` prints it in back-quotes, with control characters escaped.
/// Of a longer text it prints 48 characters and `…`.
#[derive(Clone, Copy, Debug)]
pub struct Escaped<'a>(pub &'a str);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("`")?;
        for (n, c) in self.0.chars().enumerate() {
            if n == LONGEST {
                f.write_str("…")?;
                break;
            }
            if c == '\'' || c == '"' {
                write!(f, "{c}")?;
            } else {
                write!(f, "{}", c.escape_debug())?;
            }
        }
        f.write_str("`")
    }
}

/// The number of characters of the text that are shown. Every valid word is shorter, and a message
/// with one such text fits on a line of 80 columns.
const LONGEST: usize = 48;

#[cfg(test)]
mod tests {
    use super::Escaped;
    use alloc::string::ToString;

    #[test]
    fn control_characters_are_escaped_and_long_text_is_cut() {
        assert_eq!(Escaped("4mbit").to_string(), "`4mbit`");
        assert_eq!(Escaped("a\u{1b}[2Jb").to_string(), "`a\\u{1b}[2Jb`");
        let long = "x".repeat(60_000);
        assert_eq!(Escaped(&long).to_string().chars().count(), 48 + 3);
    }
}
