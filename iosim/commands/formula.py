"""`iosim formula`: a kernel's SM<->L2 bytes in closed form, in symbols or with numbers put in, and their limit."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from iosim.base.errors import InputError
from iosim.commands import common, options
from iosim.kernel.overrides import OVERRIDES
from iosim.problem.fields import FIELDS
from iosim.show.tables import Column, Table

if TYPE_CHECKING:
    from iosim.kernel.kernel import Kernel
    from iosim.problem.attention import AttentionProblem
    from iosim.readers.formula.symbolic import Formula

STAND_IN_DTYPE = "fp16"
STAND_INS: dict[str, Any] = {"batch": 1, "heads": 32, "seq_q": 4096, "head_dim": 128}
"""Sizes at which a formula is derived where the user gives none; they decide its conditions only."""
LATENT_STAND_INS: dict[str, Any] = {"heads": 128, "head_dim": 576, "kv_heads": 1, "head_dim_v": 512}
"""The same for kernels that read one latent K/V: the sizes of DeepSeek-V3 (arXiv 2412.19437, section 4.2)."""
SIZES = ("batch", "heads", "kv_heads", "seq_q", "seq_k", "head_dim", "head_dim_v")
SYMBOLS = (*SIZES, "window", "offset", "splits")
"""Fields of the problem and the kernel that are symbols of a formula."""
PAPER_SYMBOLS = {
    "M": "elements that the papers' fast memory holds: the shared memory that a CTA may use (--gpu puts it in numbers)",
    "s": "share of the mask's blocks that are kept",
}
"""Symbols of the papers' terms that no formula of bytes has."""
CHOICES = ("offset", "dropout", "passes", "layout", "window", "mask_block", "mask_stride", "global_tokens", "mask_file",
           "bias", "bias_shared", "bias_dtype", "bias_grad", "key_padding", "mask_storage")  # fmt: skip
"""Fields of the problem that decide which formula it is."""


def add_parser(subparsers: Any) -> None:
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "formula", help="SM<->L2 bytes in closed form: text, LaTeX, numbers put in, the limit against the papers"
    )
    parser.add_argument(
        "name", metavar="NAME", help="algorithm (flash, flash1, naive, ...) or kernel (fa2, cudnn, ...)"
    )
    common.add_gpu(parser, None, f"GPU for which a library kernel chooses, and whose fast memory M the limit is put "
                   f"in numbers for (default: {common.USUAL_GPU}, with M a symbol)")  # fmt: skip
    g = common.group(parser, "sizes; those not given stay symbols")
    options.add(g, options.without_defaults(FIELDS, *SIZES, "dtype"))
    options.add(g, OVERRIDES, ("splits", "tile"))
    m = common.group(parser, "what is computed")
    common.add_mask_options(m)
    options.add(m, FIELDS, CHOICES)
    common.group(parser, "output").add_argument("--latex", action="store_true", help="formulas as LaTeX, not as text")
    common.add_output_options(parser, ("table", "json", "csv", "md"))
    parser.set_defaults(run=run)


def _problem(args: argparse.Namespace) -> AttentionProblem:
    """The problem at which the formula is derived: what was given, and stand-ins."""
    from iosim.problem.asked import mask_of
    from iosim.problem.attention import AttentionProblem

    words = mask_of(vars(args))
    latent = _reads_latent(args.name)
    stand_ins = {"kv_heads": None, "head_dim_v": None} | STAND_INS | (LATENT_STAND_INS if latent else {})
    chosen = {n: getattr(args, n) for n in (*SIZES, *CHOICES)}
    chosen |= {n: value for n, value in stand_ins.items() if chosen[n] is None}
    if args.heads is None and args.kv_heads is not None:
        chosen["heads"] = 4 * args.kv_heads
    dtype = args.dtype or _stand_in_dtype(args.name)
    return AttentionProblem(**chosen | words, dtype=dtype, latent_kv=latent)


def _stand_in_dtype(name: str) -> str:
    """fp16, or the first type that the algorithm or kernel takes where that is none of them."""
    from iosim.kernel.algorithms import algorithm_of, algorithms
    from iosim.kernel.libraries import entry, is_choice

    if is_choice(name):
        return STAND_IN_DTYPE
    try:
        accepted = algorithm_of(name).dtypes if name in algorithms() else entry(name)["requires"]["dtypes"]
    except InputError:  # told where the kernel is looked up
        return STAND_IN_DTYPE
    return accepted[0] if accepted and STAND_IN_DTYPE not in accepted else STAND_IN_DTYPE


def _reads_latent(name: str) -> bool:
    """Whether an algorithm or kernel reads one latent K/V and nothing else."""
    from iosim.kernel.algorithms import algorithms
    from iosim.kernel.libraries import entry, entry_names

    if name in algorithms() and name not in entry_names():
        return False
    try:
        return bool(entry(name)["requires"].get("latent_only"))
    except InputError:  # told where the kernel is looked up
        return False


