"""What the explorer's server answers, asked over HTTP: the JSON of `iosim predict` for any line of its options, and the
parts of a question about a model.

The server is the one that `iosim explore` starts, on a free port.
"""

from __future__ import annotations

import json
import threading
from functools import partial
from urllib.parse import urlencode
from urllib.request import urlopen

from iosim.commands.cli import parsed
from iosim.commands.explore import answered
from iosim.studies.explore.server import server

LINES = (
    "--kernel fa2 --gpu a100 --heads 32 --kv-heads 8 --seq-len 16k --causal",
    "--kernel flash --gpu h100 --heads 16 --seq-len 8k --tile 64x64 --order head",
    "--kernel fa9",
)

with server(0, {}, partial(answered, parsed=parsed)) as running:
    threading.Thread(target=running.serve_forever, daemon=True).start()
    for line in LINES:
        with urlopen(
            f"http://127.0.0.1:{running.server_port}/answer?{urlencode({'line': line})}"
        ) as reply:
            said = json.load(reply)
        print(line)
        if "error" in said:
            print(f"  refused: {said['error']}\n")
            continue
        (prediction,) = said["predictions"]
        print(
            f"  {prediction['totals']['hbm']['read']:,} bytes read from HBM; {said['record']['why_text']}"
        )
        record = said["record"]
        print(
            f"  the page replays {record['accesses']:,} tile accesses, from {len(record['streams'])} arrays\n"
        )
    question = {
        "model": "llama-3-8b",
        "gpu": "h100",
        "context": "32k",
        "batch": 8,
        "weights": "int4",
    }
    for part in ("memory", "step"):
        line = json.dumps(question | {"part": part})
        with urlopen(
            f"http://127.0.0.1:{running.server_port}/question?{urlencode({'line': line})}"
        ) as reply:
            said = json.load(reply)
        print(said["command"])
        if part == "memory":
            print(f"  fits: {said['fits']}, up to {said['longest_context']:,} tokens of context")
        else:
            print(f"  {said['tokens_per_s']:.0f} tokens per second, bound by {said['bound']['by']}")
    running.shutdown()
