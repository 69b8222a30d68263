//! What is desired against what is there.

pub mod ancestry;
pub mod desired;
pub mod install;
