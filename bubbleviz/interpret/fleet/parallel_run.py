"""Parallel run: the files of a run recorded by several processes of this machine."""

from __future__ import annotations

import struct
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from functools import partial
from multiprocessing import Pipe
from multiprocessing.connection import Connection

from bubbleviz.errors import ProfileError
from bubbleviz.interpret.fleet.outcome import Outcome, outcome_of
from bubbleviz.interpret.fleet.process_pool import BrokenPool, Job, worker_pool
from bubbleviz.interpret.record import ReadOptions
from bubbleviz.progress import Progress

#: How many processes may die over one file.
_DEATHS = 3
#: What a process reports of a file: its number, and how much of it has been read.
_SHARE = struct.Struct("<qd")
#: How often the progress of the processes is looked at, seconds.
_LOOK_S = 0.1


class ParallelRun:
    """Files recorded by several processes.

    Files that were in hand when a process died are done again, each by one process alone, so that
    it shows which of them it dies of.
    """

    def __init__(self, paths: Sequence[str], options: ReadOptions, progress: Progress) -> None:
        self._paths, self._options, self._progress = paths, options, progress
        self._deaths: Counter[int] = Counter()

    def outcomes(self, order: Sequence[int], jobs: int) -> Iterator[tuple[int, Outcome]]:
        """Yield (number, outcome) of each file."""
        waiting = deque(order)
        while waiting:
            suspects = deque(number for number in waiting if self._deaths[number])
            others = deque(number for number in waiting if not self._deaths[number])
            batch = others or deque([suspects.popleft()])
            waiting = suspects
            yield from self._in_pool(batch, min(jobs, len(batch)))
            # What the batch still holds was not done, as a process died.
            for number in batch:
                if self._deaths[number] < _DEATHS:
                    waiting.append(number)
                else:
                    yield number, self._lost(number)

    def _in_pool(self, batch: deque[int], jobs: int) -> Iterator[tuple[int, Outcome]]:
        """Yield what gets done until a process dies, and take it from the batch."""
        in_hand: dict[Future[None], tuple[int, Job[Outcome]]] = {}
        try:
            receiver, sender = Pipe(duplex=False)
            with receiver, sender, worker_pool(jobs, _report_to, sender) as pool:
                waiting = deque(batch)
                while batch:
                    while waiting and len(in_hand) < jobs:
                        job = pool.submit(_record_task, self._task(waiting[0]))
                        in_hand[job.future] = waiting.popleft(), job
                    finished = wait(in_hand, _LOOK_S, FIRST_COMPLETED).done
                    while receiver.poll():
                        number, share = _SHARE.unpack(receiver.recv_bytes())
                        self._progress.read(self._paths[number], share)
                    for future in finished:
                        number, job = in_hand[future]
                        outcome = job.result()
                        del in_hand[future]
                        batch.remove(number)
                        self._progress.read(self._paths[number], 1.0)
                        yield number, outcome
        except BrokenPool:
            self._deaths.update(number for number, _ in in_hand.values())
        except OSError:
            # No process can be started.
            yield from self._here(batch)

    def _here(self, batch: deque[int]) -> Iterator[tuple[int, Outcome]]:
        """Yield the outcomes of a batch that this process records."""
        while batch:
            number = batch.popleft()
            watch = partial(self._progress.read, self._paths[number])
            yield number, outcome_of(self._paths[number], self._options, watch)
            watch(1.0)

    def _task(self, number: int) -> tuple[int, str, ReadOptions]:
        return number, self._paths[number], self._options

    def _lost(self, number: int) -> ProfileError:
        return ProfileError(
            f"{self._paths[number]}: {_DEATHS} processes died while they read it; if there was too "
            "little memory, give a smaller --jobs"
        )


#: Where a worker reports how much of a file it has read.
_progress_senders: list[Connection] = []


def _report_to(sender: Connection) -> None:
    _progress_senders.append(sender)


def _record_task(task: tuple[int, str, ReadOptions]) -> Outcome:
    number, path, options = task

    def watch(share: float) -> None:
        # So short a message is written at once or not at all, whoever else writes.
        _progress_senders[-1].send_bytes(_SHARE.pack(number, share))

    return outcome_of(path, options, watch)
