"""Layer names: which part of a model a name stands for (``layer_names.toml``)."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files

from bubbleviz.conventions.convention import load_toml, regex_of
from bubbleviz.conventions.range_names import bare_name
from bubbleviz.model.columns import NONE
from bubbleviz.model.values import frozen

#: Kinds of layers, in the words of the file.
LAYER, EMBEDDING, MTP, HEAD = ("layer", "embedding", "mtp", "head")
#: A number of more digits is none of a layer.
_MOST_DIGITS = 6
#: Characters of a name that is one of a layer.
_LONGEST = 200


@frozen
class LayerPattern:
    """What some layers are named.

    Attributes:
        kind: the kind of layer, one of the words above.
        globs: prefilters, in SQLite's GLOB.
        match: regex in any case; its group ``layer`` is the number.
        examples: names that it must match.
        counter_examples: names that no pattern may match as this kind.
    """

    kind: str
    globs: tuple[str, ...]
    match: re.Pattern[str]
    examples: tuple[str, ...]
    counter_examples: tuple[str, ...]


@frozen
class LayerName:
    """What a name stands for.

    Attributes:
        kind: the kind of layer, one of the words above.
        number: of the layer, as the name has it; -1 none.
    """

    kind: str
    number: int = NONE


def layer_of(name: str) -> LayerName | None:
    """Return the layer that a name stands for; None for none."""
    text = bare_name(name)
    if len(text) > _LONGEST:
        return None
    for pattern in layer_patterns():
        found = pattern.match.search(text)
        if found:
            number = found.groupdict().get("layer") or ""
            known = 0 < len(number) <= _MOST_DIGITS
            return LayerName(pattern.kind, int(number) if known else NONE)
    return None


def layer_globs() -> tuple[str, ...]:
    """Return the distinct prefilters of all patterns."""
    return tuple(dict.fromkeys(glob for pattern in layer_patterns() for glob in pattern.globs))


@cache
def layer_patterns() -> tuple[LayerPattern, ...]:
    """Return the patterns that come with bubbleviz, in the order in which they are tried."""
    where = "layer_names.toml"
    text = files("bubbleviz.conventions").joinpath(where).read_text(encoding="utf-8")
    tables = load_toml(text).get("layer", [])
    return tuple(
        LayerPattern(
            table["kind"],
            tuple(table.get("globs", ())),
            regex_of(f"(?i:{table['match']})", where),
            tuple(table.get("examples", ())),
            tuple(table.get("counter_examples", ())),
        )
        for table in tables
    )
