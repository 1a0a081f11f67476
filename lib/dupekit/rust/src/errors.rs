//! Failures, and their translation to the exception classes of `dupekit.errors`.

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// Why a call failed.
#[derive(Debug)]
pub(crate) enum Failure {
    Kernel(dupekit::Error),
    ColumnNotFound {
        column: String,
        available: Vec<String>,
    },
    ColumnType {
        column: String,
        found: String,
        expected: &'static str,
    },
    InvalidUtf8 {
        column: String,
        row: usize,
    },
    TooLarge {
        column: String,
    },
    Arrow(arrow_schema::ArrowError),
}

impl From<dupekit::Error> for Failure {
    fn from(error: dupekit::Error) -> Self {
        Self::Kernel(error)
    }
}

impl From<arrow_schema::ArrowError> for Failure {
    fn from(error: arrow_schema::ArrowError) -> Self {
        Self::Arrow(error)
    }
}

/// Makes an exception of `dupekit.errors` from its keyword arguments.
fn raise(class: &str, fill: impl FnOnce(&Bound<'_, PyDict>) -> PyResult<()>) -> PyErr {
    Python::attach(|py| {
        let made = (|| {
            let class = py.import("dupekit.errors")?.getattr(class)?;
            let fields = PyDict::new(py);
            fill(&fields)?;
            class.call((), Some(&fields))
        })();
        made.map_or_else(|error| error, PyErr::from_value)
    })
}

impl From<Failure> for PyErr {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Kernel(dupekit::Error::Parameter {
                name,
                value,
                expected,
            }) => raise("ParameterError", |fields| {
                fields.set_item("name", name)?;
                fields.set_item("value", value)?;
                fields.set_item("expected", expected)
            }),
            Failure::Kernel(dupekit::Error::Parse { what, reason }) => {
                raise("ParseError", |fields| {
                    fields.set_item("what", what)?;
                    fields.set_item("reason", reason)
                })
            }
            Failure::InvalidUtf8 { column, row } => raise("ParseError", |fields| {
                fields.set_item("what", format!("column {column:?}"))?;
                fields.set_item("reason", format!("row {row} is not valid UTF-8"))
            }),
            Failure::ColumnNotFound { column, available } => {
                raise("ColumnNotFoundError", |fields| {
                    fields.set_item("column", column)?;
                    fields.set_item("available", available)
                })
            }
            Failure::ColumnType {
                column,
                found,
                expected,
            } => raise("ColumnTypeError", |fields| {
                fields.set_item("column", column)?;
                fields.set_item("found", found)?;
                fields.set_item("expected", expected)
            }),
            Failure::TooLarge { column } => raise("BatchTooLargeError", |fields| {
                fields.set_item("column", column)
            }),
            Failure::Arrow(error) => {
                PyRuntimeError::new_err(format!("Arrow refused the data: {error}"))
            }
        }
    }
}

/// Translates an error of the kernels.
pub(crate) fn kernel(error: dupekit::Error) -> PyErr {
    Failure::Kernel(error).into()
}
