"""Limitations of an analysis: missing or wrong data, and the consequences for the results."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from typing import TYPE_CHECKING

from bubbleviz.model.texts import to_one_line

if TYPE_CHECKING:  # limitations are created before numpy is loaded
    from bubbleviz.model.columns import Ints


class LimitationKind(Enum):
    """Kind of limitation, which determines how later stages treat it.

    Kinds whose comment says "affects costs" are also treated like ``COSTS``.
    """

    OTHER = auto()
    DETAILS = auto()  # models of GPUs are missing, which no time or ratio needs
    ITERATIONS_MATCHED = auto()  # unnamed iterations were matched with little doubt
    CAUSES_UNKNOWN = auto()  # idle time is correct, but a part of it has no known cause
    COSTS = auto()  # kernels, calls or instructions are missing, so costs may be wrong
    WRONG_COSTS = auto()  # instruction costs are wrong
    KERNELS_LEFT_OUT = auto()  # kernels without timestamps are left out; affects costs
    KERNELS_IMPOSSIBLE = auto()  # kernels with impossible times are left out; affects costs
    PROFILE_UNREADABLE = auto()  # a file in a directory is left out
    FILE_DAMAGED = auto()  # the file is truncated or damaged, so any event may be missing
    PROFILER_WARNING = auto()  # the profiler warned that events may be missing; marks no ratio
    OPERATIONS_DROPPED = auto()  # a recorder of communication did not write all operations
    RECORDING_DAMAGED = auto()  # iterations of some ranks are left out
    RECORDING_NAMES_LOST = auto()  # operations of averaged iterations may be left out
    KERNELS_OVERRUN = auto()  # kernels overlapped the next kernel on a stream and were shortened
    KERNELS_LOST = auto()  # enough kernels are missing to change ratios; affects costs
    GRAPHS_LOST = auto()  # graphs were launched, but their kernels were not recorded
    WORK_BEFORE_CAPTURE = auto()  # unrecorded work kept a device busy when the capture began
    RECORDINGS_AWAITED = auto()  # all iterations began before every rank was being recorded
    WAITS_UNCLEAR = auto()  # communication may only have waited for recordings to begin
    RANGE_NAMES_LOST = auto()  # range names are missing; affects costs
    WITHOUT_DEVICE = auto()  # instructions on the host represent the work of devices
    MICROBATCHES_INFERRED = auto()
    ITERATIONS_UNDIVIDED = auto()  # an iteration may contain several training steps
    ITERATIONS_UNMARKED = auto()  # an iteration may be only a part of a training step
    ITERATIONS_MOSTLY_CUT = auto()  # few iterations are averaged, or ranks are paired wrongly
    OPERATIONS_LACKING = auto()  # operations are missing, so their kernels may look like bubbles
    OPERATIONS_WITHOUT_WORK = auto()  # kernels are missing, so operations may look like bubbles
    RANKS_WITHOUT_OPERATIONS = auto()  # ranks without operations computed as long as other ranks
    ITERATIONS_UNPAIRED = auto()  # iterations are numbered per rank, not across ranks
    STAGES_UNKNOWN = auto()  # the stages of the ranks are unknown
    STAGES_MAY_BE_MISSING = auto()  # dropped if a complete schedule is recognized
    EARLIER_STAGES_UNKNOWN = auto()  # an unknown number of earlier stages has no profile
    INNER_STAGES_UNKNOWN = auto()  # an unknown number of stages in between has no profile
    STAGE_COLUMN_INCOMPLETE = auto()  # the column stage of a table lacks a stage
    CHUNKS_ASSUMED = auto()  # the configuration is missing, so ranks may have several chunks
    COMMUNICATION_COUNTED = auto()  # kernels that look like communication count as compute
    WAITING_COUNTED = auto()  # kernels that wait for other ranks count as compute
    STAGES_WITHOUT_GPU_WORK = auto()  # stages have ranges but no GPU work
    LIMIT_UNUSED = auto()  # a limit was given for a quantity that is unknown
    HOST_NAME_SHARED = auto()  # profiles of several machines have the same hostname
    RANKS_CONTRADICTED = auto()  # profiles with the same hostname have contradictory clocks
    UTC_CONTRADICTED = auto()  # UTC contradicts data dependencies; --align causal may be right
    STAGES_CONTRADICTED = auto()  # the given stage order contradicts data dependencies


#: Minimum fraction of unreadable events for a file to be reported as damaged.
DAMAGED_SHARE = 0.01
#: Limitation kinds for kernels left out because of missing or invalid times.
LEFT_OUT = frozenset((LimitationKind.KERNELS_LEFT_OUT, LimitationKind.KERNELS_IMPOSSIBLE))
#: Limitation kinds that affect no time and no ratio. Pictures do not mention them.
HARMLESS = frozenset(
    (
        LimitationKind.DETAILS,
        LimitationKind.ITERATIONS_MATCHED,
        LimitationKind.CAUSES_UNKNOWN,
        LimitationKind.LIMIT_UNUSED,
    )
)


@dataclass(frozen=True)
class Limitation:
    """A limitation of an analysis, caused by missing or wrong data.

    Attributes:
        what: Subject of the limitation, such as "kernels without timestamps".
        reason: Cause and consequences of the limitation, as a message for users.
        count: Number of affected items, such as kernels or files.
        kind: Kind of limitation, which determines how later stages treat it.
        hosts: Hostnames that occur only in ``reason``, and nowhere else in a result.
        times_ns: Times of the damage on the profile's clock, or None if the times are unknown.
        unknown_ns: Starts and ends of the device time ranges that the damage makes uncertain, or
            None if only ``times_ns`` are affected.
        noticeable_kind: Kind that replaces ``kind`` if the uncertain times make up a noticeable
            part of an averaged iteration, or None to keep ``kind``.
        window: Value of ``--window`` that excludes the damage, or "" if there is none.
    """

    what: str
    reason: str
    count: int = 1
    kind: LimitationKind = field(default=LimitationKind.OTHER, compare=False, repr=False)
    hosts: tuple[str, ...] = field(default=(), compare=False, repr=False)
    times_ns: Ints | None = field(default=None, compare=False, repr=False)
    unknown_ns: tuple[Ints, Ints] | None = field(default=None, compare=False, repr=False)
    noticeable_kind: LimitationKind | None = field(default=None, compare=False, repr=False)
    window: str = field(default="", compare=False, repr=False)

    @property
    def entry(self) -> dict[str, str | int]:
        """The subject, reason and count, keyed by their names in JSON."""
        return {"what": self.what, "reason": self.reason, "count": self.count}

    def outside(
        self, low_ns: int, high_ns: int, delay_ns: int = 0, *, where: str = "the window"
    ) -> Limitation:
        """Return the limitation as it applies to the given time window.

        If the times of the damage are known and are all outside the window, the reason says so, and
        the kind becomes ``COSTS``. Otherwise the limitation is returned unchanged.

        Args:
            low_ns: Start of the window, on the profile's clock.
            high_ns: End of the window, on the profile's clock.
            delay_ns: Maximum delay between the damage and its effects. Ignored if ``unknown_ns`` is
                set.
            where: Name of the window, for use in the reason.
        """
        if self.unknown_ns is not None:
            start_ns, end_ns = self.unknown_ns
            is_inside = (end_ns > low_ns) & (start_ns < high_ns)
        elif self.times_ns is not None:
            is_inside = (self.times_ns >= low_ns - delay_ns) & (self.times_ns <= high_ns)
        else:
            return self
        if is_inside.any():
            return self
        reason = f"{self.reason}; {where} is not affected"
        return replace(self, reason=reason, kind=LimitationKind.COSTS)

    @property
    def sentence(self) -> str:
        """The warning that a command prints to standard error, as a single line."""
        noun = "files" if self.kind is LimitationKind.PROFILER_WARNING else "times"
        count = f" ({self.count:,} {noun})" if self.count > 1 else ""
        return f"warning: {self.what}{count}: {self.reason}"


def list_harmful_subjects(limitations: Iterable[Limitation]) -> str:
    """Return the subjects of limitations that may affect times or ratios, or "" if there are none.

    This is the short form for pictures, without reasons, which name files. Counts of limitations
    with the same subject are added. A count is shown unless it is 1. For example: ``stages without
    a profile (2); duty cycle``.
    """
    counts = Counter[str]()
    for limitation in limitations:
        if limitation.kind not in HARMLESS:
            counts[limitation.what] += limitation.count
    return "; ".join(
        f"{to_one_line(what, _MAX_SUBJECT)} ({count:,})"
        if count != 1
        else to_one_line(what, _MAX_SUBJECT)
        for what, count in counts.items()
    )


#: Maximum number of characters of a subject in a picture.
_MAX_SUBJECT = 160
#: Maximum number of limitations with the same subject and kind that are listed separately.
#: More limitations than this are merged into one, which quotes ``_N_QUOTED`` reasons.
_MAX_LISTED, _N_QUOTED = 4, 3


def add_up_counts(
    notes: Iterable[Limitation], kinds: Collection[LimitationKind] = tuple(LimitationKind)
) -> list[Limitation]:
    """Merge limitations that differ only in their count, adding up the counts. Keeps the order.

    Args:
        notes: The limitations.
        kinds: Kinds of the limitations that are merged. All others are returned unchanged.
    """
    first: dict[tuple[str, str, LimitationKind], int] = {}
    merged: list[Limitation] = []
    for note in notes:
        key = note.what, note.reason, note.kind
        if note.kind in kinds and key in first:
            index = first[key]
            merged[index] = replace(merged[index], count=merged[index].count + note.count)
            continue
        first.setdefault(key, len(merged))
        merged.append(note)
    return merged


def merge_limitations(notes: Iterable[Limitation]) -> list[Limitation]:
    """Remove duplicate limitations, and merge limitations with the same subject and kind.

    Equal warnings of profilers become one limitation that counts the files. Other limitations are
    merged only if more than ``_MAX_LISTED`` distinct ones have the same subject and
    kind. The merged limitation replaces the first one. The merged reason consists of the first
    ``_N_QUOTED`` reasons and the number of remaining ones. The counts are added.
    """
    by_subject: dict[tuple[str, LimitationKind], list[Limitation]] = {}
    distinct = list(dict.fromkeys(add_up_counts(notes, (LimitationKind.PROFILER_WARNING,))))
    for note in distinct:
        by_subject.setdefault((note.what, note.kind), []).append(note)
    merged: list[Limitation] = []
    for note in distinct:
        group = by_subject[note.what, note.kind]
        if len(group) <= _MAX_LISTED:
            merged.append(note)
        elif note is group[0]:
            quoted = "; ".join(each.reason for each in group[:_N_QUOTED])
            reason = f"{quoted}; and {len(group) - _N_QUOTED:,} more"
            hosts = tuple(host for each in group for host in each.hosts)
            total = sum(n.count for n in group)
            merged.append(replace(note, reason=reason, count=total, hosts=hosts))
    return merged
