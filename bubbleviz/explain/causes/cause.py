"""The causes of idle time, with their descriptions and the texts used in advice."""

from __future__ import annotations

from enum import IntEnum


class Cause(IntEnum):
    """Cause of a piece of idle time.

    Attributes:
        meaning: Description of the cause, as printed in tables.
        sentence: Clause that describes a single bubble with this cause, if nothing more specific is
            known about the bubble.
    """

    meaning: str
    sentence: str

    def __new__(cls, code: int, meaning: str = "", sentence: str = "") -> Cause:
        """Create the cause with the given code and texts."""
        cause = int.__new__(cls, code)
        cause._value_, cause.meaning, cause.sentence = code, meaning, sentence
        return cause

    PROFILER = 0, "profiler overhead", "profiler overhead"
    COLLECTIVE = (
        1,
        "a collective moved data, and nothing else ran",
        "a collective moves data, and nothing else runs",
    )
    WARMUP = 2, "before the rank's first operation of the iteration", "the pipeline fills"
    DRAIN = 3, "after the rank's last operation of the iteration", "the pipeline drains"
    DEPENDENCY = (
        4,
        "waiting for another rank to produce the input or enter the collective",
        "it waits for its input",
    )
    HOST = (
        5,
        "the input was ready, but the host had not launched the operation",
        "the input is ready, but the host has not launched the operation",
    )
    COMMUNICATION = 6, "the input was being transferred", "its input is being transferred"
    OTHER = (
        7,
        "probably launch latency: no other cause was recorded",
        "probably launch latency, because no other cause was recorded",
    )
    UNKNOWN = (
        8,
        "some work was not recorded, or the stages are unknown or contradict the data",
        "the cause is unknown because some work was not recorded, or because the stages are "
        "unknown or contradict the data",
    )
    STAGES = (
        9,
        "the previous stage takes longer for a chunk than this stage",
        "the previous stage takes longer for a chunk than this stage",
    )
    CHUNKS = (
        10,
        "the next chunk takes longer than the previous chunk",
        "the next chunk takes longer than the previous chunk",
    )
    TOKEN = (
        11,
        "the last stage had not produced the token that the next step needs",
        "the last stage has not produced the token that the next step needs",
    )
    REQUESTS = (
        12,
        "no requests: the pipeline was empty for longer than a chunk takes",
        "there are no requests, so the pipeline is empty",
    )

    QUEUED = (
        13,
        "the input's transfer was queued behind another transfer that was waiting for its data",
        "the transfer of its input is queued behind another transfer",
    )

    @property
    def label(self) -> str:
        """Name of the cause in reports: the member's name in lower case."""
        return self.name.lower()


#: Causes that idle time keeps even before a rank's first operation and after its last one. All
#: other idle time there becomes warm-up or drain, unless unrecorded work may have run.
ALWAYS = (Cause.PROFILER, Cause.COLLECTIVE)
