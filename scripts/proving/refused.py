"""Run plans that bubbleviz rejects as deadlocks, to show that they hang or train incorrectly.

    python -m scripts.proving.refused

Each plan runs on gloo, which is the transport ``buffered``, and on links that run transfers one
after the other, like NCCL's streams. ``deferred`` is a schedule as PyTorch lowers it with
``defer_pp_recv=True``.
"""

from __future__ import annotations

import csv
import io
import sys
import tempfile
from pathlib import Path

from torch.distributed.pipelining import schedules

from bubbleviz.errors import MismatchError
from bubbleviz.schedules.communication import torch_csv
from bubbleviz.schedules.communication.deadlocks import check_lowered
from bubbleviz.schedules.communication.transports import BUFFERED, STREAMS
from bubbleviz.schedules.known import find_schedule
from scripts.proving.jobs import Job, job_without_times
from scripts.proving.training import MAX_GRADIENT_ERROR, Order, Ranks, RunError

_RANKS, _MICROBATCHES = 2, 4
#: Time after which a run is considered hung, in seconds.
#: Other runs take less than a second.
_TIMEOUT_S = 10.0


def main() -> int:
    """Check that a schedule fails if and only if bubbleviz rejects it. Return 1 if not."""
    n_wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        for name, deferred in (("1f1b", False), ("1f1b", True), ("zb-v", False), ("zb-v", True)):
            file = Path(folder) / f"{name}.csv"
            file.write_text(_lower(name, deferred=deferred), encoding="utf-8")
            for transport in (BUFFERED, STREAMS):
                plan = torch_csv.read(file.read_text(encoding="utf-8"), file.name)
                streams = transport is STREAMS
                job = job_without_times(plan.plan.placement, _MICROBATCHES, streams=streams)
                try:
                    check_lowered(plan, transport)
                    refusal = ""
                except MismatchError as error:
                    refusal = str(error)
                failure = _run(job, file)
                n_wrong += bool(refusal) != bool(failure)
                title = f"{name}{' deferred' if deferred else ''} ({transport.name})"
                print(f"{title}: {failure or 'trains'}; {refusal or 'not refused'}", flush=True)
    return int(n_wrong > 0)


def _lower(name: str, *, deferred: bool) -> str:
    """Return a schedule with PyTorch's sends and receives. If ``deferred``, receives are late."""
    schedule = find_schedule(name)
    text = torch_csv.write(schedule.plan(_RANKS, _MICROBATCHES, schedule.chunks))
    rows = [
        [schedules._Action.from_str(cell) for cell in row] for row in csv.reader(io.StringIO(text))
    ]
    rank_of = {action.stage_index: rank for rank, row in enumerate(rows) for action in row}
    actions = {
        rank: schedules._add_reduce_grad(schedules._add_unshard_reshard(row), _MICROBATCHES)
        for rank, row in enumerate(rows)
    }
    actions = schedules._add_send_recv(actions, rank_of.__getitem__, len(rank_of))
    if deferred:
        actions = schedules._defer_recv_ops(actions, rank_of.__getitem__)
    return "".join(",".join(map(str, actions[rank])) + "\n" for rank in sorted(actions))


def _run(job: Job, file: Path) -> str:
    """Run an order from a file, and return how it fails, or "" if training succeeds."""
    with Ranks(job) as ranks:
        try:
            result = ranks.run(Order(str(file), "compute_comms", iterations=1), _TIMEOUT_S)
        except RunError:
            return "hangs"
    error = result.gradient_error
    return f"gradients are off by {error:.2g}" if error > MAX_GRADIENT_ERROR else ""


if __name__ == "__main__":
    sys.exit(main())
