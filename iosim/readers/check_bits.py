"""Check bits of ECC that lie in the same memory as the data: what a counter of DRAM bytes shows of them.

Boards with GDDR6 memory have no chips for check bits. With ECC on, a sixteenth of the memory holds them, and what moves
data moves their check bits, too. The sizes follow from the memory that such boards report (15 of 16 parts). How often a
sector of check bits is fetched was read off counters of an L4; that the surplus is check bits at all is inferred, as no
recording with ECC off proves it. Rates of profiles count data alone, so times do not change.
"""

from __future__ import annotations

from iosim.hardware.profile import HardwareProfile
from iosim.kernel.traffic import CHECK_BITS, Traffic, TrafficRow

DATA_PER_CHECK = 16
"""Bytes of data over bytes of their check bits: a sector of 32 bytes of check bits serves 512 bytes of data. A T4
reports 15,360 of 16,384 MiB; NVIDIA's Volta whitepaper gives 6.25 % for ECC in line."""
FETCHES = 2
"""Times that a sector of check bits is fetched while its 512 bytes of data are read. The L2 does not keep it between
loads that lie apart, and loads at the same time do not always share one: 2.1 where a pass reads one tensor, 2.2 where
it reads two, 1.8 where a row is 256 bytes. Fitted on these three counted launches of an L4."""
FILLS = 1
"""Times that it is fetched while its 512 bytes of data are written: a line that is driven out brings 8 of its 32 bytes,
and a sector that is written in part is read before. Launches of an L4 that write an N x N matrix moved 10 to 12 % more
than they wrote and read, by a rate times a time (MattJBorowski1991/QuantizedMHA @ef703c8). Fitted on two of them."""
WRITES = 1
"""Times that it is written then: dirty lines wait in the L2, where those of 512 bytes come together."""
FEWEST, MOST = (1, 0, 0), (3, 2, 2)
"""FETCHES, FILLS and WRITES at the ends of a prediction's range: 1.1 (rows of 768 bytes) to 2.8 (products that take 32
bytes of a row at a time) fetches were counted."""


def check_bits(data_traffic: Traffic, profile: HardwareProfile) -> Traffic:
    """Bytes of check bits at HBM beside `data_traffic`, a row for each launch and direction; none where the GPU has no ECC in
    line, or the data moves no bytes at HBM."""
    if profile.ecc != "inline":
        return Traffic()
    rows: list[TrafficRow] = []
    at_hbm = [row for row in data_traffic.payload if row.level == "hbm"]
    for launch in dict.fromkeys(row.launch for row in at_hbm):
        read, written = (
            sum(row.bytes for row in at_hbm if row.launch == launch and row.direction == way)
            for way in ("read", "write")
        )
        more_read, more_written = _checks(read, written, (FETCHES, FILLS, WRITES))
        rows.append(TrafficRow(launch, "hbm", CHECK_BITS, "read", more_read))
        rows.append(TrafficRow(launch, "hbm", CHECK_BITS, "write", more_written))
    return Traffic(tuple(rows))


def _checks(read: int, written: int, times: tuple[int, int, int]) -> tuple[int, int]:
    """Bytes of check bits (read, written) that go with so many bytes of data."""
    fetches, fills, writes = times
    return (read * fetches + written * fills) // DATA_PER_CHECK, written * writes // DATA_PER_CHECK


Ends = tuple[int, int]


def with_check_bits(
    read: Ends, written: Ends, predicted_written: int, profile: HardwareProfile
) -> tuple[Ends, Ends]:
    """Least and most bytes that are read and written at HBM, where those of data are known: with the fewest check bits
    that go with them, and with the most. `predicted_written`: bytes of data that are predicted to be written."""
    if profile.ecc != "inline":
        return read, written
    (lowest, _), (highest, _) = (
        _checks(read[n], predicted_written, times) for n, times in enumerate((FEWEST, MOST))
    )
    (_, unwritten), (_, rewritten) = (
        _checks(0, written[n], times) for n, times in enumerate((FEWEST, MOST))
    )
    return (read[0] + lowest, read[1] + highest), (written[0] + unwritten, written[1] + rewritten)
