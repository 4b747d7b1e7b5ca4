"""Restrictions: reasons why numbers are not those of a whole pipeline. All outputs show them."""

from __future__ import annotations

from dataclasses import dataclass

from bubbleviz.model.limitations import LimitationKind


@dataclass(frozen=True)
class Restriction:
    """Why ratios, or times, are not those of a whole pipeline that was measured.

    Attributes:
        code: its name in JSON, which never changes.
        text: its words for people, which may.
        caveat: its clause in the methods sentence; empty where that says it otherwise.
        is_missing_part: Whether it only says that ranks or stages are, or may be, missing. The
            ratio of the others is then known (``gate --allow-incomplete``).
        no_pipeline_reason: Reason why the ranks form no complete pipeline, so that no bubble ratio
            is defined, or None if they do.
        kind: of the limitation that it follows from; None where another fact tells it.
        advice: What to do about it before anything else, or "" if other advice comes first.
        details: What the table of ``analyze -v`` that it names shows of it, or "" if none does.
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
        """The advice, with the table of ``analyze -v`` that shows more."""
        return f"{self.advice} ({self.details})" if self.details else self.advice

    @property
    def entry(self) -> dict[str, str]:
        """The values of a JSON document, by key."""
        return {"code": self.code, "text": self.text}


def find_no_pipeline_reason(restrictions: tuple[Restriction, ...]) -> str | None:
    """Return why ranks form no whole pipeline; None where they do."""
    return next(
        (own.no_pipeline_reason for own in restrictions if own.no_pipeline_reason is not None), None
    )
