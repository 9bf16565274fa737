"""What modules register under a name: doubles are refused, and names that are not there."""

from __future__ import annotations

import pytest

from iosim.base.errors import InputError
from iosim.base.registry import Registry


def test_a_name_that_is_taken_is_refused_unless_it_is_to_be_replaced() -> None:
    registry: Registry[str, int] = Registry("thing")
    registry.put("one", 1)
    with pytest.raises(InputError, match="thing 'one' is registered already"):
        registry.put("one", 2)
    assert registry.named("one") == 1
    registry.put("one", 2, override=True)
    assert registry.named("one") == 2


def test_an_unknown_name_is_refused_with_one_like_it() -> None:
    registry: Registry[str, int] = Registry("thing")
    registry.put("flash", 1)
    with pytest.raises(InputError, match="thing 'flsh' is not known; did you mean flash"):
        registry.named("flsh")
