"""A GPU, a library kernel, a mask, an output column and a command are each added to a copy of the tree, and iosim takes
them: what such an addition touches is counted here, and may not grow."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from scripts import ROOT, load_script

if not (ROOT / "pyproject.toml").is_file():
    pytest.skip("iosim runs from an install without its sources", allow_module_level=True)

COPIED = (
    "iosim",
    "hardware_profiles",
    "kernels",
    "tests",
    "docs",
    "benchmarks",
    "examples",
    "experiments",
)
SCHEMAS, KEYWORDS = "iosim/commands/schemas.json", "iosim/api/typed.pyi"
"""Files that scripts make of others: `make_schemas.py` and `make_keywords.py`."""


@dataclass(frozen=True)
class Trial:
    """An addition: files that are new, edits (a file, a text in it, and what takes its place), files that scripts make
    of these, and how many files it may touch."""

    most: int
    new: dict[str, str] = field(default_factory=dict)
    edits: tuple[tuple[str, str, str], ...] = ()
    made: tuple[str, ...] = ()

    @property
    def files(self) -> set[str]:
        return {*self.new, *(name for name, _, _ in self.edits), *self.made}


def profile_of_another_name() -> str:
    """An A10's numbers, none of which was fitted, under the trial's name."""
    text = (ROOT / "hardware_profiles" / "a10.toml").read_text(encoding="utf-8")
    text = re.sub(r'^name = "a10"$', 'name = "trial-gpu"', text, flags=re.M)
    text = re.sub(r"^title = .*$", 'title = "A trial"', text, flags=re.M)
    return re.sub(r"^aliases = .*$", "aliases = []", text, flags=re.M)


KERNEL = """schema = 1
name = "trial-kernel"
title = "A trial"
aliases = ["trial-attention"]
like = "fa2"
source = "tests/house/test_trial_additions.py"
"""


def kernel_of_the_examples() -> str:
    """JAX's attention on Hopper, under a name that words of `iosim/base/scope.toml` fit."""
    text = (ROOT / "examples" / "kernels" / "jax-mosaic-gpu.toml").read_text(encoding="utf-8")
    return re.sub(r"^name = .*$", 'name = "mosaic-gpu"', text, flags=re.M)