def _kernel(args: argparse.Namespace, problem: AttentionProblem) -> tuple[Kernel, bool]:
    """(the kernel, whether its tile is a choice rather than a symbol)."""
    from iosim.kernel.algorithms import algorithm_of, algorithms
    from iosim.kernel.kernel import Kernel, Tile

    tile = None if args.tile is None else Tile(*args.tile)
    if args.name in algorithms() and args.gpu is None:
        chosen_algorithm = algorithm_of(args.name)
        if args.splits is not None and (args.splits < 1 or not chosen_algorithm.splits):
            able = " and ".join(name for name in algorithms() if algorithm_of(name).splits)
            raise InputError(f"--splits {args.splits}: not possible with algorithm {args.name}; {able} take 1 or more")
        kernel = Kernel(args.name, args.name, tile or chosen_algorithm.example_tile, splits=args.splits or 1)
        return kernel, tile is not None
    from iosim.hardware.profile import load_profile
    from iosim.kernel.libraries import Overrides, resolve

    profile = load_profile(args.gpu or common.USUAL_GPU)
    return resolve(args.name, problem, profile, Overrides(tile=args.tile, splits=args.splits)), True


def _given(args: argparse.Namespace, formula: Formula, tile: bool) -> dict[str, int]:
    """Symbols that have a number, by name: what the user gave, and the tile where it was given or chosen."""
    from iosim.readers.formula.block_sums import NAMES as SUMS

    names = {name for name in SYMBOLS if getattr(args, name) is not None}
    if "seq_q" in names and ("seq_k" in names or args.seq_k is None):
        names |= {"seq", "seq_k"}
    if "heads" in names:
        names |= {"kv_heads", "group"}
    if args.dtype is not None:
        names |= {"element_bytes", "output_bytes"}
    if tile:
        names |= {"block_q", "block_k", "backward_block_q", "backward_block_k", "splits"}
        names |= {n for n in formula.values if n.removeprefix("backward_") in SUMS} if args.seq_q is not None else set()
    return {name: value for name, value in formula.values.items() if name in names}


def _theta(problem: AttentionProblem, kernel: Kernel, formula: Formula) -> dict[str, Any]:
    """The leading term where blocks are as large as a fast memory of M elements allows, beside the paper's term."""
    import sympy as sp

    from iosim.kernel.algorithms import algorithm_of
    from iosim.problem.fields import LIST_MASKS
    from iosim.readers.formula.limits import leading
    from iosim.readers.formula.symbolic import SYMBOLS, symbol
    from iosim.readers.formula.theory import bound
    from iosim.readers.formula.theta import with_density

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


def describe(args: argparse.Namespace) -> dict[str, Any]:
    """What the command says, as the JSON's `formula` object."""
    from iosim.readers.formula.symbolic import SYMBOLS, derive, symbol

    problem = _problem(args)
    kernel, chosen = _kernel(args, problem)
    formula = derive(problem, kernel)
    put_in = _given(args, formula, chosen)
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
    return {
        "kernel": kernel.name, "algorithm": kernel.algorithm, "level": "l2", "mask": problem.mask,
        "pass": problem.passes, "traffic": rows, "totals": totals,
        "leading": {"text": write.text(limit["leading"]), "latex": _latex(limit["leading"])},
        "theta": {
            "source": limit["term"].source, "text": limit["term"].text, "latex": limit["term"].latex,
            "blocks": limit["blocks"] if limit["tiled"] else None,
            "ratio": {"text": write.text(limit["ratio"]), "latex": _latex(limit["ratio"])},
        },
        "symbols": names,
        "why": _why(args, problem, kernel, formula),
        "sparse": _beside(problem, kernel, [t["bytes"] for t in totals.values()]),
        "conditions": [write.condition(c) for c in formula.substitute(put_in).conditions],
    }  # fmt: skip


def _why(
    args: argparse.Namespace, problem: AttentionProblem, kernel: Kernel, formula: Formula
) -> dict[str, Any] | None:
    """Where the leading term comes from, in numbers for a GPU; None where none was named."""
    from iosim.hardware.profile import load_profile
    from iosim.readers.formula.why import why, why_text

    reason = None if args.gpu is None else why(problem, kernel, load_profile(args.gpu), formula)
    return None if reason is None else reason.to_dict() | {"text": why_text(reason)}


def _beside(problem: AttentionProblem, kernel: Kernel, moved: list[int | None]) -> dict[str, Any] | None:
    """The paper's term in numbers beside the count, for a list of blocks with every size given."""
    from iosim.problem.fields import LIST_MASKS
    from iosim.readers.formula.theta import beside

    known = [n for n in moved if n is not None]
    if problem.mask not in LIST_MASKS or len(known) < len(moved):
        return None
    return beside(problem, kernel, sum(known))


