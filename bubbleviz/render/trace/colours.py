"""Colours of slices in Chrome's tracing, which takes the names of its own colours alone.

Each is the one closest to the colour of pictures. Perfetto takes none: it chooses a colour by the
name of a slice, numbers left out, so that a phase has one colour there, and a cause has.
"""

from __future__ import annotations

from collections.abc import Mapping

from bubbleviz.model.phases import COMMUNICATION

_OF_PHASES = {
    "F": "rail_response",
    "B": "background_memory_dump",
    "W": "good",
    "BW": "thread_state_running",
    "R": "thread_state_runnable",
    "FB": "white",
    "Optimizer": "cq_build_running",
}
_OF_CAUSES = {
    "profiler": "black",
    "collective": "thread_state_uninterruptible",
    "warmup": "thread_state_sleeping",
    "drain": "grey",
    "dependency": "cq_build_failed",
    "host": "terrible",
    "communication": "olive",
    "other": "thread_state_unknown",
    "unknown": "generic_work",
    "stages": "detailed_memory_dump",
    "chunks": "rail_animation",
    "token": "thread_state_iowait",
    "requests": "cq_build_abandoned",
}
#: By category of a slice, then by the first word of its name.
RESERVED: Mapping[str, Mapping[str, str]] = {
    "operation": _OF_PHASES,
    "communication": {phase.label: "rail_idle" for phase in COMMUNICATION},
    "bubble": _OF_CAUSES,
}


def reserved_colour(category: str, name: str) -> str:
    """Return the name of the colour of a slice; empty where the viewer may choose."""
    return RESERVED.get(category, {}).get(name.split(" ", 1)[0], "")
