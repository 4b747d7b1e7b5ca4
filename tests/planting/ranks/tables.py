"""Planted runs as tables of operations: a Parquet file a server."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tests.planting.ranks.runs import SERVER, TRANSFER_NS, Ints, PlantedRun

_PHASES = ("F", "B", "Optimizer", "COLLECTIVE", "SEND_F", "RECV_F", "SEND_B", "RECV_B")
_F, _B, _STEP, _REDUCE, _SEND_F, _RECV_F, _SEND_B, _RECV_B = range(len(_PHASES))
#: Stands where a rank has no operation.
_NOTHING = -1


def write_tables(
    run: PlantedRun,
    folder: Path,
    *,
    told: bool,
    transfers: bool,
    collectives: bool,
    clock_errors_ns: Ints | None,
) -> list[Path]:
    """Write a run and return the files, by server.

    Args:
        run: the run.
        folder: of the files, which is made.
        told: whether they tell stages and pipelines.
        transfers: whether they hold sends and receives.
        collectives: whether they hold the all-reduce of each stage's gradients.
        clock_errors_ns: of each server, which then has a clock of its own; None for one clock.
    """
    folder.mkdir(parents=True, exist_ok=True)
    parts = [*_operations(run), *(_transfers(run) if transfers else [])]
    parts += [_reductions(run)] if collectives else []
    # Each part is columns of shape (ranks, operations of a rank).
    phase, iteration, microbatch, start, end = (
        np.concatenate([part[column] for part in parts], axis=1) for column in range(5)
    )
    phases = pa.array(_PHASES)
    files = []
    for server in range(-(-run.recipe.ranks // SERVER)):
        ranks = np.arange(server * SERVER, min((server + 1) * SERVER, run.recipe.ranks))
        rank, at = np.nonzero(phase[ranks] != _NOTHING)
        rank = ranks[rank]
        order = np.lexsort((start[rank, at], rank))
        rank, at = rank[order], at[order]
        error = 0 if clock_errors_ns is None else int(clock_errors_ns[server])
        number = microbatch[rank, at]
        codes = pa.array(phase[rank, at].astype(np.int8))
        columns = {
            "rank": pa.array(rank),
            "phase": pa.DictionaryArray.from_arrays(codes, phases),
            "start_ns": pa.array(start[rank, at] + error),
            "end_ns": pa.array(end[rank, at] + error),
            "iteration": pa.array(iteration[rank, at]),
            "microbatch": pa.array(number, mask=number < 0),
        }
        if told:
            columns["stage"] = pa.array(rank // run.recipe.pipelines)
            columns["pipeline"] = pa.array(rank % run.recipe.pipelines)
        if collectives:
            reduces = phase[rank, at] == _REDUCE
            columns["kind"] = pa.array(np.where(reduces, "all-reduce", ""))
            stage = rank // run.recipe.pipelines
            columns["group"] = pa.array(np.where(reduces, stage.astype(str), ""))
        host = pa.DictionaryArray.from_arrays(
            pa.array(np.zeros(len(rank), np.int8)), pa.array([f"node{server:05}"])
        )
        columns["host"] = host
        if clock_errors_ns is not None:
            columns["clock"] = host
        files.append(folder / f"node{server:05}.parquet")
        pq.write_table(pa.table(columns), files[-1], compression="snappy")
    return files


def _operations(run: PlantedRun) -> list[tuple[Ints, ...]]:
    """Return F and B, then the optimizer: phase, iteration, microbatch, start, end."""
    recipe, m = run.recipe, run.recipe.microbatches
    shape = (recipe.ranks, recipe.iterations, 2, m)
    phase = np.broadcast_to(np.array([_F, _B])[:, None], shape)
    iteration = np.broadcast_to(np.arange(recipe.iterations)[:, None, None], shape)
    microbatch = np.broadcast_to(np.arange(m), shape)
    start, end = run.by_rank(run.start_ns), run.by_rank(run.end_ns)
    steps = (recipe.ranks, recipe.iterations)
    step = (
        np.full(steps, _STEP),
        np.broadcast_to(np.arange(recipe.iterations), steps),
        np.full(steps, -1),
        run.by_rank(run.step_start_ns),
        run.by_rank(run.step_end_ns),
    )
    each = (phase, iteration, microbatch, start, end)
    return [tuple(column.reshape(recipe.ranks, -1) for column in each), step]


def _reductions(run: PlantedRun) -> tuple[Ints, ...]:
    """Return the collective by which replicas reduce the gradients of their stage."""
    recipe = run.recipe
    shape = (recipe.ranks, recipe.iterations)
    return (
        np.full(shape, _REDUCE),
        np.broadcast_to(np.arange(recipe.iterations), shape),
        np.full(shape, -1),
        run.by_rank(run.end_ns.max(axis=(3, 4))),
        run.by_rank(run.step_start_ns),
    )


def _transfers(run: PlantedRun) -> list[tuple[Ints, ...]]:
    """Return sends and receives; those of a pipeline's ends, which have none, are left out.

    A receive is posted a transfer's time before its input was sent, so that it waits as long.
    """
    recipe, m = run.recipe, run.recipe.microbatches
    parts = []
    for phase, send, receive, towards in ((0, _SEND_F, _RECV_F, 1), (1, _SEND_B, _RECV_B, -1)):
        sent = run.end_ns[:, :, :, phase]
        arrived = np.roll(sent, towards, axis=0)
        stage = np.repeat(np.arange(recipe.stages), recipe.pipelines)[:, None, None]
        first, last = (0, recipe.stages - 1)[::towards]
        for kind, without, start, end in (
            (send, last, sent, sent + TRANSFER_NS),
            (receive, first, arrived - TRANSFER_NS, arrived + TRANSFER_NS),
        ):
            shape = (recipe.ranks, recipe.iterations, m)
            each = (
                np.broadcast_to(np.where(stage == without, _NOTHING, kind), shape),
                np.broadcast_to(np.arange(recipe.iterations)[:, None], shape),
                np.broadcast_to(np.arange(m), shape),
                run.by_rank(start),
                run.by_rank(end),
            )
            parts.append(tuple(column.reshape(recipe.ranks, -1) for column in each))
    return parts
