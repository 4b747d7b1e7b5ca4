"""What advice promises: a share of an iteration, at most where it moves work."""

from __future__ import annotations

from dataclasses import dataclass

from bubbleviz.model.texts import percent

#: What to do where nothing but the schedule causes the bubble, and as what advice is listed.
TWICE_THE_MICROBATCHES, MICROBATCHES = "twice the microbatches", "microbatches"
#: Kinds whose work is done elsewhere once advice is followed, spread evenly: layers on other
#: stages, tokens in other microbatches. No division of whole layers or sequences is better,
#: and no number of microbatches than one that adds nothing to the bubble.
_MOVING = {"stage", "microbatch", MICROBATCHES}
#: The place of advice on whole layers, which are known to go where they are said to.
_WHOLE_LAYERS = "layers"


@dataclass(frozen=True)
class SavedAdvice:
    """One thing to do; see :class:`~bubbleviz.report.advice.Advice`.

    ``indices`` are the places of its ranks among those of the report; empty for all, or none.
    ``saving_ratio`` is None if nothing is promised.
    """

    kind: str
    saving_ratio: float | None
    action: str = ""
    place: str = ""
    error_ratio: float | None = None
    stages: tuple[int, ...] = ()
    measure: tuple[tuple[str, float], ...] = ()
    indices: tuple[int, ...] = ()


def at_most(kind: str, place: str) -> bool:
    """Tell whether advice moves work that is spread evenly at best, so that it saves no more."""
    parts = zip(kind.split("+"), place.split("+"), strict=False)
    return any(own in _MOVING and where != _WHOLE_LAYERS for own, where in parts)


def saved_share(
    kind: str, place: str, saving_ratio: float | None, error_ratio: float | None
) -> str:
    """Return what advice saves, in percent, and how far that may be off, or "unknown"."""
    if saving_ratio is None:
        return "unknown"
    most = "up to " if at_most(kind, place) else ""
    error = "" if error_ratio is None else f" ± {100 * error_ratio:.2f}"
    return f"{most}-{percent(saving_ratio)}{error}"
