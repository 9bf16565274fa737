"""What a kernel's machine code says: functions, instructions, loops and what a turn of each does, addresses.

Reads cubins, fatbins, shared objects, Triton's caches and listings of nvdisasm, without a GPU. It makes facts of them
for the descriptions of `iosim.kernel`; it knows no catalog, predicts no bytes beyond an SM's requests and no time.
"""
