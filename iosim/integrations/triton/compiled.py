"""A compiled Triton kernel as a `Kernel`: what the compiler, the driver and the grid say of it.

    compiled = kernel[grid](*args)                     # or kernel.warmup(..., grid=(1,)), which launches nothing
    described = describe(compiled, grid, problem=problem)
    predict(problem, described, "h200")

Read from a CompiledKernel as Triton 3.6 and 3.9 have it: `metadata` (num_warps, num_stages, shared), `asm` (ptx,
cubin), `src` (constants, fn.arg_names) and, once a GPU has loaded it, `n_regs` and `n_spills`, the latter in words of a
thread's frame. Both versions agree in all of these. Triton is imported only to compile what is not compiled yet.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any

from iosim.base.errors import InputError
from iosim.base.progress import Progress, silent
from iosim.base.schema import one_line
from iosim.catalog.resource_table import WORD_BYTES, BuildReport
from iosim.code.attention_tiles import order_of
from iosim.code.cubin import read_cubin
from iosim.code.kernel_facts import KernelFacts, kernel_facts
from iosim.code.module import read_module
from iosim.hardware.profile import HardwareProfile, list_profiles, load_profile
from iosim.integrations.triton.addressed import read_tiles
from iosim.integrations.triton.kernel import Config
from iosim.kernel.kernel import Kernel, Tile
from iosim.kernel.schedule import Schedule, Scheduler
from iosim.kernel.unit import MatrixUnit
from iosim.problem.attention import AttentionProblem

ALGORITHM = "flash"
THREADS = re.compile(r"\.(?:reqntid|maxntid)\s+(\d+)")
SPECIALISED = "setmaxnreg"
"""What warps of different roles call to share out registers (PTX ISA)."""
UNITS = (
    ("tcgen05.mma", MatrixUnit.TCGEN05),
    ("wgmma.mma_async", MatrixUnit.WGMMA),
    ("mma.sync", MatrixUnit.MMA_SYNC),
)
"""Instructions in PTX, and what computes them."""
NEEDED = {"product": ("mma", "fma.rn"), "exponential": ("ex2.",)}
"""What every forward of attention has, and the instructions in PTX that do it."""
POINTERS = {"fp16": "*fp16", "bf16": "*bf16", "fp32": "*fp32", "fp8": "*fp8e4nv"}
WHOLE_POINTERS = {
    "int64": "*i64",
    "int32": "*i32",
    "int16": "*i16",
    "int8": "*i8",
    "uint8": "*u8",
    "bool": "*i1",
}
"""Triton's words for pointers to whole numbers, by PyTorch's."""
ALIGNED = 16
WARPS = (1, 2, 4, 8, 16, 32)
OWN_PROBLEM = "give TritonModel a problem of your own"
Grid = Sequence[int]
Arguments = Mapping[str, Any]
ProblemOf = Callable[[Arguments], AttentionProblem]
CAUSAL_STAGE = 3
"""The tutorial's STAGE of a causal kernel: both loops, off and on the diagonal."""
DTYPES = {
    "float16": "fp16",
    "bfloat16": "bf16",
    "float32": "fp32",
    "fp16": "fp16",
    "bf16": "bf16",
    "fp32": "fp32",
    "float8_e4m3fn": "fp8",
    "float8_e5m2": "fp8",
    "fp8e4nv": "fp8",
    "fp8e5": "fp8",
}
QUERY_NAMES = ("Q", "q", "desc_q")
CAUSAL_FLAG = re.compile(
    r"_*(?:(?:is|use|has|do|apply)_?)?causal(?:_?mask(?:ing)?)?_*", re.IGNORECASE
)
"""What kernels call the argument that says whether their mask is causal."""
MASK_FLAG = re.compile(
    r"(?!.*stride).*(?:causal|mask|window|sliding|(?:^|_)local(?:_|$))", re.IGNORECASE
)
"""How the name of an argument that is about a mask begins, strides of one apart."""
NO_MASK = ("", "none", "full")
WALKS = (
    ("blocks", "heads", "batch"),
    ("blocks", "batch", "heads"),
    ("heads", "batch", "blocks"),
    ("batch", "heads", "blocks"),
    ("heads", "blocks", "batch"),
    ("batch", "blocks", "heads"),
)
"""Axes of a grid, the fastest first, the usual grids before others: of two that a grid fits, the first is taken."""


