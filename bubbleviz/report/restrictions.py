"""Restrictions: reasons why the ratios of a report do not describe a complete pipeline.

Restriction codes never change, because programs read them. The texts may change. Unknown codes are
treated as restrictions.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from bubbleviz.explain.recognition import reasons
from bubbleviz.model.limitations import LEFT_OUT, Limitation, LimitationKind
from bubbleviz.model.restrictions import Restriction, find_no_pipeline_reason
from bubbleviz.model.texts import to_one_line

if TYPE_CHECKING:
    from bubbleviz.model.operations import Rank
    from bubbleviz.report.summary import RestrictionEntry


def _make_no_pipeline(code: str, reason: str, caveat: str = "") -> Restriction:
    text = f"no pipeline was measured: {reason}"
    return Restriction(code, text, caveat, no_pipeline_reason=reason)


ONE_STAGE = _make_no_pipeline("single-stage", reasons.SINGLE_STAGE)
UNPROVEN = _make_no_pipeline("pipeline-unproven", reasons.PIPELINE_UNPROVEN)
RANKS_MISSING = Restriction(
    "ranks-missing",
    "incomplete: ranks of the run are missing",
    "it is incomplete because ranks of the run are missing",
    is_missing_part=True,
)
WITHOUT_GPU_WORK = Restriction(
    "stages-without-gpu-work",
    "incomplete: the GPU work of some stages was not recorded",
    "it is incomplete because the GPU work of some stages was not recorded",
    is_missing_part=True,
    kind=LimitationKind.STAGES_WITHOUT_GPU_WORK,
    advice="Trace GPU work in every process: some stages have ranges but no kernels in the "
    "profiles, so the bubble is unknown",
    details="-v coverage lists them",
)
KERNELS_LOST = Restriction(
    "kernels-lost",
    "incomplete: kernels that were launched are not in the profile",
    "it is incomplete because kernels that were launched are not in the profile",
    kind=LimitationKind.KERNELS_LOST,
    advice="Profile again: some launched kernels are not in the profile, so some of the idle time "
    "may be work",
    details="-v coverage shows how many",
)
GRAPHS_LOST = Restriction(
    "graphs-lost",
    "incomplete: graph launches have no recorded kernels",
    "it is incomplete because graph launches have no recorded kernels",
    kind=LimitationKind.GRAPHS_LOST,
    advice="Profile with larger buffers or for a shorter time: some graph launches have no "
    "recorded kernels, so idle time around them is unknown",
    details="-v coverage shows how many",
)
MAYBE_INCOMPLETE = Restriction(
    "stages-may-be-missing",
    "maybe incomplete: stages may be missing",
    "it may be incomplete because stages of the run may be missing",
    is_missing_part=True,
    kind=LimitationKind.STAGES_MAY_BE_MISSING,
)
ITERATIONS_UNDIVIDED = Restriction(
    "iterations-undivided",
    "one iteration may be several training steps",
    "iteration boundaries are unknown, so one iteration may be several training steps",
    kind=LimitationKind.ITERATIONS_UNDIVIDED,
)
ITERATIONS_UNMARKED = Restriction(
    "iterations-unmarked",
    "one iteration may be only part of a training step",
    "iterations cannot be separated, so one iteration may be only part of a training step, and one "
    "operation may be several microbatches",
    kind=LimitationKind.ITERATIONS_UNMARKED,
    advice="Put each iteration in a named range, or record a range named Optimizer: all forwards "
    "have the same microbatch number and iterations cannot be separated, so the bubble is unknown",
)
#: All restrictions, most severe first. Every output lists them in this order.
RESTRICTIONS = (
    ONE_STAGE,
    UNPROVEN,
    RANKS_MISSING,
    _make_no_pipeline(
        "other-stages-missing",
        reasons.OTHER_STAGES_MISSING,
        "it describes only one stage of a pipeline",
    ),
    WITHOUT_GPU_WORK,
    Restriction(
        "file-damaged",
        "incomplete: events are missing because a file is cut short or damaged",
        "it is incomplete because events are missing from a truncated or damaged file",
        kind=LimitationKind.FILE_DAMAGED,
        advice="Copy the files again, or record again: a file is cut short or damaged, and events "
        "are missing from it, so some of the idle time may be work",
    ),
    KERNELS_LOST,
    GRAPHS_LOST,
    Restriction(
        "work-before-capture",
        "incomplete: work launched before the capture is not recorded",
        "it is incomplete because work launched before the capture is not recorded",
        kind=LimitationKind.WORK_BEFORE_CAPTURE,
        advice="Start the capture while the devices are idle: they ran work that was launched "
        "before the capture and is not recorded, so their idle time is unknown",
        details="-v coverage shows for how long",
    ),
    Restriction(
        "recordings-awaited",
        "incomplete: iterations began before all ranks were recorded",
        "it is incomplete because iterations began before all ranks were recorded",
        kind=LimitationKind.RECORDINGS_AWAITED,
    ),
    Restriction(
        "kernels-left-out",
        "incomplete: kernels have invalid timestamps",
        "it is incomplete because kernels with invalid timestamps were left out",
        kind=LimitationKind.KERNELS_LEFT_OUT,
        advice="Export or profile again: some kernels have invalid timestamps, so some of the idle "
        "time may be work",
        details="-v coverage shows how many",
    ),
    Restriction(
        "recorded-names-lost",
        "incomplete: names of recorded operations are damaged",
        "it is incomplete because operations with damaged names were left out",
        kind=LimitationKind.RECORDING_NAMES_LOST,
        advice="Copy the recordings again, or record again: operations with damaged names are left "
        "out, so some of the idle time may be work",
        details="-v coverage shows how many",
    ),
    Restriction(
        "operations-dropped",
        "incomplete: operations were not recorded",
        "it is incomplete because communication operations were not recorded",
        kind=LimitationKind.OPERATIONS_DROPPED,
    ),
    Restriction(
        "kernels-overrun",
        "uncertain: recorded kernel end times are wrong",
        "it is uncertain because kernels end after the next one on their stream starts",
        kind=LimitationKind.KERNELS_OVERRUN,
        advice="Profile again: recorded kernel end times are wrong, so operations and idle time "
        "next to them are uncertain",
        details="-v coverage shows how many",
    ),
    Restriction(
        "waiting-counted",
        "uncertain: kernels that look like waiting count as compute",
        "it is uncertain because kernels that look like waiting count as compute",
        kind=LimitationKind.WAITING_COUNTED,
        advice="List the communication kernels in a TOML file, and pass it with --convention: "
        "kernels that look like waiting count as compute, so the reported idle time is too small",
        details="-v coverage lists them",
    ),
    Restriction(
        "ranks-without-operations",
        "maybe incomplete: some GPUs computed as long as the others but ran no named operation",
        "some GPUs computed as long as the others but ran no named operation",
        is_missing_part=True,
        kind=LimitationKind.RANKS_WITHOUT_OPERATIONS,
        advice="Put named ranges around the forwards and backwards of all GPUs: some GPUs computed "
        "only outside operations, so the bubble is unknown",
        details="-v coverage lists them",
    ),
    MAYBE_INCOMPLETE,
    Restriction(
        "stages-counted-from-held",
        "stages are counted from the first stage that has a profile",
        "its stages are counted from the first stage that has a profile",
        is_missing_part=True,
        kind=LimitationKind.EARLIER_STAGES_UNKNOWN,
    ),
    Restriction(
        "stages-counted-among-given",
        "stages are counted among the given ranks",
        "its stages are counted among the given ranks",
        is_missing_part=True,
        kind=LimitationKind.INNER_STAGES_UNKNOWN,
    ),
    Restriction(
        "operations-without-gpu-work",
        "incomplete: the GPU work of some operations is not in the profile",
        "it is incomplete because the GPU work of some operations is not in the profile",
        kind=LimitationKind.OPERATIONS_WITHOUT_WORK,
        advice="Profile again: some forwards and backwards have no kernels, so some of the idle "
        "time may be work",
        details="-v coverage shows how many",
    ),
    Restriction(
        "operations-lacking",
        "some ranks lack operations",
        "some ranks lack operations that others ran",
        kind=LimitationKind.OPERATIONS_LACKING,
    ),
    ITERATIONS_UNDIVIDED,
    ITERATIONS_UNMARKED,
    Restriction(
        "host-name-shared",
        "several machines share a host name",
        "clocks show that profiles with the same host name were recorded on different machines",
        is_missing_part=True,
        kind=LimitationKind.HOST_NAME_SHARED,
    ),
    Restriction(
        "ranks-contradicted",
        "uncertain: ranks on the same host contradict each other about its clock",
        "it is uncertain because ranks on the same host contradict each other about its clock",
        kind=LimitationKind.RANKS_CONTRADICTED,
        advice="Give each machine its own host name and put each iteration in a named range, or "
        "set the stages with --parallel: operations on one host ran before their input was ready",
        details="-v coverage lists them",
    ),
)
#: A report is restricted if at least this fraction of its kernels have no valid times. At this
#: fraction, the error of a ratio is about 1 %.
_MANY_LEFT_OUT = 0.01
#: Minimum fraction of lost kernels that is visible in a percentage with two decimals.
_VISIBLE = 0.0001
_CODES = {restriction.code for restriction in RESTRICTIONS}
#: Maximum number of characters in the text of a restriction that this version does not know.
_MAX_TEXT = 200


def list_restrictions(
    reason: str | None,
    limitations: Iterable[Limitation],
    *,
    ranks_missing: bool,
) -> tuple[Restriction, ...]:
    """Return the restrictions of a report, most severe first.

    A restriction applies if there is a limitation of its kind, or if its reason equals ``reason``.
    There are three exceptions:

    - Kernels with impossible times are treated as if they had been left out.
    - The restriction about lost kernels is dropped if stages have no GPU work.
    - The restriction that stages may be missing is dropped if ranks are missing or stages have no
      GPU work.

    Args:
        reason: Reason why the ranks ran no schedule, or None if they ran a schedule.
        limitations: Limitations that may restrict the report.
        ranks_missing: Whether ranks of averaged iterations are known to be missing.
    """
    subjects: dict[LimitationKind, set[str]] = {}
    for note in limitations:
        subjects.setdefault(note.kind, set()).add(note.what)
    impossible = subjects.pop(LimitationKind.KERNELS_IMPOSSIBLE, None)
    if impossible is not None:
        subjects.setdefault(LimitationKind.KERNELS_LEFT_OUT, set()).update(impossible)
    active = {restriction for restriction in RESTRICTIONS if restriction.kind in subjects}
    if ranks_missing:
        active.add(RANKS_MISSING)
    if WITHOUT_GPU_WORK in active:
        # The lost kernels make up all of a stage's work, so the missing stage is reported instead.
        active.discard(KERNELS_LOST)
    if active & {RANKS_MISSING, WITHOUT_GPU_WORK}:
        # Stages are known to be missing, so a warning that stages may be missing adds nothing.
        active.discard(MAYBE_INCOMPLETE)
    if reason is not None:
        active |= {
            restriction for restriction in RESTRICTIONS if restriction.no_pipeline_reason == reason
        }
    return tuple(
        _add_counts(restriction, subjects.get(LimitationKind.GRAPHS_LOST, set()))
        for restriction in RESTRICTIONS
        if restriction in active
    )


def drop_few_left_out(limitations: Iterable[Limitation], kernels: int) -> tuple[Limitation, ...]:
    """Drop the limitations about kernels that were left out, if only a few were.

    Some profilers cannot collect the times of a few kernels, so a few kernels without times are
    normal. The limitations are kept in two cases:

    - At least the fraction ``_MANY_LEFT_OUT`` of all kernels were left out.
    - At least the fraction ``_VISIBLE`` of all kernels have impossible times. Impossible times
      indicate a damaged profile.

    Args:
        limitations: Limitations of a report.
        kernels: Number of kernels that were not left out.
    """
    notes = tuple(limitations)
    n_left_out = sum(note.count for note in notes if note.kind in LEFT_OUT)
    impossible = LimitationKind.KERNELS_IMPOSSIBLE
    n_impossible = sum(note.count for note in notes if note.kind is impossible)
    n_kernels = kernels + n_left_out
    if n_left_out >= _MANY_LEFT_OUT * n_kernels > 0:
        return notes
    if n_impossible >= _VISIBLE * n_kernels > 0:
        return notes
    return tuple(note for note in notes if note.kind not in LEFT_OUT)


def _add_counts(restriction: Restriction, subjects: set[str]) -> Restriction:
    """Add the number of lost graphs to the text of the restriction about lost graphs.

    If several files lost graphs, the restriction is returned unchanged. All other restrictions are
    always returned unchanged.
    """
    if restriction is not GRAPHS_LOST or len(subjects) != 1:
        return restriction
    return replace(restriction, text=f"incomplete: {min(subjects)}")


def read_restrictions(entries: Sequence[RestrictionEntry]) -> tuple[Restriction, ...]:
    """Return the restrictions of a saved report, most severe first.

    Codes that this version does not know come last. They were written by a later version.
    """
    codes = {entry.code for entry in entries}
    known_restrictions = tuple(
        restriction for restriction in RESTRICTIONS if restriction.code in codes
    )
    later = [_make_unknown(entry.code, entry.text) for entry in entries if entry.code not in _CODES]
    return (*known_restrictions, *dict.fromkeys(later))


def list_entries(entries: Sequence[RestrictionEntry]) -> list[dict[str, str]]:
    """Return the restrictions of a saved report as JSON values; see :func:`read_restrictions`."""
    return [restriction.entry for restriction in read_restrictions(entries)]


def find_no_pipeline(entries: Sequence[RestrictionEntry]) -> str | None:
    """Return the first reason why a saved report does not describe a complete pipeline, or None."""
    return find_no_pipeline_reason(read_restrictions(entries))


def _make_unknown(code: str, message: str) -> Restriction:
    """Return a restriction for a code that this version does not know."""
    text = to_one_line(message or code, _MAX_TEXT)
    return Restriction(to_one_line(code, _MAX_TEXT), text, f"it is restricted ({text})")


def count_incomplete_pipelines(ranks: Iterable[Rank]) -> tuple[int, int] | None:
    """Return how many pipelines lack ranks, and the total number of pipelines.

    A pipeline lacks ranks if any stage that appears in the report is missing from the pipeline.

    Args:
        ranks: Ranks of a report.

    Returns:
        Both numbers, or None in any of these cases:

        - No pipeline is missing ranks.
        - At least half of the pipelines lack ranks.
        - The stages of the report are not numbered 0, 1, 2 and so on without gaps.
        - The stage or pipeline of a rank is unknown.
    """
    stages: dict[int, set[int]] = {}
    for rank in ranks:
        if rank.stage is None or rank.pipeline is None:
            return None
        stages.setdefault(rank.pipeline, set()).add(rank.stage)
    all_stages = set().union(*stages.values())
    n_incomplete = sum(present != all_stages for present in stages.values())
    if not 0 < 2 * n_incomplete < len(stages) or all_stages != set(range(len(all_stages))):
        return None
    return n_incomplete, len(stages)
