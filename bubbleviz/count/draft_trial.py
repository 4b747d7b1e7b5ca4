"""Trials of drafted conventions on the profile that they were drafted from."""

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
from bubbleviz.model.grouping import group_rows
from bubbleviz.model.operations import Operations
from bubbleviz.model.phase_masks import mask_phases
from bubbleviz.model.phases import COUNTED, Phase, list_missing_passes
from bubbleviz.sources.readers import OpenFile

#: A draft that attributes less of the compute time is of use only where it gives a ratio.
_MOST_OF_IT = 0.5
#: A draft that attributes as much, and gives a ratio, is the last that is tried.
_NEARLY_ALL = 0.9


def choose_draft(
    file: OpenFile, drafted: Mapping[str, Convention], additions: Sequence[Convention] = ()
) -> tuple[str, DraftTrial, Recordings] | None:
    """Return the draft that makes most of a profile; None where none names forward and backward.

    The profile is read once for all of them. Beside the TOML stand what it makes of the profile,
    and the profile under it.

    Args:
        file: the open profile.
        drafted: the convention of each TOML, the likeliest first.
        additions: conventions without patterns, whose kernels and threads count.
    """
    best: tuple[str, DraftTrial, Recordings] | None = None
    drafted = {
        d: c for d, c in drafted.items() if not list_missing_passes({p.phase for p in c.patterns})
    }
    if not drafted:
        return None
    try:
        # As an analysis does: names of collectives tell what some kernels are.
        globs = collect_globs(add_iteration_names(tuple(drafted.values())))
        profile = file.read((*globs, *OPERATION_GLOBS))
    except BubblevizError:
        return None
    for draft, convention in drafted.items():
        last = add_iteration_names((convention,))
        names = parse_range_names(profile.ranges.names, *last)
        if list_missing_passes(names.phase.tolist()):
            continue
        try:
            kinds = collect_kinds((*last, *additions))
            read = interpret(profile, last, names, kinds)
            trial = _try_draft(read, parts=bool(names.part.any()))
        except BubblevizError:
            continue
        if trial is not None and (best is None or _rate(trial) > _rate(best[1])):
            best = draft, trial, read
            if trial.bubble is not None and trial.even and trial.attributed >= _NEARLY_ALL:
                break
    return best


def is_drafted(file: OpenFile, names: Mapping[str, int]) -> bool:
    """Tell whether a draft names forward and backward of a profile.

    Args:
        file: the open profile.
        names: how often they occur in a sample of its ranges.
    """
    return choose_draft(file, generate_drafts(names)) is not None


def _rate(trial: DraftTrial) -> tuple[bool, bool, float]:
    """Return what the better of two drafts has more of."""
    return trial.bubble is not None, trial.even, trial.attributed


def _try_draft(read: Recordings, *, parts: bool) -> DraftTrial | None:
    """Return what a drafted convention makes of a profile; None where it is of no use.

    Args:
        read: the profile under it.
        parts: whether it names parts of operations.

    Raises:
        BubblevizError: the profile contradicts it.
    """
    operations, (recording,) = read.operations, read.recordings
    phases = [(p, int(((operations.phase == p) & (operations.has_span == 1)).sum())) for p in Phase]
    if list_missing_passes({phase for phase, number in phases if number}):
        return None
    uneven = _count_uneven_passes(operations)
    if parts and uneven:
        # Parts of several microbatches in a row were taken for one operation.
        return None
    counts = count(merge(read, RunHints()))
    ranks = recording.coverage.ranks
    compute_ns = sum(rank.gpu_ns for rank in ranks)
    attributed_ns = sum(rank.attributed_gpu_ns for rank in ranks)
    attributed = attributed_ns / compute_ns if compute_ns else 0.0
    bubble = counts.summary.bubble_ratio[counts.headline].mean
    if bubble is None and attributed < _MOST_OF_IT:
        return None
    return DraftTrial(
        operations=tuple((phase.label, number) for phase, number in phases if number),
        attributed=attributed,
        ratio=counts.headline,
        bubble=bubble,
        even=uneven <= len(recording.ranks) and not _has_repeated_steps(operations),
    )


def _count_uneven_passes(operations: Operations) -> int:
    """Return how many passes more some rank has in one direction than another one in any.

    Passes without GPU work count on neither side.
    """
    work = mask_phases(operations.phase, COUNTED)
    _, rank = np.unique(operations.rank[work], return_inverse=True)
    phase, spans = operations.phase[work], operations.has_span[work] == 1
    n_ranks = rank.max() + 1
    ranks_of_phases = [rank[(phase == counted_phase) & spans] for counted_phase in COUNTED]
    passes = np.array([np.bincount(ranks, minlength=n_ranks) for ranks in ranks_of_phases])
    forward, backward, weight, fused, both = passes
    ways = np.stack((forward + both, np.maximum(backward + fused, weight) + both))
    return int(ways.max() - ways.min()) + int((~spans).sum())


def _has_repeated_steps(operations: Operations) -> bool:
    """Return whether some rank has several optimizer steps in one iteration."""
    steps = (operations.phase == Phase.OPTIMIZER) & (operations.has_span == 1)
    pairs = group_rows(operations.rank[steps], operations.iteration[steps])
    return len(pairs) < len(pairs.of_row)
