//! Draws the screen: the lines, the columns and their widths.
//!
//! Input is a [`Screen`]; output is a buffer of characters, with these lines from top to bottom. A
//! terminal below 60 x 6 characters gets a notice instead.
//!
//! ```text
//!   title, number of targets, total rates, interval
//!   each managed link                                        (at most three)
//!   heading
//!   rows; below a row that the user opened its connections   (at most 40)
//!   the selected target in full, and why it is degraded
//!   latest event
//!   the keys; or the input line, or a question
//! ```
//!
//! The module `columns` divides the width. No information is in colour alone: the selected row
//! begins with `>`, a degraded one has `!`.
//!
//! No function fails.

mod columns;
mod connections;
mod format;

use netnice_api::{SliceDoc, Traffic, Watched};
use netnice_core::contract::Direction;
use netnice_core::units::{Amount, Nanos};
use ratatui::Frame;
use ratatui::buffer::Buffer;
use ratatui::layout::{Position, Rect};
use ratatui::style::{Color, Modifier, Style};

use super::screen::{Mode, Screen, Subject};
use super::table::{Row, title};
use crate::render::sparkline::{Sparkline, unicode_locale};
use crate::render::{self, printable};
use columns::{Column, ColumnKind, columns};
use connections::connections;
use format::{cut, rate, share_of, wait, wrapped};

/// What the terminal can show.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct TerminalStyle {
    /// True if colours may be used.
    pub colour: bool,
    /// True if characters beyond ASCII may be used.
    pub unicode: bool,
}

impl TerminalStyle {
    /// Reads the environment: `NO_COLOR`, and the character set of the locale.
    pub(super) fn of_environment() -> TerminalStyle {
        let unwanted = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        TerminalStyle {
            colour: !unwanted,
            unicode: unicode_locale(),
        }
    }

    fn coloured(self, colour: Color) -> Style {
        match self.colour {
            true => Style::new().fg(colour),
            false => Style::new(),
        }
    }
}

/// Draws the screen, and stores the number of rows on a page in [`Screen::page`].
pub(super) fn draw(screen: &mut Screen, terminal: TerminalStyle, frame: &mut Frame<'_>) {
    let cursor = paint(screen, terminal, frame.buffer_mut());
    if let Some(cursor) = cursor {
        frame.set_cursor_position(cursor);
    }
}

/// Paints the whole screen. Returns the position of the input cursor; `None` if no input line is
/// shown.
pub(super) fn paint(
    screen: &mut Screen,
    terminal: TerminalStyle,
    buffer: &mut Buffer,
) -> Option<Position> {
    let area = buffer.area;
    if area.width < MIN_WIDTH || area.height < MIN_HEIGHT {
        let text = format!("at least {MIN_WIDTH} x {MIN_HEIGHT}");
        buffer.set_stringn(0, 0, text, area.width.into(), Style::new());
        return None;
    }
    if screen.mode == Mode::Help {
        help(terminal, buffer);
        return None;
    }
    let width = usize::from(area.width);
    let rows = screen.table.rows(&screen.view);
    let header = header(screen, terminal, width);
    let footer = footer(screen, &rows, terminal, width);
    let mut y = 0;
    for (text, style) in &header {
        buffer.set_stringn(0, y, text, width, *style);
        y += 1;
    }
    let footer_y = area.height
        - u16::try_from(footer.len())
            .unwrap_or(0)
            .min(area.height - y);
    let body = Rect::new(0, y, area.width, footer_y - y);
    screen.page = usize::from(body.height).saturating_sub(1);
    table(screen, &rows, terminal, body, buffer);
    for (y, (text, style)) in (footer_y..).zip(&footer) {
        buffer.set_stringn(0, y, text, width, *style);
    }
    cursor(screen, area)
}

