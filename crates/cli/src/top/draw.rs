//! Draws the screen: the lines, the columns and their widths.
//!
//! Input is a [`Screen`]; output is a buffer of characters. A terminal that is too small gets a
//! notice instead.
//!
//! ```text
//!   title, number of targets, total rates, interval
//!   each managed link                                (at most three)
//!   heading
//!   rows, below the open one its connections
//!   the selected target in full; latest event; input line
//!   keys
//! ```
//!
//! Empty columns are left out: without a minimum there is no column for minimums. The remaining
//! width goes first to the histories, then to the names. No information is in colour alone: the
//! selected row begins with `>`, a degraded one with `!`.

mod words;

use netnice_api::{Traffic, Watched};
use netnice_core::contract::Direction;
use netnice_core::units::{Amount, Nanos};
use ratatui::Frame;
use ratatui::buffer::Buffer;
use ratatui::layout::{Position, Rect};
use ratatui::style::{Color, Modifier, Style};

use super::screen::{Mode, Screen, Subject};
use super::table::{KEPT, Row};
use crate::desk::plain;
use crate::render::spark::{Steps, unicode_locale};
use words::{cut, rate, wait, wrapped};

/// What the terminal can show.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Looks {
    /// True if colours may be used.
    pub colour: bool,
    /// True if characters beyond ASCII may be used.
    pub unicode: bool,
}

