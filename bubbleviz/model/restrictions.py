"""A restriction: why numbers are not those of a whole pipeline, as every output has it."""

from __future__ import annotations

from typing import Any

from bubbleviz.model.values import frozen


@frozen
class Restriction:
    """Why ratios, or times, are not those of a whole pipeline that was measured.

    Attributes:
        code: its name in JSON, which never changes.
        text: its words for people, which may.
        caveat: its clause in the methods sentence; empty where that says it otherwise.
        of_part: whether it is only that ranks or stages are, or may be, missing, so that the ratio
            of the others is known (``gate --allow-incomplete``).
        no_pipeline: why ranks form no whole pipeline, so that none has a bubble; None where they
            do.
    """

    code: str
    text: str
    caveat: str = ""
    of_part: bool = False
    no_pipeline: str | None = None

    @property
    def entry(self) -> dict[str, str]:
        """The values of a JSON document, by key."""
        return {"code": self.code, "text": self.text}


def first_text(restrictions: tuple[Restriction, ...]) -> str | None:
    """Return the words of the first, which weighs most; None where there is none."""
    return restrictions[0].text if restrictions else None


def written(restrictions: tuple[Restriction, ...]) -> dict[str, Any]:
    """Return the values of a JSON document: words of the first, and codes and words of all."""
    return {
        "restriction": first_text(restrictions),
        "restrictions": [restriction.entry for restriction in restrictions],
    }
