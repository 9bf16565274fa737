"""A rule of Nsight Compute: an attention kernel's predicted bytes beside the counted ones, on the profiler's own page.

`iosim ncu-rule --install DIR` writes this file there beside the section with the counters, INSTALLED filled in and
NvRules imported. It runs in the profiler's Python, which has neither iosim nor NumPy: it asks `python -m iosim ncu-rule
--launch FILE` for the answer, with the interpreter that installed it. Where that cannot be reached the page says so.
"""

import json
import os
import re
import tempfile
import time
from typing import Any

NvRules: Any = None

INSTALLED: Any = {}
"""python: the interpreter; path: where its iosim lies; words: options of `iosim ncu-rule --launch`; names: patterns of
the kernels that it knows."""

METRICS = (
    "dram__bytes_read.sum",
    "dram__bytes_write.sum",
    "l1tex__m_xbar2l1tex_read_bytes.sum",
    "l1tex__m_l1tex2xbar_write_bytes.sum",
    "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum",
    "gpu__time_duration.sum",
    "launch__registers_per_thread",
    "launch__shared_mem_per_block",
)
PATIENCE_S = 300
"""How long an answer may take."""
TITLE = "Predicted and Counted Bytes"
NOT_OURS = ("PYTHONHOME", "PYTHONPATH", "PYTHONSTARTUP", "LD_PRELOAD", "CUDA_INJECTION64_PATH")
"""Variables of the profiler's own environment that another Python must not see."""


def get_identifier() -> str:
    return "IosimAttentionTraffic"


def get_name() -> str:
    return "Attention Traffic (iosim)"


def get_description() -> str:
    return "Predicted bytes of attention kernels beside the counted ones, where they differ, and what would help."


def get_section_identifier() -> str:
    return "IosimAttention"


def facts_of(action: Any) -> Any:
    """What a profiled launch is, in plain types: kernel, grid, block, device, NVTX ranges, metrics with units."""
    metrics = {}
    for name in METRICS:
        metric = action.metric_by_name(name)
        value = None if metric is None else metric.value()
        if isinstance(value, (int, float)):
            metrics[name] = [value, metric.unit() or ""]
    name, device = (
        action.name(action.NameBase_DEMANGLED),
        action.metric_by_name("device__attribute_display_name"),
    )
    sizes = {"grid": _sizes(action, "grid"), "block": _sizes(action, "block")}
    device_name = "" if device is None else str(device.value())
    return {
        "kernel": name,
        **sizes,
        "device": device_name,
        "ranges": _ranges(action),
        "metrics": metrics,
    }


def _sizes(action: Any, quantity: str) -> Any:
    metrics = (action.metric_by_name("launch__" + quantity + "_dim_" + axis) for axis in "xyz")
    return [1 if metric is None else int(metric.value()) for metric in metrics]


def _ranges(action: Any) -> Any:
    state = action.nvtx_state()
    texts = []
    for number in state.domains() if state is not None else ():
        domain = state.domain_by_id(number)
        texts += [*domain.start_end_ranges(), *domain.push_pop_ranges()]
    return [str(text) for text in texts]


def ask(facts: Any) -> Any:
    """What iosim says of a launch, and an empty text; or None, and why it is not asked. Raises Exception where it is
    not there, or refuses."""
    if not any(re.search(pattern, facts["kernel"]) for pattern in INSTALLED.get("names", ("",))):
        return None, "no catalog kernel has this name"
    python = INSTALLED.get("python", "")
    if not os.path.exists(python):
        raise OSError("the Python that it was installed with, '" + python + "', is not there")
    # Facts and answer go through files, since the profiler's Python has no subprocess to pipe to.
    with tempfile.TemporaryDirectory() as place:
        names = [os.path.join(place, name) for name in ("launch.json", "answer.json", "errors.txt")]
        with open(names[0], "w") as file:
            json.dump(facts, file)
        command = [
            python,
            "-m",
            "iosim",
            "ncu-rule",
            "--launch",
            names[0],
            "--format",
            "json",
            *INSTALLED["words"],
        ]
        # The profiler's own Python settings would mislead another Python.
        environment = {name: value for name, value in os.environ.items() if name not in NOT_OURS}
        if INSTALLED.get("path"):
            environment["PYTHONPATH"] = INSTALLED["path"]
        code = _run(command, environment, names[1], names[2])
        with open(names[2]) as file:
            output = file.read().strip().splitlines()
        if code != 0:
            raise OSError(output[-1] if output else "iosim ended with exit code " + str(code))
        with open(names[1]) as file:
            return json.load(file), ""


def _run(command: Any, environment: Any, out: str, errors: str) -> int:
    """Runs a command, its output in files; gives its exit code. The profiler's Python for Linux has no subprocess."""
    if not hasattr(os, "posix_spawn"):
        import subprocess

        with open(out, "w") as first, open(errors, "w") as second:
            return subprocess.run(
                command, stdout=first, stderr=second, env=environment, timeout=PATIENCE_S
            ).returncode
    create = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    files = [
        (os.POSIX_SPAWN_OPEN, 1, out, create, 0o600),
        (os.POSIX_SPAWN_OPEN, 2, errors, create, 0o600),
    ]
    child = os.posix_spawn(command[0], command, environment, file_actions=files)
    # Polled, since waitpid knows no limit of time.
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    os.kill(child, 9)
    os.waitpid(child, 0)
    raise TimeoutError("iosim gave no answer in " + str(PATIENCE_S) + " s")


def apply(handle: Any) -> None:
    context = NvRules.get_context(handle)
    frontend = context.frontend()
    kinds = NvRules.IFrontend
    try:
        answer, refusal = ask(facts_of(context.range_by_idx(0).action_by_idx(0)))
        if answer is not None:
            show(frontend, kinds, answer)
        else:
            frontend.message(kinds.MsgType_MSG_NONE, "No prediction: " + refusal + ".", TITLE)
    except Exception as error:  # a rule that raises leaves nothing on the page
        text = "No prediction: " + type(error).__name__ + ": " + str(error) + ". "
        frontend.message(
            kinds.MsgType_MSG_WARNING,
            text + "'iosim ncu-rule --install DIR' writes this rule anew.",
            TITLE,
        )


def show(frontend: Any, kinds: Any, answer: Any) -> None:
    kind = {"as_predicted": "MSG_OK", "differs": "MSG_WARNING", "unknown": "MSG_NONE"}[
        answer["status"]
    ]
    message = frontend.message(getattr(kinds, "MsgType_" + kind), answer["answer"], TITLE)
    for table in answer["tables"]:
        if table["rows"] and hasattr(frontend, "generate_table"):
            about = {"title": table["title"], "description": table["description"]}
            frontend.generate_table(message, table["header"], table["rows"], about)
    for metric in answer["metrics"]:
        # A counter that differs is marked in the table of the profiler's page.
        severity = (
            kinds.Severity_SEVERITY_HIGH if metric["differs"] else kinds.Severity_SEVERITY_LOW
        )
        frontend.focus_metric(message, metric["name"], metric["counted"], severity, metric["words"])
    if hasattr(frontend, "send_dict_to_children"):
        frontend.send_dict_to_children(
            {m["name"]: float(m["predicted"]) for m in answer["metrics"]}
        )
    if answer["advice"]:
        advice = frontend.message(
            kinds.MsgType_MSG_OPTIMIZATION, answer["advice"], "What Would Help"
        )
        if answer["speedup_percent"] > 0:
            frontend.speedup(advice, kinds.SpeedupType_GLOBAL, answer["speedup_percent"])
