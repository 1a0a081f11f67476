//! Arrow data in and out through the C data interface, by way of the `PyCapsule` protocol.
//!
//! Reference: <https://arrow.apache.org/docs/format/CDataInterface/PyCapsuleInterface.html>.

use std::ffi::CStr;

use arrow_array::ffi::{FFI_ArrowArray, FFI_ArrowSchema, from_ffi, to_ffi};
use arrow_array::{Array, ArrayRef, RecordBatch, StructArray, make_array};
use arrow_data::ArrayData;
use arrow_schema::{DataType, Field, FieldRef};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyTuple};

use crate::errors::Failure;

const SCHEMA: &CStr = c"arrow_schema";
const ARRAY: &CStr = c"arrow_array";

/// An Arrow array made by this module; pyarrow and others read it through `__arrow_c_array__`.
#[pyclass(frozen, module = "dupekit_native")]
pub(crate) struct NativeArray {
    data: ArrayData,
    field: FieldRef,
}

impl NativeArray {
    pub(crate) fn from_array(array: &dyn Array) -> Self {
        let field = Field::new("", array.data_type().clone(), true);
        Self {
            data: array.to_data(),
            field: field.into(),
        }
    }

    pub(crate) fn from_batch(batch: RecordBatch) -> Self {
        let schema = batch.schema();
        let rows = batch.num_rows();
        let columns = batch.columns().to_vec();
        let array = StructArray::try_new_with_length(schema.fields().clone(), columns, None, rows)
            .unwrap_or_else(|_| StructArray::from(batch));
        let field = Field::new("", array.data_type().clone(), false)
            .with_metadata(schema.metadata().clone());
        Self {
            data: array.into_data(),
            field: field.into(),
        }
    }
}

#[pymethods]
impl NativeArray {
    #[pyo3(signature = (requested_schema = None))]
    fn __arrow_c_array__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyTuple>> {
        // A schema request is a wish that producers may ignore.
        drop(requested_schema);
        let (array, _) = to_ffi(&self.data).map_err(Failure::from)?;
        let schema = FFI_ArrowSchema::try_from(self.field.as_ref()).map_err(Failure::from)?;
        let schema = PyCapsule::new_with_value(py, schema, SCHEMA)?;
        let array = PyCapsule::new_with_value(py, array, ARRAY)?;
        PyTuple::new(py, [schema, array])
    }
}

/// Takes over an array that some library exports; buffers are shared, not copied.
fn import(value: &Bound<'_, PyAny>) -> PyResult<(ArrayData, Field)> {
    let Ok(export) = value.getattr("__arrow_c_array__") else {
        let kind = value.get_type().qualname()?;
        let message = format!(
            "cannot read Arrow data: type={kind}; expected a pyarrow Array or RecordBatch."
        );
        return Err(PyTypeError::new_err(message));
    };
    let (schema, array): (Bound<'_, PyCapsule>, Bound<'_, PyCapsule>) =
        export.call0()?.extract()?;
    let schema = schema
        .pointer_checked(Some(SCHEMA))?
        .cast::<FFI_ArrowSchema>();
    let array = array.pointer_checked(Some(ARRAY))?.cast::<FFI_ArrowArray>();
    // SAFETY: the names were checked, so the pointers lead to the structures of the C data interface, alive as long as
    // the capsules. Moving the array out and leaving a released one behind is how a consumer takes ownership.
    let (schema, array) = unsafe { (schema.as_ref(), FFI_ArrowArray::from_raw(array.as_ptr())) };
    let field = Field::try_from(schema).map_err(Failure::from)?;
    // SAFETY: producers of the protocol guarantee that the array follows its schema.
    let mut data = unsafe { from_ffi(array, schema) }.map_err(Failure::from)?;
    data.align_buffers();
    Ok((data, field))
}

pub(crate) fn import_array(value: &Bound<'_, PyAny>) -> PyResult<ArrayRef> {
    Ok(make_array(import(value)?.0))
}

pub(crate) fn import_batch(value: &Bound<'_, PyAny>) -> PyResult<RecordBatch> {
    let (data, field) = import(value)?;
    if !matches!(data.data_type(), DataType::Struct(_)) {
        let message = format!(
            "cannot read a record batch: type={}; expected a struct of columns.",
            data.data_type()
        );
        return Err(PyTypeError::new_err(message));
    }
    let rows = StructArray::from(data);
    if rows.null_count() > 0 {
        let message = format!(
            "cannot read a record batch: null rows={}; expected none.",
            rows.null_count()
        );
        return Err(PyTypeError::new_err(message));
    }
    let batch = RecordBatch::from(rows);
    let schema = batch
        .schema()
        .as_ref()
        .clone()
        .with_metadata(field.metadata().clone());
    Ok(batch.with_schema(schema.into()).map_err(Failure::from)?)
}
