"""Bodies of `flash_fp8`: `flash`'s on the fp8 copies, and the launches that make them. Storing in fp8 rounds."""

from __future__ import annotations

import numpy as np

from iosim.readers.execute.bodies.flash import Forward
from iosim.readers.execute.place import Place
from iosim.readers.execute.registry import body, share_bodies

share_bodies("flash_fp8", "flash")


@body("flash_fp8", "quantise_Q", "quantise_K", "quantise_V")
def quantise(at: Place) -> None:
    name = at.launch.name[-1]
    at.put("V_rows" if at.writes("V_rows") else f"{name}_fp8", at[name])


@body("flash_fp8", "transpose_V")
def transpose(at: Place) -> None:
    """The values; that they lie transposed in memory is not seen in rows and columns."""
    at.put("V_fp8", at["V_rows"])


@body("flash_fp8", "main", override=True)
class Fp8Forward(Forward):
    """`flash`'s forward on the copies."""

    def pair(self, at: Place) -> None:
        scores = np.where(at.kept, at["Q_fp8"] @ at["K_fp8"].T * at.scale, -np.inf)
        self.softmax.add(scores, at["V_fp8"], at.dropout_factor)
