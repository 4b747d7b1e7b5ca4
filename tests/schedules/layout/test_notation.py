"""Layouts in the words of frameworks: what Megatron's grammar reads back, torchtitan's modules."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bubbleviz.schedules.layout.layers import (
    LayerKind,
    Layers,
    Layout,
    megatron_layout,
    torchtitan_layout,
)
from bubbleviz.schedules.plan import looped_placement, v_placement
from tests.schedules.layout.models import model

KINDS = {
    "E": LayerKind.EMBEDDING, "t": LayerKind.TRANSFORMER, "m": LayerKind.MTP, "L": LayerKind.HEAD,
}  # fmt: skip


def layers_of(letters: str) -> Layers:
    kinds = tuple(KINDS[letter] for letter in letters)
    return replace(model([1] * len(letters)), kinds=kinds)


def layout_of(stages: list[str], chunks: int = 1) -> tuple[Layers, Layout]:
    bounds = [0]
    for stage in stages:
        bounds.append(bounds[-1] + len(stage))
    placement = looped_placement(len(stages) // chunks, chunks)
    return layers_of("".join(stages)), Layout(placement, tuple(bounds))


def unrolled(text: str) -> list[str]:
    """Read the grammar: commas are cosmetic, groups before letters, lines between stages."""
    text = text.replace(",", "")
    for pattern in (r"\(([^)]+)\)\*(\d+)", r"(.)\*(\d+)"):
        text = re.sub(pattern, lambda found: found[1] * int(found[2]), text)
    return text.split("|")


@pytest.mark.parametrize(
    ("stages", "chunks", "written"),
    [
        (["EtL"], 1, "EtL"),
        (["Et", "tL"], 1, "Et|tL"),
        (["Ettt", *["tt"] * 29, "m", "L"], 2, "Et*3|(tt|)*29m|L"),
        (["Etttt", "ttttt", "ttttt", "tL"], 1, "Et*4|(t*5|)*2tL"),
        (["ttt", "tt"], 1, "Et*3|ttL"),
    ],
)
def test_megatron_is_told_of_a_layout(stages: list[str], chunks: int, written: str) -> None:
    assert megatron_layout(*layout_of(stages, chunks)) == written


@given(st.lists(st.integers(1, 7), min_size=1, max_size=12))
def test_megatron_reads_what_is_written(counts: list[int]) -> None:
    stages = ["t" * count for count in counts]
    written = megatron_layout(*layout_of(stages))

    assert written is not None
    assert unrolled(written) == ["E" * (not at) + s + "L" * (at == len(stages) - 1)
                                 for at, s in enumerate(stages)]  # fmt: skip


def test_megatron_is_told_nothing_that_it_refuses() -> None:
    # Layers of multi-token prediction on two stages, and on the first chunk of a device.
    assert megatron_layout(*layout_of(["Et", "tm", "mL"])) is None
    assert megatron_layout(*layout_of(["Et", "m", "t", "L"], 2)) is None
    # A head or an embedding on two stages, and a V.
    assert megatron_layout(*layout_of(["Et", "tL", "L"])) is None
    assert megatron_layout(*layout_of(["E", "Et", "tL"])) is None
    assert megatron_layout(layers_of("EttL"), Layout(v_placement(2), (0, 1, 2, 3, 4))) is None


def test_torchtitan_is_told_of_the_modules() -> None:
    layers, layout = layout_of(["Et", "tt", "L"])

    assert torchtitan_layout(layers, layout) == [
        ["tok_embeddings", "layers.0"], ["layers.1", "layers.2"], ["norm", "output"],
    ]  # fmt: skip


def test_torchtitan_is_told_of_ends_that_were_not_measured_apart() -> None:
    assert torchtitan_layout(*layout_of(["t", "t"])) == [
        ["tok_embeddings", "layers.0"], ["layers.1", "norm", "output"],
    ]  # fmt: skip


def test_torchtitan_is_told_of_a_head_of_several_layers_by_their_names() -> None:
    layers, layout = layout_of(["Et", "LL"])
    layers = replace(layers, names=("emb", "layers.0", "norm", "output"))

    assert torchtitan_layout(layers, layout)[1] == ["norm", "output"]
