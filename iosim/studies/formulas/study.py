"""A kernel's SM<->L2 bytes in closed form, described: in symbols or with numbers put in, and their limit.

Which sizes stay symbols is what a caller leaves out; the stand-ins for them decide the formula's conditions only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from iosim.base.errors import InputError
from iosim.hardware.profile import HardwareProfile, load_profile
from iosim.kernel.algorithms import algorithm_of, algorithms
from iosim.kernel.kernel import Kernel, Tile
from iosim.kernel.libraries import entry, entry_names, is_choice, resolve
from iosim.kernel.overrides import Overrides
from iosim.problem.asked import mask_of
from iosim.problem.attention import AttentionProblem
from iosim.problem.fields import LIST_MASKS
from iosim.studies.formulas.face import FormulaStudy
from iosim.studies.formulas.names import CHOICES, SIZES
from iosim.studies.formulas.names import SYMBOLS as GIVEN

if TYPE_CHECKING:
    from iosim.readers.formula.symbolic import Formula

DEFAULT_GPU = "a100"
STAND_IN_DTYPE = "fp16"
STAND_INS: dict[str, Any] = {"batch": 1, "heads": 32, "seq_q": 4096, "head_dim": 128}
"""Sizes at which a formula is derived where the user gives none; they decide its conditions only."""
LATENT_STAND_INS: dict[str, Any] = {"heads": 128, "head_dim": 576, "kv_heads": 1, "head_dim_v": 512}
"""The same for kernels that read one latent K/V: the sizes of DeepSeek-V3 (arXiv 2412.19437, section 4.2)."""


PAPER_SYMBOLS = {
    "M": "elements that the papers' fast memory holds: the shared memory that a CTA may use (--gpu puts it in numbers)",
    "s": "share of the mask's blocks that are kept",
}
"""Symbols of the papers' terms that no formula of bytes has."""


def _problem(asked: Mapping[str, Any]) -> AttentionProblem:
    """The problem at which the formula is derived: what was given, and stand-ins."""
    words = mask_of(asked)
    latent = _reads_latent(asked["name"])
    stand_ins = {"kv_heads": None, "head_dim_v": None} | STAND_INS | (LATENT_STAND_INS if latent else {})
    chosen: dict[str, Any] = {n: asked.get(n) for n in (*SIZES, *CHOICES)}
    chosen |= {n: value for n, value in stand_ins.items() if chosen[n] is None}
    if asked.get("heads") is None and asked.get("kv_heads") is not None:
        chosen["heads"] = 4 * asked["kv_heads"]
    dtype = asked.get("dtype") or _stand_in_dtype(asked["name"])
    return AttentionProblem(**chosen | words, dtype=dtype, latent_kv=latent)


def _stand_in_dtype(name: str) -> str:
    """fp16, or the first type that the algorithm or kernel takes where that is none of them."""
    if is_choice(name):
        return STAND_IN_DTYPE
    try:
        accepted = algorithm_of(name).dtypes if name in algorithms() else entry(name)["requires"]["dtypes"]
    except InputError:  # told where the kernel is looked up
        return STAND_IN_DTYPE
    return accepted[0] if accepted and STAND_IN_DTYPE not in accepted else STAND_IN_DTYPE


def _reads_latent(name: str) -> bool:
    """Whether an algorithm or kernel reads one latent K/V and nothing else."""
    if name in algorithms() and name not in entry_names():
        return False
    try:
        return bool(entry(name)["requires"].get("latent_only"))
    except InputError:  # told where the kernel is looked up
        return False


def _kernel(asked: Mapping[str, Any], problem: AttentionProblem) -> tuple[Kernel, bool]:
    """(the kernel, whether its tile is a choice rather than a symbol)."""
    name, splits = str(asked["name"]), asked.get("splits")
    tile = None if asked.get("tile") is None else Tile(*asked["tile"])
    if name in algorithms() and asked.get("gpu") is None:
        algorithm = algorithm_of(name)
        if splits is not None and (splits < 1 or not algorithm.splits):
            able = " and ".join(name for name in algorithms() if algorithm_of(name).splits)
            raise InputError(f"`splits` {splits}: not possible with algorithm {name}; {able} take 1 or more")
        return Kernel(name, name, tile or algorithm.example_tile, splits=splits or 1), tile is not None
    profile = _profile(asked.get("gpu") or DEFAULT_GPU)
    return resolve(name, problem, profile, Overrides(tile=asked.get("tile"), splits=splits)), True


