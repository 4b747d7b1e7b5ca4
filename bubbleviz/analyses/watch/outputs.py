"""Outputs: where what is seen of a running job goes beside the terminal.

Another one is a class with ``take`` and ``close``, and a line in :func:`opened`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Protocol

from bubbleviz.analyses.watch.measurement import WatchedIteration
from bubbleviz.analyses.watch.watcher import Sight
from bubbleviz.errors import OutputError
from bubbleviz.model.private_names import anonymous


class Output(Protocol):
    """What takes what is seen."""

    def take(self, sight: Sight) -> None:
        """Take what is new."""

    def close(self) -> None:
        """Write what is left."""


class _JsonLines:
    """A file with a line an iteration; lines are added to those that are there.

    Raises:
        OutputError: it cannot be written.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        with self._refusals():
            self._file = Path(path).open("a", encoding="utf-8")  # noqa: SIM115 - open as long as the run

    def take(self, sight: Sight) -> None:
        """Write the new iterations."""
        lines = [json.dumps(anonymous(_document(own))) + "\n" for own in sight.iterations]
        with self._refusals():
            self._file.write("".join(lines))
            self._file.flush()

    def close(self) -> None:
        """Close the file."""
        with self._refusals():
            self._file.close()

    @contextmanager
    def _refusals(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise OutputError(
                f"{self._path}: cannot be written ({error.strerror}); give another --jsonl"
            ) from error


def _document(iteration: WatchedIteration) -> dict[str, Any]:
    return {
        "iteration": iteration.number,
        "utc_ns": iteration.utc_ns,
        "length_ns": iteration.length_ns,
        "pause_ns": iteration.pause_ns if iteration.pause_ns >= 0 else None,
        "ranks": iteration.ranks,
        "world_size": iteration.world_size if iteration.world_size > 0 else None,
        "headline": iteration.headline,
        "ratios": {ratio.name: ratio.value for ratio in iteration.ratios},
        "causes": {own.name: own.share for own in iteration.parts},
        "slowest": [
            {"rank": p.rank, "host": p.host, "compute_ns": p.compute_ns, "excess": p.excess}
            for p in iteration.paces[:3]
        ],
    }


@contextmanager
def opened(
    jsonl: str | None, listen: str | None, tensorboard: str | None
) -> Iterator[list[Output]]:
    """Yield the outputs that are asked for, and close them.

    Args:
        jsonl: file to which a line an iteration is added.
        listen: ``HOST:PORT`` on which Prometheus may ask.
        tensorboard: directory for scalars.

    Raises:
        OutputError: one cannot be opened, or lacks its library.
        UsageError: ``listen`` is no address.
    """
    with ExitStack() as stack:
        outputs: list[Output] = []

        def add(output: Output) -> None:
            stack.callback(output.close)
            outputs.append(output)

        if jsonl is not None:
            add(_JsonLines(jsonl))
        if listen is not None:
            from bubbleviz.analyses.watch.prometheus import Metrics

            add(Metrics(listen))
        if tensorboard is not None:
            from bubbleviz.analyses.watch.tensorboard_scalars import Scalars

            add(Scalars(tensorboard))
        yield outputs
