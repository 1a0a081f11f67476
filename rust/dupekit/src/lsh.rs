//! Locality-sensitive hashing: signatures that agree on a whole band share a bucket.
//!
//! With `b` bands of `r` slots two documents of Jaccard similarity `J` meet in at least one bucket with probability
//! `1 - (1 - J^r)^b` (Leskovec, Rajaraman, Ullman, *Mining of Massive Datasets*, section 3.4).

use crate::error::{Error, Result};
use crate::hash::xxh3_64;

/// Number of slots a band, for signatures of `num_slots` slots.
///
/// # Errors
/// [`Error::Parameter`] when `num_bands` is zero or does not divide `num_slots`.
pub fn slots_per_band(num_slots: usize, num_bands: usize) -> Result<usize> {
    if num_bands == 0 || num_slots == 0 || !num_slots.is_multiple_of(num_bands) {
        let expected = format!("a positive divisor of the signature length {num_slots}");
        return Err(Error::parameter("num_bands", num_bands, expected));
    }
    Ok(num_slots / num_bands)
}

/// A slot of a signature that can be written in little-endian bytes.
pub trait Slot: Copy {
    /// Appends the little-endian bytes.
    fn append_le(self, out: &mut Vec<u8>);
}

impl Slot for u64 {
    fn append_le(self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.to_le_bytes());
    }
}

impl Slot for u32 {
    fn append_le(self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.to_le_bytes());
    }
}

/// Appends one bucket a band: XXH3-64 of the band's slots in little-endian bytes.
///
/// # Errors
/// See [`slots_per_band`].
pub fn append_buckets<S: Slot>(signature: &[S], num_bands: usize, out: &mut Vec<u64>) -> Result<()> {
    let width = slots_per_band(signature.len(), num_bands)?;
    let mut bytes = Vec::with_capacity(width * size_of::<S>());
    for band in signature.chunks_exact(width) {
        bytes.clear();
        for slot in band {
            slot.append_le(&mut bytes);
        }
        out.push(xxh3_64(&bytes));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_is_the_hash_of_its_bands_bytes() {
        let mut out = Vec::new();
        append_buckets(&[1_u64, 2, 3, 4], 2, &mut out).unwrap();
        let bytes: Vec<u8> = [3_u64, 4].iter().flat_map(|slot| slot.to_le_bytes()).collect();
        assert_eq!(out[1], xxh3_64(&bytes));
        assert_eq!(out.len(), 2);
    }

    #[test]
    fn bands_must_divide_the_signature() {
        for bands in [0, 3, 5] {
            assert!(append_buckets(&[1_u32, 2, 3, 4], bands, &mut Vec::new()).is_err());
        }
    }
}
