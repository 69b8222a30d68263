//! The rows of the table of `netnice top`: targets as a tree, each with the traffic of the targets
//! inside it, sorted and filtered.
//!
//! A response of the daemon ([`WatchDoc`]) and the user's choice of order and filter ([`View`])
//! come in, rows go out ([`Row`]). The module does no input or output. Unless the view is flat, a
//! target's traffic includes that of the targets inside it, because their packets pass its limit
//! too; the daemon counts each packet once. In an inconsistent response, an index out of range
//! counts as none, and a cycle of targets is followed for at most 16 steps. No function fails.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use netnice_api::{HistoryDoc, ProgramDoc, ProgramsDoc, TargetHistory, Traffic, WatchDoc, Watched};
use netnice_core::contract::Direction;

use crate::render::{program_group, program_user};

/// The latest response, and the rates before it.
#[derive(Debug, Default)]
pub(super) struct Table {
    /// The targets, and behind them a row for each program without a contract.
    doc: WatchDoc,
    /// The number of targets among them.
    targets: usize,
    programs: Option<ProgramsDoc>,
    /// By target text of a process: its place in the list of programs.
    processes: BTreeMap<String, usize>,
    /// For each index in the document: the target's traffic with that of all targets inside it.
    sums: Vec<[Traffic; 2]>,
    /// For each target with a reservation of processor time what it used.
    times: BTreeMap<String, UsedTime>,
    /// For each target the rates of both directions, oldest first.
    history: BTreeMap<String, [VecDeque<u64>; 2]>,
}

/// What a target used of processors.
#[derive(Clone, Copy, Debug)]
struct UsedTime {
    /// The time of the last reading, in nanoseconds.
    at_ns: u64,
    /// What was used by then since the reservation began, in nanoseconds.
    used_ns: u64,
    /// The number of processors that was used between the last two readings.
    share: Option<f64>,
}

/// The user's choice of order, nesting and filter.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct View {
    /// The order of the rows.
    pub sort: Sort,
    /// True if the order is reversed: smallest first, names from z to a.
    pub reversed: bool,
    /// True if each target is a top-level row, and not below the target that contains it.
    pub flat: bool,
    /// Only rows with this text in their name, command, user or unit are shown, and unless the
    /// view is flat the targets that contain them. The case of letters does not matter. Empty: all
    /// rows.
    pub filter: String,
}

/// The order of the rows, largest first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Sort {
    /// Rate of both directions together.
    #[default]
    Rate,
    /// Rate of sending.
    Up,
    /// Rate of receiving.
    Down,
    /// The longer wait of both directions.
    Wait,
    /// Dropped packets.
    Drops,
    /// Bytes that a program moved since counting began.
    Moved,
    /// Number of a program's connections.
    Connections,
    /// User of a program, from a to z.
    User,
    /// Name, from a to z.
    Name,
}

/// One line of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Row {
    /// The target's index in the document.
    pub index: usize,
    /// Number of shown targets that contain this one.
    pub depth: usize,
    /// The traffic (sent, received); unless the view is flat, with that of the targets inside.
    pub moving: [Traffic; 2],
}

impl Table {
    /// Replaces the response, and appends its rates to the history if it is a new reading.
    pub(super) fn update(&mut self, doc: WatchDoc) {
        let is_new = doc.at_ns != self.doc.at_ns || self.targets == 0;
        self.targets = doc.targets.len();
        self.update_times(&doc);
        self.doc = doc;
        self.append_programs();
        self.add_points(0..self.targets, is_new);
    }

    fn update_times(&mut self, doc: &WatchDoc) {
        let before = std::mem::take(&mut self.times);
        let now = doc.processors_at_ns;
        for target in &doc.targets {
            let time = target.processor_time.as_ref();
            let Some(status) = time.and_then(|time| time.status.as_ref()) else {
                continue;
            };
            let used_ns = status.used_ns;
            let last = before.get(&target.target).copied();
            let time = match last {
                // The same reading again.
                Some(last) if last.at_ns >= now => last,
                last => UsedTime {
                    at_ns: now,
                    used_ns,
                    share: last
                        .filter(|last| last.used_ns <= used_ns)
                        .map(|last| (used_ns - last.used_ns) as f64 / (now - last.at_ns) as f64),
                },
            };
            self.times.insert(target.target.clone(), time);
        }
    }

    /// The number of processors that a target used lately; `None` if it has no reservation, or
    /// before the second reading.
    pub(super) fn used_time(&self, name: &str) -> Option<f64> {
        self.times.get(name)?.share
    }

