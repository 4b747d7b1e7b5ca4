"""Communication candidates: kernels that count as compute, and look or behave like communication.

Which kernels communicate is a list of names that users extend; a library that the list lacks would
turn exposed communication into compute without a word. Two things give such kernels away: parts of
their names, and that they take long beside other kernels, as transfers do that compute hides::

    gemm, norm, ...     ██ ████ ██ ███   ████ ██ ███
    exchange_rows        ████████████     █████████      on another stream
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from bubbleviz.conventions import kinds as naming
from bubbleviz.interpret.recording import UnknownKernels
from bubbleviz.model import intervals
from bubbleviz.model.columns import NONE, Bools, Ints
from bubbleviz.model.grouping import invert_permutation
from bubbleviz.model.limitations import Limitation, LimitationKind
from bubbleviz.model.profile import Activities, Profile
from bubbleviz.model.texts import to_one_line


def with_added_communication(profile: Profile, kinds: naming.Kinds) -> Profile:
    """Return a profile whose copies of names that a user adds are kernels, sorted by these.

    Args:
        profile: as read; of its copies only those have a name that may be communication.
        kinds: lists of what kernels are.
    """
    activities = profile.activities
    named = activities.name_id[activities.kernels :]
    if not kinds.added_communication or not (named != NONE).any():
        return profile
    added = np.append(naming.match_any(activities.names, kinds.added_communication), False)[named]
    if not added.any():
        return profile
    kernel = np.concatenate((np.ones(activities.kernels, bool), added))
    order = np.argsort(~kernel, kind="stable")
    sorted_work = replace(activities.take(order), kernels=int(kernel.sum()))
    streams = profile.streams
    sorted_streams = None if streams is None else lambda: streams()[order]
    copies, places = profile.copies, invert_permutation(order)
    moved_copies = None if copies is None else lambda: copies().reorder(places)
    return replace(profile, activities=sorted_work, streams=sorted_streams, copies=moved_copies)


#: Subject of the limitation for names that look like communication.
_BY_NAME = "kernels that look like communication"
#: Maximum number of names in a limitation, and of characters of each name.
_LISTED, _NAME = 3, 60
#: Minimum share of a device's kernel time of a name that is checked.
_LEAST = 0.01
#: Maximum number of names that are checked per device; names with the most time come first.
_MOST_NAMES = 16
#: Approximate maximum number of consecutive kernels that are checked per device, and the size of
#: the sample of start times from which they are chosen.
_MOST_KERNELS, _SAMPLE = 200_000, 10_000
#: Minimum share of a name's time in which other kernels run as well.
_BESIDE = 0.8
#: Maximum number of unknown names per rank, and of kernels per name, that are compared between
#: ranks.
_MAX_UNKNOWN, _MAX_SAMPLE = 4, 512
#: Minimum number of other kernels that run entirely within at least half of its kernels.
_OTHERS = 2


def candidates_of(profile: Profile, kinds: naming.Kinds) -> Iterator[Limitation]:
    """Yield limitations for kernels that count as compute but may be communication.

    Args:
        profile: The profile, with work whose times are possible.
        kinds: Lists of names of kernels.
    """
    activities, path = profile.activities, profile.source.path
    by_name = naming.mask_communication_candidates(activities.names, kinds)
    yield from _limitation(_BY_NAME, path, activities, by_name, "count as compute")
    # Work without launches ran on a host, or all of a device's work is on one line.
    if profile.launches_known:
        beside = _beside_compute(activities, kinds, by_name)
        words = "run beside other kernels almost all the time, and count as compute"
        yield from _limitation(
            "kernels that run beside compute, as communication does",
            path,
            activities,
            beside,
            words,
        )


def candidates_in(profile: Profile, path: str, kinds: naming.Kinds) -> tuple[str, ...]:
    """Return a sentence for each limitation of :func:`candidates_of`.

    Args:
        profile: The profile.
        path: Path of the profile in the sentences.
        kinds: Lists of names of kernels.
    """
    profile = replace(profile, source=replace(profile.source, path=path))
    profile = with_added_communication(profile, kinds)
    return tuple(note.sentence.removeprefix("warning: ") for note in candidates_of(profile, kinds))


def _limitation(
    what: str, path: str, activities: Activities, likely: Bools, words: str
) -> Iterator[Limitation]:
    """Yield the limitation for the kernels of the masked names, if there are any.

    Args:
        what: Subject of the limitation.
        path: Path of the profile.
        activities: Kernels, then copies.
        likely: Mask of the names.
        words: Predicate that says what the kernels do.
    """
    if not likely.any():
        return
    kernels = slice(0, activities.kernels)
    name = activities.name_id[kernels].astype(np.int64)
    duration_ns = activities.end_ns[kernels] - activities.start_ns[kernels]
    total_ns = intervals.group_sum(name, len(activities.names), duration_ns)
    count = np.bincount(name, minlength=len(activities.names))
    rows = np.flatnonzero(likely & (count > 0))
    if len(rows) == 0:
        return
    longest = rows[np.argsort(-total_ns[rows], kind="stable")]
    names = [activities.names[row] for row in longest.tolist()]
    listed = ", ".join(repr(to_one_line(name, _NAME)) for name in names[:_LISTED])
    more = f" and {len(rows) - _LISTED:,} more names" if len(rows) > _LISTED else ""
    # Bubbles become noticeably smaller only if the kernels take enough of the kernel time.
    is_much = what == _BY_NAME and total_ns[rows].sum() >= _LEAST * total_ns.sum()
    kind = LimitationKind.COMMUNICATION_COUNTED if is_much else LimitationKind.OTHER
    yield Limitation(
        what,
        f"{path}: {int(total_ns[rows].sum()) / 1e6:,.3f} ms of {listed}{more} {words}; if they "
        "communicate, list their names under communication in a TOML file, and give it with "
        f"--convention: {addition(names[:_LISTED])}",
        int(count[rows].sum()),
        kind,
    )


def addition(names: Sequence[str]) -> str:
    """Return the line of a convention file that makes kernels of some names communication."""
    regexes = dict.fromkeys(map(_regex_of, names))
    texts = (json.dumps(regex) if "'" in regex else f"'{regex}'" for regex in regexes)
    return f"communication = [{', '.join(texts)}]"


def _regex_of(name: str) -> str:
    """Return a regex that is found in a kernel's name: the name without its arguments, or part."""
    plain = naming.trim_signature(name)
    for part in (plain, plain.rpartition("::")[2], name):
        # What is not printable, or much too long, ends it.
        text = re.match(r"[ -~]{0,60}", part)
        if text is not None and text[0].strip() and text[0] in name:
            return re.escape(text[0])
    return re.escape(name[:1])


