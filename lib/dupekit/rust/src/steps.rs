//! The steps of `transform`: each reads a column of a batch and adds, replaces or selects columns.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{ArrowPrimitiveType, UInt32Type, UInt64Type};
use arrow_array::{
    Array, ArrayRef, Int64Array, ListArray, PrimitiveArray, RecordBatch, RecordBatchOptions,
    StructArray,
};
use arrow_buffer::{NullBuffer, OffsetBuffer, ScalarBuffer};
use arrow_schema::{DataType, Field, Schema};
use dupekit::hash::Algorithm;
use dupekit::lsh::{Slot, append_buckets};
use dupekit::minhash::check_parameters;
use dupekit::minhash::compat::CompatPermutations;
use dupekit::minhash::fast32::Fast32Permutations;
use dupekit::shingle::{NgramKind, Scratch, Window};
use dupekit::text::{clean_into, paragraphs};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;

use crate::arrow_io::{NativeArray, import_batch};
use crate::errors::{Failure, kernel};
use crate::texts::{Texts, TextsBuilder, identifiers, type_failure};
use crate::{hashing, simd};

/// The permutations of a `MinHash` step.
enum Permutations {
    Compat(CompatPermutations),
    Fast32(Fast32Permutations),
}

/// One step, checked when it is built.
enum Step {
    SplitParagraphs {
        text: String,
        id: String,
    },
    Hash {
        input: String,
        output: String,
        algorithm: Algorithm,
    },
    SelectColumns {
        columns: Vec<String>,
    },
    CleanText {
        input: String,
        output: String,
    },
    MinHash {
        input: String,
        output: String,
        window: Window,
        permutations: Permutations,
    },
    MinHashLsh {
        input: String,
        output: String,
        num_bands: usize,
    },
}

fn window(kind: &str, size: usize) -> dupekit::Result<Window> {
    let kind = match kind {
        "char" => NgramKind::Char,
        "word" => NgramKind::Word,
        _ => {
            return Err(dupekit::Error::parameter(
                "ngram_kind",
                kind,
                "char or word",
            ));
        }
    };
    Ok(Window { kind, size })
}

/// Reads a step from the tuple that the Python package sends: a tag, then the fields.
fn read_step(value: &Bound<'_, PyAny>) -> PyResult<Step> {
    let tag: String = value.get_item(0)?.extract()?;
    Ok(match tag.as_str() {
        "split_paragraphs" => {
            let (_, text, id): (String, String, String) = value.extract()?;
            Step::SplitParagraphs { text, id }
        }
        "hash" => {
            let (_, input, output, name): (String, String, String, String) = value.extract()?;
            Step::Hash {
                input,
                output,
                algorithm: hashing::algorithm(&name).map_err(kernel)?,
            }
        }
        "select_columns" => {
            let (_, columns): (String, Vec<String>) = value.extract()?;
            Step::SelectColumns { columns }
        }
        "clean_text" => {
            let (_, input, output): (String, String, String) = value.extract()?;
            Step::CleanText { input, output }
        }
        "minhash" => read_minhash(value)?,
        "minhash_lsh" => {
            let (_, input, output, num_bands): (String, String, String, usize) = value.extract()?;
            Step::MinHashLsh {
                input,
                output,
                num_bands,
            }
        }
        _ => {
            return Err(PyTypeError::new_err(format!(
                "cannot run a step: tag={tag:?}; expected a Transformation."
            )));
        }
    })
}

fn read_minhash(value: &Bound<'_, PyAny>) -> PyResult<Step> {
    type Fields = (String, String, String, String, usize, String, usize, u64);
    let (_, input, output, kind, num_perms, ngram_kind, ngram_size, seed): Fields =
        value.extract()?;
    let window = window(&ngram_kind, ngram_size).map_err(kernel)?;
    check_parameters(num_perms, window).map_err(kernel)?;
    let permutations = match kind.as_str() {
        "compat" => Permutations::Compat(CompatPermutations::new(num_perms, seed)),
        "fast32" => Permutations::Fast32(Fast32Permutations::new(num_perms, seed)),
        _ => {
            return Err(kernel(dupekit::Error::parameter(
                "kind",
                kind,
                "compat or fast32",
            )));
        }
    };
    Ok(Step::MinHash {
        input,
        output,
        window,
        permutations,
    })
}

