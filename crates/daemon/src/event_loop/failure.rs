//! The error with which the daemon ends ([`RunError`]): the action that failed, and the cause.
//! [`During::during`] adds the action to an error, and cannot fail itself.

/// The error with which the daemon ends: the action that failed, and the cause.
#[derive(Debug, thiserror::Error)]
#[error("cannot {what}: {source}")]
pub struct RunError {
    /// The action, as an infinitive.
    what: String,
    /// The cause.
    source: Box<dyn std::error::Error + Send + Sync>,
}

/// Adds the action to an error.
pub(crate) trait During<T> {
    /// The result, with an error as a [`RunError`]. `what` is the action, as an infinitive: it
    /// follows the word `cannot`.
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
