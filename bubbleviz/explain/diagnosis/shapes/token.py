"""Tokens: the first stage waits for them, since too few chunks are in flight."""

from __future__ import annotations

from bubbleviz.explain.diagnosis.fault import Fault, FaultKind

#: One more chunk in flight, or as many as it takes: more than requests may give.
ONE_MORE, ENOUGH = "one", "enough"


def fault(what: str, rank: int, depth: int) -> Fault:
    """Return the fault that a pipeline holds too few chunks.

    Args:
        what: :data:`ONE_MORE` or :data:`ENOUGH`: how many more it would hold without.
        rank: of the first stage that waits.
        depth: how many it holds.
    """
    return Fault(
        FaultKind.TOKEN,
        f"token-{what}",
        ranks=(rank,),
        stage=0,
        phases=(("", float(depth)),),
        what=what,
        bound=what == ENOUGH,
    )
