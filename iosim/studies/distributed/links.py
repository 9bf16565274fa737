"""Links between GPUs: bandwidth of one direction, latency, and which GPUs share which."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from iosim.base.errors import InputError
from iosim.base.records import dataclass, field, replace
from iosim.base.schema import ListOf, MapOf, Problem, Real, Table, Text, Whole, checked, read_toml
from iosim.hardware.profile import HardwareProfile

GB = 1e9
DEFAULT_LATENCY_S = 18.0e-6
"""Latency of a link given by its bandwidth alone: the largest in links.toml."""


COLLECTIVES = ("exchange", "all-gather", "reduce-scatter", "all-to-all")
"""What moves bytes: an exchange of messages with a neighbour, and the three collectives."""
FILE = Path(__file__).with_name("links.toml")


def _one_bandwidth(row: Mapping[str, Any]) -> Iterator[Problem]:
    if ("profile_key" in row) == ("bandwidth_bytes_per_s" in row):
        yield Problem("bandwidth_bytes_per_s", "a link has either this or profile_key")


LINK = Table(
    {
        "title": Text(),
        "amd": Text(),
        "aliases": ListOf(Text(pattern="[a-z0-9-]+")),
        "profile_key": Text(("nvlink_bytes_per_s", "pcie_bytes_per_s")),
        "bandwidth_bytes_per_s": Real(1e6, 1e15),
        "latency_s": Real(1e-9, 1.0),
        "host_s": Real(0.0, 1.0),
        "unhidden": Real(0.0, 1.0),
        "achieved": Table(dict.fromkeys(COLLECTIVES, Real(0.01, 1.0))),
        "source": Text(),
    },
    required=("title", "latency_s", "source"),
    rules=(_one_bandwidth,),
)
LINKS = Table({"schema": Whole(1, 1), "link": MapOf(LINK)}, required=("schema", "link"))


@dataclass(frozen=True)
class Link:
    """What one GPU can send, and at the same time receive."""

    name: str
    bandwidth_bytes_per_s: float
    latency_s: float
    source: str
    host_s: float = 0.0
    """What the processor takes to launch an exchange, where that was measured."""
    unhidden: float = 0.0
    """Share of a message's time by which it slows the computing beside it, where that was measured."""
    achieved: Mapping[str, float] = field(default_factory=dict)
    """Share of the bandwidth that is reached, by what moves the bytes; 1 where it is not known."""

    def seconds(self, n_bytes: float, kind: str = COLLECTIVES[0]) -> float:
        """Time in which a GPU receives so many bytes, by one of `COLLECTIVES`."""
        return self.latency_s + n_bytes / (
            self.bandwidth_bytes_per_s * self.achieved.get(kind, 1.0)
        )


@cache
def _table() -> Mapping[str, Any]:
    links: dict[str, Any] = checked(read_toml(FILE), LINKS, FILE.name)["link"]
    # An alias is the row under another name, which keeps the row's own name for output.
    aliases = {
        alias: {**row, "name": name}
        for name, row in links.items()
        for alias in row.get("aliases", ())
    }
    return links | aliases


def link_names() -> tuple[str, ...]:
    return tuple(sorted(_table()))


def load_link(name: str | float, profile: HardwareProfile, field: str = "link") -> Link:
    """The link called `name` between GPUs of a kind, or one of so many GB/s in each direction. Raises InputError."""
    key = str(name).strip().lower()
    row = _table().get(key)
    if row is None:
        try:
            gb_per_s = float(key)
        except ValueError:
            gb_per_s = math.nan
        if not 1e-3 <= gb_per_s <= 1e6:
            accepted = f"{', '.join(link_names())}, or GB/s in one direction from 0.001 to 1000000"
            raise InputError(f"`{field}` '{key}' is not known; accepted: {accepted}")
        by_hand = "bandwidth given by hand; latency as for ib-100g"
        return Link(f"{gb_per_s:g} GB/s", gb_per_s * GB, DEFAULT_LATENCY_S, by_hand)
    bandwidth, source = row.get("bandwidth_bytes_per_s"), row["source"]
    if bandwidth is None:
        both = getattr(profile, row["profile_key"])
        if both is None:
            others = ", ".join(n for n in link_names() if n != key)
            unknown = f"profile '{profile.name}' does not know {row['profile_key']}"
            raise InputError(f"`{field}` {key}: {unknown}; accepted: {others}, or GB/s")
        # Profiles give both directions together, as data sheets do; a link is one direction.
        bandwidth, source = (
            both / 2,
            f"bandwidth: half of {row['profile_key']} of profile {profile.name}; {source}",
        )
    more = row.get("host_s", 0.0), row.get("unhidden", 0.0), row.get("achieved", {})
    link_name = row["amd"] if profile.is_amd and "amd" in row else row.get("name", key)
    return Link(str(link_name), float(bandwidth), row["latency_s"], source, *more)


