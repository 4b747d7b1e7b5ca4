"""Determines which model layer a range name belongs to, using ``layer_names.toml``."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from bubbleviz.conventions import toml_files
from bubbleviz.conventions.globs import match_any_glob
from bubbleviz.conventions.range_names import bare_name
from bubbleviz.model.columns import NONE

_LAYERS = "layer_names.toml"
#: Layer kinds, as spelled in ``layer_names.toml``.
LAYER, EMBEDDING, MTP, HEAD = ("layer", "embedding", "mtp", "head")
#: Maximum number of digits in a layer number.
_MAX_LAYER_DIGITS = 6
#: Maximum length of a layer name. Longer names are not parsed.
_MAX_LENGTH = 200


@dataclass(frozen=True)
class LayerName:
    """A parsed layer name.

    Attributes:
        kind: Kind of layer: ``LAYER``, ``EMBEDDING``, ``MTP`` or ``HEAD``.
        number: Layer number in the name, or -1 if the name contains no valid number.
    """

    kind: str
    number: int = NONE


def parse_layer_name(name: str) -> LayerName | None:
    """Return the layer that a range name belongs to, or None if the name is not a layer name.

    The first pattern that matches wins. Names longer than 200 characters are not matched. The layer
    number is -1 if the pattern captures no number or a number with more than six digits.
    """
    text = bare_name(name)
    if len(text) > _MAX_LENGTH:
        return None
    for kind, regex in _load_layer_regexes():
        match = regex.search(text)
        if match:
            number = match.groupdict().get("layer") or ""
            is_number = 0 < len(number) <= _MAX_LAYER_DIGITS
            return LayerName(kind, int(number) if is_number else NONE)
    return None


def get_layer_globs() -> tuple[str, ...]:
    """Return the GLOB prefilters of all layer patterns, without duplicates."""
    return tuple(
        dict.fromkeys(glob for table in load_layer_tables() for glob in table.get("globs", ()))
    )


def has_layer_names(names: Collection[str]) -> bool:
    """Return whether any of the names is a layer name."""
    fits = match_any_glob(get_layer_globs(), names)
    return any(parse_layer_name(name) for name, fit in zip(names, fits, strict=True) if fit)


@cache
def load_layer_tables() -> list[dict[str, Any]]:
    """Return the built-in layer patterns, in matching order.

    Each table has a kind, prefilters (SQLite GLOBs), and a case-insensitive regex whose group
    ``layer`` captures the layer number. Each table also has examples that must match. Its
    counter-examples must not be recognized as this kind of layer.
    """
    tables: list[dict[str, Any]] = toml_files.load(toml_files.read_built_in(_LAYERS))["layer"]
    return tables


@cache
def _load_layer_regexes() -> list[tuple[str, re.Pattern[str]]]:
    """Return pairs of a layer kind and a compiled regex, in matching order."""
    return [
        (table["kind"], toml_files.parse_regex(f"(?i:{table['match']})", _LAYERS))
        for table in load_layer_tables()
    ]


_DIGITS = re.compile(r"[0-9]+")


def count_shapes(counts: Mapping[str, int], max_shapes: int) -> tuple[tuple[str, int], ...]:
    """Replace each number in the names with ``#``, and count the resulting shapes.

    Args:
        counts: Number of ranges per name.
        max_shapes: Maximum number of shapes to return.

    Returns:
        (shape, count) pairs, most frequent first. Shapes with equal counts are sorted by name.
    """
    total: Counter[str] = Counter()
    for name, count in counts.items():
        total[_DIGITS.sub("#", name)] += count
    return tuple(sorted(total.items(), key=lambda item: (-item[1], item[0]))[:max_shapes])
