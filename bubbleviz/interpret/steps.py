"""Steps: the ranges of a process that are its iterations, whether or not it runs a pipeline.

The first of these that exists is used:

1. Ranges that match the pattern of the user.
2. Names that a convention recognizes as iterations (``ProfilerStep#3``, ``iter_0_7``,
   ``train#step_num=3#``).
3. A family of names with increasing numbers whose ranges do not overlap and cover half of the
   device's time (``step 7``).
4. A repeated name whose ranges cover four fifths of that time.

If several families cover about the same time, the one with the most ranges is used: iterations
rather than epochs.
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

#: Minimum share of the device's time that a family of numbered names covers.
_MIN_NUMBERED = 0.5
#: Minimum share of the device's time that a repeated name covers.
_MIN_REPEATED = 0.8
#: Maximum difference of two shares that count as equal.
_TOLERANCE = 0.1
_NUMBER = re.compile(r"[0-9]+")
#: Maximum number of digits of an iteration number.
_MAX_DIGITS = 18


@dataclass(frozen=True, eq=False, repr=False)
class Steps(Table):
    """Iterations of a process, in order of time. They do not overlap.

    Attributes:
        start_ns: Start on the host.
        end_ns: End on the host.
        name_id: Index of ``names``.
        names: Distinct names.
        by: Clause that says how the steps were found.
    """

    start_ns: Ints
    end_ns: Ints
    name_id: Ints
    names: tuple[str, ...] = field(metadata={"shared": True})
    by: str = field(metadata={"shared": True})

    def numbers(self) -> tuple[str, ...]:
        """Return the last number in the name of each step, or else its index from 0."""
        last = [_NUMBER.findall(self.names[name])[-1:] for name in self.name_id.tolist()]
        return tuple(
            str(int(digits[0][:_MAX_DIGITS])) if digits else str(index)
            for index, digits in enumerate(last)
        )

    def within(self, low_ns: int, high_ns: int) -> Steps:
        """Return the steps that overlap the half-open interval [low, high)."""
        return self.take((self.end_ns > low_ns) & (self.start_ns < high_ns))


def find_pattern(text: str) -> re.Pattern[str]:
    """Return the compiled pattern of ``--step``: the literal name, or a regex for the whole name.

    Raises:
        UsageError: The text is no regular expression.
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
    """Find the steps of a process by the rules at the top of this module.

    There are no steps if no range marks them.

    Args:
        ranges: Long ranges of main threads and of threads that launch work.
        process: The process.
        start_ns: Start of the work of its device.
        end_ns: End of the work of its device.
        lookup: Activities by name.
        pattern: Pattern of the names that the user gives, or None.
    """
    ranges = ranges.take(process_of(ranges.thread) == process)
    names = [bare_name(name) for name in ranges.names]
    if pattern is not None:
        is_match = np.array([is_full_match(pattern, name) for name in names], bool)
        return _make_steps(ranges.take(is_match[ranges.name_id]), "as --step says")
    meanings = parse_range_names(names, *add_iteration_names(()))
    is_mark = np.asarray((meanings.iteration >= 0) & (meanings.phase < 0), bool)
    if is_mark[ranges.name_id].any():
        return _make_steps(ranges.take(is_mark[ranges.name_id]), "ranges that name iterations")
    best = _choose_best(ranges, names, lookup, (start_ns, end_ns))
    by = "ranges that repeat over most of the time" if len(best) else "the whole capture"
    return _make_steps(best, by)


def list_frequent_names(ranges: Ranges) -> str:
    """Return the most frequent names with digits folded and their counts, for an error message."""
    counts = np.bincount(ranges.name_id, minlength=len(ranges.names)).tolist()
    names = map(bare_name, ranges.names)
    count_of_name = {name: count for name, count in zip(names, counts, strict=True) if count}
    shapes = count_shapes(count_of_name, 5)
    return ", ".join(f"{shape[:60]!r} ({count})" for shape, count in shapes) or "none"


def _make_steps(ranges: Ranges, by: str) -> Steps:
    """Make steps from some of the ranges, so that no two steps overlap.

    The first range is a step. The next step is the first range that starts at or after its end, and
    so on. Of several ranges with the same start, the longest is used.

    Args:
        ranges: Ranges of a process. Those without a duration are ignored.
        by: Clause that says how the steps were found.
    """
    ranges = ranges.take(ranges.end_ns > ranges.start_ns)
    ranges = ranges.take(np.lexsort((-ranges.end_ns, ranges.start_ns)))
    # Ranges of a layer may not touch, but steps may.
    layers = split_into_layers(ranges.start_ns, ranges.end_ns - 1)
    ranges = ranges.take(layers[0] if layers else slice(0))
    name_ids = find_distinct(ranges.name_id).tolist()
    names = Numbering[str]()
    step_name = np.full(len(ranges.names), NONE)
    step_name[name_ids] = names.numbers(bare_name(ranges.names[name]) for name in name_ids)
    return Steps(ranges.start_ns, ranges.end_ns, step_name[ranges.name_id], names.values, by)


