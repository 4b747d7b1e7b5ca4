"""JSON files: a report's values as text, in one file, or in parts of whole pipelines."""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from bubbleviz.count.rank_iterations import indices_of

if TYPE_CHECKING:
    from bubbleviz.count.iterations import Iteration, RankIteration
    from bubbleviz.render.parts import File
    from bubbleviz.report.report import Report

#: Returns the entries of some ranks of an iteration.
RankEntries: TypeAlias = (
    "Callable[[Report, Iteration, Sequence[RankIteration]], list[dict[str, Any]]]"
)
#: Lists of a report that are of ranks, and name these.
_BY_RANK = ("coverage", "unattributed_kernels")


def written(values: Mapping[str, Any]) -> str:
    """Return values as JSON, a line for each item of a list: to be read, compared and searched.

    Indented all the way down it would take twenty times as long.
    """
    return "{\n" + ",\n".join(f"{_text(k)}: {_lines(v)}" for k, v in values.items()) + "\n}\n"


def _lines(value: Any) -> str:
    if isinstance(value, list) and value:
        return "[\n " + ",\n ".join(map(_text, value)) + "\n]"
    return _text(value)


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=True, allow_nan=False)


def files_of(report: Report, whole: Mapping[str, Any], entries: RankEntries) -> Iterator[File]:
    """Yield the files of a folder: what is of ranks by parts, then the index with all else.

    Read again by :mod:`bubbleviz.report.saved_parts`.

    Args:
        report: any report.
        whole: its values, without those of ranks in iterations.
        entries: returns these.
    """
    from bubbleviz.model.part_names import INDEX, PART_SCHEMA, part_name
    from bubbleviz.report.rank_means import rank_parts

    parts = []
    for number, (first, last) in enumerate(rank_parts(report)):
        own = {
            "schema": PART_SCHEMA,
            "ranks": whole["ranks"][first:last],
            "iterations": [
                {"index": i.index, "ranks": entries(report, i, i.ranks[_among(i, first, last)])}
                for i in report.iterations
            ],
            **{
                key: [entry for entry in whole[key] if first <= entry["rank"] < last]
                for key in _BY_RANK
            },
        }
        name = part_name(number, "json")
        parts.append({"file": name, "ranks": last - first})
        yield name, written(own)
    # The index comes last: a folder that has one is whole.
    emptied: dict[str, list[Any]] = {key: [] for key in ("ranks", *_BY_RANK)}
    yield INDEX, written({**whole, **emptied, "parts": parts})


def _among(iteration: Iteration, first: int, last: int) -> slice:
    """Return which of an iteration's ranks, which ascend, are among some."""
    ranks = indices_of(iteration.ranks)
    return slice(bisect_left(ranks, first), bisect_left(ranks, last))
