//! The compatible kind: `slot_i = min over shingles h of floor((h * c_i mod 2^128) / 2^64)`.
//!
//! `h` is the 64-bit compat shingle hash, `c_i` an odd 128-bit coefficient drawn from PCG64.
//!
//! # The screened loop
//! A slot's minimum changes only about `ln(n)` times while `n` shingles pass, so nearly every product is computed to be
//! thrown away. The vector paths compute a cheap lower part of the answer first. With 32-bit limbs `h = (h1, h0)` and
//! `c = (c3, c2, c1, c0)`, bits 64 to 127 of the product are
//!
//! `v = h0 c2 + h1 c1 + 2^32 (h0 c3 + h1 c2) + e  (mod 2^64)`, where `e = floor((h0 c0 + 2^32 (h0 c1 + h1 c0)) / 2^64) < 2^33`.
//!
//! Leaving out `e` saves three of the seven 32-bit multiplications, and `v < best` implies
//! `v - e + 2^33 (mod 2^64) < best + 2^33` as long as the right side does not wrap. Shingles that pass this test (a few
//! per slot) are computed exactly by the scalar formula, so the result equals the plain loop bit for bit.

use crate::pcg::Pcg64;
use crate::simd::SimdPath;

/// Upper bound of the part that the screen leaves out.
#[cfg(target_arch = "x86_64")]
const SLACK: u64 = 1 << 33;

/// The coefficients of a family of compatible permutations.
#[derive(Debug, Clone)]
pub struct CompatPermutations {
    coefficients: Vec<u128>,
}

impl CompatPermutations {
    /// Draws `num_perms` odd coefficients from PCG64 seeded with `seed`.
    #[must_use]
    pub fn new(num_perms: usize, seed: u64) -> Self {
        let mut generator = Pcg64::from_seed(seed);
        Self { coefficients: (0..num_perms).map(|_| generator.next_u128() | 1).collect() }
    }

    /// Uses the given coefficients as they are.
    #[must_use]
    pub fn from_coefficients(coefficients: Vec<u128>) -> Self {
        Self { coefficients }
    }

    /// The coefficients.
    #[must_use]
    pub fn coefficients(&self) -> &[u128] {
        &self.coefficients
    }

    /// Appends the signature of a non-empty set of shingle hashes; all paths give the same bits.
    ///
    /// # Panics
    /// When `hashes` is empty or this CPU cannot run `path`.
    pub fn append_signature(&self, hashes: &[u64], path: SimdPath, out: &mut Vec<u64>) {
        assert!(!hashes.is_empty(), "a signature needs at least one shingle");
        assert!(path.is_available(), "this CPU cannot run the {} path", path.name());
        match path {
            SimdPath::Scalar => self.append_plain(hashes, out),
            #[cfg(target_arch = "x86_64")]
            SimdPath::Avx2 => {
                let highs: Vec<u64> = hashes.iter().map(|hash| hash >> 32).collect();
                // SAFETY: the path is available, so the CPU has AVX2.
                unsafe { screened::append_avx2(&self.coefficients, hashes, &highs, out) }
            }
            #[cfg(target_arch = "x86_64")]
            SimdPath::Avx512 => {
                let highs: Vec<u64> = hashes.iter().map(|hash| hash >> 32).collect();
                // SAFETY: the path is available, so the CPU has AVX-512 F.
                unsafe { screened::append_avx512(&self.coefficients, hashes, &highs, out) }
            }
            _ => out.extend(self.coefficients.iter().map(|&coefficient| minimum(hashes, coefficient))),
        }
    }

    /// The loop as the formula reads: every shingle updates every slot.
    fn append_plain(&self, hashes: &[u64], out: &mut Vec<u64>) {
        let start = out.len();
        out.resize(start + self.coefficients.len(), u64::MAX);
        let slots = &mut out[start..];
        for &hash in hashes {
            for (slot, &coefficient) in slots.iter_mut().zip(&self.coefficients) {
                *slot = (*slot).min(permute(hash, coefficient));
            }
        }
    }
}

/// Bits 64 to 127 of `hash * coefficient`.
#[must_use]
#[inline]
pub fn permute(hash: u64, coefficient: u128) -> u64 {
    (u128::from(hash).wrapping_mul(coefficient) >> 64) as u64
}

/// Smallest permuted value, with four minima in registers so that the multiplications overlap.
#[inline]
fn minimum(hashes: &[u64], coefficient: u128) -> u64 {
    let mut best = [u64::MAX; 4];
    let (chunks, rest) = hashes.as_chunks::<4>();
    for chunk in chunks {
        for (slot, &hash) in best.iter_mut().zip(chunk) {
            *slot = (*slot).min(permute(hash, coefficient));
        }
    }
    for &hash in rest {
        best[0] = best[0].min(permute(hash, coefficient));
    }
    best[0].min(best[1]).min(best[2].min(best[3]))
}

#[cfg(target_arch = "x86_64")]
mod screened {
    use super::{SLACK, minimum, permute};
    use crate::minhash::lanes::{Avx2, Avx512, Lanes64};

    /// Shingles computed exactly before screening starts, so that the first bound is already tight.
    const WARM_UP: usize = 16;

