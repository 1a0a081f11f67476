//! The handful of vector operations the kernels need, once per instruction set.
//!
//! A kernel is written once over these traits and instantiated inside a `#[target_feature]` function per path, so the
//! wide paths share every line of logic with the narrow ones and differ only in the one-line operations below.

use std::arch::x86_64::{
    __m128i, __m256i, __m512i, _mm_add_epi32, _mm_and_si128, _mm_andnot_si128, _mm_cmpgt_epi32, _mm_loadu_si128,
    _mm_mul_epu32, _mm_or_si128, _mm_set1_epi32, _mm_shuffle_epi32, _mm_srli_si128, _mm_storeu_si128,
    _mm_unpacklo_epi32, _mm_xor_si128, _mm256_add_epi32, _mm256_add_epi64, _mm256_blend_epi32, _mm256_castsi256_ps,
    _mm256_cmpgt_epi32, _mm256_loadu_si256, _mm256_min_epu32, _mm256_movemask_ps, _mm256_mul_epu32, _mm256_mullo_epi32,
    _mm256_or_si256, _mm256_set1_epi32, _mm256_srli_epi64, _mm256_storeu_si256, _mm256_testz_si256, _mm256_xor_si256,
    _mm512_add_epi32, _mm512_add_epi64, _mm512_cmplt_epu32_mask, _mm512_loadu_si512, _mm512_mask_blend_epi32,
    _mm512_min_epu32, _mm512_mul_epu32, _mm512_mullo_epi32, _mm512_set1_epi32, _mm512_srli_epi64, _mm512_storeu_si512,
};

/// Unsigned 32-bit lanes.
///
/// # Safety
/// Every method needs a CPU with the implementing instruction set, and valid pointers for `COUNT` elements.
pub(crate) trait Lanes32 {
    type Vector: Copy;
    /// Lanes in a vector.
    const COUNT: usize;
    unsafe fn splat(value: u32) -> Self::Vector;
    unsafe fn load(from: *const u32) -> Self::Vector;
    unsafe fn store(to: *mut u32, value: Self::Vector);
    /// Low 32 bits of the sum.
    unsafe fn add(a: Self::Vector, b: Self::Vector) -> Self::Vector;
    /// Low 32 bits of the product.
    unsafe fn mul(a: Self::Vector, b: Self::Vector) -> Self::Vector;
    unsafe fn min(a: Self::Vector, b: Self::Vector) -> Self::Vector;
}

/// What the screen of the compat kind needs besides [`Lanes32`].
///
/// # Safety
/// As for [`Lanes32`].
pub(crate) trait Screen32: Lanes32 {
    /// Form in which a bound is compared.
    type Limit: Copy;
    /// 64-bit products of the even lanes.
    unsafe fn mul_even(a: Self::Vector, b: Self::Vector) -> Self::Vector;
    /// Low 64 bits of the sums of 64-bit lanes.
    unsafe fn add64(a: Self::Vector, b: Self::Vector) -> Self::Vector;
    /// Upper halves of 64-bit lanes: those of `even` in the even 32-bit lanes, those of `odd` in the odd ones.
    unsafe fn upper_halves(even: Self::Vector, odd: Self::Vector) -> Self::Vector;
    unsafe fn limit(bound: u32) -> Self::Limit;
    /// One bit a lane, those of `first` lowest: lane < bound, unsigned.
    unsafe fn below(first: Self::Vector, second: Self::Vector, limit: Self::Limit) -> u32;
}

/// SSE2, with the two operations it lacks put together from others.
pub(crate) struct Sse2;
/// AVX2.
pub(crate) struct Avx2;
/// AVX-512 F.
pub(crate) struct Avx512;

// Each method below is one or a few intrinsics under the trait's safety contract.
#[allow(clippy::undocumented_unsafe_blocks)]
impl Lanes32 for Sse2 {
    type Vector = __m128i;
    const COUNT: usize = 4;

    #[inline(always)]
    unsafe fn splat(value: u32) -> __m128i {
        unsafe { _mm_set1_epi32(value as i32) }
    }
    #[inline(always)]
    unsafe fn load(from: *const u32) -> __m128i {
        unsafe { _mm_loadu_si128(from.cast()) }
    }
    #[inline(always)]
    unsafe fn store(to: *mut u32, value: __m128i) {
        unsafe { _mm_storeu_si128(to.cast(), value) }
    }
    #[inline(always)]
    unsafe fn add(a: __m128i, b: __m128i) -> __m128i {
        unsafe { _mm_add_epi32(a, b) }
    }
    #[inline(always)]
    unsafe fn mul(a: __m128i, b: __m128i) -> __m128i {
        // SSE2 multiplies lanes 0 and 2 only: do the odd lanes on shifted copies and interleave the low halves.
        unsafe {
            let even = _mm_mul_epu32(a, b);
            let odd = _mm_mul_epu32(_mm_srli_si128::<4>(a), _mm_srli_si128::<4>(b));
            _mm_unpacklo_epi32(_mm_shuffle_epi32::<0b00_00_10_00>(even), _mm_shuffle_epi32::<0b00_00_10_00>(odd))
        }
    }
    #[inline(always)]
    unsafe fn min(a: __m128i, b: __m128i) -> __m128i {
        // SSE2 compares signed lanes only: flip the top bits, compare, select.
        unsafe {
            let flip = _mm_set1_epi32(i32::MIN);
            let greater = _mm_cmpgt_epi32(_mm_xor_si128(a, flip), _mm_xor_si128(b, flip));
            _mm_or_si128(_mm_and_si128(greater, b), _mm_andnot_si128(greater, a))
        }
    }
}

