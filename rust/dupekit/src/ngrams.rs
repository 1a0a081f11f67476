//! Which token n-grams does a document have, and does another document have them all?
//!
//! Before a near-duplicate is removed its every n-gram should be found in the document that stays. [`TokenNgrams`] answers
//! exactly; [`Bitmap`] and [`Fingerprint`] are small summaries that rule most pairs out first and never rule out a true
//! subset.

use crate::error::{Error, Result};
use crate::hash::{xxh3_64, xxh3_128};
use crate::shingle::{for_each_word, roll};

/// The distinct windows of `size` successive tokens of a text.
///
/// Tokens are the words between Unicode white space of the lower-cased text. A text with fewer tokens than `size` has one
/// window, all of it; a text without tokens has none.
#[derive(Debug, Clone)]
pub struct TokenNgrams {
    lowered: String,
    tokens: Vec<(usize, usize)>,
    /// Hash and first token of each distinct window, sorted.
    windows: Vec<(u64, usize)>,
    size: usize,
    chars: u64,
    lines: u64,
}

impl TokenNgrams {
    /// Splits and hashes a text.
    ///
    /// # Errors
    /// [`Error::Parameter`] when `size` is 0.
    pub fn new(text: &str, size: usize) -> Result<Self> {
        if size == 0 {
            return Err(Error::parameter("ngram_size", 0, "at least 1"));
        }
        let lowered = text.to_lowercase();
        let bytes = lowered.as_bytes();
        let (mut tokens, mut units) = (Vec::new(), Vec::new());
        for_each_word(&lowered, |start, end| {
            tokens.push((start, end));
            units.push(xxh3_64(&bytes[start..end]));
        });
        let mut hashes = Vec::new();
        if !tokens.is_empty() {
            roll(&units, size, &mut hashes);
        }
        let mut ngrams = Self {
            tokens,
            windows: hashes.into_iter().zip(0..).collect(),
            size,
            chars: text.chars().count() as u64,
            lines: text.lines().count() as u64,
            lowered,
        };
        ngrams.drop_repeats();
        Ok(ngrams)
    }

    /// Number of tokens, repeats counted.
    #[must_use]
    pub fn token_count(&self) -> usize {
        self.tokens.len()
    }

    /// Number of distinct windows.
    #[must_use]
    pub fn len(&self) -> usize {
        self.windows.len()
    }

    /// Whether there is no window, that is, no token.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.windows.is_empty()
    }

    /// Tokens in a window.
    #[must_use]
    pub fn ngram_size(&self) -> usize {
        self.size
    }

    /// Number of distinct windows that both texts have; 0 when the window sizes differ.
    ///
    /// Hashes find the candidates, their tokens are then compared one by one.
    #[must_use]
    pub fn intersection_size(&self, other: &Self) -> usize {
        if self.size != other.size {
            return 0;
        }
        let mut rest = other.windows.as_slice();
        let mut shared = 0;
        for &(hash, first) in &self.windows {
            let below = rest.iter().take_while(|window| window.0 < hash).count();
            rest = &rest[below..];
            let same_hash = rest.iter().take_while(|window| window.0 == hash);
            let tokens = self.window(first);
            shared += usize::from(same_hash.into_iter().any(|&(_, theirs)| tokens.clone().eq(other.window(theirs))));
        }
        shared
    }

    /// The 4,096-bit summary.
    #[must_use]
    pub fn bitmap(&self) -> Bitmap {
        let mut bitmap = Bitmap { words: [0; 64], size: self.size as u64 };
        for &(hash, _) in &self.windows {
            for slice in 0..4 {
                let bit = hash >> (12 * slice) & 0xFFF;
                bitmap.words[(bit >> 6) as usize] |= 1 << (bit & 63);
            }
        }
        bitmap
    }

    /// The bottom-k summary.
    #[must_use]
    pub fn fingerprint(&self) -> Fingerprint {
        let mut kept: Vec<u32> = self.windows.iter().map(|window| (window.0 >> 40) as u32).collect();
        kept.dedup();
        let theta = kept.get(FINGERPRINTS).copied().unwrap_or(1 << 24);
        kept.truncate(FINGERPRINTS);
        let mut normalized = String::with_capacity(self.lowered.len());
        for token in 0..self.tokens.len() {
            if token > 0 {
                normalized.push(' ');
            }
            normalized.push_str(self.token(token));
        }
        Fingerprint {
            chars: self.chars,
            lines: self.lines,
            token_count: self.tokens.len() as u64,
            ngram_count: self.windows.len() as u64,
            ngram_size: self.size as u64,
            sequence_hash: xxh3_128(normalized.as_bytes()),
            theta,
            kept,
        }
    }

    fn token(&self, index: usize) -> &str {
        let (start, end) = self.tokens[index];
        &self.lowered[start..end]
    }

    fn window(&self, first: usize) -> impl Iterator<Item = &str> + Clone {
        (first..self.tokens.len().min(first + self.size)).map(|index| self.token(index))
    }

    /// Sorts the windows and drops those equal to an earlier one, token by token.
    fn drop_repeats(&mut self) {
        let mut windows = std::mem::take(&mut self.windows);
        windows.sort_unstable();
        let mut group = 0;
        for window in windows {
            if self.windows.get(group).is_none_or(|first| first.0 != window.0) {
                group = self.windows.len();
            }
            let repeated = self.windows[group..].iter().any(|kept| self.window(kept.1).eq(self.window(window.1)));
            if !repeated {
                self.windows.push(window);
            }
        }
    }
}

