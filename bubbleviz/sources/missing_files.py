"""Missing files: those that a directory lacks by the numbers in the names of the others."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from bubbleviz.model.limitations import Limitation
from bubbleviz.model.private_names import note_paths
from bubbleviz.model.texts import some_of
from bubbleviz.sources.paths import InputFile

_NUMBER = re.compile(r"[0-9]+")
#: So many files show how they are numbered, if at most this share of the numbers is missing.
_ENOUGH, _SHARE = 16, 0.1
#: Files that a limitation lists.
_LISTED = 8


def missing_files(files: Sequence[InputFile]) -> tuple[Limitation, ...]:
    """Return a limitation for files that are missing among those found in a directory.

    That is known where their names differ by one number alone, and few numbers are left out.
    """
    found = [Path(file.path) for file in files if not file.named]
    if len(found) < _ENOUGH or len({path.parent for path in found}) > 1:
        return ()
    shapes = {_NUMBER.sub("#", path.name) for path in found}
    digits = [_NUMBER.findall(path.name) for path in found]
    varying = [
        place for place, column in enumerate(zip(*digits, strict=False)) if len({*column}) > 1
    ]
    if len(shapes) > 1 or len(varying) != 1:
        return ()
    texts = [own[varying[0]] for own in digits]
    held = {int(text) for text in texts}
    span = max(held) - min(held) + 1
    # Of process ids and times most are left out, and there are very many.
    if not 0 < span - len(held) <= _SHARE * span or len(held) < len(texts):
        return ()
    absent = sorted(set(range(min(held), max(held) + 1)) - held)
    width = min(map(len, texts))
    names = [_with_number(found[0], varying[0], f"{number:0{width}}") for number in absent]
    note_paths(names)
    reason = (
        f"{found[0].parent}: lacks {some_of(names, _LISTED)} of the files numbered "
        f"{min(held):,} to {max(held):,}; what they hold is not in the results"
    )
    return (Limitation("missing files", reason, len(absent)),)


def _with_number(path: Path, place: int, number: str) -> str:
    """Return the name of a file with another number."""
    found = list(_NUMBER.finditer(path.name))[place]
    return f"{path.name[: found.start()]}{number}{path.name[found.end() :]}"
