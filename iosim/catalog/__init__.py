"""Real library kernels as data: tiles by architecture and head dimension, grid order, key direction, persistence."""

from iosim.catalog.loader import entry, entry_name, entry_names
from iosim.catalog.resolver import Overrides, resolve

__all__ = ["Overrides", "entry", "entry_name", "entry_names", "resolve"]
