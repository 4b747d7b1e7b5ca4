"""Limitations of pairing: by what iterations of hosts were paired, or why they could not be."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from bubbleviz.align.iteration_links import Link
from bubbleviz.align.iteration_pairs import Pairing
from bubbleviz.align.machine_links import MachineLink
from bubbleviz.align.merge import JoinedRank
from bubbleviz.align.possible_shifts import EQUAL, Shift
from bubbleviz.model.limitations import Limitation, LimitationKind
from bubbleviz.model.texts import counted

#: What speaks by less, in nats, is no evidence worth a word.
_WORTH = 1.0
_TO_TELL = (
    "name iterations in the ranges, record all hosts from before the first iteration to behind the "
    "last one, or record more iterations"
)


def pairing_limitations(pairing: Pairing, ranks: Sequence[JoinedRank]) -> Iterator[Limitation]:
    """Yield a limitation on how iterations that have no names are paired across hosts."""
    links = sorted(pairing.links, key=lambda one: one.link.margin)
    undecided = [one for one in links if not one.link.decided]
    if not pairing.known:
        why = f"{_undecided(undecided[0], ranks)}; " if undecided else ""
        yield Limitation(
            "which iterations of the ranks belong together",
            "iterations could not be matched across ranks, so ratios over ranks are left out and "
            f"nothing bounds the clocks of several hosts: {why}{_TO_TELL}",
            max(len(undecided), 1),
            LimitationKind.ITERATIONS_UNPAIRED,
        )
    elif links:
        weakest = links[0]
        odds = f"10^{weakest.link.margin / np.log(10):.0f}"
        sure = f"is {odds} times less likely"
        if weakest.link.fit < _WORTH:
            sure = "would need clocks that are off by more than half an iteration"
        yield Limitation(
            "how iterations of the hosts are paired",
            f"they have no names, and are paired by {_evidence(weakest.link)}; of "
            f"{_hosts(weakest, ranks)}, which are the least sure, the next best pairing "
            f"{_described(weakest.link)}, and {sure}; "
            "name iterations in the ranges to be sure",
            len(links),
        )


def _undecided(one: MachineLink, ranks: Sequence[JoinedRank]) -> str:
    """Return which pairings of two ranks remain possible."""
    best, hosts = one.link.best, _hosts(one, ranks)
    if best is None:
        return f"those of {hosts} have no operation in common"
    return (
        f"of {hosts}, {_pairing(best)} fits best, but another one, which {_described(one.link)}, "
        "remains possible"
    )


def _hosts(one: MachineLink, ranks: Sequence[JoinedRank]) -> str:
    return f"{ranks[one.first].host} and {ranks[one.second].host}"


def _pairing(shift: Shift) -> str:
    """Return a pairing in words."""
    if shift.move == 0:
        return "pairing from the first iterations on"
    sides = ("first", "second") if shift.move > 0 else ("second", "first")
    count = counted(abs(shift.move), "iteration")
    return f"pairing the {sides[1]} one's first with what is {count} later on the {sides[0]}"


def _evidence(link: Link) -> str:
    """Return what speaks for the best shift."""
    best, rival = link.best, link.rival
    found = []
    if best is not None and rival is not None:
        found += [
            words
            for words, more in (
                ("data dependencies", rival.settings - best.settings),
                ("when the captures ran", rival.unrecorded - best.unrecorded),
                ("what iterations consist of", rival.shapes - best.shapes),
                (_counts(best), best.equal - rival.equal),
                ("UTC", rival.utc - best.utc),
            )
            if more >= _WORTH
        ]
    elif best is not None and best.equal:
        found.append(_counts(best))
    if link.fit >= _WORTH:
        found.append("how long their iterations take, event by event")
    return ", and by ".join(found) if found else "their order"


def _counts(best: Shift) -> str:
    return "equal counts, which UTC agrees with" if best.equal > EQUAL else "equal counts"


def _described(link: Link) -> str:
    """Return what the next best shift would mean."""
    best, rival = link.best, link.rival
    if rival is None or best is None:
        return "leaves no iteration in common"
    apart = (
        f"is off by {counted(abs(rival.move - best.move), 'iteration')} and moves clocks by "
        f"{(rival.offset_ns - best.offset_ns) / 1e6:+,.1f} ms"
    )
    return f"{apart}, against data dependencies" if rival.settings > best.settings else apart
