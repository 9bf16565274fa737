"""A reader: joules of a chain of launches from energies a byte and an operation that the caller knows."""

from __future__ import annotations

from collections.abc import Mapping

from iosim.kernel.launch import Chain
from iosim.kernel.traffic import Traffic


def energy_j(
    chain: Chain, traffic: Traffic, pj_per_byte: Mapping[str, float], pj_per_flop: float = 0.0
) -> dict[str, float]:
    """Joules of each launch of `chain`.

    Args:
        traffic: its bytes by level, as others counted or replayed them.
        pj_per_byte: level ("l2", "hbm") -> picojoules a byte that crosses it.
        pj_per_flop: picojoules an operation of the launches' products, over all pairs of their visited tiles.
    """
    joules = {}
    for launch in chain.launches:
        domain = launch.domain
        pairs = (
            int((domain.query_rows * domain.visited.total(domain.key_rows)).sum())
            * domain.grid_heads
        )
        total = sum(
            cost * traffic.total(level, launch=launch.name) for level, cost in pj_per_byte.items()
        )
        joules[launch.name] = (total + pj_per_flop * pairs * launch.work.flops_per_pair) * 1e-12
    return joules
