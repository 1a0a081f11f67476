//! The fast kind: `slot_i = min over shingles h of (a_i * lo(h) + hi(h) + b_i) mod 2^32`.
//!
//! `lo` and `hi` are the halves of a 64-bit rolling shingle hash, `a_i` (odd) and `b_i` 32-bit numbers drawn from PCG64.
//! Eight or sixteen slots fit a vector register and one 32-bit multiplication serves each.
//!
//! Using both halves is what keeps the error down on large sets: two shingles whose low halves collide still differ by
//! `hi(h) - hi(h')` in every slot. A slot has 32 bits, so two unrelated sets of `n` shingles agree in it by chance with
//! probability about `n / 2^33`: negligible up to millions of shingles a document.

use crate::pcg::Pcg64;
use crate::simd::SimdPath;

/// The coefficients of a family of fast permutations.
#[derive(Debug, Clone)]
pub struct Fast32Permutations {
    multipliers: Vec<u32>,
    offsets: Vec<u32>,
}

impl Fast32Permutations {
    /// Draws `num_perms` multipliers and offsets from PCG64 seeded with `seed`.
    #[must_use]
    pub fn new(num_perms: usize, seed: u64) -> Self {
        let mut generator = Pcg64::from_seed(seed);
        let (multipliers, offsets) = (0..num_perms)
            .map(|_| {
                let draw = generator.next_u64();
                (draw as u32 | 1, (draw >> 32) as u32)
            })
            .unzip();
        Self { multipliers, offsets }
    }

    /// Number of slots of a signature.
    #[must_use]
    pub fn len(&self) -> usize {
        self.multipliers.len()
    }

