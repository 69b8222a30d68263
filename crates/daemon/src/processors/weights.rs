//! The weights of reservations with `cpu-extra` ([`Weights`]): such a target has its slice whoever
//! else is busy, and beside it a share, by weight, of what is not reserved.
//!
//! The kernel divides a processor by weights alone, so a weight has to stand for both. Let M be the
//! number of processors, R what of them is not reserved, sᵢ the reserved share of target i, wᵢ its
//! weight for the rest (that of a thread of nice value 0 for 100), and W the weight of everything
//! else that is busy. The target's part shall be sᵢ + R wᵢ / (Σw + W), and that of the others R W /
//! (Σw + W). The kernel divides so if the weight is
//!
//! ```text
//!   σᵢ = wᵢ + (sᵢ / R) (Σw + W)
//! ```
//!
//! W is not shown by the kernel. It follows from what was used: while a target with weight σ waits
//! for processors and uses u, others with weight W use σ : W = u : U. An estimate that is too low
//! would take something from the slice, so a target that has had less than its slice over the last
//! steps while it waited gets a higher weight at once.

use std::collections::BTreeMap;

use netnice_kernel::processor::groups::{MOST_WEIGHT, NORMAL_WEIGHT};

/// What one target did in a step. Shares are in processors.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Step {
    /// The target's id.
    pub id: u32,
    /// The reserved share.
    pub reserved: f64,
    /// The contract's weight, 1 to 1,000.
    pub weight: u32,
    /// The share that it used.
    pub used: f64,
    /// True if it waited for processors for a good part of the step.
    pub waited: bool,
}

/// What all processors did in a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Total {
    /// The number of processors.
    pub processors: f64,
    /// What all reservations have, with and without extra.
    pub reserved: f64,
    /// What everything outside reservations used.
    pub others: f64,
}

/// The present weights of the targets with extra.
#[derive(Clone, Debug, Default)]
pub(super) struct Weights {
    /// The estimate of W.
    others: f64,
    targets: BTreeMap<u32, Target>,
}

#[derive(Clone, Copy, Debug)]
struct Target {
    weight: f64,
    /// What the target lacks of its slice, in steps times processors.
    behind: f64,
}

impl Weights {
    /// Computes the weights for the next step. The kernel's range bounds them.
    pub(super) fn advance(&mut self, steps: &[Step], total: Total) -> BTreeMap<u32, u32> {
        self.targets
            .retain(|id, _| steps.iter().any(|step| step.id == *id));
        let mut estimates = Vec::new();
        for step in steps {
            let target = self.targets.entry(step.id).or_insert(Target {
                weight: f64::from(MOST_WEIGHT),
                behind: 0.0,
            });
            let lacks = match step.waited {
                true => step.reserved - step.used,
                false => -step.reserved,
            };
            target.behind = (target.behind + lacks).clamp(0.0, LONGEST_LACK * step.reserved);
            if step.waited && step.used > 0.0 {
                estimates.push(target.weight * total.others / step.used);
            }
        }
        if let Some(lowest) = estimates.into_iter().reduce(f64::min) {
            // Half of the way in proportion, so that one odd step does not matter.
            let known = self.others.max(1.0);
            self.others = (known * lowest.max(1.0)).sqrt();
        }
        let rest = (total.processors - total.reserved).max(total.processors * LEAST_REST);
        let sum: f64 = steps.iter().map(|step| natural(step.weight)).sum();
        let mut weights = BTreeMap::new();
        for step in steps {
            let Some(target) = self.targets.get_mut(&step.id) else {
                continue;
            };
            let fair = natural(step.weight) + step.reserved / rest * (sum + self.others);
            let urgent = 1.0 + URGENCY * target.behind / step.reserved.max(0.001);
            let weight = (fair * urgent).clamp(2.0, f64::from(MOST_WEIGHT));
            target.weight = weight;
            weights.insert(step.id, weight as u32);
        }
        weights
    }
}

