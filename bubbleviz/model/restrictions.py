"""Restrictions: reasons why ratios do not describe a complete pipeline.

Every output shows the report's restrictions.
"""

from __future__ import annotations

from dataclasses import dataclass

from bubbleviz.model.limitations import LimitationKind


@dataclass(frozen=True)
class Restriction:
    """A reason why ratios or times do not describe a completely measured pipeline.

    Attributes:
        code: Name in JSON, which never changes.
        text: Text for users, which may change.
        caveat: Clause for the sentence that describes the methods, or "" if the sentence already
            mentions the restriction.
        is_missing_part: Whether the restriction only says that ranks or stages are missing or may
            be missing. The ratio of the recorded ranks is then known, and
            ``gate --allow-incomplete`` accepts it.
        no_pipeline_reason: Reason why the ranks form no complete pipeline, so that no bubble ratio
            is defined, or None if the restriction does not prevent a bubble ratio.
        kind: Kind of limitation that causes the restriction, or None if it has another cause.
        advice: Advice that comes first in a report with this restriction, or "" if other advice
            comes first.
        details: Clause that names a table of ``analyze -v`` with details, or "" if there is none.
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
        """The advice, followed by ``details`` in parentheses if there are any."""
        return f"{self.advice} ({self.details})" if self.details else self.advice

    @property
    def entry(self) -> dict[str, str]:
        """The code and the text, keyed by their JSON names ``code`` and ``text``."""
        return {"code": self.code, "text": self.text}


def find_no_pipeline_reason(restrictions: tuple[Restriction, ...]) -> str | None:
    """Return the ``no_pipeline_reason`` of the first restriction that has one, or None."""
    reasons = (restriction.no_pipeline_reason for restriction in restrictions)
    return next((reason for reason in reasons if reason is not None), None)
