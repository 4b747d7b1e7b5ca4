"""The promise of advice: the fraction of an iteration that following the advice would save."""

from __future__ import annotations

from bubbleviz.explain.diagnosis.fault_names import (
    BETWEEN_ITERATIONS,
    EVEN_CHUNKS,
    WHOLE_LAYERS,
)
from bubbleviz.model.texts import format_percent

#: Text of the advice for a bubble caused by the schedule alone, and the kind and place of that
#: advice.
TWICE_THE_MICROBATCHES, MICROBATCHES = "twice the microbatches", "microbatches"
#: Kinds of advice whose promised saving is an upper bound. For advice that moves layers or tokens,
#: the promise assumes that they can be distributed evenly. The promise for more microbatches
#: assumes that the length of the bubble does not change.
_MOVING_KINDS = {"stage", "microbatch", MICROBATCHES}
#: Places of advice that says exactly what to move.
_EXACT_PLACES = {WHOLE_LAYERS, EVEN_CHUNKS}


def is_upper_bound(kind: str, place: str) -> bool:
    """Return whether the saving that a piece of advice promises is an upper bound.

    It is an upper bound in two cases:

    - The advice is to shorten the pause between iterations. The framework's own step takes some of
      this time in any run.
    - The advice is to move layers or tokens, or to use more microbatches. Advice that names the
      layers to move or the lengths of chunks is an exception.

    Args:
        kind: Kind of the advice, for example ``link``. Several kinds are joined by ``+``.
        place: Place of the advice. The places of several kinds are joined by ``+``.
    """
    parts = zip(kind.split("+"), place.split("+"), strict=False)
    return any(
        part_place == BETWEEN_ITERATIONS
        or (part_kind in _MOVING_KINDS and part_place not in _EXACT_PLACES)
        for part_kind, part_place in parts
    )


def format_saving(
    kind: str, place: str, saving_ratio: float | None, error_ratio: float | None
) -> str:
    """Return the promised saving in percent with its error bound, or "unknown".

    Args:
        kind: Kind of the advice; see :func:`is_upper_bound`.
        place: Place of the advice; see :func:`is_upper_bound`.
        saving_ratio: Promised saving as a fraction of an iteration, or None if nothing is promised.
        error_ratio: Error bound of ``saving_ratio``, or None if unknown.
    """
    if saving_ratio is None:
        return "unknown"
    up_to = "up to " if is_upper_bound(kind, place) else ""
    return f"{up_to}{_format_with_error(saving_ratio, error_ratio)}"


def format_alternatives(
    saving: str, saving_ratio: float | None, repaired_ratio: float | None, error_ratio: float | None
) -> str:
    """Return the promised saving, followed by the saving if a slow GPU is repaired instead.

    Only the latter is returned if moving layers saves nothing, or if it is the promised saving.

    Args:
        saving: Text that gives the promised saving.
        saving_ratio: Promised saving as a fraction of an iteration, or None if nothing is promised.
        repaired_ratio: Saving if the GPU is repaired, as a fraction of an iteration, or None if the
            advice has no such alternative.
        error_ratio: Error bound of ``repaired_ratio``, or None if unknown.
    """
    if saving_ratio is None or repaired_ratio is None:
        return saving
    repaired = f"{_format_with_error(repaired_ratio, error_ratio)} if a slow GPU is the cause"
    is_only = saving_ratio in (0.0, repaired_ratio)
    return repaired if is_only else f"{saving}, or {repaired}"


def _format_with_error(saving_ratio: float, error_ratio: float | None) -> str:
    error = "" if error_ratio is None else f" ± {100 * error_ratio:.2f}"
    return f"-{format_percent(saving_ratio)}{error}"
