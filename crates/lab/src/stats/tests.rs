use super::*;

fn close(a: f64, b: f64) {
    assert!((a - b).abs() < 1e-3, "{a} is not {b}");
}

#[test]
fn moments_and_percentiles_equal_hand_computed_values() {
    let v = [2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0];
    close(mean(&v), 5.0);
    close(deviation(&v), (32.0f64 / 7.0).sqrt());
    close(variation(&v), (32.0f64 / 7.0).sqrt() / 5.0);
    close(median(&v), 4.0);
    close(percentile(&v, 99.0), 9.0);
    close(percentile(&v, 0.0), 2.0);
    close(least(&v), 2.0);
    close(greatest(&v), 9.0);
    close(percentile(&[], 50.0), 0.0);
}

#[test]
fn a_percentile_is_a_value_that_occurred() {
    let v: Vec<f64> = (1..=1000).map(f64::from).collect();
    close(percentile(&v, 99.0), 990.0);
    close(percentile(&v, 50.0), 500.0);
}

#[test]
fn the_worst_error_keeps_its_sign() {
    close(worst_error(&[101.0, 97.0, 102.0], 100.0), -0.03);
}

#[test]
fn outliers_do_not_change_the_interval_of_the_median() {
    let mut v: Vec<f64> = (1..=40).map(f64::from).collect();
    // Ranks 13 and 28 of 40: 20 -+ 6.2, outwards.
    assert_eq!(median_interval(&v), (13.0, 28.0));
    v[39] = 1e9;
    assert_eq!(median_interval(&v), (13.0, 28.0));
    assert!(median_interval(&v[..5]).0.is_infinite());
}

#[test]
fn a_line_by_least_squares() {
    let line = Line::through(&[(0.0, 1.0), (1.0, 3.0), (2.0, 5.0)]);
    assert_eq!((line.at_zero, line.slope, line.r_squared), (1.0, 2.0, 1.0));
    assert_eq!(line.at(4.0), 9.0);
    // By hand: the line is 1/2, and all of the variation is left.
    let flat = Line::through(&[(0.0, 0.0), (0.0, 1.0), (1.0, 0.0), (1.0, 1.0)]);
    assert_eq!((flat.at_zero, flat.slope, flat.r_squared), (0.5, 0.0, 0.0));
    assert!(Line::through(&[(1.0, 1.0)]).slope.is_nan());
}
