//! Formats the traffic of every program as a table, for `show --all` and the plain tables of `top`.
//! Documents of the daemon come in, text goes out. No function fails.

use netnice_api::{ProgramDoc, ProgramsDoc, TrafficSum};
use netnice_core::units::Amount;

use super::table::wrap;
use super::{Style, printable};

/// Formats the programs that sent or received since counting began, and the sums of the traffic
/// that is in no row. Columns take the width that their texts need; if that is more than `width`,
/// units and then commands are cut. `None`: nothing is cut.
pub(crate) fn programs(doc: &ProgramsDoc, style: &Style, width: Option<usize>) -> String {
    let mut rows: Vec<[String; COLUMNS]> = doc.list.iter().map(row).collect();
    rows.extend(sums(doc).into_iter().map(|(name, sum)| sum_row(name, sum)));
    let mut widths: [usize; COLUMNS] = std::array::from_fn(|column| {
        let texts = rows.iter().map(|row| row[column].chars().count());
        texts.chain([HEADING[column].len()]).max().unwrap_or(0)
    });
    if let Some(most) = width {
        for (column, least) in [(UNIT, 6), (COMMAND, 10)] {
            let all = widths.iter().sum::<usize>() + GAP * (COLUMNS - 1);
            let over = all.saturating_sub(most);
            widths[column] = widths[column]
                .saturating_sub(over)
                .max(least.min(widths[column]));
        }
    }
    let mut lines = vec![style.heading(&line(&HEADING.map(str::to_owned), &widths))];
    lines.extend(rows.iter().map(|row| line(row, &widths)));
    if doc.list.is_empty() {
        lines.push("no program has sent or received anything".to_owned());
    }
    for remark in &doc.remarks {
        lines.extend(wrap(&printable(remark), "", "  "));
    }
    lines.join("\n")
}

/// The sums of traffic that is in no row of a program, with a name for each.
pub(crate) fn sums(doc: &ProgramsDoc) -> Vec<(String, TrafficSum)> {
    let counted = |text: &str, sum: TrafficSum| match sum.programs {
        0 => text.to_owned(),
        programs => format!("{programs} {text}"),
    };
    let all = [
        (counted("more", doc.more), doc.more),
        (counted("ended", doc.ended), doc.ended),
        ("no process".to_owned(), doc.unknown),
        ("not by program".to_owned(), doc.overflow),
        (counted("of others", doc.others), doc.others),
    ];
    all.into_iter().filter(|(_, sum)| !sum.is_zero()).collect()
}

fn row(program: &ProgramDoc) -> [String; COLUMNS] {
    let rate = |bits: u64| Amount(bits).bits_text();
    let command = printable(&program.command);
    [
        match program.ended {
            true => format!("{command} (ended)"),
            false => command,
        },
        program.pid.to_string(),
        printable(user(program)),
        group(program),
        rate(program.up_rate),
        rate(program.down_rate),
        program.connections.to_string(),
    ]
}

fn sum_row(name: String, sum: TrafficSum) -> [String; COLUMNS] {
    let rate = |bits: u64| Amount(bits).bits_text();
    let mut row: [String; COLUMNS] = std::array::from_fn(|_| String::new());
    row[COMMAND] = format!("({name})");
    row[UP] = rate(sum.up_rate);
    row[UP + 1] = rate(sum.down_rate);
    row
}

/// The user of a program, without the word `user`.
pub(crate) fn user(program: &ProgramDoc) -> &str {
    program.user.strip_prefix("user ").unwrap_or(&program.user)
}

/// The unit or the container of a program; empty without one.
pub(crate) fn group(program: &ProgramDoc) -> String {
    match (&program.unit, &program.container) {
        (_, Some(id)) => format!("container:{}", printable(id)),
        (Some(unit), None) => printable(unit),
        (None, None) => String::new(),
    }
}

/// Aligns the texts in their columns: numbers right, others left.
fn line(texts: &[String; COLUMNS], widths: &[usize; COLUMNS]) -> String {
    let cells = texts.iter().zip(widths).enumerate();
    let cells: Vec<String> = cells
        .map(|(column, (text, width))| {
            let text = match text.chars().count() > *width {
                true => text
                    .chars()
                    .take(width.saturating_sub(1))
                    .chain(['~'])
                    .collect(),
                false => text.clone(),
            };
            match column == PID || column >= UP {
                true => format!("{text:>width$}"),
                false => format!("{text:<width$}"),
            }
        })
        .collect();
    cells.join(&" ".repeat(GAP)).trim_end().to_owned()
}

const HEADING: [&str; COLUMNS] = ["PROGRAM", "PID", "USER", "UNIT", "UP", "DOWN", "CONN"];
const COLUMNS: usize = 7;
const COMMAND: usize = 0;
const PID: usize = 1;
const UNIT: usize = 3;
const UP: usize = 4;
/// Number of blanks between two columns.
const GAP: usize = 2;

#[cfg(test)]
mod tests {
    use super::*;

    fn doc() -> ProgramsDoc {
        let program = ProgramDoc {
            pid: 25340,
            command: "iperf3".into(),
            user: "user ann".into(),
            unit: Some("user@1000.service".into()),
            up_rate: 4_000_000,
            connections: 2,
            ..ProgramDoc::default()
        };
        let ended = ProgramDoc {
            pid: 7,
            command: "curl".into(),
            user: "root".into(),
            ended: true,
            ..ProgramDoc::default()
        };
        ProgramsDoc {
            list: vec![program, ended],
            others: TrafficSum {
                programs: 3,
                down_rate: 1_000_000,
                ..TrafficSum::default()
            },
            ..ProgramsDoc::default()
        }
    }

    #[test]
    fn programs_and_the_sums_of_others_are_rows_of_one_table() {
        let text = programs(&doc(), &Style::default(), None);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 4, "{text}");
        assert!(
            lines[0].starts_with("PROGRAM          PID  USER  UNIT"),
            "{text}"
        );
        assert!(lines[1].starts_with("iperf3         25340  ann   user@1000.service  4 Mbit/s"));
        assert!(lines[2].starts_with("curl (ended)       7  root"), "{text}");
        assert!(lines[3].starts_with("(3 of others)"), "{text}");
        assert!(lines[3].ends_with("1 Mbit/s"), "{text}");
    }

    #[test]
    fn units_are_cut_if_the_table_is_too_wide() {
        let text = programs(&doc(), &Style::default(), Some(70));
        assert!(
            text.lines().all(|line| line.chars().count() <= 70),
            "{text}"
        );
        assert!(text.contains('~') && text.contains("iperf3"), "{text}");
    }
}