    /// Whether signatures have no slots.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.multipliers.is_empty()
    }

    /// Appends the signature of a non-empty set of shingle hashes; all paths give the same bits.
    ///
    /// # Panics
    /// When `hashes` is empty or this CPU cannot run `path`.
    pub fn append_signature(&self, hashes: &[u64], path: SimdPath, out: &mut Vec<u32>) {
        assert!(!hashes.is_empty(), "a signature needs at least one shingle");
        assert!(path.is_available(), "this CPU cannot run the {} path", path.name());
        let start = out.len();
        out.resize(start + self.multipliers.len(), u32::MAX);
        let slots = &mut out[start..];
        match path {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the path is available, so the CPU has its instructions.
            SimdPath::Sse2 => unsafe { vector::fill_sse2(&self.multipliers, &self.offsets, hashes, slots) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            SimdPath::Avx2 => unsafe { vector::fill_avx2(&self.multipliers, &self.offsets, hashes, slots) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            SimdPath::Avx512 => unsafe { vector::fill_avx512(&self.multipliers, &self.offsets, hashes, slots) },
            _ => fill_plain(&self.multipliers, &self.offsets, hashes, slots),
        }
    }
}

/// The loop as the formula reads.
fn fill_plain(multipliers: &[u32], offsets: &[u32], hashes: &[u64], slots: &mut [u32]) {
    for ((slot, &a), &b) in slots.iter_mut().zip(multipliers).zip(offsets) {
        for &hash in hashes {
            let value = (hash as u32).wrapping_mul(a).wrapping_add((hash >> 32) as u32).wrapping_add(b);
            *slot = (*slot).min(value);
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod vector {
    use super::fill_plain;
    use crate::minhash::lanes::{Avx2, Avx512, Lanes32, Sse2};

    /// Fills `BLOCK * L::COUNT` slots, all minima in registers.
    ///
    /// # Safety
    /// The CPU must support the instructions of `L`; the three pointers must be valid for that many elements.
    #[inline(always)]
    unsafe fn fill_block<L: Lanes32, const BLOCK: usize>(
        multipliers: *const u32,
        offsets: *const u32,
        hashes: &[u64],
        slots: *mut u32,
    ) {
        // SAFETY: the caller vouches for instructions and pointers.
        unsafe {
            let (mut a, mut b) = ([L::splat(0); BLOCK], [L::splat(0); BLOCK]);
            for k in 0..BLOCK {
                a[k] = L::load(multipliers.add(k * L::COUNT));
                b[k] = L::load(offsets.add(k * L::COUNT));
            }
            let mut best = [L::splat(u32::MAX); BLOCK];
            for &hash in hashes {
                let low = L::splat(hash as u32);
                let high = L::splat((hash >> 32) as u32);
                for k in 0..BLOCK {
                    let value = L::add(L::mul(low, a[k]), L::add(high, b[k]));
                    best[k] = L::min(best[k], value);
                }
            }
            for (k, vector) in best.into_iter().enumerate() {
                L::store(slots.add(k * L::COUNT), vector);
            }
        }
    }

    /// Fills all slots: blocks of four vectors, then single vectors, then single slots.
    ///
    /// # Safety
    /// The CPU must support the instructions of `L`; the slices must have one length.
    #[inline(always)]
    unsafe fn fill<L: Lanes32>(multipliers: &[u32], offsets: &[u32], hashes: &[u64], slots: &mut [u32]) {
        let mut at = 0;
        // SAFETY: the caller vouches for the instructions; each block ends at or before `slots.len()`.
        unsafe {
            while at + 4 * L::COUNT <= slots.len() {
                let out = slots.as_mut_ptr().add(at);
                fill_block::<L, 4>(multipliers.as_ptr().add(at), offsets.as_ptr().add(at), hashes, out);
                at += 4 * L::COUNT;
            }
            while at + L::COUNT <= slots.len() {
                let out = slots.as_mut_ptr().add(at);
                fill_block::<L, 1>(multipliers.as_ptr().add(at), offsets.as_ptr().add(at), hashes, out);
                at += L::COUNT;
            }
        }
        fill_plain(&multipliers[at..], &offsets[at..], hashes, &mut slots[at..]);
    }

    /// # Safety
    /// The CPU must support SSE2; the slices must have one length.
    #[target_feature(enable = "sse2")]
    pub(super) unsafe fn fill_sse2(multipliers: &[u32], offsets: &[u32], hashes: &[u64], slots: &mut [u32]) {
        // SAFETY: same contract.
        unsafe { fill::<Sse2>(multipliers, offsets, hashes, slots) }
    }

    /// # Safety
    /// The CPU must support AVX2; the slices must have one length.
    #[target_feature(enable = "avx2")]
    pub(super) unsafe fn fill_avx2(multipliers: &[u32], offsets: &[u32], hashes: &[u64], slots: &mut [u32]) {
        // SAFETY: same contract.
        unsafe { fill::<Avx2>(multipliers, offsets, hashes, slots) }
    }

    /// # Safety
    /// The CPU must support AVX-512 F; the slices must have one length.
    #[target_feature(enable = "avx512f")]
    pub(super) unsafe fn fill_avx512(multipliers: &[u32], offsets: &[u32], hashes: &[u64], slots: &mut [u32]) {
        // SAFETY: same contract.
        unsafe { fill::<Avx512>(multipliers, offsets, hashes, slots) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shingle::mix;

    fn signature(permutations: &Fast32Permutations, hashes: &[u64], path: SimdPath) -> Vec<u32> {
        let mut out = Vec::new();
        permutations.append_signature(hashes, path, &mut out);
        out
    }

    #[test]
    fn all_paths_give_the_same_bits() {
        for num_perms in [1, 3, 4, 16, 31, 64, 100, 286] {
            let permutations = Fast32Permutations::new(num_perms, 3);
            for length in [1_u64, 2, 17, 500] {
                let hashes: Vec<u64> = (0..length).map(|i| mix(i ^ length << 32)).chain([0, u64::MAX]).collect();
                let expected = signature(&permutations, &hashes, SimdPath::Scalar);
                for path in SimdPath::available() {
                    assert_eq!(signature(&permutations, &hashes, path), expected, "{path:?} {num_perms} {length}");
                }
            }
        }
    }

    #[test]
    fn the_estimate_has_the_error_of_theory() {
        // 400 pairs of sets with J = 1/3: 200 shared shingles, 200 own ones each side.
        let permutations = Fast32Permutations::new(128, 11);
        let (pairs, j) = (400_u64, 1.0 / 3.0_f64);
        let mut squares = 0.0;
        for pair in 0..pairs {
            let set = |own: u64| -> Vec<u64> {
                let shared = (0..200).map(|i| mix(pair << 32 | i));
                shared.chain((0..200).map(|i| mix(pair << 32 | own << 16 | i))).collect()
            };
            let a = signature(&permutations, &set(1), SimdPath::best());
            let b = signature(&permutations, &set(2), SimdPath::best());
            let equal = a.iter().zip(&b).filter(|(x, y)| x == y).count();
            squares += (equal as f64 / 128.0 - j).powi(2);
        }
        let error = (squares / pairs as f64).sqrt();
        let theory = (j * (1.0 - j) / 128.0).sqrt();
        // 400 pairs pin the ratio to about 3.5 % (one standard deviation).
        assert!((error / theory - 1.0).abs() < 0.12, "{error} against {theory}");
    }
}
