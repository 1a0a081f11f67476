//! From text to the set of 64-bit shingle hashes that MinHash samples.
//!
//! Two schemes:
//! * *compat*: XXH3-64 of the bytes a window covers. For words that is the original byte range from the first word's
//!   start to the last word's end, white space between them included.
//! * *rolling*: each word (or character) is hashed once and a window's hash is the polynomial
//!   `sum(w_k * B^(n-1-k)) mod 2^64`, updated in constant time (Karp and Rabin, 1987) and finished by a bijective mix.
//!   White space between words does not enter.
//!
//! A text with fewer units than the window is one shingle: all of it.

use crate::hash::xxh3_64;

/// What a window of a shingle counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NgramKind {
    /// Unicode scalar values.
    Char,
    /// Words between Unicode white space.
    Word,
}

/// Base of the rolling polynomial: odd, so that multiplication by it is a bijection of the 64-bit numbers.
const BASE: u64 = 0x9E37_79B9_7F4A_7C15;

/// Shape of the windows to hash.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    /// What is counted.
    pub kind: NgramKind,
    /// Units in a window, at least one.
    pub size: usize,
}

/// Buffers that are reused from one text to the next.
#[derive(Debug, Default, Clone)]
pub struct Scratch {
    spans: Vec<(usize, usize)>,
    units: Vec<u64>,
    /// Hashes of the last text.
    pub hashes: Vec<u64>,
}

impl Scratch {
    /// Fills `hashes` with the compat shingle hashes of `text`, in text order, duplicates kept.
    pub fn fill_compat(&mut self, text: &str, window: Window) {
        self.hashes.clear();
        self.spans.clear();
        match window.kind {
            NgramKind::Word => for_each_word(text, |start, end| self.spans.push((start, end))),
            NgramKind::Char => {
                let ends = text.char_indices().map(|(start, character)| (start, start + character.len_utf8()));
                self.spans.extend(ends);
            }
        }
        let bytes = text.as_bytes();
        if self.spans.len() < window.size {
            self.hashes.push(xxh3_64(bytes));
            return;
        }
        let lasts = &self.spans[window.size - 1..];
        self.hashes.extend(self.spans.iter().zip(lasts).map(|(first, last)| xxh3_64(&bytes[first.0..last.1])));
    }

    /// Fills `hashes` with the rolling shingle hashes of `text`, in text order, duplicates kept.
    pub fn fill_rolling(&mut self, text: &str, window: Window) {
        self.units.clear();
        match window.kind {
            NgramKind::Word => {
                let bytes = text.as_bytes();
                for_each_word(text, |start, end| self.units.push(xxh3_64(&bytes[start..end])));
            }
            NgramKind::Char => self.units.extend(text.chars().map(|character| mix(u64::from(character) + 1))),
        }
        roll(&self.units, window.size, &mut self.hashes);
    }
}

/// Replaces `out` with the hash of every window of `size` units; fewer units give one hash of them all.
pub fn roll(units: &[u64], size: usize, out: &mut Vec<u64>) {
    out.clear();
    let first = units.len().min(size);
    let mut value = units[..first].iter().fold(0_u64, |value, unit| value.wrapping_mul(BASE).wrapping_add(*unit));
    // The length keeps a short text apart from a window that happens to roll to the same value.
    let salt = (first as u64).wrapping_mul(0xD6E8_FEB8_6659_FD93);
    out.push(mix(value ^ salt));
    let leaving_power = (1..size).fold(1_u64, |power, _| power.wrapping_mul(BASE));
    for (leaving, entering) in units.iter().zip(units.iter().skip(size)) {
        value = value.wrapping_sub(leaving.wrapping_mul(leaving_power)).wrapping_mul(BASE).wrapping_add(*entering);
        out.push(mix(value ^ salt));
    }
}