/// Draws one frame with all rows as lines of text.
pub(super) fn frame_lines(screen: &mut Screen, terminal: TerminalStyle, width: u16) -> Vec<String> {
    let rows = screen.table.rows(&screen.view);
    let header = header(screen, TerminalStyle::default(), usize::from(width));
    let lines = rows.len().max(1) + 1;
    let height = u16::try_from(lines).unwrap_or(u16::MAX);
    let mut buffer = Buffer::empty(Rect::new(0, 0, width, height));
    screen.selected = None;
    let area = buffer.area;
    table(screen, &rows, terminal, area, &mut buffer);
    let line = |y: u16| -> String {
        let cells = (0..width).map(|x| buffer[(x, y)].symbol());
        cells.collect::<String>().trim_end().to_string()
    };
    let header = header
        .into_iter()
        .map(|(text, _)| text.trim_end().to_string());
    header.chain((0..height).map(line)).collect()
}

/// The lines above the table.
fn header(screen: &Screen, terminal: TerminalStyle, width: usize) -> Vec<(String, Style)> {
    let table = &screen.table;
    let [up, down] = Direction::ALL.map(|direction| rate(table.total(direction)));
    let mut parts = vec![
        "netnice top".to_string(),
        match table.targets() {
            1 => "1 target".to_string(),
            targets => format!("{targets} targets"),
        },
        match table.programs() {
            None => format!("{} moving", table.moving_targets()),
            Some(doc) if doc.list.len() == 1 => "1 program".to_string(),
            Some(doc) => format!("{} programs", doc.list.len() as u64 + doc.more.programs),
        },
        format!("up {up}bit/s"),
        format!("down {down}bit/s"),
        format!("every {}", screen.interval),
    ];
    if !screen.view.filter.is_empty() {
        parts.push(format!("/{}", printable(&screen.view.filter)));
    }
    if screen.paused {
        parts.push("PAUSED".to_string());
    }
    let title = Style::new().add_modifier(Modifier::BOLD);
    let mut lines = vec![(cut(&parts.join("  "), width), title)];
    for link in table.doc().links.iter().take(MAX_LINKS) {
        let side = |word: &str, capacity: Option<u64>, is_estimated: bool, held: u64| {
            let about = if is_estimated { "about " } else { "" };
            let capacity = format::round(capacity?);
            Some(match held {
                0 => format!("  {word} {about}{capacity}bit/s"),
                held => format!(
                    "  {word} {about}{capacity}bit/s, {} promised",
                    format::round(held)
                ),
            })
        };
        let mut text = printable(&link.link);
        text.extend(side("up", link.up, link.up_estimated, link.up_held));
        text.extend(side("down", link.down, link.down_estimated, link.down_held));
        let mut style = Style::new();
        if let Some(why) = link.degraded.first() {
            text.push_str(&format!("  degraded: {}", printable(why)));
            style = terminal.coloured(Color::Red);
        }
        lines.push((cut(&text, width), style));
    }
    if let Some(doc) = table.programs() {
        let sums: Vec<String> = render::sums(doc)
            .into_iter()
            .filter(|(_, sum)| sum.up_rate > 0 || sum.down_rate > 0)
            .map(|(name, sum)| {
                format!(
                    "{name} up {} down {}",
                    rate(sum.up_rate),
                    rate(sum.down_rate)
                )
            })
            .collect();
        if !sums.is_empty() {
            let text = format!("besides  {}", sums.join("  "));
            lines.push((cut(&text, width), Style::new()));
        }
        for remark in doc.remarks.iter().take(1) {
            let style = terminal.coloured(Color::Red);
            lines.push((cut(&printable(remark), width), style));
        }
    }
    lines
}