fn column<'a>(batch: &'a RecordBatch, name: &str) -> Result<&'a ArrayRef, Failure> {
    batch
        .column_by_name(name)
        .ok_or_else(|| Failure::ColumnNotFound {
            column: name.to_owned(),
            available: batch
                .schema()
                .fields()
                .iter()
                .map(|field| field.name().clone())
                .collect(),
        })
}

/// The batch with a column added at the end, or replaced where it stands.
fn with_column(batch: &RecordBatch, name: &str, array: ArrayRef) -> Result<RecordBatch, Failure> {
    let schema = batch.schema();
    let mut fields = schema.fields().to_vec();
    let mut columns = batch.columns().to_vec();
    let field = Arc::new(Field::new(name, array.data_type().clone(), true));
    if let Ok(index) = schema.index_of(name) {
        fields[index] = field;
        columns[index] = array;
    } else {
        fields.push(field);
        columns.push(array);
    }
    let schema = Schema::new_with_metadata(fields, schema.metadata().clone());
    Ok(RecordBatch::try_new(schema.into(), columns)?)
}

impl Step {
    fn apply(&self, batch: &RecordBatch, threads: usize) -> Result<RecordBatch, Failure> {
        match self {
            Self::SplitParagraphs { text, id } => split_paragraphs(batch, text, id),
            Self::SelectColumns { columns } => select(batch, columns),
            Self::Hash {
                input,
                output,
                algorithm,
            } => {
                let texts = Texts::of_bytes(input, column(batch, input)?)?;
                with_column(
                    batch,
                    output,
                    hashing::hex_column(&texts, output, *algorithm)?,
                )
            }
            Self::CleanText { input, output } => {
                let texts = Texts::of_strings(input, column(batch, input)?)?;
                with_column(batch, output, clean(&texts, output)?)
            }
            Self::MinHash {
                input,
                output,
                window,
                permutations,
            } => {
                let texts = Texts::of_strings(input, column(batch, input)?)?;
                let list = minhash(&texts, output, *window, permutations, threads)?;
                with_column(batch, output, list)
            }
            Self::MinHashLsh {
                input,
                output,
                num_bands,
            } => {
                let buckets = buckets(column(batch, input)?, input, output, *num_bands)?;
                with_column(batch, output, buckets)
            }
        }
    }
}

fn select(batch: &RecordBatch, names: &[String]) -> Result<RecordBatch, Failure> {
    let schema = batch.schema();
    let mut fields = Vec::with_capacity(names.len());
    let mut columns = Vec::with_capacity(names.len());
    for name in names {
        columns.push(Arc::clone(column(batch, name)?));
        fields.push(Arc::clone(&schema.fields()[schema.index_of(name)?]));
    }
    let schema = Schema::new_with_metadata(fields, schema.metadata().clone());
    let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
    Ok(RecordBatch::try_new_with_options(
        schema.into(),
        columns,
        &options,
    )?)
}

fn clean(texts: &Texts, output: &str) -> Result<ArrayRef, Failure> {
    let mut out = TextsBuilder::new(output, texts.len());
    let mut cleaned = String::new();
    for row in 0..texts.len() {
        cleaned.clear();
        if let Some(text) = texts.text(row)? {
            clean_into(text, &mut cleaned);
        }
        out.push(&cleaned)?;
    }
    out.finish(texts.nulls())
}

