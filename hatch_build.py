"""Build hook: compiles the replay engine beside its Python module, for wheels and editable installs alike.

Where there is no C compiler, one that comes as a package is asked for as a requirement of the build. The engine has no
Python in it, so a wheel is one platform's and every Python 3's.
"""

from __future__ import annotations

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from packaging.tags import platform_tags


class EngineBuildHook(BuildHookInterface):
    """Compiles the engine as `iosim/readers/replay/build.py` says."""

    PLUGIN_NAME = "custom"

    def dependencies(self) -> list[str]:
        build = self._build()
        return [] if build.system_compiler() else [build.COMPILER_PACKAGE]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        build = self._build()
        try:
            build.compile_engine()
        except build.BuildError as error:
            print(f"iosim: no replay engine: {error}; HBM traffic will be estimated", file=sys.stderr)
            return
        platform = next(tag for tag in platform_tags() if "manylinux" not in tag and "musllinux" not in tag)
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{platform}"
        build_data["artifacts"].append(f"/{build.ENGINE.relative_to(Path(self.root).resolve()).as_posix()}")

    def _build(self) -> ModuleType:
        """The module of the package that is being built, which needs none of the package's own requirements."""
        spec = spec_from_file_location("iosim_build", Path(self.root, "iosim", "readers", "replay", "build.py"))
        assert spec is not None
        assert spec.loader is not None
        made = module_from_spec(spec)
        spec.loader.exec_module(made)
        return made