    /// Replaces the list of programs, and appends their rates to the history if it is a new
    /// reading.
    pub(super) fn update_programs(&mut self, doc: ProgramsDoc) {
        let before = self.programs.as_ref().map(|programs| programs.at_ns);
        let is_new = before != Some(doc.at_ns);
        self.programs = Some(doc);
        self.append_programs();
        self.add_points(self.targets..self.doc.targets.len(), is_new);
    }

    /// Forgets the programs without a contract.
    pub(super) fn clear_programs(&mut self) {
        self.programs = None;
        self.append_programs();
    }

    /// Makes the rows behind those of the targets anew.
    fn append_programs(&mut self) {
        let targets = &mut self.doc.targets;
        targets.truncate(self.targets);
        self.processes.clear();
        let places: BTreeMap<String, usize> = targets
            .iter()
            .enumerate()
            .map(|(place, target)| (target.target.clone(), place))
            .collect();
        let programs = self
            .programs
            .iter()
            .flat_map(|doc| doc.list.iter().enumerate());
        for (number, program) in programs {
            let name = format!("pid:{}", program.pid);
            if self.processes.contains_key(&name) {
                continue; // an ended program, and a later one with the same id
            }
            if !places.contains_key(&name) {
                let around = program.target.as_ref();
                targets.push(Watched {
                    target: name.clone(),
                    command: Some(program.command.clone()),
                    user: Some(program.user.clone()),
                    inside: around.and_then(|target| places.get(target).copied()),
                    sends: moves(program.up_rate),
                    receives: moves(program.down_rate),
                    ..Watched::default()
                });
            }
            self.processes.insert(name, number);
        }
        self.sums = sums(targets, self.targets);
        let present: BTreeSet<&str> = targets.iter().map(|t| t.target.as_str()).collect();
        self.history
            .retain(|name, _| present.contains(name.as_str()));
    }

    /// Adds the present rates of some rows to the history: those of a new reading, else only of
    /// rows without a history.
    fn add_points(&mut self, rows: std::ops::Range<usize>, is_new: bool) {
        for (target, sum) in self.doc.targets[rows.clone()].iter().zip(&self.sums[rows]) {
            if !is_new && self.history.contains_key(&target.target) {
                continue;
            }
            let history = self.history.entry(target.target.clone()).or_default();
            for (rates, moving) in history.iter_mut().zip(sum) {
                if rates.len() == HISTORY_POINTS {
                    rates.pop_front();
                }
                rates.push_back(moving.rate);
            }
        }
    }

    /// The list of programs; `None` before the first response, and while only targets are shown.
    pub(super) fn programs(&self) -> Option<&ProgramsDoc> {
        self.programs.as_ref()
    }

    /// The program of a row of this name, also if it is a target; `None` for other rows.
    pub(super) fn program(&self, name: &str) -> Option<&ProgramDoc> {
        let number = self.processes.get(name)?;
        self.programs.as_ref()?.list.get(*number)
    }

    /// True if the row of this name is a program without a contract.
    pub(super) fn is_program(&self, name: &str) -> bool {
        let rows = &self.doc.targets[self.targets..];
        rows.iter().any(|row| row.target == name)
    }

    /// The number of targets, without programs.
    pub(super) fn targets(&self) -> usize {
        self.targets
    }

    /// Adds the rates before the first response to the history; called once.
    pub(super) fn prepend_history(&mut self, doc: &HistoryDoc) {
        let targets = &self.doc.targets;
        let histories: BTreeMap<&str, &TargetHistory> = doc
            .targets
            .iter()
            .map(|history| (history.target.as_str(), history))
            .collect();
        let mut rows: Vec<[Vec<u64>; 2]> = vec![<[Vec<u64>; 2]>::default(); targets.len()];
        for target in targets {
            let Some(history) = histories.get(target.target.as_str()) else {
                continue;
            };
            let mut index = targets.iter().position(|t| t.target == target.target);
            for _ in 0..MAX_DEPTH {
                let Some(at) = index.filter(|index| *index < targets.len()) else {
                    break;
                };
                let down = usize::from(targets[at].both.is_none());
                add_row(&mut rows[at][0], &history.up_rate);
                add_row(&mut rows[at][down], &history.down_rate);
                index = targets[at].inside;
            }
        }
        for (target, row) in targets.iter().zip(rows) {
            let Some(known) = self.history.get_mut(&target.target) else {
                continue;
            };
            for (known, mut row) in known.iter_mut().zip(row) {
                // The newest points are known from the responses too.
                row.truncate(row.len().saturating_sub(known.len()));
                let from = (row.len() + known.len())
                    .saturating_sub(HISTORY_POINTS)
                    .min(row.len());
                row.drain(..from);
                row.extend(known.iter());
                *known = row.into();
            }
        }
    }

