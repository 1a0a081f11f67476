//! A Bloom filter over hashes: membership with no false negatives and a chosen rate of false positives.
//!
//! For `n` items at rate `p` it takes `m = -n ln p / (ln 2)^2` bits, rounded to bytes, and `k = floor(m/n ln 2)` indices
//! an item, at least one of each (B. Bloom, *Space/Time Trade-offs in Hash Coding with Allowable Errors*, 1970). Items are 128-bit numbers that
//! are already hashes; their indices come from a linear congruence seeded with the item. Sizes, indices and the file
//! format equal those of the `rbloom` package (where it has at least one index), so that filters can be exchanged.

use crate::error::{Error, Result};

const MULTIPLIER: u128 = 0x2360_ED05_1FC6_5DA4_4385_DF64_9FCB_5CED;
const WHAT: &str = "a Bloom filter";

/// A set of 128-bit hashes that may report a hash it never saw, and never forgets one it did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bloom {
    bits: Vec<u8>,
    num_indices: u64,
}

impl Bloom {
    /// An empty filter for `expected_items` at `false_positive_rate`.
    ///
    /// # Errors
    /// [`Error::Parameter`] when no item is expected, the rate is not between 0 and 1, or the filter would need more
    /// than 2^40 bytes.
    pub fn new(expected_items: u64, false_positive_rate: f64) -> Result<Self> {
        if expected_items == 0 {
            return Err(Error::parameter("expected_items", 0, "at least 1"));
        }
        if !(false_positive_rate > 0.0 && false_positive_rate < 1.0) {
            return Err(Error::parameter("false_positive_rate", false_positive_rate, "a number between 0 and 1"));
        }
        let items = expected_items as f64;
        let ln2 = std::f64::consts::LN_2;
        let size = -items * false_positive_rate.ln() / (ln2 * ln2);
        if size > (1_u64 << 43) as f64 {
            return Err(Error::parameter("expected_items", expected_items, "a filter of at most 2^40 bytes"));
        }
        let bytes = (size as usize).div_ceil(8).max(1);
        let num_indices = (size / items * ln2) as u64;
        let mut bits = Vec::new();
        bits.try_reserve_exact(bytes).map_err(|_| {
            Error::parameter("expected_items", expected_items, format!("a filter that fits memory, not {bytes} bytes"))
        })?;
        bits.resize(bytes, 0);
        Ok(Self { bits, num_indices: num_indices.max(1) })
    }

    /// Number of bits.
    #[must_use]
    pub fn size_in_bits(&self) -> u64 {
        self.bits.len() as u64 * 8
    }

    /// Indices an item sets.
    #[must_use]
    pub fn num_indices(&self) -> u64 {
        self.num_indices
    }

    /// Estimate of the number of items: `-(m / k) ln(1 - ones / m)`; infinite when every bit is set.
    #[must_use]
    pub fn approx_items(&self) -> f64 {
        let size = self.size_in_bits() as f64;
        let ones = self.bits.iter().map(|byte| u64::from(byte.count_ones())).sum::<u64>() as f64;
        // `+ 0.0` turns the minus zero of an empty filter into zero.
        -size / self.num_indices as f64 * (1.0 - ones / size).ln() + 0.0
    }

