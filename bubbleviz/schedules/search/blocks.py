"""Building blocks of V schedules: the time slots of one microbatch, repeated every six slots.

Reference: Qi et al., Pipeline Parallelism with Controllable Memory, arXiv 2405.15362, sections 3
and 4.

A block has six operations per device: F, B and W of two chunks. A block that never collides with
itself when repeated every six slots gives a schedule. The activations of a chunk live from its F to
its W. A device stores the activations of n chunks at once, where n is the sum of the lifetimes on
the device divided by six.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import cache

#: Number of slots from one microbatch to the next: one slot each for F, B and W of two chunks.
PERIOD = 6


#: Slots of F, B and W of microbatch 0: three tuples with one slot per virtual stage of a V::
#:
#:     device 0   F . . . . . . f b w . B W        with one slot from each to the next device
#:     device 1   . F . . . . f . . b B w . W
#:     device 2   . . F . . f . . . . b ...
#:     device 3   . . . F f ...
Block = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]


@cache
def list_blocks(devices: int, max_chunks: int) -> list[Block]:
    """List the uniform blocks that fit in memory, least memory first.

    A block is uniform if the number of slots from one device to the next is constant in each of
    four directions: F down, F up, B down and B up. Blocks that need the same amount of memory are
    sorted by their F and B slots.

    Args:
        devices: Number of devices.
        max_chunks: Maximum number of chunks whose activations a device can store at once.
    """
    fitting: list[tuple[int, Block]] = []
    for steps in _generate_steps():
        for turns in itertools.product(range(1, PERIOD + 1), repeat=3):
            forward, backward = _place_passes(devices, steps, turns)
            weights = _place_weights(devices, forward, backward)
            if weights is None:
                continue
            lifetime, weight = weights
            if lifetime // PERIOD <= max_chunks:
                fitting.append((lifetime, (forward, backward, weight)))
    # The sort is stable and ignores W.
    fitting.sort(key=lambda item: (item[0], item[1][:2]))
    return [block for _, block in fitting]


def _generate_steps() -> Iterator[tuple[int, int, int, int]]:
    """Yield the numbers of slots from one device to the next, for F down, F up, B down and B up.

    F down plus B up always equals F up plus B down, which means that every device stores
    activations for the same total time.
    """
    for total in (2, 3, 4, 6):
        splits = [(first, total - first) for first in range(1, total)]
        for (f_down, b_up), (f_up, b_down) in itertools.product(splits, splits):
            yield f_down, f_up, b_down, b_up


def _place_passes(
    devices: int, steps: tuple[int, int, int, int], turns: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the F slots and the B slots, each by virtual stage.

    Args:
        devices: Number of devices.
        steps: Numbers of slots from one device to the next, for F down, F up, B down and B up.
        turns: Numbers of slots at the three turns of a V: from the first F to the second F on the
            last device, from F to B on the first device, and from the first B to the second B on
            the last device.
    """
    f_down, f_up, b_down, b_up = steps
    forward = [d * f_down for d in range(devices)]
    forward += [forward[-1] + turns[0] + n * f_up for n in range(devices)]
    backward = [forward[-1] + turns[1] + n * b_down for n in range(devices)]
    backward += [backward[-1] + turns[2] + n * b_up for n in range(devices)]
    return tuple(forward), tuple(reversed(backward))


def _place_weights(
    devices: int, forward: tuple[int, ...], backward: tuple[int, ...]
) -> tuple[int, tuple[int, ...]] | None:
    """Place the W of each virtual stage in a slot that F and B leave free.

    A device has two free slots per period, which can be assigned to the Ws of its two chunks in two
    ways. The assignment with the smaller sum of slots is used. On a tie, it is the assignment with
    the smaller slot for the upper virtual stage.

    Args:
        devices: Number of devices.
        forward: F slots by virtual stage.
        backward: B slots by virtual stage.

    Returns:
        lifetime: Number of slots from F to W, summed over the two chunks of a device. The value is
            the maximum over all devices.
        weight: W slots by virtual stage.

        The result is None if F and B collide.
    """
    weight = [0] * (2 * devices)
    lifetime = 0
    for down in range(devices):
        up = 2 * devices - 1 - down
        used = {slots[s] % PERIOD for slots in (forward, backward) for s in (down, up)}
        if len(used) < 4:
            return None
        low, high = sorted(set(range(PERIOD)) - used)
        choices = (
            (_find_next_slot(backward[down], a), _find_next_slot(backward[up], b))
            for a, b in ((low, high), (high, low))
        )
        weight[down], weight[up] = min(choices, key=lambda pair: (sum(pair), pair[1]))
        lifetime = max(lifetime, weight[down] - forward[down] + weight[up] - forward[up])
    return lifetime, tuple(weight)


def _find_next_slot(slot: int, phase: int) -> int:
    """Return the first slot after ``slot`` that is at offset ``phase`` within its period."""
    return slot + 1 + (phase - slot - 1) % PERIOD
