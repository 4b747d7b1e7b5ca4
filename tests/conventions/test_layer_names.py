"""Names of layers: each pattern knows its examples, and none of what only looks alike."""

from __future__ import annotations

import pytest

from bubbleviz.conventions.globs import fitting
from bubbleviz.conventions.layer_names import LayerName, layer_globs, layer_of, layer_patterns

EXAMPLES = [(p.kind, name) for p in layer_patterns() for name in p.examples]
COUNTER_EXAMPLES = [(p.kind, name) for p in layer_patterns() for name in p.counter_examples]


@pytest.mark.parametrize(("kind", "name"), EXAMPLES)
def test_a_name_is_known_and_passes_the_prefilter(kind: str, name: str) -> None:
    found = layer_of(name)

    assert found is not None
    assert found.kind == kind
    assert fitting(layer_globs(), [name]) == [True]


@pytest.mark.parametrize(("kind", "name"), COUNTER_EXAMPLES)
def test_what_looks_alike_is_none(kind: str, name: str) -> None:
    found = layer_of(name)

    assert found is None or found.kind != kind


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("layers.3", 3), ("model.layers.12.mlp.gate", 12), ("layer_3f", 3), ("layers[7]", 7),
        ("nn.Module: TransformerLayer_3", 3), ("transformer.h.10", 10),
        ("TransformerLayer_3, seq = 7", 3),
    ],
)  # fmt: skip
def test_a_layer_has_its_number(name: str, number: int) -> None:
    assert layer_of(name) == LayerName("layer", number)


def test_names_that_are_none() -> None:
    assert layer_of("") is None
    assert layer_of("layers." + "9" * 400) is None
    assert layer_of("F0.0.0") is None
