"""Converts a pipeline dump to a table of operations, and opens pipeline dumps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from bubbleviz.errors import NothingToAnalyzeError, ProfileError
from bubbleviz.model.columns import NONE, Ints, Table, join_tables, make_constant
from bubbleviz.model.grouping import group_rows
from bubbleviz.model.limitations import Limitation, LimitationKind
from bubbleviz.model.numbering import CodedTexts
from bubbleviz.model.operation_table import DeclaredRank, OperationTable
from bubbleviz.model.operations import BusyIntervals
from bubbleviz.model.phases import Phase
from bubbleviz.model.profile import DeclaredClock, Source
from bubbleviz.progress import Watch
from bubbleviz.sources.operations.cells import Cells, NumberColumn
from bubbleviz.sources.operations.open_table import OpenTable
from bubbleviz.sources.operations.primus.files import Dump, DumpedIteration
from bubbleviz.sources.operations.table import make_operation_table

#: Phase of the passes in each group of lists, keyed by the prefix of the lists' names. A backward
#: whose microbatch has no pass for weight gradients later becomes a BW.
_PHASES: Mapping[str, Phase] = {"fwd": Phase.F, "bwd": Phase.B, "wgrad": Phase.W}
#: Length of each iteration's time slot in ns. Iterations that are not shorter are refused.
_SLOT_NS = 3_600_000_000_000
#: Exclusive upper bound on iteration numbers, which keeps all times in 62 bits.
_MAX_ITERATIONS = 1 << 20
_NS_PER_MS = 1_000_000
#: Limitation of all dumps. It does not contain a path, so that it is reported only once.
_START_LIMITATION = Limitation(
    "times between iterations",
    "a Primus dump contains times relative to the beginning of each iteration on each rank, so all "
    "ranks are assumed to begin an iteration at the same time; the time between iterations and the "
    "optimizer are not recorded, so the ratio period is unknown",
)


@dataclass(frozen=True, eq=False, repr=False)
class _Passes(Table):
    """Passes of one rank.

    Attributes:
        iteration: Number of the iteration.
        phase: Phase of the pass.
        start_ns: Start of the pass, in the time slot of its iteration.
        end_ns: End of the pass.
        microbatch: Microbatch of the pass.
        chunk: Model chunk of the pass.
        second_microbatch: Microbatch of the backward if a forward and a backward were recorded as
            one pass, or else -1.
        second_chunk: Model chunk of this backward, or -1.
    """

    iteration: Ints
    phase: Ints
    start_ns: Ints
    end_ns: Ints
    microbatch: Ints
    chunk: Ints
    second_microbatch: Ints
    second_chunk: Ints


def make_table(dump: Dump) -> OperationTable:
    """Convert the dump of a pipeline rank to an operation table.

    The times of each iteration are placed in its time slot. If the model chunks are not numbered,
    the passes have the order of Megatron-LM's schedules, and the model chunk c of rank r is the
    virtual stage c * p + r of a run with p pipeline ranks. Numbered model chunks can be in any
    order of the model, so their virtual stages are left unknown.

    Raises:
        ProfileError: The files cannot be read, or contradict each other.
        NothingToAnalyzeError: The file contains no passes.
    """
    parts = [
        _read_passes(dump, number, iteration, prefix)
        for number, iteration in dump.iterations.items()
        for prefix in _PHASES
    ]
    passes = join_tables([_Passes.make_empty(), *parts])
    if len(passes) == 0:
        raise NothingToAnalyzeError(
            f"{dump.path}: the pipeline dump contains no forward or backward; train at least one "
            "iteration with dump_pp_data"
        )
    passes = _fuse_passes(passes)
    source = Source(
        path=dump.path,
        host="table",
        host_known=False,
        format="primus",
        session_clock_ns=0,
        device="rank",
        clock=DeclaredClock("primus", slot_ns=_SLOT_NS),
    )
    rank = DeclaredRank(
        number=dump.rank,
        global_rank=None if dump.has_replicas else dump.rank,
        stage=dump.rank,
        world_size=dump.n_stages,
    )
    table = make_operation_table(_make_cells(dump, passes), source)
    return replace(table, places=(rank,), noun="Primus dump")


def _read_passes(dump: Dump, number: int, iteration: DumpedIteration, prefix: str) -> _Passes:
    """Read the passes of one kind in one iteration.

    Args:
        dump: The dump.
        number: Number of the iteration.
        iteration: The iteration.
        prefix: Key of ``_PHASES`` that selects the kind of pass.

    Raises:
        ProfileError: Lists have different lengths, or a number is impossible.
    """
    start_ms, end_ms, microbatches, chunks = (
        getattr(iteration, f"{prefix}_{name}") for name in ("start", "end", "minibatch", "chunk")
    )
    count = len(start_ms)
    for name, values in (("end", end_ms), ("minibatch", microbatches), ("chunk", chunks)):
        # Microbatches and chunks may be missing altogether.
        if len(values) != count and (values or name == "end"):
            raise ProfileError(
                f"{dump.path}: iteration {number} has {count:,} values in {prefix}_start, but "
                f"{len(values):,} in {prefix}_{name}; copy the file again"
            )
    start_ns = _place_in_slot(dump, number, f"{prefix}_start", start_ms)
    end_ns = _place_in_slot(dump, number, f"{prefix}_end", end_ms)
    if (end_ns < start_ns).any():
        raise ProfileError(
            f"{dump.path}: iteration {number} has a pass in {prefix}_end that ends before it "
            "starts; copy the file again"
        )
    if not (microbatches and chunks):
        is_forward = prefix == "fwd"
        microbatches, chunks = _number_by_order(dump, number, count, is_forward=is_forward)
    return _Passes(
        iteration=make_constant(number, count),
        phase=make_constant(_PHASES[prefix], count),
        start_ns=start_ns,
        end_ns=end_ns,
        microbatch=np.array(microbatches, np.int64),
        chunk=np.array(chunks, np.int64),
        second_microbatch=make_constant(NONE, count),
        second_chunk=make_constant(NONE, count),
    )


def _place_in_slot(dump: Dump, number: int, name: str, times_ms: list[float]) -> Ints:
    """Convert the times of an iteration to ns, in the time slot of the iteration.

    Args:
        dump: The dump.
        number: Number of the iteration.
        name: Name of the list, for messages.
        times_ms: Times in milliseconds since the beginning of the iteration.

    Raises:
        ProfileError: A time or the iteration number is negative or too large.
    """
    times: npt.NDArray[np.float64] = np.array(times_ms, np.float64) * _NS_PER_MS
    if not (0 <= number < _MAX_ITERATIONS and ((times >= 0) & (times < _SLOT_NS)).all()):
        raise ProfileError(
            f"{dump.path}: iteration {number} has an impossible number, or an impossible time in "
            f"{name}; times must be from 0 to {_SLOT_NS // _NS_PER_MS:,} ms"
        )
    return np.minimum(np.rint(times), _SLOT_NS - 1).astype(np.int64) + number * _SLOT_NS


def _number_by_order(dump: Dump, number: int, count: int, *, is_forward: bool) -> tuple[Ints, Ints]:
    """Return the microbatch and the model chunk of each pass, in the order of Megatron-LM.

    The interleaved schedule runs p microbatches on chunk 0, then the same microbatches on chunk 1,
    and so on, on a pipeline of p ranks. The last group of microbatches may be smaller. Backwards
    begin with the last chunk. With one chunk, microbatches are in ascending order.

    Args:
        dump: The dump.
        number: Number of the iteration, for messages.
        count: Number of passes.
        is_forward: Whether the passes are forwards.

    Raises:
        ProfileError: The passes cannot be divided among the chunks, or the number of pipeline ranks
            is unknown.
    """
    n_chunks = dump.n_chunks or 1
    if n_chunks == 1:
        return np.arange(count), np.zeros(count, np.int64)
    if count % n_chunks or dump.n_stages is None:
        raise ProfileError(
            f"{dump.path}: iteration {number} has {count:,} passes of one kind, which cannot be "
            f"divided among {n_chunks} model chunks on {dump.n_stages or 'an unknown number of'} "
            "pipeline ranks; check that config.json is from this run"
        )
    microbatch = np.tile(np.arange(count // n_chunks), n_chunks)
    chunk = np.repeat(np.arange(n_chunks), count // n_chunks)
    order = np.lexsort((microbatch, chunk, microbatch // dump.n_stages))
    chunk = chunk[order]
    return microbatch[order], chunk if is_forward else n_chunks - 1 - chunk


def _fuse_passes(passes: _Passes) -> _Passes:
    """Return the passes with each forward and backward that ran together fused to one pass.

    Primus records such a pair as a forward and a backward with the same start and end.
    """
    groups = group_rows(passes.iteration, passes.start_ns, passes.end_ns)
    partner = groups.first[groups.of_row]
    is_fused = (passes.phase == Phase.B) & (passes.phase[partner] == Phase.F)
    is_fused &= passes.end_ns > passes.start_ns
    forward, backward = partner[is_fused], np.flatnonzero(is_fused)
    phase, second_microbatch = passes.phase.copy(), passes.second_microbatch.copy()
    second_chunk = passes.second_chunk.copy()
    phase[forward] = Phase.FB
    second_microbatch[forward] = passes.microbatch[backward]
    second_chunk[forward] = passes.chunk[backward]
    fused = passes.replace_columns(
        phase=phase, second_microbatch=second_microbatch, second_chunk=second_chunk
    )
    return fused.take(~is_fused)


def _make_cells(dump: Dump, passes: _Passes) -> Cells:
    """Convert passes to columns of the operation schema."""
    count = len(passes)
    virtual_stage = make_constant(NONE, count)
    if not dump.names_chunks or dump.n_chunks == 1:
        virtual_stage = passes.chunk * (dump.n_stages or 0) + dump.rank
    numbers = {
        "rank": make_constant(dump.rank, count),
        "stage": make_constant(dump.rank, count),
        "virtual_stage": virtual_stage,
        **{
            name: getattr(passes, name)
            for name in passes.column_names()
            if name not in ("iteration", "phase")
        },
    }
    phases = [phase.label for phase in Phase]
    iterations = group_rows(passes.iteration)
    names = passes.iteration[iterations.first].tolist()
    return Cells(
        dump.path,
        count,
        {
            name: NumberColumn(np.where(values == NONE, 0, values), values != NONE)
            for name, values in numbers.items()
            if (values != NONE).any()
        },
        {
            "phase": CodedTexts(passes.phase, phases),
            "iteration": CodedTexts(iterations.of_row, [str(name) for name in names]),
        },
        interval_columns={"pauses": _find_pauses(passes)},
        row_noun="pass",
        notes=tuple(_list_limitations(dump)),
    )


def _find_pauses(passes: _Passes) -> BusyIntervals:
    """Return the time between each iteration's last pass and the next iteration's time slot.

    Each interval belongs to the last pass of the iteration.
    """
    order = np.lexsort((passes.end_ns, passes.iteration))
    iteration = passes.iteration[order]
    is_last = iteration[1:] != iteration[:-1]
    last = order[:-1][is_last]
    return BusyIntervals(last, passes.end_ns[last], iteration[1:][is_last] * _SLOT_NS)


def _list_limitations(dump: Dump) -> Iterator[Limitation]:
    """Yield the limitations of a dump."""
    yield _START_LIMITATION
    if not dump.has_config:
        assumption = "" if dump.n_chunks else ", and that each rank has one model chunk"
        kind = LimitationKind.OTHER if dump.n_chunks else LimitationKind.CHUNKS_ASSUMED
        # Without the path, the limitation is reported only once for all files.
        yield Limitation(
            "the configuration of the run",
            "there is no config.json with pp_size next to the pp_rank_N.json files, so it is "
            f"assumed that no higher rank is missing{assumption}; copy config.json from the same "
            "run",
            kind=kind,
        )


@contextmanager
def open_dump(path: str, jobs: int, watch: Watch) -> Iterator[OpenTable]:  # noqa: ARG001 - one thread reads it
    """Open the dump of a pipeline rank. The file is read on first use.

    Args:
        path: Path to the file.
        jobs: Ignored, because one thread reads the file.
        watch: Progress callback.
    """
    dump = Dump(path, watch)
    yield OpenTable(path, lambda: make_table(dump), (), lambda: tuple(_list_facts(dump)))


def _list_facts(dump: Dump) -> Iterator[tuple[str, str]]:
    """Yield properties of a dump as (name, value) pairs."""
    of_run = "" if dump.n_stages is None else f" of {dump.n_stages}"
    yield "pipeline rank", f"{dump.rank}{of_run}"
    yield "model chunks", "unknown" if dump.n_chunks is None else str(dump.n_chunks)
    if dump.memory_gib is not None:
        yield "reserved memory", f"{dump.memory_gib:.2f} GiB at most"
