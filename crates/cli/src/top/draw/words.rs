//! Numbers in very few letters.

use netnice_core::units::Nanos;

/// A rate in three figures and its prefix: `0`, `734`, `4.19M`, `41.9M`, `419M`. At most five letters.
pub(super) fn rate(bits: u64) -> String {
    figures(bits, false)
}

/// The same without zeros at the end: `4M`, `4.19M`. What somebody typed is round.
pub(super) fn round(bits: u64) -> String {
    figures(bits, true)
}

/// A count: `17`, `3.2k`.
pub(super) fn short(count: u64) -> String {
    figures(count, true)
}

fn figures(number: u64, trim: bool) -> String {
    let (mut size, mut prefix) = (1_u64, "");
    for next in ["k", "M", "G", "T", "P", "E"] {
        // 999.5 of a size is 1.00 of the next one.
        if u128::from(number) * 2 < u128::from(size) * 1999 {
            break;
        }
        (size, prefix) = (size * 1000, next);
    }
    if size == 1 {
        return number.to_string();
    }
    // Hundredths of the size, rounded; then as many places as make three figures.
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

/// A waiting time: `-`, `0.4ms`, `17ms`, `1.2s`.
pub(super) fn wait(time: Nanos) -> String {
    let tenths = time.0.div_ceil(100_000);
    match tenths {
        0 => "-".to_string(),
        1..100 => format!("{}.{}ms", tenths / 10, tenths % 10),
        100..10_000 => format!("{}ms", tenths / 10),
        _ => format!("{}.{}s", tenths / 10_000, tenths / 1000 % 10),
    }
}

/// A text of at most so many letters; where some are left out, the last one says so.
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

/// A text in lines, at most so many.
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