impl Looks {
    /// Reads the environment: `NO_COLOR`, and the character set of the locale.
    pub(super) fn of_environment() -> Looks {
        let unwanted = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        Looks {
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

/// Draws the screen, and stores the number of rows on a page in it.
pub(super) fn draw(screen: &mut Screen, looks: Looks, frame: &mut Frame<'_>) {
    let cursor = paint(screen, looks, frame.buffer_mut());
    if let Some(cursor) = cursor {
        frame.set_cursor_position(cursor);
    }
}

/// Paints the whole screen. Returns the position of the input cursor, if there is one.
pub(super) fn paint(screen: &mut Screen, looks: Looks, buffer: &mut Buffer) -> Option<Position> {
    let area = buffer.area;
    if area.width < LEAST_WIDTH || area.height < LEAST_HEIGHT {
        let text = format!("at least {LEAST_WIDTH} x {LEAST_HEIGHT}");
        buffer.set_stringn(0, 0, text, area.width.into(), Style::new());
        return None;
    }
    if screen.mode == Mode::Help {
        help(looks, buffer);
        return None;
    }
    let width = usize::from(area.width);
    let rows = screen.table.rows(&screen.view);
    let head = head(screen, looks, width);
    let foot = foot(screen, &rows, looks, width);
    let mut y = 0;
    for (text, style) in &head {
        buffer.set_stringn(0, y, text, width, *style);
        y += 1;
    }
    let foot_from = area.height - u16::try_from(foot.len()).unwrap_or(0).min(area.height - y);
    let room = Rect::new(0, y, area.width, foot_from - y);
    screen.page = usize::from(room.height).saturating_sub(1);
    table(screen, &rows, looks, room, buffer);
    for (y, (text, style)) in (foot_from..).zip(&foot) {
        buffer.set_stringn(0, y, text, width, *style);
    }
    cursor(screen, area)
}

/// Draws one frame with all rows as lines of text.
pub(super) fn once(screen: &mut Screen, looks: Looks, width: u16) -> Vec<String> {
    let rows = screen.table.rows(&screen.view);
    let head = head(screen, Looks::default(), usize::from(width));
    let lines = rows.len().max(1) + 1;
    let height = u16::try_from(lines).unwrap_or(u16::MAX);
    let mut buffer = Buffer::empty(Rect::new(0, 0, width, height));
    screen.selected = None;
    let area = buffer.area;
    table(screen, &rows, looks, area, &mut buffer);
    let line = |y: u16| -> String {
        let cells = (0..width).map(|x| buffer[(x, y)].symbol());
        cells.collect::<String>().trim_end().to_string()
    };
    let head = head
        .into_iter()
        .map(|(text, _)| text.trim_end().to_string());
    head.chain((0..height).map(line)).collect()
}

/// The lines above the table.
fn head(screen: &Screen, looks: Looks, width: usize) -> Vec<(String, Style)> {
    let table = &screen.table;
    let [up, down] = Direction::ALL.map(|direction| rate(table.total(direction)));
    let mut parts = vec![
        "netnice top".to_string(),
        match table.doc().targets.len() {
            1 => "1 target".to_string(),
            targets => format!("{targets} targets"),
        },
        format!("{} moving", table.busy()),
        format!("up {up}bit/s"),
        format!("down {down}bit/s"),
        format!("every {}", screen.interval),
    ];
    if !screen.view.filter.is_empty() {
        parts.push(format!("/{}", plain(&screen.view.filter)));
    }
    if screen.paused {
        parts.push("PAUSED".to_string());
    }
    let title = Style::new().add_modifier(Modifier::BOLD);
    let mut lines = vec![(cut(&parts.join("  "), width), title)];
    for link in table.doc().links.iter().take(MOST_LINKS) {
        let side = |word: &str, capacity: Option<u64>, held: u64| {
            let capacity = words::round(capacity?);
            Some(match held {
                0 => format!("  {word} {capacity}bit/s"),
                held => format!("  {word} {capacity}bit/s, {} promised", words::round(held)),
            })
        };
        let mut text = plain(&link.link);
        text.extend(side("up", link.up, link.up_held));
        text.extend(side("down", link.down, link.down_held));
        let mut style = Style::new();
        if let Some(why) = link.degraded.first() {
            text.push_str(&format!("  degraded: {}", plain(why)));
            style = looks.coloured(Color::Red);
        }
        lines.push((cut(&text, width), style));
    }
    lines
}

/// The lines below the table.
fn foot(screen: &Screen, rows: &[Row], looks: Looks, width: usize) -> Vec<(String, Style)> {
    let mut lines = Vec::new();
    let selected = screen.at(rows).map(|at| screen.table.target(&rows[at]));
    if let Some(target) = selected {
        let text = in_full(target);
        lines.extend(
            wrapped(&text, width, 1)
                .into_iter()
                .map(|l| (l, Style::new())),
        );
        if let Some(why) = target.degraded.first() {
            let why = wrapped(&format!("degraded: {}", plain(why)), width, 2);
            lines.extend(
                why.into_iter()
                    .map(|line| (line, looks.coloured(Color::Red))),
            );
        }
    }
    let news = &screen.news;
    if !news.text.is_empty() {
        let style = match news.bad {
            true => looks.coloured(Color::Red).add_modifier(Modifier::BOLD),
            false => looks.coloured(Color::Green),
        };
        let text = wrapped(&plain(&news.text), width, MOST_NEWS);
        lines.extend(text.into_iter().map(|line| (line, style)));
    }
    let dim = Style::new().add_modifier(Modifier::DIM);
    lines.push(match &screen.mode {
        Mode::Prompt(subject, prompt) => (
            format!("{}{}", asks(screen, subject, width), prompt.text()),
            Style::new(),
        ),
        Mode::Sure(target) => {
            let text = format!("take back what you asked for {}? y or n", plain(target));
            (cut(&text, width), Style::new().add_modifier(Modifier::BOLD))
        }
        Mode::Table | Mode::Help => (cut(KEYS, width), dim),
    });
    lines
}

/// The label of the input line.
fn asks(screen: &Screen, subject: &Subject, width: usize) -> String {
    let (word, target) = match subject {
        Subject::Filter => return "/".to_string(),
        Subject::Clause(word, target) => (*word, target),
    };
    let name = cut(&plain(target), width / 3);
    let Some(word) = word else {
        return format!("change {name}: ");
    };
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
    let asked = asks(screen, subject, area.width.into()).chars().count();
    let x = u16::try_from(asked + prompt.cursor()).unwrap_or(u16::MAX);
    Some(Position::new(x.min(area.width - 1), area.height - 1))
}

/// A target with its limits in both forms.
fn in_full(target: &Watched) -> String {
    let mut text = plain(&target.target);
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
    text
}

/// A column of the table.
#[derive(Clone, Copy, Debug)]
struct Column {
    what: What,
    width: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    Name,
    Rate(Direction),
    Past(Direction),
    Limit(Direction),
    Wait,
    Drops,
    Held,
}

impl What {
    fn heading(self, minimums: [bool; 2]) -> &'static str {
        match self {
            What::Name => "TARGET",
            What::Rate(Direction::Up) => "UP",
            What::Rate(Direction::Down) => "DOWN",
            What::Past(_) => "",
            What::Limit(direction) if minimums[direction as usize] => "MIN-LIMIT",
            What::Limit(_) => "LIMIT",
            What::Wait => "WAIT",
            What::Drops => "DROP/s",
            What::Held => "HELD",
        }
    }

    fn is_left(self) -> bool {
        matches!(self, What::Name | What::Past(_) | What::Held)
    }
}

/// The columns for a width.
fn columns(screen: &Screen, rows: &[Row], width: usize) -> (Vec<Column>, [bool; 2]) {
    let targets = &screen.table.doc().targets;
    let is_there = |of: fn(&Watched) -> Option<u64>| {
        width >= WIDTH_FOR_MINIMUMS && targets.iter().any(|target| of(target).is_some())
    };
    let minimums = [is_there(|t| t.min), is_there(|t| t.min_down)];
    let limits = minimums.map(|there| if there { 10 } else { 6 });
    let fixed = 2 * 6 + limits[0] + limits[1] + 6 + 6 + 4;
    // Spaces between the columns.
    let gaps = 9;
    let left = width.saturating_sub(fixed + gaps);
    let longest = rows
        .iter()
        .map(|row| indent(row) + screen.table.target(row).target.chars().count());
    let longest = (longest.max().unwrap_or(0) + 2).clamp(LEAST_NAME, MOST_NAME);
    // The histories get what the longest name leaves, but at least their smallest width while the
    // names keep theirs.
    let past = left.saturating_sub(longest) / 2;
    let past = past
        .max(LEAST_PAST)
        .min(left.saturating_sub(LEAST_NAME) / 2);
    let past = past.min(KEPT);
    let name = left.saturating_sub(2 * past).min(longest);
    let mut columns = vec![Column {
        what: What::Name,
        width: name,
    }];
    for direction in Direction::ALL {
        columns.extend([
            Column {
                what: What::Rate(direction),
                width: 6,
            },
            Column {
                what: What::Past(direction),
                width: past,
            },
            Column {
                what: What::Limit(direction),
                width: limits[direction as usize],
            },
        ]);
    }
    columns.extend([
        Column {
            what: What::Wait,
            width: 6,
        },
        Column {
            what: What::Drops,
            width: 6,
        },
        Column {
            what: What::Held,
            width: 4,
        },
    ]);
    (columns, minimums)
}

fn table(screen: &mut Screen, rows: &[Row], looks: Looks, room: Rect, buffer: &mut Buffer) {
    if room.height == 0 {
        return;
    }
    let (columns, minimums) = columns(screen, rows, room.width.into());
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let heading = columns
        .iter()
        .map(|column| (*column, column.what.heading(minimums).to_string(), bold));
    line(heading, room.y, buffer);
    if rows.is_empty() {
        let text = match (screen.view.filter.is_empty(), screen.table.doc().at_ns) {
            (false, _) => "no target has this in its name",
            (true, 0) => "",
            (true, _) => "no target is limited or guaranteed",
        };
        if room.height > 1 {
            buffer.set_stringn(0, room.y + 1, text, room.width.into(), Style::new());
        }
        return;
    }
    let lines = usize::from(room.height) - 1;
    let peers = peers(screen, lines, room.width.into(), looks);
    let open = rows.iter().position(|row| is_open(screen, row));
    let selected = screen.at(rows);
    let below = |row: usize| if open == Some(row) { peers.len() } else { 0 };
    let place = |row: usize| row + open.filter(|open| row > *open).map_or(0, below);
    if let Some(at) = selected {
        // The selected row and its connections are on the page as far as they fit.
        let (from, to) = (place(at), place(at) + below(at) + 1);
        screen.first = screen.first.max(to.saturating_sub(lines)).min(from);
    }
    let most = place(rows.len()).saturating_sub(lines);
    screen.first = screen.first.min(most);
    let mut y = room.y + 1;
    for (number, row) in rows.iter().enumerate() {
        if place(number) >= screen.first && y < room.bottom() {
            let is_selected = selected == Some(number);
            draw_row(screen, row, &columns, is_selected, looks, y, buffer);
            if is_selected {
                let bold = Style::new().add_modifier(Modifier::BOLD);
                buffer.set_style(Rect::new(0, y, room.width, 1), bold);
                let name = u16::try_from(columns[0].width).unwrap_or(room.width);
                let reversed = Style::new().add_modifier(Modifier::REVERSED);
                buffer.set_style(Rect::new(0, y, name.min(room.width), 1), reversed);
            }
            y += 1;
        }
        for (text, style) in peers.iter().filter(|_| open == Some(number)) {
            if place(number) >= screen.first && y < room.bottom() {
                buffer.set_stringn(0, y, text, room.width.into(), *style);
                y += 1;
            }
        }
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
    looks: Looks,
    y: u16,
    buffer: &mut Buffer,
) {
    let target = screen.table.target(row);
    let cells = columns.iter().map(|column| {
        let (text, style) = cell(screen, row, target, column, selected, looks);
        (*column, text, style)
    });
    line(cells, y, buffer);
}

fn cell(
    screen: &Screen,
    row: &Row,
    target: &Watched,
    column: &Column,
    selected: bool,
    looks: Looks,
) -> (String, Style) {
    let plain_style = Style::new();
    let [up, down] = row.moving;
    match column.what {
        What::Name => {
            let mark = match (selected, target.degraded.is_empty()) {
                (true, true) => "> ",
                (true, false) => ">!",
                (false, true) => "  ",
                (false, false) => "! ",
            };
            let branch = match (row.depth, looks.unicode) {
                (0, _) => String::new(),
                (depth, true) => format!("{}└ ", "  ".repeat(depth - 1)),
                (depth, false) => format!("{}- ", "  ".repeat(depth - 1)),
            };
            let style = match target.degraded.is_empty() {
                true => plain_style,
                false => looks.coloured(Color::Red),
            };
            let room = column
                .width
                .saturating_sub(mark.len() + branch.chars().count());
            (
                format!("{mark}{branch}{}", cut(&plain(&target.target), room)),
                style,
            )
        }
        What::Rate(Direction::Down) if target.both.is_some() => ("both".to_string(), plain_style),
        What::Limit(Direction::Down) if target.both.is_some() => (String::new(), plain_style),
        What::Rate(direction) => {
            let moving = row.moving[direction as usize];
            let style = match is_held(&moving) {
                true => looks.coloured(Color::Yellow),
                false => plain_style,
            };
            (rate(moving.rate), style)
        }
        What::Past(direction) => {
            let past: Vec<u64> = screen.table.past(&target.target, direction).collect();
            let text = Steps::new(looks.unicode).row(&past, target.limit(direction), column.width);
            (text, looks.coloured(Color::Cyan))
        }
        What::Limit(direction) => (limits(target, direction), plain_style),
        What::Wait => (wait(Nanos(up.wait_ns.max(down.wait_ns))), plain_style),
        What::Drops => match up.drops.saturating_add(down.drops) {
            0 => ("-".to_string(), plain_style),
            drops => (words::short(drops), looks.coloured(Color::Red)),
        },
        What::Held => {
            let word = match (target.both.is_some(), is_held(&up), is_held(&down)) {
                (true, true, _) => "both",
                (_, true, true) => "u+d",
                (_, true, false) => "up",
                (_, false, true) => "down",
                (_, false, false) => "",
            };
            (word.to_string(), looks.coloured(Color::Yellow))
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
        (None, Some(limit)) => words::round(limit),
        (Some(minimum), None) => format!("{}-", words::round(minimum)),
        (Some(minimum), Some(limit)) => {
            format!("{}-{}", words::round(minimum), words::round(limit))
        }
    }
}

/// The lines below an open row.
fn peers(screen: &Screen, lines: usize, width: usize, looks: Looks) -> Vec<(String, Style)> {
    let Some((_, peers)) = &screen.open else {
        return Vec::new();
    };
    let dim = looks.coloured(Color::Blue);
    let Some(peers) = peers else {
        return vec![("      looking…".to_string(), dim)];
    };
    let most = lines.saturating_sub(3).clamp(1, MOST_PEERS);
    let mut texts = Vec::new();
    for line in peers.lines.iter().take(most) {
        let of = |rate: Option<u64>| rate.map_or("-".to_string(), words::rate);
        let [up, down] = line.rates.map(of);
        let c = &line.connection;
        let peer = c.peer.as_deref().unwrap_or("-");
        let state = c.state.as_deref().filter(|state| *state != "established");
        let rest = width.saturating_sub(40).max(20);
        let ends = format!("{} > {}", c.local, peer);
        let text = format!(
            "      {:<3}  up {up:>6}  down {down:>6}  {}  {}",
            c.protocol,
            cut(&plain(&ends), rest),
            state.unwrap_or_default(),
        );
        texts.push(text.trim_end().to_string());
    }
    let hidden = peers.more + peers.lines.len().saturating_sub(most) as u64;
    if hidden > 0 {
        texts.push(format!("      and {hidden} more"));
    }
    if peers.of_others > 0 {
        texts.push(format!("      and {} of other users", peers.of_others));
    }
    if texts.is_empty() {
        texts.push("      no connection".to_string());
    }
    texts
        .into_iter()
        .map(|text| (cut(&text, width), dim))
        .collect()
}

/// Draws the texts in their columns.
fn line(cells: impl Iterator<Item = (Column, String, Style)>, y: u16, buffer: &mut Buffer) {
    let mut x = 0;
    for (column, text, style) in cells {
        let text = cut(&text, column.width);
        let shift = match column.what.is_left() {
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

fn indent(row: &Row) -> usize {
    2 * row.depth
}

fn help(looks: Looks, buffer: &mut Buffer) {
    let width = buffer.area.width.into();
    for (y, text) in (0..buffer.area.height).zip(HELP.lines()) {
        let style = match y {
            0 => Style::new().add_modifier(Modifier::BOLD),
            _ => Style::new(),
        };
        let text = match looks.unicode {
            true => text.to_string(),
            false => text.replace("↑ ↓", "arrows").replace('…', "..."),
        };
        buffer.set_stringn(0, y, text, width, style);
    }
}

const KEYS: &str = "u d b limit  x remove  Enter peers  s sort  / filter  p pause  ? help  q quit";

const HELP: &str = "\
netnice top

↑ ↓  PgUp PgDn  Home End    select a target
Enter      the connections of the selected target, and back
u  d  b    limit up, down, both together: 4mbit, 500kB/s, …; none lifts it
c          change anything: up 4mbit down 8mbit min 1mbit on eth0
x          take back what you asked for it
s  r       sort by the next column; the other way round
/          show only names with …; Esc shows all again
t          targets by themselves, not below those around them
p          pause        Ctrl-L  draw anew        Ctrl-Z  suspend        q  quit

UP, DOWN   bit/s now, with what is inside; behind it the history: full height is
           the limit, without one the most there was
LIMIT      the limit that holds; MIN-LIMIT: what is guaranteed before it.
           both: one limit for both directions; then all of it counts under UP
WAIT       how long a packet that comes now will wait
DROP/s     packets dropped per second
HELD       which direction is held back by the limit now
! name     degraded: select it to see why
";

/// In a smaller terminal nothing can be read.
const LEAST_WIDTH: u16 = 60;
const LEAST_HEIGHT: u16 = 6;
const LEAST_NAME: usize = 9;
const WIDTH_FOR_MINIMUMS: usize = 76;
const MOST_NAME: usize = 48;
const LEAST_PAST: usize = 4;
const MOST_LINKS: usize = 3;
const MOST_NEWS: usize = 4;
const MOST_PEERS: usize = 40;

#[cfg(test)]
mod tests;
