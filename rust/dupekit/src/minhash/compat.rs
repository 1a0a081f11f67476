//! The compatible kind: `slot_i = min over shingles h of floor((h * c_i mod 2^128) / 2^64)`.
//!
//! `h` is the 64-bit compat shingle hash, `c_i` an odd 128-bit coefficient drawn from PCG64.
//!
//! # The screened loop
//! A slot's minimum changes only about `ln(n)` times while `n` shingles pass, so nearly every product is computed to be
//! thrown away. The vector paths first compute a cheap stand-in for its upper 32 bits. With 32-bit limbs `h = (h1, h0)` and
//! `c = (c3, c2, c1, c0)`, bits 64 to 127 of the product are
//!
//! `v = 2^32 A + B + e  (mod 2^64)`, `A = h0 c3 + h1 c2`, `B = h0 c2 + h1 c1`,
//! `e = floor((h0 c0 + 2^32 (h0 c1 + h1 c0)) / 2^64) < 2^33`.
//!
//! The stand-in is `s = A + floor(B / 2^32) (mod 2^32)`. What it leaves out, `B mod 2^32 + e`, is below `3 * 2^32`, so the
//! upper half of `v` is `s`, `s + 1` or `s + 2` (mod 2^32), and `v < best` implies `s + 2 (mod 2^32) < upper(best) + 3` as
//! long as the right side does not wrap. Shingles that pass this test (a few per slot) are computed exactly by the scalar
//! formula, so the result equals the plain loop bit for bit.

