//! Formats rates, counts and times in few characters, and cuts or wraps texts to a width. No
//! function fails.

use netnice_core::units::Nanos;

/// A rate in bit/s with three digits and a prefix: `0`, `734`, `4.19M`, `41.9M`, `419M`. At most
/// five characters.
pub(super) fn rate(bits: u64) -> String {
    figures(bits, false)
}

/// As [`rate`], without zeros behind the point: `4M`, `4.19M`. For rates that a user typed, which
/// are often round.
pub(super) fn round(bits: u64) -> String {
    figures(bits, true)
}

/// A count: `17`, `3.2k`.
pub(super) fn short(count: u64) -> String {
    figures(count, true)
}

/// A number of processors as a percentage of one: `0%`, `7.5%`, `180%`. Without the sign from
/// 10,000 % on. At most five characters up to 999 processors.
pub(super) fn share_of(processors: f64) -> String {
    let percent = processors.max(0.0) * 100.0;
    match percent {
        _ if percent < 0.05 => "0%".to_string(),
        _ if percent < 9.95 => format!("{percent:.1}%"),
        _ if percent < 9_999.5 => format!("{percent:.0}%"),
        _ => format!("{percent:.0}"),
    }
}

fn figures(number: u64, trim: bool) -> String {
    let (mut size, mut prefix) = (1_u64, "");
    for next in ["k", "M", "G", "T", "P", "E"] {
        // From 999.5 of a unit on, the text is 1.00 of the next unit.
        if u128::from(number) * 2 < u128::from(size) * 1999 {
            break;
        }
        (size, prefix) = (size * 1000, next);
    }
    if size == 1 {
        return number.to_string();
    }
    // Hundredths of the unit, rounded; then as many decimals as make three digits.
    let hundredths = (u128::from(number) * 100 + u128::from(size) / 2) / u128::from(size);
    let tenths = (u128::from(number) * 10 + u128::from(size) / 2) / u128::from(size);
    let whole = (u128::from(number) + u128::from(size) / 2) / u128::from(size);
    let text = match hundredths {
        0..1000 => format!("{}.{:02}", hundredths / 100, hundredths % 100),
        _ if tenths < 1000 => format!("{}.{}", tenths / 10, tenths % 10),
        _ => whole.to_string(),
    };
    let text = match trim && text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.'),
        false => &text,
    };
    format!("{text}{prefix}")
}

/// A waiting time, rounded up to tenths of a millisecond: `-` for 0, below 10 ms with the tenth
/// (`0.4ms`), below 1 s in whole milliseconds (`17ms`), else in tenths of a second (`1.2s`); the
/// last two without the remaining digits.
pub(super) fn wait(time: Nanos) -> String {
    let tenths = time.0.div_ceil(100_000);
    match tenths {
        0 => "-".to_string(),
        1..100 => format!("{}.{}ms", tenths / 10, tenths % 10),
        100..10_000 => format!("{}ms", tenths / 10),
        _ => format!("{}.{}s", tenths / 10_000, tenths / 1000 % 10),
    }
}

/// Cuts a text to `most` characters; a cut text ends with `~`.
pub(super) fn cut(text: &str, most: usize) -> String {
    if text.chars().count() <= most {
        return text.to_string();
    }
    let kept: String = text.chars().take(most.saturating_sub(1)).collect();
    match most {
        0 => kept,
        _ => format!("{kept}~"),
    }
}

/// Wraps a text into at most `most` lines of at most `width` characters. A word that is longer than
/// a line, and a text with more lines, are cut, and end with `~`.
pub(super) fn wrapped(text: &str, width: usize, most: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        let fits = |line: &String| line.chars().count() + 1 + word.chars().count() <= width;
        match lines.last_mut().filter(|line| fits(line)) {
            Some(line) => {
                line.push(' ');
                line.push_str(word);
            }
            None => lines.push(cut(word, width)),
        }
    }
    if lines.len() > most {
        lines.truncate(most);
        if let Some(last) = lines.last_mut() {
            *last = cut(&format!("{last} ~"), width);
        }
    }
    lines
}