#[allow(clippy::undocumented_unsafe_blocks)]
impl Lanes32 for Avx2 {
    type Vector = __m256i;
    const COUNT: usize = 8;

    #[inline(always)]
    unsafe fn splat(value: u32) -> __m256i {
        unsafe { _mm256_set1_epi32(value as i32) }
    }
    #[inline(always)]
    unsafe fn load(from: *const u32) -> __m256i {
        unsafe { _mm256_loadu_si256(from.cast()) }
    }
    #[inline(always)]
    unsafe fn store(to: *mut u32, value: __m256i) {
        unsafe { _mm256_storeu_si256(to.cast(), value) }
    }
    #[inline(always)]
    unsafe fn add(a: __m256i, b: __m256i) -> __m256i {
        unsafe { _mm256_add_epi32(a, b) }
    }
    #[inline(always)]
    unsafe fn mul(a: __m256i, b: __m256i) -> __m256i {
        unsafe { _mm256_mullo_epi32(a, b) }
    }
    #[inline(always)]
    unsafe fn min(a: __m256i, b: __m256i) -> __m256i {
        unsafe { _mm256_min_epu32(a, b) }
    }
}

#[allow(clippy::undocumented_unsafe_blocks)]
impl Lanes32 for Avx512 {
    type Vector = __m512i;
    const COUNT: usize = 16;

    #[inline(always)]
    unsafe fn splat(value: u32) -> __m512i {
        unsafe { _mm512_set1_epi32(value as i32) }
    }
    #[inline(always)]
    unsafe fn load(from: *const u32) -> __m512i {
        unsafe { _mm512_loadu_si512(from.cast()) }
    }
    #[inline(always)]
    unsafe fn store(to: *mut u32, value: __m512i) {
        unsafe { _mm512_storeu_si512(to.cast(), value) }
    }
    #[inline(always)]
    unsafe fn add(a: __m512i, b: __m512i) -> __m512i {
        unsafe { _mm512_add_epi32(a, b) }
    }
    #[inline(always)]
    unsafe fn mul(a: __m512i, b: __m512i) -> __m512i {
        unsafe { _mm512_mullo_epi32(a, b) }
    }
    #[inline(always)]
    unsafe fn min(a: __m512i, b: __m512i) -> __m512i {
        unsafe { _mm512_min_epu32(a, b) }
    }
}

#[allow(clippy::undocumented_unsafe_blocks)]
impl Screen32 for Avx2 {
    type Limit = __m256i;

    #[inline(always)]
    unsafe fn mul_even(a: __m256i, b: __m256i) -> __m256i {
        unsafe { _mm256_mul_epu32(a, b) }
    }
    #[inline(always)]
    unsafe fn add64(a: __m256i, b: __m256i) -> __m256i {
        unsafe { _mm256_add_epi64(a, b) }
    }
    #[inline(always)]
    unsafe fn upper_halves(even: __m256i, odd: __m256i) -> __m256i {
        unsafe { _mm256_blend_epi32::<0b1010_1010>(_mm256_srli_epi64::<32>(even), odd) }
    }
    #[inline(always)]
    unsafe fn limit(bound: u32) -> __m256i {
        // AVX2 compares signed lanes only, so both sides have their top bit flipped.
        unsafe { _mm256_set1_epi32((bound ^ 1 << 31) as i32) }
    }
    #[inline(always)]
    unsafe fn below(first: __m256i, second: __m256i, limit: __m256i) -> u32 {
        unsafe {
            let flip = _mm256_set1_epi32(i32::MIN);
            let first = _mm256_cmpgt_epi32(limit, _mm256_xor_si256(first, flip));
            let second = _mm256_cmpgt_epi32(limit, _mm256_xor_si256(second, flip));
            let either = _mm256_or_si256(first, second);
            if _mm256_testz_si256(either, either) == 1 {
                return 0;
            }
            let low = _mm256_movemask_ps(_mm256_castsi256_ps(first)) as u32;
            low | (_mm256_movemask_ps(_mm256_castsi256_ps(second)) as u32) << 8
        }
    }
}

#[allow(clippy::undocumented_unsafe_blocks)]
impl Screen32 for Avx512 {
    type Limit = __m512i;

    #[inline(always)]
    unsafe fn mul_even(a: __m512i, b: __m512i) -> __m512i {
        unsafe { _mm512_mul_epu32(a, b) }
    }
    #[inline(always)]
    unsafe fn add64(a: __m512i, b: __m512i) -> __m512i {
        unsafe { _mm512_add_epi64(a, b) }
    }
    #[inline(always)]
    unsafe fn upper_halves(even: __m512i, odd: __m512i) -> __m512i {
        unsafe { _mm512_mask_blend_epi32(0b1010_1010_1010_1010, _mm512_srli_epi64::<32>(even), odd) }
    }
    #[inline(always)]
    unsafe fn limit(bound: u32) -> __m512i {
        unsafe { _mm512_set1_epi32(bound as i32) }
    }
    #[inline(always)]
    unsafe fn below(first: __m512i, second: __m512i, limit: __m512i) -> u32 {
        unsafe {
            let low = u32::from(_mm512_cmplt_epu32_mask(first, limit));
            low | u32::from(_mm512_cmplt_epu32_mask(second, limit)) << 16
        }
    }
}
