"""Around a whole model's run: the longest context that its GPU's memory has room for, and what tokens cost."""

from __future__ import annotations

from iosim.base.errors import InputError
from iosim.hardware.profile import load_profile
from iosim.problem.fields import MAX_TOKENS
from iosim.studies.models.layers import Model
from iosim.studies.requests import WholeRequest

MOST_DOLLARS = 1e6


def longest_context(model: Model, batch: int, dtype: str, free_bytes: int) -> int:
    """Tokens of context whose cache fits in `free_bytes` of a GPU's memory for `batch` sequences; 0 for none."""
    # Bisection: the cache grows with the context, and windows bend the curve.
    fitting, beyond = 0, MAX_TOKENS + 1
    while beyond - fitting > 1:
        middle = (fitting + beyond) // 2
        if model.cache_bytes(batch, middle, dtype) <= free_bytes:
            fitting = middle
        else:
            beyond = middle
    return fitting


def prices_of(request: WholeRequest) -> dict[str, float]:
    """Dollars per hour by GPU. Raises InputError: no number above 0, or no GPU that is asked about."""
    prices: dict[str, float] = {}
    names = {load_profile(gpu).name for gpu in request.gpu}
    for text in request.price or ():
        name, _, number = text.rpartition("=")
        try:
            dollars = float(number)
        except ValueError:
            dollars = 0.0
        if not name.strip() or not 0 < dollars < MOST_DOLLARS:
            raise InputError(
                f"`price` '{text}' is no price; accepted: dollars per hour, such as a100=1.5"
            )
        gpu = load_profile(name.strip()).name
        if gpu not in names:
            raise InputError(
                f"`price` {text}: {gpu} is not asked about; accepted: {', '.join(sorted(names))}"
            )
        prices[gpu] = dollars
    return prices
