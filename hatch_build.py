"""Build hook: compiles the replay engine beside its Python module, for wheels and editable installs alike.

Without a C compiler the installation goes on without the engine, and only `--method replay` misses it.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SOURCE = Path("iosim/readers/replay/engine.c")
TARGET = Path("iosim/readers/replay/_engine.so")
FLAGS = ("-O3", "-std=c11", "-ffp-contract=off", "-shared", "-fPIC")


class EngineBuildHook(BuildHookInterface):
    """Runs the C compiler that Python itself was built with, or the first of cc, gcc and clang."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name != "wheel":
            return
        root = Path(self.root)
        configured = (sysconfig.get_config_var("CC") or "").split()[:1]
        compiler = next((found for name in (*configured, "cc", "gcc", "clang") if (found := shutil.which(name))), None)
        if compiler is None:
            print("iosim: no C compiler found; --method replay will not be available", file=sys.stderr)
            return
        command = [compiler, *FLAGS, "-o", str(root / TARGET), str(root / SOURCE)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            print(f"iosim: the replay engine did not compile: {done.stderr.strip()}", file=sys.stderr)
            return
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
        build_data["artifacts"].append(f"/{TARGET}")