def unknown_kernels_of(profile: Profile, kinds: naming.Kinds) -> Iterator[UnknownKernels]:
    """Yield the kernels of unknown names that take the most time on each rank of a profile.

    They are compared with those of other ranks once the clocks of all profiles are known.

    Args:
        profile: The profile, with work whose times are possible.
        kinds: Lists of names of kernels.
    """
    activities = profile.activities
    # Names that look like communication have a limitation already.
    by_name = naming.mask_communication_candidates(activities.names, kinds)
    unknown = naming.mask_unknown_kernels(activities.names, kinds) & ~by_name
    # Work without launches ran on a host, or all of a device's work is on one line.
    if not unknown.any() or not profile.launches_known:
        return
    n_names, rows_of = len(activities.names), activities.make_rank_lookup()
    for rank in range(len(activities.ranks)):
        rows = rows_of(rank)
        rows = rows[rows < activities.kernels]
        name = activities.name_id[rows].astype(np.int64)
        length_ns = activities.end_ns[rows] - activities.start_ns[rows]
        total_ns = intervals.group_sum(name, n_names, length_ns)
        count = np.bincount(name, minlength=n_names)
        is_long = unknown & (total_ns >= _LEAST * total_ns.sum()) & (total_ns > 0)
        longest = np.flatnonzero(is_long)
        longest = longest[np.argsort(-total_ns[longest], kind="stable")][:_MAX_UNKNOWN]
        for number in longest.tolist():
            sample = _middle_by_start(rows[name == number], activities.start_ns)
            yield UnknownKernels(
                rank=rank,
                name=activities.names[number],
                count=int(count[number]),
                total_ns=int(total_ns[number]),
                start_ns=activities.start_ns[sample],
                end_ns=activities.end_ns[sample],
            )


