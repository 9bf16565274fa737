"""Real library kernels: tables of tiles as data, and a rule book a library for what it decides at launch."""

from iosim.catalog.libraries import sdpa  # noqa: F401 - registers itself
from iosim.catalog.libraries.default import default_kernel, with_sinks
from iosim.catalog.libraries.loader import (
    check_file,
    choice_names,
    entry,
    entry_name,
    entry_names,
    in_model,
    is_choice,
)
from iosim.catalog.libraries.resolver import resolve, split_alike
from iosim.catalog.libraries.rules import rule_books
from iosim.catalog.libraries.support import runs_on_gpu
from iosim.kernel.overrides import Overrides

__all__ = [
    "Overrides",
    "check_file",
    "choice_names",
    "default_kernel",
    "entry",
    "entry_name",
    "entry_names",
    "in_model",
    "is_choice",
    "resolve",
    "rule_books",
    "runs_on_gpu",
    "split_alike",
    "with_sinks",
]
