"""A kernel's SM<->L2 bytes in closed form, described: in symbols or with numbers put in, and their limit.

Which sizes stay symbols is what a caller leaves out; the stand-ins for them decide the formula's conditions only.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iosim.base.errors import InputError
from iosim.base.records import dataclass, plain
from iosim.base.units import bytes_text, number_text, times_of
from iosim.catalog.algorithms import algorithm_of, algorithms
from iosim.catalog.libraries import entry, is_choice, resolve
from iosim.hardware.profile import load_profile
from iosim.kernel.kernel import Kernel, Tile
from iosim.kernel.overrides import Overrides
from iosim.prediction.confidence import in_dtype
from iosim.prediction.predictor import predict
from iosim.problem.asked import mask_of
from iosim.problem.attention import AttentionProblem
from iosim.problem.fields import LIST_MASKS
from iosim.readers.formula.theory import LEVELS, LevelBound, explanation, level_bounds
from iosim.show.shown import Part, Shown
from iosim.show.tables import Column, Table
from iosim.show.template import filled
from iosim.studies.requests import CHOICES, SIZES
from iosim.studies.requests import SYMBOLS as GIVEN

if TYPE_CHECKING:
    from iosim.readers.formula.symbolic import Formula

DEFAULT_GPU = "a100"
STAND_IN_DTYPE = "fp16"
STAND_INS: dict[str, Any] = {"batch": 1, "heads": 32, "seq_q": 4096, "head_dim": 128}
"""Sizes at which a formula is derived where the user gives none; they decide its conditions only."""
LATENT_STAND_INS: dict[str, Any] = {"heads": 128, "head_dim": 576, "kv_heads": 1, "head_dim_v": 512}
"""Stand-ins for kernels that read one latent K/V: the sizes of DeepSeek-V3 (arXiv 2412.19437, section 4.2)."""


PAPER_SYMBOLS = {
    "M": "elements that the papers' fast memory holds: the shared memory that a CTA may use (--gpu puts it in numbers)",
    "s": "share of the mask's blocks that are kept",
}
"""Symbols of the papers' terms that no formula of bytes has."""


def _problem(options: Mapping[str, Any]) -> AttentionProblem:
    needs, example = _needs(options["name"])
    options = example | {name: value for name, value in options.items() if value is not None}
    words = mask_of(options)
    latent, dtypes = bool(needs.get("latent_only")), needs.get("dtypes") or [STAND_IN_DTYPE]
    # Stand-ins fill what was not given; kernels over one latent K/V need sizes that fit them.
    stand_ins = (
        {"kv_heads": None, "head_dim_v": None} | STAND_INS | (LATENT_STAND_INS if latent else {})
    )
    chosen: dict[str, Any] = {n: options.get(n) for n in (*SIZES, *CHOICES)}
    chosen |= {n: value for n, value in stand_ins.items() if chosen[n] is None}
    # Key/value heads alone: a group of four, so that the formula keeps grouped heads apart.
    if options.get("heads") is None and options.get("kv_heads") is not None:
        chosen["heads"] = 4 * options["kv_heads"]
    dtype = options.get("dtype") or (STAND_IN_DTYPE if STAND_IN_DTYPE in dtypes else dtypes[0])
    return AttentionProblem(**example | chosen | words, dtype=dtype, latent_kv=latent)


def _needs(name: str) -> tuple[Mapping[str, Any], dict[str, Any]]:
    """What an algorithm or kernel requires of a problem, and an example; names that are not known are refused later."""
    try:
        kernel_entry = {} if is_choice(name) else entry(name)
    except InputError:  # told where the kernel is looked up
        kernel_entry = {}
    of_algorithm = {"dtypes": algorithm_of(name).dtypes} if name in algorithms() else {}
    return {**kernel_entry.get("requires", {}), **of_algorithm}, dict(
        kernel_entry.get("example", {})
    )


