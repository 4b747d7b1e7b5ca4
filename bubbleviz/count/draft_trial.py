"""Draft trials: try drafted conventions on the profile from which they were drafted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from bubbleviz.align.run import RunHints, merge
from bubbleviz.conventions.convention import Convention, collect_globs
from bubbleviz.conventions.convention_file import collect_kinds
from bubbleviz.conventions.kinds import OPERATION_GLOBS
from bubbleviz.conventions.name_words import generate_drafts
from bubbleviz.conventions.range_names import parse_range_names
from bubbleviz.conventions.recognition import add_iteration_names
from bubbleviz.count.count import count
from bubbleviz.errors import BubblevizError
from bubbleviz.interpret.inspection import DraftTrial
from bubbleviz.interpret.interpretation import interpret
from bubbleviz.interpret.recording import Recordings
from bubbleviz.model.columns import Ints
from bubbleviz.model.grouping import group_rows
from bubbleviz.model.operations import Operations
from bubbleviz.model.phase_masks import mask_phases
from bubbleviz.model.phases import COUNTED, Phase, list_missing_passes, parse_phase_label
from bubbleviz.model.run_kinds import INFERENCE, run_kind
from bubbleviz.sources.readers import OpenFile

#: Minimum share of compute time that a draft without a ratio must attribute to operations.
_MIN_SHARE = 0.5
#: The search ends once a draft yields a ratio and attributes at least this share of compute time.
_GOOD_SHARE = 0.9


def choose_draft(
    file: OpenFile,
    drafted: Mapping[str, Convention],
    additions: Sequence[Convention] = (),
    *,
    allow_inference: bool = False,
) -> tuple[str, DraftTrial, Recordings] | None:
    """Try drafted conventions on a profile, and return the best one.

    Drafts are ranked by these criteria, in this order:

    1. The draft contains both forwards and backwards.
    2. The draft yields a ratio.
    3. All ranks have about the same number of passes.
    4. The draft attributes the largest share of compute time to operations.

    The profile is read only once for all drafts. The search ends early at a draft that meets
    criteria 1 to 3 and attributes at least ``_GOOD_SHARE`` of the compute time.

    Args:
        file: The open profile.
        drafted: Drafted conventions, keyed by TOML text, with the most likely drafts first.
        additions: Conventions without range patterns. Their name patterns for kernels and threads
            are used in addition to those of each draft.
        allow_inference: Whether to accept a draft that contains forwards but no backwards. Such a
            draft must attribute at least ``_GOOD_SHARE`` of the compute time, because otherwise the
            backwards of a training run may have no names.

    Returns:
        The best draft's TOML text, the result of its trial, and the profile interpreted with it.
        None if the profile cannot be read or no draft is usable. If several drafts are ranked
        equally, the first one wins.
    """
    best: tuple[str, DraftTrial, Recordings] | None = None
    acceptable = ((), ("backward",)) if allow_inference else ((),)
    drafted = {
        d: c
        for d, c in drafted.items()
        if list_missing_passes({p.phase for p in c.patterns}) in acceptable
    }
    if not drafted:
        return None
    try:
        # As in an analysis, collective names determine the kinds of some kernels.
        globs = collect_globs(add_iteration_names(tuple(drafted.values())))
        profile = file.read((*globs, *OPERATION_GLOBS))
    except BubblevizError:
        return None
    for draft, convention in drafted.items():
        last = add_iteration_names((convention,))
        names = parse_range_names(profile.ranges.names, *last)
        if list_missing_passes(names.phase.tolist()) not in acceptable:
            continue
        try:
            kinds = collect_kinds((*last, *additions))
            read = interpret(profile, last, names, kinds)
            trial = _try_draft(read, parts=bool(names.part.any()), allow_inference=allow_inference)
        except BubblevizError:
            continue
        if trial is not None and (best is None or _rate_trial(trial) > _rate_trial(best[1])):
            best = draft, trial, read
            if all(_rate_trial(trial)[:3]) and trial.attributed >= _GOOD_SHARE:
                break
    return best


def is_drafted(file: OpenFile, names: Mapping[str, int], allow_inference: bool) -> bool:
    """Return whether any generated draft is usable for the profile (see :func:`choose_draft`).

    Args:
        file: The open profile.
        names: Number of occurrences of each range name in a sample of the file's ranges.
        allow_inference: Whether to accept a draft without backwards.
    """
    drafted = generate_drafts(names)
    return choose_draft(file, drafted, allow_inference=allow_inference) is not None


def _rate_trial(trial: DraftTrial) -> tuple[bool, bool, bool, float]:
    """Return a trial's rating. Larger ratings are better."""
    has_backwards = not list_missing_passes([parse_phase_label(p) for p, _ in trial.operations])
    return has_backwards, trial.bubble is not None, trial.even, trial.attributed


