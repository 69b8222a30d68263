//! The columns of the table and their widths. The screen, its rows and its width come in. No
//! function fails.
//!
//! The columns of limits have space for minimums if a target has one and the screen is at least 76
//! characters wide. While programs are listed, there are columns for their users and connections,
//! and on wide screens for their units and the bytes that they have sent and received; below 100
//! characters these columns replace the histories. There are columns of used and reserved processor
//! time if a target has a reservation and the screen has space for them. The columns of numbers
//! have fixed widths. The column of names takes of the rest as much as the longest name needs, at
//! most 48 characters. The two histories take what is left: each has at least four characters, if
//! nine are then left for the names, and at most 60.

use netnice_api::Watched;
use netnice_core::contract::Direction;

use crate::top::screen::Screen;
use crate::top::table::{HISTORY_POINTS, Row, title};

/// A column of the table.
#[derive(Clone, Copy, Debug)]
pub(super) struct Column {
    pub kind: ColumnKind,
    /// In characters.
    pub width: usize,
}

/// What a column shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ColumnKind {
    Name,
    User,
    Unit,
    Connections,
    /// Bytes since counting began.
    Moved(Direction),
    Rate(Direction),
    History(Direction),
    Limit(Direction),
    Wait,
    Drops,
    Held,
    /// Used processor time.
    UsedTime,
    /// Reserved processor time.
    ReservedTime,
}

impl ColumnKind {
    /// The heading; of a direction with minimums, the limits have another one.
    pub(super) fn heading(self, minimums: [bool; 2]) -> &'static str {
        match self {
            ColumnKind::Name => "TARGET",
            ColumnKind::User => "USER",
            ColumnKind::Unit => "UNIT",
            ColumnKind::Connections => "CONN",
            ColumnKind::Moved(Direction::Up) => "SENT",
            ColumnKind::Moved(Direction::Down) => "RECVD",
            ColumnKind::Rate(Direction::Up) => "UP",
            ColumnKind::Rate(Direction::Down) => "DOWN",
            ColumnKind::History(_) => "",
            ColumnKind::Limit(direction) if minimums[direction as usize] => "MIN-LIMIT",
            ColumnKind::Limit(_) => "LIMIT",
            ColumnKind::Wait => "WAIT",
            ColumnKind::Drops => "DROP/s",
            ColumnKind::Held => "HELD",
            ColumnKind::UsedTime => "CPU",
            ColumnKind::ReservedTime => "OF",
        }
    }

    /// True if its texts begin at its left end.
    pub(super) fn is_left(self) -> bool {
        matches!(
            self,
            ColumnKind::Name
                | ColumnKind::User
                | ColumnKind::Unit
                | ColumnKind::History(_)
                | ColumnKind::Held
        )
    }
}

/// The columns for a width, and for each direction whether its limits are shown with minimums.
pub(super) fn columns(screen: &Screen, rows: &[Row], width: usize) -> (Vec<Column>, [bool; 2]) {
    let targets = &screen.table.doc().targets;
    let is_given = |of: fn(&Watched) -> Option<u64>| {
        width >= WIDTH_FOR_MINIMUMS && targets.iter().any(|target| of(target).is_some())
    };
    let minimums = [is_given(|t| t.min), is_given(|t| t.min_down)];
    let limits = minimums.map(|given| if given { 10 } else { 6 });
    // Programs have further columns; on a narrow screen these take the place of the histories.
    let programs = screen.table.programs().is_some();
    let has_history = !programs || width >= WIDTH_FOR_HISTORIES;
    let mut details = Vec::new();
    if programs {
        details.push((ColumnKind::User, 8));
        if width >= WIDTH_FOR_UNITS {
            details.push((ColumnKind::Unit, (width / 7).min(MAX_UNIT)));
        }
        details.push((ColumnKind::Connections, 4));
        if width >= WIDTH_FOR_MOVED {
            details.extend(Direction::ALL.map(|direction| (ColumnKind::Moved(direction), 6)));
        }
    }
    let times = time_columns(screen, width);
    let of_details: usize = details.iter().map(|(_, width)| width + 1).sum();
    let fixed = 2 * 6 + limits[0] + limits[1] + 6 + 6 + 4 + of_details + times.len() * 6;
    // Spaces between the columns.
    let gaps = if has_history { 9 } else { 7 };
    let left = width.saturating_sub(fixed + gaps);
    let longest = rows
        .iter()
        .map(|row| indent(row) + title(screen.table.target(row)).chars().count());
    let longest = (longest.max().unwrap_or(0) + 2).clamp(MIN_NAME, MAX_NAME);
    // The histories get what the longest name leaves, but at least their smallest width while the
    // names keep theirs.
    let history = left.saturating_sub(longest) / 2;
    let history = history
        .max(MIN_HISTORY)
        .min(left.saturating_sub(MIN_NAME) / 2);
    let history = match has_history {
        true => history.min(HISTORY_POINTS),
        false => 0,
    };
    let name = left.saturating_sub(2 * history).min(longest);
    let mut columns = vec![Column {
        kind: ColumnKind::Name,
        width: name,
    }];
    let details = details.into_iter();
    columns.extend(details.map(|(kind, width)| Column { kind, width }));
    for direction in Direction::ALL {
        columns.extend([
            Column {
                kind: ColumnKind::Rate(direction),
                width: 6,
            },
            Column {
                kind: ColumnKind::History(direction),
                width: history,
            },
            Column {
                kind: ColumnKind::Limit(direction),
                width: limits[direction as usize],
            },
        ]);
    }
    columns.retain(|column| has_history || !matches!(column.kind, ColumnKind::History(_)));
    let last = [
        (ColumnKind::Wait, 6),
        (ColumnKind::Drops, 6),
        (ColumnKind::Held, 4),
    ];
    let times = times.iter().map(|kind| (*kind, 5));
    let last = last.into_iter().chain(times);
    columns.extend(last.map(|(kind, width)| Column { kind, width }));
    (columns, minimums)
}

/// The columns of processor time, if a target has a reservation and there is space.
fn time_columns(screen: &Screen, width: usize) -> &'static [ColumnKind] {
    let mut targets = screen.table.doc().targets.iter();
    let has_space = screen.table.programs().is_none() || width >= WIDTH_FOR_TIMES;
    match has_space && targets.any(|target| target.processor_time.is_some()) {
        true => &[ColumnKind::UsedTime, ColumnKind::ReservedTime],
        false => &[],
    }
}

fn indent(row: &Row) -> usize {
    2 * row.depth
}

/// Smallest width of the names, in characters.
const MIN_NAME: usize = 9;
/// Smallest width of the screen that shows minimums, in characters.
const WIDTH_FOR_MINIMUMS: usize = 76;
/// Smallest width of the screen that shows histories beside programs, in characters.
const WIDTH_FOR_HISTORIES: usize = 100;
/// Smallest width of the screen that shows processor time beside programs, in characters.
const WIDTH_FOR_TIMES: usize = 84;
/// Smallest width of the screen that shows units, in characters.
const WIDTH_FOR_UNITS: usize = 110;
/// Smallest width of the screen that shows what programs moved so far, in characters.
const WIDTH_FOR_MOVED: usize = 140;
/// Largest width of the units, in characters.
const MAX_UNIT: usize = 28;
/// Largest width of the names, in characters.
const MAX_NAME: usize = 48;
/// Smallest width of a history, in characters.
const MIN_HISTORY: usize = 4;
