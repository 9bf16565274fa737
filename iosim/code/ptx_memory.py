"""What loads, stores and copies of many CTAs touch: accesses of the trace, CTAs whose lanes lie alike together.

Numbers that lie in memory are known where the launch gives them, such as lengths or a page table.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from iosim.code.ptx import Instruction
from iosim.code.ptx_lanes import ALL, Lanes
from iosim.code.ptx_operations import kind_of
from iosim.code.ptx_trace import Access
from iosim.code.ptx_values import Array, Split, Value, number, plus, shrunk, whole, wrapped
from iosim.code.ptx_words import ADDRESS, width_of

LOADED_ADDRESS = "an address that was loaded, of which no values are given"


class MemoryLanes(Lanes):
    """Lanes that load and store."""

    # ---- memory ----

    def _memory(self, at: int, instruction: Instruction, mask: Array) -> None:
        if instruction.name == "ld" and "param" in instruction.opcode:
            self._parameter(instruction, mask)
            return
        if instruction.name == "st" and "param" in instruction.opcode:
            return
        if instruction.name == "cp":
            self._copy(at, instruction, mask)
            return
        address = self._address(
            instruction.operands[0 if instruction.name in ("st", "red", "stmatrix") else 1]
        )
        self.touch(at, address, mask, width_of(instruction))
        if instruction.name in ("ld", "ldu", "atom", "ldmatrix"):
            first = instruction.operands[0]
            for name in first if isinstance(first, tuple) else (first,):
                self._set(
                    name, self._loaded(instruction, address, mask), mask, bool(instruction.guard)
                )

    def _parameter(self, instruction: Instruction, mask: Array) -> None:
        match = ADDRESS.fullmatch(str(instruction.operands[1]))
        name = (
            ""
            if match is None
            else match[1] + (f"+{int(match[2], 0)}" if match[2] and int(match[2], 0) else "")
        )
        value = self.settings.values.get(name)
        first = instruction.operands[0]
        for register in first if isinstance(first, tuple) else (first,):
            known = (
                None if value is None else number(wrapped(value, kind_of(instruction.opcode).bits))
            )
            self._set(register, known, mask, bool(instruction.guard))

    def _address(self, operand: Any) -> Value:
        match = ADDRESS.fullmatch(str(operand))
        if match is None:
            return None
        base = self._get(match[1])
        if base is None or not match[2]:
            return base
        return plus(base, number(int(match[2], 0)))

    def _loaded(self, instruction: Instruction, address: Value, mask: Array) -> Value:
        """What lies at an address, where the numbers there are given."""
        if address is None or isinstance(instruction.operands[0], tuple):
            return None
        dense = whole(address)
        for base, array, size in self.settings.memory:
            # Only where all active lanes lie in what is given: a part of them would make up numbers.
            inside = (dense >= base) & (dense < base + array.size * size)
            if bool((inside | ~mask).all()):
                place = np.clip((dense - base) // size, 0, array.size - 1)
                numbers: Array = array[place].astype(np.int64)
                return numbers
        return None

    def _copy(self, at: int, instruction: Instruction, mask: Array) -> None:
        """cp.async of 4 to 16 bytes a lane, or a bulk copy by one lane, with or without a tensor's map."""
        if "bulk" in instruction.opcode:
            self._bulk(at, instruction, mask)
            return
        if "global" not in instruction.opcode:  # cp.async.commit_group and its like
            return
        size = self._get(instruction.operands[2])
        width = 16 if size is None else int(whole(size).max())
        self.touch(at, self._address(instruction.operands[0]), mask, width, half=1)
        is_made = mask
        if (
            len(instruction.operands) > 3
            and (source := self._get(instruction.operands[3])) is not None
        ):
            is_made = shrunk(mask & (whole(source) > 0))
        if is_made.any():
            self.touch(at, self._address(instruction.operands[1]), is_made, width)

    def _bulk(self, at: int, instruction: Instruction, mask: Array) -> None:
        if "tensor" in instruction.opcode:
            self._note(
                "copies by tensor maps (TMA) are not counted: their tensors are described outside the code"
            )
            return
        if (
            "global" not in instruction.opcode
            or "prefetch" in instruction.opcode
            or len(instruction.operands) < 3
        ):
            return
        size = self._get(instruction.operands[2])
        # Words name the places as operands do: where it goes to first, then where it comes from.
        places = [part for part in instruction.opcode if part.startswith(("global", "shared"))]
        place = instruction.operands[places.index("global")]
        if size is None:
            self._note("a bulk copy of a size that was loaded")
            return
        self.touch(at, self._address(place), mask, int(whole(size).max()))

    def touch(self, at: int, address: Value, mask: Array, width: int, half: int = 0) -> None:
        """Add an access to the trace. `half`: the shared side of a copy that has a global one, too."""
        site = 2 * at + half
        if address is None:
            self._note(f"{LOADED_ADDRESS} ({self.entry.instructions[at].text})")
            ctas = np.flatnonzero(np.broadcast_to(mask.any(axis=1), (self.ctas,)))
            self.trace.nodes.append(Access(site, ctas, np.zeros(ctas.size, dtype=np.int64), None))
            return
        # A table of CTAs x lanes is told apart row by row; else CTAs differ by a number alone, and one
        # pattern of lanes is all of theirs.
        dense = (not isinstance(address, Split) and min(address.shape) > 1) or min(mask.shape) > 1
        if dense:
            self._touch_rows(site, whole(address), mask, width)
            return
        lane = (
            address.lane
            if isinstance(address, Split)
            else address
            if address.shape[0] == 1
            else None
        )
        cta = (
            address.cta
            if isinstance(address, Split)
            else address
            if address.shape[1] == 1
            else None
        )
        lanes = np.broadcast_to(
            np.zeros(1, dtype=np.int64) if lane is None else lane[0], (self.lanes,)
        )
        active = np.broadcast_to(mask[0] if mask.shape[0] == 1 else ALL[0], (self.lanes,))
        ctas = np.arange(self.ctas) if mask.shape[0] == 1 else np.flatnonzero(mask[:, 0])
        first = int(lanes[active][0])
        base = (
            np.zeros(self.ctas, dtype=np.int64)
            if cta is None or cta is lane
            else np.broadcast_to(cta[:, 0], (self.ctas,))
        )
        pattern = self.trace.patterns.number(lanes - first, active, width)
        self.trace.nodes.append(Access(site, ctas, base[ctas] + first, pattern))

    def _touch_rows(self, site: int, address: Array, mask: Array, width: int) -> None:
        """An access whose lanes lie otherwise in some CTAs: those that lie alike together."""
        shape = (self.ctas, self.lanes)
        address, active = np.broadcast_to(address, shape), np.broadcast_to(mask, shape)
        ctas = np.flatnonzero(active.any(axis=1))
        address, active = address[ctas], active[ctas]
        first = address[np.arange(ctas.size), active.argmax(axis=1)]
        offset = np.where(active, address - first[:, None], 0)
        # Rows are compared by one random sum each: np.unique over rows sorts far longer.
        keys = np.concatenate([offset, active], axis=1)
        weights = _weights(keys.shape[1])
        _, index, which = np.unique(
            (keys * weights).sum(axis=1), return_index=True, return_inverse=True
        )
        for number_of, row in enumerate(index):
            those = np.flatnonzero(which.reshape(-1) == number_of)
            pattern = self.trace.patterns.number(offset[row], active[row], width)
            self.trace.nodes.append(Access(site, ctas[those], first[those], pattern))


def _weights(count: int) -> Array:
    rng = np.random.default_rng(7)
    return rng.integers(1, 1 << 62, count, dtype=np.int64) | 1
