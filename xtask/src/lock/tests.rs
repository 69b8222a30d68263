use std::time::{Duration, Instant};

use super::*;

#[test]
fn a_second_taker_waits_for_the_first() {
    let path = std::env::temp_dir().join(format!("netnice-lock-test-{}", std::process::id()));
    let first = MachineLock::take_at(&path).expect("free");
    let file = OpenOptions::new()
        .write(true)
        .open(&path)
        .expect("made by the first");
    assert!(matches!(file.try_lock(), Err(TryLockError::WouldBlock)));
    drop(first);
    // A process that another test starts at this moment has a copy of the descriptor until it
    // executes its program.
    let until = Instant::now() + Duration::from_secs(10);
    while let Err(TryLockError::WouldBlock) = file.try_lock() {
        assert!(Instant::now() < until, "the lock is still held");
        std::thread::sleep(Duration::from_millis(10));
    }
    std::fs::remove_file(&path).expect("ours");
}