    /// The latest response.
    pub(super) fn doc(&self) -> &WatchDoc {
        &self.doc
    }

    /// The target of a row.
    pub(super) fn target(&self, row: &Row) -> &Watched {
        &self.doc.targets[row.index]
    }

    /// The target with this name; `None` if the latest response has none.
    pub(super) fn find(&self, name: &str) -> Option<&Watched> {
        self.doc.targets.iter().find(|target| target.target == name)
    }

    /// The past rates of a target in bit/s, oldest first, at most [`HISTORY_POINTS`].
    pub(super) fn history(&self, name: &str, direction: Direction) -> impl Iterator<Item = u64> {
        let history = self.history.get(name);
        let rates = history.map(|history| &history[direction as usize]);
        rates.into_iter().flatten().copied()
    }

    /// The rate of all rows together in one direction, in bit/s; each packet counts once.
    pub(super) fn total(&self, direction: Direction) -> u64 {
        if let Some(programs) = &self.programs {
            return match direction {
                Direction::Up => programs.total.up_rate,
                Direction::Down => programs.total.down_rate,
            };
        }
        let rates = self.doc.targets.iter().map(|t| t.traffic(direction).rate);
        rates.fold(0, u64::saturating_add)
    }

    /// Number of targets with traffic.
    pub(super) fn moving_targets(&self) -> usize {
        let moves = |sum: &&[Traffic; 2]| sum.iter().any(|moving| moving.rate > 0);
        self.sums.iter().take(self.targets).filter(moves).count()
    }

    /// The rows that `view` shows, in its order.
    pub(super) fn rows(&self, view: &View) -> Vec<Row> {
        let targets = &self.doc.targets;
        let shown = self.shown(view);
        let mut below: Vec<Vec<usize>> = vec![Vec::new(); targets.len()];
        let mut roots = Vec::new();
        for (index, target) in targets.iter().enumerate().filter(|(i, _)| shown[*i]) {
            match target
                .inside
                .filter(|outer| *outer < targets.len() && !view.flat)
            {
                Some(outer) => below[outer].push(index),
                None => roots.push(index),
            }
        }
        let mut rows = Vec::new();
        // The last element is the next row.
        let mut open: Vec<(usize, usize)> = self.ordered(roots, view, 0);
        while let Some((index, depth)) = open.pop() {
            rows.push(Row {
                index,
                depth,
                moving: self.moving(index, view),
            });
            // Takes the list, so a cycle in a response is followed only once.
            let inside = std::mem::take(&mut below[index]);
            open.extend(self.ordered(inside, view, depth + 1));
        }
        rows
    }

    /// For each target, whether the filter shows it: a match, or a target that contains a match.
    fn shown(&self, view: &View) -> Vec<bool> {
        let wanted = view.filter.to_lowercase();
        let targets = &self.doc.targets;
        let has = |text: &str| text.to_lowercase().contains(&wanted);
        let details = |t: &Watched| {
            let program = self.program(&t.target);
            program.is_some_and(|it| has(program_user(it)) || has(&program_group(it)))
        };
        let matches = |t: &Watched| wanted.is_empty() || has(&title(t)) || details(t);
        let mut shown: Vec<bool> = targets.iter().map(matches).collect();
        if view.flat {
            return shown;
        }
        for index in 0..targets.len() {
            let mut at = index;
            while shown[index]
                && let Some(outer) = targets[at].inside.filter(|outer| *outer < shown.len())
                && !shown[outer]
            {
                shown[outer] = true;
                at = outer;
            }
        }
        shown
    }

    /// Sorts indices of targets for a stack, the first row last. Each result is (index, depth).
    fn ordered(&self, mut indices: Vec<usize>, view: &View, depth: usize) -> Vec<(usize, usize)> {
        let name = |index: usize| &self.doc.targets[index].target;
        let program = |index: usize| self.program(name(index));
        match view.sort {
            Sort::Name => indices.sort_by_key(|index| name(*index)),
            // Rows without a user come last.
            Sort::User => indices.sort_by_key(|index| {
                let user = program(*index).map(program_user);
                (user.is_none(), user, name(*index))
            }),
            by => indices.sort_by_key(|i| {
                let key = by.sort_key(&self.moving(*i, view), program(*i));
                (Reverse(key), name(*i))
            }),
        }
        if !view.reversed {
            indices.reverse();
        }
        indices.into_iter().map(|index| (index, depth)).collect()
    }

