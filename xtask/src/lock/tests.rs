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
    assert!(file.try_lock().is_ok());
    std::fs::remove_file(&path).expect("ours");
}
