//! Deduplication kernels over plain slices: no Arrow, no Python, no I/O.
//!
//! The crate answers four questions about text, each in its own module:
//!
//! | question | module |
//! |---|---|
//! | are two byte strings equal? | [`hash`] |
//! | how similar are two documents, from a short signature? | [`shingle`] → [`minhash`] → [`lsh`] |
//! | does one document really contain the other? | [`ngrams`] (exact) and its two pre-filters |
//! | was this hash seen before? | [`bloom`] |
//!
//! [`text`] holds the two text transforms that usually come first, and [`simd`] the run-time choice of instruction set.
//! Every instruction-set path of a kernel gives the same bits; tests force each path and compare.

pub mod bloom;
pub mod error;
pub mod hash;
pub mod lsh;
pub mod minhash;
pub mod ngrams;
pub mod pcg;
pub mod shingle;
pub mod simd;
pub mod text;

pub use error::{Error, Result};
