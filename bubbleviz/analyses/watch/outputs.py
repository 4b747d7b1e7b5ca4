"""Writes the measurements of a running job as JSON lines, and to Prometheus and TensorBoard.

To add an output, write a context manager and open it in :func:`open_outputs`. The context manager
must yield a function that takes an :class:`~.measurement.Observation`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from bubbleviz.analyses.watch.measurement import Observation
from bubbleviz.analyses.watch.watched_iterations import WatchedIteration
from bubbleviz.errors import OutputError, UsageError, describe_installation
from bubbleviz.render.trackers import open_scalar_writer

if TYPE_CHECKING:
    from prometheus_client.core import Metric

Take: TypeAlias = Callable[[Observation], None]
#: Maximum number of slow ranks for which metrics are written.
_RANKS = 8
#: Fields of :class:`.RankPace` that JSON lines contain for each of the three slowest ranks.
_PACE = ("rank", "host", "stage", "compute_ns", "excess")
#: Fields of :class:`.LatePace` that JSON lines contain for each of the three latest ranks.
_LATE = ("rank", "host", "late_ns", "barriers", "part", "part_ns")
#: A metric: its name, description, label names, and (label values, value) pairs.
_Gauge: TypeAlias = "tuple[str, str, tuple[str, ...], Sequence[tuple[tuple[str, ...], float]]]"


@contextmanager
def open_outputs(
    run: str, jsonl: str | None, listen: str | None, tensorboard: str | None
) -> Iterator[list[Take]]:
    """Open the requested outputs, and yield one function per output that writes an observation.

    Args:
        run: Name that identifies the run in metrics.
        jsonl: File to which one line per iteration is appended, or None.
        listen: Address ``HOST:PORT`` from which Prometheus can fetch the metrics, or None.
        tensorboard: Directory to which scalars are written for TensorBoard, or None.

    Raises:
        OutputError: An output cannot be opened, or its library is not installed.
        UsageError: ``listen`` is not a valid address.
    """
    with ExitStack() as stack:
        outputs: list[Take] = []
        if jsonl is not None:
            outputs.append(stack.enter_context(_open_json_lines(jsonl)))
        if listen is not None:
            metrics = Metrics(listen, run)
            stack.callback(metrics.close)
            outputs.append(metrics.take)
        if tensorboard is not None:
            outputs.append(stack.enter_context(_open_scalars(tensorboard)))
        yield outputs


@contextmanager
def _open_json_lines(path: str) -> Iterator[Take]:
    """Yield a function that appends one JSON line per iteration to a file.

    Raises:
        OutputError: The file cannot be written.
    """

    @contextmanager
    def report_write_errors() -> Iterator[None]:
        """Convert an :class:`OSError` to an :class:`OutputError` that names the file."""
        try:
            yield
        except OSError as error:
            raise OutputError(
                f"{path}: cannot be written ({error.strerror}); pass another path to --jsonl"
            ) from error

    with report_write_errors():
        is_new = not Path(path).exists()
        file = Path(path).open("a", encoding="utf-8")  # noqa: SIM115 - open as long as the run

    def take(observation: Observation) -> None:
        """Append one JSON line per new iteration, and flush the file."""
        documents = (
            {
                "iteration": iteration.number,
                "utc_ns": iteration.utc_ns,
                "length_ns": iteration.length_ns,
                "pause_ns": iteration.pause_ns if iteration.pause_ns >= 0 else None,
                "ranks": iteration.ranks,
                "world_size": iteration.world_size if iteration.world_size > 0 else None,
                "headline": iteration.headline,
                "ratios": dict(iteration.ratios),
                "causes": {part.name: part.share for part in iteration.parts},
                "slowest": [
                    {name: getattr(p, name) for name in _PACE} for p in iteration.paces[:3]
                ],
                "late": [{name: getattr(p, name) for name in _LATE} for p in iteration.late[:3]],
            }
            for iteration in observation.iterations
        )
        lines = [json.dumps(document) + "\n" for document in documents]
        with report_write_errors():
            file.write("".join(lines))
            file.flush()

    try:
        yield take
    except BaseException:
        # Remove the output file if it is empty and the run ends with an error.
        if is_new and file.tell() == 0:
            Path(path).unlink(missing_ok=True)
        raise
    finally:
        with report_write_errors():
            file.close()


@contextmanager
def _open_scalars(directory: str) -> Iterator[Take]:
    """Yield a function that writes the metrics of each iteration for TensorBoard.

    Raises:
        OutputError: The scalars cannot be written, or TensorBoard is not installed.
    """
    with open_scalar_writer(directory) as write:

        def take(observation: Observation) -> None:
            """Write the metrics of the new iterations."""
            for iteration in observation.iterations:
                values = {
                    "/".join((f"bubbleviz/{name}", *labels[:1])): value
                    for name, _, _, measured in _list_gauges(iteration, len(observation.silent))
                    for labels, value in measured
                }
                write(values, iteration.number, iteration.utc_ns / 1e9)

        yield take


class Metrics:
    """Serves the metrics of the latest iteration to Prometheus until closed.

    Names follow the conventions of Prometheus (prometheus.io/docs/practices/naming): base units,
    and ``ratio`` for fractions of 1. prometheus-client is an optional dependency, so it is imported
    only when needed.

    Args:
        address: Address to listen on, ``HOST:PORT``.
        run: Value of the label ``run`` in every metric, used to distinguish runs on a dashboard.

    Raises:
        UsageError: The address is invalid.
        OutputError: The server cannot listen on the address, or prometheus-client is not installed.
    """

    def __init__(self, address: str, run: str) -> None:
        host, _, port = address.rpartition(":")
        if not host or not port.isdecimal() or not 0 <= int(port) < 1 << 16:
            raise UsageError(
                f"--listen {address}: must have the form HOST:PORT, such as 127.0.0.1:9100"
            )
        try:
            from prometheus_client import CollectorRegistry, start_http_server
        except ImportError as error:
            raise OutputError(
                f"--listen needs prometheus-client; {describe_installation('watch')}"
            ) from error
        self._sight: Observation | None = None
        self._run = run
        registry = CollectorRegistry()
        registry.register(self)
        try:
            self._server, self._thread = start_http_server(
                int(port), host.strip("[]"), registry=registry
            )
        except OSError as error:
            raise OutputError(
                f"--listen {address}: cannot listen on this address ({error.strerror}); pass "
                "another address"
            ) from error

    @property
    def port(self) -> int:
        """Port on which the server listens."""
        return int(self._server.server_address[1])

    def take(self, observation: Observation) -> None:
        """Serve the metrics of this observation until the next one replaces it."""
        self._sight = observation

    def close(self) -> None:
        """Stop the server."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics. The registry calls this method in the server's thread."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        sight, run = self._sight, self._run
        iterations = CounterMetricFamily(
            "bubbleviz_iterations", "Iterations measured.", labels=("run",)
        )
        iterations.add_metric((run,), sight.total if sight else 0)
        yield iterations
        for name, text, labels, values in _list_newest_gauges(sight):
            metric = GaugeMetricFamily(f"bubbleviz_{name}", text, labels=("run", *labels))
            for of_labels, value in values:
                metric.add_metric((run, *of_labels), value)
            yield metric


