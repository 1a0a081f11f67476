//! MinHash signatures: a few hundred numbers whose agreement estimates the Jaccard similarity of two shingle sets.
//!
//! Slot `i` holds the smallest value that permutation `i` gives to any shingle; two documents agree in a slot with
//! probability `J`, so the share of equal slots estimates `J` with standard error `sqrt(J (1 - J) / num_perms)`
//! (A. Broder, *On the resemblance and containment of documents*, 1997).
//!
//! [`compat`] fixes a formula with 128-bit products, for signatures that must equal stored ones; [`fast32`] uses 32-bit
//! lanes and is an order of magnitude faster. Their signatures cannot be compared with each other.

pub mod compat;
pub mod fast32;
#[cfg(target_arch = "x86_64")]
mod lanes;

use crate::error::{Error, Result};
use crate::shingle::Window;

/// Largest number of slots a signature may have.
pub const MAX_PERMS: usize = 65_536;

/// Checks what every kind of signature demands of its parameters.
///
/// # Errors
/// [`Error::Parameter`] when `num_perms` is outside `1..=65536` or the window is empty.
pub fn check_parameters(num_perms: usize, window: Window) -> Result<()> {
    if num_perms == 0 || num_perms > MAX_PERMS {
        return Err(Error::parameter("num_perms", num_perms, format!("1 to {MAX_PERMS}")));
    }
    if window.size == 0 {
        return Err(Error::parameter("ngram_size", 0, "at least 1"));
    }
    Ok(())
}
