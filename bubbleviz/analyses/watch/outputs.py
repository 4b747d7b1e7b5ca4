"""Outputs: where what is seen of a running job goes beside the terminal.

Another one is a class with ``take`` and ``close``, and a line in :func:`opened`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from bubbleviz.analyses.watch.measurement import Sight, WatchedIteration
from bubbleviz.errors import OutputError, UsageError
from bubbleviz.model.private_names import anonymous

if TYPE_CHECKING:
    from prometheus_client.core import Metric


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
            add(Metrics(listen))
        if tensorboard is not None:
            add(Scalars(tensorboard))
        yield outputs


# TensorBoard: ratios, causes and the length of each iteration as scalars.
#
# TensorBoard's own writer writes them; it is imported when used, for it is an extra and takes
# half a
# second to load.


class Scalars:
    """Writes scalars into a directory, an event file a process.

    Args:
        directory: where they are to be.

    Raises:
        OutputError: it cannot be written, or TensorBoard is not installed.
    """

    def __init__(self, directory: str) -> None:
        try:
            from tensorboard.summary.writer.event_file_writer import EventFileWriter
        except ImportError as error:
            raise OutputError(
                "--tensorboard needs tensorboard; install it with pip install "
                "'bubbleviz[tensorboard]'"
            ) from error
        try:
            self._writer = EventFileWriter(directory, filename_suffix=".bubbleviz")
        except OSError as error:
            raise OutputError(
                f"{directory}: cannot be written ({error.strerror}); give another --tensorboard"
            ) from error

    def take(self, sight: Sight) -> None:
        """Write the new iterations."""
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        for iteration in sight.iterations:
            values = [
                Summary.Value(tag=f"bubbleviz/{tag}", simple_value=value)
                for tag, value in _scalars(iteration)
            ]
            event = Event(
                wall_time=iteration.utc_ns / 1e9,
                step=iteration.number,
                summary=Summary(value=values),
            )
            self._writer.add_event(event)
        if sight.iterations:
            self._writer.flush()

    def close(self) -> None:
        """Write what is left."""
        self._writer.close()


def _scalars(iteration: WatchedIteration) -> list[tuple[str, float]]:
    known = [(ratio.name, ratio.value) for ratio in iteration.ratios if ratio.value is not None]
    return [
        *((f"bubble_ratio/{name}", value) for name, value in known),
        *((f"bubble_part_ratio/{own.name}", own.share) for own in iteration.parts),
        ("iteration_seconds", iteration.length_ns / 1e9),
        *([("pause_seconds", iteration.pause_ns / 1e9)] if iteration.pause_ns >= 0 else []),
        ("ranks", float(iteration.ranks)),
    ]


# Prometheus: the newest iteration as metrics that a Prometheus server asks for.
#
# Names follow its conventions (prometheus.io/docs/practices/naming): base units, and ``ratio`` for
# fractions of 1. prometheus-client serves them; it is imported when used, for it is an extra.


#: Slow ranks that have a metric of their own: few, however many ranks there are.
_RANKS = 8


class Metrics:
    """Serves metrics on an address until it is closed.

    Args:
        address: ``HOST:PORT``.

    Raises:
        UsageError: the address is none.
        OutputError: it cannot be listened on, or prometheus-client is not installed.
    """

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        if not host or not port.isdecimal() or not 0 <= int(port) < 1 << 16:
            raise UsageError(f"--listen {address}: not of the form HOST:PORT, as 127.0.0.1:9100")
        try:
            from prometheus_client import CollectorRegistry, start_http_server
        except ImportError as error:
            raise OutputError(
                "--listen needs prometheus-client; install it with pip install 'bubbleviz[watch]'"
            ) from error
        self._sight: Sight | None = None
        registry = CollectorRegistry()
        registry.register(self)
        try:
            self._server, self._thread = start_http_server(
                int(port), host.strip("[]"), registry=registry
            )
        except OSError as error:
            raise OutputError(
                f"--listen {address}: cannot be listened on ({error.strerror}); give another one"
            ) from error

    @property
    def port(self) -> int:
        """The port that answers."""
        return int(self._server.server_address[1])

    def take(self, sight: Sight) -> None:
        """Serve this from now on."""
        self._sight = sight

    def close(self) -> None:
        """Answer no more."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics; called by the registry in the server's thread."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        sight = self._sight
        total = 0 if sight is None else sight.total
        yield CounterMetricFamily("bubbleviz_iterations", "Iterations measured.", total)
        if sight is None or not sight.trend:
            return
        newest = sight.trend[-1]
        gauges = (
            ("iteration", "Number of the newest iteration.", newest.number),
            (
                "iteration_duration_seconds",
                "First start to last end of the newest iteration on any rank.",
                newest.length_ns / 1e9,
            ),
            (
                "iteration_timestamp_seconds",
                "When the newest iteration was written, in seconds since 1970.",
                newest.utc_ns / 1e9,
            ),
        )
        for name, text, value in gauges:
            yield GaugeMetricFamily(f"bubbleviz_{name}", text, value)
        if newest.pause_ns >= 0:
            yield GaugeMetricFamily(
                "bubbleviz_iteration_pause_seconds",
                "Last end of the iteration before to the first start of the newest one.",
                newest.pause_ns / 1e9,
            )
        ratios = GaugeMetricFamily(
            "bubbleviz_bubble_ratio",
            "Bubble ratio of the newest iteration; headline is the one to quote.",
            labels=["ratio", "headline"],
        )
        for ratio in newest.ratios:
            if ratio.value is not None:
                headline = "true" if ratio.name == newest.headline else "false"
                ratios.add_metric([ratio.name, headline], ratio.value)
        yield ratios
        causes = GaugeMetricFamily(
            "bubbleviz_bubble_part_ratio",
            "What the bubble is made of, as shares of the headline's window.",
            labels=["cause"],
        )
        for own in newest.parts:
            causes.add_metric([own.name], own.share)
        yield causes
        yield from _of_ranks(sight)


def _of_ranks(sight: Sight) -> Iterator[Metric]:
    from prometheus_client.core import GaugeMetricFamily

    newest = sight.trend[-1]
    ranks = GaugeMetricFamily("bubbleviz_ranks", "Ranks of the run, by state.", labels=["state"])
    ranks.add_metric(["measured"], newest.ranks)
    ranks.add_metric(["silent"], len(sight.silent))
    if newest.world_size > 0:
        ranks.add_metric(["expected"], newest.world_size)
    yield ranks
    slow = GaugeMetricFamily(
        "bubbleviz_rank_compute_excess_ratio",
        f"How much longer than others a slow rank computes; at most {_RANKS} ranks.",
        labels=["rank", "host"],
    )
    for own in newest.slow[:_RANKS]:
        slow.add_metric([str(own.pace.rank), anonymous(own.pace.host)], own.pace.excess)
    yield slow
