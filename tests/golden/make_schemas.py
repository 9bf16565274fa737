"""Writes the JSON schemas of the commands' output, iosim/commands/schemas.json.

    python tests/golden/make_schemas.py             # writes them anew
    python tests/golden/make_schemas.py --missing   # lists keys without a meaning in meanings.toml

Types are those that the command lines of LINES print; what a key means stands in meanings.toml beside this file, and
what a field of a problem means is said by the field itself.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import io
import json
import os
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from iosim.base.data import data_dir
from iosim.base.fields import Kind, described
from iosim.base.files import write_whole
from iosim.commands.cli import main as iosim
from iosim.commands.known import PLACE, SHARED, documented, schema
from iosim.problem.fields import FIELDS

MEANINGS = Path(__file__).resolve().parent / "meanings.toml"
SHORTEST = 150
"""Characters from which a part that several schemas hold alike stands once."""
DRAFT = "https://json-schema.org/draft/2020-12/schema"
NCU = "--ncu tests/data/ncu_user.csv --seq-len 1000,4096 --heads 8 --head-dim 64,128 --causal"

LINES: dict[str, tuple[str, ...]] = {
    "predict": (
        "--seq-len 512",
        "--kernel fa2 --pass fwd+bwd --seq-len 512 --gpu h200",
        "--kernel fa2 --method bounds",
        "--kernel fa2 --method capacity",
        "--kernel flash --tile 64x64 --window 64 --window-right 32 --dropout 0.1 --seq-len 512",
        "--gpu t4 --kernel sdpa --seq-len 512",
        "--kernel fa2 --seq-lens 512,100 --causal",
        "--kernel cutlass --bias full --seq-len 512",
        "--gpu h100 --kernel flex --mask window+global --window 256 --seq-len 2k --kernel flash",
        "--gpu h100 --kernel flashmla --latent-kv --head-dim 576 --head-dim-v 512 --heads 16 --page-size 64 "
        "--seq-len 1 --seq-len-k 2k",
        "--gpu h200 --kernel fa2 --seq-len 64k --heads 32 --method sampled",
        "--l2 warm --seq-len 512",
        "--gpu mi355x --seq-len 512",
        "--model gemma-3-4b --layers 6 --seq-len 2k --gpu h100",
        "--model qwen3-next-80b-a3b --layers 4 --seq-len 256",
        "--model deepseek-v3.2 --layers 1 --seq-len 1 --seq-len-k 2k --method bounds",
        "--kernel flash --tile 64x64 --stages 2 --heavy-first --seq-len 512 --against BEFORE --fail-above hbm=5%",
        "--kernel flash,eager --seq-len 512 --against BEFORE",
        "--kernel flash --seq-len 512 --method bounds --against BEFORE",
        "--kernel flash --seq-len 512 --against BOUNDS",
    ),
    "compare": (
        "--seq-len 512,1k",
        "--gpu a100,t4 --kernel naive,fa2,cudnn --seq-len 512 --causal",
        "--kernel fa2 --seq-len 512 --method bounds",
        "--kernel fa2 --seq-len 512 --method capacity",
        "--bias full --kernel naive,cutlass --seq-len 512",
        "--model gpt-oss-20b --gpu h100,t4 --kernel naive,fa3 --seq-len 64,256",
        "--gpu h100,h200,v100 --kernel fa2 --per dollar --price h100=2,h200=3,v100=1 --seq-len 512",
        "--model llama-3-8b --gpu h100,t4 --per token --price h100=2 --batch 1,8 --seq-len 1 --seq-len-k 1k",
    ),
    "explain": (
        "--seq-len 512 --heads 4",
        "--gpu l4 --kernel naive --seq-len 512 --heads 2",
        "--gpu h200 --kernel fa2,cudnn --heads 4 --seq-len 2k --causal --pass fwd",
    ),
    "trace": (
        "--seq-len 512 --heads 4",
        "--gpu h200 --kernel fa2,cudnn --seq-len 1k --heads 2 --causal",
    ),
    "formula": (
        "flash",
        "naive --gpu a100",
        "fa2 --bound --seq-len 512 --pass fwd+bwd",
        "fa2 --bound --seq-len 512 --window 64",
        "fa2 --pass bwd",
        "flash --seq-len 4k --gpu a100 --heads 8 --batch 1",
        "flash --mask butterfly --seq-len 4k --heads 8 --batch 1 --head-dim 128 --tile 128x64 --dtype fp16",
    ),
    "sweep": (
        "--seq-len 512",
        "--gpu a100,t4 --kernel fa2,flash --seq-len 512,1k --method bounds",
        "--kernel flash --seq-len 512 --window 64,128 --tile 64x64,128x64 --method capacity",
        "--model gemma-3-4b --seq-len 512 --method capacity",
    ),
    "tiles": (
        "--seq-len 1k",
        "--gpu t4,l4 --seq-len 512 --pass bwd",
        "--kernel fa2 --seq-len 512 --top 2",
        "--tile 256x256,64x64",
        "--triton --top 3",
        "--model llama-3-8b --gpu t4 --seq-len 256 --dtype fp16 --top 2",
        "--model vit-l --tile 64x64 --seq-len 256",
    ),
    "latency": (
        "--stack vllm,sglang --gpu a100 --batch 4 --kv-heads 8 --seq-len 1 --seq-len-k 4k",
        "--gpu h100 --batch-contexts 1k,3k --kv-heads 8",
        "--stack flashinfer --gpu l4 --seq-len 512 --launched alone --no-cache-write",
        "--stack list",
    ),
    "orders": (
        "--gpu h200 --heads 4 --seq-len 1k --causal",
        "--gpu a100,t4 --kernel flash --heads 4 --seq-len 512,1k --weights 1,2 --tile 64x64,512x512 --scheduler static",
        "--gpu b200 --heads 4 --seq-len 1k --causal --order head --direction ascending",
        "--gpu mi355x --heads 4 --seq-len 1k --order head --direction ascending",
        "--gpu h200 --heads 4 --seq-len 1k --code triton --scheduler static --direction ascending",
        "--check-constant section=1MiB --gpu h200 --heads 4 --seq-len 512,1k",
    ),
    "decode": (
        "--context 1k,8k",
        "--gpu h100 --kernel fa3 --context 1k",
        "--gpu h100 --split-rule fa3,vllm --batch-contexts 1k,3k --launched graph",
        "--latent-kv --kernel flashmla --gpu h100 "
        "--heads 16 --head-dim 576 --head-dim-v 512 --context 1k --page-size 64",
        "--model gemma-3-4b --layers 6 --gpu h100 --context 2k",
        "--model qwen3-next-80b-a3b --layers 4 --gpu h100 --context 2k",
    ),
    "ring": (
        "--num-gpus 4 --seq-len 1k --causal --steps",
        "--gpu h100 --num-gpus 16 --gpus-per-node 8 --network ib --seq-len 4k",
        "--num-gpus 2 --seq-len 1k --pass fwd+bwd --schedule ring,megatron",
        "--model gemma-3-4b --num-gpus 2 --seq-len 2k --schedule ring",
    ),
    "model": (
        "gpt2 --seq-len 64",
        "mixtral-8x7b,gpt2 --layers 1 --seq-len 64 --gpu h100 --training",
        "mixtral-8x7b --layers 1 --context 64 --fused",
    ),
    "train-memory": (
        "--layers 1 --seq-len 64 --data-parallel 2 --zero 2",
        "--layers 2 --seq-len 512",
        "--gpu l4 --frontier layers --layers 2,4 --seq-len 1k,2k",
        "--layers 2 --backend cpu --attention naive",
        "--gpu t4 --layers 48 --width 4096 --precision fp32",
    ),
    "validate": ("--measurements ROWS --fail-above hbm_read=500%", NCU, "--times --every 230"),
    "reproduce": ("--section A,G",),
    "check-claim": (
        "--hbm 276.8MB --l2 1GB --heads 32 --seq-len 1k",
        "--time 1.5ms --flops 137GFLOP --causal",
        "--hbm 123456789GB --seq-len 512",
        "--hbm 40.3GB --ratio 9x --tflops 188 --mfu 60% --bandwidth 95GB/s --gpu a100 --kernel fa2 --seq-len 4096",
    ),
    "profiles list": ("",),
    "profiles show": ("h200", "t4", "b200", "rtx-4090", "gb200"),
    "profiles check": ("hardware_profiles/h200-sxm.toml",),
    "kernels list": ("",),
    "kernels show": ("fa2", "naive"),
    "kernels check": ("iosim/catalog/libraries/fa2.toml",),
    "models list": ("",),
    "models show": ("deepseek-v3.2", "llama-4-scout", "qwen3-next-80b-a3b", "vit-l"),
    "cache show": ("",),
    "ncu-rule": (
        "--launch tests/data/ncu_launch.json",
        "--launch tests/data/ncu_launch_untold.json",
    ),
}
"""Command -> what follows it, one line for each shape of output that there is."""
MOST_TOKENS = 2048
OPEN = ("profiles show.profile", "kernels show.kernel")
"""Objects that hold what a file holds: docs/profiles.md and docs/how-to-add.md describe them."""
NULLABLE = {"hbm", "smem", "time_s", "bound_by", "shared_memory_bytes", "page_size", "ratio"}
"""Keys that may be null in output that LINES does not print."""


def few_rows(folder: str) -> str:
    """A table of some short calls of each kernel that was measured."""
    with (data_dir("kernels") / "measurements" / "h200_library_kernels.csv").open(
        newline=""
    ) as file:
        rows = list(csv.DictReader(file))
    calls_kept: dict[str, str] = {}
    for row in rows:
        if int(row["seq_q"]) <= MOST_TOKENS:
            calls_kept.setdefault(f"{row['implementation']} {row['causal']}", row["call"])
    place = Path(folder) / "rows.csv"
    with place.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(row for row in rows if row["call"] in calls_kept.values())
    return str(place)


def before(folder: str, rest: str = "") -> str:
    """Predictions of an earlier day."""
    place = Path(folder) / "before.json"
    place.write_text(
        json.dumps(output("predict", f"--kernel flash,naive --seq-len 512{rest}")), encoding="utf-8"
    )
    return str(place)


def bounds(folder: str) -> str:
    """Predictions of an earlier day that know no bytes at HBM."""
    return before(folder, " --method bounds")


def output(command: str, rest: str) -> Any:
    """What a command prints as JSON."""
    for word, written in (("ROWS", few_rows), ("BEFORE", before), ("BOUNDS", bounds)):
        if word in rest:
            with tempfile.TemporaryDirectory() as folder:
                return output(command, rest.replace(word, written(folder)))
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(io.StringIO()):
        code = iosim([*command.split(), *rest.split(), "--format", "json"])
    if code != 0 and not (command.endswith("check") and printed.getvalue()):
        raise SystemExit(f"iosim {command} {rest} ends with {code}")
    return json.loads(printed.getvalue())


def schema_of(
    samples: Iterable[Any], meanings: Mapping[str, str], path: str, maps: Iterable[str]
) -> dict[str, Any]:
    """The narrowest schema that accepts the samples; `maps` are paths of objects whose keys are data."""
    values = list(samples)
    kinds: dict[str, dict[str, Any]] = {}
    numbers = [v for v in values if isinstance(v, int | float) and not isinstance(v, bool)]
    if numbers:
        whole = all(isinstance(v, int) for v in numbers) and not path.endswith(
            ("_s", "fraction", "clock_per_sm")
        )
        name = "integer" if whole else "number"
        kinds[name] = {"type": name}
    for name, kind in (("boolean", bool), ("string", str), ("null", type(None))):
        if any(isinstance(v, kind) for v in values):
            kinds[name] = {"type": name}
    lists = [v for v in values if isinstance(v, list)]
    if lists:
        items = [item for items_of_list in lists for item in items_of_list]
        kinds["array"] = {"type": "array"} | (
            {"items": schema_of(items, meanings, f"{path}[]", maps)} if items else {}
        )
    objects = [v for v in values if isinstance(v, dict)]
    if objects:
        kinds["object"] = _object(objects, meanings, path, maps)
    if path.rsplit(".", 1)[-1] in NULLABLE and kinds:
        kinds.setdefault("null", {"type": "null"})
    if all(set(kind) == {"type"} for kind in kinds.values()):
        return {"type": next(iter(kinds)) if len(kinds) == 1 else sorted(kinds)} if kinds else {}
    return next(iter(kinds.values())) if len(kinds) == 1 else {"anyOf": list(kinds.values())}


def _object(
    objects: list[dict[str, Any]], meanings: Mapping[str, str], path: str, maps: Iterable[str]
) -> dict[str, Any]:
    if path.rsplit(".", 1)[-1].removesuffix("[]") == "problem":
        return {"$ref": "#/$defs/problem"}
    if any(path.endswith(map) for map in maps):
        values = [v for object in objects for v in object.values()]
        return {
            "type": "object",
            "additionalProperties": schema_of(values, meanings, f"{path}.*", maps),
        }
    keys = list(dict.fromkeys(key for object in objects for key in object))
    properties = {}
    for key in keys:
        if f"{path}.{key}" in OPEN:
            properties[key] = {"description": meaning(key, path, meanings), "type": "object"}
            continue
        inner = schema_of(
            (object[key] for object in objects if key in object), meanings, f"{path}.{key}", maps
        )
        properties[key] = {"description": meaning(key, path, meanings)} | inner
    required = [key for key in keys if all(key in object for object in objects)]
    return {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }


def meaning(key: str, path: str, meanings: Mapping[str, str]) -> str:
    """What a key means: where its object has a meaning of its own for it, that one."""
    parent = path.rsplit(".", 1)[-1].removesuffix("[]")
    return meanings.get(f"{parent}.{key}") or meanings.get(key, "")


def problems_in(printed: Any) -> list[dict[str, Any]]:
    """The problems that some output holds."""
    if isinstance(printed, list):
        return [problem for item in printed for problem in problems_in(item)]
    if not isinstance(printed, dict):
        return []
    first = [printed["problem"]] if isinstance(printed.get("problem"), dict) else []
    return first + [problem for item in printed.values() for problem in problems_in(item)]


def problem_schema(printed: Any) -> dict[str, Any]:
    """Of a problem, from what its fields say; what is always there is so in every problem of the output, too."""
    kinds = {
        Kind.WHOLE: "integer",
        Kind.PROBABILITY: "number",
        Kind.FLAG: "boolean",
        Kind.WORD: "string",
        Kind.FILE: "string",
        Kind.OBJECT: "object",
    }
    properties: dict[str, Any] = {}
    for about in FIELDS.values():
        field_schema: dict[str, Any] = {"description": described(about)}
        if about.kind in kinds:
            field_schema["type"] = (
                [kinds[about.kind], "null"] if about.default is None else kinds[about.kind]
            )
        if about.kind is Kind.WORD and about.default is not None:
            field_schema["enum"] = list(about.words)
        properties[about.key] = field_schema
    always = [about.key for about in FIELDS.values() if about.always]
    required = [key for key in always if all(key in problem for problem in problems_in(printed))]
    return {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }


def build(command: str, meanings: Mapping[str, Any]) -> dict[str, Any]:
    """The schema of a command's JSON."""
    samples = [output(command, rest) for rest in LINES[command]]
    whole = schema_of(samples, meanings["keys"], command, meanings["maps"])
    text = json.dumps(whole)
    defs = {"$defs": {"problem": problem_schema(samples)}} if "#/$defs/problem" in text else {}
    return {"$schema": DRAFT, "title": f"iosim {command} --format json"} | whole | defs