/// The lines below the table.
fn footer(
    screen: &Screen,
    rows: &[Row],
    terminal: TerminalStyle,
    width: usize,
) -> Vec<(String, Style)> {
    let mut lines = Vec::new();
    let selected = screen.at(rows).map(|at| screen.table.target(&rows[at]));
    if let Some(target) = selected {
        let text = target_details(target) + &program_details(screen, target);
        lines.extend(
            wrapped(&text, width, 1)
                .into_iter()
                .map(|l| (l, Style::new())),
        );
        for quota in target.quotas.iter().take(2) {
            let text = wrapped(&render::quota_line(quota), width, 2);
            lines.extend(text.into_iter().map(|line| (line, Style::new())));
        }
        if let Some(why) = target.degraded.first() {
            let why = wrapped(&format!("degraded: {}", printable(why)), width, 2);
            lines.extend(
                why.into_iter()
                    .map(|line| (line, terminal.coloured(Color::Red))),
            );
        }
    }
    let status = &screen.status;
    if !status.text.is_empty() {
        let style = match status.is_error {
            true => terminal.coloured(Color::Red).add_modifier(Modifier::BOLD),
            false => terminal.coloured(Color::Green),
        };
        let text = wrapped(&printable(&status.text), width, MAX_STATUS_LINES);
        lines.extend(text.into_iter().map(|line| (line, style)));
    }
    let dim = Style::new().add_modifier(Modifier::DIM);
    lines.push(match &screen.mode {
        Mode::Prompt(subject, prompt) => (
            format!("{}{}", prompt_label(screen, subject, width), prompt.text()),
            Style::new(),
        ),
        Mode::ConfirmClear(target) => {
            let text = format!("remove your contract of {}? y or n", printable(target));
            (cut(&text, width), Style::new().add_modifier(Modifier::BOLD))
        }
        Mode::Table | Mode::Help => (cut(KEYS, width), dim),
    });
    lines
}

/// The label of the input line.
fn prompt_label(screen: &Screen, subject: &Subject, width: usize) -> String {
    let (word, target) = match subject {
        Subject::Filter => return "/".to_string(),
        Subject::Clause(word, target) => (*word, target),
    };
    let name = cut(&printable(target), width / 3);
    let Some(word) = word else {
        return format!("change {name}: ");
    };
    if word == "min" {
        let now = screen.table.find(target).and_then(|target| target.min);
        let now = now.map_or("none".to_string(), |now| Amount(now).bits_text());
        return format!("reserve for {name} ({now}): ");
    }
    let now = screen.table.find(target).and_then(|target| match word {
        "up" => target.up,
        "down" => target.down,
        _ => target.both,
    });
    let now = now.map_or("none".to_string(), |now| Amount(now).bits_text());
    format!("limit {word} of {name} ({now}): ")
}

/// The position of the input cursor.
fn cursor(screen: &Screen, area: Rect) -> Option<Position> {
    let Mode::Prompt(subject, prompt) = &screen.mode else {
        return None;
    };
    let label = prompt_label(screen, subject, area.width.into())
        .chars()
        .count();
    let x = u16::try_from(label + prompt.cursor()).unwrap_or(u16::MAX);
    Some(Position::new(x.min(area.width - 1), area.height - 1))
}

/// A target with its limits in both forms.
fn target_details(target: &Watched) -> String {
    let mut text = printable(&title(target));
    if let Some(user) = &target.user {
        text.push_str(&format!(" of {}", printable(user)));
    }
    for (word, amount) in [
        ("up", target.up),
        ("down", target.down),
        ("both", target.both),
        ("min", target.min),
        ("min-down", target.min_down),
    ] {
        if let Some(amount) = amount {
            text.push_str(&format!("  {word} {}", Amount(amount)));
        }
    }
    if let Some(time) = &target.processor_time {
        text.push_str(&format!("  {}", render::reserved_time(time)));
    }
    text
}

/// What is known about a row's process besides its name.
fn program_details(screen: &Screen, target: &Watched) -> String {
    let Some(program) = screen.table.program(&target.target) else {
        return String::new();
    };
    let group = render::program_group(program);
    let place = match group.is_empty() {
        true => String::new(),
        false => format!(" in {group}"),
    };
    let ended = if program.ended { "  ended" } else { "" };
    let [sent, received] = [program.up_bytes, program.down_bytes].map(format::short);
    let rates = recent_rates(screen, target);
    format!("{place}  sent {sent}B  received {received}B{ended}{rates}")
}

