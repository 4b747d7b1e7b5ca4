"""TensorBoard: ratios, causes and the length of each iteration as scalars.

TensorBoard's own writer writes them; it is imported when used, for it is an extra and takes half a
second to load.
"""

from __future__ import annotations

from bubbleviz.analyses.watch.measurement import WatchedIteration
from bubbleviz.analyses.watch.watcher import Sight
from bubbleviz.errors import OutputError


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
