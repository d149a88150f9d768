"""The parts of `scripts/test-oip`.

`environments` installs clients and Triton, `servers` runs ours and Triton's, `tables` has which examples and tests have
to pass. `theirs` runs these, `perf` runs perf_analyzer, and `recorded` asks Triton what was recorded of it, with the
models of `triton_models`.
"""
