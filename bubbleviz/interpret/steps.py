"""Steps: which ranges of a process are its iterations, whether or not it runs a pipeline.

The first of these that exists is used:

1. The pattern that the user gives.
2. Names that a convention knows to mark iterations (``ProfilerStep#3``, ``iter_0_7``,
   ``train#step_num=3#``).
3. A family of names that count up, do not overlap and cover half of the device's time (``step 7``).
4. A name that repeats and covers four fifths of that time.

Of families that cover about as much, the one with most ranges is used: iterations rather than
epochs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from bubbleviz.conventions.convention_file import built_in
from bubbleviz.conventions.host_activities import HOST, ActivityList
from bubbleviz.conventions.layer_names import count_shapes
from bubbleviz.conventions.range_names import bare_name, parse_range_names
from bubbleviz.conventions.recognition import add_iteration_names
from bubbleviz.conventions.toml_files import COMPILE_ERRORS, compile_pattern, describe_ambiguity
from bubbleviz.errors import UsageError
from bubbleviz.model.columns import NONE, Ints, Table
from bubbleviz.model.grouping import find_distinct, group_rows, list_rows_by_value
from bubbleviz.model.nesting import split_into_layers
from bubbleviz.model.numbering import Numbering
from bubbleviz.model.profile import Ranges, process_of
from bubbleviz.model.texts import is_full_match

#: Families that count up, and names that repeat, cover at least so much of the device's time.
_COUNTED, _REPEATED = 0.5, 0.8
#: What covers less than the best by so much is no worse.
_ABOUT = 0.1
_NUMBER = re.compile(r"[0-9]+")
#: No iteration has a number of more digits.
_DIGITS = 18


@dataclass(frozen=True, eq=False, repr=False)
class Steps(Table):
    """Iterations of a process, disjoint, in order.

    Attributes:
        start_ns: when the host began it.
        end_ns: when the host ended it.
        name_id: row of ``names``.
        names: distinct names.
        by: how they were found, in half a sentence.
    """

    start_ns: Ints
    end_ns: Ints
    name_id: Ints
    names: tuple[str, ...] = field(metadata={"shared": True})
    by: str = field(metadata={"shared": True})

    def numbers(self) -> tuple[str, ...]:
        """Return the number of each step: the last in its name, else its place, from 0."""
        last = [_NUMBER.findall(self.names[name])[-1:] for name in self.name_id.tolist()]
        return tuple(
            str(int(digits[0][:_DIGITS])) if digits else str(place)
            for place, digits in enumerate(last)
        )

    def within(self, low_ns: int, high_ns: int) -> Steps:
        """Return the steps that share time with [low, high)."""
        return self.take((self.end_ns > low_ns) & (self.start_ns < high_ns))


def find_pattern(text: str) -> re.Pattern[str]:
    """Return the pattern of ``--step``: the name itself, or a regex on the whole name.

    Raises:
        UsageError: it is no regular expression.
    """
    try:
        compile_pattern(text)
        return compile_pattern(f"(?:{re.escape(text)})|(?:{text})")
    except FutureWarning as warning:
        raise UsageError(f"--step: {describe_ambiguity(text, warning)}") from warning
    except COMPILE_ERRORS as error:
        raise UsageError(
            f"--step {text[:60]!r}: not a regular expression ({error}); give the name of ranges, "
            "or a pattern such as 'step [0-9]+'"
        ) from error


def find_steps(
    ranges: Ranges,
    process: int,
    start_ns: int,
    end_ns: int,
    lookup: ActivityList,
    pattern: re.Pattern[str] | None = None,
) -> Steps:
    """Return the steps of a process; none where nothing marks them.

    Args:
        ranges: the longer ones of threads that launch, and of main threads.
        process: whose.
        start_ns: when its device's work began.
        end_ns: when that ended.
        lookup: of activities by name.
        pattern: of the names that the user gives; None for none.
    """
    ranges = ranges.take(process_of(ranges.thread) == process)
    names = [bare_name(name) for name in ranges.names]
    if pattern is not None:
        matching = np.array([is_full_match(pattern, name) for name in names], bool)
        return _make_steps(ranges.take(matching[ranges.name_id]), "as --step says")
    marks = parse_range_names(names, *add_iteration_names(()))
    marked = np.asarray((marks.iteration >= 0) & (marks.phase < 0), bool)
    if marked[ranges.name_id].any():
        return _make_steps(ranges.take(marked[ranges.name_id]), "ranges that name iterations")
    best = _choose_best(ranges, names, lookup, start_ns, end_ns)
    by = "ranges that repeat over most of the time" if len(best) else "the whole capture"
    return _make_steps(best, by)


def list_frequent_names(ranges: Ranges) -> str:
    """Return the most frequent shapes of names, for a complaint."""
    counts = np.bincount(ranges.name_id, minlength=len(ranges.names)).tolist()
    named = {
        bare_name(name): count for name, count in zip(ranges.names, counts, strict=True) if count
    }
    return ", ".join(f"{name[:60]!r} ({count})" for name, count in count_shapes(named, 5)) or "none"


def _make_steps(ranges: Ranges, by: str) -> Steps:
    """Return the first of some ranges, then the first after its end, and so on."""
    ranges = ranges.take(ranges.end_ns > ranges.start_ns)
    ranges = ranges.take(np.lexsort((-ranges.end_ns, ranges.start_ns)))
    # Steps may touch, and layers must not.
    layers = split_into_layers(ranges.start_ns, ranges.end_ns - 1)
    ranges = ranges.take(layers[0] if layers else slice(0))
    used = find_distinct(ranges.name_id).tolist()
    texts = Numbering[str]()
    of_name = np.full(len(ranges.names), NONE)
    of_name[used] = texts.numbers(bare_name(ranges.names[name]) for name in used)
    return Steps(ranges.start_ns, ranges.end_ns, of_name[ranges.name_id], texts.values, by)


def _choose_best(
    ranges: Ranges, names: Sequence[str], lookup: ActivityList, start_ns: int, end_ns: int
) -> Ranges:
    """Return the family that looks most like iterations; no ranges where none does."""
    for counted in (True, False):
        found = list(_group_families(ranges, names, lookup, (start_ns, end_ns), counted=counted))
        most = max((share for share, _ in found), default=0.0)
        alike = [rows for share, rows in found if share >= most - _ABOUT]
        if alike:
            return ranges.take(max(alike, key=len))
    return ranges.take(slice(0, 0))


def _group_families(
    ranges: Ranges,
    names: Sequence[str],
    lookup: ActivityList,
    span_ns: tuple[int, int],
    *,
    counted: bool,
) -> Iterator[tuple[float, Ints]]:
    """Yield families that count up, or names that repeat, and cover enough of a span.

    A family is ranges of one thread whose names differ by their numbers alone; it is given as the
    share that it covers, and its rows.
    """
    shapes, shape_of = Numbering[str](), np.full(len(names), NONE, np.int64)
    numbers = np.zeros(len(names), np.int64)
    # The conventions reduced to patterns that mark iterations without a number.
    marks = [
        replace(c, patterns=tuple(p for p in c.patterns if p.by_order)) for c in built_in().values()
    ]
    ordered = parse_range_names(names, *(c for c in marks if c.patterns)).by_order
    for row, name in enumerate(names):
        digits = [text for text in _NUMBER.findall(name) if len(text) <= _DIGITS]
        # A framework's own ranges have an activity of theirs.
        if bool(digits) < counted or not (
            ordered[row] or lookup.classify_range(name)[0].startswith(HOST)
        ):
            continue
        numbers[row] = int(digits[-1]) if digits else 0
        shape_of[row] = shapes.number(_NUMBER.sub("#", name) if counted else name)
    least = _COUNTED if counted else _REPEATED
    shape = shape_of[ranges.name_id]
    alike = np.flatnonzero(shape >= 0)
    # As many turns as there are names of longer ranges, on each thread.
    for _, own in list_rows_by_value(group_rows(ranges.thread[alike], shape[alike]).of_row):
        rows = alike[own][np.argsort(ranges.start_ns[alike[own]], kind="stable")]
        start, end = ranges.start_ns[rows], ranges.end_ns[rows]
        rising = np.diff(numbers[ranges.name_id[rows]]) > 0
        if len(rows) < 2 or (start[1:] < end[:-1]).any() or (counted and not rising.all()):
            continue
        inside = np.clip(end, *span_ns) - np.clip(start, *span_ns)
        share = float(inside.sum()) / max(span_ns[1] - span_ns[0], 1)
        if share >= least:
            yield share, rows
