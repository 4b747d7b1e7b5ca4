"""Reads a report's limitations and restrictions for tests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Protocol

from bubbleviz.model.limitations import Limitation
from bubbleviz.model.restrictions import Restriction


class HasLimitations(Protocol):
    """A report or a profile that has limitations."""

    @property
    def limitations(self) -> Sequence[Limitation]: ...


class HasRestrictions(Protocol):
    """A report that has restrictions."""

    @property
    def restrictions(self) -> Sequence[Restriction]: ...


def list_restriction_codes(report: HasRestrictions) -> list[str]:
    return [restriction.code for restriction in report.restrictions]


def list_restriction_texts(report: HasRestrictions) -> list[str]:
    return [restriction.text for restriction in report.restrictions]


def list_limitation_subjects(report: HasLimitations) -> set[str]:
    """Return the subjects of all limitations."""
    return {limitation.what for limitation in report.limitations}


def count_limitations(report: HasLimitations) -> Counter[str]:
    """Return the total count of each subject over all of its limitations."""
    counts: Counter[str] = Counter()
    for limitation in report.limitations:
        counts[limitation.what] += limitation.count
    return counts


def join_limitations(report: HasLimitations) -> str:
    """Return the text of all limitations, one per line, as ``subject: reason``."""
    return "\n".join(f"{note.what}: {note.reason}" for note in report.limitations)


def find_limitation(report: HasLimitations, subject: str) -> Limitation:
    """Return the only limitation with this subject."""
    (limitation,) = (note for note in report.limitations if note.what == subject)
    return limitation
