//! Which vector instructions to use, decided at run time so that one build serves every CPU.
//!
//! Compiler flags are no substitute: the 128-bit MinHash loop gets four times *slower* when the compiler auto-vectorises
//! it for AVX2, so each path is written out and chosen here.

use crate::error::{Error, Result};

/// An instruction-set path of the kernels, from the plainest to the widest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SimdPath {
    /// Plain loops that follow the formulas; the reference for all other paths.
    Scalar,
    /// 128-bit lanes, part of every x86-64 CPU.
    Sse2,
    /// 256-bit lanes.
    Avx2,
    /// 512-bit lanes (AVX-512 F).
    Avx512,
}

impl SimdPath {
    /// All paths, plainest first.
    pub const ALL: [Self; 4] = [Self::Scalar, Self::Sse2, Self::Avx2, Self::Avx512];

    /// The name used in `Display`, [`SimdPath::parse`] and the Python test hook.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Scalar => "scalar",
            Self::Sse2 => "sse2",
            Self::Avx2 => "avx2",
            Self::Avx512 => "avx512",
        }
    }

    /// Reads a path name.
    ///
    /// # Errors
    /// [`Error::Parameter`] when the name is unknown or this CPU cannot run the path.
    pub fn parse(name: &str) -> Result<Self> {
        Self::ALL.into_iter().find(|path| path.name() == name && path.is_available()).ok_or_else(|| {
            let names: Vec<_> = Self::available().iter().map(|path| path.name()).collect();
            Error::parameter("simd path", name, format!("one that this CPU can run: {}", names.join(", ")))
        })
    }

    /// Whether this CPU can run the path.
    #[must_use]
    pub fn is_available(self) -> bool {
        #[cfg(target_arch = "x86_64")]
        {
            match self {
                Self::Scalar | Self::Sse2 => true,
                Self::Avx2 => is_x86_feature_detected!("avx2"),
                Self::Avx512 => is_x86_feature_detected!("avx512f"),
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        {
            self == Self::Scalar
        }
    }

    /// The paths this CPU can run, plainest first.
    #[must_use]
    pub fn available() -> Vec<Self> {
        Self::ALL.into_iter().filter(|path| path.is_available()).collect()
    }

    /// The widest path this CPU can run.
    #[must_use]
    pub fn best() -> Self {
        Self::ALL.into_iter().rev().find(|path| path.is_available()).unwrap_or(Self::Scalar)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_available_path_reads_back_from_its_name() {
        for path in SimdPath::available() {
            assert_eq!(SimdPath::parse(path.name()), Ok(path));
        }
        assert!(SimdPath::best().is_available());
    }

    #[test]
    fn an_unknown_path_is_refused_with_the_choices() {
        let error = SimdPath::parse("neon2").unwrap_err().to_string();
        assert!(error.contains("neon2") && error.contains("scalar"), "{error}");
    }
}
