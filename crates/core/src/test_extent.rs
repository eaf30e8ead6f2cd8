//! The extent of tests of power cuts and of random tests: short for each test run, or complete.

/// The distance from one power cut, or one failing operation, to the next: `usual` in a test run,
/// or the value of `EMBEDROCK_CUTS`. With 1, which `make nightly` sets, none is left out. A usual
/// stride is prime, so that cuts fall on every part of repeating work.
pub(crate) fn stride(usual: u64) -> u64 {
    std::env::var("EMBEDROCK_CUTS").map_or(usual, |step| step.parse().expect("a whole number"))
}

/// Number of seeds that a random test tries: `usual` in a test run, or the value of
/// `EMBEDROCK_SEEDS`.
pub(crate) fn seeds(usual: u64) -> u64 {
    std::env::var("EMBEDROCK_SEEDS").map_or(usual, |seeds| seeds.parse().expect("a whole number"))
}