def _try_draft(
    read: Recordings, *, parts: bool, allow_inference: bool = False
) -> DraftTrial | None:
    """Return the result of trying a draft on a profile, or None if the draft is not usable.

    A draft is not usable in four cases:

    - No forward or no backward has GPU work, and the run is not accepted as inference.
    - The run is accepted as inference, and the draft attributes less than ``_GOOD_SHARE`` of the
      compute time.
    - The draft names parts of operations, and the ranks have different numbers of passes.
    - The draft yields no ratio and attributes less than ``_MIN_SHARE`` of the compute time.

    Args:
        read: The profile, interpreted with the draft.
        parts: Whether the draft names only parts of operations.
        allow_inference: Whether a run without backwards is accepted.

    Raises:
        BubblevizError: The profile contradicts the draft.
    """
    operations, (recording,) = read.operations, read.recordings
    phases = [(p, int(((operations.phase == p) & (operations.has_span == 1)).sum())) for p in Phase]
    has_missing_pass = bool(list_missing_passes({phase for phase, number in phases if number}))
    is_inference = allow_inference and run_kind(operations.phase) == INFERENCE
    if has_missing_pass and not is_inference:
        return None
    uneven = _count_uneven_passes(operations)
    if parts and uneven:
        # Uneven numbers show that consecutive parts of several microbatches were merged.
        return None
    counts = count(merge(read, RunHints()))
    ranks = recording.coverage.ranks
    compute_ns = sum(rank.gpu_ns for rank in ranks)
    attributed_ns = sum(rank.attributed_gpu_ns for rank in ranks)
    attributed = attributed_ns / compute_ns if compute_ns else 0.0
    bubble = counts.summary.bubble_ratio[counts.headline].mean
    if attributed < _GOOD_SHARE if has_missing_pass else bubble is None and attributed < _MIN_SHARE:
        return None
    return DraftTrial(
        operations=tuple((phase.label, number) for phase, number in phases if number),
        attributed=attributed,
        ratio=counts.headline,
        bubble=bubble,
        even=uneven <= len(recording.ranks) and not _has_repeated_steps(operations),
    )


def _count_uneven_passes(operations: Operations) -> int:
    """Return how unevenly passes are distributed over ranks, or 0 if they are even.

    On each rank, the following passes with GPU work are counted:

    - Forwards: F and FB.
    - Backwards: B, BW and FB. If there are more W than B and BW, W and FB are counted instead. In
      inference runs, backwards are not counted.

    The result is the largest count minus the smallest count, plus the total number of F, B, W, BW
    and FB operations without GPU work on all ranks.
    """
    is_pass = mask_phases(operations.phase, COUNTED)
    _, rank = np.unique(operations.rank[is_pass], return_inverse=True)
    phase, has_span = operations.phase[is_pass], operations.has_span[is_pass] == 1

    def count_by_rank(wanted_phase: Phase) -> Ints:
        return np.bincount(rank[(phase == wanted_phase) & has_span], minlength=rank.max() + 1)

    n_fused = count_by_rank(Phase.FB)
    n_forward = count_by_rank(Phase.F) + n_fused
    n_backward = count_by_rank(Phase.B) + count_by_rank(Phase.BW)
    n_backward = np.maximum(n_backward, count_by_rank(Phase.W)) + n_fused
    counts = np.stack((n_forward, n_backward) if n_backward.any() else (n_forward,))
    return int(counts.max() - counts.min()) + int((~has_span).sum())


def _has_repeated_steps(operations: Operations) -> bool:
    """Return whether any rank has several Optimizers with GPU work in one iteration."""
    steps = (operations.phase == Phase.OPTIMIZER) & (operations.has_span == 1)
    pairs = group_rows(operations.rank[steps], operations.iteration[steps])
    return len(pairs) < len(pairs.of_row)
