//! The Bloom filter as a Python set-like object.

use std::path::{Path, PathBuf};

use arrow_array::cast::AsArray;
use arrow_array::types::UInt64Type;
use arrow_array::{Array, BooleanArray, UInt64Array};
use arrow_schema::DataType;
use pyo3::IntoPyObjectExt;
use pyo3::basic::CompareOp;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyInt, PyTuple};

use crate::arrow_io::{NativeArray, import_array};
use crate::errors::kernel;
use crate::texts::type_failure;

/// A set of hashes with no false negatives and a chosen rate of false positives.
///
/// Items are integers of up to 128 bits that are already hashes, from -2^127 to 2^128 - 1, taken modulo 2^128.
/// Set operations and comparisons need filters made with the same arguments; the filter itself cannot be hashed.
///
/// Args:
///     expected_items: Number of items the rate holds for, at least 1.
///     false_positive_rate: Chance that a hash never added is reported, between 0 and 1.
///
/// Raises:
///     ParameterError: When an argument is out of range.
///
/// Example:
///     >>> from dupekit import Bloom
///     >>> seen = Bloom(1_000, 0.01)
///     >>> seen.update([1, 2, 3])
///     >>> 2 in seen, 9 in seen, seen.size_in_bits
///     (True, False, 9592)
#[pyclass(module = "dupekit_native")]
#[derive(Clone)]
pub(crate) struct Bloom(dupekit::bloom::Bloom);

/// A hash given as a Python int: signed or unsigned 128 bits, taken modulo 2^128.
fn hash_of(item: &Bound<'_, PyAny>) -> PyResult<u128> {
    if !item.is_instance_of::<PyInt>() {
        let kind = item.get_type().qualname()?;
        let message = format!(
            "cannot use a Bloom filter item: type={kind}; expected an int hash. Hash it first, e.g. with dupekit.hash_xxh3_128."
        );
        return Err(PyTypeError::new_err(message));
    }
    if let Ok(signed) = item.extract::<i128>() {
        return Ok(signed as u128);
    }
    item.extract::<u128>().map_err(|_| {
        kernel(dupekit::Error::parameter(
            "item",
            item,
            "an integer from -2^127 to 2^128 - 1",
        ))
    })
}

/// The column of hashes that the batch methods take.
fn hash_column(values: &Bound<'_, PyAny>) -> PyResult<UInt64Array> {
    let array = import_array(values)?;
    if array.data_type() == &DataType::UInt64 {
        return Ok(array.as_primitive::<UInt64Type>().clone());
    }
    Err(type_failure("values", &array, "uint64").into())
}

/// All hashes of an iterable, so that a bad item is found before anything changes.
fn hashes_of(items: &Bound<'_, PyAny>) -> PyResult<Vec<u128>> {
    items.try_iter()?.map(|item| hash_of(&item?)).collect()
}

impl Bloom {
    fn absorb(slf: &Bound<'_, Self>, other: &Bound<'_, PyAny>) -> PyResult<()> {
        let Ok(bloom) = other.cast::<Self>() else {
            let hashes = hashes_of(other)?;
            let mut mine = slf.try_borrow_mut()?;
            for hash in hashes {
                mine.0.insert(hash);
            }
            return Ok(());
        };
        // A filter cannot be borrowed twice, and joining it with itself changes nothing.
        if bloom.is(slf) {
            return Ok(());
        }
        let theirs = bloom.try_borrow()?;
        slf.try_borrow_mut()?
            .0
            .union_with(&theirs.0)
            .map_err(kernel)
    }

    fn keep_common(slf: &Bound<'_, Self>, other: &Bound<'_, PyAny>) -> PyResult<()> {
        if other.is(slf) {
            return Ok(());
        }
        let theirs = slf.try_borrow()?.same_shape(other)?;
        slf.try_borrow_mut()?
            .0
            .intersect_with(&theirs.0)
            .map_err(kernel)
    }