@dataclass(frozen=True)
class Cluster:
    """GPUs in nodes. Inside a node every GPU has a `link` of its own; between nodes it has a `network` port of its own,
    or shares one with its node where `shared_network`."""

    link: Link
    network: Link | None = None
    gpus_per_node: int | None = None
    shared_network: bool = False

    def route(self, source: int, target: int) -> tuple[Link, str, str]:
        """(link, port the message leaves by, port it arrives by)."""
        node, other = (gpu // (self.gpus_per_node or 1) for gpu in (source, target))
        if self.network is None or not self.gpus_per_node or node == other:
            return self.link, f"gpu{source}.out", f"gpu{target}.in"
        if self.shared_network:
            return self.network, f"node{node}.out", f"node{other}.in"
        return self.network, f"nic{source}.out", f"nic{target}.in"

    def every(self, stride: int) -> Cluster:
        """The cluster of every so many-th GPU, where `stride` divides a node."""
        return (
            self
            if self.gpus_per_node is None
            else replace(self, gpus_per_node=self.gpus_per_node // stride)
        )

    def ring(self, gpus: int) -> Link:
        """What a ring collective over all GPUs runs at: the slower of the link and, where the ring leaves a node, all
        of the node's network ports together (NCCL lays a ring through each)."""
        if self.network is None or not self.gpus_per_node or gpus <= self.gpus_per_node:
            return self.link
        # NCCL lays as many rings as a node has ports, each leaving by another one.
        ports = 1 if self.shared_network else self.gpus_per_node
        bandwidth = ports * self.network.bandwidth_bytes_per_s
        if bandwidth >= self.link.bandwidth_bytes_per_s:
            return replace(
                self.link, name="ring", latency_s=self.network.latency_s, source=self.network.source
            )
        return Link("ring", bandwidth, self.network.latency_s, self.network.source)


TIMED_GPUS = 2
"""GPUs of one host on which times of schedules were measured (h200x2_links.csv, h200x2_links_2.csv): 3 % off."""
BEYOND_TIMED = (0.88, 1.6)
"""How much longer schedules over more GPUs may take than predicted, at least and at most. ring-flash-attention's own
table of eight H800s and A100s (32 heads) is predicted within 4 % at the median, 0.88 to 1.08 times as long. Two of its
users (issues 18 and 55, 5 heads, H800 and A800) report 1.2 to 1.55 times as long; messages of 28 GB/s (`--link 28`), as
through the host's memory, would take the H800's times within 12 %. No row of these enters a time (published_ring.csv,
`python benchmarks/links.py --public`)."""


def longer_than_predicted(gpus: int) -> tuple[float, float]:
    """Least and most of a schedule's time over its prediction."""
    return BEYOND_TIMED if gpus > TIMED_GPUS else (1.0, 1.0)


def cluster(
    profile: HardwareProfile,
    link: str | float = "nvlink",
    network: str | float | None = None,
    gpus_per_node: int | None = None,
    *,
    shared_network: bool = False,
) -> Cluster:
    """A cluster of GPUs of one kind."""
    if (network is None) != (gpus_per_node is None):
        raise InputError("`network` and `gpus_per_node` go together; accepted: both or none")
    if gpus_per_node is not None and gpus_per_node < 1:
        raise InputError(f"`gpus_per_node` {gpus_per_node} is out of range; accepted: 1 or more")
    if shared_network and network is None:
        raise InputError("`shared_network` needs `network`; accepted: both or none")
    between = None if network is None else load_link(network, profile, "network")
    return Cluster(load_link(link, profile), between, gpus_per_node, shared_network)
