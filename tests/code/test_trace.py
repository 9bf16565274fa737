"""Instructions as what a warp does with the units of its SM."""

from __future__ import annotations

import pytest

from iosim.code.listing import read_listing
from iosim.code.trace import slot
from iosim.kernel.machine import MemoryUse


@pytest.mark.parametrize(
    ("code", "wavefronts", "conflicts"),
    [
        ("LDS R0, [R1]", 32, 31),
        ("LDS R0, [R1]", 1, 0),
        ("STS.128 [R1], R4", 4, 0),  # 32 lanes of 16 bytes are four times 128
        ("STS.128 [R1], R4", 8, 4),
        ("LDS.128 R4, [R1]", 2, 0),  # all lanes ask for the same
    ],
)
def test_conflicts_are_wavefronts_beyond_those_of_neighbouring_words(
    code: str, wavefronts: int, conflicts: int
) -> None:
    (instruction,) = read_listing(f"        /*0160*/      {code} ;")
    assert slot(instruction, 90, MemoryUse(0, 0, wavefronts)).conflicts == conflicts
