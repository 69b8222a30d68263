//! The reason of a refusal for other hosts ([`reason_for_others`]).

/// A refusal of netniced in one line, for another host: without the link, and without what is
/// promised to others. Any other text is returned without its `refused: `.
///
/// netniced's refusals have a first line and rows of two blanks, a label and a text; rows that
/// begin with more blanks continue the one before.
///
/// ```
/// use netnice_api::channels::reason_for_others;
///
/// let refusal = "refused: process 7 asks min 40mbit on eth0, which does not fit\n  \
///                held        flow:1  min 50mbit\n              flow:2  min 20mbit\n  \
///                but         110 Mbit/s > 100 Mbit/s\n  would fit   at most 30 Mbit/s";
/// let reason = "process 7 asks min 40mbit on eth0, which does not fit: 110 Mbit/s > 100 Mbit/s; \
///               would fit: at most 30 Mbit/s";
/// assert_eq!(reason_for_others(refusal), reason);
/// ```
pub fn reason_for_others(refusal: &str) -> String {
    let mut lines = refusal.lines();
    let first = lines.next().unwrap_or_default();
    let mut reason = first.strip_prefix("refused: ").unwrap_or(first).to_owned();
    let mut is_told = true;
    for line in lines {
        let row = line.strip_prefix("  ").filter(|row| !row.starts_with(' '));
        let Some(row) = row else {
            if is_told {
                reason.push(' ');
                reason.push_str(line.trim());
            }
            continue;
        };
        let (label, text) = row.split_once("  ").unwrap_or((row, ""));
        is_told = !matches!(label, "held" | "link");
        if is_told {
            reason.push_str(&match label {
                "but" => ": ".to_owned(),
                label => format!("; {label}: "),
            });
            reason.push_str(text.trim());
        }
    }
    reason
}
