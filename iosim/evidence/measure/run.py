"""What runs calls apart from this process: `python -m iosim.evidence.measure.run KIND PLAN.json DONE.jsonl`.

Each call of the plan is made, and DONE.jsonl gets a line of each; `left_out`, the reason, where one fails. `own` are
those of the project's kernels, `chain` and `range` whole chains, `library` PyTorch's kernels, and `scans` the
microbenchmarks', which need no PyTorch.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any


def answers(kind: str, plan: Any) -> Iterable[dict[str, Any]]:
    if kind == "scans":
        from iosim.evidence.cuda.microbench import play

        return play(plan)
    from iosim.evidence.measure.torch_run import run_in_torch

    return run_in_torch(kind, **plan)


def main() -> int:
    kind, plan, done = sys.argv[1:4]
    with Path(done).open("w", encoding="utf-8") as out:
        for answer in answers(kind, json.loads(Path(plan).read_text(encoding="utf-8"))):
            out.write(json.dumps(answer) + "\n")
            out.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
