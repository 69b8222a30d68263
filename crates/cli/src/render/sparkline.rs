//! Formats a series of numbers as a sparkline: a row of characters, one for each number, whose
//! heights stand for the values. No function fails.

/// The nine characters of a sparkline: for zero and for eight heights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sparkline([char; 9]);

impl Sparkline {
    /// The characters for a Unicode or an ASCII terminal.
    pub(crate) fn new(unicode: bool) -> Sparkline {
        Sparkline(match unicode {
            true => [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'],
            false => [' ', '.', ',', ':', '-', '=', '+', '*', '#'],
        })
    }

    /// Formats the latest numbers, one character each, aligned to the right of `width`. Numbers
    /// from `full` on have the full height; `None` takes the largest number.
    pub(crate) fn row(self, numbers: &[u64], full: Option<u64>, width: usize) -> String {
        let latest = &numbers[numbers.len().saturating_sub(width)..];
        let most = latest.iter().copied().max().unwrap_or(0);
        let full = full.unwrap_or(most).max(1);
        let step = |number: &u64| {
            let eighths = (u128::from(*number) * 8).div_ceil(u128::from(full));
            self.0[usize::try_from(eighths).unwrap_or(8).min(8)]
        };
        let known: String = latest.iter().map(step).collect();
        format!("{known:>width$}")
    }
}

/// True if the locale's character set is UTF-8.
pub(crate) fn unicode_locale() -> bool {
    let set = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
    let locale = ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().find_map(set);
    let locale = locale.unwrap_or_default().to_lowercase();
    locale.contains("utf-8") || locale.contains("utf8")
}
