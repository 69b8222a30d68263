//! Chooses a small subset of a matrix that contains every pair of choices ([`cover`]). No call
//! fails.
//!
//! The matrix is a list of cells, each with one choice for every factor (such as the address
//! family). Most faults depend on one or two particular choices (IPv6 with UDP, for example), so a
//! subset with every *pair* of choices finds most of them. The algorithm is greedy: it takes the
//! cell that covers most uncovered pairs, until no pair is uncovered. Of several such cells it
//! takes the one whose choices were taken least so far, so that the choices stay balanced, and of
//! these the first. The result depends only on the matrix.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};

/// A pair of choices: factor and level, twice.
type Pair = (usize, usize, usize, usize);

/// A subset of `cells` with every pair of levels of different factors that occurs in `cells`.
/// `levels` returns the choices of a cell as numbers, one for each factor.
pub fn cover<T: Clone, const N: usize>(cells: &[T], levels: impl Fn(&T) -> [usize; N]) -> Vec<T> {
    let mut open: HashSet<Pair> = cells.iter().flat_map(|c| pairs(levels(c))).collect();
    let mut taken: HashMap<(usize, usize), usize> = HashMap::new();
    let mut chosen = Vec::new();
    while !open.is_empty() {
        let worth = |c: &&T| {
            let levels = levels(c);
            let gain = pairs(levels).filter(|m| open.contains(m)).count();
            let used: usize = choices(levels)
                .filter_map(|choice| taken.get(&choice))
                .sum();
            (gain, Reverse(used))
        };
        // max_by_key returns the last of equals; reversed, that is the first of the matrix.
        let Some(best) = cells.iter().rev().max_by_key(worth) else {
            break;
        };
        for pair in pairs(levels(best)) {
            open.remove(&pair);
        }
        for choice in choices(levels(best)) {
            *taken.entry(choice).or_default() += 1;
        }
        chosen.push(best.clone());
    }
    chosen
}

/// The choices of a cell: factor and level.
fn choices<const N: usize>(levels: [usize; N]) -> impl Iterator<Item = (usize, usize)> {
    levels.into_iter().enumerate()
}

fn pairs<const N: usize>(levels: [usize; N]) -> impl Iterator<Item = Pair> {
    (0..N).flat_map(move |a| (a + 1..N).map(move |b| (a, levels[a], b, levels[b])))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_cells_cover_every_pair_of_a_full_matrix() {
        let mut cells = Vec::new();
        for a in 0..3 {
            for b in 0..5 {
                for c in 0..5 {
                    for d in 0..2 {
                        cells.push([a, b, c, d]);
                    }
                }
            }
        }
        let chosen = cover(&cells, |c| *c);
        for (x, y) in [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)] {
            for cell in &cells {
                assert!(
                    chosen.iter().any(|c| c[x] == cell[x] && c[y] == cell[y]),
                    "{cell:?} on factors {x} and {y}"
                );
            }
        }
        // 25 pairs of the two widest factors are the minimum; the greedy result is close to it.
        assert!((25..=32).contains(&chosen.len()), "{} cells", chosen.len());
        assert_eq!(chosen, cover(&cells, |c| *c));
    }

    #[test]
    fn a_matrix_with_holes_covers_its_existing_pairs_only() {
        let cells = [[0, 0], [1, 1]];
        assert_eq!(cover(&cells, |c| *c).len(), 2);
        assert!(cover::<[usize; 2], 2>(&[], |c| *c).is_empty());
    }
}