def tutorial_problem(arguments: Arguments) -> AttentionProblem:
    """The problem behind the arguments of the tutorial's kernels: Z, H, N_CTX and HEAD_DIM; STAGE, or a flag such as
    CAUSAL or IS_CAUSAL, for the mask; the type of Q (fp16 where no tensor tells). Raises InputError: an argument is
    missing, makes no sense, or asks for a mask that is not known here."""
    batch, heads, tokens, head_dim = _numbers(
        arguments, ("Z", "H", "N_CTX", "HEAD_DIM"), OWN_PROBLEM
    )
    mask = "causal" if _is_causal(arguments) else "none"
    dtype = dtype_of(arguments)
    return AttentionProblem(
        batch=batch, heads=heads, seq_q=tokens, head_dim=head_dim, mask=mask, dtype=dtype
    )


def _is_causal(arguments: Arguments) -> bool:
    """True where the arguments ask for a causal mask. Raises InputError: one that is about a mask is not understood."""
    flags = [name for name in arguments if CAUSAL_FLAG.fullmatch(name)]
    for name, value in arguments.items():
        # A mask that is not understood is refused: without it bytes and time would be another kernel's.
        if name not in flags and MASK_FLAG.match(name) and not _is_off(value):
            raise InputError(
                f"the kernel's argument {name} is about a mask, and what it asks for is not known; accepted: CAUSAL, "
                f"IS_CAUSAL, is_causal or STAGE, or {OWN_PROBLEM}"
            )
    if flags:
        return any(not _is_off(arguments[name]) for name in flags)
    return arguments.get("STAGE") == CAUSAL_STAGE


def _is_off(value: Any) -> bool:
    """True where an argument about a mask asks for none: absent, false, a window of no or of -1 keys."""
    value = getattr(value, "value", value)  # of tl.constexpr
    if isinstance(value, str):
        return value.lower() in NO_MASK
    return value is None or (isinstance(value, (bool, int, float)) and value <= 0)


def sides_of(arguments: Arguments, names: tuple[str, str]) -> tuple[int, int]:
    """(query rows, key rows) of a tile, by the arguments that hold them. Raises InputError: one is missing."""
    rows, columns = _numbers(arguments, names, f"`names` is {names}")
    return rows, columns


def _numbers(arguments: Arguments, names: Sequence[str], hint: str) -> list[int]:
    if missing := [n for n in names if n not in arguments]:
        raise InputError(f"the kernel's arguments lack {', '.join(missing)}; {hint}")
    return [int(arguments[n]) for n in names]


def dtype_of(arguments: Arguments, default: str = "fp16") -> str:
    for name in QUERY_NAMES:
        tensor = arguments.get(name)
        # The first of the tensors that a query may be called by; Triton wraps some of them.
        kind = getattr(getattr(tensor, "base", tensor), "dtype", None)
        if kind is not None:
            word = str(kind).removeprefix("torch.")
            if word not in DTYPES:
                raise InputError(
                    f"dtype '{word}' of {name} is not known; accepted: {', '.join(DTYPES)}"
                )
            return DTYPES[word]
    return default


