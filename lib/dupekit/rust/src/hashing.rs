//! Hash functions of single byte strings and of whole columns.

use std::sync::Arc;

use arrow_array::{Array, ArrayRef, UInt64Array};
use arrow_buffer::ScalarBuffer;
use dupekit::hash::{self, Algorithm};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyBytes;

use crate::arrow_io::{NativeArray, import_array};
use crate::errors::{Failure, kernel};
use crate::texts::{Texts, TextsBuilder};

/// Reads an algorithm name.
pub(crate) fn algorithm(name: &str) -> dupekit::Result<Algorithm> {
    Ok(match name {
        "blake2b" => Algorithm::Blake2b,
        "blake3" => Algorithm::Blake3,
        "xxh3_128" => Algorithm::Xxh3_128,
        "xxh3_64" => Algorithm::Xxh3_64,
        _ => {
            return Err(dupekit::Error::parameter(
                "algorithm",
                name,
                "blake2b, blake3, xxh3_64 or xxh3_128",
            ));
        }
    })
}

/// Hexadecimal digests of a column; null stays null.
pub(crate) fn hex_column(
    texts: &Texts,
    name: &str,
    algorithm: Algorithm,
) -> Result<ArrayRef, Failure> {
    let mut out = TextsBuilder::new(name, texts.len());
    for row in 0..texts.len() {
        if let Some(bytes) = texts.bytes(row) {
            algorithm.append_hex(bytes, &mut out.bytes);
        }
        out.end_row()?;
    }
    out.finish(texts.nulls())
}

/// `BLAKE2b` digest (64 bytes).
#[pyfunction]
#[pyo3(signature = (data, /))]
fn blake2b<'py>(py: Python<'py>, data: &[u8]) -> Bound<'py, PyBytes> {
    PyBytes::new(py, &hash::blake2b(data))
}

/// BLAKE3 digest (32 bytes).
#[pyfunction]
#[pyo3(signature = (data, /))]
fn blake3<'py>(py: Python<'py>, data: &[u8]) -> Bound<'py, PyBytes> {
    PyBytes::new(py, &hash::blake3(data))
}

/// 64-bit XXH3 as a number.
#[pyfunction]
#[pyo3(signature = (data, /))]
fn xxh3_64(data: &[u8]) -> u64 {
    hash::xxh3_64(data)
}

/// 128-bit XXH3 as a number.
#[pyfunction]
#[pyo3(signature = (data, /))]
fn xxh3_128(data: &[u8]) -> u128 {
    hash::xxh3_128(data)
}

/// 64-bit XXH3 of each byte string.
#[pyfunction]
#[pyo3(signature = (items, /))]
#[allow(clippy::needless_pass_by_value)]
fn xxh3_64_batch(items: Vec<PyBackedBytes>) -> Vec<u64> {
    items.iter().map(|item| hash::xxh3_64(item)).collect()
}

/// Hexadecimal digests of an Arrow array of strings or bytes.
#[pyfunction]
#[pyo3(signature = (values, algorithm_name, /))]
fn hash_hex_array(
    py: Python<'_>,
    values: &Bound<'_, PyAny>,
    algorithm_name: &str,
) -> PyResult<NativeArray> {
    let algorithm = algorithm(algorithm_name).map_err(kernel)?;
    let array = import_array(values)?;
    let digests =
        py.detach(|| hex_column(&Texts::of_bytes("values", &array)?, "values", algorithm))?;
    Ok(NativeArray::from_array(&digests))
}

/// 64-bit XXH3 of an Arrow array of strings or bytes, as `uint64`.
#[pyfunction]
#[pyo3(signature = (values, /))]
fn xxh3_64_array(py: Python<'_>, values: &Bound<'_, PyAny>) -> PyResult<NativeArray> {
    let array = import_array(values)?;
    let hashes = py.detach(|| -> Result<ArrayRef, Failure> {
        let texts = Texts::of_bytes("values", &array)?;
        let hashes: Vec<u64> = (0..texts.len())
            .map(|row| texts.bytes(row).map_or(0, hash::xxh3_64))
            .collect();
        Ok(Arc::new(UInt64Array::try_new(
            ScalarBuffer::from(hashes),
            texts.nulls(),
        )?))
    })?;
    Ok(NativeArray::from_array(&hashes as &dyn Array))
}

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(blake2b, module)?)?;
    module.add_function(wrap_pyfunction!(blake3, module)?)?;
    module.add_function(wrap_pyfunction!(xxh3_64, module)?)?;
    module.add_function(wrap_pyfunction!(xxh3_128, module)?)?;
    module.add_function(wrap_pyfunction!(xxh3_64_batch, module)?)?;
    module.add_function(wrap_pyfunction!(hash_hex_array, module)?)?;
    module.add_function(wrap_pyfunction!(xxh3_64_array, module)?)
}
