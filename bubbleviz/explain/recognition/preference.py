"""Preference: which of several schedules with one order is named first."""

from __future__ import annotations

from collections.abc import Sequence

#: With one device or one microbatch many schedules have one order. Others come after these.
_PREFERRED = (
    *("1f1b", "gpipe", "interleaved-1f1b", "looped-bfs"),
    *("zb-h1", "zb-h2", "zb-1p", "zb-2p", "interleaved-zb"),
    *("zb-v", "v-half", "v-min", "dualpipev", "dualpipe", "chimera"),
)
_PLACE = {name: place for place, name in enumerate(_PREFERRED)}


def in_preference(names: Sequence[str]) -> tuple[str, ...]:
    """Return the names of schedules, preferred ones first, others in alphabetical order."""
    return tuple(sorted(names, key=lambda name: (_PLACE.get(name, len(_PLACE)), name)))