def _kernel(options: Mapping[str, Any], problem: AttentionProblem) -> tuple[Kernel, bool]:
    name, splits = str(options["name"]), options.get("splits")
    tile = None if options.get("tile") is None else Tile(*options["tile"])
    # An algorithm has no GPU and no library: its tile stays a symbol unless it is given.
    if name in algorithms() and options.get("gpu") is None:
        algorithm = algorithm_of(name)
        if splits is not None and (splits < 1 or not algorithm.splits):
            able = " and ".join(name for name in algorithms() if algorithm_of(name).splits)
            raise InputError(
                f"`splits` {splits}: not possible with algorithm {name}; {able} take 1 or more"
            )
        return Kernel(
            name, name, tile or algorithm.example_tile, splits=splits or 1
        ), tile is not None
    profile = load_profile(options.get("gpu") or DEFAULT_GPU)
    return resolve(name, problem, profile, Overrides(tile=options.get("tile"), splits=splits)), True


def _given(options: Mapping[str, Any], formula: Formula, tile: bool) -> dict[str, int]:
    """Symbols that have a number, by name: what the user gave, and the tile where it was given or chosen."""
    from iosim.readers.formula.sums import NAMES as SUMS

    names = {name for name in GIVEN if options.get(name) is not None}
    if "seq_q" in names and ("seq_k" in names or options.get("seq_k") is None):
        # Query tokens alone mean as many keys: the formula then has one symbol for both.
        names |= {"seq", "seq_k"}
    if "heads" in names:
        names |= {"kv_heads", "group"}
    if options.get("dtype") is not None:
        names |= {"element_bytes", "output_bytes"}
    if tile:
        names |= {"block_q", "block_k", "backward_block_q", "backward_block_k", "splits"}
        sums = {n for n in formula.values if n.removeprefix("backward_") in SUMS}
        names |= sums if options.get("seq_q") is not None else set()
    return {name: value for name, value in formula.values.items() if name in names}


def _theta(problem: AttentionProblem, kernel: Kernel, formula: Formula) -> dict[str, Any]:
    """The leading term where blocks are as large as a fast memory of M elements allows, beside the paper's term."""
    import sympy as sp

    from iosim.readers.formula.symbolic import SYMBOLS, leading, symbol
    from iosim.readers.formula.theory import bound, with_density

    kind = "standard" if algorithm_of(kernel.algorithm).standard else "flash"
    term = bound(kind if problem.forward else f"{kind}_backward")
    total = formula.total()
    # Lists of blocks enter through the share s of blocks kept, as in the papers' block-sparse term.
    if problem.mask in LIST_MASKS and kind == "flash":
        term, total = bound("block_sparse"), with_density(total, dict(formula.values))
    first = leading(total, formula.values)
    memory, d = sp.Symbol("M", positive=True), symbol("head_dim")
    # The papers' block sizes: Q, K, V and O blocks of M / 4d rows fill a fast memory of M elements.
    blocks = {symbol(n): memory / (4 * d) for n in SYMBOLS if "block_" in n}
    theta = leading(term.expression())
    if "seq" not in formula.values:
        theta = theta.subs(symbol("seq") ** 2, symbol("seq_q") * symbol("seq_k"))
    heads = symbol("heads") if "heads" in formula.values else symbol("group") * symbol("kv_heads")
    element = (
        sp.Integer(formula.fixed["element_bytes"])
        if "element_bytes" in formula.fixed
        else symbol("element_bytes")
    )
    # Bytes over (batch x heads x bytes of an element) are elements per head, the papers' unit.
    ratio = sp.simplify(first.subs(blocks) / (symbol("batch") * heads * element * theta))
    ratio = sp.factor_terms(sp.expand(ratio))
    return {
        "leading": first,
        "term": term,
        "ratio": ratio,
        "blocks": "M/(4*d)",
        "tiled": kind == "flash",
    }


