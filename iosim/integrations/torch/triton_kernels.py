"""Triton's kernels that a program launches, by torch.library.triton_op and wrap_triton or by themselves: compiled for
the GPU that need not be there, and recorded by their code.

Nothing is computed: what a kernel writes holds no values. Where a kernel is tuned, its first configuration is taken.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from iosim.base.errors import InputError
from iosim.integrations.torch.formulas import Pass
from iosim.integrations.torch.recorder import Recorder

TUNED = "the first of the configurations that {} is tuned over is taken"
NOT_READ = "kernel {} is not known by its code ({}): its tensors are counted once"


@contextmanager
def triton_recorded(recorder: Recorder) -> Iterator[None]:
    """Launches of Triton's kernels replaced by their record, while Triton is loaded."""
    if "triton" not in sys.modules:
        yield
        return
    from torch._library.triton import set_wrap_triton_enabled
    from triton.runtime.autotuner import Autotuner
    from triton.runtime.jit import JITFunction

    def run(fn: Any, *args: Any, grid: Any, warmup: bool = False, **options: Any) -> None:
        del warmup
        _record(recorder, fn, grid, args, options)

    def tuned(tuner: Any, *args: Any, grid: Any, **options: Any) -> None:
        recorder.notes[TUNED.format(getattr(tuner.base_fn, "__name__", "a kernel"))] = None
        tuner.fn.run(*args, grid=grid, **{**options, **tuner.configs[0].all_kwargs()})

    with ExitStack() as stack:
        stack.enter_context(set_wrap_triton_enabled(False))  # what wraps a kernel then launches it
        for owner, replacement in ((JITFunction, run), (Autotuner, tuned)):
            stack.callback(setattr, owner, "run", owner.run)
            owner.run = replacement
        yield


def _record(recorder: Recorder, fn: Any, grid: Any, args: Any, options: dict[str, Any]) -> None:
    from iosim.integrations.triton.launched import arguments_of, launched
    from iosim.prediction.code import planned_code

    arguments = arguments_of(fn, args, options)
    tensors = {name: value for name, value in arguments.items() if hasattr(value, "data_ptr")}
    try:
        with recorder.pause():
            launch = launched(fn, grid, arguments, options, recorder.profile)
            planned = planned_code(launch.call, recorder.profile)
    except InputError as error:
        recorder.notes[NOT_READ.format(fn.__name__, error)] = None
        recorder.launched += 1
        recorder.pieces(
            fn.__name__, [Pass(list(tensors.values()), list(tensors.values()))], known=False
        )
        return
    for note in (*planned.launch.chain.notes, *planned.notes):
        recorder.notes[f"{launch.name}: {note}"] = None
    recorder.code(launch.name, planned.call, tensors, planned.notes)
