"""The analysis of instruction costs, from profiles to costs and cost files. It never prints."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from bubbleviz.analyses.pgle import instructions
from bubbleviz.analyses.pgle.costs import Costs, check_statistic, costs_of, merge_samples
from bubbleviz.analyses.pgle.range_names import GLOBS
from bubbleviz.conventions.convention_file import collect_kinds, find_conventions
from bubbleviz.errors import NothingToAnalyseError, ProfileError, UsageError
from bubbleviz.interpret.fleet.run_recordings import Fleet, refuse_same_content
from bubbleviz.interpret.record import open_profile, rename_limitations
from bubbleviz.model import grouping
from bubbleviz.model.columns import NONE, Bools
from bubbleviz.model.limitations import Limitation, LimitationKind
from bubbleviz.model.profile import Profile
from bubbleviz.progress import Progress, Watch
from bubbleviz.sources.paths import find_profiles, read_each
from bubbleviz.sources.readers import OpenFile

#: The percentile that JAX aggregates with, ``jax_pgle_aggregation_percentile``.
AGGREGATE = "p90"


def measure_costs(
    paths: str | Path | Sequence[str | Path],
    *,
    aggregate: str = AGGREGATE,
    aggregate_collectives: str | None = None,
    modules: Sequence[str] = (),
    skip: int = 1,
    convention: str | Path | Sequence[str | Path] = (),
    keep_export: bool = False,
    jobs: int = 1,
    progress: Progress | None = None,
) -> Costs:
    """Return the cost of each XLA instruction of a JAX run, in microseconds on its device.

    Args:
        paths: profiles; a directory stands for those in it, a pattern for its matches.
        aggregate: how executions on devices become one cost: ``max``, ``min``, ``mean``,
            ``median``, or a percentile as ``p90``.
        aggregate_collectives: the same for collectives; None for the same statistic.
        modules: names or labels of the modules to take; empty for all.
        skip: executions of each module on each device to leave out as its warm-up.
        convention: conventions whose lists of communication kernels extend the built-in one: names,
            or paths of TOML files; an instruction is a collective if it, or one of its kernels,
            has such a name.
        keep_export: leave the exports made of ``.nsys-rep`` reports beside them.
        jobs: threads that read a profile.
        progress: receives how much of each profile has been read.

    Raises:
        BubblevizError: what, where and what to do next; see :mod:`bubbleviz.errors`.
    """
    compute = check_statistic(aggregate, "--aggregate")
    collective = check_statistic(aggregate_collectives or aggregate, "--aggregate-collectives")
    if skip < 0:
        raise UsageError(f"--skip {skip}: must be 0 or more")
    inputs = [paths] if isinstance(paths, (str, Path)) else paths
    files = find_profiles([str(path) for path in inputs])
    refuse_same_content(Fleet(1), [file.path for file in files])
    kinds = collect_kinds(find_conventions(convention))

    def read(
        path: str, watch: Watch
    ) -> tuple[instructions.Samples, Counter[str], tuple[Limitation, ...], str]:
        with open_profile(path, jobs, watch, keep_export=keep_export) as (file, export):
            profile = _profile_in(file)
            measured, left_out, lost = instructions.measure(profile, kinds, skip)
        # A temporary export goes by its report's name.
        return measured, left_out, rename_limitations(lost, export, path), profile.source.device

    profiles, unreadable = read_each(files, read, progress)
    samples = merge_samples([measured for measured, *_ in profiles])
    totals = _modules(samples)
    if modules:
        samples = samples.take(_chosen(samples, modules))
    costs = costs_of(samples, compute, collective)
    if not costs:
        raise NothingToAnalyseError(
            f"{files[0].path}: no execution of an instruction is whole, after warm-up and "
            f"compilation; record more steps{', or give --skip 0' if skip else ''}"
        )
    left_out = sum((counts for _, counts, *_ in profiles), Counter[str]())
    return Costs(
        instructions=costs,
        modules=totals,
        executions=len(samples),
        compilation=left_out["compilation"],
        cut=left_out["cut"],
        warm_up=left_out["warm_up"],
        devices=len(grouping.find_distinct(samples.device)),
        aggregate=compute,
        aggregate_collectives=collective,
        limitations=(
            *unreadable,
            *(limitation for _, _, lost, _ in profiles for limitation in lost),
            *_shared_names(samples),
        ),
        device=min((device for *_, device in profiles), key=lambda name: name != "GPU"),
    )


def _profile_in(file: OpenFile) -> Profile:
    """Return the profile of an open file, with the ranges of XLA.

    Raises:
        NothingToAnalyseError: it cannot be analysed; what it lacks matters to runs of XLA alone.
    """
    try:
        return file.read(GLOBS)
    except NothingToAnalyseError as error:
        try:
            profile = file.read(GLOBS, partial=True)
        except ProfileError:
            raise error from None
        if len(profile.ranges):
            raise
        raise instructions.without_instructions(profile) from error


def _modules(samples: instructions.Samples) -> tuple[tuple[str, int, int], ...]:
    """Return the modules that ran, the longest first."""
    totals = []
    for number, label in enumerate(samples.modules):
        own = samples.take(samples.module == number)
        if len(own):
            totals.append(
                (label, len(grouping.find_distinct(own.instruction)), int(own.cost_ns.sum()))
            )
    return tuple(sorted(totals, key=lambda total: (-total[2], total[0])))


def _chosen(samples: instructions.Samples, wanted: Sequence[str]) -> Bools:
    """Tell which samples belong to some modules.

    Args:
        samples: of all modules.
        wanted: names or labels.

    Raises:
        UsageError: no module has such a name.
    """
    # A label is a name, and the number of its program.
    named = {label: {label, re.sub(r"\([0-9]+\)\Z", "", label)} for label in samples.modules}
    for name in wanted:
        if not any(name in names for names in named.values()):
            known = ", ".join(label[:60] for label in samples.modules[:20]) or "none"
            raise UsageError(
                f"--module {name[:60]!r}: no such module ran; the profiles hold {known}"
            )
    rows = [at for at, label in enumerate(samples.modules) if named[label] & set(wanted)]
    return np.isin(samples.module, rows)


def _shared_names(samples: instructions.Samples) -> Iterator[Limitation]:
    """Yield that several modules have instructions of one name, if that is so."""
    known = samples.module != NONE
    pairs = grouping.group_rows(samples.instruction[known], samples.module[known])
    instruction = samples.instruction[known][pairs.first]
    count = int((np.unique(instruction, return_counts=True)[1] > 1).sum())
    if count:
        yield Limitation(
            "instructions whose name several modules have",
            "XLA looks costs up by name, and these are of all the modules together; take one "
            "with --module NAME",
            count,
            LimitationKind.COSTS,
        )