fn split_paragraphs(batch: &RecordBatch, text: &str, id: &str) -> Result<RecordBatch, Failure> {
    let texts = Texts::of_strings(text, column(batch, text)?)?;
    let ids = identifiers(id, column(batch, id)?)?;
    let mut id_out = TextsBuilder::new("doc_id", batch.num_rows());
    let mut text_out = TextsBuilder::new("paragraph_text", batch.num_rows());
    let (mut id_valid, mut bounds) = (Vec::new(), Vec::new());
    for (row, id) in ids.iter().enumerate() {
        let Some(whole) = texts.text(row)? else {
            continue;
        };
        for (start, end) in paragraphs(whole) {
            id_out.push(id.as_deref().unwrap_or_default())?;
            id_valid.push(id.is_some());
            text_out.push(&whole[start..end])?;
            bounds.extend([start as i64, end as i64]);
        }
    }
    let rows = id_valid.len();
    let item = Arc::new(Field::new("item", DataType::Int64, true));
    let lengths = OffsetBuffer::from_repeated_length(2, rows);
    let spans = ListArray::try_new(item, lengths, Arc::new(Int64Array::from(bounds)), None)?;
    let span_field = Arc::new(Field::new("span", spans.data_type().clone(), true));
    let spans: ArrayRef = Arc::new(StructArray::try_new(
        vec![span_field].into(),
        vec![Arc::new(spans)],
        None,
    )?);
    let schema = Schema::new(vec![
        Field::new("doc_id", DataType::Utf8, true),
        Field::new("paragraph_text", DataType::Utf8, true),
        Field::new("paragraph_span", spans.data_type().clone(), true),
    ]);
    let columns = vec![
        id_out.finish(Some(NullBuffer::from(id_valid)))?,
        text_out.finish(None)?,
        spans,
    ];
    Ok(RecordBatch::try_new(schema.into(), columns)?)
}

fn minhash(
    texts: &Texts,
    output: &str,
    window: Window,
    permutations: &Permutations,
    threads: usize,
) -> Result<ArrayRef, Failure> {
    let path = simd::current();
    match permutations {
        Permutations::Compat(compat) => {
            let slots = signatures(texts, threads, &|text, scratch, out| {
                scratch.fill_compat(text, window);
                compat.append_signature(&scratch.hashes, path, out);
            })?;
            lists::<UInt64Type>(output, slots, compat.coefficients().len(), texts)
        }
        Permutations::Fast32(fast) => {
            let slots = signatures(texts, threads, &|text, scratch, out| {
                scratch.fill_rolling(text, window);
                fast.append_signature(&scratch.hashes, path, out);
            })?;
            lists::<UInt32Type>(output, slots, fast.len(), texts)
        }
    }
}

/// Runs `sign` on every text that is not null, rows split over `threads`, and joins what it appended in row order.
fn signatures<T: Send>(
    texts: &Texts,
    threads: usize,
    sign: &(dyn Fn(&str, &mut Scratch, &mut Vec<T>) + Sync),
) -> Result<Vec<T>, Failure> {
    let part = |rows: std::ops::Range<usize>| -> Result<Vec<T>, Failure> {
        let (mut scratch, mut out) = (Scratch::default(), Vec::new());
        for row in rows {
            if let Some(text) = texts.text(row)? {
                sign(text, &mut scratch, &mut out);
            }
        }
        Ok(out)
    };
    let share = texts.len().div_ceil(threads.max(1)).max(1);
    if share >= texts.len() {
        return part(0..texts.len());
    }
    let part = &part;
    let parts: Vec<_> = std::thread::scope(|scope| {
        let starts = (0..texts.len()).step_by(share);
        let running: Vec<_> = starts
            .map(|start| scope.spawn(move || part(start..texts.len().min(start + share))))
            .collect();
        running
            .into_iter()
            .map(std::thread::ScopedJoinHandle::join)
            .collect()
    });
    let mut joined = Vec::new();
    for part in parts {
        joined.append(&mut part.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?);
    }
    Ok(joined)
}

/// A list column: `width` values for each text, null for a null text.
fn lists<T: ArrowPrimitiveType>(
    name: &str,
    values: Vec<T::Native>,
    width: usize,
    texts: &Texts,
) -> Result<ArrayRef, Failure>
where
    ScalarBuffer<T::Native>: From<Vec<T::Native>>,
{
    let nulls = texts.nulls();
    let lengths = (0..texts.len()).map(|row| {
        if nulls.as_ref().is_none_or(|nulls| nulls.is_valid(row)) {
            width
        } else {
            0
        }
    });
    list_column::<T>(name, values, lengths, nulls.clone())
}