def describe(
    fn: Any,
    grid: Grid | None = None,
    args: Mapping[str, Any] | None = None,
    *,
    problem: AttentionProblem | None = None,
    gpu: str | HardwareProfile | None = None,
    names: tuple[str, str] = ("BLOCK_M", "BLOCK_N"),
    num_warps: int = 4,
    num_stages: int = 3,
    writes_lse: bool = True,
    name: str | None = None,
) -> Kernel:
    """What iosim needs of a Triton forward: tile, warps, stages, order, registers, spills, shared memory, matrix unit.

    Args:
        fn: a compiled kernel, or a `triton.jit` function, which is then compiled here for `gpu`; no GPU is needed.
        grid: of the launch, in any order of its axes. By default a program a tile, query blocks fastest.
        args: the kernel's arguments by name, constants included: numbers, tensors or Triton's words for types, such as
            "*fp16". With a number for every argument that is one, the tile, the order and direction of the grid and
            its splits are read from the addresses of the code, whatever the arguments are called.
        problem: what is computed; by default as the tutorial's arguments in `args` say (Z, H, N_CTX, HEAD_DIM, STAGE).
        gpu: for which GPU a function is compiled.
        names: the constants that hold the query rows and key rows of a tile, where addresses are not read.
        num_warps: of a function that is compiled here.
        num_stages: likewise.
        writes_lse: whether the log-sum-exp of every row is stored.
        name: of the kernel in results; by default its own.

    Raises:
        InputError: something that is neither, names that it does not have, or a grid that does not cover the problem.
    """
    # What the caller says goes before what the compiler noted.
    if args is not None and not isinstance(args, Mapping):
        raise InputError(f"`args` {args!r} are no arguments; accepted: their values by name")
    known = {name: _plain(value) for name, value in (args or {}).items()}
    compiled = fn if hasattr(fn, "metadata") else compile_for(fn, known, gpu, num_warps, num_stages)
    constants = {**_constants(compiled), **known}
    _refuse_others(compiled)
    if grid is None:
        return _as_compiled(compiled, sides_of(constants, names), gpu, name, writes_lse=writes_lse)
    problem = problem or tutorial_problem(constants)
    grid = _sides(grid, constants)
    tiles, notes = read_tiles(compiled, grid, constants, problem)
    # What addresses say goes before what arguments are called and what the grid's sides could be.
    sides = (tiles.block_q, tiles.block_k) if tiles else sides_of(constants, names)
    kernel = _as_compiled(compiled, sides, gpu, name, writes_lse=writes_lse)
    kernel = kernel.with_(notes=(*kernel.notes, *notes))
    if tiles is not None and not tiles.persistent:
        rows = problem.heads * sum(q for q, _ in problem.sequences)
        if math.prod(grid) * tiles.block_q < rows:
            raise InputError(
                f"`grid` {tuple(grid)} of tiles of {tiles.block_q} rows does not cover the problem; "
                f"accepted: tiles for {rows:,} query rows of all heads"
            )
        return kernel.with_(
            schedule=tiles.schedule, splits=tiles.splits, rereads_q=tiles.reads_q_again
        )
    schedule, persistent = schedule_of(grid, problem, kernel.tile)
    return kernel.with_(schedule=schedule, persistent_ctas=persistent)


def _plain(value: Any) -> Any:
    """A NumPy number as Python's own, and a type of PyTorch's as a pointer to it; anything else as it is."""
    word = DTYPES.get(str(value).removeprefix("torch."))
    if word is not None and type(value).__name__ == "dtype":
        return POINTERS[word]
    alone = hasattr(value, "dtype") and hasattr(value, "item") and getattr(value, "shape", 1) == ()
    return value.item() if alone and not hasattr(value, "data_ptr") else value


def _sides(grid: Any, constants: Arguments) -> tuple[int, ...]:
    """The sides of a grid as Triton takes one: some numbers, one alone, or a function of the constants."""
    sides = grid(constants) if callable(grid) else grid
    try:
        return tuple(map(operator.index, sides if isinstance(sides, Iterable) else (sides,)))
    except TypeError:
        accepted = "one to three whole numbers from 1"
        raise InputError(f"`grid` {grid!r} is no grid; accepted: {accepted}") from None


