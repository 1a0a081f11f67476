//! Content hashes and their hexadecimal text.
//!
//! XXH3 is the fast choice for grouping equal content; BLAKE2b (RFC 7693) and BLAKE3 resist deliberate collisions.

use blake2::{Blake2b512, Digest};

/// A hash function over bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Algorithm {
    /// BLAKE2b with a 64-byte digest.
    Blake2b,
    /// BLAKE3 with a 32-byte digest.
    Blake3,
    /// 128-bit XXH3, seed 0.
    Xxh3_128,
    /// 64-bit XXH3, seed 0.
    Xxh3_64,
}

impl Algorithm {
    /// Digest length in bytes.
    #[must_use]
    pub fn digest_len(self) -> usize {
        match self {
            Self::Blake2b => 64,
            Self::Blake3 => 32,
            Self::Xxh3_128 => 16,
            Self::Xxh3_64 => 8,
        }
    }

    /// Appends the digest of `data` in lower-case hexadecimal: `2 * digest_len()` digits.
    ///
    /// The XXH3 digests are written as zero-padded numbers, most significant digit first.
    pub fn append_hex(self, data: &[u8], out: &mut Vec<u8>) {
        match self {
            Self::Blake2b => append_hex(&blake2b(data), out),
            Self::Blake3 => append_hex(&blake3(data), out),
            Self::Xxh3_128 => append_hex(&xxh3_128(data).to_be_bytes(), out),
            Self::Xxh3_64 => append_hex(&xxh3_64(data).to_be_bytes(), out),
        }
    }
}

/// 64-bit XXH3 with seed 0.
#[must_use]
#[inline]
pub fn xxh3_64(data: &[u8]) -> u64 {
    xxhash_rust::xxh3::xxh3_64(data)
}

/// 128-bit XXH3 with seed 0.
#[must_use]
#[inline]
pub fn xxh3_128(data: &[u8]) -> u128 {
    xxhash_rust::xxh3::xxh3_128(data)
}

/// BLAKE2b with a 64-byte digest (RFC 7693).
#[must_use]
pub fn blake2b(data: &[u8]) -> [u8; 64] {
    Blake2b512::digest(data).into()
}

/// BLAKE3 with a 32-byte digest.
#[must_use]
pub fn blake3(data: &[u8]) -> [u8; 32] {
    ::blake3::hash(data).into()
}

fn append_hex(digest: &[u8], out: &mut Vec<u8>) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    for byte in digest {
        out.push(DIGITS[usize::from(byte >> 4)]);
        out.push(DIGITS[usize::from(byte & 15)]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(algorithm: Algorithm, data: &[u8]) -> String {
        let mut out = Vec::new();
        algorithm.append_hex(data, &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn digests_of_abc_match_the_published_vectors() {
        // RFC 7693 appendix A; BLAKE3 test vectors; xxHash reference implementation (xxhsum -H3, -H2).
        assert!(hex(Algorithm::Blake2b, b"abc").starts_with("ba80a53f981c4d0d6a2797b69f12f6e94c212f14685ac4b7"));
        assert_eq!(hex(Algorithm::Blake3, b"abc"), "6437b3ac38465133ffb63b75273a8db548c558465d79db03fd359c6cd5bd9d85");
        assert_eq!(hex(Algorithm::Xxh3_64, b""), "2d06800538d394c2");
        assert_eq!(hex(Algorithm::Xxh3_128, b""), "99aa06d3014798d86001c324468d497f");
    }

    #[test]
    fn hex_has_two_digits_a_byte() {
        for algorithm in [Algorithm::Blake2b, Algorithm::Blake3, Algorithm::Xxh3_128, Algorithm::Xxh3_64] {
            assert_eq!(hex(algorithm, b"x").len(), 2 * algorithm.digest_len());
        }
    }
}
