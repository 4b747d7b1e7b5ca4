"""Measures the costs of XLA instructions in profiles."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from bubbleviz.analyses.pgle import instructions
from bubbleviz.analyses.pgle.costs import Costs, check_statistic, compute_costs, merge_samples
from bubbleviz.analyses.pgle.range_names import GLOBS
from bubbleviz.conventions.convention_file import collect_kinds, find_conventions
from bubbleviz.errors import NothingToAnalyzeError, ProfileError, UsageError
from bubbleviz.interpret.fleet.run_recordings import Fleet, refuse_same_content
from bubbleviz.interpret.record import open_profile, rename_limitations
from bubbleviz.model import grouping
from bubbleviz.model.columns import NONE, Bools
from bubbleviz.model.limitations import Limitation, LimitationKind
from bubbleviz.model.profile import Profile
from bubbleviz.progress import Progress, Watch
from bubbleviz.sources.paths import find_profiles, read_each
from bubbleviz.sources.readers import OpenFile

#: Default statistic: the percentile from JAX's ``jax_pgle_aggregation_percentile``.
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
    """Return the cost of each XLA instruction in a JAX run, as its device time in microseconds.

    Args:
        paths: Profiles, directories of profiles, or patterns.
        aggregate: Statistic that combines all executions of an instruction: ``max``, ``min``,
            ``mean``, ``median``, or a percentile such as ``p90``.
        aggregate_collectives: Statistic for collectives, or None to use ``aggregate``.
        modules: Names or labels of the modules to measure, or empty for all.
        skip: Number of initial executions to leave out as warm-up, per module and device.
        convention: Names of or paths to conventions whose lists of communication kernels extend the
            built-in list. An instruction is a collective if its name or the name of any of its
            kernels matches the list.
        keep_export: Whether to keep the files exported from ``.nsys-rep`` reports, next to the
            reports.
        jobs: Number of threads used to read a profile.
        progress: Callback that receives the progress of reading files.

    Raises:
        BubblevizError: The costs cannot be measured; see :mod:`bubbleviz.errors`.
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
        """Return a profile's samples, omitted executions, limitations and kind of device."""
        with open_profile(path, jobs, watch, keep_export=keep_export) as (file, export):
            profile = read_jax_profile(file)
            measured, left_out, limitations = instructions.measure(profile, kinds, skip)
        # Limitations name the report instead of its temporary export.
        return (
            measured,
            left_out,
            rename_limitations(limitations, export, path),
            profile.source.device,
        )

    profiles, unreadable = read_each(files, read, progress)
    samples = merge_samples([measured for measured, *_ in profiles])
    totals = _list_modules(samples)
    if modules:
        samples = samples.take(_mask_modules(samples, modules))
    costs = compute_costs(samples, compute, collective)
    if not costs:
        raise NothingToAnalyzeError(
            f"{files[0].path}: no instruction was recorded completely after warm-up and "
            f"compilation; record more steps{', or pass --skip 0' if skip else ''}"
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
            *_describe_shared_names(samples),
        ),
        device=min((device for *_, device in profiles), key=lambda name: name != "GPU"),
    )


def read_jax_profile(file: OpenFile) -> Profile:
    """Read an open file as a profile that contains XLA ranges.

    Raises:
        NothingToAnalyzeError: The file contains nothing to measure. If there are no XLA ranges, the
            message mentions only the missing ranges.
    """
    try:
        return file.read(GLOBS)
    except NothingToAnalyzeError as error:
        try:
            profile = file.read(GLOBS, partial=True)
        except ProfileError:
            raise error from None
        if len(profile.ranges):
            raise
        raise instructions.explain_no_instructions(profile) from error


def _list_modules(samples: instructions.Samples) -> tuple[tuple[str, int, int], ...]:
    """Return the modules that have samples, sorted by descending total time.

    Each entry contains the label, the number of distinct instructions, and the total time over all
    devices in ns.
    """
    totals = []
    for number, label in enumerate(samples.modules):
        rows_of_module = samples.take(samples.module == number)
        if len(rows_of_module):
            totals.append(
                (
                    label,
                    len(grouping.find_distinct(rows_of_module.instruction)),
                    int(rows_of_module.cost_ns.sum()),
                )
            )
    return tuple(sorted(totals, key=lambda total: (-total[2], total[0])))


def _mask_modules(samples: instructions.Samples, requested: Sequence[str]) -> Bools:
    """Return a mask of the samples that belong to the requested modules.

    Args:
        samples: Samples of all modules.
        requested: Names or labels of modules.

    Raises:
        UsageError: A requested name is not the name or label of any module.
    """
    # A label is the module name, followed by the program number in parentheses.
    has_name = {label: {label, re.sub(r"\([0-9]+\)\Z", "", label)} for label in samples.modules}
    for name in requested:
        if not any(name in names for names in has_name.values()):
            known_modules = ", ".join(label[:60] for label in samples.modules[:20]) or "none"
            raise UsageError(
                f"--module {name[:60]!r}: no module with this name ran; the profiles contain "
                f"{known_modules}"
            )
    rows = [at for at, label in enumerate(samples.modules) if has_name[label] & set(requested)]
    return np.isin(samples.module, rows)


def _describe_shared_names(samples: instructions.Samples) -> Iterator[Limitation]:
    """Yield a limitation if several modules have instructions of the same name.

    The limitation gives the number of ambiguous names. Samples whose module is unknown are ignored.
    """
    has_module = samples.module != NONE
    pairs = grouping.group_rows(samples.instruction[has_module], samples.module[has_module])
    instruction = samples.instruction[has_module][pairs.first]
    count = int((np.unique(instruction, return_counts=True)[1] > 1).sum())
    if count:
        yield Limitation(
            "instructions with the same name in several modules",
            "XLA looks up costs by name, and these costs combine all modules; select one module "
            "with --module NAME",
            count,
            LimitationKind.COSTS,
        )
