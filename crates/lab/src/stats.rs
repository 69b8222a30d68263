//! Statistics of measured values, for the checks of experiments: means, percentiles, deviations and
//! intervals. A result has the unit of the values, except `variation` and `worst_error`, which
//! return ratios. The documentation of a function names its result for no values. `Cumulative`
//! holds samples of a byte counter and computes rates in bit/s. No function fails.

/// Samples of a byte counter that only rises: (wall-clock time in ns, bytes), in order of time.
#[derive(Debug, Clone, Default)]
pub(crate) struct Cumulative {
    samples: Vec<(u64, u64)>,
}

impl Cumulative {
    /// Adds a sample. Its time must be later than that of all others.
    pub(crate) fn push(&mut self, at_ns: u64, bytes: u64) {
        self.samples.push((at_ns, bytes));
    }

    /// Mean rate in bit/s between two moments, of which `from_ns` must be the earlier one; `None`
    /// if the samples do not span them.
    pub(crate) fn rate(&self, from_ns: u64, to_ns: u64) -> Option<f64> {
        let (a, b) = (self.at(from_ns)?, self.at(to_ns)?);
        Some((b - a) * 8e9 / (to_ns - from_ns) as f64)
    }

    /// Rates in bit/s in consecutive bins of `width_ns` from `from_ns` to `to_ns`. Omitted are an
    /// incomplete last bin, and bins that the samples do not span.
    pub(crate) fn bins(&self, from_ns: u64, to_ns: u64, width_ns: u64) -> Vec<f64> {
        (0..(to_ns.saturating_sub(from_ns)) / width_ns)
            .filter_map(|i| {
                let at = from_ns + i * width_ns;
                self.rate(at, at + width_ns)
            })
            .collect()
    }

    /// Bytes up to a moment, interpolated linearly between samples.
    fn at(&self, at_ns: u64) -> Option<f64> {
        let after = self.samples.partition_point(|s| s.0 < at_ns);
        let right = self.samples.get(after)?;
        if right.0 == at_ns {
            return Some(right.1 as f64);
        }
        let left = self.samples.get(after.checked_sub(1)?)?;
        let part = (at_ns - left.0) as f64 / (right.0 - left.0) as f64;
        Some(left.1 as f64 + part * (right.1 - left.1) as f64)
    }
}

impl FromIterator<(u64, u64)> for Cumulative {
    fn from_iter<I: IntoIterator<Item = (u64, u64)>>(samples: I) -> Self {
        Self {
            samples: samples.into_iter().collect(),
        }
    }
}

/// The values of bins, each at the middle of its bin. The first bin begins at `first`.
pub(crate) fn middles(values: &[f64], first: f64, width: f64) -> Vec<(f64, f64)> {
    let middle = |number: i32| first + (f64::from(number) + 0.5) * width;
    let numbered = (0..).zip(values);
    numbered
        .map(|(number, value)| (middle(number), *value))
        .collect()
}

/// The mean; 0 of no values.
pub(crate) fn mean(values: &[f64]) -> f64 {
    if values.is_empty() {
        return 0.0;
    }
    values.iter().sum::<f64>() / values.len() as f64
}

/// The sample standard deviation (n - 1); 0 of fewer than two values.
pub(crate) fn deviation(values: &[f64]) -> f64 {
    if values.len() < 2 {
        return 0.0;
    }
    let m = mean(values);
    let squares: f64 = values.iter().map(|v| (v - m).powi(2)).sum();
    (squares / (values.len() - 1) as f64).sqrt()
}

/// The coefficient of variation: standard deviation / mean. NaN of no values, and infinite or NaN
/// if the mean is 0.
pub(crate) fn variation(values: &[f64]) -> f64 {
    deviation(values) / mean(values)
}

/// The p-th percentile (p from 0 to 100): the smallest value that at least p % of the values do not
/// exceed; 0 of no values.
pub fn percentile(values: &[f64], p: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let rank = (p / 100.0 * sorted.len() as f64).ceil() as usize;
    sorted
        .get(rank.saturating_sub(1))
        .copied()
        .unwrap_or_default()
}

/// The median: the 50th [`percentile`]; 0 of no values.
pub fn median(values: &[f64]) -> f64 {
    percentile(values, 50.0)
}

/// The smallest value; 0 of no values.
pub fn least(values: &[f64]) -> f64 {
    values.iter().copied().reduce(f64::min).unwrap_or_default()
}

/// The largest value; 0 of no values.
pub fn greatest(values: &[f64]) -> f64 {
    values.iter().copied().reduce(f64::max).unwrap_or_default()
}

/// The 95 % confidence interval of the median (low, high), by ranks; infinite for fewer than six
/// values. It assumes no distribution of the values, so a few disturbed runs do not widen it.
pub(crate) fn median_interval(values: &[f64]) -> (f64, f64) {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let n = sorted.len() as f64;
    // The normal approximation of the binomial: ranks n/2 -+ 1.96 sqrt(n)/2.
    let reach = 0.98 * n.sqrt();
    let low = (n / 2.0 - reach).floor();
    let high = (n / 2.0 + 1.0 + reach).ceil();
    if values.len() < 6 {
        return (f64::NEG_INFINITY, f64::INFINITY);
    }
    let rank = |r: f64| sorted[(r.clamp(1.0, n) as usize) - 1];
    (rank(low), rank(high))
}

/// A line through points (x, y) by least squares.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub(crate) struct Line {
    /// The line's y at x = 0.
    pub at_zero: f64,
    /// How much y rises with x.
    pub slope: f64,
    /// The coefficient of determination: 1 if all points lie on the line.
    pub r_squared: f64,
}

impl Line {
    /// The line through these points. All values are NaN unless two of them have different x.
    pub(crate) fn through(points: &[(f64, f64)]) -> Line {
        let number = points.len() as f64;
        let mean_of = |of: fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / number;
        let (x, y) = (mean_of(|point| point.0), mean_of(|point| point.1));
        let sum = |of: &dyn Fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>();
        let slope = sum(&|p| (p.0 - x) * (p.1 - y)) / sum(&|p| (p.0 - x).powi(2));
        let at_zero = y - slope * x;
        let unexplained = sum(&|p| (p.1 - at_zero - slope * p.0).powi(2));
        let r_squared = 1.0 - unexplained / sum(&|p| (p.1 - y).powi(2));
        Line {
            at_zero,
            slope,
            r_squared,
        }
    }

    /// The line's y at `x`.
    pub(crate) fn at(&self, x: f64) -> f64 {
        self.at_zero + self.slope * x
    }
}

/// The largest relative deviation from `aim`, with its sign; NaN of no values.
pub(crate) fn worst_error(values: &[f64], aim: f64) -> f64 {
    values
        .iter()
        .map(|v| v / aim - 1.0)
        .max_by(|a, b| a.abs().total_cmp(&b.abs()))
        .unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests;
