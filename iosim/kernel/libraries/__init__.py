"""Real library kernels: tables of tiles as data, and a rule book a library for what it decides at launch."""

from iosim.kernel.libraries import (
    cudnn,
    cutlass,
    default,
    eager,
    fa2,
    fa3,
    flash1,
    flash_sm90,
    flashinfer,
    flashmla,
    sdpa,
    tiled,
    triton,
    uniform,
    varlen,
)
from iosim.kernel.libraries.choice import choice_names, is_choice
from iosim.kernel.libraries.default import default_kernel
from iosim.kernel.libraries.loader import check_file, entry, entry_name, entry_names
from iosim.kernel.libraries.resolver import resolve, split_alike
from iosim.kernel.libraries.rules import Rules, rule_book, rule_books
from iosim.kernel.overrides import Overrides

__all__ = [
    "Overrides",
    "Rules",
    "check_file",
    "choice_names",
    "cudnn",
    "cutlass",
    "default",
    "default_kernel",
    "eager",
    "entry",
    "entry_name",
    "entry_names",
    "fa2",
    "fa3",
    "flash1",
    "flash_sm90",
    "flashinfer",
    "flashmla",
    "is_choice",
    "resolve",
    "rule_book",
    "rule_books",
    "sdpa",
    "split_alike",
    "tiled",
    "triton",
    "uniform",
    "varlen",
]