/// The means and the peaks of the rates in a row's history; empty before the second reading.
fn recent_rates(screen: &Screen, target: &Watched) -> String {
    let mut points = 0;
    let [up, down] = Direction::ALL.map(|direction| {
        let rates: Vec<u64> = screen.table.history(&target.target, direction).collect();
        points = rates.len() as u64;
        let sum = rates
            .iter()
            .fold(0_u64, |sum, rate| sum.saturating_add(*rate));
        let peak = rates.iter().max().copied().unwrap_or(0);
        [sum.checked_div(points).unwrap_or(0), peak].map(rate)
    });
    if points < 2 {
        return String::new();
    }
    let time = Nanos(screen.interval.0.saturating_mul(points));
    let [mean_up, peak_up] = up;
    let [mean_down, peak_down] = down;
    format!("  in {time}: mean up {mean_up} down {mean_down}, peak up {peak_up} down {peak_down}")
}

fn table(
    screen: &mut Screen,
    rows: &[Row],
    terminal: TerminalStyle,
    area: Rect,
    buffer: &mut Buffer,
) {
    if area.height == 0 {
        return;
    }
    if screen.shows_host() {
        return host(screen, area, terminal, buffer);
    }
    let (columns, minimums) = columns(screen, rows, area.width.into());
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let heading = columns
        .iter()
        .map(|column| (*column, column.kind.heading(minimums).to_string(), bold));
    line(heading, area.y, buffer);
    if rows.is_empty() {
        let text = match (screen.view.filter.is_empty(), screen.table.doc().at_ns) {
            (false, _) => "no target's name contains the filter",
            (true, 0) => "",
            (true, _) => "no target is limited or guaranteed",
        };
        if area.height > 1 {
            buffer.set_stringn(0, area.y + 1, text, area.width.into(), Style::new());
        }
        return;
    }
    let lines = usize::from(area.height) - 1;
    let connections = connections(screen, lines, area.width.into(), terminal);
    let open = rows.iter().position(|row| is_open(screen, row));
    let selected = screen.at(rows);
    let below = |row: usize| {
        if open == Some(row) {
            connections.len()
        } else {
            0
        }
    };
    let line_of = |row: usize| row + open.filter(|open| row > *open).map_or(0, below);
    if let Some(at) = selected {
        // The selected row and its connections are on the page as far as they fit.
        let (from, to) = (line_of(at), line_of(at) + below(at) + 1);
        screen.first = screen.first.max(to.saturating_sub(lines)).min(from);
    }
    let last_page = line_of(rows.len()).saturating_sub(lines);
    screen.first = screen.first.min(last_page);
    let mut y = area.y + 1;
    for (number, row) in rows.iter().enumerate() {
        if line_of(number) >= screen.first && y < area.bottom() {
            let is_selected = selected == Some(number);
            draw_row(screen, row, &columns, is_selected, terminal, y, buffer);
            if is_selected {
                let bold = Style::new().add_modifier(Modifier::BOLD);
                buffer.set_style(Rect::new(0, y, area.width, 1), bold);
                let name = u16::try_from(columns[0].width).unwrap_or(area.width);
                let reversed = Style::new().add_modifier(Modifier::REVERSED);
                buffer.set_style(Rect::new(0, y, name.min(area.width), 1), reversed);
            }
            y += 1;
        }
        for (text, style) in connections.iter().filter(|_| open == Some(number)) {
            if line_of(number) >= screen.first && y < area.bottom() {
                buffer.set_stringn(0, y, text, area.width.into(), *style);
                y += 1;
            }
        }
    }
}

/// Draws the connections of the whole host, or the sums of its remote hosts.
fn host(screen: &Screen, area: Rect, terminal: TerminalStyle, buffer: &mut Buffer) {
    let heading = match screen.shows_hosts {
        true => "ALL REMOTE HOSTS",
        false => "ALL CONNECTIONS",
    };
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let width = usize::from(area.width);
    let lines = connections(screen, usize::from(area.height) - 1, width, terminal);
    let all = [(heading.to_string(), bold)].into_iter().chain(lines);
    for (y, (text, style)) in (area.y..area.bottom()).zip(all) {
        buffer.set_stringn(0, y, text, width, style);
    }
}