def _choose_best(
    ranges: Ranges, names: Sequence[str], lookup: ActivityList, span_ns: tuple[int, int]
) -> Ranges:
    """Return the ranges of the family that looks most like iterations, or no ranges.

    Families of numbered names are tried first, then repeated names. A family must cover a minimum
    share of the span. Of the families that cover nearly the largest share, the one with the most
    ranges is returned.

    Args:
        ranges: Ranges of a process.
        names: Bare names of the ranges, by name id.
        lookup: Activities by name.
        span_ns: Start and end of the work of the device.
    """
    for has_numbers in (True, False):
        family_of_name, number = _parse_families(names, lookup, has_numbers=has_numbers)
        families = _list_families(
            ranges, family_of_name[ranges.name_id], number[ranges.name_id], has_numbers=has_numbers
        )
        min_share = _MIN_NUMBERED if has_numbers else _MIN_REPEATED
        shares = [(_measure_share(ranges.take(rows), span_ns), rows) for rows in families]
        shares = [(share, rows) for share, rows in shares if share >= min_share]
        max_share = max((share for share, _ in shares), default=0.0)
        similar = [rows for share, rows in shares if share >= max_share - _TOLERANCE]
        if similar:
            return ranges.take(max(similar, key=len))
    return ranges.take(slice(0, 0))


def _measure_share(ranges: Ranges, span_ns: tuple[int, int]) -> float:
    """Return the share of a span that ranges cover, if they do not overlap each other."""
    covered_ns = np.clip(ranges.end_ns, *span_ns) - np.clip(ranges.start_ns, *span_ns)
    return float(covered_ns.sum()) / max(span_ns[1] - span_ns[0], 1)


def _parse_families(
    names: Sequence[str], lookup: ActivityList, *, has_numbers: bool
) -> tuple[Ints, Ints]:
    """Return the family of each name, and the last number in the name.

    Names that differ only in their digits are one family. Without ``has_numbers``, only equal names
    are one family. A framework's own range cannot be an iteration, unless a built-in convention
    says that its name marks iterations.

    Args:
        names: Bare names.
        lookup: Activities by name. A framework's own range has an activity that is not a host
            activity.
        has_numbers: Whether a name without a number cannot be an iteration, and digits are ignored.

    Returns:
        family: Family of each name, or -1 if it cannot be an iteration.
        number: Last number in each name, or 0 if there is none.
    """
    # The conventions reduced to patterns that mark iterations without a number.
    marks = [
        replace(c, patterns=tuple(p for p in c.patterns if p.by_order)) for c in built_in().values()
    ]
    is_mark = parse_range_names(names, *(c for c in marks if c.patterns)).by_order
    families = Numbering[str]()
    family_of_name = np.full(len(names), NONE, np.int64)
    number = np.zeros(len(names), np.int64)
    for index, name in enumerate(names):
        digits = [text for text in _NUMBER.findall(name) if len(text) <= _MAX_DIGITS]
        if has_numbers and not digits:
            continue
        if is_mark[index] or lookup.classify_range(name)[0].startswith(HOST):
            number[index] = int(digits[-1]) if digits else 0
            family = _NUMBER.sub("#", name) if has_numbers else name
            family_of_name[index] = families.number(family)
    return family_of_name, number


def _list_families(
    ranges: Ranges, family: Ints, number: Ints, *, has_numbers: bool
) -> Iterator[Ints]:
    """Yield the rows of each family of a thread, in order of start.

    A family with a single range, with overlapping ranges, or with numbers that do not increase is
    left out.

    Args:
        ranges: Ranges of a process.
        family: Family of each range, or -1 if it cannot be an iteration.
        number: Number in the name of each range.
        has_numbers: Whether the numbers must increase.
    """
    with_family = np.flatnonzero(family >= 0)
    groups = group_rows(ranges.thread[with_family], family[with_family])
    for _, members in list_rows_by_value(groups.of_row):
        rows = with_family[members]
        rows = rows[np.argsort(ranges.start_ns[rows], kind="stable")]
        has_overlap = (ranges.start_ns[rows[1:]] < ranges.end_ns[rows[:-1]]).any()
        increases = (np.diff(number[rows]) > 0).all()
        if len(rows) > 1 and not has_overlap and (increases or not has_numbers):
            yield rows
