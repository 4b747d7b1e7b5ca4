"""The message as protobuf's wire format (https://protobuf.dev/programming-guides/encoding/)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from bubbleviz.analyses.pgle.files import CostFormat


@cache
def _costs() -> Any:
    # Refusals load neither it nor numpy.
    from bubbleviz.sources.xla.xspace import message_types

    messages = {"Costs": "1 costs Cost*", "Cost": "1 name bytes, 2 cost_us double"}
    return message_types("pgle", **messages)["Costs"]


def write(costs: Mapping[str, float]) -> bytes:
    """Return the message; zeros and empty names are left out, as proto3 does."""
    whole = _costs()()
    for name, cost_us in costs.items():
        text = name.encode("utf-8", errors="replace")
        whole.costs.add(name=text or None, cost_us=cost_us or None)
    content: bytes = whole.SerializeToString()
    return content


def read(content: bytes) -> list[tuple[str, float]]:
    """Return the costs; other fields are ignored.

    Raises:
        ValueError: it is not such a message.
    """
    from bubbleviz.sources.xla.xspace import parsed

    costs = parsed(_costs(), content).costs
    return [(cost.name.decode("utf-8", errors="replace"), cost.cost_us) for cost in costs]


FORMAT = CostFormat(".pb", binary=True, write=write, read=read)