fn is_open(screen: &Screen, row: &Row) -> bool {
    let open = screen.open.as_ref().map(|(name, _)| name);
    open == Some(&screen.table.target(row).target)
}

fn draw_row(
    screen: &Screen,
    row: &Row,
    columns: &[Column],
    selected: bool,
    terminal: TerminalStyle,
    y: u16,
    buffer: &mut Buffer,
) {
    let target = screen.table.target(row);
    let cells = columns.iter().map(|column| {
        let (text, style) = cell(screen, row, target, column, selected, terminal);
        (*column, text, style)
    });
    line(cells, y, buffer);
}

/// A target's name with its marks, in at most so many characters.
fn name_text(
    row: &Row,
    target: &Watched,
    width: usize,
    selected: bool,
    terminal: TerminalStyle,
) -> String {
    let mark = match (selected, target.degraded.is_empty()) {
        (true, true) => "> ",
        (true, false) => ">!",
        (false, true) => "  ",
        (false, false) => "! ",
    };
    let branch = match (row.depth, terminal.unicode) {
        (0, _) => String::new(),
        (depth, true) => format!("{}└ ", "  ".repeat(depth - 1)),
        (depth, false) => format!("{}- ", "  ".repeat(depth - 1)),
    };
    let width = width.saturating_sub(mark.len() + branch.chars().count());
    format!("{mark}{branch}{}", cut(&printable(&title(target)), width))
}

/// The reserved processor time of a target as a percentage of a processor; empty without one.
fn reserved_time(target: &Watched) -> String {
    let reserved = target.processor_time.as_ref().map(|time| &time.reserved);
    let part = |slice: &SliceDoc| slice.slice_ns as f64 / slice.period_ns.max(1) as f64;
    reserved.map_or(String::new(), |slice| share_of(part(slice)))
}

fn cell(
    screen: &Screen,
    row: &Row,
    target: &Watched,
    column: &Column,
    selected: bool,
    terminal: TerminalStyle,
) -> (String, Style) {
    let plain_style = Style::new();
    let [up, down] = row.moving;
    let program = screen.table.program(&target.target);
    match column.kind {
        ColumnKind::User => {
            let user = program.map_or("", render::program_user);
            (printable(user), plain_style)
        }
        ColumnKind::UsedTime => {
            let share = screen.table.used_time(&target.target);
            (share.map_or(String::new(), share_of), plain_style)
        }
        ColumnKind::ReservedTime => (reserved_time(target), plain_style),
        ColumnKind::Unit => (
            program.map_or(String::new(), render::program_group),
            plain_style,
        ),
        ColumnKind::Moved(direction) => {
            let bytes = program.map(|it| [it.up_bytes, it.down_bytes][direction as usize]);
            (bytes.map_or(String::new(), format::short), plain_style)
        }
        ColumnKind::Connections => {
            let number = program.map_or(String::new(), |it| format::short(it.connections));
            (number, plain_style)
        }
        ColumnKind::Name => {
            let text = name_text(row, target, column.width, selected, terminal);
            let style = match target.degraded.is_empty() {
                true => plain_style,
                false => terminal.coloured(Color::Red),
            };
            (text, style)
        }
        ColumnKind::Rate(Direction::Down) if target.both.is_some() => {
            ("both".to_string(), plain_style)
        }
        ColumnKind::Limit(Direction::Down) if target.both.is_some() => (String::new(), plain_style),
        ColumnKind::Rate(direction) => {
            let moving = row.moving[direction as usize];
            let style = match is_held(&moving) {
                true => terminal.coloured(Color::Yellow),
                false => plain_style,
            };
            (rate(moving.rate), style)
        }
        ColumnKind::History(direction) => {
            let rates: Vec<u64> = screen.table.history(&target.target, direction).collect();
            let sparkline = Sparkline::new(terminal.unicode);
            let text = sparkline.row(&rates, target.limit(direction), column.width);
            (text, terminal.coloured(Color::Cyan))
        }
        ColumnKind::Limit(direction) => (limits(target, direction), plain_style),
        ColumnKind::Wait => (wait(Nanos(up.wait_ns.max(down.wait_ns))), plain_style),
        ColumnKind::Drops => match up.drops.saturating_add(down.drops) {
            0 => ("-".to_string(), plain_style),
            drops => (format::short(drops), terminal.coloured(Color::Red)),
        },
        ColumnKind::Held => {
            let word = match (target.both.is_some(), is_held(&up), is_held(&down)) {
                (true, true, _) => "both",
                (_, true, true) => "u+d",
                (_, true, false) => "up",
                (_, false, true) => "down",
                (_, false, false) => "",
            };
            (word.to_string(), terminal.coloured(Color::Yellow))
        }
    }
}

