//! PCG64 (XSL-RR 128/64), the generator that MinHash coefficients come from.
//!
//! Written out here because signatures are stored for years: the stream of numbers is part of the format and must not
//! follow a dependency's version. The seeding reproduces `rand_pcg::Pcg64::seed_from_u64`, checked against that crate.
//!
//! Source: M. O'Neill, *PCG: A Family of Simple Fast Space-Efficient Statistically Good Algorithms for Random Number
//! Generation*, HMC-CS-2014-0905, section 6.3.

const MULTIPLIER: u128 = 0x2360_ED05_1FC6_5DA4_4385_DF64_9FCC_F645;

/// The PCG64 generator: a 128-bit linear congruence with a xor-shift, rotate output.
#[derive(Debug, Clone)]
pub struct Pcg64 {
    state: u128,
    increment: u128,
}

impl Pcg64 {
    /// Expands a 64-bit seed to state and increment.
    ///
    /// Eight steps of PCG32 (XSH-RR) give 32 bytes; the first sixteen (little endian) are the state, the others the
    /// increment, which is made odd. The state then advances once past its initial value.
    #[must_use]
    pub fn from_seed(mut seed: u64) -> Self {
        let mut next_word = || {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(11_634_580_027_462_260_723);
            let mixed = (((seed >> 18) ^ seed) >> 27) as u32;
            u128::from(mixed.rotate_right((seed >> 59) as u32))
        };
        let mut next_u128 = || (0..4).fold(0, |value, word| value | next_word() << (32 * word));
        let state = next_u128();
        let increment = next_u128() | 1;
        let mut generator = Self { state: state.wrapping_add(increment), increment };
        generator.step();
        generator
    }

    fn step(&mut self) {
        self.state = self.state.wrapping_mul(MULTIPLIER).wrapping_add(self.increment);
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.step();
        let folded = (self.state >> 64) as u64 ^ self.state as u64;
        folded.rotate_right((self.state >> 122) as u32)
    }

    /// The next 128 bits: low half first.
    pub fn next_u128(&mut self) -> u128 {
        let low = u128::from(self.next_u64());
        u128::from(self.next_u64()) << 64 | low
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{Rng, RngExt, SeedableRng};

    #[test]
    fn the_stream_equals_that_of_the_rand_pcg_crate() {
        for seed in [0, 1, 42, 0xDEAD_BEEF, u64::MAX] {
            let mut theirs = rand_pcg::Pcg64::seed_from_u64(seed);
            let mut ours = Pcg64::from_seed(seed);
            for _ in 0..100 {
                assert_eq!(ours.next_u64(), theirs.next_u64());
            }
            for _ in 0..100 {
                assert_eq!(ours.next_u128(), theirs.random::<u128>());
            }
        }
    }
}
