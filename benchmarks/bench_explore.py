"""The explorer's page in headless Chromium: `python benchmarks/bench_explore.py [PAGE]`.

Bytes of the page that `iosim explore --out` writes and seconds to write it; milliseconds from opening the file to its
first figure; milliseconds from a choice to its figures at 4k, 16k and 64k tokens. The best of three each. PAGE is one
that was written before.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "support"))

from browser import CHROMIUM, Browser  # noqa: E402

from iosim.studies.explore.page import write  # noqa: E402
from iosim.studies.requests import ExploreRequest  # noqa: E402

RUNS = 3
STATE = "gpu=h100&kernel=fa2&heads=32+%2F+8&dim=128"
ANSWERED = "performance.getEntriesByName('answered').at(-1).startTime"
CHANGE = """(async () => {
  const begun = performance.now();
  location.hash = %s;
  for (;;) {
    await new Promise((done) => setTimeout(done, 2));
    const last = performance.getEntriesByName("answered").at(-1);
    if (last && last.startTime > begun) return last.startTime - begun;
  }
})()"""


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        if len(sys.argv) > 1:
            place = Path(sys.argv[1]).absolute()
            print(f"{place.stat().st_size:,} bytes")
        else:
            begun = time.perf_counter(), time.process_time()
            place = write(ExploreRequest(out=str(Path(folder) / "page")))
            took = time.perf_counter() - begun[0]
            print(f"{place.stat().st_size:,} bytes, written in {took:.0f} s on all cores")
        if CHROMIUM is None:
            print("chromium is not installed: nothing is opened")
            return
        browser = Browser(Path(folder))
        try:
            first = []
            taken = dict.fromkeys(
                ("4k none", "16k causal", "16k none", "64k causal", "64k none"), 1e9
            )
            for _ in range(RUNS):
                browser.open(place, 1280)
                browser.evaluate("iosimPage.done")
                first.append(browser.evaluate(ANSWERED))
                for case in taken:
                    length, mask = case.split()
                    ms = browser.evaluate(CHANGE % f"'{STATE}&seq={length}&mask={mask}'")
                    taken[case] = min(taken[case], ms)
            print(f"first figure {min(first):.0f} ms after the page is opened")
            for case, ms in taken.items():
                print(f"fa2 on h100, 32 heads of 8 key/value, {case:<10} {ms:7.0f} ms")
        finally:
            browser.close()


if __name__ == "__main__":
    main()