def _refuse_others(compiled: Any) -> None:
    """Raises InputError: the code is no forward of attention, which multiplies and takes exponentials."""
    code = getattr(compiled, "asm", None) or {}
    ptx = str(code.get("ptx", ""))
    lacks = [word for word, some in NEEDED.items() if not any(n in ptx for n in some)]
    if ".entry" in ptx and isinstance(code.get("cubin"), bytes) and lacks:
        kernel = getattr(compiled.metadata, "name", "triton")
        raise InputError(
            f"kernel '{kernel}' is no attention: its code has no {' and no '.join(lacks)}; accepted: a "
            "forward of attention, and iosim.torch.TrafficMode counts other kernels"
        )


def _as_compiled(
    compiled: Any,
    sides: tuple[int, int],
    gpu: str | HardwareProfile | None,
    name: str | None,
    *,
    writes_lse: bool,
) -> Kernel:
    """What a compiled kernel's metadata, PTX and machine code say of it; the grid says the order."""
    metadata, report = compiled.metadata, report_of(compiled)
    ptx = str((getattr(compiled, "asm", None) or {}).get("ptx", ""))
    threads = THREADS.search(ptx)
    facts, notes = _facts(compiled, gpu)
    # Spills are counted in the loop where the machine code is read, else by the compiler's report.
    spill = report.spill if report else None
    return Kernel(
        name or str(getattr(metadata, "name", "triton")),
        ALGORITHM,
        Tile(*sides, int(metadata.num_warps), int(metadata.num_stages)),
        writes_lse=writes_lse,
        threads=int(threads[1]) if threads else None,
        matrix_unit=_unit(ptx),
        registers=report.registers if report else None,
        spill=facts.spill if facts else spill,
        shared_memory_bytes=int(metadata.shared),
        machine=facts.machine if facts else None,
        notes=notes,
    )


def _facts(
    compiled: Any, gpu: str | HardwareProfile | None
) -> tuple[KernelFacts | None, tuple[str, ...]]:
    """What a kernel's machine code says, and what a reader should know of it: where no tool reads it, that it is not
    read."""
    if not isinstance((getattr(compiled, "asm", None) or {}).get("cubin"), bytes):
        return None, ()
    try:
        function = read_module(compiled).function()
    except InputError as error:
        return None, (f"Its machine code was not read: {error}",)
    # The code is read for a GPU like the one it was built for, or not at all.
    profile = load_profile(gpu) if gpu is not None else _profile_of(function.cc)
    if profile is None or profile.cc != function.cc:
        return None, ()
    facts = kernel_facts(
        function, profile, threads=int(compiled.metadata.num_warps) * profile.warp_size
    )
    notes = "; ".join(facts.notes)
    return facts, (f"Of its machine code: {notes}",) if notes else ()


def _profile_of(cc: int) -> HardwareProfile | None:
    """A GPU of that compute capability, whose SMs are like all of it."""
    return next(
        (p for p in map(load_profile, list_profiles()) if p.cc == cc and not p.is_amd), None
    )


def report_of(compiled: Any) -> BuildReport | None:
    """Registers, spills and shared memory of a compiled kernel: from its machine code, or from the driver once it is
    loaded; None where there is neither. Raises InputError: machine code that cannot be read."""
    shared = int(compiled.metadata.shared)
    code = (getattr(compiled, "asm", None) or {}).get("cubin")
    if isinstance(code, bytes):
        # A module may hold several kernels; one without that name is taken to be its only one.
        reports = read_cubin(code)
        report = reports.get(str(getattr(compiled.metadata, "name", ""))) or next(
            iter(reports.values())
        )
        return BuildReport(report.registers, shared, report.frame_bytes)
    registers = getattr(compiled, "n_regs", None)
    if registers is None:
        return None
    return BuildReport(
        int(registers), shared, WORD_BYTES * int(getattr(compiled, "n_spills", 0) or 0)
    )