/// 4,096 bits, four set for each window: a Bloom filter that compares by subset.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bitmap {
    words: [u64; 64],
    size: u64,
}

impl Bitmap {
    /// Number of bits set.
    #[must_use]
    pub fn count_ones(&self) -> u32 {
        self.words.iter().map(|word| word.count_ones()).sum()
    }

    /// False only when some window of `self` is certainly not one of `other`.
    #[must_use]
    pub fn may_be_subset_of(&self, other: &Self) -> bool {
        let empty = self.words.iter().all(|word| *word == 0);
        empty
            || self.size == other.size
                && self.words.iter().zip(&other.words).all(|(member, canonical)| member & !canonical == 0)
    }
}

/// Fingerprints that a [`Fingerprint`] keeps at most.
pub const FINGERPRINTS: usize = 1_333;
/// Bytes of a serialised [`Fingerprint`].
pub const FINGERPRINT_BYTES: usize = 64 + 3 * FINGERPRINTS;

/// The smallest 24-bit fingerprints of the windows, with counts: a bottom-k sketch.
///
/// All fingerprints below `theta` are kept, so below the smaller `theta` of two sketches a missing fingerprint proves
/// that a window is missing (M. Thorup, *Bottom-k and priority sampling, set similarity and subset sums*, 2013).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fingerprint {
    /// Unicode scalar values of the original text.
    pub chars: u64,
    /// Lines of the original text.
    pub lines: u64,
    /// Tokens, repeats counted.
    pub token_count: u64,
    /// Distinct windows.
    pub ngram_count: u64,
    /// Tokens in a window.
    pub ngram_size: u64,
    /// XXH3-128 of the lower-cased tokens joined by one space.
    pub sequence_hash: u128,
    theta: u32,
    kept: Vec<u32>,
}

impl Fingerprint {
    /// False only when `self` certainly has a window that `other` lacks, more windows, or more characters.
    #[must_use]
    pub fn may_be_subset_of(&self, other: &Self) -> bool {
        if self.chars > other.chars || self.ngram_count > other.ngram_count {
            return false;
        }
        if self.ngram_count == 0 {
            return true;
        }
        if self.ngram_size != other.ngram_size {
            return false;
        }
        let limit = self.theta.min(other.theta);
        let mut theirs = other.kept.iter();
        self.kept.iter().take_while(|kept| **kept < limit).all(|mine| theirs.any(|kept| kept == mine))
    }

