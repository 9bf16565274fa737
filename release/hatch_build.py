"""Build hook: compiles the replay engine beside its Python module, for wheels and editable installs alike.

Where there is no C compiler, one that comes as a package is asked for as a requirement of the build. The engine has no
Python in it, so a wheel is one platform's and every Python 3's: this machine's, or that of `TARGETS` which IOSIM_WHEEL
names. `release/wheels.py` makes and checks them all.
"""

from __future__ import annotations

import os
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from packaging.tags import platform_tags

TARGETS = {
    "manylinux_2_17_x86_64": "x86_64-linux-gnu.2.17",
    "manylinux_2_17_aarch64": "aarch64-linux-gnu.2.17",
    "musllinux_1_2_x86_64": "x86_64-linux-musl",
    "musllinux_1_2_aarch64": "aarch64-linux-musl",
    "macosx_11_0_x86_64": "x86_64-macos.11.0",
    "macosx_11_0_arm64": "aarch64-macos.11.0",
    "win_amd64": "x86_64-windows-gnu",
}
"""Platform tag of a wheel -> the machine and its oldest system, as the compiler that comes as a package names them."""


def load_build(root: str) -> ModuleType:
    """The module that compiles the engine, which needs none of the package's own requirements."""
    spec = spec_from_file_location(
        "iosim_build", Path(root, "iosim", "readers", "replay", "build.py")
    )
    assert spec is not None
    assert spec.loader is not None
    build_module = module_from_spec(spec)
    spec.loader.exec_module(build_module)
    return build_module


class EngineBuildHook(BuildHookInterface):
    """Compiles the engine as `iosim/readers/replay/build.py` says."""

    PLUGIN_NAME = "custom"

    def dependencies(self) -> list[str]:
        build = load_build(self.root)
        if build.system_compiler() and not self._target():
            return []
        print(
            f"iosim: a C compiler comes as {build.COMPILER_PACKAGE}, 100 MB: a minute or two",
            file=sys.stderr,
        )
        return [build.COMPILER_PACKAGE]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        build = load_build(self.root)
        engine = build.ENGINE.relative_to(Path(self.root).resolve()).as_posix()
        platform = self._target()
        if platform:
            self.scratch = TemporaryDirectory()
            engine_file = Path(self.scratch.name, build.ENGINE.name)
            build.compile_engine(engine_file, machine=TARGETS[platform])
            build_data["force_include"][str(engine_file)] = engine
        else:
            try:
                build.compile_engine()
            except build.BuildError as error:
                print(
                    f"iosim: no replay engine: {error}; HBM traffic will be estimated",
                    file=sys.stderr,
                )
                return
            platform = next(
                tag for tag in platform_tags() if "manylinux" not in tag and "musllinux" not in tag
            )
            build_data["artifacts"].append(f"/{engine}")
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{platform}"

    def _target(self) -> str:
        """The platform that is asked for; empty for this machine's. Raises ValueError: there is none of that name."""
        platform = os.environ.get("IOSIM_WHEEL", "")
        if platform and platform not in TARGETS:
            raise ValueError(
                f"IOSIM_WHEEL '{platform}' is no platform; accepted: {', '.join(TARGETS)}"
            )
        return platform
