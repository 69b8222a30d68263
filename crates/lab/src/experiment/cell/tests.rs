use super::*;

#[test]
fn a_line_ends_on_the_way_to_the_next_cell() {
    let line = growing([0.0, 100.0, 380.0, 420.0, 500.0].into_iter(), 400);
    assert_eq!(line, [(0.0, 1.0), (100.0, 2.0), (380.0, 3.0), (400.0, 3.5)]);
}

/// A connection that ends within the range has its last cell as the end of its line.
#[test]
fn a_line_of_many_cells_is_thinned_and_keeps_its_ends() {
    let line = growing((0..30_001).map(f64::from), 60_000);
    assert!(line.len() < 310, "{}", line.len());
    assert_eq!(line.first(), Some(&(0.0, 1.0)));
    assert_eq!(line.last(), Some(&(30_000.0, 30_001.0)));
    let rising = line.windows(2).all(|pair| pair[0].0 < pair[1].0);
    assert!(rising, "{line:?}");
}
