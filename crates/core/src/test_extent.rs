//! How much tests of power cuts and random tests do: little enough for each test run, or all.

/// From one power cut, or one operation that fails, to the next: so far in a test run, and as far
/// as `EMBEDROCK_CUTS` says. With 1, which `make nightly` sets, none is left out. A usual stride is
/// prime, so that cuts come everywhere in what repeats.
pub(crate) fn stride(usual: u64) -> u64 {
    std::env::var("EMBEDROCK_CUTS").map_or(usual, |step| step.parse().expect("a whole number"))
}

/// How many seeds a random test tries: so many in a test run, or what `EMBEDROCK_SEEDS` says.
pub(crate) fn seeds(usual: u64) -> u64 {
    std::env::var("EMBEDROCK_SEEDS").map_or(usual, |seeds| seeds.parse().expect("a whole number"))
}
