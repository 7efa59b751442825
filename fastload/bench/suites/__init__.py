"""The questions that the benchmark answers; benchmarks/README.md has all of them."""
