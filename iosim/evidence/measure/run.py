"""What runs calls apart from this process: `python -m iosim.evidence.measure.run KIND PLAN.json DONE.jsonl`.

Each call of the plan is made, and DONE.jsonl gets a line of each; `left_out`, the reason, where one fails. `launches`
are those of the project's own kernels, `check` and `range` whole chains, `library` PyTorch's kernels, and `scans` the
microbenchmarks', which need no PyTorch.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any


def answers(kind: str, plan: Any) -> Iterable[dict[str, Any]]:
    """Makes the calls of a plan one by one; gives what there is to say of each."""
    if kind == "scans":
        from iosim.evidence.cuda.microbench import play

        return play(plan)
    if kind == "library":
        from iosim.evidence.measure import library_run

        return library_run.run(**plan)
    from iosim.evidence.measure import chain_run

    if kind == "range":
        return chain_run.make_range(plan)
    return chain_run.launches_of(**plan) if kind == "launches" else chain_run.check_all(plan)


def main() -> int:
    kind, plan, done = sys.argv[1:4]
    with Path(done).open("w", encoding="utf-8") as out:
        for answer in answers(kind, json.loads(Path(plan).read_text(encoding="utf-8"))):
            out.write(json.dumps(answer) + "\n")
            out.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
