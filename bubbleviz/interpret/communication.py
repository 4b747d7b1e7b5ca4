"""Detection of kernels that count as compute but look or behave like communication.

A list of name patterns determines which kernels are communication. Users can extend the list. If a
library is missing from the list, its exposed communication counts as compute. Two properties reveal
the kernels of such a library. Their names may contain typical words, and they may be long kernels
that run at the same time as many other kernels, as when compute hides a transfer::

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


def add_communication(profile: Profile, kinds: naming.Kinds) -> Profile:
    """Turn the copies that the user lists as communication into kernels.

    Activities are reordered, because kernels must precede copies. Streams and recorded copies are
    reordered in the same way. If no copy has a matching name, the profile is returned unchanged.

    Args:
        profile: The profile as it was read. Only copies that may be communication have names.
        kinds: Name patterns that classify kernels.
    """
    activities = profile.activities
    name_id = activities.name_id[activities.kernels :]
    if not kinds.added_communication or not (name_id != NONE).any():
        return profile
    added = np.append(naming.match_any(activities.names, kinds.added_communication), False)[name_id]
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


#: Limitation subject for kernels whose names look like communication.
_BY_NAME = "kernels that look like communication"
#: Maximum number of kernel names in a limitation, and maximum number of characters per name.
_MAX_LISTED, _MAX_NAME_LENGTH = 3, 60
#: A kernel name is checked only if its kernels take at least this share of a device's kernel time.
_MIN_SHARE = 0.01
#: Maximum number of names checked per device. Names with a longer total time come first.
_MAX_NAMES = 16
#: Approximate maximum number of consecutive kernels that are checked per device, and the number of
#: sampled start times used to choose them.
_MAX_KERNELS, _N_SAMPLES = 200_000, 10_000
#: A kernel is concurrent only if other kernels run during at least this share of its time.
_MIN_OVERLAP = 0.8
#: Maximum number of unknown names per rank, and maximum number of kernels per name, that are
#: compared between ranks.
_MAX_UNKNOWN, _MAX_SAMPLE = 4, 512
#: Minimum number of other kernels that must run entirely within a concurrent kernel.
_MIN_OTHERS = 2


def check_communication(profile: Profile, kinds: naming.Kinds) -> Iterator[Limitation]:
    """Warn about kernels that count as compute but may be communication.

    Up to two limitations are yielded:

    - One for kernels whose names look like communication.
    - One for kernels that overlap other kernels almost all the time (see
      :func:`_mask_concurrent_names`), if the profile records launches.

    Args:
        profile: The profile, without kernels and copies whose times are invalid.
        kinds: Name patterns that classify kernels.
    """
    activities, path = profile.activities, profile.source.path
    by_name = naming.mask_communication_candidates(activities.names, kinds)
    yield from _make_limitation(_BY_NAME, path, activities, by_name, "count as compute")
    # Without launches, the work ran on a host, or all work of a device is recorded on one line.
    if profile.launches_known:
        is_concurrent = _mask_concurrent_names(activities, kinds, by_name)
        words = "run at the same time as other kernels almost all the time, but count as compute"
        yield from _make_limitation(
            "kernels that overlap compute, as communication does",
            path,
            activities,
            is_concurrent,
            words,
        )


def describe_candidates(profile: Profile, path: str, kinds: naming.Kinds) -> tuple[str, ...]:
    """Return a sentence for each limitation found by :func:`check_communication`.

    Args:
        profile: The profile.
        path: Path of the profile to use in the sentences.
        kinds: Name patterns that classify kernels.
    """
    profile = replace(profile, source=replace(profile.source, path=path))
    profile = add_communication(profile, kinds)
    return tuple(
        note.sentence.removeprefix("warning: ") for note in check_communication(profile, kinds)
    )


def _make_limitation(
    subject: str, path: str, activities: Activities, is_candidate: Bools, words: str
) -> Iterator[Limitation]:
    """Yield one limitation that reports all kernels whose names are in the mask, if there are any.

    The kind is ``COMMUNICATION_COUNTED`` if the subject is ``_BY_NAME`` and the kernels take at
    least ``_MIN_SHARE`` of all kernel time. Otherwise, the kind is ``OTHER``. The reason lists the
    names with the longest total time first.

    Args:
        subject: Subject of the limitation.
        path: Path of the profile.
        activities: GPU activities of the profile, kernels before copies.
        is_candidate: Mask of the kernel names, indexed by name id.
        words: Predicate of the reason, for example ``count as compute``.
    """
    if not is_candidate.any():
        return
    kernels = slice(0, activities.kernels)
    name = activities.name_id[kernels].astype(np.int64)
    duration_ns = activities.end_ns[kernels] - activities.start_ns[kernels]
    total_ns = intervals.group_sum(name, len(activities.names), duration_ns)
    count = np.bincount(name, minlength=len(activities.names))
    rows = np.flatnonzero(is_candidate & (count > 0))
    if len(rows) == 0:
        return
    longest = rows[np.argsort(-total_ns[rows], kind="stable")]
    names = [activities.names[row] for row in longest.tolist()]
    names_text = ", ".join(
        repr(to_one_line(name, _MAX_NAME_LENGTH)) for name in names[:_MAX_LISTED]
    )
    suffix = f" and {len(rows) - _MAX_LISTED:,} more names" if len(rows) > _MAX_LISTED else ""
    # Bubbles are noticeably too small only if the kernels take enough of the kernel time.
    is_much = subject == _BY_NAME and total_ns[rows].sum() >= _MIN_SHARE * total_ns.sum()
    kind = LimitationKind.COMMUNICATION_COUNTED if is_much else LimitationKind.OTHER
    yield Limitation(
        subject,
        f"{path}: {int(total_ns[rows].sum()) / 1e6:,.3f} ms of {names_text}{suffix} {words}; if "
        "these kernels communicate, list their names under communication in a TOML file and pass "
        f"it with --convention: {format_addition(names[:_MAX_LISTED])}",
        int(count[rows].sum()),
        kind,
    )


def format_addition(names: Sequence[str]) -> str:
    """Return the line of a convention file that lists kernel names as communication."""
    regexes = dict.fromkeys(map(_make_regex, names))
    texts = (json.dumps(regex) if "'" in regex else f"'{regex}'" for regex in regexes)
    return f"communication = [{', '.join(texts)}]"


def _make_regex(name: str) -> str:
    """Return a regular expression that matches a readable part of a kernel name.

    These texts are tried in order:

    1. The name without its signature.
    2. The part of this text after the last ``::``.
    3. The full name.

    Each text is cut at its first character that is not printable ASCII, and after 60 characters.
    The first text that is not blank and occurs in the name is used. If there is none, the first
    character of the name is used.
    """
    plain = naming.trim_signature(name)
    for part in (plain, plain.rpartition("::")[2], name):
        # The match ends at the first character that is not printable, or after 60 characters.
        text = re.match(r"[ -~]{0,60}", part)
        if text is not None and text[0].strip() and text[0] in name:
            return re.escape(text[0])
    return re.escape(name[:1])


def find_unknown_kernels(profile: Profile, kinds: naming.Kinds) -> Iterator[UnknownKernels]:
    """Yield the kernels with unknown names that take the most time on each rank of a profile.

    A name is yielded only if its kernels take at least ``_MIN_SHARE`` of the rank's kernel time. Up
    to ``_MAX_UNKNOWN`` names are yielded per rank, longest total time first. Nothing is yielded if
    the profile records no launches.

    Args:
        profile: The profile, without kernels and copies whose times are invalid.
        kinds: Name patterns that classify kernels.
    """
    activities = profile.activities
    # Names that look like communication are already reported by a limitation.
    is_unknown = naming.mask_unknown_kernels(
        activities.names, kinds
    ) & ~naming.mask_communication_candidates(activities.names, kinds)
    # Without launches, the work ran on a host, or all work of a device is recorded on one line.
    if not is_unknown.any() or not profile.launches_known:
        return
    n_names, rows_of = len(activities.names), activities.make_rank_lookup()
    for rank in range(len(activities.ranks)):
        rows = rows_of(rank)
        rows = rows[rows < activities.kernels]
        name = activities.name_id[rows].astype(np.int64)
        length_ns = activities.end_ns[rows] - activities.start_ns[rows]
        total_ns = intervals.group_sum(name, n_names, length_ns)
        count = np.bincount(name, minlength=n_names)
        for number in _select_largest_totals(total_ns, is_unknown).tolist():
            sample = _take_middle_by_start(rows[name == number], activities.start_ns)
            yield UnknownKernels(
                rank=rank,
                name=activities.names[number],
                count=int(count[number]),
                total_ns=int(total_ns[number]),
                start_ns=activities.start_ns[sample],
                end_ns=activities.end_ns[sample],
            )


def _select_largest_totals(total_ns: Ints, is_unknown: Bools) -> Ints:
    """Return the ids of the unknown names that take the most kernel time, longest time first.

    A name must take at least ``_MIN_SHARE`` of the total time. Up to ``_MAX_UNKNOWN`` names are
    returned.

    Args:
        total_ns: Total duration of the kernels with each name on a rank.
        is_unknown: Mask of the unknown names.
    """
    is_long = is_unknown & (total_ns >= _MIN_SHARE * total_ns.sum()) & (total_ns > 0)
    names = np.flatnonzero(is_long)
    return names[np.argsort(-total_ns[names], kind="stable")][:_MAX_UNKNOWN]


def _take_middle_by_start(rows: Ints, start_ns: Ints) -> Ints:
    """Sort the rows by start, and return up to ``_MAX_SAMPLE`` rows from the middle."""
    ordered = rows[np.argsort(start_ns[rows], kind="stable")]
    first = max(len(ordered) - _MAX_SAMPLE, 0) // 2
    middle: Ints = ordered[first : first + _MAX_SAMPLE]
    return middle


def _mask_concurrent_names(activities: Activities, kinds: naming.Kinds, by_name: Bools) -> Bools:
    """Return a mask of the names whose kernels are long and almost always overlap other kernels.

    Only unknown names are checked, on a sample of each rank's kernels. A name is in the mask if its
    kernels are concurrent on at least one rank; see :func:`_is_concurrent`.

    Args:
        activities: GPU activities of the profile, kernels before copies.
        kinds: Name patterns that classify kernels.
        by_name: Mask of the names that look like communication. These names are not checked.
    """
    is_concurrent = np.zeros(len(activities.names), bool)
    unknown = naming.mask_unknown_kernels(activities.names, kinds) & ~by_name
    if not unknown.any():
        return is_concurrent
    compute = ~naming.match_any(activities.names, kinds.communication) & ~by_name
    kernels = slice(0, activities.kernels)
    for rank in range(len(activities.ranks)):
        rows = np.flatnonzero(activities.rank[kernels] == rank)
        rows = _sample_middle(rows, activities.start_ns[rows])
        name = activities.name_id[rows].astype(np.int64)
        start_ns, end_ns = activities.start_ns[rows], activities.end_ns[rows]
        for number in _find_long_names(name, end_ns - start_ns, unknown):
            is_named, is_other = name == number, compute[name] & (name != number)
            if _is_concurrent(
                start_ns[is_named], end_ns[is_named], start_ns[is_other], end_ns[is_other]
            ):
                is_concurrent[number] = True
    return is_concurrent


def _sample_middle(rows: Ints, start_ns: Ints) -> Ints:
    """Return about ``_MAX_KERNELS`` rows whose start times are closest to the middle of the run.

    If there are at most ``_MAX_KERNELS`` rows, all rows are returned. The time bounds are estimated
    as quantiles of a sample of the start times.

    Args:
        rows: Rows to choose from.
        start_ns: Start time of each row.
    """
    if len(rows) <= _MAX_KERNELS:
        return rows
    sample = np.sort(start_ns[:: len(rows) // _N_SAMPLES])
    fraction = _MAX_KERNELS / len(rows)
    low, high = (sample[int(len(sample) * (1 + sign * fraction) / 2)] for sign in (-1, 1))
    is_in_middle: Bools = (start_ns >= low) & (start_ns < high)
    sampled: Ints = rows[is_in_middle]
    return sampled


def _find_long_names(name: Ints, length_ns: Ints, unknown: Bools) -> list[int]:
    """Return up to ``_MAX_NAMES`` unknown names with long kernels, longest total time first.

    A name must occur at least twice and take at least ``_MIN_SHARE`` of the total time. Its mean
    duration must be at least ``_MIN_OTHERS`` times the median duration of all kernels.

    Args:
        name: Name id of each kernel.
        length_ns: Duration of each kernel.
        unknown: Mask of the unknown names, indexed by name id.
    """
    count = np.bincount(name, minlength=len(unknown))
    total_ns = np.bincount(name, length_ns, len(unknown))
    likely = unknown & (count > 1) & (total_ns >= _MIN_SHARE * total_ns.sum()) & (total_ns > 0)
    if not likely.any():
        return []
    mean_ns = total_ns / np.maximum(count, 1)
    rows = np.flatnonzero(likely & (mean_ns >= _MIN_OTHERS * np.median(length_ns)))
    return [int(row) for row in rows[np.argsort(-total_ns[rows])][:_MAX_NAMES]]


def _is_concurrent(start_ns: Ints, end_ns: Ints, other_start_ns: Ints, other_end_ns: Ints) -> bool:
    """Return whether kernels run like transfers, at the same time as several other kernels.

    Two conditions must hold:

    - At least ``_MIN_OVERLAP`` of the kernels' total time overlaps other kernels.
    - At least half of the kernels each contain ``_MIN_OTHERS`` or more complete other kernels.

    Args:
        start_ns: Start of each kernel.
        end_ns: End of each kernel.
        other_start_ns: Start of each other kernel.
        other_end_ns: End of each other kernel.
    """
    other_times = intervals.union(other_start_ns, other_end_ns)
    overlap_ns = intervals.measure_within(other_times, start_ns, end_ns)
    if int(overlap_ns.sum()) < _MIN_OVERLAP * int((end_ns - start_ns).sum()):
        return False
    # Other kernels within a kernel do not end after its end and do not start before its start.
    n_ended = np.searchsorted(np.sort(other_end_ns), end_ns, side="right")
    n_begun = np.searchsorted(np.sort(other_start_ns), start_ns, side="left")
    return bool(2 * int((n_ended - n_begun >= _MIN_OTHERS).sum()) >= len(start_ns))
