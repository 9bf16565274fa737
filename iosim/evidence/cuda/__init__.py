"""Builds one instantiation of a CUDA kernel on demand, keeps it on disk, and launches it.

The compiler is nvcc, run as a subprocess that writes a cubin. Reasons: it needs no GPU and no driver, so that the same
command fills the resource table on a CPU machine; its assembler's report (registers, spills, shared memory) comes with
every build; and it needs no Python package. A kernel for one architecture only (`sm_90a`) passes through unchanged.

Launching goes through the driver's C interface (`driver`). The rest of iosim imports nothing
of this until it is asked for.
"""
