"""Small steps of training, and recorded ones."""

from __future__ import annotations

import csv
import json
from dataclasses import replace

from effort import examples
from hypothesis import settings
from hypothesis import strategies as st
from scripts import measurements

from iosim.studies.training import (
    Decoder,
    Setup,
)
from iosim.studies.training.graph import Graph, saved_storages

FEW = settings(max_examples=examples(25), deadline=None, derandomize=True)


SMALL = Decoder(layers=2, width=128, heads=4, vocabulary=512)


def recorded(name: str) -> list[tuple[Decoder, Setup, dict[str, str]]]:
    with open(measurements(name), encoding="utf-8", newline="") as file:
        return [
            (Decoder(**json.loads(r["model"])), Setup(**json.loads(r["setup"])), r)
            for r in csv.DictReader(file)
        ]


def saved_bytes(graph: Graph) -> int:
    return sum(s.bytes for s in saved_storages(graph))


@st.composite
def trained(draw: st.DrawFn) -> tuple[Decoder, Setup]:
    kv_heads = draw(st.integers(1, 2))
    heads = kv_heads * draw(st.integers(1, 2))
    model = Decoder(
        layers=draw(st.integers(1, 7)),
        width=8 * heads,
        heads=heads,
        kv_heads=kv_heads,
        mlp_width=draw(st.sampled_from([0, 40])),
        gated=draw(st.booleans()),
        vocabulary=draw(st.sampled_from([0, 99])),
        tied=draw(st.booleans()),
        norm=draw(st.sampled_from(["layer", "rms", "none"])),
    )
    setup = Setup(
        batch=draw(st.integers(1, 2)),
        seq_len=draw(st.sampled_from([1, 16, 65])),
        attention=draw(st.sampled_from(["naive", "flash"])),
        causal=draw(st.booleans()),
        precision=draw(st.sampled_from(["fp32", "fp16", "bf16", "amp-fp16", "amp-bf16"])),
        optimizer=draw(st.sampled_from(["none", "sgd", "momentum", "adam", "adamw", "adam8bit"])),
        recompute=draw(st.sampled_from(["none", "full", "attention"])),
        accumulate=draw(st.booleans()),
        backend=draw(st.sampled_from(["cuda", "cpu"])),
        data_parallel=draw(st.sampled_from([1, 3, 8])),
        zero=draw(st.integers(0, 3)),
        lora_rank=draw(st.sampled_from([0, 0, 2])),
    )
    if setup.number.parameter_bytes == 2 and draw(st.booleans()):
        setup = replace(setup, master_weights=True)
    return model, setup
