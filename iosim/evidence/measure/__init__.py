"""Measuring on the user's own GPU: plans of calls, the float64 check, Nsight Compute, device events, calibration.

`case` and `plan` say what is run, and need no GPU; `harness` runs it on PyTorch tensors and holds outputs against
float64; `collect` does so under the profiler and writes the tidy table (`table`), `timing` without the profiler.
`calibrate` turns what the microbenchmarks found into a hardware profile. Nothing here predicts anything.
"""