#[cfg(target_arch = "x86_64")]
use super::lanes;
use crate::pcg::Pcg64;
use crate::simd::SimdPath;

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
                let shingles = screened::Shingles::new(hashes, screened::step::<lanes::Avx2>());
                // SAFETY: the path is available, so the CPU has its instructions.
                unsafe { screened::append_avx2(&self.coefficients, &shingles, out) }
            }
            #[cfg(target_arch = "x86_64")]
            SimdPath::Avx512 => {
                let shingles = screened::Shingles::new(hashes, screened::step::<lanes::Avx512>());
                // SAFETY: the path is available, so the CPU has its instructions.
                unsafe { screened::append_avx512(&self.coefficients, &shingles, out) }
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
    use super::lanes::{Avx2, Avx512, Screen32};
    use super::{minimum, permute};

    /// Shingles computed exactly before screening starts, so that the first bound is already tight.
    const WARM_UP: usize = 16;

    /// Shingles that one turn of the screen covers.
    pub(super) const fn step<L: Screen32>() -> usize {
        2 * L::COUNT
    }

    /// Shingle hashes with their halves laid out for the screen.
    ///
    /// Past the warm-up the length is a multiple of the step: the first hash is repeated, which changes no minimum.
    pub(super) struct Shingles {
        hashes: Vec<u64>,
        lows: Vec<u32>,
        highs: Vec<u32>,
    }

    impl Shingles {
        pub(super) fn new(hashes: &[u64], step: usize) -> Self {
            let mut hashes = hashes.to_vec();
            if let Some(screened) = hashes.len().checked_sub(WARM_UP) {
                hashes.resize(WARM_UP + screened.next_multiple_of(step), hashes[0]);
            }
            // One more element, because odd lanes are loaded one element further on.
            let lows = hashes.iter().map(|hash| *hash as u32).chain([0]).collect();
            let highs = hashes.iter().map(|hash| (hash >> 32) as u32).chain([0]).collect();
            Self { hashes, lows, highs }
        }
    }

    // Helpers are functions, not closures: a closure would be compiled without the caller's target features and every
    // intrinsic in it would become a call.

    /// The limbs of a coefficient that the screen uses, one value in all lanes.
    struct Limbs<L: Screen32> {
        c1: L::Vector,
        c2: L::Vector,
        c3: L::Vector,
        two: L::Vector,
    }

    impl<L: Screen32> Limbs<L> {
        /// # Safety
        /// The CPU must support the instructions of `L`.
        #[inline(always)]
        unsafe fn new(coefficient: u128) -> Self {
            // SAFETY: same contract.
            unsafe {
                Self {
                    c1: L::splat((coefficient >> 32) as u32),
                    c2: L::splat((coefficient >> 64) as u32),
                    c3: L::splat((coefficient >> 96) as u32),
                    two: L::splat(2),
                }
            }
        }

        /// `s + 2` of the module's formula, for `L::COUNT` hashes.
        ///
        /// # Safety
        /// The CPU must support the instructions of `L`; both pointers must be valid for `L::COUNT + 1` elements.
        #[inline(always)]
        unsafe fn stand_ins(&self, lows: *const u32, highs: *const u32) -> L::Vector {
            // SAFETY: same contract.
            unsafe {
                let (h0, h1) = (L::load(lows), L::load(highs));
                let a = L::add(L::mul(h0, self.c3), L::mul(h1, self.c2));
                let even = L::add64(L::mul_even(h0, self.c2), L::mul_even(h1, self.c1));
                // The next element on, odd lanes become even ones.
                let (h0, h1) = (L::load(lows.add(1)), L::load(highs.add(1)));
                let odd = L::add64(L::mul_even(h0, self.c2), L::mul_even(h1, self.c1));
                L::add(L::add(a, self.two), L::upper_halves(even, odd))
            }
        }
    }

    /// Smallest permuted value of all hashes.
    ///
    /// # Safety
    /// The CPU must support the instructions of `L`; the shingles must be made for `step::<L>()`.
    #[inline(always)]
    unsafe fn screened_minimum<L: Screen32>(shingles: &Shingles, coefficient: u128) -> u64 {
        let Shingles { hashes, lows, highs } = shingles;
        let mut at = hashes.len().min(WARM_UP);
        let mut best = minimum(&hashes[..at], coefficient);
        // SAFETY: the caller vouches for the instructions; a turn reads up to element `at + step`, and there is one more
        // element than the `at + step <= hashes.len()` that the length guarantees.
        unsafe {
            let limbs = Limbs::<L>::new(coefficient);
            while at < hashes.len() {
                let Some(bound) = ((best >> 32) as u32).checked_add(3) else {
                    let end = at + step::<L>();
                    best = best.min(minimum(&hashes[at..end], coefficient));
                    at = end;
                    continue;
                };
                let limit = L::limit(bound);
                let mut candidates = 0;
                while at < hashes.len() && candidates == 0 {
                    let (low, high) = (lows.as_ptr().add(at), highs.as_ptr().add(at));
                    let first = limbs.stand_ins(low, high);
                    let second = limbs.stand_ins(low.add(L::COUNT), high.add(L::COUNT));
                    candidates = L::below(first, second, limit);
                    at += step::<L>();
                }
                let turn = &hashes[at - step::<L>()..at];
                while candidates != 0 {
                    best = best.min(permute(turn[candidates.trailing_zeros() as usize], coefficient));
                    candidates &= candidates - 1;
                }
            }
        }
        best
    }

    /// Appends one minimum a coefficient.
    ///
    /// # Safety
    /// The CPU must support AVX2; the shingles must be made for its step.
    #[target_feature(enable = "avx2")]
    pub(super) unsafe fn append_avx2(coefficients: &[u128], shingles: &Shingles, out: &mut Vec<u64>) {
        for &coefficient in coefficients {
            // SAFETY: same contract.
            out.push(unsafe { screened_minimum::<Avx2>(shingles, coefficient) });
        }
    }

    /// Appends one minimum a coefficient.
    ///
    /// # Safety
    /// The CPU must support AVX-512 F; the shingles must be made for its step.
    #[target_feature(enable = "avx512f")]
    pub(super) unsafe fn append_avx512(coefficients: &[u128], shingles: &Shingles, out: &mut Vec<u64>) {
        for &coefficient in coefficients {
            // SAFETY: same contract.
            out.push(unsafe { screened_minimum::<Avx512>(shingles, coefficient) });
        }
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