def compile_for(
    fn: Any,
    args: Mapping[str, Any],
    gpu: str | HardwareProfile | None,
    num_warps: int,
    num_stages: int,
    registers: int | None = None,
) -> Any:
    """A `triton.jit` function compiled for a GPU that need not be there; Triton keeps it in its own cache, by source,
    compiler and options. Arguments left out are the function's defaults; `registers` limits those of a thread (Triton's
    maxnreg). Raises InputError: no such function, no Triton, no GPU named, or an argument of which the type is not known."""
    while hasattr(fn, "fn") and not hasattr(fn, "params"):  # triton.autotune's and heuristics'
        fn = fn.fn
    if not hasattr(fn, "arg_names"):
        raise InputError(f"{fn!r} is neither a compiled Triton kernel nor a triton.jit function")
    if gpu is None:
        raise InputError(
            "`gpu` None: a function that is not compiled yet needs one; accepted: a GPU's name"
        )
    profile = load_profile(gpu)
    if profile.is_amd:
        raise InputError(
            f"`gpu` {profile.name}: code of AMD's GPUs is not read; accepted: NVIDIA's"
        )
    if num_warps not in WARPS:
        raise InputError(
            f"`num_warps` {num_warps!r} is out of range; accepted: {', '.join(map(str, WARPS))}"
        )
    triton = _triton()
    args = {p.name: p.default for p in fn.params if p.has_default} | dict(args)
    constants = {
        p.name: args[p.name] for p in fn.params if p.name in args and _is_constant(p, args[p.name])
    }
    # Types as Triton writes them, constants apart; attributes say what is divisible by 16.
    signature, attributes = {}, {}
    for number, name in enumerate(fn.arg_names):
        signature[name] = "constexpr" if name in constants else _type(name, args)
        value = args.get(name)
        whole = name not in constants and isinstance(value, int) and value % ALIGNED == 0
        if whole or signature[name].startswith("*"):
            attributes[(number,)] = [["tt.divisibility", ALIGNED]]
    source = triton.compiler.ASTSource(fn, signature, constexprs=constants, attrs=attributes)
    target = triton.backends.compiler.GPUTarget("cuda", profile.cc, 32)
    options = {"num_warps": num_warps, "num_stages": num_stages}
    if registers is not None:
        options["maxnreg"] = registers
    try:
        return triton.compile(source, target=target, options=options)
    except Exception as error:  # of the kernel's source, or of a pass over it
        why = one_line(str(error).strip().rpartition("\n")[2] or type(error).__name__, 200)
        raise InputError(f"Triton does not compile it: {why}") from error


def _is_constant(parameter: Any, value: Any) -> bool:
    """True where Triton's launcher makes a value part of the code: what is declared so, what is missing, and a 1 that
    neither its type's annotation nor `do_not_specialize` keeps a number."""
    if parameter.is_constexpr or value is None:
        return True
    if not isinstance(value, int) or isinstance(value, bool) or value != 1:
        return False
    return not (parameter.annotation_type or parameter.do_not_specialize)


def compiled_configs(
    configs: Iterable[Config],
    problem: AttentionProblem,
    profile: HardwareProfile,
    limit: int,
    progress: Progress = silent,
) -> dict[Config, BuildReport]:
    """What Triton's compiler says of the first `limit` configurations of a forward with the tutorial's arguments."""
    if limit < 1:
        raise InputError(f"`compile` {limit} is out of range; accepted: 1 or more")
    _triton()
    if problem.mask not in ("none", "causal") or problem.head_dim_v != problem.head_dim:
        raise InputError(
            f"`mask` {problem.mask}: Triton's forward is compiled for full and causal attention"
        )
    if problem.dtype not in POINTERS:
        raise InputError(
            f"`dtype` {problem.dtype} is not compiled by Triton; accepted: {', '.join(POINTERS)}"
        )
    from iosim.integrations.triton.forward import flash_forward

    tensors = dict.fromkeys(("Q", "K", "V", "Out"), POINTERS[problem.dtype]) | {
        "M": "*fp32",
        "sm_scale": "fp32",
    }
    sizes = {
        "Z": "i32",
        "H": "i32",
        "N_CTX": ALIGNED,
        "HEAD_DIM": problem.head_dim,
        "STAGE": CAUSAL_STAGE if problem.mask == "causal" else 1,
    }
    by_config = {}
    for config in progress(list(configs)[:limit]):
        blocks = {"BLOCK_M": config.block_m, "BLOCK_N": config.block_n}
        binary = compile_for(
            flash_forward, tensors | sizes | blocks, profile, config.num_warps, config.num_stages
        )
        if (report := report_of(binary)) is not None:
            by_config[config] = report
    return by_config