def _middle_by_start(rows: Ints, start_ns: Ints) -> Ints:
    """Sort the rows by their start, and return at most ``_MAX_SAMPLE`` rows from the middle."""
    ordered = rows[np.argsort(start_ns[rows], kind="stable")]
    first = max(len(ordered) - _MAX_SAMPLE, 0) // 2
    middle: Ints = ordered[first : first + _MAX_SAMPLE]
    return middle


def _beside_compute(activities: Activities, kinds: naming.Kinds, by_name: Bools) -> Bools:
    """Return a mask of the names of long kernels that almost always overlap other kernels."""
    likely = np.zeros(len(activities.names), bool)
    unknown = naming.mask_unknown_kernels(activities.names, kinds) & ~by_name
    if not unknown.any():
        return likely
    compute = ~naming.match_any(activities.names, kinds.communication) & ~by_name
    kernels = slice(0, activities.kernels)
    for rank in range(len(activities.ranks)):
        rows = np.flatnonzero(activities.rank[kernels] == rank)
        rows = _in_the_middle(rows, activities.start_ns[rows])
        name = activities.name_id[rows].astype(np.int64)
        start_ns, end_ns = activities.start_ns[rows], activities.end_ns[rows]
        for number in _long_names(name, end_ns - start_ns, unknown):
            named, others = name == number, compute[name] & (name != number)
            if _is_beside(start_ns[named], end_ns[named], start_ns[others], end_ns[others]):
                likely[number] = True
    return likely


def _in_the_middle(rows: Ints, start_ns: Ints) -> Ints:
    """Return the rows that start in the middle of the run, or all rows if there are not many."""
    if len(rows) <= _MOST_KERNELS:
        return rows
    sample = np.sort(start_ns[:: len(rows) // _SAMPLE])
    share = _MOST_KERNELS / len(rows)
    low, high = (sample[int(len(sample) * (1 + side * share) / 2)] for side in (-1, 1))
    inside: Bools = (start_ns >= low) & (start_ns < high)
    chosen: Ints = rows[inside]
    return chosen


def _long_names(name: Ints, length_ns: Ints, unknown: Bools) -> list[int]:
    """Return the unknown names whose kernels are longer than most, in descending order of time."""
    count = np.bincount(name, minlength=len(unknown))
    total_ns = np.bincount(name, length_ns, len(unknown))
    likely = unknown & (count > 1) & (total_ns >= _LEAST * total_ns.sum()) & (total_ns > 0)
    if not likely.any():
        return []
    mean_ns = total_ns / np.maximum(count, 1)
    rows = np.flatnonzero(likely & (mean_ns >= _OTHERS * np.median(length_ns)))
    return [int(row) for row in rows[np.argsort(-total_ns[rows])][:_MOST_NAMES]]


def _is_beside(start_ns: Ints, end_ns: Ints, other_start_ns: Ints, other_end_ns: Ints) -> bool:
    """Return whether kernels mostly overlap other kernels, several of which run entirely within.

    Args:
        start_ns: Start of each kernel.
        end_ns: End of each kernel.
        other_start_ns: Start of each other kernel.
        other_end_ns: End of each other kernel.
    """
    others = intervals.union(other_start_ns, other_end_ns)
    overlap_ns = intervals.measure_within(others, start_ns, end_ns)
    if int(overlap_ns.sum()) < _BESIDE * int((end_ns - start_ns).sum()):
        return False
    # Other kernels within a kernel ended before its end and did not begin before its start.
    n_ended = np.searchsorted(np.sort(other_end_ns), end_ns, side="right")
    n_begun = np.searchsorted(np.sort(other_start_ns), start_ns, side="left")
    return bool(2 * int((n_ended - n_begun >= _OTHERS).sum()) >= len(start_ns))