/// The weight that a contract's weight stands for in the division of the rest.
fn natural(weight: u32) -> f64 {
    f64::from(weight) * f64::from(NORMAL_WEIGHT) / 100.0
}

/// What a target can lack at most, in steps of its slice.
const LONGEST_LACK: f64 = 10.0;
/// How much a target's weight rises for each step that it lacks.
const URGENCY: f64 = 4.0;
/// The least part of the processors that counts as the rest.
const LEAST_REST: f64 = 0.02;

#[cfg(test)]
mod tests {
    use super::*;

    /// Plays steps on `processors` that divide by weight what is wanted, all of it always.
    fn play(
        weights: &mut Weights,
        targets: &[(f64, u32)],
        others: f64,
        processors: f64,
        steps: usize,
    ) -> (Vec<f64>, f64) {
        let mut now = vec![f64::from(MOST_WEIGHT); targets.len()];
        let mut used = (vec![0.0; targets.len()], 0.0);
        for _ in 0..steps {
            let sum: f64 = now.iter().sum::<f64>() + others;
            let each: Vec<f64> = now.iter().map(|weight| processors * weight / sum).collect();
            used = (each.clone(), processors * others / sum);
            let steps: Vec<Step> = (0..)
                .zip(targets)
                .zip(&each)
                .map(|((id, (reserved, weight)), used)| Step {
                    id,
                    reserved: *reserved,
                    weight: *weight,
                    used: *used,
                    waited: true,
                })
                .collect();
            let total = Total {
                processors,
                reserved: targets.iter().map(|(reserved, _)| reserved).sum(),
                others: used.1,
            };
            let next = weights.advance(&steps, total);
            now = next.values().map(|weight| f64::from(*weight)).collect();
        }
        used
    }

    fn near(found: f64, wanted: f64) {
        assert!((found / wanted - 1.0).abs() < 0.03, "{found}, not {wanted}");
    }

    #[test]
    fn a_target_has_its_slice_and_a_share_of_the_rest() {
        // One thread of nice value 0 beside it: half of the rest each.
        let (targets, others) = play(&mut Weights::default(), &[(0.2, 100)], 1024.0, 1.0, 60);
        near(targets[0], 0.6);
        near(others, 0.4);
        // Beside a thread of nice value -20 little more than the slice is left.
        let (targets, _) = play(&mut Weights::default(), &[(0.2, 100)], 88_761.0, 1.0, 60);
        near(targets[0], 0.2 + 0.8 * 1024.0 / (1024.0 + 88_761.0));
    }

    #[test]
    fn two_targets_share_the_rest_by_weight() {
        let both = [(0.1, 100), (0.3, 300)];
        let (targets, others) = play(&mut Weights::default(), &both, 2048.0, 2.0, 80);
        near(targets[0], 0.1 + 1.6 / 6.0);
        near(targets[1], 0.3 + 1.6 * 3.0 / 6.0);
        near(others, 1.6 * 2.0 / 6.0);
        let (targets, _) = play(&mut Weights::default(), &both, 0.0, 1.0, 80);
        near(targets[0], 0.1 + 0.6 / 4.0);
        near(targets[1], 0.3 + 0.6 * 3.0 / 4.0);
    }

    #[test]
    fn load_that_comes_takes_nothing_of_the_slice_for_long() {
        let mut weights = Weights::default();
        play(&mut weights, &[(0.6, 100)], 1024.0, 1.0, 60);
        let (after_three, _) = play(&mut weights, &[(0.6, 100)], 180_000.0, 1.0, 4);
        assert!(after_three[0] >= 0.58, "{after_three:?}");
    }

    #[test]
    fn a_target_that_wants_nothing_gathers_no_claim() {
        let mut weights = Weights::default();
        let idle = Step {
            id: 1,
            reserved: 0.5,
            weight: 100,
            used: 0.0,
            waited: false,
        };
        let total = Total {
            processors: 1.0,
            reserved: 0.5,
            others: 1.0,
        };
        for _ in 0..100 {
            weights.advance(&[idle], total);
        }
        assert_eq!(weights.targets[&1].behind, 0.0);
    }
}
