//! Builds a page of `netnice explain` ([`Page`]) from rows of a label and a text. A page becomes
//! the lines of an [`Explained`]. Nothing here can fail.

use netnice_api::Explained;

/// A page of `netnice explain` under construction: rows of a label and a text, wrapped at 80
/// columns.
#[derive(Default)]
pub struct Page {
    lines: Vec<String>,
}

impl Page {
    /// A page that begins with the lines of an earlier one.
    pub fn after(explained: Explained) -> Page {
        Page {
            lines: explained.lines,
        }
    }

    /// Adds a row, on as many lines as its text needs. The text begins in column 12. A word that is
    /// longer than a line is not broken.
    pub fn row(&mut self, label: &str, text: &str) {
        let mut line = format!("{label:<LABEL$}");
        let mut width = 0;
        for word in text.split_whitespace() {
            let needs = word.chars().count();
            if width > 0 && LABEL + width + 1 + needs > COLUMNS {
                self.lines.push(line);
                line = " ".repeat(LABEL);
                width = 0;
            }
            if width > 0 {
                line.push(' ');
                width += 1;
            }
            line.push_str(word);
            width += needs;
        }
        self.lines.push(line);
    }
}

impl From<Page> for Explained {
    fn from(page: Page) -> Explained {
        Explained { lines: page.lines }
    }
}

/// Width of the label column, in characters.
const LABEL: usize = 11;
/// Width of a line, in characters.
const COLUMNS: usize = 80;
