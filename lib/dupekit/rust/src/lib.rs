//! Python bindings of the dupekit kernels: module `dupekit_native`.
//!
//! The module is an implementation detail of the Python package `dupekit`, which documents what users call. Data crosses
//! through the Arrow C data interface (`PyCapsule` protocol), so columns are read in place and pyarrow is not linked.

// Documentation of classes and functions becomes Python docstrings, which follow Python's conventions.
#![allow(clippy::doc_markdown)]

mod arrow_io;
mod bloom;
mod errors;
mod hashing;
mod ngrams;
mod simd;
mod steps;
mod texts;

use pyo3::prelude::*;

/// Number of the contract between this module and the Python package; raised when a signature changes.
const API_VERSION: u32 = 1;

#[pymodule]
fn dupekit_native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add("API_VERSION", API_VERSION)?;
    module.add_class::<arrow_io::NativeArray>()?;
    module.add_class::<bloom::Bloom>()?;
    module.add_class::<ngrams::TokenNgrams>()?;
    module.add_class::<ngrams::TokenNgramSignature>()?;
    module.add_class::<ngrams::TokenNgramFingerprintSignature>()?;
    hashing::register(module)?;
    simd::register(module)?;
    steps::register(module)
}