    /// Whether no item was added.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bits.iter().all(|byte| *byte == 0)
    }

    /// Adds a hash; returns whether it was new for certain.
    pub fn insert(&mut self, hash: u128) -> bool {
        let mut new = false;
        for index in indices(hash, self.num_indices, self.size_in_bits()) {
            let (byte, bit) = (&mut self.bits[index >> 3], 1 << (index & 7));
            new |= *byte & bit == 0;
            *byte |= bit;
        }
        new
    }

    /// Whether the hash may have been added.
    #[must_use]
    pub fn contains(&self, hash: u128) -> bool {
        indices(hash, self.num_indices, self.size_in_bits()).all(|index| self.bits[index >> 3] & 1 << (index & 7) != 0)
    }

    /// Whether two filters have the same size and indices, so that their bits mean the same.
    #[must_use]
    pub fn is_compatible(&self, other: &Self) -> bool {
        self.bits.len() == other.bits.len() && self.num_indices == other.num_indices
    }

    /// Adds all items of another filter.
    ///
    /// # Errors
    /// [`Error::Parameter`] when the filters are not compatible.
    pub fn union_with(&mut self, other: &Self) -> Result<()> {
        self.combine(other, |mine, theirs| mine | theirs)
    }

    /// Keeps the bits that both filters have: every common item, with a higher rate of false positives.
    ///
    /// # Errors
    /// [`Error::Parameter`] when the filters are not compatible.
    pub fn intersect_with(&mut self, other: &Self) -> Result<()> {
        self.combine(other, |mine, theirs| mine & theirs)
    }

    /// Whether every bit of this filter is set in the other.
    ///
    /// # Errors
    /// [`Error::Parameter`] when the filters are not compatible.
    pub fn is_subset(&self, other: &Self) -> Result<bool> {
        self.check_compatible(other)?;
        Ok(self.bits.iter().zip(&other.bits).all(|(mine, theirs)| mine & !theirs == 0))
    }

    /// Forgets all items.
    pub fn clear(&mut self) {
        self.bits.fill(0);
    }

    /// The number of indices as 8 little-endian bytes, then the bits, lowest first.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(8 + self.bits.len());
        out.extend_from_slice(&self.num_indices.to_le_bytes());
        out.extend_from_slice(&self.bits);
        out
    }

    /// Reads what [`Bloom::to_bytes`] wrote.
    ///
    /// # Errors
    /// [`Error::Parse`] when there are fewer than nine bytes or the number of indices is 0 or above 2^16.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let Some((head, bits)) = bytes.split_first_chunk::<8>().filter(|(_, bits)| !bits.is_empty()) else {
            return Err(Error::parse(WHAT, format!("length={}; expected at least 9 bytes", bytes.len())));
        };
        let num_indices = u64::from_le_bytes(*head);
        if !(1..=1 << 16).contains(&num_indices) {
            return Err(Error::parse(WHAT, format!("num_indices={num_indices}; expected 1 to 65536")));
        }
        Ok(Self { bits: bits.to_vec(), num_indices })
    }

    fn check_compatible(&self, other: &Self) -> Result<()> {
        if self.is_compatible(other) {
            return Ok(());
        }
        let given = format!("{} bits, {} indices", other.size_in_bits(), other.num_indices);
        let expected = format!(
            "a filter made with the same arguments ({} bits, {} indices)",
            self.size_in_bits(),
            self.num_indices
        );
        Err(Error::parameter("other", given, expected))
    }

    fn combine(&mut self, other: &Self, join: impl Fn(u8, u8) -> u8) -> Result<()> {
        self.check_compatible(other)?;
        for (mine, theirs) in self.bits.iter_mut().zip(&other.bits) {
            *mine = join(*mine, *theirs);
        }
        Ok(())
    }
}

/// The bit indices of an item.
#[inline]
fn indices(hash: u128, count: u64, size: u64) -> impl Iterator<Item = usize> {
    let mut state = hash;
    (0..count).map(move |_| {
        state = state.wrapping_mul(MULTIPLIER).wrapping_add(1);
        ((state >> 32) as u64 % size) as usize
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hash::xxh3_128;

    fn hash(number: u64) -> u128 {
        xxh3_128(&number.to_le_bytes())
    }

    #[test]
    fn sizes_and_indices_are_those_of_rbloom() {
        // Read off rbloom 1.5.4 with an identity hash.
        let mut bloom = Bloom::new(1_000, 0.01).unwrap();
        assert_eq!((bloom.size_in_bits(), bloom.num_indices()), (9_592, 6));
        bloom.insert(0);
        let set: Vec<usize> = (0..9_592).filter(|bit| bloom.bits[bit >> 3] & 1 << (bit & 7) != 0).collect();
        assert_eq!(set, [0, 2_063, 3_604, 4_522, 6_031, 9_384]);
    }

    #[test]
    fn false_positives_come_at_the_promised_rate() {
        let mut bloom = Bloom::new(10_000, 0.01).unwrap();
        (0..10_000).for_each(|item| {
            bloom.insert(hash(item));
        });
        assert!((0..10_000).all(|item| bloom.contains(hash(item))));
        let wrong = (10_000..110_000).filter(|item| bloom.contains(hash(*item))).count();
        // 1,000 expected of 100,000; binomial deviation 32, and k is rounded down.
        assert!((800..1_200).contains(&wrong), "{wrong}");
        assert!((bloom.approx_items() - 10_000.0).abs() < 200.0);
    }

    #[test]
    fn set_algebra_needs_compatible_filters() {
        let mut a = Bloom::new(100, 0.1).unwrap();
        let mut b = a.clone();
        a.insert(1);
        b.insert(2);
        let mut both = a.clone();
        both.union_with(&b).unwrap();
        assert!(both.contains(1) && both.contains(2));
        assert!(a.is_subset(&both).unwrap() && !both.is_subset(&a).unwrap());
        both.intersect_with(&a).unwrap();
        assert_eq!(both, a);
        assert!(a.union_with(&Bloom::new(100, 0.2).unwrap()).is_err());
    }

    #[test]
    fn a_filter_survives_its_bytes_and_damage_is_refused() {
        let mut bloom = Bloom::new(50, 0.05).unwrap();
        assert!(bloom.insert(7) && !bloom.insert(7));
        assert_eq!(Bloom::from_bytes(&bloom.to_bytes()), Ok(bloom.clone()));
        assert!(Bloom::from_bytes(&bloom.to_bytes()[..8]).is_err());
        assert!(Bloom::from_bytes(&[0; 20]).is_err());
        bloom.clear();
        assert!(bloom.is_empty() && bloom.approx_items() == 0.0);
    }

    #[test]
    fn parameters_out_of_range_are_refused() {
        for (items, rate) in [(0, 0.1), (1, 0.0), (1, 1.0), (1, f64::NAN), (u64::MAX, 0.01)] {
            assert!(Bloom::new(items, rate).is_err());
        }
    }
}
