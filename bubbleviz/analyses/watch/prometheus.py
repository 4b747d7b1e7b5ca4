"""Prometheus: the newest iteration as metrics that a Prometheus server asks for.

Names follow its conventions (prometheus.io/docs/practices/naming): base units, and ``ratio`` for
fractions of 1. prometheus-client serves them; it is imported when used, for it is an extra.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from bubbleviz.analyses.watch.watcher import Sight
from bubbleviz.errors import OutputError, UsageError
from bubbleviz.model.private_names import anonymous

if TYPE_CHECKING:
    from prometheus_client.core import Metric

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
