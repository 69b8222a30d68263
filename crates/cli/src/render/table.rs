//! Formats tables with aligned columns ([`Table`]). If a table is wider than 80 columns
//! ([`WIDTH`]), columns take a shorter form of their texts, from the right, until the table fits.
//! Rows of cells come in, text goes out. No function fails; a table may still be too wide.

use super::{Style, WIDTH};

/// The content of one field: the text, and a shorter one for tables that are too wide.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Cell {
    long: String,
    short: String,
}

impl Cell {
    /// A text without a shorter form.
    pub(super) fn new(text: impl Into<String>) -> Cell {
        let long = text.into();
        Cell {
            short: long.clone(),
            long,
        }
    }

    /// A text with a shorter form.
    pub(super) fn with_short(long: String, short: String) -> Cell {
        Cell { long, short }
    }

    fn text(&self, short: bool) -> &str {
        if short { &self.short } else { &self.long }
    }
}

/// Rows under a heading, with notes between them.
#[derive(Debug)]
pub(super) struct Table {
    heading: Vec<&'static str>,
    lines: Vec<Line>,
}

#[derive(Debug)]
enum Line {
    Row(Vec<Cell>),
    Note(String),
}

impl Table {
    /// A table without rows. `heading` has a text for each column.
    pub(super) fn new(heading: &[&'static str]) -> Table {
        Table {
            heading: heading.to_vec(),
            lines: Vec::new(),
        }
    }

    /// Adds a row; its first cell is a name. A name that is too long for its column gets a line of
    /// its own.
    pub(super) fn row(&mut self, mut cells: Vec<Cell>) {
        if let Some(first) = cells.first_mut()
            && width(&first.long) > LONGEST_NAME
        {
            let name = std::mem::take(first).long;
            self.lines.push(Line::Note(name));
        }
        self.lines.push(Line::Row(cells));
    }

    /// Adds an indented, wrapped line between the rows.
    pub(super) fn note(&mut self, text: &str) {
        let lines = wrap(text, "  ", "    ");
        self.lines.extend(lines.into_iter().map(Line::Note));
    }

    /// The table as lines of text, without a line end behind the last one.
    pub(super) fn render(&self, style: &Style) -> String {
        // Columns take their short form, from the right, until the table fits.
        let columns = self.heading.len();
        let shortened = (0..=columns).find(|n| self.total(*n) <= WIDTH);
        let shortened = shortened.unwrap_or(columns);
        let widths = self.widths(shortened);
        let mut out = Vec::new();
        let heading: Vec<&str> = self.heading.clone();
        out.push(style.heading(&aligned(&heading, &widths)));
        for line in &self.lines {
            out.push(match line {
                Line::Note(text) => text.clone(),
                Line::Row(cells) => {
                    let texts: Vec<&str> = cells
                        .iter()
                        .enumerate()
                        .map(|(column, cell)| cell.text(column + shortened >= columns))
                        .collect();
                    aligned(&texts, &widths)
                }
            });
        }
        out.join("\n")
    }

    /// The width of each column if the last `shortened` columns are short.
    fn widths(&self, shortened: usize) -> Vec<usize> {
        let columns = self.heading.len();
        let mut widths: Vec<usize> = self.heading.iter().map(|text| width(text)).collect();
        for line in &self.lines {
            let Line::Row(cells) = line else { continue };
            for (column, cell) in cells.iter().enumerate() {
                let text = cell.text(column + shortened >= columns);
                widths[column] = widths[column].max(width(text));
            }
        }
        widths
    }

    fn total(&self, shortened: usize) -> usize {
        let widths = self.widths(shortened);
        widths.iter().sum::<usize>() + GAP * widths.len().saturating_sub(1)
    }
}

/// Wraps text to [`WIDTH`] columns; the first line begins with `first`, the others with `rest`. A
/// longer word has a line of its own.
pub(super) fn wrap(text: &str, first: &str, rest: &str) -> Vec<String> {
    let mut lines = Vec::new();
    let mut line = first.to_string();
    let mut begun = false;
    for word in text.split_whitespace() {
        if begun && width(&line) + 1 + width(word) > WIDTH {
            lines.push(std::mem::replace(&mut line, rest.to_string()));
            begun = false;
        }
        if begun {
            line.push(' ');
        }
        line.push_str(word);
        begun = true;
    }
    lines.push(line);
    lines
}

/// Pads the texts to their columns, and trims the end.
fn aligned(texts: &[&str], widths: &[usize]) -> String {
    let padded: Vec<String> = texts
        .iter()
        .zip(widths)
        .map(|(text, width)| format!("{text:<width$}"))
        .collect();
    padded.join(&" ".repeat(GAP)).trim_end().to_string()
}

/// Columns that a text takes: its number of characters, which is exact for ASCII.
fn width(text: &str) -> usize {
    text.chars().count()
}

/// Number of blanks between two columns of a table.
const GAP: usize = 2;

/// Longest name in a row; it leaves space for a direction and three rates in their first form.
const LONGEST_NAME: usize = 22;
