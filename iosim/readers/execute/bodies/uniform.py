"""Bodies of `uniform` and `uniform_naive`: those of `flash` and `naive`, on one head with the values of all."""

from __future__ import annotations

from iosim.readers.execute.bodies import flash as _registers_flash  # noqa: F401
from iosim.readers.execute.bodies import naive as _registers_naive  # noqa: F401
from iosim.readers.execute.registry import share_bodies

share_bodies("uniform", "flash")
share_bodies("uniform_naive", "naive")
