"""Listings of nvdisasm and cuobjdump: read as the code that they were written from."""

from __future__ import annotations

from pathlib import Path

import pytest
from machine_code import LISTING, built, only, tool_or_skip

from iosim.code import tools
from iosim.code.listing import Control, read_listing
from iosim.code.module import read_module


def test_a_listing_is_read_as_the_code_that_it_was_written_from(tmp_path: Path) -> None:
    tool_or_skip()
    function = only(read_module(built(tmp_path, "-cubin")))
    file = tmp_path / "column.sass"
    file.write_text(function.listing, encoding="utf-8")
    again = only(read_module(file))
    assert again.instructions == function.instructions
    assert again.head == function.head


def test_a_listing_needs_no_tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tools, "candidates", lambda _: iter(()))
    file = tmp_path / "loop.sass"
    file.write_text(LISTING, encoding="utf-8")
    function = read_module(file).function()
    assert (function.cc, function.registers, function.frame_bytes, function.threads) == (
        90,
        24,
        8,
        128,
    )
    load, add, back = function.instructions[1:4]
    assert (load.kind, load.modifiers, load.source) == ("LDG", ("E",), ("a.cu", 3))
    assert (load.ptx_line, add.ptx_line) == (57, None)
    assert load.control == Control(stall=2, sets=2, frees=None, waits=0)
    assert add.control.waits == 1 << 2
    assert (back.predicate, back.target) == ("!P0", 0x10)


def test_control_words_are_read_as_written() -> None:
    control = Control(stall=13, sets=3, frees=None, waits=0b101)
    assert Control.of(control.word) == control


def test_blackwells_listing_has_no_semicolons() -> None:
    line = "        /*0160*/      LDG.E R5, desc[UR8][R4.64]        &wr=0x2          ?trans1;"
    (instruction,) = read_listing(line)
    assert (instruction.opcode, instruction.operands) == ("LDG.E", ("R5", "desc[UR8][R4.64]"))