class _Writer:
    """Writes formulas with the given numbers put in and the numbers of blocks under names of their own."""

    def __init__(self, formula: Formula, numbers_by_name: dict[str, int]) -> None:
        import sympy as sp

        from iosim.readers.formula.symbolic import symbol

        self.numbers = {symbol(name): value for name, value in numbers_by_name.items()}
        self.blocks: dict[Any, tuple[Any, str]] = {}
        for axis, axis_word in (("q", "query"), ("k", "key")):
            rows = "seq" if "seq" in formula.values else f"seq_{axis}"
            # ceil(N / B) is written once under a name, n_q or n_k, where it is not a number.
            count = sp.ceiling(symbol(rows) / symbol(f"block_{axis}")).subs(self.numbers)
            if not count.is_Integer:
                self.blocks[count] = (
                    sp.Symbol(f"n_{axis}", integer=True),
                    f"{axis_word} blocks, {self.text(count)}",
                )
        self.used: set[Any] = set()

    @staticmethod
    def text(expression: Any) -> str:
        return str(expression).replace("ceiling(", "ceil(").replace("**", "^")

    def formula(self, expression: Any) -> dict[str, str]:
        import sympy as sp

        replaced = expression.subs(self.numbers).subs(
            {count: name for count, (name, _) in self.blocks.items()}
        )
        self.used |= replaced.free_symbols
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
        side = relation.lhs
        side_text = (
            f"{side.args[0]} mod {side.args[1]}" if isinstance(side, sp.Mod) else self.text(side)
        )
        return f"{side_text} {sign} {self.text(relation.rhs)}"


def describe(options: Mapping[str, Any]) -> FormulaStudy:
    import sympy as sp

    from iosim.readers.formula.symbolic import derive
    from iosim.readers.formula.theory import beside, why

    problem, gpu = _problem(options), options.get("gpu")
    kernel, chosen = _kernel(options, problem)
    formula = derive(problem, kernel)
    put_in = _given(options, formula, chosen)
    limit = _theta(problem, kernel, formula)
    write = _Writer(formula, put_in)
    rows = [
        {"launch": r.launch, "tensor": r.tensor, "direction": r.direction, **write.entry(r.bytes)}
        for r in formula.traffic
    ]
    totals = {way: write.entry(formula.total(way)) for way in ("read", "write")}
    names = _symbols(formula, limit, put_in, write)
    bytes_by_way = [total["bytes"] for total in totals.values()]
    # Beside dense: only with all sizes known are there bytes to compare.
    counted = problem.mask in LIST_MASKS and None not in bytes_by_way

    def written(expression: Any) -> dict[str, str]:
        return {"text": write.text(expression), "latex": str(sp.latex(expression))}

    description = {
        "kernel": kernel.name,
        "algorithm": kernel.algorithm,
        "level": "l2",
        "mask": problem.mask,
        "pass": problem.passes,
        "traffic": rows,
        "totals": totals,
        "leading": written(limit["leading"]),
        "theta": plain(
            source=limit["term"].source, text=limit["term"].text, latex=limit["term"].latex
        )
        | {"blocks": limit["blocks"] if limit["tiled"] else None, "ratio": written(limit["ratio"])},
        "symbols": names,
        "why": None
        if gpu is None
        else why(problem, kernel, load_profile(gpu), formula.numbers().total("l2")),
        "sparse": beside(problem, kernel, sum(bytes_by_way)) if counted else None,
        "conditions": [write.condition(c) for c in formula.substitute(put_in).conditions],
    }
    return FormulaStudy(formula, description)


def _symbols(
    formula: Formula, limit: dict[str, Any], put_in: dict[str, int], write: _Writer
) -> list[dict[str, str | int | None]]:
    """The symbols of a formula with their meanings and values."""
    from iosim.readers.formula.symbolic import SYMBOLS, symbol

    listed: list[tuple[str, str, int | None]] = [
        (str(n), text, None) for n, text in write.blocks.values() if n in write.used
    ]
    # Symbols are explained only where they occur; numbers that were fixed are shown all the same.
    occurring = (
        set().union(*(r.bytes.free_symbols for r in formula.traffic))
        | limit["leading"].free_symbols
    )
    explained = (
        n for n in SYMBOLS if n in formula.values and (symbol(n) in occurring or n in formula.fixed)
    )
    listed += [(*SYMBOLS[n], put_in.get(n, formula.fixed.get(n))) for n in explained]
    written_down = limit["term"].text, write.text(limit["leading"])
    listed += [
        (s, text, None)
        for s, text in PAPER_SYMBOLS.items()
        if any(s in item for item in written_down)
    ]
    return [dict(zip(("symbol", "meaning", "value"), item, strict=True)) for item in listed]


COLUMNS = (
    Column("launch"),
    Column("tensor"),
    Column("direction"),
    Column("formula"),
    Column("bytes", kind="count"),
)


