"""The fuzzer of `scripts/fuzz` on fixed seeds, and on all that it has found before."""
