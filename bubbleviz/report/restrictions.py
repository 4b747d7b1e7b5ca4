"""Restrictions: which there are, which a report has, and which one that was saved has.

Codes are what programs read; words may change. What is not known restricts, too.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from bubbleviz.explain.recognition.reasons import (
    OTHER_STAGES_MISSING,
    PIPELINE_UNPROVEN,
    SINGLE_STAGE,
)
from bubbleviz.model.limitations import LimitationKind, Restriction
from bubbleviz.model.texts import one_line

_NO_PIPELINE = "no pipeline was measured: "
ONE_STAGE = Restriction("single-stage", _NO_PIPELINE + SINGLE_STAGE, no_pipeline=SINGLE_STAGE)
UNPROVEN = Restriction(
    "pipeline-unproven", _NO_PIPELINE + PIPELINE_UNPROVEN, no_pipeline=PIPELINE_UNPROVEN
)
RANKS_MISSING = Restriction(
    "ranks-missing",
    "incomplete: ranks of the run are missing",
    "it is incomplete, since ranks of the run are missing",
    of_part=True,
)
STAGES_MISSING = Restriction(
    "other-stages-missing",
    _NO_PIPELINE + OTHER_STAGES_MISSING,
    "it is of one stage of a pipeline",
    no_pipeline=OTHER_STAGES_MISSING,
)
WITHOUT_GPU_WORK = Restriction(
    "stages-without-gpu-work",
    "incomplete: the GPU work of some stages was not recorded",
    "it is incomplete, since the GPU work of some stages was not recorded",
    of_part=True,
)
KERNELS_LOST = Restriction(
    "kernels-lost",
    "incomplete: kernels that were launched are not in the profile",
    "it is incomplete, since kernels that were launched are not in the profile",
)
KERNELS_LEFT_OUT = Restriction(
    "kernels-left-out",
    "incomplete: kernels have impossible times",
    "it is incomplete, since kernels were left out for their times",
)
WORK_UNKNOWN = Restriction(
    "operations-without-gpu-work",
    "incomplete: the GPU work of some operations is not in the profile",
    "it is incomplete, since the GPU work of some operations is not in the profile",
)
RANKS_UNNAMED = Restriction(
    "ranks-without-operations",
    "maybe incomplete: GPUs that computed as long as others take no part",
    "GPUs that computed as long as others take no part in it",
    of_part=True,
)
MAYBE_INCOMPLETE = Restriction(
    "stages-may-be-missing",
    "maybe incomplete: stages may be missing",
    "it may be incomplete, since stages of the run may be missing",
    of_part=True,
)
OPERATIONS_LACKING = Restriction(
    "operations-lacking",
    "some ranks lack operations",
    "some ranks lack operations that others ran",
)
ITERATIONS_UNDIVIDED = Restriction(
    "iterations-undivided",
    "an iteration may be several training steps",
    "nothing tells iterations apart, so one may be several training steps",
)
#: All, what weighs most first: every output has them in this order.
RESTRICTIONS = (
    ONE_STAGE,
    UNPROVEN,
    RANKS_MISSING,
    STAGES_MISSING,
    WITHOUT_GPU_WORK,
    KERNELS_LOST,
    KERNELS_LEFT_OUT,
    RANKS_UNNAMED,
    MAYBE_INCOMPLETE,
    WORK_UNKNOWN,
    OPERATIONS_LACKING,
    ITERATIONS_UNDIVIDED,
)
_OF_REASON = {own.no_pipeline: own for own in RESTRICTIONS if own.no_pipeline is not None}
_OF_KIND = {
    LimitationKind.STAGES_WITHOUT_GPU_WORK: WITHOUT_GPU_WORK,
    LimitationKind.KERNELS_LOST: KERNELS_LOST,
    LimitationKind.KERNELS_LEFT_OUT: KERNELS_LEFT_OUT,
    LimitationKind.RANKS_WITHOUT_OPERATIONS: RANKS_UNNAMED,
    LimitationKind.OPERATIONS_WITHOUT_WORK: WORK_UNKNOWN,
    LimitationKind.STAGES_MAY_BE_MISSING: MAYBE_INCOMPLETE,
    LimitationKind.OPERATIONS_LACKING: OPERATIONS_LACKING,
    LimitationKind.ITERATIONS_UNDIVIDED: ITERATIONS_UNDIVIDED,
}
_OF_CODE = {own.code: own for own in RESTRICTIONS}
#: The words of reports that have no codes, as those were written; these never change.
_OF_OLDER_TEXT = {
    "no pipeline was measured: one stage is no pipeline": ONE_STAGE,
    "no pipeline was measured: nothing recorded shows whether the ranks are stages of a pipeline "
    "or replicas of one": UNPROVEN,
    "incomplete: ranks of the run are missing": RANKS_MISSING,
    "incomplete: kernels that were launched are not in the profile": KERNELS_LOST,
    "maybe incomplete: stages may be missing": MAYBE_INCOMPLETE,
}
#: The limitations of such reports that restrict; likewise.
_OF_OLDER_LIMITATION = {
    "stages without GPU work": WITHOUT_GPU_WORK,
    "operations that some ranks lack": OPERATIONS_LACKING,
    "iterations are not told apart": ITERATIONS_UNDIVIDED,
}
#: Characters of the words of a restriction that this version does not know.
_LONGEST = 200


def restrictions_of(
    reason: str | None, kinds: Collection[LimitationKind], *, ranks_missing: bool
) -> tuple[Restriction, ...]:
    """Return the restrictions of a report, what weighs most first.

    Args:
        reason: why its ranks ran no schedule; None where they did.
        kinds: of its limitations.
        ranks_missing: whether ranks of averaged iterations are known to be missing.
    """
    found = {_OF_KIND[kind] for kind in kinds if kind in _OF_KIND}
    if WITHOUT_GPU_WORK in found:
        # The kernels that were lost are all work of a stage, and the stage is what is missing.
        found.discard(KERNELS_LOST)
    if ranks_missing or WITHOUT_GPU_WORK in found:
        # What is known needs no guess.
        found.discard(MAYBE_INCOMPLETE)
    return _ordered((*found, *_of_facts(reason, ranks_missing=ranks_missing)))


def _of_facts(reason: str | None, *, ranks_missing: bool) -> Sequence[Restriction]:
    of_reason = [] if reason not in _OF_REASON else [_OF_REASON[reason]]
    return [*of_reason, RANKS_MISSING] if ranks_missing else of_reason


def _ordered(found: Iterable[Restriction]) -> tuple[Restriction, ...]:
    """Return each once, known ones in their order, then the others."""
    distinct = dict.fromkeys(found)
    known = tuple(own for own in RESTRICTIONS if own in distinct)
    return (*known, *(own for own in distinct if own.code not in _OF_CODE))


def read_restrictions(
    written: Sequence[tuple[str, str]] | None,
    text: str | None,
    limitations: Iterable[str],
    reason: str | None,
    *,
    ranks_missing: bool,
) -> tuple[Restriction, ...]:
    """Return the restrictions of a saved report; one that is not known restricts.

    Args:
        written: code and words of each; None for a report of a version that wrote none.
        text: the words of the first, with which a later version may stand alone; None for none.
        limitations: subjects of its limitations, by which reports without codes are read.
        reason: why its ranks ran no schedule; None where they did.
        ranks_missing: whether ranks of averaged iterations are known to be missing.
    """
    found = list(_of_facts(reason, ranks_missing=ranks_missing))
    found.extend(_OF_CODE.get(code) or _unknown(code, words) for code, words in written or ())
    if written is None:
        noted = (_OF_OLDER_LIMITATION.get(what) for what in limitations)
        found.extend(restriction for restriction in noted if restriction is not None)
    if text is not None and text not in {words for _, words in written or ()}:
        found.append(_OF_OLDER_TEXT.get(text) or _unknown("unknown", text))
    ordered = _ordered(found)
    if WITHOUT_GPU_WORK in ordered:
        # Reports without codes called these stages ones that may be missing.
        ordered = tuple(own for own in ordered if own is not MAYBE_INCOMPLETE)
    return ordered


def _unknown(code: str, words: str) -> Restriction:
    """Return a restriction of a later version."""
    shown = one_line(words or code, _LONGEST)
    return Restriction(one_line(code, _LONGEST), shown, f"it is restricted ({shown})")