@dataclass(frozen=True, repr=False)
class FormulaStudy(Shown):
    """A formula and what is to be said of it."""

    formula: Formula
    """The SymPy expressions, by launch, tensor and direction, in bytes."""
    description: Mapping[str, Any]
    """The command line's `formula` object: rows, totals, the leading term, the limit, symbols and conditions."""

    def to_dict(self) -> dict[str, Any]:
        return dict(self.description)

    def records(self) -> list[dict[str, Any]]:
        """The rows: launch, tensor, direction, the formula as text and LaTeX, and its bytes."""
        return list(self.description["traffic"])

    @property
    def latex(self) -> str:
        """The bytes read and written, as LaTeX."""
        return " + ".join(self.description["totals"][way]["latex"] for way in ("read", "write"))

    def to_text(self) -> str:
        return f"{formula_answer(self.description)}\n\n{formula_text(self.description, 'text')}"

    def _line(self) -> str:
        d = self.description
        return f"{d['kernel']}, {d['pass']}, mask {d['mask']}: SM<->L2 bytes, leading term {d['leading']['text']}"

    def _parts(self) -> list[Part]:
        d = self.description
        rows = [{**row, "formula": row["text"]} for row in _rows(d, "all launches")]
        return [
            formula_answer(d),
            _title(d),
            Table.of(rows, COLUMNS),
            f"leading term: {d['leading']['text']}",
            _limit_text(d, "text"),
            tuple(d["why"]["text"].splitlines()) if d["why"] else (),
            tuple(map(_told, d["symbols"])),
        ]


def _told(symbol: Mapping[str, Any]) -> str:
    number = "" if symbol["value"] is None else f" = {symbol['value']:,}"
    return f"{symbol['symbol']}{number}: {symbol['meaning']}"


def _title(description: Mapping[str, Any]) -> str:
    return f"{description['kernel']}, {description['pass']}, mask {description['mask']}: bytes between SMs and L2"


def _rows(description: Mapping[str, Any], all_launches: str) -> list[dict[str, Any]]:
    totals = description["totals"].items()
    return [
        *description["traffic"],
        *(
            {"launch": all_launches, "tensor": "total", "direction": way, **entry}
            for way, entry in totals
        ),
    ]


def formula_answer(description: Mapping[str, Any]) -> str:
    """One sentence: the bytes where every size is given, else what they grow with, against the paper's term."""
    name = f"{description['kernel']}, {description['pass']}, mask {description['mask']},"
    read, written = (description["totals"][way]["bytes"] for way in ("read", "write"))
    theta = description["theta"]
    blocks = f" with blocks of {theta['blocks']} rows" if theta["blocks"] else ""
    grows = (
        f"grow as {description['leading']['text']}:{blocks} {theta['ratio']['text']} times the {theta['text']} "
        f"elements per head of {theta['source']}"
    )
    if read is None or written is None:
        return f"The SM<->L2 bytes of {name} {grows}; HBM bytes depend on the L2 and have no closed form."
    return (
        f"{name} moves {bytes_text(read + written)} between SMs and L2 ({bytes_text(read)} read, "
        f"{bytes_text(written)} written), which {grows}."
    )


def _limit_text(description: Mapping[str, Any], key: str) -> str:
    theta = description["theta"]
    blocks = f" with blocks of {theta['blocks']} rows" if theta["blocks"] else ""
    return f"leading term{blocks} / ({theta['text']} elements per head, {theta['source']}) = {theta['ratio'][key]}"


def formula_text(description: Mapping[str, Any], key: str) -> str:
    """The whole text, its formulas under `key`: text or latex."""
    rows, sparse = _rows(description, "all launches"), description["sparse"]
    if sparse:
        from iosim.readers.formula.theory import beside_text

        sparse = beside_text(sparse)
    return filled(
        Path(__file__).with_name("formula.txt"),
        title=_title(description),
        rows=rows,
        wide=max(len(row["tensor"]) for row in rows),
        key=key,
        of={**description, "sparse": sparse, "symbols": map(_told, description["symbols"])},
        limit=_limit_text(description, key),
        is_clipped="FloorSum(" in "".join(row["text"] for row in rows),
    )


