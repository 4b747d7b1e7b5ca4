"""Names of layers: each pattern matches its examples and nothing that merely looks similar."""

from __future__ import annotations

from typing import Any

import pytest

from bubbleviz.conventions.globs import match_any_glob
from bubbleviz.conventions.layer_names import (
    LayerName,
    get_layer_globs,
    load_layer_tables,
    parse_layer_name,
)


@pytest.mark.parametrize("table", load_layer_tables(), ids=range(len(load_layer_tables())))
def test_a_pattern_matches_its_examples_which_pass_the_prefilter(table: dict[str, Any]) -> None:
    for name in table.get("examples", ()):
        parsed_name = parse_layer_name(name)
        assert parsed_name is not None, name
        assert parsed_name.kind == table["kind"], name
        assert match_any_glob(get_layer_globs(), [name]) == [True]
    for name in table.get("counter_examples", ()):
        parsed_name = parse_layer_name(name)
        assert parsed_name is None or parsed_name.kind != table["kind"], name


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("layers.3", 3), ("model.layers.12.mlp.gate", 12), ("layer_3f", 3), ("layers[7]", 7),
        ("nn.Module: TransformerLayer_3", 3), ("transformer.h.10", 10),
        ("TransformerLayer_3, seq = 7", 3),
    ],
)  # fmt: skip
def test_a_layer_has_its_number(name: str, number: int) -> None:
    assert parse_layer_name(name) == LayerName("layer", number)


def test_similar_names_are_not_layers() -> None:
    assert parse_layer_name("") is None
    assert parse_layer_name("layers." + "9" * 400) is None
    assert parse_layer_name("F0.0.0") is None
