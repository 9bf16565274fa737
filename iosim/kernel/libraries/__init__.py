"""Real library kernels as data: tiles by architecture and head dimension, grid order, key direction, persistence."""

from iosim.kernel.libraries.loader import entry, entry_name, entry_names
from iosim.kernel.libraries.resolver import resolve
from iosim.kernel.overrides import Overrides

__all__ = ["Overrides", "entry", "entry_name", "entry_names", "resolve"]