def markdown(description: Mapping[str, Any], latex: bool) -> str:
    def cell(entry: dict[str, Any]) -> str:
        return f"${entry['latex']}$" if latex else f"`{entry['text']}`"

    rows = [{**row, "formula": cell(row)} for row in _rows(description, "all")]
    leading = f"Leading term: {cell(description['leading'])}"
    parts = [
        f"### {_title(description)}",
        Table.of(rows, COLUMNS).markdown().rstrip(),
        leading,
        _limit_text(description, "text"),
    ]
    if description["why"]:
        first, *rest = description["why"]["text"].splitlines()
        parts += [
            f"{first[0].upper()}{first[1:]}:",
            "\n".join(f"- {line.strip()}" for line in rest),
        ]
    symbols = "\n".join(f"- `{s['symbol']}`: {s['meaning']}" for s in description["symbols"])
    return "\n\n".join([*parts, symbols]) + "\n"


BOUND_COLUMNS = (
    Column("level"),
    Column("fast_memory_elements", "M, elements", kind="count"),
    Column("moved_bytes", "moved"),
    Column("bound_bytes", "bound"),
    Column("times_above", "times above", kind="ratio"),
    Column("bound_is", "the bound is"),
)


@dataclass(frozen=True)
class KernelBounds:
    """The bounds of one call of a kernel, a level each, and why they differ."""

    problem: AttentionProblem
    kernel: str
    profile: str
    method: str
    levels: tuple[LevelBound, ...]

    def to_dict(self) -> dict[str, Any]:
        return plain(
            problem=self.problem,
            kernel=self.kernel,
            profile=self.profile,
            method=self.method,
            levels=self.levels,
        ) | {"why": explanation(self.levels, self.profile)}

    @property
    def table(self) -> Table:
        return Table(
            BOUND_COLUMNS,
            tuple(
                (
                    LEVELS[level.level],
                    level.fast_elements,
                    level.moved_bytes,
                    round(level.bound_bytes),
                    level.times_above,
                    level.term_text if level.decided_by == "term" else "inputs and outputs, once",
                )
                for level in self.levels
            ),
        )

    @property
    def answer(self) -> str:
        """One sentence: how far above its bound each level is."""
        sm, l2 = self.levels
        bound = "the bound between L2 and HBM"
        hbm = (
            "an amount not known"
            if l2.times_above is None
            else times_of(number_text(l2.times_above), bound)
        )
        above = times_of(number_text(sm.times_above or 0), "the bound between SMs and L2")
        subject = f"{self.kernel} on {self.profile}{in_dtype(self.problem)}"
        return (
            f"{subject} moves {above}, where M is {sm.fast_memory}, and {hbm}, where M is the L2."
        )

    def to_text(self) -> str:
        title = f"{self.kernel} on {self.profile}: {self.problem.line}; HBM by {self.method}"
        below = [
            f"{LEVELS[level.level]}: {level.term_text} ({level.source}) = {bytes_text(round(level.term_bytes))}, "
            f"inputs and outputs once {bytes_text(level.compulsory_bytes)}; M is {level.fast_memory}, together "
            f"{bytes_text(level.fast_bytes)}"
            for level in self.levels
        ]
        why = explanation(self.levels, self.profile)
        return "\n".join([title, "", self.table.text().rstrip("\n"), "", *below, "", *why]) + "\n"


def kernel_bounds(options: Mapping[str, Any]) -> KernelBounds:
    """The bounds of the kernel that a formula was asked of; sizes not given are the formula's stand-ins."""
    problem = _problem(options)
    profile = load_profile(options.get("gpu") or DEFAULT_GPU)
    prediction = predict(problem, _kernel(options, problem)[0], profile)
    compulsory = prediction.hbm_bounds.compulsory_read + prediction.hbm_bounds.compulsory_write
    bytes_by_level = {
        "l2": prediction.total("l2"),
        "hbm": prediction.total("hbm") if prediction.hbm_known else None,
    }
    levels = level_bounds(problem, profile, compulsory, bytes_by_level)
    return KernelBounds(problem, prediction.kernel.name, profile.name, prediction.method, levels)
