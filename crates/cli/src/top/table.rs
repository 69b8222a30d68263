//! What the table says: targets as a tree, with what they and those inside them do, sorted and filtered.
//!
//! Pure: it is made of an answer of the daemon and of what the person wants to see. What a target does includes what
//! the targets inside it do, for their packets pass its limit too; the daemon counts each packet once.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use netnice_api::{HistoryDoc, Moving, TargetHistory, WatchDoc, Watched};
use netnice_core::contract::Direction;

/// The latest answer, and what the rates were before it.
#[derive(Debug, Default)]
pub(super) struct Table {
    doc: WatchDoc,
    /// Of each place in the document, all that is inside it with itself.
    sums: Vec<[Moving; 2]>,
    past: BTreeMap<String, [VecDeque<u64>; 2]>,
}

/// What the person wants to see.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct View {
    /// By what rows are ordered.
    pub sort: Sort,
    /// The least first.
    pub reversed: bool,
    /// Each target by itself, not below the one around it.
    pub flat: bool,
    /// Only targets with this in their name, and those around them.
    pub filter: String,
}

/// By what rows are ordered, the most first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Sort {
    /// What is sent and received together.
    #[default]
    Rate,
    /// What is sent.
    Up,
    /// What is received.
    Down,
    /// The longer of both waits.
    Wait,
    /// Packets dropped.
    Drops,
    /// The name, from a to z.
    Name,
}

/// One line of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Row {
    /// The target's place in the document.
    pub place: usize,
    /// How many targets are around it, as far as they are shown.
    pub depth: usize,
    /// What it does in each direction, with those inside.
    pub moving: [Moving; 2],
}

impl Table {
    /// Takes in an answer.
    pub(super) fn take(&mut self, doc: WatchDoc) {
        self.sums = sums(&doc.targets);
        let news = doc.at_ns != self.doc.at_ns || self.doc.targets.is_empty();
        let there: BTreeSet<&str> = doc.targets.iter().map(|t| t.target.as_str()).collect();
        self.past.retain(|name, _| there.contains(name.as_str()));
        for (target, sum) in doc.targets.iter().zip(&self.sums) {
            if !news && self.past.contains_key(&target.target) {
                continue;
            }
            let past = self.past.entry(target.target.clone()).or_default();
            for (past, moving) in past.iter_mut().zip(sum) {
                if past.len() == KEPT {
                    past.pop_front();
                }
                past.push_back(moving.rate);
            }
        }
        self.doc = doc;
    }

    /// Takes in what was before the first look, once.
    pub(super) fn remember(&mut self, past: &HistoryDoc) {
        let targets = &self.doc.targets;
        let told: BTreeMap<&str, &TargetHistory> = past
            .targets
            .iter()
            .map(|told| (told.target.as_str(), told))
            .collect();
        let mut rows: Vec<[Vec<u64>; 2]> = vec![<[Vec<u64>; 2]>::default(); targets.len()];
        for target in targets {
            let Some(told) = told.get(target.target.as_str()) else {
                continue;
            };
            let mut place = targets.iter().position(|t| t.target == target.target);
            for _ in 0..DEEPEST {
                let Some(at) = place.filter(|place| *place < targets.len()) else {
                    break;
                };
                let down = usize::from(targets[at].both.is_none());
                add_row(&mut rows[at][0], &told.up_rate);
                add_row(&mut rows[at][down], &told.down_rate);
                place = targets[at].inside;
            }
        }
        for (target, row) in targets.iter().zip(rows) {
            let Some(known) = self.past.get_mut(&target.target) else {
                continue;
            };
            for (known, mut row) in known.iter_mut().zip(row) {
                // The newest were seen here too.
                row.truncate(row.len().saturating_sub(known.len()));
                let from = (row.len() + known.len())
                    .saturating_sub(KEPT)
                    .min(row.len());
                row.drain(..from);
                row.extend(known.iter());
                *known = row.into();
            }
        }
    }

    /// The answer itself.
    pub(super) fn doc(&self) -> &WatchDoc {
        &self.doc
    }

    /// The target at a place.
    pub(super) fn target(&self, row: &Row) -> &Watched {
        &self.doc.targets[row.place]
    }

    /// A target by name.
    pub(super) fn find(&self, name: &str) -> Option<&Watched> {
        self.doc.targets.iter().find(|target| target.target == name)
    }

    /// The rates of a target until now, the oldest first.
    pub(super) fn past(&self, name: &str, direction: Direction) -> impl Iterator<Item = u64> {
        let past = self.past.get(name).map(|past| &past[direction as usize]);
        past.into_iter().flatten().copied()
    }

    /// What all targets do together, each packet once.
    pub(super) fn total(&self, direction: Direction) -> u64 {
        let rates = self.doc.targets.iter().map(|t| t.moving(direction).rate);
        rates.fold(0, u64::saturating_add)
    }

    /// How many targets do something.
    pub(super) fn busy(&self) -> usize {
        let moves = |sum: &&[Moving; 2]| sum.iter().any(|moving| moving.rate > 0);
        self.sums.iter().filter(moves).count()
    }