def _profile(gpu: str | HardwareProfile) -> HardwareProfile:
    return gpu if isinstance(gpu, HardwareProfile) else load_profile(gpu)


def _given(asked: Mapping[str, Any], formula: Formula, tile: bool) -> dict[str, int]:
    """Symbols that have a number, by name: what the user gave, and the tile where it was given or chosen."""
    from iosim.readers.formula.block_sums import NAMES as SUMS

    names = {name for name in GIVEN if asked.get(name) is not None}
    if "seq_q" in names and ("seq_k" in names or asked.get("seq_k") is None):
        names |= {"seq", "seq_k"}
    if "heads" in names:
        names |= {"kv_heads", "group"}
    if asked.get("dtype") is not None:
        names |= {"element_bytes", "output_bytes"}
    if tile:
        names |= {"block_q", "block_k", "backward_block_q", "backward_block_k", "splits"}
        sums = {n for n in formula.values if n.removeprefix("backward_") in SUMS}
        names |= sums if asked.get("seq_q") is not None else set()
    return {name: value for name, value in formula.values.items() if name in names}


def _theta(problem: AttentionProblem, kernel: Kernel, formula: Formula) -> dict[str, Any]:
    """The leading term where blocks are as large as a fast memory of M elements allows, beside the paper's term."""
    import sympy as sp

    from iosim.readers.formula.limits import leading
    from iosim.readers.formula.symbolic import SYMBOLS, symbol
    from iosim.readers.formula.theory import bound, with_density

    kind = "standard" if algorithm_of(kernel.algorithm).standard else "flash"
    term = bound(kind if problem.forward else f"{kind}_backward")
    total = formula.total()
    if problem.mask in LIST_MASKS and kind == "flash":
        term, total = bound("block_sparse"), with_density(total, dict(formula.values))
    first = leading(total, formula.values)
    memory, d = sp.Symbol("M", positive=True), symbol("head_dim")
    blocks = {symbol(n): memory / (4 * d) for n in SYMBOLS if "block_" in n}
    theta = leading(term.expression())
    if "seq" not in formula.values:
        theta = theta.subs(symbol("seq") ** 2, symbol("seq_q") * symbol("seq_k"))
    heads = symbol("heads") if "heads" in formula.values else symbol("group") * symbol("kv_heads")
    element = (
        sp.Integer(formula.fixed["element_bytes"]) if "element_bytes" in formula.fixed else symbol("element_bytes")
    )
    ratio = sp.simplify(first.subs(blocks) / (symbol("batch") * heads * element * theta))
    ratio = sp.factor_terms(sp.expand(ratio))
    return {"leading": first, "term": term, "ratio": ratio, "blocks": "M/(4*d)", "tiled": kind == "flash"}


class _Writer:
    """Writes formulas with the given numbers put in and the numbers of blocks under names of their own."""

    def __init__(self, formula: Formula, numbers_by_name: dict[str, int]) -> None:
        import sympy as sp

        from iosim.readers.formula.symbolic import symbol

        self.numbers = {symbol(name): value for name, value in numbers_by_name.items()}
        self.blocks: dict[Any, tuple[Any, str]] = {}
        for axis, what in (("q", "query"), ("k", "key")):
            rows = "seq" if "seq" in formula.values else f"seq_{axis}"
            count = sp.ceiling(symbol(rows) / symbol(f"block_{axis}")).subs(self.numbers)
            if not count.is_Integer:
                self.blocks[count] = sp.Symbol(f"n_{axis}", integer=True), f"{what} blocks, {self.text(count)}"
        self.used: set[Any] = set()

    def _put(self, expression: Any) -> Any:
        replaced = expression.subs(self.numbers).subs({count: name for count, (name, _) in self.blocks.items()})
        self.used |= replaced.free_symbols
        return replaced

    @staticmethod
    def text(expression: Any) -> str:
        return str(expression).replace("ceiling(", "ceil(").replace("**", "^")

    def formula(self, expression: Any) -> dict[str, str]:
        import sympy as sp

        replaced = self._put(expression)
        return {"text": self.text(replaced), "latex": str(sp.latex(replaced))}

    def entry(self, expression: Any) -> dict[str, Any]:
        """A formula with its number, None where a symbol is left."""
        number = expression.subs(self.numbers)
        return {**self.formula(expression), "bytes": int(number) if number.is_Integer else None}

    def condition(self, relation: Any) -> str:
        import sympy as sp

        sign = {sp.Eq: "=", sp.Ne: "!="}.get(type(relation))
        if sign is None:
            return self.text(relation)
        left = relation.lhs
        shown = f"{left.args[0]} mod {left.args[1]}" if isinstance(left, sp.Mod) else self.text(left)
        return f"{shown} {sign} {self.text(relation.rhs)}"


