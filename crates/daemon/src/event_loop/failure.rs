//! Why the daemon could not start, or not go on.

/// See the module.
#[derive(Debug, thiserror::Error)]
#[error("cannot {what}: {source}")]
pub struct RunError {
    /// What it was doing.
    what: String,
    /// What came between.
    source: Box<dyn std::error::Error + Send + Sync>,
}

/// Says of an error what was being done.
pub(crate) trait During<T> {
    /// `what` follows the word `cannot`.
    fn during(self, what: &str) -> Result<T, RunError>;
}

impl<T, E: Into<Box<dyn std::error::Error + Send + Sync>>> During<T> for Result<T, E> {
    fn during(self, what: &str) -> Result<T, RunError> {
        self.map_err(|source| RunError {
            what: what.to_owned(),
            source: source.into(),
        })
    }
}
