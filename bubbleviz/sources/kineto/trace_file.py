"""An open trace of PyTorch's profiler."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from bubbleviz.conventions.globs import fitting
from bubbleviz.errors import NothingToAnalyseError
from bubbleviz.model.columns import Bools
from bubbleviz.model.grouping import distinct
from bubbleviz.model.profile import Contents, NameCount, Profile, TableCount
from bubbleviz.progress import Watch, unwatched
from bubbleviz.sources.kineto.events import (
    ANNOTATION,
    CALL,
    COLLECTIVE_MARK,
    COPY,
    KERNEL,
    OPERATOR,
    PYTHON,
    SYNCHRONISATION_CATEGORIES,
    CollectiveEvent,
    ExactKinetoEvent,
    ExactSynchronisationEvent,
    KinetoEvent,
    SynchronisationEvent,
)
from bubbleviz.sources.kineto.profile import KinetoProfile, read_profile
from bubbleviz.sources.trace_events.file import CategorisedEvent, RareEvent, TraceFile, opened_trace

#: What an inspection counts: name, categories in the file, and code.
_COUNTED = (
    ("kernels", "kernel", KERNEL),
    ("copies and memsets", "gpu_memcpy, gpu_memset", COPY),
    ("CUDA API calls", "cuda_runtime, cuda_driver", CALL),
    ("annotations", "user_annotation", ANNOTATION),
    ("operators", "cpu_op", OPERATOR),
    ("Python functions", "python_function", PYTHON),
)
#: How the events of modules are named among those of Python's functions.
_MODULE = "nn.Module: "
_RECORD_AGAIN = (
    "record it again with torch.profiler.profile(activities=[ProfilerActivity.CPU, "
    "ProfilerActivity.CUDA])"
)


@dataclass
class KinetoFile:
    """An open trace; see :class:`~bubbleviz.sources.readers.OpenFile`. It is decoded once."""

    file: TraceFile[KinetoEvent, ExactKinetoEvent]

    @cached_property
    def _trace(self) -> KinetoProfile:
        return read_profile(self.file)

    def sample(self, globs: Sequence[str], _rows: int = 0, /) -> Mapping[str, int]:
        """Return how often names of annotations, or else of operators, occur."""
        ranges, kind = self._trace.profile.ranges, self._trace.kind
        annotated = "*" in globs and (kind == ANNOTATION).any()
        name_id = ranges.name_id[kind == ANNOTATION] if annotated else ranges.name_id
        counts = np.bincount(name_id, minlength=len(ranges.names)).tolist()
        fits = fitting(globs, ranges.names)
        return {n: c for n, c, fit in zip(ranges.names, counts, fits, strict=True) if fit and c}

    def read(self, globs: Sequence[str], *, partial: bool = False) -> Profile:
        """Return the profile.

        Args:
            globs: prefilters of the ranges that are wanted by name.
            partial: read it even if it holds no calls.

        Raises:
            ProfileError: it cannot be read.
            NothingToAnalyseError: neither GPU work nor operators were recorded, or no calls.
        """
        profile = self._trace.profile
        if lacking := self._lacking():
            raise NothingToAnalyseError(f"{self.file.path}: {lacking}")
        if not partial and not any(map(len, profile.calls.blocks())):
            raise NothingToAnalyseError(
                f"{self.file.path}: no CUDA API calls were recorded, so kernels cannot be linked "
                f"to ranges; {_RECORD_AGAIN}"
            )
        ranges = profile.ranges
        fits = np.array(fitting(globs, ranges.names), bool)
        chosen = ranges.take(fits[ranges.name_id] & self._asked(globs))
        return replace(profile, ranges=chosen)

    def _asked(self, globs: Sequence[str]) -> Bools:
        """Tell which ranges may be asked for by name: of Python's functions, modules alone."""
        ranges, kind = self._trace.profile.ranges, self._trace.kind
        modules = [glob for glob in globs if glob.startswith(_MODULE)]
        if not modules:
            return np.asarray(kind != PYTHON, bool)
        fits = np.array(fitting(modules, ranges.names), bool)
        return np.asarray((kind != PYTHON) | fits[ranges.name_id], bool)

    def _lacking(self) -> str:
        """Return why there is nothing to analyse, and what to do; "" where there is something."""
        trace = self._trace
        if trace.cut and (trace.loss or len(trace.profile.activities) == 0):
            loss = trace.loss or "cut short before the first kernel or operator"
            return f"{loss}; copy the file again, or let the profiler write it to its end"
        if trace.loss:
            return f"{trace.loss}; copy the file again, or {_RECORD_AGAIN}"
        if len(trace.profile.activities) == 0:
            return f"neither kernels nor operators were recorded; {_RECORD_AGAIN}"
        return ""

    def inspect(self, globs: Sequence[str]) -> Contents:
        """Return the contents of the trace, with the ranges of these names."""
        trace, profile = self._trace, self._trace.profile
        names = self.sample(globs)
        return Contents(
            source=profile.source,
            tables=tuple(
                TableCount(
                    what.replace("CUDA", profile.source.api), category, trace.counts[kind] or None
                )
                for what, category, kind in _COUNTED
            ),
            processes=tuple(distinct(profile.activities.ranks[:, 0]).tolist()),
            devices=profile.devices,
            candidates=tuple(NameCount(name, count) for name, count in sorted(names.items())),
            ranges=len(profile.ranges),
            missing=tuple(filter(None, (self._lacking(),))),
            readable=len(profile.activities) > 0,
        )


@contextmanager
def open_file(path: str, jobs: int = 1, watch: Watch = unwatched) -> Iterator[KinetoFile]:  # noqa: ARG001 - one thread reads JSON
    """Open a trace of PyTorch.

    Raises:
        ProfileError: it cannot be opened.
    """
    rare = RareEvent[KinetoEvent](COLLECTIVE_MARK, CollectiveEvent)
    categorised = CategorisedEvent[KinetoEvent, ExactKinetoEvent](
        SYNCHRONISATION_CATEGORIES, SynchronisationEvent, ExactSynchronisationEvent
    )
    events = KinetoEvent, ExactKinetoEvent
    with opened_trace(path, *events, watch, rare, categorised) as file:
        yield KinetoFile(file)
