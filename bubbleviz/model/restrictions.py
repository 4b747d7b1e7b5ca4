"""Restrictions: reasons why ratios do not describe a complete pipeline. All outputs show them."""

from __future__ import annotations

from dataclasses import dataclass

from bubbleviz.model.limitations import LimitationKind


@dataclass(frozen=True)
class Restriction:
    """A reason why ratios or times do not describe a completely measured pipeline.

    Attributes:
        code: Name in JSON, which never changes.
        text: Text for users, which may change.
        caveat: Clause for the methods sentence, or "" if that sentence states it in another way.
        is_missing_part: Whether the only reason is that ranks or stages are, or may be, missing.
            The ratio of the other ranks is then known (``gate --allow-incomplete``).
        no_pipeline_reason: Reason why the ranks form no complete pipeline, so that no bubble ratio
            is defined, or None if they do.
        kind: Kind of the limitation that causes it, or None if it has another cause.
        advice: First advice for a report with this restriction, or "" if other advice comes first.
        details: Clause that names the table of ``analyze -v`` with details, or "" if there is none.
    """

    code: str
    text: str
    caveat: str = ""
    is_missing_part: bool = False
    no_pipeline_reason: str | None = None
    kind: LimitationKind | None = None
    advice: str = ""
    details: str = ""

    @property
    def advice_of_analyze(self) -> str:
        """The advice, followed by the table of ``analyze -v`` with details."""
        return f"{self.advice} ({self.details})" if self.details else self.advice

    @property
    def entry(self) -> dict[str, str]:
        """The code and the text, keyed by their names in JSON."""
        return {"code": self.code, "text": self.text}


def find_no_pipeline_reason(restrictions: tuple[Restriction, ...]) -> str | None:
    """Return the first reason why the ranks form no complete pipeline, or None if they form one."""
    reasons = (restriction.no_pipeline_reason for restriction in restrictions)
    return next((reason for reason in reasons if reason is not None), None)