def _answer(description: dict[str, Any]) -> str:
    """One sentence: the bytes where every size is given, else what they grow with, against the paper's term."""
    from iosim.base.units import bytes_text

    name = f"{description['kernel']}, {description['pass']}, mask {description['mask']},"
    read, written = (description["totals"][way]["bytes"] for way in ("read", "write"))
    theta = description["theta"]
    blocks = f" with blocks of {theta['blocks']} rows" if theta["blocks"] else ""
    grows = (f"grow as {description['leading']['text']}:{blocks} {theta['ratio']['text']} times the {theta['text']} "
             f"elements a head of {theta['source']}")  # fmt: skip
    if read is None or written is None:
        return f"The SM<->L2 bytes of {name} {grows}; HBM bytes depend on the L2 and have no closed form."
    return (f"{name} moves {bytes_text(read + written)} between SMs and L2 ({bytes_text(read)} read, "
            f"{bytes_text(written)} written), which {grows}.")  # fmt: skip


def _latex(expression: Any) -> str:
    import sympy as sp

    return str(sp.latex(expression))


def _limit_text(description: dict[str, Any], key: str) -> str:
    theta = description["theta"]
    blocks = f" with blocks of {theta['blocks']} rows" if theta["blocks"] else ""
    return f"leading term{blocks} / ({theta['text']} elements a head, {theta['source']}) = {theta['ratio'][key]}"


def _table(description: dict[str, Any], key: str) -> str:
    lines = [
        f"{description['kernel']}, {description['pass']}, mask {description['mask']}: bytes between SMs and L2",
        "",
    ]
    launch = None
    rows = description["traffic"] + [
        {"launch": "all launches", "tensor": "total", "direction": way, **entry}
        for way, entry in description["totals"].items()
    ]
    wide = max(len(r["tensor"]) for r in rows)
    for r in rows:
        if r["launch"] != launch:
            launch = r["launch"]
            lines.append(launch)
        number = "" if r["bytes"] is None else f"{r['bytes']:,}"
        formula = r[key] if r["bytes"] is None else number
        lines.append(f"  {r['tensor']:<{wide}}  {r['direction']:<5}  {formula}")
    lines += ["", f"leading term: {description['leading'][key]}", _limit_text(description, key)]
    if description["sparse"]:
        from iosim.readers.formula.theta import beside_text

        lines.append(beside_text(description["sparse"]))
    if description["why"]:
        lines += ["", description["why"]["text"]]
    lines += ["", "where"]
    for s in description["symbols"]:
        value = "" if s["value"] is None else f" = {s['value']:,}"
        lines.append(f"  {s['symbol']}{value}: {s['meaning']}")
    if "FloorSum(" in "".join(r["text"] for r in rows):
        lines.append("  ClippedFloorSum(n, m, a, b, h): sum over 0 <= i < n of min(h, max(0, floor((a i + b) / m)))")
    if description["conditions"]:
        lines.append("holds where " + " and ".join(description["conditions"]))
    return "\n".join(lines) + "\n"


def _markdown(description: dict[str, Any], latex: bool) -> str:
    def cell(entry: dict[str, Any]) -> str:
        return f"${entry['latex']}$" if latex else f"`{entry['text']}`"

    rows = description["traffic"] + [
        {"launch": "all", "tensor": "total", "direction": way, **entry} for way, entry in description["totals"].items()
    ]
    columns = (Column("launch", "launch"), Column("tensor", "tensor"), Column("direction", "direction"),
               Column("formula", "formula"), Column("bytes", "bytes", "count"))  # fmt: skip
    table = Table(columns, tuple((r["launch"], r["tensor"], r["direction"], cell(r), r["bytes"]) for r in rows))
    title = f"### {description['kernel']}, {description['pass']}, mask {description['mask']}: bytes between SMs and L2"
    lines = [
        title,
        "",
        table.markdown(),
        f"Leading term: {cell(description['leading'])}",
        "",
        _limit_text(description, "text"),
        "",
    ]
    if description["why"]:
        first, *rest = description["why"]["text"].splitlines()
        lines += [f"{first[0].upper()}{first[1:]}:", "", *(f"- {line.strip()}" for line in rest), ""]
    lines += [f"- `{s['symbol']}`: {s['meaning']}" for s in description["symbols"]]
    return "\n".join(lines) + "\n"


def run(args: argparse.Namespace) -> int:
    description = describe(args)
    key = "latex" if args.latex else "text"
    if args.format == "json":
        text = common.json_text({"schema": 1, "answer": _answer(description), "formula": description})
    elif args.format == "csv":
        text = Table.of(description["traffic"]).csv()
    elif args.format == "md":
        text = f"{_answer(description)}\n\n{_markdown(description, args.latex)}"
    else:
        text = f"{_answer(description)}\n\n{_table(description, key)}"
    common.emit(text, args.out)
    return 0