    /// The other operand as a filter; an iterable becomes a filter of the same shape.
    fn same_shape(&self, other: &Bound<'_, PyAny>) -> PyResult<Self> {
        if let Ok(bloom) = other.cast::<Self>() {
            return Ok(bloom.try_borrow()?.clone());
        }
        let mut made = self.clone();
        made.0.clear();
        for hash in hashes_of(other)? {
            made.0.insert(hash);
        }
        Ok(made)
    }
}

#[pymethods]
impl Bloom {
    #[new]
    #[pyo3(signature = (expected_items, false_positive_rate))]
    fn new(expected_items: u64, false_positive_rate: f64) -> PyResult<Self> {
        dupekit::bloom::Bloom::new(expected_items, false_positive_rate)
            .map(Self)
            .map_err(kernel)
    }

    /// Size of the filter in bits.
    #[getter]
    fn size_in_bits(&self) -> u64 {
        self.0.size_in_bits()
    }

    /// Bits an item sets.
    #[getter]
    fn num_indices(&self) -> u64 {
        self.0.num_indices()
    }

    /// Estimated number of items added.
    #[getter]
    fn approx_items(&self) -> f64 {
        self.0.approx_items()
    }

    /// Adds a hash.
    #[pyo3(signature = (item, /))]
    fn add(&mut self, item: &Bound<'_, PyAny>) -> PyResult<()> {
        self.0.insert(hash_of(item)?);
        Ok(())
    }

    /// Adds every hash of a `uint64` column; nulls are skipped.
    #[pyo3(signature = (values, /))]
    fn add_array(&mut self, py: Python<'_>, values: &Bound<'_, PyAny>) -> PyResult<()> {
        let column = hash_column(values)?;
        py.detach(|| {
            for hash in column.iter().flatten() {
                self.0.insert(u128::from(hash));
            }
        });
        Ok(())
    }

