//! What can go wrong in a kernel: a bad parameter, or bytes that are not what they claim to be.

use std::fmt;

/// Shorthand for results of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// Failure of a kernel, with the offending name and value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Error {
    /// A parameter lies outside its range.
    Parameter {
        /// Name of the parameter.
        name: &'static str,
        /// Value that was given, as text.
        value: String,
        /// What would have been accepted.
        expected: String,
    },
    /// Serialised bytes cannot be read back.
    Parse {
        /// What was being read.
        what: &'static str,
        /// What is wrong with the bytes.
        reason: String,
    },
}

impl Error {
    /// Builds a [`Error::Parameter`].
    pub fn parameter(name: &'static str, value: impl fmt::Display, expected: impl Into<String>) -> Self {
        Self::Parameter { name, value: value.to_string(), expected: expected.into() }
    }

    /// Builds a [`Error::Parse`].
    pub fn parse(what: &'static str, reason: impl Into<String>) -> Self {
        Self::Parse { what, reason: reason.into() }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Parameter { name, value, expected } => {
                write!(f, "bad parameter: {name}={value}; expected {expected}.")
            }
            Self::Parse { what, reason } => write!(f, "cannot read {what}: {reason}."),
        }
    }
}

impl std::error::Error for Error {}