def describe(asked: Mapping[str, Any]) -> FormulaStudy:
    """The formula of an algorithm or kernel, and what is to be said of it. Raises InputError: an unknown name, or
    values that make no sense.

    Args:
        asked: "name", and what is known of the problem's fields, of "tile", "splits" and "gpu"; the rest stay symbols.
    """
    from iosim.readers.formula.symbolic import SYMBOLS, derive, symbol

    problem = _problem(asked)
    kernel, chosen = _kernel(asked, problem)
    formula = derive(problem, kernel)
    put_in = _given(asked, formula, chosen)
    limit = _theta(problem, kernel, formula)
    write = _Writer(formula, put_in)
    rows = [
        {"launch": r.launch, "tensor": r.tensor, "direction": r.direction, **write.entry(r.bytes)}
        for r in formula.traffic
    ]
    totals = {way: write.entry(formula.total(way)) for way in ("read", "write")}
    names: list[dict[str, Any]] = [{"symbol": str(name), "meaning": text, "value": None}
             for name, text in write.blocks.values() if name in write.used]  # fmt: skip
    occurring = set().union(*(r.bytes.free_symbols for r in formula.traffic)) | limit["leading"].free_symbols
    names += [
        {"symbol": SYMBOLS[n][0], "meaning": SYMBOLS[n][1], "value": put_in.get(n, formula.fixed.get(n))}
        for n in SYMBOLS if n in formula.values and (symbol(n) in occurring or n in formula.fixed)
    ]  # fmt: skip
    names += [{"symbol": s, "meaning": text, "value": None} for s, text in PAPER_SYMBOLS.items()
              if s in limit["term"].text or s in write.text(limit["leading"])]  # fmt: skip
    description = {
        "kernel": kernel.name, "algorithm": kernel.algorithm, "level": "l2", "mask": problem.mask,
        "pass": problem.passes, "traffic": rows, "totals": totals,
        "leading": {"text": write.text(limit["leading"]), "latex": _latex(limit["leading"])},
        "theta": {
            "source": limit["term"].source, "text": limit["term"].text, "latex": limit["term"].latex,
            "blocks": limit["blocks"] if limit["tiled"] else None,
            "ratio": {"text": write.text(limit["ratio"]), "latex": _latex(limit["ratio"])},
        },
        "symbols": names,
        "why": _why(asked, problem, kernel, formula),
        "sparse": _beside(problem, kernel, [t["bytes"] for t in totals.values()]),
        "conditions": [write.condition(c) for c in formula.substitute(put_in).conditions],
    }  # fmt: skip
    return FormulaStudy(formula, description)


def _why(
    asked: Mapping[str, Any], problem: AttentionProblem, kernel: Kernel, formula: Formula
) -> dict[str, Any] | None:
    """Where the leading term comes from, in numbers for a GPU; None where none was named."""
    from iosim.readers.formula.theory import why

    gpu = asked.get("gpu")
    return None if gpu is None else why(problem, kernel, _profile(gpu), formula.numbers().total("l2"))


def _beside(problem: AttentionProblem, kernel: Kernel, moved: list[int | None]) -> dict[str, Any] | None:
    """The paper's term in numbers beside the count, for a list of blocks with every size given."""
    from iosim.readers.formula.theory import beside

    known = [n for n in moved if n is not None]
    if problem.mask not in LIST_MASKS or len(known) < len(moved):
        return None
    return beside(problem, kernel, sum(known))


def _latex(expression: Any) -> str:
    import sympy as sp

    return str(sp.latex(expression))