    /// Smallest permuted value of all hashes.
    ///
    /// # Safety
    /// The CPU must support the instructions of `L`; `highs` must be as long as `hashes`.
    #[inline(always)]
    unsafe fn screened_minimum<L: Lanes64>(hashes: &[u64], highs: &[u64], coefficient: u128) -> u64 {
        let warm = hashes.len().min(WARM_UP);
        let mut best = minimum(&hashes[..warm], coefficient);
        let mut at = warm;
        // SAFETY: the caller vouches for the instructions; every load reads L::COUNT elements below `hashes.len()`.
        unsafe {
            let c1 = L::splat((coefficient >> 32) as u64);
            let c2 = L::splat((coefficient >> 64) as u64);
            let c3 = L::splat((coefficient >> 96) as u64);
            let slack = L::splat(SLACK);
            let screen = |at: usize| {
                let h0 = L::load(hashes.as_ptr().add(at));
                let h1 = L::load(highs.as_ptr().add(at));
                let top = L::shl32(L::add(L::mul32(h0, c3), L::mul32(h1, c2)));
                L::add(L::add(L::mul32(h0, c2), L::mul32(h1, c1)), L::add(top, slack))
            };
            while at + 2 * L::COUNT <= hashes.len() {
                let Some(bound) = best.checked_add(SLACK) else { break };
                let limit = L::limit(bound);
                let mut candidates = L::below(screen(at), limit) | L::below(screen(at + L::COUNT), limit) << L::COUNT;
                while candidates != 0 {
                    let lane = candidates.trailing_zeros() as usize;
                    best = best.min(permute(hashes[at + lane], coefficient));
                    candidates &= candidates - 1;
                }
                at += 2 * L::COUNT;
            }
        }
        hashes[at..].iter().fold(best, |best, &hash| best.min(permute(hash, coefficient)))
    }

    /// Appends one minimum a coefficient.
    ///
    /// # Safety
    /// The CPU must support AVX2; `highs` must be as long as `hashes`.
    #[target_feature(enable = "avx2,bmi2")]
    pub(super) unsafe fn append_avx2(coefficients: &[u128], hashes: &[u64], highs: &[u64], out: &mut Vec<u64>) {
        // SAFETY: same contract.
        out.extend(coefficients.iter().map(|&c| unsafe { screened_minimum::<Avx2>(hashes, highs, c) }));
    }

    /// Appends one minimum a coefficient.
    ///
    /// # Safety
    /// The CPU must support AVX-512 F; `highs` must be as long as `hashes`.
    #[target_feature(enable = "avx512f,bmi2")]
    pub(super) unsafe fn append_avx512(coefficients: &[u128], hashes: &[u64], highs: &[u64], out: &mut Vec<u64>) {
        // SAFETY: same contract.
        out.extend(coefficients.iter().map(|&c| unsafe { screened_minimum::<Avx512>(hashes, highs, c) }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shingle::mix;

    fn signature(permutations: &CompatPermutations, hashes: &[u64], path: SimdPath) -> Vec<u64> {
        let mut out = Vec::new();
        permutations.append_signature(hashes, path, &mut out);
        out
    }

    #[test]
    fn all_paths_give_the_same_bits() {
        let permutations = CompatPermutations::new(67, 7);
        for length in (1..70).chain([500, 4_099]) {
            let hashes: Vec<u64> = (0..length).map(|i| mix(i ^ length << 32)).collect();
            let expected = signature(&permutations, &hashes, SimdPath::Scalar);
            for path in SimdPath::available() {
                assert_eq!(signature(&permutations, &hashes, path), expected, "{path:?} {length}");
            }
        }
    }

    #[test]
    fn all_paths_agree_where_the_screen_is_at_its_limits() {
        // Minima next to 2^64, carries in every limb, and ties.
        let edge = [1, u64::MAX, u64::MAX - 1, 1 << 32, (1 << 32) - 1, 0x8000_0000_0000_0000, 0x1_0000_0001];
        let mut coefficients: Vec<u128> = vec![1, u128::MAX, u128::MAX - (1 << 33), (1 << 64) - 1, u128::MAX >> 1];
        for shift in 0..128 {
            coefficients.push(1 << shift | 1);
            coefficients.push(u128::MAX << shift | 1);
        }
        let permutations = CompatPermutations::from_coefficients(coefficients);
        for fill in edge {
            for other in edge {
                let mut hashes = vec![fill; 61];
                hashes[40] = other;
                let expected = signature(&permutations, &hashes, SimdPath::Scalar);
                for path in SimdPath::available() {
                    assert_eq!(signature(&permutations, &hashes, path), expected, "{path:?} {fill:x} {other:x}");
                }
            }
        }
    }

    #[test]
    fn coefficients_are_odd_and_follow_the_seed() {
        let a = CompatPermutations::new(8, 1);
        assert!(a.coefficients().iter().all(|c| c & 1 == 1));
        assert_eq!(a.coefficients(), CompatPermutations::new(8, 1).coefficients());
        assert_ne!(a.coefficients(), CompatPermutations::new(8, 2).coefficients());
    }
}
