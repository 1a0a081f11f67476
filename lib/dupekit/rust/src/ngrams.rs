//! Token n-gram sets and their two signatures.

use dupekit::ngrams;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::errors::kernel;

/// The distinct token n-grams of a text.
///
/// Tokens are the words between Unicode white space of the lower-cased text. A text with fewer tokens than `ngram_size`
/// has one n-gram, all of it; a text without tokens has none.
///
/// Args:
///     text: Text to cut up.
///     ngram_size: Tokens in an n-gram, at least 1.
///
/// Raises:
///     ParameterError: When `ngram_size` is 0.
///
/// Example:
///     >>> from dupekit import TokenNgrams
///     >>> page, part = TokenNgrams("a b c d", 3), TokenNgrams("B c D", 3)
///     >>> len(page), page.token_count, part.intersection_size(page)
///     (2, 4, 1)
#[pyclass(frozen, module = "dupekit_native")]
pub(crate) struct TokenNgrams(ngrams::TokenNgrams);

#[pymethods]
impl TokenNgrams {
    #[new]
    #[pyo3(signature = (text, ngram_size))]
    fn new(py: Python<'_>, text: &str, ngram_size: usize) -> PyResult<Self> {
        py.detach(|| ngrams::TokenNgrams::new(text, ngram_size))
            .map(Self)
            .map_err(kernel)
    }

    /// Number of tokens, repeats counted.
    #[getter]
    fn token_count(&self) -> usize {
        self.0.token_count()
    }

    /// Tokens in an n-gram.
    #[getter]
    fn ngram_size(&self) -> usize {
        self.0.ngram_size()
    }

    fn __len__(&self) -> usize {
        self.0.len()
    }

    /// Number of n-grams that both texts have, verified token by token; 0 when the n-gram sizes differ.
    #[pyo3(signature = (other, /))]
    fn intersection_size(&self, py: Python<'_>, other: &Self) -> usize {
        py.detach(|| self.0.intersection_size(&other.0))
    }

    /// The 4,096-bit summary.
    fn signature(&self) -> TokenNgramSignature {
        TokenNgramSignature(self.0.bitmap())
    }

    /// The bottom-k summary.
    fn fingerprint_signature(&self) -> TokenNgramFingerprintSignature {
        TokenNgramFingerprintSignature(self.0.fingerprint())
    }

    fn __repr__(&self) -> String {
        format!(
            "TokenNgrams(ngram_size={}, token_count={}, len={})",
            self.ngram_size(),
            self.token_count(),
            self.0.len()
        )
    }
}

/// 4,096 bits that summarise a set of n-grams: a Bloom filter with four bits an n-gram, compared as a subset.
///
/// Most useful for texts of up to about a thousand n-grams; beyond, most bits are set and little is ruled out.
///
/// Example:
///     >>> from dupekit import TokenNgrams
///     >>> page, part = TokenNgrams("a b c d", 3), TokenNgrams("b c x", 3)
///     >>> part.signature().may_be_subset_of(page.signature())
///     False
#[pyclass(frozen, eq, module = "dupekit_native")]
#[derive(PartialEq)]
pub(crate) struct TokenNgramSignature(ngrams::Bitmap);

#[pymethods]
impl TokenNgramSignature {
    /// False only when some n-gram of this text is certainly missing from the other.
    #[pyo3(signature = (other, /))]
    fn may_be_subset_of(&self, other: &Self) -> bool {
        self.0.may_be_subset_of(&other.0)
    }

    fn __repr__(&self) -> String {
        format!("TokenNgramSignature(bits_set={})", self.0.count_ones())
    }
}

/// The smallest 1,333 24-bit fingerprints of a set of n-grams, with counts of the text: a record of 4,063 bytes.
///
/// All fingerprints below a bound `theta` are kept, so below the smaller bound of two records a missing fingerprint
/// proves that an n-gram is missing.
///
/// Example:
///     >>> from dupekit import TokenNgrams
///     >>> record = TokenNgrams("a b c d", 3).fingerprint_signature()
///     >>> type(record).from_bytes(record.to_bytes()) == record, record.chars, record.ngram_count
///     (True, 7, 2)
#[pyclass(frozen, eq, module = "dupekit_native")]
#[derive(PartialEq)]
pub(crate) struct TokenNgramFingerprintSignature(ngrams::Fingerprint);

#[pymethods]
impl TokenNgramFingerprintSignature {
    /// Unicode scalar values of the original text.
    #[getter]
    fn chars(&self) -> u64 {
        self.0.chars
    }

    /// Lines of the original text.
    #[getter]
    fn lines(&self) -> u64 {
        self.0.lines
    }

    /// Number of tokens, repeats counted.
    #[getter]
    fn token_count(&self) -> u64 {
        self.0.token_count
    }

    /// Number of distinct n-grams.
    #[getter]
    fn ngram_count(&self) -> u64 {
        self.0.ngram_count
    }

    /// Tokens in an n-gram.
    #[getter]
    fn ngram_size(&self) -> u64 {
        self.0.ngram_size
    }

    /// XXH3-128 of the lower-cased tokens joined by one space.
    #[getter]
    fn normalized_sequence_hash(&self) -> u128 {
        self.0.sequence_hash
    }

    /// False only when this text certainly has an n-gram the other lacks, more n-grams, or more characters.
    #[pyo3(signature = (other, /))]
    fn may_be_subset_of(&self, other: &Self) -> bool {
        self.0.may_be_subset_of(&other.0)
    }

    /// The record of 4,063 bytes.
    fn to_bytes<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.0.to_bytes())
    }

    /// Reads a record.
    #[staticmethod]
    #[pyo3(signature = (data, /))]
    fn from_bytes(data: &[u8]) -> PyResult<Self> {
        ngrams::Fingerprint::from_bytes(data)
            .map(Self)
            .map_err(kernel)
    }

    fn __reduce__<'py>(
        slf: &Bound<'py, Self>,
    ) -> PyResult<(Bound<'py, PyAny>, (Bound<'py, PyBytes>,))> {
        Ok((
            slf.get_type().getattr("from_bytes")?,
            (slf.get().to_bytes(slf.py()),),
        ))
    }

    fn __repr__(&self) -> String {
        format!(
            "TokenNgramFingerprintSignature(ngram_size={}, ngram_count={})",
            self.0.ngram_size, self.0.ngram_count
        )
    }
}
