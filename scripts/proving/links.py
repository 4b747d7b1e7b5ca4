"""Slow links: messages take a given time without blocking their sender."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

from torch import distributed


class _Work:
    """A transfer that runs in a thread, with the interface of PyTorch's ``Work``."""

    def __init__(self, future: Future[None]) -> None:
        self._future = future

    def wait(self) -> bool:
        """Wait until the transfer is complete."""
        self._future.result()
        return True


class Links:
    """Starts transfers in place of ``torch.distributed.pipelining.schedules._batch_p2p``.

    Args:
        rank: Rank of this process.
        delay_s: Time that a message takes in seconds, keyed by (sender, receiver).
        streams: Whether transfers with the same rank run one after the other, in the order in which
            they were started, like NCCL's transfers on a stream.
    """

    def __init__(self, rank: int, delay_s: dict[tuple[int, int], float], *, streams: bool) -> None:
        self._rank, self._delay_s, self._streams = rank, delay_s, streams
        #: One thread per other rank, which runs transfers in the order in which they were started.
        self._threads: dict[int, ThreadPoolExecutor] = {}

    def start(self, p2p_ops: list[Any], desc: str | None = None) -> list[Any]:
        """Start transfers and return one object to wait for per transfer or rank."""
        del desc
        if not self._streams:
            return [self._start_one(op) for op in p2p_ops]
        works = []
        for peer in dict.fromkeys(op.peer for op in p2p_ops):
            # Transfers with the same rank that start together also run together.
            ops = [op for op in p2p_ops if op.peer == peer]
            delay_s = max(map(self._delay_of, ops))
            works.append(self._submit(peer, partial(_transfer_in_turn, ops, delay_s)))
        return works

    def _start_one(self, op: Any) -> Any:
        delay_s = self._delay_of(op)
        if op.op is distributed.isend and delay_s:
            arrival_s = time.monotonic() + delay_s
            return self._submit(op.peer, partial(_send_later, op, arrival_s))
        return _start_now(op)

    def _delay_of(self, op: Any) -> float:
        sender_and_receiver = (
            (self._rank, op.peer) if op.op is distributed.isend else (op.peer, self._rank)
        )
        return self._delay_s.get(sender_and_receiver, 0.0)

    def _submit(self, peer: int, transfer: Callable[[], None]) -> _Work:
        if peer not in self._threads:
            self._threads[peer] = ThreadPoolExecutor(1)
        return _Work(self._threads[peer].submit(transfer))


def _start_now(op: Any) -> Any:
    return op.op(op.tensor, op.peer, group=op.group, tag=op.tag)


def _send_later(op: Any, arrival_s: float) -> None:
    """Send a message so that it arrives at a given time. Messages do not delay each other."""
    time.sleep(max(0.0, arrival_s - time.monotonic()))
    _start_now(op).wait()


def _transfer_in_turn(ops: list[Any], delay_s: float) -> None:
    """Wait for the other rank, then occupy the stream for as long as the transfer takes."""
    for work in [_start_now(op) for op in ops]:
        work.wait()
    time.sleep(delay_s)
