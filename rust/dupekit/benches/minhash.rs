//! Documents a second of every MinHash path on this CPU, text in, one thread: `cargo bench -p dupekit`.
//!
//! 500 words a document, word 5-grams, 286 slots. The paths run in turn within each round, so that noise of the machine
//! meets all of them; the median of nine rounds is printed. Ratios hold better than absolute numbers.

#![allow(clippy::print_stdout)]

use std::hint::black_box;
use std::time::Instant;

use dupekit::minhash::compat::CompatPermutations;
use dupekit::minhash::fast32::Fast32Permutations;
use dupekit::shingle::{NgramKind, Scratch, Window, mix};
use dupekit::simd::SimdPath;

const DOCUMENTS: u64 = 100;
const WORDS: u64 = 500;
const SLOTS: usize = 286;
const ROUNDS: usize = 9;

fn document(number: u64) -> String {
    let words = (0..WORDS).map(|word| format!("{:x}", mix(number * WORDS + word) >> (20 + 4 * (word % 8))));
    words.collect::<Vec<_>>().join(" ")
}

fn main() {
    let texts: Vec<String> = (0..DOCUMENTS).map(document).collect();
    let window = Window { kind: NgramKind::Word, size: 5 };
    let (compat, fast) = (CompatPermutations::new(SLOTS, 42), Fast32Permutations::new(SLOTS, 42));
    let (mut scratch, mut wide, mut narrow) = (Scratch::default(), Vec::new(), Vec::new());
    let cases: Vec<(&str, SimdPath)> = ["compat", "fast32"]
        .into_iter()
        .flat_map(|kind| SimdPath::available().into_iter().map(move |p| (kind, p)))
        .collect();
    let mut seconds = vec![Vec::new(); cases.len()];
    for _ in 0..ROUNDS {
        for (case, &(kind, path)) in cases.iter().enumerate() {
            let start = Instant::now();
            for text in &texts {
                if kind == "compat" {
                    wide.clear();
                    scratch.fill_compat(text, window);
                    compat.append_signature(&scratch.hashes, path, &mut wide);
                } else {
                    narrow.clear();
                    scratch.fill_rolling(text, window);
                    fast.append_signature(&scratch.hashes, path, &mut narrow);
                }
                black_box((&wide, &narrow));
            }
            seconds[case].push(start.elapsed().as_secs_f64());
        }
    }
    for (&(kind, path), seconds) in cases.iter().zip(&mut seconds) {
        seconds.sort_by(f64::total_cmp);
        println!("{kind:7} {:7} {:8.0} documents/s", path.name(), DOCUMENTS as f64 / seconds[ROUNDS / 2]);
    }
}