def without_meaning(schema: Any, path: str = "") -> list[str]:
    """Properties that have no description."""
    if isinstance(schema, list):
        return [name for subschema_item in schema for name in without_meaning(subschema_item, path)]
    if not isinstance(schema, dict):
        return []
    paths = []
    for key, subschema in schema.get("properties", {}).items():
        paths += [f"{path}.{key}"] * (not subschema.get("description")) + without_meaning(
            subschema, f"{path}.{key}"
        )
    for key in ("items", "anyOf", "additionalProperties"):
        paths += without_meaning(schema.get(key), path)
    return paths


def parts_in(part: Any, name: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every schema inside a schema, the outermost first, with the key under which it stands."""
    if isinstance(part, list):
        for item in part:
            yield from parts_in(item, name)
    if isinstance(part, dict):
        if {"type", "anyOf"} & part.keys() and "$schema" not in part:
            yield name, part
        for key, item in part.items():
            yield from parts_in(
                item,
                name if key in ("items", "properties", "anyOf", "additionalProperties") else key,
            )


def shared(schemas: Mapping[str, Any]) -> dict[str, Any]:
    """The file: each schema, and once what stands in them more than once."""
    texts = [
        (name, json.dumps(part)) for schema in schemas.values() for name, part in parts_in(schema)
    ]
    names: dict[str, str] = {}
    for name, text in texts:
        if (
            text not in names
            and len(text) >= SHORTEST
            and sum(other == text for _, other in texts) > 1
        ):
            number = sum(known.split(" ")[0] == name for known in names.values())
            names[text] = f"{name} {number + 1}" if number else name

    def short(part: Any, whole: bool = False) -> Any:
        if isinstance(part, list):
            return [short(item) for item in part]
        if not isinstance(part, dict):
            return part
        name = None if whole else names.get(json.dumps(part))
        return {key: short(item) for key, item in part.items()} if name is None else {SHARED: name}

    return {
        "shared": {name: short(json.loads(text), whole=True) for text, name in names.items()},
        "commands": {command: short(schema) for command, schema in schemas.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--missing", action="store_true")
    parser.add_argument("--only", help="one command")
    args = parser.parse_args()
    os.environ["IOSIM_CACHE"] = "off"
    meanings = tomllib.loads(MEANINGS.read_text(encoding="utf-8"))
    schemas = {
        command: build(command, meanings)
        for command in (LINES if args.only is None else [args.only])
    }
    if args.missing:
        for command, subschema in schemas.items():
            sys.stdout.writelines(f"{command}: {path}\n" for path in without_meaning(subschema))
        return
    recorded_schemas = {command: schema(command) for command in documented() if command in LINES}
    write_whole(
        PLACE,
        json.dumps(shared(dict(sorted((recorded_schemas | schemas).items()))), indent=1) + "\n",
    )
    print(*schemas, sep="\n")


if __name__ == "__main__":
    main()