fn list_column<T: ArrowPrimitiveType>(
    name: &str,
    values: Vec<T::Native>,
    lengths: impl Iterator<Item = usize>,
    nulls: Option<NullBuffer>,
) -> Result<ArrayRef, Failure>
where
    ScalarBuffer<T::Native>: From<Vec<T::Native>>,
{
    if i32::try_from(values.len()).is_err() {
        return Err(Failure::TooLarge {
            column: name.to_owned(),
        });
    }
    let item = Arc::new(Field::new("item", T::DATA_TYPE, true));
    let values = PrimitiveArray::<T>::new(ScalarBuffer::from(values), None);
    Ok(Arc::new(ListArray::try_new(
        item,
        OffsetBuffer::from_lengths(lengths),
        Arc::new(values),
        nulls,
    )?))
}

/// One bucket a band for each signature; null stays null.
fn buckets(
    signatures: &ArrayRef,
    input: &str,
    output: &str,
    num_bands: usize,
) -> Result<ArrayRef, Failure> {
    const EXPECTED: &str = "a list of uint64 or uint32 (the output of MinHash)";
    if num_bands == 0 {
        return Err(dupekit::Error::parameter("num_bands", 0, "at least 1").into());
    }
    let (DataType::List(item) | DataType::LargeList(item) | DataType::FixedSizeList(item, _)) =
        signatures.data_type()
    else {
        return Err(type_failure(input, signatures, EXPECTED));
    };
    match item.data_type() {
        DataType::UInt64 => band_rows::<UInt64Type>(signatures, output, num_bands),
        DataType::UInt32 => band_rows::<UInt32Type>(signatures, output, num_bands),
        _ => Err(type_failure(input, signatures, EXPECTED)),
    }
}

fn band_rows<T: ArrowPrimitiveType<Native: Slot>>(
    signatures: &ArrayRef,
    output: &str,
    num_bands: usize,
) -> Result<ArrayRef, Failure> {
    let row_of = |row: usize| match signatures.data_type() {
        DataType::List(_) => signatures.as_list::<i32>().value(row),
        DataType::LargeList(_) => signatures.as_list::<i64>().value(row),
        _ => signatures.as_fixed_size_list().value(row),
    };
    let mut out = Vec::with_capacity(signatures.len() * num_bands);
    for row in (0..signatures.len()).filter(|row| signatures.is_valid(*row)) {
        append_buckets(
            row_of(row).as_primitive::<T>().values(),
            num_bands,
            &mut out,
        )?;
    }
    let nulls = signatures.nulls().cloned();
    let lengths = (0..signatures.len()).map(|row| {
        if signatures.is_valid(row) {
            num_bands
        } else {
            0
        }
    });
    list_column::<UInt64Type>(output, out, lengths, nulls)
}

/// Runs the steps on a batch, with the interpreter lock released.
#[pyfunction]
#[pyo3(signature = (batch, steps, threads, /))]
#[allow(clippy::needless_pass_by_value)]
fn transform(
    py: Python<'_>,
    batch: &Bound<'_, PyAny>,
    steps: Vec<Bound<'_, PyAny>>,
    threads: usize,
) -> PyResult<NativeArray> {
    let steps = steps.iter().map(read_step).collect::<PyResult<Vec<_>>>()?;
    let batch = import_batch(batch)?;
    let batch = py.detach(|| {
        steps
            .iter()
            .try_fold(batch, |batch, step| step.apply(&batch, threads))
    })?;
    Ok(NativeArray::from_batch(batch))
}

/// The shingle hashes of a text in text order, as the given kind of `MinHash` sees them.
#[pyfunction]
#[pyo3(signature = (text, kind, ngram_kind, ngram_size, /))]
fn shingle_hashes(
    text: &str,
    kind: &str,
    ngram_kind: &str,
    ngram_size: usize,
) -> PyResult<Vec<u64>> {
    let window = window(ngram_kind, ngram_size).map_err(kernel)?;
    check_parameters(1, window).map_err(kernel)?;
    let mut scratch = Scratch::default();
    match kind {
        "compat" => scratch.fill_compat(text, window),
        "fast32" => scratch.fill_rolling(text, window),
        _ => {
            return Err(kernel(dupekit::Error::parameter(
                "kind",
                kind,
                "compat or fast32",
            )));
        }
    }
    Ok(scratch.hashes)
}

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(transform, module)?)?;
    module.add_function(wrap_pyfunction!(shingle_hashes, module)?)
}
