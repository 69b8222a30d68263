//! A page of `netnice explain`: rows of a label and a text, broken into lines.

use netnice_api::Explained;

/// Lines of a label and a text.
#[derive(Default)]
pub struct Page {
    lines: Vec<String>,
}

impl Page {
    /// What follows what is told already.
    pub fn after(told: Explained) -> Page {
        Page { lines: told.lines }
    }

    /// Adds a text, on as many lines as it takes.
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

/// Width of a label.
const LABEL: usize = 11;
/// Width of a line.
const COLUMNS: usize = 80;
