"""Limitations: what an analysis could not determine, and what later stages make of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # limitations are made before numpy is loaded
    from bubbleviz.model.columns import Ints


class LimitationKind(Enum):
    """Kind of a limitation, by which later stages treat it. Its text is only for people."""

    OTHER = auto()
    COSTS = auto()  # kernels, calls or instructions are missing: costs may be off
    WRONG_COSTS = auto()  # costs of instructions are wrong
    KERNELS_LEFT_OUT = auto()  # for their times; likewise a limit of costs
    KERNELS_IMPOSSIBLE = auto()  # left out because their times are impossible; likewise
    PROFILE_UNREADABLE = auto()  # a file of a directory is left out
    FILE_DAMAGED = auto()  # cut short or damaged, so any event may be missing
    RECORDING_DAMAGED = auto()  # iterations of ranks are left out
    RECORDING_NAMES_LOST = auto()  # operations of averaged iterations may be left out
    KERNELS_OVERRUN = auto()  # ends that contradict the next kernel on a stream were corrected
    KERNELS_LOST = auto()  # so many that ratios are off; likewise a limit of costs
    GRAPHS_LOST = auto()  # graph launches without recorded kernels
    WORK_BEFORE_CAPTURE = auto()  # kept a device busy and was not recorded
    RECORDINGS_AWAITED = auto()  # no iteration began after all ranks were recorded
    WAITS_UNCLEAR = auto()  # communication may only have waited for a recording to begin
    RANGE_NAMES_LOST = auto()  # likewise a limit of costs
    WITHOUT_DEVICE = auto()  # instructions on a host stand for those of a device
    MICROBATCHES_INFERRED = auto()
    ITERATIONS_UNDIVIDED = auto()  # one may be several steps
    ITERATIONS_UNMARKED = auto()  # one may be a part of a step, or an operation several
    ITERATIONS_MOSTLY_CUT = auto()  # few are averaged, or ranks' are paired wrongly
    OPERATIONS_LACKING = auto()  # their kernels may count as bubble
    OPERATIONS_WITHOUT_WORK = auto()  # likewise
    RANKS_WITHOUT_OPERATIONS = auto()  # though they computed as long as others
    ITERATIONS_UNPAIRED = auto()  # of ranks: numbers are each rank's own
    STAGES_UNKNOWN = auto()  # though ranks work: nothing shows which they hold
    STAGES_MAY_BE_MISSING = auto()  # a schedule known to be whole refutes it
    EARLIER_STAGES_UNKNOWN = auto()  # earlier ones have no profile, and nothing tells how many
    INNER_STAGES_UNKNOWN = auto()  # stages between them have no profile, of unknown number
    COMMUNICATION_COUNTED = (
        auto()
    )  # kernels that look like it count as compute, so bubbles are larger
    WAITING_COUNTED = auto()  # kernels that wait for other ranks count as compute
    STAGES_WITHOUT_GPU_WORK = auto()  # their ranges were recorded alone: they are missing
    LIMIT_UNUSED = auto()  # nothing is known to hold against a limit that was given
    HOST_NAME_SHARED = auto()  # profiles of several machines have one hostname
    RANKS_CONTRADICTED = auto()  # clocks of profiles with one hostname contradict each other
    UTC_CONTRADICTED = auto()  # clocks that dependencies align may be right
    STAGES_CONTRADICTED = auto()  # nothing that follows from dependencies between them holds


#: Share of a file's events that cannot be read from which the file counts as damaged.
DAMAGED_SHARE = 0.01
#: Kinds of limitations for kernels that were left out because of their times.
LEFT_OUT = frozenset((LimitationKind.KERNELS_LEFT_OUT, LimitationKind.KERNELS_IMPOSSIBLE))


@dataclass(frozen=True)
class Limitation:
    """A limit of an analysis.

    Attributes:
        what: Subject of the limitation.
        reason: The reason and its consequences.
        count: Number of times that it applies.
        kind: Kind by which later stages treat it.
        hosts: Names of hosts that the reason contains and that no other part of a result lists.
        times_ns: Times of the damage on the profile's clock, or None if they are unknown.
        unknown_ns: Start and end of the times on devices that the damage makes uncertain, or None
            if they are those of ``times_ns``.
        noticeable_kind: The kind if the uncertain times take much of an averaged iteration, or None
            if it is the same.
        window: The ``--window`` that leaves out the damage, or "" if there is none.
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
        """The values of a JSON document, by key."""
        return {"what": self.what, "reason": self.reason, "count": self.count}

    def outside(
        self, low_ns: int, high_ns: int, delay_ns: int = 0, *, where: str = "the window"
    ) -> Limitation:
        """Return the limitation for a time window on the profile's clock.

        If the times of the damage are known and all outside the window, the reason says so, and the
        kind becomes COSTS.

        Args:
            low_ns: Start of the window.
            high_ns: End of the window.
            delay_ns: Maximum time from the damage to its effects.
            where: Name of the window for the reason.
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
        reason = f"{self.reason}; none of it lies in {where}, so no time there is wrong"
        return replace(self, reason=reason, kind=LimitationKind.COSTS)

    @property
    def sentence(self) -> str:
        """The warning of a command on standard error."""
        times = f" ({self.count:,} times)" if self.count > 1 else ""
        return f"warning: {self.what}{times}: {self.reason}"


#: So many of one subject are listed one by one; of more the first are quoted.
_MAX_LISTED, _N_QUOTED = 4, 3


def merge_limitations(notes: Iterable[Limitation]) -> list[Limitation]:
    """Return limitations, equal ones once; many of one subject are one that quotes the first."""
    by_subject: dict[tuple[str, LimitationKind], list[Limitation]] = {}
    distinct = list(dict.fromkeys(notes))
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