    /// The lines, in order.
    pub(super) fn rows(&self, view: &View) -> Vec<Row> {
        let targets = &self.doc.targets;
        let shown = self.shown(view);
        let mut below: Vec<Vec<usize>> = vec![Vec::new(); targets.len()];
        let mut roots = Vec::new();
        for (place, target) in targets.iter().enumerate().filter(|(p, _)| shown[*p]) {
            match target
                .inside
                .filter(|around| *around < targets.len() && !view.flat)
            {
                Some(around) => below[around].push(place),
                None => roots.push(place),
            }
        }
        let mut rows = Vec::new();
        // The last is the next to be shown.
        let mut open: Vec<(usize, usize)> = self.ordered(roots, view, 0);
        while let Some((place, depth)) = open.pop() {
            rows.push(Row {
                place,
                depth,
                moving: self.moving(place, view),
            });
            // Taken, so that nothing that an answer might say is followed twice.
            let inside = std::mem::take(&mut below[place]);
            open.extend(self.ordered(inside, view, depth + 1));
        }
        rows
    }

    /// Which places the filter lets through: those that match, and those around them.
    fn shown(&self, view: &View) -> Vec<bool> {
        let wanted = view.filter.to_lowercase();
        let targets = &self.doc.targets;
        let matches = |t: &Watched| wanted.is_empty() || t.target.to_lowercase().contains(&wanted);
        let mut shown: Vec<bool> = targets.iter().map(matches).collect();
        if view.flat {
            return shown;
        }
        for place in 0..targets.len() {
            let mut at = place;
            while shown[place]
                && let Some(around) = targets[at].inside.filter(|around| *around < shown.len())
                && !shown[around]
            {
                shown[around] = true;
                at = around;
            }
        }
        shown
    }

    /// Places in the order of a stack: the first to be shown comes last.
    fn ordered(&self, mut places: Vec<usize>, view: &View, depth: usize) -> Vec<(usize, usize)> {
        let name = |place: usize| &self.doc.targets[place].target;
        match view.sort {
            Sort::Name => places.sort_by_key(|place| name(*place)),
            by => places.sort_by_key(|p| (Reverse(by.measure(&self.moving(*p, view))), name(*p))),
        }
        if !view.reversed {
            places.reverse();
        }
        places.into_iter().map(|place| (place, depth)).collect()
    }

    fn moving(&self, place: usize, view: &View) -> [Moving; 2] {
        let target = &self.doc.targets[place];
        match view.flat {
            true => [target.sends, target.receives],
            false => self.sums[place],
        }
    }
}

impl Sort {
    /// All of them, in the order in which they are gone through.
    pub(super) const ALL: [Sort; 6] = [
        Sort::Rate,
        Sort::Up,
        Sort::Down,
        Sort::Wait,
        Sort::Drops,
        Sort::Name,
    ];

    /// The next one.
    pub(super) fn next(self) -> Sort {
        let at = Sort::ALL.iter().position(|sort| *sort == self);
        Sort::ALL[at.map_or(0, |at| (at + 1) % Sort::ALL.len())]
    }

    /// In a word.
    pub(super) fn word(self) -> &'static str {
        match self {
            Sort::Rate => "rate",
            Sort::Up => "up",
            Sort::Down => "down",
            Sort::Wait => "wait",
            Sort::Drops => "drops",
            Sort::Name => "name",
        }
    }

    fn measure(self, [up, down]: &[Moving; 2]) -> u64 {
        match self {
            Sort::Rate => up.rate.saturating_add(down.rate),
            Sort::Up => up.rate,
            Sort::Down => down.rate,
            Sort::Wait => up.wait_ns.max(down.wait_ns),
            Sort::Drops => up.drops.saturating_add(down.drops),
            Sort::Name => 0,
        }
    }
}

/// What each target does with those inside it.
fn sums(targets: &[Watched]) -> Vec<[Moving; 2]> {
    let mut sums: Vec<[Moving; 2]> = targets.iter().map(|t| [t.sends, t.receives]).collect();
    for target in targets {
        let mut around = target.inside;
        // The daemon nests five deep; more than this would go round in a circle.
        for _ in 0..DEEPEST {
            let Some(place) = around.filter(|place| *place < targets.len()) else {
                break;
            };
            let [sends, receives] = &mut sums[place];
            // One limit for both directions counts all of what is inside it in one.
            match targets[place].both.is_some() {
                true => {
                    add(sends, target.sends);
                    add(sends, target.receives);
                }
                false => {
                    add(sends, target.sends);
                    add(receives, target.receives);
                }
            }
            around = targets[place].inside;
        }
    }
    sums
}

/// Adds rates to rates; both end now.
fn add_row(sum: &mut Vec<u64>, one: &[u64]) {
    if sum.len() < one.len() {
        let missing = one.len() - sum.len();
        sum.splice(..0, std::iter::repeat_n(0, missing));
    }
    for (sum, one) in sum.iter_mut().rev().zip(one.iter().rev()) {
        *sum = sum.saturating_add(*one);
    }
}

fn add(sum: &mut Moving, one: Moving) {
    sum.rate = sum.rate.saturating_add(one.rate);
    sum.wait_ns = sum.wait_ns.max(one.wait_ns);
    sum.drops = sum.drops.saturating_add(one.drops);
    sum.held = sum.held.saturating_add(one.held);
}

/// As many as the widest history shows.
pub(super) const KEPT: usize = 60;
/// More than the daemon nests.
const DEEPEST: usize = 16;

#[cfg(test)]
mod tests;
