"""Tools that read machine code: where none is, one line says which."""

from __future__ import annotations

import pytest

from iosim.base.errors import InputError
from iosim.code import tools


def test_where_no_tool_is_one_line_says_which(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tools, "candidates", lambda _: iter(()))
    with pytest.raises(
        InputError, match=r"nvdisasm is not found.*Triton wheel.*NVDISASM"
    ) as refused:
        tools.disassembled(b"")
    assert "\n" not in str(refused.value)
