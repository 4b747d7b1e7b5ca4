"""Run lowered plans that bubbleviz refuses, to see that they hang or train wrongly.

    python -m scripts.proving.refused

Each runs on gloo, which is the ``buffered`` transport, and on links that run transfers one after
the other, as NCCL's streams do. ``deferred`` is what PyTorch makes of a schedule with
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
from bubbleviz.schedules.known import schedule_named
from scripts.proving.jobs import Job
from scripts.proving.training import Order, Ranks, RunError

_RANKS, _MICROBATCHES = 2, 4
#: A run takes less than a second.
_TIMEOUT_S = 10.0
_EQUAL = 1e-9


def main() -> int:
    """Compare what is refused with what fails; fail where they differ."""
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        for name, deferred in (("1f1b", False), ("1f1b", True), ("zb-v", False), ("zb-v", True)):
            file = Path(folder) / f"{name}.csv"
            file.write_text(_lowered(name, deferred=deferred), encoding="utf-8")
            for transport in (BUFFERED, STREAMS):
                made = torch_csv.read(file.read_text(encoding="utf-8"), file.name)
                job = _job(made.plan.placement, streams=transport is STREAMS)
                try:
                    check_lowered(made, transport)
                    refused = ""
                except MismatchError as error:
                    refused = str(error)
                failure = _failure(job, file)
                wrong += bool(refused) != bool(failure)
                shown = f"{name}{' deferred' if deferred else ''} ({transport.name})"
                print(f"{shown}: {failure or 'trains'}; {refused or 'not refused'}", flush=True)
    return 1 if wrong else 0


def _lowered(name: str, *, deferred: bool) -> str:
    """Return a schedule as PyTorch lowers it, with receives as late as it puts them if deferred."""
    schedule = schedule_named(name)
    text = torch_csv.write(schedule.plan(_RANKS, _MICROBATCHES, schedule.chunks))
    parsed = [
        [schedules._Action.from_str(cell) for cell in row] for row in csv.reader(io.StringIO(text))
    ]
    rank_of = {action.stage_index: rank for rank, row in enumerate(parsed) for action in row}
    actions = {
        rank: schedules._add_reduce_grad(schedules._add_unshard_reshard(row), _MICROBATCHES)
        for rank, row in enumerate(parsed)
    }
    actions = schedules._add_send_recv(actions, rank_of.__getitem__, len(rank_of))
    if deferred:
        actions = schedules._defer_recv_ops(actions, rank_of.__getitem__)
    return "".join(",".join(map(str, actions[rank])) + "\n" for rank in sorted(actions))


def _job(placement: tuple[int, ...], *, streams: bool) -> Job:
    none = (0.0,) * len(placement)
    return Job("refused", placement, _MICROBATCHES, none, none, none, streams=streams)


def _failure(job: Job, file: Path) -> str:
    """Return how a file fails when it runs; empty where it trains."""
    with Ranks(job) as ranks:
        try:
            result = ranks.run(Order(str(file), "compute_comms", iterations=1), _TIMEOUT_S)
        except RunError:
            return "hangs"
    error = result.gradient_error
    return f"gradients are off by {error:.2g}" if error > _EQUAL else ""


if __name__ == "__main__":
    sys.exit(main())
