//! Prints foreign text inside a message: [`Escaped`] puts the text in back-quotes, escapes
//! backslashes, combining marks and all characters that are not printable, and cuts the text after
//! [`LONGEST`] characters.
//!
//! Text from a socket or a command line may be long, and its control characters could move the
//! cursor of the terminal that shows the message. Printing fails only if the output fails.

use core::fmt;

/// Foreign text for messages. `Display` prints it in back-quotes, and escapes backslashes,
/// combining marks and characters that are not printable. Of a text of more than 48 characters it
/// prints the first 48 and `…`.
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

/// The largest number of characters of the text that are shown.
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