def _list_newest_gauges(observation: Observation | None) -> Iterator[_Gauge]:
    """Yield the metrics of the latest iteration, if any was observed."""
    if observation is not None and observation.trend:
        yield from _list_gauges(observation.trend[-1], len(observation.silent))


def _list_gauges(iteration: WatchedIteration, n_silent: int) -> Iterator[_Gauge]:
    """Yield the metrics of an iteration. Unknown values are left out.

    Args:
        iteration: The iteration.
        n_silent: Number of silent ranks.
    """
    for name, text, value in (
        ("", "Number of the latest iteration.", iteration.number),
        (
            "_duration_seconds",
            "Duration of the latest iteration, from the first start to the last end on any rank.",
            iteration.length_ns / 1e9,
        ),
        (
            "_timestamp_seconds",
            "Unix time at which the latest iteration was written.",
            iteration.utc_ns / 1e9,
        ),
        (
            "_pause_seconds",
            "Time from the end of the previous iteration to the start of the latest one.",
            iteration.pause_ns / 1e9,
        ),
    ):
        if value >= 0:
            yield f"iteration{name}", text, (), [((), value)]
    ratios = [
        ((name, str(name == iteration.headline).lower()), value)
        for name, value in iteration.ratios.items()
        if value is not None
    ]
    text = "Bubble ratios of the latest iteration; the primary ratio has the label headline=true."
    yield "bubble_ratio", text, ("ratio", "headline"), ratios
    text = "Parts of the bubble, as fractions of the primary ratio's window."
    parts = [((part.name,), part.share) for part in iteration.parts]
    yield "bubble_part_ratio", text, ("cause",), parts
    ranks = {"measured": iteration.ranks, "silent": n_silent, "expected": iteration.world_size}
    states = [((state,), float(n)) for state, n in ranks.items() if state != "expected" or n > 0]
    yield "ranks", "Number of ranks in the run, by state.", ("state",), states
    text = (
        f"Excess compute time of a slow rank over its peers, as a fraction; up to {_RANKS} ranks."
    )
    slow = [
        (
            (
                *(str(pace.rank), pace.host),
                "" if pace.stage is None else str(pace.stage),
            ),
            pace.excess,
        )
        for pace in iteration.slow[:_RANKS]
    ]
    yield "rank_compute_excess_ratio", text, ("rank", "host", "stage"), slow
    text = f"Mean time for which other ranks waited at barriers for a rank; up to {_RANKS} ranks."
    late = [
        ((str(pace.rank), pace.host, pace.part), pace.late_ns / 1e9)
        for pace in iteration.late[:_RANKS]
    ]
    yield "rank_late_seconds", text, ("rank", "host", "part"), late
