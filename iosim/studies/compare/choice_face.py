"""What a choice between GPUs looks like: its answer, its table with the frontier marked, and its page."""

from __future__ import annotations

from iosim.base.units import (
    bytes_text,
    digits_text,
    joules_text,
    per_second_text,
    scaled_text,
    seconds_text,
    some,
)
from iosim.base.words import sentences
from iosim.prediction.confidence import basis, confidence, in_dtype
from iosim.prediction.result import Prediction
from iosim.show.page import Page, Panel, Section, listed
from iosim.show.shown import Part, panels_of
from iosim.show.tables import Cell, Column, Table, grouped
from iosim.studies.compare.choice import FRONTIERS, Choice, Option
from iosim.studies.compare.choice_figure import (
    TEXT,
    amount,
    dollars_text,
    figure,
    ranged,
    tokens_text,
    unit,
)
from iosim.studies.compare.face import closing

TITLE = "Which GPU for this attention?"
MOST = {
    "token": "serves the most tokens per second of",
    "joule": "takes the fewest joules for",
    "dollar": "is the cheapest for",
}
SAME = 1.005
"""GPUs that differ by less take the same."""
SAVED = {
    "hbm": "moving bytes at HBM",
    "l2": "moving bytes between SMs and L2",
    "smem": "moving bytes in shared memory",
    "tensor": "products on tensor cores",
    "awake": "being awake",
}
BOUND = {
    "hbm": "HBM",
    "l2": "L2",
    "smem": "shared memory",
    "tensor": "the tensor cores",
    "exp": "exponentials",
}


def ranked(choice: Choice, option: Option) -> str:
    if choice.per == "token":
        return ranged(option.tokens_per_s, per_second_text)
    return ranged(amount(choice, option, choice.quantity), TEXT[choice.quantity])


def answer(choice: Choice) -> str:
    """Which GPU at the longest length, by how much, why, whether the ranges leave it open, and which elsewhere."""
    able = choice.able(choice.longest)
    if not able:
        return sentences([_nothing(choice, choice.longest)])
    best = able[0]
    of = "" if choice.per == "token" else f" {unit(choice, choice.quantity)}"
    dtype = in_dtype(best.predictions[0].problem)
    parts = [
        f"{best.gpu.label} {MOST[choice.per]} {_of(choice)}{dtype}: {ranked(choice, best)}{of} with {best.kernel}"
    ]
    second = next((option for option in able if option.gpu != best.gpu), None)
    if second is not None:
        # The best one's upper end against the second's lower end.
        ends = [
            token_amount.ends
            for o in (best, second)
            if (token_amount := o.a_token(choice.quantity)) is not None
        ]
        parts[0] += _lead(choice, best, second)
        if ends[0][1] >= ends[1][0]:
            parts.append("The ranges overlap: not certain")
    # Other lengths are named only where another GPU wins.
    firsts = {length: rows[0] for length in choice.lengths if (rows := choice.able(length))}
    others = grouped(firsts.items(), lambda token_amount: token_amount[1].gpu.label)
    parts += [
        f"At {', '.join(tokens_text(length) for length, _ in members)} it is {gpu}"
        for gpu, members in others.items()
        if gpu != best.gpu.label
    ]
    return sentences([*parts, confidence(_shown(choice))])


def _shown(choice: Choice) -> list[Prediction]:
    """The predictions of the GPUs that the answer names."""
    able = choice.able(choice.longest)
    second = next((option for option in able if option.gpu != able[0].gpu), None) if able else None
    return [p for option in (*able[:1], second) if option is not None for p in option.predictions]


def _bases(choice: Choice) -> list[str]:
    return [f"basis: {sentence}" for sentence in basis(_shown(choice))]


def _nothing(choice: Choice, length: tuple[int, int]) -> str:
    """That no GPU has the memory, and how much is missing where the least is."""
    rows = choice.at(length)
    known = [option for option in rows if option.a_token(choice.quantity) is not None]
    # The GPU that comes nearest to having the memory.
    least = min(
        known or rows, key=lambda o: o.memory_bytes / (o.gpu.profile.usable_memory_bytes or 1)
    )
    where = "" if len(known) == len(rows) else "whose energy is known "
    weights = (
        ""
        if choice.model is None or choice.model.weight_bytes is None
        else " with the model's weights"
    )
    takes = f"it takes {bytes_text(least.memory_bytes)}{weights}"
    held = f"{least.gpu.label} has {bytes_text(least.gpu.profile.usable_memory_bytes or 0)}"
    return f"No GPU {where}has the memory for {_work(choice, least)}: {takes}, and {held}"


def _of(choice: Choice) -> str:
    return "this attention" if choice.model is None else f"the attention of {choice.model.title}"


def _work(choice: Choice, option: Option) -> str:
    of = _of(choice)
    batch = f"batch {option.work.batch}, " if option.work.batch > 1 else ""
    return f"{of} ({batch}{tokens_text(option.work.length)})"


def _lead(choice: Choice, best: Option, second: Option) -> str:
    """By how much the best leads, and why."""
    of_token = [
        amount_per_token.value
        for o in (best, second)
        if (amount_per_token := o.a_token(choice.quantity)) is not None
    ]
    ratio = of_token[1] / of_token[0]
    times = f"{digits_text(ratio)} times" if choice.per == "token" else f"{100 / ratio:.2g} % of"
    at = f" at batch {second.work.batch}" if second.work.batch != best.work.batch else ""
    than = f"the {ranked(choice, second).split(' (')[0]} of {second.gpu.label}{at}"
    return (
        f", {times} {than}: {_why(choice, best, second)}"
        if ratio >= SAME
        else f", as much as {than}"
    )