MASK = '''

def every_second(seq: int, block: int) -> BlockMask:
    """Each block of queries keeps itself and every second block before it."""
    blocks = -(-seq // block)
    pairs = [(i, j) for i in range(blocks) for j in range(i % 2, i + 1, 2)]
    rows, cols = (np.array(side, dtype=np.int64) for side in zip(*pairs, strict=True))
    return BlockMask.of_pairs(seq, seq, block, block, rows, cols)
'''
MASK_TEST = '''"""Every second block of keys."""

from iosim.problem.attention import AttentionProblem


def test_every_second_block_is_kept() -> None:
    mask = AttentionProblem(seq_q=512, mask="every-second", mask_block=128).pair_mask
    assert mask.nnz == 1 + 1 + 2 + 2
'''
COMMAND = '''"""`iosim trial`: the tile of a kernel."""

from __future__ import annotations

import argparse

from iosim.catalog.libraries import resolve
from iosim.commands import common
from iosim.hardware.profile import load_profile
from iosim.problem.attention import AttentionProblem


def trial(args: argparse.Namespace) -> int:
    kernel = resolve(args.name, AttentionProblem(), load_profile("h100"))
    tile = kernel.tile
    return common.tell(
        args,
        f"{kernel.name} takes {tile.block_q} query rows at once.",
        json=lambda: {"tile": {"block_q": tile.block_q, "block_k": tile.block_k}},
        text=lambda _: f"{tile}\\n",
    )
'''
OPTIONS = '''

def run_trial(args: argparse.Namespace) -> int:
    from iosim.commands.trial import trial

    return trial(args)


@command(WHAT_MOVES, run_trial)
def trial(parser: CommandParser) -> None:
    """the tile of a kernel"""
    parser.add_argument("name", metavar="NAME", help="a kernel")
    parser.add_output(("table", "json"))
'''
TRIALS = {
    "GPU": Trial(
        most=3,
        new={"hardware_profiles/trial-gpu.toml": profile_of_another_name()},
        edits=(
            (
                "tests/support/shipped.py",
                "BUS = {\n",
                'BUS = {\n    "trial-gpu": (384, 12.5),\n',
            ),
            (
                "tests/support/shipped.py",
                "CORES = {\n",
                'CORES = {\n    "trial-gpu": (128, 1024),\n',
            ),
        ),
    ),
    "kernel": Trial(
        most=5,
        new={"iosim/catalog/libraries/trial-kernel.toml": KERNEL},
        made=("tests/golden/studies/kernels/trial-kernel.json",),
    ),
    "kernel of the examples": Trial(
        most=5,
        new={"iosim/catalog/libraries/mosaic-gpu.toml": kernel_of_the_examples()},
        made=("tests/golden/studies/kernels/mosaic-gpu.json",),
    ),
    "mask": Trial(
        most=6,
        new={"tests/problem/test_every_second.py": MASK_TEST},
        edits=(
            (
                "iosim/problem/fields.py",
                'LIST_MASKS = ("butterfly", ',
                'LIST_MASKS = ("every-second", "butterfly", ',
            ),
            (
                "iosim/problem/masks/words.py",
                '    if p.mask in ("butterfly", "strided"):\n',
                '    if p.mask == "every-second":\n        return every_second(p.seq_q, sides[0])\n'
                '    if p.mask in ("butterfly", "strided"):\n',
            ),
        ),
        made=(SCHEMAS, KEYWORDS),
    ),
    "output column": Trial(
        most=4,
        edits=(
            (
                "iosim/prediction/result.py",
                '            "flops": self.flops,\n',
                '            "flops": self.flops,\n            "flops_per_hbm_byte": None,\n',
            ),
            (
                "tests/golden/meanings.toml",
                "[keys]\n",
                '[keys]\nflops_per_hbm_byte = "a trial; null"\n',
            ),
        ),
        made=(SCHEMAS,),
    ),
    "command": Trial(
        most=6,
        new={"iosim/commands/trial.py": COMMAND},
        edits=(
            ("iosim/commands/table.py", "\n\nCOMMANDS = {", f"{OPTIONS}\n\nCOMMANDS = {{"),
            (
                "tests/golden/make_schemas.py",
                '    "cache show": ("",),\n',
                '    "cache show": ("",),\n    "trial": ("fa2",),\n',
            ),
            (
                "tests/golden/meanings.toml",
                "[keys]\n",
                '[keys]\n"tile.block_q" = "query rows of a tile"\n',
            ),
        ),
        made=(SCHEMAS,),
    ),
}


