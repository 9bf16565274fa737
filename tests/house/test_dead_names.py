"""Every name of the package is reached: by its files, a script or a kernel file. What tests alone reach is not."""

from __future__ import annotations

import ast
import re

import pytest
from scripts import ROOT

vulture = pytest.importorskip("vulture")

READ = ("iosim", "benchmarks", "experiments", "docs", "examples")
DATA = ("iosim/**/*.toml", "iosim/**/*.json", "iosim/**/*.html", "hardware_profiles/*.toml")
REGISTERED = [
    "@register_traffic_formula",
    "@algorithm",
    "@arithmetic",
    "@chooses",
    "@command",
    "@each_of",
    "@rule_book",
]
"""Decorators that put what they decorate into a table, where its name is not needed any more."""
OTHERS_CALL = {
    "_check_value": "argparse",
    "format_usage": "argparse",
    "showwarning": "warnings",
    "_latex": "SymPy",
    "supports_higher_order_operators": "torch",
    "_should_skip_dynamo": "torch",
    "get_identifier": "Nsight Compute",
    "get_name": "Nsight Compute",
    "get_description": "Nsight Compute",
    "get_section_identifier": "Nsight Compute",
    "globals": "jinja2",
    **dict.fromkeys(("do_GET", "log_message", "daemon_threads"), "http.server"),
    "instance": "a descriptor's parameter",
    "changed_ns": "part of a cache's key",
    "dilation": "an operator's parameter",
    "output_padding": "an operator's parameter",
    "bias_sizes": "an operator's parameter",
    **dict.fromkeys(
        (
            "warps_per_sm",
            "limit_shared_memory",
            "shared_memory_per_cta_bytes",
            "shared_memory_carveout_bytes",
        ),
        "whoever asks what fits on an SM: a field of Occupancy",
    ),
    "bytes_per_index": "whoever looks into a trace: a field of LaunchTrace",
    "save_block_mask": "whoever has a mask of their own: docs/how-to-add.md",
}
"""Name -> who calls or passes it."""
PATHS = re.compile(r"[a-z0-9_A-Z]+(=[a-z0-9_.]+)?( [a-z0-9_A-Z]+(=[a-z0-9_.]+)?)*")
"""What `iosim.base.records.plain` is asked for: keys, and paths of values."""
OF_C = "readers/replay/"
"""Fields of structures that the engine, in C, reads."""


def words_of_data() -> set[str]:
    """Words of data files and of short texts in code: what is found by its name."""
    words_found: set[str] = set()
    for pattern in DATA:
        for path in ROOT.glob(pattern):
            words_found.update(re.findall(r"\w+", path.read_text(encoding="utf-8")))
    for path in (ROOT / "iosim").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
            if is_text and (len(node.value) < 60 or PATHS.fullmatch(node.value)):
                words_found.update(re.findall(r"\w+", node.value))
    return words_found


@pytest.mark.slow
def test_every_name_is_reached() -> None:
    checker = vulture.Vulture(ignore_names=["__*"], ignore_decorators=REGISTERED)
    checker.scavenge([str(ROOT / folder) for folder in READ])
    engine = "".join(p.read_text(encoding="utf-8") for p in (ROOT / "iosim" / OF_C).glob("*.[ch]"))
    known = words_of_data() | set(re.findall(r"\w+", engine))
    known.update(OTHERS_CALL)
    unreached = [
        u
        for u in checker.get_unused_code(min_confidence=60)
        if u.filename.is_relative_to(ROOT / "iosim")
    ]
    assert "\n".join(u.get_report() for u in unreached if u.name not in known) == ""
