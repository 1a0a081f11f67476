//! The instruction-set path in force: the widest by default, any available one by request of a test.

use std::sync::atomic::{AtomicU8, Ordering};

use dupekit::simd::SimdPath;
use pyo3::prelude::*;

use crate::errors::kernel;

/// Index into `SimdPath::ALL` plus one; 0 means the widest path.
static FORCED: AtomicU8 = AtomicU8::new(0);

pub(crate) fn current() -> SimdPath {
    match FORCED.load(Ordering::Relaxed) {
        0 => SimdPath::best(),
        index => SimdPath::ALL[usize::from(index) - 1],
    }
}

/// Names of the paths this CPU can run, plainest first.
#[pyfunction]
fn simd_paths() -> Vec<&'static str> {
    SimdPath::available()
        .into_iter()
        .map(SimdPath::name)
        .collect()
}

/// Name of the path in force.
#[pyfunction]
fn simd_path() -> &'static str {
    current().name()
}

/// Forces a path for the whole process; `None` goes back to the widest.
#[pyfunction]
#[pyo3(signature = (name))]
fn set_simd_path(name: Option<&str>) -> PyResult<()> {
    let index = match name {
        None => 0,
        Some(name) => SimdPath::parse(name).map_err(kernel)? as u8 + 1,
    };
    FORCED.store(index, Ordering::Relaxed);
    Ok(())
}

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(simd_paths, module)?)?;
    module.add_function(wrap_pyfunction!(simd_path, module)?)?;
    module.add_function(wrap_pyfunction!(set_simd_path, module)?)
}