def _triton() -> Any:
    try:
        import triton
        import triton.backends.compiler
        import triton.compiler
    except ImportError:
        raise InputError(
            "Triton is not installed, so that nothing can be compiled; `pip install triton`"
        ) from None
    return triton


def _type(name: str, args: Mapping[str, Any]) -> str:
    if name not in args:
        raise InputError(
            f'`args` lacks {name}; accepted: a number, a tensor, or a word such as "*fp16"'
        )
    value = args[name]
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "i1"
    if isinstance(value, int):
        return "i32" if abs(value) < 2**31 else "i64"
    if isinstance(value, float):
        return "fp32"
    kind = str(getattr(value, "dtype", "")).removeprefix("torch.")
    if kind in WHOLE_POINTERS:
        return WHOLE_POINTERS[kind]
    word = DTYPES.get(kind)
    if word is None:
        raise InputError(
            f'`args` {name} {type(value).__name__} is no number, tensor or word; accepted: as "*fp16"'
        )
    return POINTERS[word]


def _constants(compiled: Any) -> dict[str, Any]:
    source = getattr(compiled, "src", None)
    names = list(getattr(getattr(source, "fn", None), "arg_names", ()))
    constants = {}
    for key, value in dict(getattr(source, "constants", {})).items():
        place = key[0] if isinstance(key, tuple) else key
        constants[names[place] if isinstance(place, int) else str(place)] = value
    return constants


def _unit(ptx: str) -> MatrixUnit | None:
    if not ptx:
        return None
    unit = next((unit for word, unit in UNITS if word in ptx), MatrixUnit.FP32)
    return MatrixUnit.SPECIALISED if unit is MatrixUnit.WGMMA and SPECIALISED in ptx else unit


def schedule_of(grid: Grid, problem: AttentionProblem, tile: Tile) -> tuple[Schedule, int | None]:
    """(order, programs of a persistent kernel) of a launch."""
    sides = [int(side) for side in grid]
    if not 1 <= len(sides) <= 3 or min(sides) < 1:
        raise InputError(
            f"`grid` {tuple(grid)} is no grid; accepted: one to three whole numbers from 1"
        )
    programs = math.prod(sides)
    blocks, heads = -(-problem.seq_q // tile.block_q), problem.batch * problem.heads
    if programs > blocks * heads:
        needed = f"{heads:,} heads of {blocks:,} query blocks need {blocks * heads:,} at most"
        raise InputError(f"`grid` {tuple(grid)} has {programs:,} programs; {needed}")
    if programs < blocks * heads:
        return Schedule(scheduler=Scheduler.PERSISTENT), programs
    return _walk(sides, {"blocks": blocks, "heads": problem.heads, "batch": problem.batch}), None


def _walk(sides: Sequence[int], sizes: Mapping[str, int]) -> Schedule:
    """The order in which a grid starts its programs, one for each tile: the first of `WALKS` that gives its sides,
    where one side may hold several axes."""
    corners = set(accumulate(sides, operator.mul))
    for axes in WALKS:
        if corners <= {1, *accumulate((sizes[axis] for axis in axes), operator.mul)}:
            order, section = order_of([axis for axis in axes if sizes[axis] > 1], sizes)
            return Schedule(order=order, section_heads=section)
    return Schedule()