    /// The record: little endian, always [`FINGERPRINT_BYTES`] long.
    ///
    /// `chars, lines, token_count, ngram_count, ngram_size` (8 bytes each), sequence hash (16), theta (4), number of
    /// fingerprints (4), fingerprints (3 each, ascending), zeros.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(FINGERPRINT_BYTES);
        for count in [self.chars, self.lines, self.token_count, self.ngram_count, self.ngram_size] {
            out.extend_from_slice(&count.to_le_bytes());
        }
        out.extend_from_slice(&self.sequence_hash.to_le_bytes());
        out.extend_from_slice(&self.theta.to_le_bytes());
        out.extend_from_slice(&(self.kept.len() as u32).to_le_bytes());
        for kept in &self.kept {
            out.extend_from_slice(&kept.to_le_bytes()[..3]);
        }
        out.resize(FINGERPRINT_BYTES, 0);
        out
    }

    /// Reads a record.
    ///
    /// # Errors
    /// [`Error::Parse`] when the length is wrong, the fingerprints are not ascending below theta, or there are more of
    /// them than windows.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        const WHAT: &str = "a token n-gram fingerprint signature";
        if bytes.len() != FINGERPRINT_BYTES {
            let reason = format!("length={}; expected {FINGERPRINT_BYTES} bytes", bytes.len());
            return Err(Error::parse(WHAT, reason));
        }
        let number = |at: usize, width: usize| {
            bytes[at..at + width].iter().rev().fold(0_u128, |value, byte| value << 8 | u128::from(*byte))
        };
        let (theta, count) = (number(56, 4) as u32, number(60, 4) as usize);
        if theta > 1 << 24 || count > FINGERPRINTS {
            let reason = format!("theta={theta}, count={count}; expected at most {} and {FINGERPRINTS}", 1 << 24);
            return Err(Error::parse(WHAT, reason));
        }
        let kept: Vec<u32> = (0..count).map(|index| number(64 + 3 * index, 3) as u32).collect();
        let ngram_count = number(24, 8) as u64;
        let ascending = kept.is_sorted_by(|a, b| a < b) && kept.last().is_none_or(|last| *last < theta);
        if !ascending || count as u64 > ngram_count || bytes[64 + 3 * count..].iter().any(|byte| *byte != 0) {
            let reason = "its fingerprints are not ascending below theta, or do not fit its counts";
            return Err(Error::parse(WHAT, reason));
        }
        Ok(Self {
            chars: number(0, 8) as u64,
            lines: number(8, 8) as u64,
            token_count: number(16, 8) as u64,
            ngram_count,
            ngram_size: number(32, 8) as u64,
            sequence_hash: number(40, 16),
            theta,
            kept,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(count: usize, separator: &str) -> String {
        (0..count).map(|i| format!("w{i}")).collect::<Vec<_>>().join(separator)
    }

    fn ngrams(text: &str) -> TokenNgrams {
        TokenNgrams::new(text, 3).unwrap()
    }

    #[test]
    fn windows_are_distinct_and_lower_cased() {
        let set = ngrams("A b c a B C a");
        assert_eq!((set.token_count(), set.len()), (7, 3));
        assert_eq!(set.intersection_size(&ngrams("x a b c y")), 1);
    }

    #[test]
    fn a_short_text_is_one_window_and_an_empty_one_none() {
        assert_eq!(ngrams("a b").len(), 1);
        assert_eq!(ngrams("a b").intersection_size(&ngrams("A  B")), 1);
        assert_eq!(ngrams("a b").intersection_size(&ngrams("a b c")), 0);
        assert!(ngrams(" \n").is_empty());
        assert!(TokenNgrams::new("a", 0).is_err());
    }

    #[test]
    fn sizes_that_differ_share_nothing() {
        let two = TokenNgrams::new("a b", 2).unwrap();
        assert_eq!(two.intersection_size(&ngrams("a b")), 0);
        assert!(!two.bitmap().may_be_subset_of(&ngrams("a b").bitmap()));
    }

    #[test]
    fn signatures_never_rule_out_a_true_subset() {
        let words: Vec<String> = (0..6_000).map(|i| format!("w{}", i * 7 % 5_003)).collect();
        let canonical = ngrams(&words.join(" "));
        for (start, end) in [(0, 6_000), (100, 103), (2_000, 5_000), (0, 0)] {
            let member = ngrams(&words[start..end].join(" "));
            assert_eq!(member.intersection_size(&canonical), member.len());
            assert!(member.bitmap().may_be_subset_of(&canonical.bitmap()));
            assert!(member.fingerprint().may_be_subset_of(&canonical.fingerprint()));
        }
    }

    #[test]
    fn a_fingerprint_finds_one_foreign_window_in_a_small_text() {
        let canonical = ngrams(&words(900, " "));
        let member = ngrams("w1 w2 w3 w5");
        assert!(!member.fingerprint().may_be_subset_of(&canonical.fingerprint()));
        assert!(!member.bitmap().may_be_subset_of(&canonical.bitmap()));
    }

    #[test]
    fn a_fingerprint_survives_its_bytes() {
        for length in [0, 1, 5, 2_000] {
            let print = ngrams(&words(length, "\n")).fingerprint();
            let bytes = print.to_bytes();
            assert_eq!(bytes.len(), 4_063);
            assert_eq!(Fingerprint::from_bytes(&bytes), Ok(print));
        }
    }

    #[test]
    fn damaged_bytes_are_refused() {
        let bytes = ngrams("a b c d e").fingerprint().to_bytes();
        assert!(Fingerprint::from_bytes(&bytes[1..]).is_err());
        for (at, value) in [(59, 255), (63, 1), (64, 255), (4_062, 1), (24, 0)] {
            let mut damaged = bytes.clone();
            damaged[at] = value;
            if at == 64 {
                damaged[64..67].fill(255);
            }
            assert!(Fingerprint::from_bytes(&damaged).is_err(), "byte {at}");
        }
    }
}