def _why(choice: Choice, best: Option, second: Option) -> str:
    if choice.per == "dollar":
        takes, other_takes = (
            f"{seconds_text(o.time_s.value)} at {dollars_text((o.price or 0.0) * o.gpus)} per hour"
            for o in (best, second)
        )
        gpus = f" for {best.gpus} GPUs" if best.gpus > 1 else ""
        return f"{takes}{gpus} against {other_takes}"
    if choice.per == "joule":
        best_energies, others = _energies(best), _energies(second)
        # The part in which the second spends most beyond the best.
        largest = max(others, key=lambda part: others[part] - best_energies.get(part, 0.0))
        return f"the most is saved in {SAVED.get(largest, largest)}"
    bounds = [o.slowest.bound_by for o in (best, second)]
    first, other = (BOUND.get(bound, bound) for bound in bounds)
    if first != other:
        return f"it is bound by {first}, {second.gpu.label} by {other}"
    # Both wait for the same unit: the specification says which GPU has more of it.
    rate, other_rate = (_rate(o.slowest) for o in (best, second))
    if not rate > other_rate > 0:
        return f"both are bound by {first}"
    of = "B/s" if bounds[0] == "hbm" else "FLOP/s"
    return (
        f"both are bound by {first}, {scaled_text(rate, of)} against {scaled_text(other_rate, of)}"
    )


def _energies(option: Option) -> dict[str, float]:
    energies: dict[str, float] = {}
    for (count, _), p in zip(option.work.parts, option.predictions, strict=True):
        for part, joules in (p.energy_j or {}).items():
            energies[part] = energies.get(part, 0.0) + count * joules / option.work.tokens
    return energies


def _rate(p: Prediction) -> float:
    """What the GPU's specification gives of what bounds a call; 0 where it gives nothing."""
    if p.bound_by == "hbm":
        return p.profile.dram_bandwidth_bytes_per_s or 0.0
    return p.profile.tensor_flops_per_s.get(p.problem.dtype, 0.0) if p.bound_by == "tensor" else 0.0


def options_table(choice: Choice) -> Table:
    """A row per GPU, batch and length, best first, the rows of a length together; without columns that say nothing."""
    columns = (
        Column("seq_q", "queries", kind="count"),
        Column("seq_k", "keys", kind="count"),
        Column("gpu", "GPU"),
        Column("kernel"),
        Column("batch", kind="count"),
        Column("tokens_per_s", "tokens/s", kind="right"),
        Column("time", "time per call", kind="right"),
        Column("energy", "energy per token", kind="right"),
        Column("cost", f"cost {unit(choice, 'dollars')}", kind="right"),
        Column("bound_by", "bound by"),
        Column("fits", colours={"no": "red"}),
        Column("frontier"),
    )
    rows = tuple(_option_row(choice, option) for option in choice.options)
    # A column that is alike in all rows is left out where it holds a size, nothing or "yes".
    empty = [
        column.key
        for column, cells in zip(columns, zip(*rows, strict=True), strict=True)
        if len(set(cells)) == 1
        and (column.key in ("seq_q", "seq_k", "batch") or cells[0] in (None, "yes"))
    ]
    return Table(columns, rows).without(*empty)


def _option_row(choice: Choice, o: Option) -> tuple[Cell, ...]:
    cost = None if o.price is None else ranged(amount(choice, o, "dollars"), dollars_text)
    rate, energy = per_second_text(o.tokens_per_s.value), ranged(o.a_token("energy_j"), joules_text)
    sizes, took = (
        (o.work.queries, o.work.keys, o.gpu.label, o.kernel, o.work.batch),
        ranged(o.time_s, seconds_text),
    )
    return (
        *sizes,
        rate,
        took,
        energy,
        cost,
        o.slowest.bound_by,
        "yes" if o.fits else "no",
        ", ".join(o.frontier),
    )


def _subject(choice: Choice) -> list[str]:
    return [] if choice.model is None else [f"{choice.model.line}."]


def as_text(choice: Choice) -> str:
    below = [
        options_table(choice).text().rstrip(),
        *closing(choice.missing, choice.notes),
        "\n".join(_bases(choice)),
    ]
    return "\n\n".join(part for part in [answer(choice), *_subject(choice), *below] if part) + "\n"


def panels(choice: Choice) -> tuple[Panel, ...]:
    return panels_of(as_page(choice))


def line(choice: Choice) -> str:
    best = next(
        (
            f"{best_option.gpu.label}, {best_option.kernel}"
            for best_option in choice.able(choice.longest)
        ),
        "none",
    )
    return f"{some(len({option.gpu.label for option in choice.options}), 'GPU')} by {choice.per}; best: {best}"


def parts(choice: Choice) -> list[Part]:
    return [answer(choice), *_subject(choice), options_table(choice), choice.missing, choice.notes]


def as_page(choice: Choice, command: str = "iosim compare") -> Page:
    figures = [figure(choice, word) for word in FRONTIERS]
    sections = (
        *(f.section(folded=False) for f in figures if f is not None),
        Section("rows", "GPUs", table=options_table(choice)),
        *listed("missing", "Cannot run", choice.missing),
        *listed("notes", "Notes", choice.notes),
    )
    return Page(
        TITLE,
        " ".join(_subject(choice)),
        sections,
        command=command,
        answer=(answer(choice),),
        verdict=(answer(choice),),
    )
