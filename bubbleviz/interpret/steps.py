"""Steps: the ranges that mark the iterations of a process, with or without pipeline parallelism.

The first available source in this list is used:

1. Ranges that match the user's pattern.
2. Ranges whose names a convention recognizes as iterations (``ProfilerStep#3``, ``iter_0_7``,
   ``train#step_num=3#``).
3. Ranges whose names differ only in an increasing number (``step 7``), if the ranges do not overlap
   and cover at least half of the device's time.
4. Ranges with the same name that do not overlap and cover at least 80 % of that time.

Ranges of one thread with similar names are a family. If several families cover about the same time,
the family with the most ranges is used. This selects iterations rather than epochs.
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

#: Minimum share of the device's time that ranges of a family with numbered names must cover.
_MIN_NUMBERED = 0.5
#: Minimum share of the device's time that the ranges of a repeated name must cover.
_MIN_REPEATED = 0.8
#: Two shares are treated as equal if they differ by at most this value.
_TOLERANCE = 0.1
_NUMBER = re.compile(r"[0-9]+")
#: Maximum number of digits in an iteration number.
_MAX_DIGITS = 18


@dataclass(frozen=True, eq=False, repr=False)
class Steps(Table):
    """Iterations of a process, sorted by start. Steps do not overlap.

    Attributes:
        start_ns: Start of each step on the host.
        end_ns: End of each step on the host.
        name_id: Index into ``names``.
        names: Distinct names.
        by: Clause that explains how the steps were found, for example ``selected by --step``.
    """

    start_ns: Ints
    end_ns: Ints
    name_id: Ints
    names: tuple[str, ...] = field(metadata={"shared": True})
    by: str = field(metadata={"shared": True})

    def numbers(self) -> tuple[str, ...]:
        """Return the last number in each step's name, or the step's index if it has no number.

        Leading zeros are removed. Indices start at 0.
        """
        last = [_NUMBER.findall(self.names[name])[-1:] for name in self.name_id.tolist()]
        return tuple(
            str(int(digits[0][:_MAX_DIGITS])) if digits else str(index)
            for index, digits in enumerate(last)
        )

    def within(self, low_ns: int, high_ns: int) -> Steps:
        """Return the steps that overlap the half-open interval ``[low_ns, high_ns)``."""
        return self.take((self.end_ns > low_ns) & (self.start_ns < high_ns))


def find_pattern(text: str) -> re.Pattern[str]:
    """Compile the argument of ``--step``, a range name or a regular expression.

    The result matches the text itself, and everything that the text matches when interpreted as a
    regular expression.

    Raises:
        UsageError: The text is not a valid regular expression.
    """
    try:
        compile_pattern(text)
        return compile_pattern(f"(?:{re.escape(text)})|(?:{text})")
    except FutureWarning as warning:
        raise UsageError(f"--step: {describe_ambiguity(text, warning)}") from warning
    except COMPILE_ERRORS as error:
        raise UsageError(
            f"--step {text[:60]!r}: not a valid regular expression ({error}); pass a range name, "
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

    The result is empty if no range marks steps.

    Args:
        ranges: Long ranges of main threads and of threads that launch work.
        process: Process number.
        start_ns: Start of the first work on the process's device.
        end_ns: End of the last work on the process's device.
        lookup: List of activities, which classifies range names.
        pattern: The user's pattern for step names, or None. If a pattern is given, no other source
            is used.
    """
    ranges = ranges.take(process_of(ranges.thread) == process)
    names = [bare_name(name) for name in ranges.names]
    if pattern is not None:
        is_match = np.array([is_full_match(pattern, name) for name in names], bool)
        return _make_steps(ranges.take(is_match[ranges.name_id]), "selected by --step")
    meanings = parse_range_names(names, *add_iteration_names(()))
    is_mark = np.asarray((meanings.iteration >= 0) & (meanings.phase < 0), bool)
    if is_mark[ranges.name_id].any():
        return _make_steps(ranges.take(is_mark[ranges.name_id]), "ranges that name iterations")
    best = _choose_best(ranges, names, lookup, (start_ns, end_ns))
    by = "ranges that repeat throughout the run" if len(best) else "the whole capture"
    return _make_steps(best, by)


def list_frequent_names(ranges: Ranges) -> str:
    """Return the most frequent names and their counts, for an error message.

    Names that differ only in their digits are counted together.
    """
    counts = np.bincount(ranges.name_id, minlength=len(ranges.names)).tolist()
    names = map(bare_name, ranges.names)
    count_of_name = {name: count for name, count in zip(names, counts, strict=True) if count}
    shapes = count_shapes(count_of_name, 5)
    return ", ".join(f"{shape[:60]!r} ({count})" for shape, count in shapes) or "none"


def _make_steps(ranges: Ranges, by: str) -> Steps:
    """Select ranges as steps, so that no two steps overlap.

    The first step is the range that starts first. Each further step is the first range that starts
    at or after the end of the previous step. Among ranges with the same start, the longest is used.

    Args:
        ranges: Ranges of a process, in any order. Ranges with a duration of 0 are ignored.
        by: Clause that explains how the steps were found.
    """
    ranges = ranges.take(ranges.end_ns > ranges.start_ns)
    ranges = ranges.take(np.lexsort((-ranges.end_ns, ranges.start_ns)))
    # Steps may touch, but ranges of a layer may not, so the ends are moved by 1 ns.
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

    Families with numbered names are tried first. They must cover at least ``_MIN_NUMBERED`` of the
    span. If no such family qualifies, families with a repeated name are tried. Those must cover at
    least ``_MIN_REPEATED``. Among the families whose share is within ``_TOLERANCE`` of the largest
    share, the family with the most ranges wins.

    Args:
        ranges: Ranges of a process.
        names: Bare names of the ranges, indexed by name id.
        lookup: List of activities, which classifies range names.
        span_ns: Start of the first work and end of the last work on the device.
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
    """Return the share of a span that ranges cover. The ranges must not overlap each other."""
    covered_ns = np.clip(ranges.end_ns, *span_ns) - np.clip(ranges.start_ns, *span_ns)
    return float(covered_ns.sum()) / max(span_ns[1] - span_ns[0], 1)


def _parse_families(
    names: Sequence[str], lookup: ActivityList, *, has_numbers: bool
) -> tuple[Ints, Ints]:
    """Return each name's family, and the last number in the name.

    - With ``has_numbers``, names that differ only in their digits are one family, and names without
      a number have no family. Without ``has_numbers``, only equal names are one family.
    - Names of ranges that a framework opens, for example for a PyTorch operator, have no family,
      unless they mark iterations according to a built-in convention.

    Args:
        names: Bare range names.
        lookup: List of activities. A framework opened a range if the range's activity is not a host
            activity.
        has_numbers: Whether names must contain a number.

    Returns:
        family: Family of each name, or -1 if it cannot mark an iteration.
        number: Last number in each name, or 0 if there is none.
    """
    # Keep only the patterns that mark iterations without a number.
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
    """Yield the rows of each family on each thread, sorted by start.

    A family must have at least two ranges on the thread, which must not overlap. With
    ``has_numbers``, their numbers must increase. Other families are left out.

    Args:
        ranges: Ranges of a process.
        family: Family of each range, or -1 if it cannot mark an iteration.
        number: Last number in the name of each range.
        has_numbers: Whether the families have numbered names.
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
