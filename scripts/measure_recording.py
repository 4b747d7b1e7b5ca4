"""Measure how much CPU time and disk space bubbleviz.annotate costs a training process.

    python -m scripts.measure_recording

The script measures a range that is not recorded, an operation recorded on the host, and an
operation recorded with GPU timing events. The GPU is a stand-in whose events take no time, so only
the recorder's work is measured.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from bubbleviz import annotate
from bubbleviz.annotate import ranges

#: The operations of a 1F1B rank: for each microbatch, a forward, a backward and four transfers.
_MICROBATCHES, _PHASES = 16, ("RECV_F", "F", "SEND_F", "RECV_B", "BW", "SEND_B")
_OPERATIONS = _MICROBATCHES * len(_PHASES) + 1
_ITERATIONS, _ROUNDS = 300, 7


def main() -> None:
    """Print the costs per range and operation."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        unrecorded_us = min(_measure_us() for _ in range(_ROUNDS))
        host_us, host_bytes = _measure_recording(folder / "host")
        with _stand_in_gpu():
            gpu_us, gpu_bytes = _measure_recording(folder / "gpu")
    print(f"Python {sys.version.split()[0]}, CPU time, best of {_ROUNDS} rounds")
    print(f"range, not recorded: {unrecorded_us:.2f} us")
    print(f"recorded on the host: {host_us - unrecorded_us:.2f} us more, {host_bytes:.0f} bytes")
    print(f"with GPU events: {gpu_us - unrecorded_us:.2f} us more, {gpu_bytes:.0f} bytes")


def _measure_recording(folder: Path) -> tuple[float, float]:
    """Return the time in microseconds and the number of bytes that a recorded operation takes."""
    times_us = []
    for number in range(_ROUNDS):
        recording = annotate.record(str(folder / str(number)))
        times_us.append(_measure_us())
        recording.stop()
        ranges.append_recorder(None)
    size = sum(file.stat().st_size for file in (folder / "0").iterdir())
    return min(times_us), size / (_ITERATIONS * _OPERATIONS)


def _measure_us() -> float:
    """Run all iterations once, and return the CPU time per operation in microseconds."""
    start_s = time.process_time()
    for _ in range(_ITERATIONS):
        with annotate.iteration():
            for microbatch in range(_MICROBATCHES):
                for phase in _PHASES:
                    with annotate.phase(phase, microbatch=microbatch, stage=1):
                        pass
        with annotate.phase("Optimizer"):
            pass
    return (time.process_time() - start_s) / (_ITERATIONS * _OPERATIONS) * 1e6


@contextmanager
def _stand_in_gpu() -> Iterator[None]:
    """Replace PyTorch with a module whose GPU events complete immediately."""

    def event(**_: Any) -> SimpleNamespace:
        return SimpleNamespace(
            record=lambda _: None, query=lambda: True, elapsed_time=lambda _: 1.0
        )

    cuda = SimpleNamespace(
        is_initialized=lambda: True,
        is_current_stream_capturing=lambda: False,
        current_stream=SimpleNamespace,
        get_device_name=lambda: "none",
        Stream=SimpleNamespace,
        Event=event,
    )
    with patch.dict(sys.modules, {"torch": SimpleNamespace(cuda=cuda)}):
        yield


if __name__ == "__main__":
    main()
