"""Reader: what autograd keeps between forward and backward, storage by storage."""

from __future__ import annotations

from iosim.studies.training.graph import Graph, Kind, Storage


def saved_storages(graph: Graph) -> tuple[Storage, ...]:
    """Every storage that some node keeps for its backward, once each, parameters left out. A checkpointed segment
    keeps what it is given; a saved half copy of a weight counts, as it is a storage of its own."""
    names: dict[str, None] = {}
    for segment in graph.segments.values():
        names |= dict.fromkeys(segment)
    for node in graph.nodes:
        if node.segment is None:
            names |= dict.fromkeys(node.saved)
    return tuple(graph.storages[n] for n in names)


def saved_bytes(graph: Graph) -> int:
    """Bytes of `saved_storages`."""
    return sum(s.bytes for s in saved_storages(graph))


def by_kind(storages: tuple[Storage, ...]) -> dict[Kind, int]:
    """Bytes by what the storages hold, largest first."""
    total: dict[Kind, int] = {}
    for s in storages:
        total[s.kind] = total.get(s.kind, 0) + s.bytes
    return dict(sorted(total.items(), key=lambda item: -item[1]))