/// True if packets wait for the limit now, or waited during the last interval.
fn is_held(moving: &Traffic) -> bool {
    moving.held > 0 || moving.wait_ns > 0
}

/// The minimum and the limit of one direction.
fn limits(target: &Watched, direction: Direction) -> String {
    let minimum = match direction {
        Direction::Up => target.min,
        Direction::Down => target.min_down,
    };
    match (minimum, target.limit(direction)) {
        (None, None) => "-".to_string(),
        (None, Some(limit)) => format::round(limit),
        (Some(minimum), None) => format!("{}-", format::round(minimum)),
        (Some(minimum), Some(limit)) => {
            format!("{}-{}", format::round(minimum), format::round(limit))
        }
    }
}

/// Draws the texts in their columns.
fn line(cells: impl Iterator<Item = (Column, String, Style)>, y: u16, buffer: &mut Buffer) {
    let mut x = 0;
    for (column, text, style) in cells {
        let text = cut(&text, column.width);
        let shift = match column.kind.is_left() {
            true => 0,
            false => column.width.saturating_sub(text.chars().count()),
        };
        let at = u16::try_from(x + shift).unwrap_or(u16::MAX);
        if at < buffer.area.width {
            buffer.set_stringn(at, y, &text, column.width, style);
        }
        x += column.width + 1;
    }
}

fn help(terminal: TerminalStyle, buffer: &mut Buffer) {
    let width = buffer.area.width.into();
    for (y, text) in (0..buffer.area.height).zip(HELP.lines()) {
        let style = match y {
            0 => Style::new().add_modifier(Modifier::BOLD),
            _ => Style::new(),
        };
        let text = match terminal.unicode {
            true => text.to_string(),
            false => text.replace("↑ ↓", "arrows").replace('…', "..."),
        };
        buffer.set_stringn(0, y, text, width, style);
    }
}

const KEYS: &str =
    "u d b limit  m reserve  x remove  Enter peers  s sort  / filter  ? help  q quit";

const HELP: &str = "\
netnice top

↑ ↓  PgUp PgDn  Home End    select a target
Enter      show or hide the connections of the selected target
n  N       a sum for each remote host, of its connections; of the whole host
u  d  b    limit up, down or their sum: 4mbit, 500kB/s, …; none removes it
m          reserve a minimum for sending: 1mbit, or 1mbit on eth0; none ends it
c          change any clause: up 4mbit down 8mbit min 1mbit on eth0
x          remove your contract of the target
s  r       sort by the next column; reverse the order
/          show only names with …; Esc shows all again
a          list all programs, or only targets
t          list every target by itself, not below the target that contains it
p          pause        Ctrl-L  redraw        Ctrl-Z  suspend        q  quit

UP, DOWN   bit/s now, with the targets inside; then the history: full height is
           the limit, or without a limit the maximum
LIMIT      the limit in force; MIN-LIMIT: the minimum before the limit.
           both: one limit for the sum of both directions, shown under UP
WAIT       how long a packet that arrives now waits
DROP/s     packets dropped per second
HELD       the directions that the limit delays now
! name     degraded: select it to see the reason
";

/// Smallest width and height in which the screen is drawn, in characters.
const MIN_WIDTH: u16 = 60;
const MIN_HEIGHT: u16 = 6;
/// Largest number of lines for links.
const MAX_LINKS: usize = 3;
/// Largest number of lines for the latest event.
const MAX_STATUS_LINES: usize = 4;

#[cfg(test)]
mod tests;
