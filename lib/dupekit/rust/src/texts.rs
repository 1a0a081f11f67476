//! A column of texts, whatever its Arrow layout, read in place.
//!
//! Strings are read as bytes and checked for UTF-8 row by row: Arrow arrays can hold anything, and a Rust `str` that is
//! not UTF-8 would be undefined behaviour.

use arrow_array::cast::AsArray;
use arrow_array::types::{ArrowPrimitiveType, Int8Type, Int16Type, Int32Type, Int64Type};
use arrow_array::types::{UInt8Type, UInt16Type, UInt32Type, UInt64Type};
use arrow_array::{
    Array, ArrayRef, BinaryArray, BinaryViewArray, LargeBinaryArray, StringArray, make_array,
};
use arrow_buffer::{NullBuffer, OffsetBuffer, ScalarBuffer};
use arrow_schema::DataType;

use crate::errors::Failure;

const TEXT_TYPES: &str = "string, large_string or string_view";
const BYTES_TYPES: &str = "string, large_string, string_view, binary, large_binary or binary_view";
const ID_TYPES: &str = "string, large_string, string_view or an integer type";

enum Layout {
    Offsets32(BinaryArray),
    Offsets64(LargeBinaryArray),
    Views(BinaryViewArray),
    AllNull(usize),
}

/// A column of optional texts.
pub(crate) struct Texts {
    name: String,
    layout: Layout,
}

impl Texts {
    /// Reads a column of strings.
    pub(crate) fn of_strings(name: &str, array: &ArrayRef) -> Result<Self, Failure> {
        match array.data_type() {
            DataType::Binary | DataType::LargeBinary | DataType::BinaryView => {
                Err(type_failure(name, array, TEXT_TYPES))
            }
            _ => Self::of_bytes(name, array).map_err(|_| type_failure(name, array, TEXT_TYPES)),
        }
    }

    /// Reads a column of strings or bytes.
    pub(crate) fn of_bytes(name: &str, array: &ArrayRef) -> Result<Self, Failure> {
        let layout = match array.data_type() {
            DataType::Utf8 | DataType::Binary => {
                Layout::Offsets32(as_bytes(array, DataType::Binary).as_binary().clone())
            }
            DataType::LargeUtf8 | DataType::LargeBinary => {
                Layout::Offsets64(as_bytes(array, DataType::LargeBinary).as_binary().clone())
            }
            DataType::Utf8View | DataType::BinaryView => Layout::Views(
                as_bytes(array, DataType::BinaryView)
                    .as_binary_view()
                    .clone(),
            ),
            DataType::Null => Layout::AllNull(array.len()),
            _ => return Err(type_failure(name, array, BYTES_TYPES)),
        };
        Ok(Self {
            name: name.to_owned(),
            layout,
        })
    }

    pub(crate) fn len(&self) -> usize {
        match &self.layout {
            Layout::Offsets32(array) => array.len(),
            Layout::Offsets64(array) => array.len(),
            Layout::Views(array) => array.len(),
            Layout::AllNull(rows) => *rows,
        }
    }

    pub(crate) fn nulls(&self) -> Option<NullBuffer> {
        match &self.layout {
            Layout::Offsets32(array) => array.nulls().cloned(),
            Layout::Offsets64(array) => array.nulls().cloned(),
            Layout::Views(array) => array.nulls().cloned(),
            Layout::AllNull(rows) => Some(NullBuffer::new_null(*rows)),
        }
    }

    /// The bytes of a row, `None` when null.
    #[inline]
    pub(crate) fn bytes(&self, row: usize) -> Option<&[u8]> {
        match &self.layout {
            Layout::Offsets32(array) => array.is_valid(row).then(|| array.value(row)),
            Layout::Offsets64(array) => array.is_valid(row).then(|| array.value(row)),
            Layout::Views(array) => array.is_valid(row).then(|| array.value(row)),
            Layout::AllNull(_) => None,
        }
    }

    /// The text of a row, `None` when null.
    #[inline]
    pub(crate) fn text(&self, row: usize) -> Result<Option<&str>, Failure> {
        let Some(bytes) = self.bytes(row) else {
            return Ok(None);
        };
        match std::str::from_utf8(bytes) {
            Ok(text) => Ok(Some(text)),
            Err(_) => Err(Failure::InvalidUtf8 {
                column: self.name.clone(),
                row,
            }),
        }
    }
}

/// Collects optional strings into an Arrow column with 32-bit offsets.
pub(crate) struct TextsBuilder {
    name: String,
    offsets: Vec<i32>,
    pub(crate) bytes: Vec<u8>,
}

impl TextsBuilder {
    pub(crate) fn new(name: &str, rows: usize) -> Self {
        let mut offsets = Vec::with_capacity(rows + 1);
        offsets.push(0);
        Self {
            name: name.to_owned(),
            offsets,
            bytes: Vec::new(),
        }
    }

    /// Ends a row: it holds what was appended to `bytes` since the last one.
    pub(crate) fn end_row(&mut self) -> Result<(), Failure> {
        let end = i32::try_from(self.bytes.len()).map_err(|_| Failure::TooLarge {
            column: self.name.clone(),
        })?;
        self.offsets.push(end);
        Ok(())
    }

    pub(crate) fn push(&mut self, text: &str) -> Result<(), Failure> {
        self.bytes.extend_from_slice(text.as_bytes());
        self.end_row()
    }

    pub(crate) fn finish(self, nulls: Option<NullBuffer>) -> Result<ArrayRef, Failure> {
        let offsets = OffsetBuffer::new(ScalarBuffer::from(self.offsets));
        Ok(std::sync::Arc::new(StringArray::try_new(
            offsets,
            self.bytes.into(),
            nulls,
        )?))
    }
}

/// The identifiers of a column as strings; integers are written in decimal.
pub(crate) fn identifiers(name: &str, array: &ArrayRef) -> Result<Vec<Option<String>>, Failure> {
    fn decimals<T: ArrowPrimitiveType<Native: ToString>>(array: &ArrayRef) -> Vec<Option<String>> {
        array
            .as_primitive::<T>()
            .iter()
            .map(|value| value.map(|value| value.to_string()))
            .collect()
    }
    Ok(match array.data_type() {
        DataType::Int8 => decimals::<Int8Type>(array),
        DataType::Int16 => decimals::<Int16Type>(array),
        DataType::Int32 => decimals::<Int32Type>(array),
        DataType::Int64 => decimals::<Int64Type>(array),
        DataType::UInt8 => decimals::<UInt8Type>(array),
        DataType::UInt16 => decimals::<UInt16Type>(array),
        DataType::UInt32 => decimals::<UInt32Type>(array),
        DataType::UInt64 => decimals::<UInt64Type>(array),
        _ => {
            let texts =
                Texts::of_strings(name, array).map_err(|_| type_failure(name, array, ID_TYPES))?;
            (0..texts.len())
                .map(|row| Ok(texts.text(row)?.map(str::to_owned)))
                .collect::<Result<_, Failure>>()?
        }
    })
}

/// The same buffers under the byte type of the same layout.
fn as_bytes(array: &ArrayRef, to: DataType) -> ArrayRef {
    let builder = array.to_data().into_builder().data_type(to);
    // SAFETY: string and binary types of one layout differ only in the promise that values are UTF-8, which is dropped.
    make_array(unsafe { builder.build_unchecked() })
}

pub(crate) fn type_failure(name: &str, array: &dyn Array, expected: &'static str) -> Failure {
    Failure::ColumnType {
        column: name.to_owned(),
        found: array.data_type().to_string(),
        expected,
    }
}
