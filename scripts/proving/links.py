"""Links: messages that are held for a given time, without holding their sender."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from torch import distributed


class _Started:
    """A transfer that is under way; what PyTorch calls a work."""

    def __init__(self) -> None:
        self._done = threading.Event()
        self._failed: BaseException | None = None

    def wait(self) -> bool:
        """Wait until it is complete."""
        self._done.wait()
        if self._failed is not None:
            raise self._failed
        return True

    def run(self, transfer: Callable[[], None]) -> None:
        """Run it."""
        try:
            transfer()
        except BaseException as error:
            self._failed = error
        self._done.set()


class Links:
    """Starts transfers in place of ``torch.distributed.pipelining.schedules._batch_p2p``.

    Args:
        rank: of this process.
        held_s: seconds that a message is on its way, by sender and receiver.
        streams: whether transfers with one rank run one after the other, in the order in which
            they are started, each from when both ends are at its turn.
    """

    def __init__(self, rank: int, held_s: dict[tuple[int, int], float], *, streams: bool) -> None:
        self._rank, self._held_s, self._streams = rank, held_s, streams
        self._queues: dict[int, queue.SimpleQueue[Any]] = {}

    def start(self, p2p_ops: list[Any], desc: str | None = None) -> list[Any]:
        """Start the transfers; each result is to be waited for."""
        del desc
        if not self._streams:
            return [self._start(op) for op in p2p_ops]
        works = []
        for peer in dict.fromkeys(op.peer for op in p2p_ops):
            # What is started together with one rank meets it together.
            ops = [op for op in p2p_ops if op.peer == peer]
            held_s = max(self._delay_s(op) for op in ops)
            works.append(self._queued(peer, partial(_occupy, ops, held_s)))
        return works

    def _start(self, op: Any) -> Any:
        held_s = self._delay_s(op)
        if op.op is distributed.isend and held_s:
            due = time.monotonic() + held_s
            return self._queued(op.peer, partial(_hold, op, due))
        return _begin(op)

    def _delay_s(self, op: Any) -> float:
        ends = self._rank, op.peer
        return self._held_s.get(ends if op.op is distributed.isend else ends[::-1], 0.0)

    def _queued(self, peer: int, transfer: Callable[[], None]) -> _Started:
        """Have a thread run the transfer behind those to the same rank."""
        waiting = self._queues.get(peer)
        if waiting is None:
            waiting = self._queues[peer] = queue.SimpleQueue()
            threading.Thread(target=_work, args=(waiting,), daemon=True).start()
        started = _Started()
        waiting.put((started, transfer))
        return started


def _begin(op: Any) -> Any:
    return op.op(op.tensor, op.peer, group=op.group, tag=op.tag)


def _hold(op: Any, due: float) -> None:
    """Send once the message has been on its way; messages do not wait for each other."""
    time.sleep(max(0.0, due - time.monotonic()))
    _begin(op).wait()


def _occupy(ops: list[Any], held_s: float) -> None:
    """Meet the other end, then keep the stream for as long as the message takes."""
    for work in [_begin(op) for op in ops]:
        work.wait()
    time.sleep(held_s)


def _work(waiting: queue.SimpleQueue[Any]) -> None:
    while True:
        started, transfer = waiting.get()
        started.run(transfer)