    fn moving(&self, index: usize, view: &View) -> [Traffic; 2] {
        let target = &self.doc.targets[index];
        match view.flat {
            true => [target.sends, target.receives],
            false => self.sums[index],
        }
    }
}

impl Sort {
    /// All orders, in the sequence in which a key steps through them.
    pub(super) const ALL: [Sort; 9] = [
        Sort::Rate,
        Sort::Up,
        Sort::Down,
        Sort::Wait,
        Sort::Drops,
        Sort::Moved,
        Sort::Connections,
        Sort::User,
        Sort::Name,
    ];

    /// The next order in that sequence.
    pub(super) fn next(self) -> Sort {
        let at = Sort::ALL.iter().position(|sort| *sort == self);
        Sort::ALL[at.map_or(0, |at| (at + 1) % Sort::ALL.len())]
    }

    /// The name of the order.
    pub(super) fn word(self) -> &'static str {
        match self {
            Sort::Rate => "rate",
            Sort::Up => "up",
            Sort::Down => "down",
            Sort::Wait => "wait",
            Sort::Drops => "drops",
            Sort::Moved => "bytes so far",
            Sort::Connections => "connections",
            Sort::User => "user",
            Sort::Name => "name",
        }
    }

    fn sort_key(self, [up, down]: &[Traffic; 2], program: Option<&ProgramDoc>) -> u64 {
        match self {
            Sort::Rate => up.rate.saturating_add(down.rate),
            Sort::Up => up.rate,
            Sort::Down => down.rate,
            Sort::Wait => up.wait_ns.max(down.wait_ns),
            Sort::Drops => up.drops.saturating_add(down.drops),
            Sort::Moved => program.map_or(0, |program| {
                program.up_bytes.saturating_add(program.down_bytes)
            }),
            Sort::Connections => program.map_or(0, |program| program.connections),
            Sort::User | Sort::Name => 0,
        }
    }
}

/// The name of a target in the table, with the command of its process if it has one.
pub(super) fn title(target: &Watched) -> String {
    match &target.command {
        Some(command) => format!("{} {command}", target.target),
        None => target.target.clone(),
    }
}

/// The traffic of a program in one direction: its packets wait in the queues of targets.
fn moves(rate: u64) -> Traffic {
    Traffic {
        rate,
        ..Traffic::default()
    }
}

/// The traffic of each row with that of the targets inside it. The rows from `programs` on are
/// programs: the targets around them have counted their packets already.
fn sums(targets: &[Watched], programs: usize) -> Vec<[Traffic; 2]> {
    let mut sums: Vec<[Traffic; 2]> = targets.iter().map(|t| [t.sends, t.receives]).collect();
    for target in &targets[..programs] {
        let mut outer = target.inside;
        // The daemon nests five deep; a longer chain can only be a cycle.
        for _ in 0..MAX_DEPTH {
            let Some(index) = outer.filter(|index| *index < targets.len()) else {
                break;
            };
            let [sends, receives] = &mut sums[index];
            // A single limit for both directions counts all traffic inside it in one sum.
            match targets[index].both.is_some() {
                true => {
                    add(sends, target.sends);
                    add(sends, target.receives);
                }
                false => {
                    add(sends, target.sends);
                    add(receives, target.receives);
                }
            }
            outer = targets[index].inside;
        }
    }
    sums
}

/// Adds rates to rates; the last points of both have the same time.
fn add_row(sum: &mut Vec<u64>, one: &[u64]) {
    if sum.len() < one.len() {
        let missing = one.len() - sum.len();
        sum.splice(..0, std::iter::repeat_n(0, missing));
    }
    for (sum, one) in sum.iter_mut().rev().zip(one.iter().rev()) {
        *sum = sum.saturating_add(*one);
    }
}

fn add(sum: &mut Traffic, one: Traffic) {
    sum.rate = sum.rate.saturating_add(one.rate);
    sum.wait_ns = sum.wait_ns.max(one.wait_ns);
    sum.drops = sum.drops.saturating_add(one.drops);
    sum.held = sum.held.saturating_add(one.held);
}

/// Number of points that are kept for each target: the width of the widest history.
pub(super) const HISTORY_POINTS: usize = 60;
/// Longest chain that is followed; the daemon nests less.
const MAX_DEPTH: usize = 16;

#[cfg(test)]
mod tests;
