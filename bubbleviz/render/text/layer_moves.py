"""The table of what moving a single layer to the next stage does to time and memory."""

from __future__ import annotations

from collections.abc import Iterator

from bubbleviz.model.memory_sizes import format_memory
from bubbleviz.model.texts import to_one_line
from bubbleviz.render.document import (
    Block,
    HangingLines,
    Sentence,
    Table,
    format_ms,
    format_percent_cell,
)
from bubbleviz.report.layer_moves import RunMoves
from bubbleviz.schedules.layout.single_moves import LayerMove

#: Maximum number of moves in the table.
_MAX_MOVES = 16
_NO_MEMORY = (
    "what a move does to memory is unknown, because the run recorded no memory events "
    "(bubbleviz guide memory)"
)
_ESTIMATED_MEMORY = (
    "the memory after a move is an estimate: the weights of single layers are not recorded"
)


def list_layer_moves(run: RunMoves) -> Iterator[Block]:
    """Yield a table of the moves of a single layer, shortest iteration first.

    Nothing is yielded if no stage can give up a layer.
    """
    single = run.single
    if not single.moves:
        return
    # The sort is stable, so equal moves stay in the order of the stages.
    moves = sorted(single.moves, key=lambda move: move.makespan_ns)
    placement = single.layout.placement
    stages = "stages" if len(placement) == len(set(placement)) else "virtual stages"
    rows = [_make_move_row(run, move, stages) for move in moves[:_MAX_MOVES]]
    length = format_ms(single.makespan_ns)
    title = f"Moving one layer to the next stage, {run.schedule}: {length} ms now, simulated"
    n_omitted, hint = len(moves) - len(rows), " (bubbleviz layout -o layout.json)"
    yield Table(title, rows, left=("layer", stages), n_omitted=n_omitted, hint=hint)
    if not run.has_memory:
        yield Sentence(_NO_MEMORY)
        return
    peaks = [
        f"{device}: {format_memory(peak, in_bytes=run.in_bytes)}"
        for device, peak in enumerate(single.peak_memory)
    ]
    yield HangingLines([("peak memory now by device  ", ", ".join(peaks))])
    yield Sentence(_ESTIMATED_MEMORY)


def _make_move_row(run: RunMoves, move: LayerMove, stages: str) -> dict[str, str]:
    """Return the table row for the move of a single layer.

    Args:
        run: The moves, and what is known about the run.
        move: The move.
        stages: Header of the column that shows the sender and the receiver.
    """
    single = run.single
    saved = 1 - move.makespan_ns / single.makespan_ns if single.makespan_ns else None
    cells = {
        "layer": to_one_line(run.layer_names[move.layer], 30),
        stages: f"{move.sender} -> {move.receiver}",
        "ms": format_ms(move.makespan_ns),
        "saved\n%": format_percent_cell(saved),
    }
    if not run.has_memory:
        return cells
    placement = single.layout.placement
    columns = {
        "peak of\nsender": move.peak_memory[placement[move.sender]],
        "peak of\nreceiver": move.peak_memory[placement[move.receiver]],
        "highest\npeak": max(move.peak_memory),
    }
    return cells | {
        name: format_memory(peak, in_bytes=run.in_bytes) for name, peak in columns.items()
    }
