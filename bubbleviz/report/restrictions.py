"""Restrictions: which there are, which a report has, and which one that was saved has.

Codes are what programs read; words may change. What is not known restricts, too.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from bubbleviz.explain.recognition import reasons
from bubbleviz.model.limitations import LimitationKind, Restriction
from bubbleviz.model.texts import one_line


def _none(code: str, reason: str, caveat: str = "") -> Restriction:
    text = f"no pipeline was measured: {reason}"
    return Restriction(code, text, caveat, no_pipeline=reason)


ONE_STAGE = _none("single-stage", reasons.SINGLE_STAGE)
UNPROVEN = _none("pipeline-unproven", reasons.PIPELINE_UNPROVEN)
RANKS_MISSING = Restriction(
    "ranks-missing",
    "incomplete: ranks of the run are missing",
    "it is incomplete, since ranks of the run are missing",
    of_part=True,
)
WITHOUT_GPU_WORK = Restriction(
    "stages-without-gpu-work",
    "incomplete: the GPU work of some stages was not recorded",
    "it is incomplete, since the GPU work of some stages was not recorded",
    of_part=True,
    kind=LimitationKind.STAGES_WITHOUT_GPU_WORK,
    advice="Record the GPU work of all stages: of some the profiles hold the ranges and no kernel, "
    "so the bubble of the pipeline is not known; trace GPU work in every process (limitations name "
    "them)",
)
KERNELS_LOST = Restriction(
    "kernels-lost",
    "incomplete: kernels that were launched are not in the profile",
    "it is incomplete, since kernels that were launched are not in the profile",
    kind=LimitationKind.KERNELS_LOST,
    advice="Profile again: kernels that were launched are not in the profile, so idle time may be "
    "work; the limitations count them",
)
MAYBE_INCOMPLETE = Restriction(
    "stages-may-be-missing",
    "maybe incomplete: stages may be missing",
    "it may be incomplete, since stages of the run may be missing",
    of_part=True,
    kind=LimitationKind.STAGES_MAY_BE_MISSING,
)
OPERATIONS_LACKING = Restriction(
    "operations-lacking",
    "some ranks lack operations",
    "some ranks lack operations that others ran",
    kind=LimitationKind.OPERATIONS_LACKING,
)
ITERATIONS_UNDIVIDED = Restriction(
    "iterations-undivided",
    "an iteration may be several training steps",
    "nothing tells iterations apart, so one may be several training steps",
    kind=LimitationKind.ITERATIONS_UNDIVIDED,
)
#: All, what weighs most first: every output has them in this order.
RESTRICTIONS = (
    ONE_STAGE,
    UNPROVEN,
    RANKS_MISSING,
    _none("other-stages-missing", reasons.OTHER_STAGES_MISSING, "it is of one stage of a pipeline"),
    WITHOUT_GPU_WORK,
    KERNELS_LOST,
    Restriction(
        "kernels-left-out",
        "incomplete: kernels have impossible times",
        "it is incomplete, since kernels were left out for their times",
        kind=LimitationKind.KERNELS_LEFT_OUT,
        advice="Export or profile again: kernels were left out since their times cannot be, so "
        "idle time may be work; the limitations count them",
    ),
    Restriction(
        "ranks-without-operations",
        "maybe incomplete: GPUs that computed as long as others take no part",
        "GPUs that computed as long as others take no part in it",
        of_part=True,
        kind=LimitationKind.RANKS_WITHOUT_OPERATIONS,
        advice="Name the forwards and backwards of all GPUs: some computed as long as the others "
        "outside every operation, so the bubble of the pipeline is not known; the limitations name "
        "them",
    ),
    MAYBE_INCOMPLETE,
    Restriction(
        "operations-without-gpu-work",
        "incomplete: the GPU work of some operations is not in the profile",
        "it is incomplete, since the GPU work of some operations is not in the profile",
        kind=LimitationKind.OPERATIONS_WITHOUT_WORK,
        advice="Profile again: of some forwards and backwards no kernel is in the profile, so idle "
        "time may be work; the limitations count them",
    ),
    OPERATIONS_LACKING,
    ITERATIONS_UNDIVIDED,
)
_OF_CODE = {own.code: own for own in RESTRICTIONS}
#: The words of reports that have no codes, as those were written, and their limitations that
#: restrict; these never change.
_OLDER = {
    "no pipeline was measured: one stage is no pipeline": ONE_STAGE,
    "no pipeline was measured: nothing recorded shows whether the ranks are stages of a pipeline "
    "or replicas of one": UNPROVEN,
    "incomplete: ranks of the run are missing": RANKS_MISSING,
    "incomplete: kernels that were launched are not in the profile": KERNELS_LOST,
    "maybe incomplete: stages may be missing": MAYBE_INCOMPLETE,
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
    found = {own for own in RESTRICTIONS if own.kind in kinds}
    if WITHOUT_GPU_WORK in found:
        # The kernels that were lost are all work of a stage, and the stage is what is missing.
        found.discard(KERNELS_LOST)
    if ranks_missing:
        # What is known needs no guess.
        found.discard(MAYBE_INCOMPLETE)
    return _ordered(found, reason, ranks_missing=ranks_missing)


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
    found = [_OF_CODE.get(code) or _unknown(code, words) for code, words in written or ()]
    if written is None:
        found.extend(_OLDER[what] for what in limitations if what in _OLDER)
    if text is not None and text not in {words for _, words in written or ()}:
        found.append(_OLDER.get(text) or _unknown("unknown", text))
    return _ordered(found, reason, ranks_missing=ranks_missing)


def _ordered(
    found: Iterable[Restriction], reason: str | None, *, ranks_missing: bool
) -> tuple[Restriction, ...]:
    """Return what is found and what facts tell, each once: known ones in their order first."""
    facts = [own for own in RESTRICTIONS if reason is not None and own.no_pipeline == reason]
    distinct = dict.fromkeys((*found, *facts, *((RANKS_MISSING,) if ranks_missing else ())))
    if WITHOUT_GPU_WORK in distinct:
        # These are the stages that may be missing.
        distinct.pop(MAYBE_INCOMPLETE, None)
    known = tuple(own for own in RESTRICTIONS if own in distinct)
    return (*known, *(own for own in distinct if own.code not in _OF_CODE))


def _unknown(code: str, words: str) -> Restriction:
    """Return a restriction of a later version."""
    shown = one_line(words or code, _LONGEST)
    return Restriction(one_line(code, _LONGEST), shown, f"it is restricted ({shown})")
