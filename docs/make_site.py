"""Builds the documentation as a site: `python docs/make_site.py` writes build/site.

A link to nothing, in a page or between pages, ends it with exit code 1.

The pages stay where they are: they are copied, with what they link to, into build/site-source as they lie in the
repository, so that a link that works there works on the site. The reference of the Python interface is made of
docstrings (mkdocstrings): a section for each name of `iosim/api/names.pyi`. Needs `pip install -e ".[docs]"`.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "build" / "site-source"
FOLDERS = (
    "docs",
    "examples",
    "experiments",
    "benchmarks",
    "kernels",
    "skills",
    "hardware_profiles",
    "reports",
)
TOP = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "AGENTS.md", "LICENSE")
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)\s]*)?\)")
"""The target of a Markdown link or picture, without what follows a #."""
REFERENCE = Path("docs") / "reference.md"


def pages() -> list[Path]:
    """The Markdown files of the site, relative to the repository."""
    folders = [page for folder in FOLDERS for page in sorted((ROOT / folder).rglob("*.md"))]
    return [Path(name) for name in TOP if (ROOT / name).is_file()] + [
        page.relative_to(ROOT) for page in folders
    ]


def linked(page: Path) -> set[Path]:
    """Files of the repository that a page links to, relative to the repository."""
    text = (ROOT / page).read_text(encoding="utf-8")
    targets = (
        (ROOT / page.parent / target).resolve()
        for target in LINK.findall(text)
        if "://" not in target
    )
    return {
        target.relative_to(ROOT)
        for target in targets
        if target.is_relative_to(ROOT) and target.is_file()
    }


def plain_fences(text: str) -> str:
    """A page whose blocks bear one word, the language, which is all that Python-Markdown reads: "text part" is text."""
    return re.sub(r"^```(\w+) .*$", r"```\1", text, flags=re.M)


def public_names() -> list[tuple[str, str]]:
    """(name, where it is defined) of every name of `import iosim`."""
    lines = (ROOT / "iosim" / "api" / "names.pyi").read_text(encoding="utf-8").splitlines()
    return [(line.split()[-1], line.split()[1]) for line in lines if line.startswith("from ")]


def reference() -> str:
    """The page of the Python interface: a section a name, functions first."""
    parts = [
        "# Python reference",
        "What `import iosim` offers; [the commands](README.md) take the same words as options.",
    ]
    for title, wanted in (("Functions", str.islower), ("Classes", lambda name: not name.islower())):
        parts.append(f"## {title}")
        parts += [f"::: {module}.{name}" for name, module in public_names() if wanted(name)]
    return "\n\n".join(parts) + "\n"


def assemble() -> None:
    """Copies the pages and what they link to into `SOURCE`, and writes the reference."""
    shutil.rmtree(SOURCE, ignore_errors=True)
    everything = set(pages())
    for page in pages():
        everything |= linked(page)
    for name in sorted(everything):
        target = SOURCE / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if name.suffix == ".md":
            target.write_text(
                plain_fences((ROOT / name).read_text(encoding="utf-8")), encoding="utf-8"
            )
        else:
            shutil.copyfile(ROOT / name, target)
    (SOURCE / REFERENCE).write_text(reference(), encoding="utf-8")


def main() -> int:
    assemble()
    command = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--strict",
    ]  # NB: with --quiet it would take any link
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        print(done.stdout, done.stderr, sep="", file=sys.stderr)
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
