"""Layer names: the part of a model that a name stands for, as ``layer_names.toml`` describes it."""

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
#: Kinds of layers, in the words of the file.
LAYER, EMBEDDING, MTP, HEAD = ("layer", "embedding", "mtp", "head")
#: A number of more digits is none of a layer.
_MAX_LAYER_DIGITS = 6
#: Characters of a name that is one of a layer.
_MAX_LENGTH = 200


@dataclass(frozen=True)
class LayerName:
    """What a name stands for.

    Attributes:
        kind: the kind of layer, one of the words above.
        number: of the layer, as the name has it; -1 none.
    """

    kind: str
    number: int = NONE


def parse_layer_name(name: str) -> LayerName | None:
    """Return the layer that a name stands for; None for none."""
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
    """Return the distinct prefilters of all patterns."""
    return tuple(
        dict.fromkeys(glob for table in load_layer_tables() for glob in table.get("globs", ()))
    )


def has_layer_names(names: Collection[str]) -> bool:
    """Tell whether any of some names stands for a layer."""
    fits = match_any_glob(get_layer_globs(), names)
    return any(parse_layer_name(name) for name, fit in zip(names, fits, strict=True) if fit)


@cache
def load_layer_tables() -> list[dict[str, Any]]:
    """Return the patterns that come with bubbleviz, in the order in which they are tried.

    Each has its kind, prefilters in SQLite's GLOB, and a regex in any case, whose group ``layer``
    is the number; examples that it must match, and names that no pattern may match as this kind.
    """
    tables: list[dict[str, Any]] = toml_files.load(toml_files.read_built_in(_LAYERS))["layer"]
    return tables


@cache
def _load_layer_regexes() -> list[tuple[str, re.Pattern[str]]]:
    return [
        (table["kind"], toml_files.parse_regex(f"(?i:{table['match']})", _LAYERS))
        for table in load_layer_tables()
    ]


_DIGITS = re.compile(r"[0-9]+")


def count_shapes(counts: Mapping[str, int], max_shapes: int) -> tuple[tuple[str, int], ...]:
    """Return the most frequent shapes of names, numbers written as ``#``, and how often."""
    total: Counter[str] = Counter()
    for name, count in counts.items():
        total[_DIGITS.sub("#", name)] += count
    return tuple(sorted(total.items(), key=lambda item: (-item[1], item[0]))[:max_shapes])
