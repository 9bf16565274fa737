"""The version of iosim, in one place for its API and its command line."""

from __future__ import annotations

__version__ = "0.1.0"


def commit() -> str:
    """The commit of the checkout that this is, with a + where files differ from it; empty where it is none."""
    import subprocess
    from pathlib import Path

    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return ""
    git = ["git", "-C", str(root), "describe", "--always", "--exclude=*", "--dirty=+"]
    try:
        return subprocess.run(
            git, capture_output=True, text=True, timeout=5, check=True
        ).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""