def digests(tree: Path) -> dict[str, str]:
    """File -> digest of what it holds, without what runs leave behind."""
    by_file = {}
    for path in tree.rglob("*"):
        name = path.relative_to(tree).as_posix()
        if path.is_file() and "__pycache__" not in name and not name.endswith(".so"):
            by_file[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return by_file


class Copy:
    """A copy of the tree with every trial in it."""

    def __init__(self, tree: Path) -> None:
        self.tree = tree
        ignored = shutil.ignore_patterns("__pycache__")
        for name in COPIED:
            shutil.copytree(ROOT / name, tree / name, ignore=ignored)
        for name in ("pyproject.toml", "README.md", "constraints.txt"):
            shutil.copyfile(ROOT / name, tree / name)
        before = digests(tree)
        for trial in TRIALS.values():
            for name, text in trial.new.items():
                (tree / name).write_text(text, encoding="utf-8")
            for name, old, new in trial.edits:
                whole = (tree / name).read_text(encoding="utf-8")
                assert whole.count(old) == 1, f"{name}: {old!r}"
                (tree / name).write_text(whole.replace(old, new), encoding="utf-8")
        with (tree / "iosim/problem/masks/words.py").open("a", encoding="utf-8") as file:
            file.write(MASK)
        self.run("docs/generated/make_keywords.py")
        self.run("tests/golden/make_schemas.py")
        self.run("tests/golden/make_studies.py", "trial-kernel", "mosaic-gpu")
        after = digests(tree)
        self.changed = {
            name for name in before.keys() | after.keys() if before.get(name) != after.get(name)
        }

    def run(self, *words: str) -> str:
        """What Python prints of a script, or of `-m` a module, in the copy."""
        environment = {
            **os.environ,
            "PYTHONPATH": str(self.tree),
            "IOSIM_CACHE": "off",
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        done = subprocess.run(
            [sys.executable, *words],
            cwd=self.tree,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{words}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        return done.stdout

    def json(self, line: str) -> dict[str, object]:
        printed: dict[str, object] = json.loads(
            self.run("-m", "iosim", *line.split(), "--format", "json")
        )
        return printed


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Copy:
    return Copy(tmp_path_factory.mktemp("trial") / "iosim-with-trials")


@pytest.mark.parametrize("kind", TRIALS)
def test_an_addition_touches_few_files(kind: str) -> None:
    assert len(TRIALS[kind].files) <= TRIALS[kind].most


def rows_of_contributing() -> dict[str, list[str]]:
    """What CONTRIBUTING adds -> the files that it names for it."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    table = text.partition("\n## Add something\n")[2].partition("\n## ")[0]
    cells = [line.split(" | ") for line in table.splitlines() if line.startswith("| ")][2:]
    return {row[0].strip("| "): re.findall(r"`((?:\w+/)+[\w.]+)`", row[1]) for row in cells}


PAGE_ROWS = {
    "GPU": "a GPU",
    "kernel": "a library kernel",
    "kernel of the examples": "a library kernel",
    "mask": "a mask",
    "output column": "an output column",
    "command": "a command",
}


@pytest.mark.parametrize("kind", TRIALS)
def test_contributing_names_every_file_that_an_addition_touches(kind: str) -> None:
    named = rows_of_contributing()[PAGE_ROWS[kind]]
    patterns = [re.compile(re.escape(name).replace("NAME", r"[\w-]+")) for name in named]
    for file in TRIALS[kind].files:
        is_test = file.startswith("tests/problem/")  # "a test"
        assert is_test or any(pattern.fullmatch(file) for pattern in patterns), file


@pytest.mark.slow
def test_no_other_file_was_touched(copy: Copy) -> None:
    assert copy.changed == set().union(*(trial.files for trial in TRIALS.values()))


@pytest.mark.slow
def test_iosim_takes_them(copy: Copy) -> None:
    kernel = copy.json("predict --gpu trial-gpu --kernel trial-attention,fa2 --seq-len 512")[
        "predictions"
    ]
    assert isinstance(kernel, list)
    assert kernel[0]["profile"] == "trial-gpu"
    assert kernel[0]["kernel"]["name"] == "trial-kernel"
    assert kernel[0]["totals"] == kernel[1]["totals"]  # it is FlashAttention-2 by another name
    assert kernel[0]["flops_per_hbm_byte"] is None
    example = copy.json("predict --gpu h100 --kernel mosaic-gpu --dtype bf16 --head-dim 128")
    assert isinstance(example["predictions"], list)
    assert example["predictions"][0]["kernel"]["block_k"] == 128
    masked = copy.json(
        "predict --kernel flash --mask every-second --mask-block 64 --seq-len 512 --head-dim 64"
    )
    assert isinstance(masked["predictions"], list)
    assert copy.json("trial fa2")["tile"] == {"block_q": 128, "block_k": 128}


@pytest.mark.slow
def test_the_tests_of_the_copy_pass(copy: Copy) -> None:
    """Those of the additions, by their names, and those that hold lists together."""
    files = (
        "tests/hardware/test_profile.py",
        "tests/catalog/libraries/test_resolver.py",
        "tests/problem/test_every_second.py",
        "tests/commands/test_schemas.py",
        "tests/commands/test_completion.py",
        "tests/base/test_errors.py",
    )
    named = "trial or mosaic or every_second or has_a_schema or listed_ones or completed or known"
    copy.run(
        "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-m", "not slow", "-k", named, *files
    )
    kernel = "import make_studies as m; m.STUDIES; print(dict(m.made_of_kernel('catalog', 'trial-kernel')) == "
    kernel += "m.recorded_of_kernel('trial-kernel')['catalog'])"
    assert copy.run("-c", f"import sys; sys.path.append('tests/golden'); {kernel}") == "True\n"


@pytest.mark.slow
def test_recorded_lists_are_those_of_before(copy: Copy) -> None:
    """What is recorded of lists of kernels, GPUs and commands has rows that an addition leaves alone."""
    listed = "import command_cases as c; print(dict(c.cases(tuple(c.ROWS_OF))))"
    in_copy = copy.run("-c", f"import sys; sys.path.append('tests/golden'); {listed}")
    cases = load_script("tests/golden/command_cases.py")
    assert in_copy == f"{dict(cases.cases(tuple(cases.ROWS_OF)))}\n"