/// A bijection of the 64-bit numbers that spreads every bit (Stafford's variant 13 of the Murmur3 finaliser).
#[must_use]
#[inline]
pub fn mix(mut value: u64) -> u64 {
    value = (value ^ (value >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    value = (value ^ (value >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    value ^ (value >> 31)
}

/// Bytes that `separators` looks at in one go.
const BLOCK: usize = 64;

/// One bit a byte of a block: the byte is ASCII white space, or may start a non-ASCII white space character
/// (U+0085 and U+00A0 start with C2, all others with E1, E2 or E3).
#[cfg(target_arch = "x86_64")]
#[inline]
fn separators(block: &[u8; BLOCK]) -> u64 {
    use std::arch::x86_64::{
        _mm_cmpeq_epi8, _mm_loadu_si128, _mm_min_epu8, _mm_movemask_epi8, _mm_or_si128, _mm_set1_epi8, _mm_sub_epi8,
    };
    let mut bits = 0;
    for (index, quarter) in block.as_chunks::<16>().0.iter().enumerate() {
        // SAFETY: SSE2 is part of x86-64, and a quarter has the 16 bytes of a vector.
        let found = unsafe {
            let bytes = _mm_loadu_si128(quarter.as_ptr().cast());
            // first <= byte <= first + span, unsigned: the minimum of (byte - first) and span is (byte - first).
            let tabs = _mm_sub_epi8(bytes, _mm_set1_epi8(9));
            let tabs = _mm_cmpeq_epi8(_mm_min_epu8(tabs, _mm_set1_epi8(4)), tabs);
            let leads = _mm_sub_epi8(bytes, _mm_set1_epi8(0xE1_u8 as i8));
            let leads = _mm_cmpeq_epi8(_mm_min_epu8(leads, _mm_set1_epi8(2)), leads);
            let spaces = _mm_cmpeq_epi8(bytes, _mm_set1_epi8(b' ' as i8));
            let latin = _mm_cmpeq_epi8(bytes, _mm_set1_epi8(0xC2_u8 as i8));
            _mm_movemask_epi8(_mm_or_si128(_mm_or_si128(tabs, leads), _mm_or_si128(spaces, latin)))
        };
        bits |= (found as u64) << (16 * index);
    }
    bits
}

/// As above, a byte at a time.
#[cfg(not(target_arch = "x86_64"))]
#[inline]
fn separators(block: &[u8; BLOCK]) -> u64 {
    let found = |byte: u8| matches!(byte, 9..=13 | b' ' | 0xC2 | 0xE1..=0xE3);
    block.iter().rev().fold(0, |bits, byte| bits << 1 | u64::from(found(*byte)))
}

/// Length in bytes of the white space character at `at`, or 0 when there is none.
#[inline]
fn space_len(text: &str, at: usize) -> usize {
    if text.as_bytes()[at].is_ascii() {
        return 1;
    }
    match text[at..].chars().next() {
        Some(character) if character.is_whitespace() => character.len_utf8(),
        _ => 0,
    }
}

/// Calls `visit(start, end)` with the byte range of every word, as `str::split_whitespace` would give them.
#[inline]
pub fn for_each_word(text: &str, mut visit: impl FnMut(usize, usize)) {
    let mut start = 0;
    let mut handle = |base: usize, mut bits: u64| {
        while bits != 0 {
            let at = base + bits.trailing_zeros() as usize;
            bits &= bits - 1;
            let space = space_len(text, at);
            if space > 0 {
                if at > start {
                    visit(start, at);
                }
                start = at + space;
            }
        }
    };
    let (blocks, rest) = text.as_bytes().as_chunks::<BLOCK>();
    for (index, block) in blocks.iter().enumerate() {
        handle(index * BLOCK, separators(block));
    }
    // Zeros are no separators.
    let mut last = [0; BLOCK];
    last[..rest.len()].copy_from_slice(rest);
    handle(blocks.len() * BLOCK, separators(&last));
    if text.len() > start {
        visit(start, text.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXTS: [&str; 7] = [
        "",
        "   \u{3000}\n",
        "one",
        " a  b\tc\u{a0}d\u{2003}e ",
        "é\u{c2}\u{85}x \u{1680}y ᠎z",
        "日本\u{3000}語 text",
        "the quick brown fox jumps over the lazy dog",
    ];

    #[test]
    fn words_are_those_of_the_standard_library() {
        for text in TEXTS {
            let mut words = Vec::new();
            for_each_word(text, |start, end| words.push(&text[start..end]));
            assert_eq!(words, text.split_whitespace().collect::<Vec<_>>());
        }
    }

    #[test]
    fn words_may_lie_anywhere_in_a_block() {
        for length in 0..200 {
            for gap in [" ", "\u{a0}", "\u{3000}", "\t\u{2003} "] {
                let text = format!("{}{gap}{}{gap}é", "a".repeat(length), "b".repeat(length / 2));
                let mut words = Vec::new();
                for_each_word(&text, |start, end| words.push(&text[start..end]));
                assert_eq!(words, text.split_whitespace().collect::<Vec<_>>(), "{length} {gap:?}");
            }
        }
    }

    #[test]
    fn every_white_space_character_separates() {
        for character in ('\0'..=char::MAX).filter(|character| character.is_whitespace()) {
            let text = format!("a{character}b");
            let mut count = 0;
            for_each_word(&text, |_, _| count += 1);
            assert_eq!(count, 2, "{character:?}");
        }
    }

    #[test]
    fn compat_word_windows_keep_the_original_bytes() {
        let mut scratch = Scratch::default();
        scratch.fill_compat(" a  b\tc d", Window { kind: NgramKind::Word, size: 3 });
        assert_eq!(scratch.hashes, [xxh3_64(b"a  b\tc"), xxh3_64(b"b\tc d")]);
        scratch.fill_compat(" a b ", Window { kind: NgramKind::Word, size: 3 });
        assert_eq!(scratch.hashes, [xxh3_64(b" a b ")]);
    }

    #[test]
    fn compat_char_windows_count_scalar_values() {
        let mut scratch = Scratch::default();
        scratch.fill_compat("aé日", Window { kind: NgramKind::Char, size: 2 });
        assert_eq!(scratch.hashes, [xxh3_64("aé".as_bytes()), xxh3_64("é日".as_bytes())]);
    }

    #[test]
    fn rolling_equals_hashing_each_window_afresh() {
        let units: Vec<u64> = (0..50).map(mix).collect();
        for size in [1, 2, 5, 50] {
            let mut rolled = Vec::new();
            roll(&units, size, &mut rolled);
            let mut fresh = Vec::new();
            let mut one = Vec::new();
            for window in units.windows(size) {
                roll(window, size, &mut one);
                fresh.extend_from_slice(&one);
            }
            assert_eq!(rolled, fresh);
        }
    }

    #[test]
    fn a_short_text_is_one_shingle() {
        let mut out = Vec::new();
        roll(&[1, 2], 5, &mut out);
        assert_eq!(out.len(), 1);
        roll(&[], 5, &mut out);
        assert_eq!(out.len(), 1);
    }
}
