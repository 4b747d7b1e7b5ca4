"""Limitations: what an analysis could not determine, and what later stages make of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import field
from enum import Enum, auto

from bubbleviz.model.values import frozen


class LimitationKind(Enum):
    """What later stages make of a limitation, whose text is for people alone."""

    OTHER = auto()
    COSTS = auto()  # kernels, calls or instructions are missing: costs may be off
    WRONG_COSTS = auto()  # costs of instructions are wrong
    KERNELS_LEFT_OUT = auto()  # for their times; likewise a limit of costs
    PROFILE_UNREADABLE = auto()  # a file of a directory is left out
    KERNELS_LOST = auto()  # so many that ratios are off; likewise a limit of costs
    RANGE_NAMES_LOST = auto()  # likewise a limit of costs
    WITHOUT_DEVICE = auto()  # instructions on a host stand for those of a device
    MICROBATCHES_INFERRED = auto()
    ITERATIONS_UNDIVIDED = auto()  # one may be several steps
    OPERATIONS_LACKING = auto()  # their kernels may count as bubble
    OPERATIONS_WITHOUT_WORK = auto()  # likewise
    RANKS_WITHOUT_OPERATIONS = auto()  # though they computed as long as others
    ITERATIONS_UNPAIRED = auto()  # of ranks: numbers are each rank's own
    STAGES_MAY_BE_MISSING = auto()  # a schedule known to be whole refutes it
    STAGES_WITHOUT_GPU_WORK = auto()  # their ranges were recorded alone: they are missing
    STAGES_CONTRADICTED = auto()  # nothing that follows from dependencies between them holds


@frozen
class Limitation:
    """A limit of an analysis: its subject, the reason, how often it applies, and its kind."""

    what: str
    reason: str
    count: int = 1
    kind: LimitationKind = field(default=LimitationKind.OTHER, compare=False, repr=False)

    @property
    def entry(self) -> dict[str, str | int]:
        """The values of a JSON document, by key."""
        return {"what": self.what, "reason": self.reason, "count": self.count}

    @property
    def sentence(self) -> str:
        """The warning of a command on standard error."""
        times = f" ({self.count:,} times)" if self.count > 1 else ""
        return f"warning: {self.what}{times}: {self.reason}"


#: So many of one subject are listed one by one; of more the first are quoted.
_LISTED, _QUOTED = 4, 3


def gathered(notes: Iterable[Limitation]) -> list[Limitation]:
    """Return limitations, equal ones once; many of one subject are one that quotes the first."""
    alike: dict[tuple[str, LimitationKind], list[Limitation]] = {}
    distinct = list(dict.fromkeys(notes))
    for note in distinct:
        alike.setdefault((note.what, note.kind), []).append(note)
    found: list[Limitation] = []
    for note in distinct:
        same = alike[note.what, note.kind]
        if len(same) <= _LISTED:
            found.append(note)
        elif note is same[0]:
            quoted = "; ".join(each.reason for each in same[:_QUOTED])
            reason = f"{quoted}; and {len(same) - _QUOTED:,} more"
            found.append(Limitation(note.what, reason, sum(n.count for n in same), note.kind))
    return found
