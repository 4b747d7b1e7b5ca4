"""Write planted runs as tables of operations, one Parquet file per server."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tests.planting.ranks.runs import SERVER, TRANSFER_NS, Ints, PlantedRun

_PHASES = ("F", "B", "Optimizer", "COLLECTIVE", "SEND_F", "RECV_F", "SEND_B", "RECV_B")
_F, _B, _STEP, _REDUCE, _SEND_F, _RECV_F, _SEND_B, _RECV_B = range(len(_PHASES))
#: Value that marks a rank that has no operation at this position.
_NOTHING = -1


def write_tables(
    run: PlantedRun,
    folder: Path,
    *,
    with_stages: bool,
    transfers: bool,
    collectives: bool,
    clock_errors_ns: Ints | None,
) -> list[Path]:
    """Write a run, and return one file per server.

    Args:
        run: Planted run.
        folder: Output directory, which is created.
        with_stages: Whether to write columns for stages and pipelines.
        transfers: Whether to write sends and receives.
        collectives: Whether to write the all-reduce of each stage's gradients.
        clock_errors_ns: Clock error of each server, or None if all ranks share one clock.
    """
    folder.mkdir(parents=True, exist_ok=True)
    parts = [*_list_operations(run), *(_list_transfers(run) if transfers else [])]
    parts += [_list_reductions(run)] if collectives else []
    # The columns in each part have shape (ranks, operations per rank).
    phase, iteration, microbatch, start, end = (
        np.concatenate([part[column] for part in parts], axis=1) for column in range(5)
    )
    phases = pa.array(_PHASES)
    files = []
    for server in range(-(-run.recipe.ranks // SERVER)):
        ranks = np.arange(server * SERVER, min((server + 1) * SERVER, run.recipe.ranks))
        rank, is_on_server = np.nonzero(phase[ranks] != _NOTHING)
        rank = ranks[rank]
        order = np.lexsort((start[rank, is_on_server], rank))
        rank, is_on_server = rank[order], is_on_server[order]
        error = 0 if clock_errors_ns is None else int(clock_errors_ns[server])
        number = microbatch[rank, is_on_server]
        codes = pa.array(phase[rank, is_on_server].astype(np.int8))
        columns = {
            "rank": pa.array(rank),
            "phase": pa.DictionaryArray.from_arrays(codes, phases),
            "start_ns": pa.array(start[rank, is_on_server] + error),
            "end_ns": pa.array(end[rank, is_on_server] + error),
            "iteration": pa.array(iteration[rank, is_on_server]),
            "microbatch": pa.array(number, mask=number < 0),
        }
        if with_stages:
            columns["stage"] = pa.array(rank // run.recipe.pipelines)
            columns["pipeline"] = pa.array(rank % run.recipe.pipelines)
        if collectives:
            reduces = phase[rank, is_on_server] == _REDUCE
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


def _list_operations(run: PlantedRun) -> list[tuple[Ints, ...]]:
    """Return the phase, iteration, microbatch, start and end of F and B, then of optimizers."""
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


def _list_reductions(run: PlantedRun) -> tuple[Ints, ...]:
    """Return the collectives in which replicas reduce the gradients of their stage."""
    recipe = run.recipe
    shape = (recipe.ranks, recipe.iterations)
    return (
        np.full(shape, _REDUCE),
        np.broadcast_to(np.arange(recipe.iterations), shape),
        np.full(shape, -1),
        run.by_rank(run.end_ns.max(axis=(3, 4))),
        run.by_rank(run.step_start_ns),
    )


def _list_transfers(run: PlantedRun) -> list[tuple[Ints, ...]]:
    """Return sends and receives. The outer ends of pipelines have none.

    A receive is posted one transfer time before its input is sent, so it waits for one transfer
    time.
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
