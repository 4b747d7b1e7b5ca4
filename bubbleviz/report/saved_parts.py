"""Saved parts: a report of very many ranks as a folder of JSON files.

``index.json`` holds all but what is of ranks, and names the files that hold that, in order of
ranks; see :func:`bubbleviz.render.json_document.files_of`. Most questions need the index alone.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from msgspec import DecodeError, Meta, ValidationError
from msgspec import json as msgspec_json

from bubbleviz.errors import InputError
from bubbleviz.model.files import INDEX, PART_SCHEMA, read_bounded
from bubbleviz.model.values import frozen

#: A part of a thousand ranks and a thousand iterations is smaller.
_MOST_BYTES = 1 << 32
#: What an index begins with, but for blanks.
_OURS = b'"schema": "bubbleviz.report/'
_UNREADABLE = (DecodeError, ValidationError, RecursionError, UnicodeDecodeError)
#: Names of parts are plain: an index leads to no other folder.
_Name = Annotated[str, Meta(pattern=r"^part-[0-9]{5}\.json$")]


@frozen
class PartEntry:
    """A file of an index, and the number of its ranks."""

    file: _Name
    ranks: Annotated[int, Meta(ge=0)]


@frozen
class _IterationPart:
    index: int
    ranks: list[dict[str, Any]]


@frozen
class _Part:
    schema: str
    ranks: list[dict[str, Any]]
    iterations: list[_IterationPart]
    coverage: list[dict[str, Any]]
    unattributed_kernels: list[dict[str, Any]]


def index_of(path: str) -> str:
    """Return the file to read for a saved report: the index of a folder, else the path itself."""
    index = Path(path) / INDEX
    try:
        if not index.is_file():
            return path
        # Folders of other things have an index, too.
        with index.open("rb") as opened:
            return str(index) if _OURS in opened.read(64) else path
    except OSError:  # a path that no system has is complained about by who reads it
        return path


def joined(path: str, document: dict[str, Any], parts: list[PartEntry]) -> dict[str, Any]:
    """Return the document of an index with the entries of its parts, as one file has them.

    Args:
        path: of the index.
        document: its values.
        parts: those that it names.

    Raises:
        InputError: a part is missing, is no such part, or has other ranks than the index says.
    """
    iterations = [{**own, "ranks": list(own["ranks"])} for own in document["iterations"]]
    whole = {
        **{key: value for key, value in document.items() if key != "parts"},
        "iterations": iterations,
        **{
            key: list(document.get(key) or ())
            for key in ("ranks", "coverage", "unattributed_kernels")
        },
    }
    for entry in parts:
        file = Path(path).with_name(entry.file)
        part = _read(file, entry)
        if [own.index for own in part.iterations] != [own["index"] for own in iterations]:
            raise _refusal(file, "it has other iterations than its index")
        whole["ranks"].extend(part.ranks)
        whole["coverage"].extend(part.coverage)
        whole["unattributed_kernels"].extend(part.unattributed_kernels)
        for own, added in zip(iterations, part.iterations, strict=True):
            own["ranks"].extend(added.ranks)
    return whole


def _read(file: Path, entry: PartEntry) -> _Part:
    if not file.is_file():
        raise _refusal(file, "is missing")
    data = read_bounded(str(file), _MOST_BYTES, "a part of a report", "copy the whole folder")
    try:
        part = msgspec_json.decode(data, type=_Part)
    except _UNREADABLE as error:
        raise _refusal(file, f"is no part of a report ({str(error)[:200]})") from error
    if part.schema != PART_SCHEMA or len(part.ranks) != entry.ranks:
        raise _refusal(file, "is not the part that its index names")
    return part


def _refusal(file: Path, what: str) -> InputError:
    return InputError(
        f"{file}: {what}; copy the whole folder, or write it again with bubbleviz analyze --json"
    )