    /// Whether each hash of a `uint64` column may have been added; null stays null.
    #[pyo3(signature = (values, /))]
    fn contains_array<'py>(
        &self,
        py: Python<'py>,
        values: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let column = hash_column(values)?;
        let found: BooleanArray = py.detach(|| {
            column
                .iter()
                .map(|hash| hash.map(|hash| self.0.contains(u128::from(hash))))
                .collect()
        });
        py.import("pyarrow")?
            .call_method1("array", (NativeArray::from_array(&found),))
    }

    fn __contains__(&self, item: &Bound<'_, PyAny>) -> PyResult<bool> {
        Ok(self.0.contains(hash_of(item)?))
    }

    fn __bool__(&self) -> bool {
        !self.0.is_empty()
    }

    /// A new filter with the items of all.
    #[pyo3(signature = (*others))]
    fn union<'py>(
        slf: &Bound<'py, Self>,
        others: &Bound<'py, PyTuple>,
    ) -> PyResult<Bound<'py, Self>> {
        let made = Bound::new(slf.py(), slf.try_borrow()?.clone())?;
        Self::update(&made, others)?;
        Ok(made)
    }

    /// Adds the items of filters of the same shape, or of iterables of hashes.
    #[pyo3(signature = (*others))]
    fn update(slf: &Bound<'_, Self>, others: &Bound<'_, PyTuple>) -> PyResult<()> {
        others
            .iter()
            .try_for_each(|other| Self::absorb(slf, &other))
    }

    /// A new filter with the bits that all have.
    #[pyo3(signature = (*others))]
    fn intersection<'py>(
        slf: &Bound<'py, Self>,
        others: &Bound<'py, PyTuple>,
    ) -> PyResult<Bound<'py, Self>> {
        let made = Bound::new(slf.py(), slf.try_borrow()?.clone())?;
        Self::intersection_update(&made, others)?;
        Ok(made)
    }

    /// Keeps the bits that all have.
    #[pyo3(signature = (*others))]
    fn intersection_update(slf: &Bound<'_, Self>, others: &Bound<'_, PyTuple>) -> PyResult<()> {
        others
            .iter()
            .try_for_each(|other| Self::keep_common(slf, &other))
    }

    /// Whether every bit of this filter is set in the other.
    #[pyo3(signature = (other, /))]
    fn issubset(&self, other: &Bound<'_, PyAny>) -> PyResult<bool> {
        self.0.is_subset(&self.same_shape(other)?.0).map_err(kernel)
    }

    /// Whether every bit of the other filter is set in this one.
    #[pyo3(signature = (other, /))]
    fn issuperset(&self, other: &Bound<'_, PyAny>) -> PyResult<bool> {
        self.same_shape(other)?.0.is_subset(&self.0).map_err(kernel)
    }

    fn __or__(&self, other: &Self) -> PyResult<Self> {
        let mut made = self.clone();
        made.0.union_with(&other.0).map_err(kernel)?;
        Ok(made)
    }

    fn __and__(&self, other: &Self) -> PyResult<Self> {
        let mut made = self.clone();
        made.0.intersect_with(&other.0).map_err(kernel)?;
        Ok(made)
    }

    fn __ior__(slf: &Bound<'_, Self>, other: &Bound<'_, Self>) -> PyResult<()> {
        Self::absorb(slf, other)
    }

    fn __iand__(slf: &Bound<'_, Self>, other: &Bound<'_, Self>) -> PyResult<()> {
        Self::keep_common(slf, other)
    }

    fn __richcmp__(&self, other: &Bound<'_, PyAny>, op: CompareOp) -> PyResult<Py<PyAny>> {
        let py = other.py();
        let Ok(bloom) = other.cast::<Self>() else {
            return Ok(py.NotImplemented());
        };
        let theirs = bloom.try_borrow()?;
        let below = self.0.is_subset(&theirs.0).map_err(kernel)?;
        let above = theirs.0.is_subset(&self.0).map_err(kernel)?;
        match op {
            CompareOp::Lt => below && !above,
            CompareOp::Le => below,
            CompareOp::Eq => below && above,
            CompareOp::Ne => !(below && above),
            CompareOp::Gt => above && !below,
            CompareOp::Ge => above,
        }
        .into_py_any(py)
    }

    /// Forgets all items.
    fn clear(&mut self) {
        self.0.clear();
    }

    /// A separate filter with the same items.
    fn copy(&self) -> Self {
        self.clone()
    }

    /// The number of bits per item (8 bytes, little endian), then the bits.
    fn save_bytes<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.0.to_bytes())
    }

    /// Reads what `save_bytes` wrote.
    #[staticmethod]
    #[pyo3(signature = (data, /))]
    fn load_bytes(data: &[u8]) -> PyResult<Self> {
        dupekit::bloom::Bloom::from_bytes(data)
            .map(Self)
            .map_err(kernel)
    }

    /// Writes the filter to a file, which appears whole or not at all.
    #[allow(clippy::needless_pass_by_value)]
    fn save(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        Ok(py.detach(|| write_whole(&path, &self.0.to_bytes()))?)
    }

    /// Reads a file that `save` wrote.
    #[staticmethod]
    #[allow(clippy::needless_pass_by_value)]
    fn load(py: Python<'_>, path: PathBuf) -> PyResult<Self> {
        Self::load_bytes(&py.detach(|| std::fs::read(path))?)
    }

    fn __reduce__<'py>(
        slf: &Bound<'py, Self>,
    ) -> PyResult<(Bound<'py, PyAny>, (Bound<'py, PyBytes>,))> {
        let bytes = slf.try_borrow()?.save_bytes(slf.py());
        Ok((slf.get_type().getattr("load_bytes")?, (bytes,)))
    }

    fn __repr__(&self) -> String {
        format!(
            "Bloom(size_in_bits={}, num_indices={}, approx_items={:.1})",
            self.0.size_in_bits(),
            self.0.num_indices(),
            self.0.approx_items()
        )
    }
}

/// Writes a sibling file and renames it into place.
fn write_whole(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    use std::io::Write;
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.tmp", std::process::id()));
    let temporary = path.with_file_name(name);
    let written = std::fs::File::create(&temporary)
        .and_then(|mut file| file.write_all(bytes).and_then(|()| file.sync_all()))
        .and_then(|()| std::fs::rename(&temporary, path));
    if written.is_err() {
        let _ = std::fs::remove_file(&temporary);
    }
    written
}
