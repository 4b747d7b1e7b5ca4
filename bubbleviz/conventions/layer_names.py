"""Layer names: which part of a model a name stands for (``layer_names.toml``)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files

from bubbleviz.conventions.convention import check_keys, load_toml, regex_of
from bubbleviz.conventions.range_names import bare_name
from bubbleviz.errors import UsageError
from bubbleviz.model.columns import NONE
from bubbleviz.model.values import frozen

#: Kinds of layers, in the words of the file.
LAYER, EMBEDDING, MTP, HEAD = KINDS = ("layer", "embedding", "mtp", "head")
_KEYS = frozenset(("kind", "globs", "match", "examples", "counter_examples"))
#: A number of more digits is none of a layer.
_MOST_DIGITS = 6
#: Characters of a name that is one of a layer.
_LONGEST = 200


@frozen
class LayerPattern:
    """What some layers are named.

    Attributes:
        kind: one of :data:`KINDS`.
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
        kind: one of :data:`KINDS`.
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
    """Return the patterns that come with bubbleviz, in the order in which they are tried.

    Raises:
        UsageError: their file is wrong, which is a defect of the package.
    """
    where = "layer_names.toml"
    text = files("bubbleviz.conventions").joinpath(where).read_text(encoding="utf-8")
    tables = load_toml(text).get("layer", [])
    return tuple(_pattern(table, f"{where}: layer {i}") for i, table in enumerate(tables, 1))


def _pattern(table: Mapping[str, object], where: str) -> LayerPattern:
    check_keys(table, _KEYS, where)
    kind, match = table.get("kind"), table.get("match")
    if kind not in KINDS or not isinstance(match, str):
        raise UsageError(f"{where}: needs a kind ({', '.join(KINDS)}) and a match, a text")
    return LayerPattern(
        str(kind),
        _texts(table.get("globs", ())),
        regex_of(f"(?i:{match})", where),
        _texts(table.get("examples", ())),
        _texts(table.get("counter_examples", ())),
    )


def _texts(value: object) -> tuple[str, ...]:
    return tuple(map(str, value)) if isinstance(value, Sequence) else ()
