"""The colours of pictures: by phase and chunk, legible in print, in grey and on a dark screen.

The fills are those of the zero-bubble papers' figures. Some of them are equally dark, so every
phase that would be mistaken for another in grey carries a strip along its top or bottom edge::

    F ▇▇▇▇   B ▇▇▇▇   BW ▇▇▇▇   W ▇▇▇▇   R ▀▀▀▀   FB ▀▀▀▀
                         ▒▒▒▒     ░░░░                ▄▄▄▄

Idle time has another family of colours, and each cause its own hatch.

Chunks of a rank run from dark with white numbers to light with black ones; from three chunks on,
``B`` has a strip along its top edge as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from bubbleviz.model.phases import COMMUNICATION as COMMUNICATION_PHASES
from bubbleviz.model.phases import Phase

BLACK = "#000000"
WHITE = "#ffffff"

FORWARD = "#397af2"
BACKWARD_INPUT = "#3eb5bf"
BACKWARD_WEIGHT = "#298940"
BACKWARD_BOTH = "#74cdb5"
RECOMPUTE = "#c9d8fb"
PAIR = "#eef3f8"
PALE_WEIGHT = "#e0f0e7"
PALE_INPUT = "#dbf3f5"
OPTIMIZER = "#ffd966"
COMMUNICATION = "#e69138"
UNATTRIBUTED = "#a4a9b1"
OTHER_ITERATION = "#d3d7dc"
#: Of phases on a terminal, which has no strips: as far apart in grey, in 256 colours and in 16.
TERMINAL = {
    Phase.F: "#2f7af2",
    Phase.B: "#2faac2",
    Phase.W: "#1f7f2f",
    Phase.BW: "#64d79b",
    Phase.R: "#b9c7e7",
    Phase.FB: "#134cb7",
    Phase.OPTIMIZER: OPTIMIZER,
}

#: What a device did, and what its host did while it was idle: devices at work are pale, what can
#: be fixed is not. Other activities take the colours behind these, in turn.
ACTIVITIES = {
    "compute": "#c6d6f5",
    "communication": "#f3c99b",
    "copies": "#bfe3df",
    "data loading": "#d62f2f",
    "tracing and compiling": "#7b4fb3",
    "waiting": "#e6b800",
    "transfer": "#0f8b8d",
    "allocation": "#8c564b",
    "launch": "#ee7f2d",
    "collective calls": "#b05c00",
    "optimizer": "#b58900",
    "API calls": "#6b7a1f",
    "operators": "#2f6fb5",
    "Python": "#4b8b3b",
    "profiler": "#3d4450",
    "blocked by communication": "#880e4f",
    "blocked by copies": "#00695c",
    "blocked by compute": "#3949ab",
    "stream or rank dependency": "#c2185b",
    "other device": "#e377c2",
    "kernel-to-kernel gaps": "#8d99a6",
    "no host trace": "#5a626c",
    "launch not recorded": "#a4a9b1",
    "page migration": "#7b3f61",
}
MORE_ACTIVITIES = ("#9a3324", "#4d7c2a", "#6a3d9a", "#a6611a", "#1b5e8c", "#b0527c")
#: The line along the operations that bound an iteration.
CRITICAL = "#c2185b"
#: Ends and middle of the scale of times: faster, usual, slower; darker, in grey too, is slower.
_HEAT = ("#e4f1fb", "#c9c3ba", "#7f1d1d")

# Share of black in the first of several chunks, and share of white in the last.
_TOWARDS_BLACK = {FORWARD: 0.38, BACKWARD_INPUT: 0.36, BACKWARD_WEIGHT: 0.42, BACKWARD_BOTH: 0.42}
_TOWARDS_WHITE = {FORWARD: 0.45, BACKWARD_INPUT: 0.58, BACKWARD_WEIGHT: 0.5, BACKWARD_BOTH: 0.5}


@dataclass(frozen=True)
class Hatch:
    """The hatch of a cause of idle time: lines or dots on a square tile, in page units.

    Attributes:
        spacing: Side of the tile.
        angle: Rotation of the tile in degrees.
        line: Width of the line, or radius of the dot; 0 for neither.
        crossed: Whether a second line crosses the first.
        dots: Whether there is a dot instead of a line.
    """

    spacing: float
    angle: int = 0
    line: float = 0.8
    crossed: bool = False
    dots: bool = False

    def ink(self, colour: str) -> str:
        """Return the colour of lines on ``colour``: darker than a light colour, else lighter."""
        return mix(colour, BLACK, 0.5) if luminance(colour) > 0.2 else mix(colour, WHITE, 0.65)


#: Why a rank is idle: colour, hatch, and the closest of the colours that Chrome has names for. Work
#: is blue, green and yellow; idle time is none of these: greys, browns and reds, and hatched where
#: a picture can. Told apart from each other and from work with any colour vision, and without
#: colours: neighbours in this order, and BW beside dependency, differ in luma, too. A test holds
#: them to it.
_IDLE = {
    "profiler": ("#1f2d2c", Hatch(4, 45, crossed=True), "black"),
    "collective": ("#746687", Hatch(4, 90), "thread_state_uninterruptible"),
    "warmup": ("#f0f8f6", Hatch(9, 45, 0.6), "thread_state_sleeping"),
    "drain": ("#cbaeed", Hatch(9, 135, 0.6), "grey"),
    "dependency": ("#d28784", Hatch(3, 135, 1.0), "cq_build_failed"),
    "host": ("#b52f1c", Hatch(5, crossed=True), "terrible"),
    "communication": ("#7e5658", Hatch(4, 45), "olive"),
    "other": ("#ffbf87", Hatch(4, 45, 0.8, dots=True), "thread_state_unknown"),
    "unknown": ("#977780", Hatch(4), "generic_work"),
    "stages": ("#780078", Hatch(6, 90, 1.6), "detailed_memory_dump"),
    "chunks": ("#c378d2", Hatch(6, 0, 1.6), "rail_animation"),
    "token": ("#f04b5a", Hatch(6, 0, 1.2, dots=True), "thread_state_iowait"),
    "requests": ("#4b1e00", Hatch(8, 45, 1.2, crossed=True), "cq_build_abandoned"),
    "queued": ("#7818f0", Hatch(5, 45, 1.4), "light_memory_dump"),
}
CAUSES = {name: colour for name, (colour, *_) in _IDLE.items()}
CAUSE_HATCHES = {name: hatch for name, (_, hatch, _) in _IDLE.items()}
CHROME_CAUSES = {name: chrome for name, (*_, chrome) in _IDLE.items()}
#: What a bubble is made of: causes, and what ran that does not count as work.
BUBBLE_PARTS = CAUSES | {
    "unattributed": UNATTRIBUTED,
    "next iterations": FORWARD,
    "optimizer": OPTIMIZER,
}


@dataclass(frozen=True)
class Ink:
    """The colours that change with the screen; not those of operations."""

    paper: str
    text: str
    quiet: str
    frame: str
    band: str
    hatch: str
    gap: str
    grid: str


#: On white paper.
LIGHT = Ink(
    paper="#ffffff",
    text="#16191d",
    quiet="#5a626c",
    frame="#16191d",
    band="#f6f7f9",
    hatch="#c3c9d1",
    gap="#eceef1",
    grid="#dfe3e8",
)
#: On a dark screen.
DARK = Ink(
    paper="#14171c",
    text="#e8eaed",
    quiet="#a3abb5",
    frame="#05070a",
    band="#1d2127",
    hatch="#454d58",
    gap="#262b32",
    grid="#2b3038",
)


@dataclass(frozen=True)
class Paint:
    """The fill of the box of an operation.

    Attributes:
        name: Unique name of letters, digits and hyphens.
        bands: (Share of the height, colour), from top to bottom; the shares add up to 1.
        number: Colour of the number in the box.
    """

    name: str
    bands: tuple[tuple[float, str], ...]
    number: str

    @property
    def main(self) -> str:
        """The colour of the largest band, which is behind the number."""
        return max(self.bands, key=lambda band: band[0])[1]


def _channels(colour: str) -> tuple[int, int, int]:
    red, green, blue = bytes.fromhex(colour.removeprefix("#"))
    return red, green, blue


def mix(colour: str, other: str, share: float) -> str:
    """Return ``colour`` with ``share`` (0 to 1) of ``other`` in it."""
    pairs = zip(_channels(colour), _channels(other), strict=True)
    mixed = (round(a + (b - a) * share) for a, b in pairs)
    return "#" + "".join(f"{channel:02x}" for channel in mixed)


def luminance(colour: str) -> float:
    """Return the relative luminance (WCAG 2), 0 for black to 1 for white."""
    red, green, blue = (_linear(channel / 255) for channel in _channels(colour))
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _linear(channel: float) -> float:
    """Return the intensity of a channel without the gamma correction of sRGB."""
    return channel / 12.92 if channel <= 0.04045 else ((channel + 0.055) / 1.055) ** 2.4


def contrast(colour: str, other: str) -> float:
    """Return the contrast ratio (WCAG 2), 1 to 21."""
    low, high = sorted((luminance(colour), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def number_colour(fill: str) -> str:
    """Return black or white, whichever is read more easily on ``fill`` (at least 4.5 : 1)."""
    return BLACK if contrast(fill, BLACK) >= contrast(fill, WHITE) else WHITE


def shaded(colour: str, shade: int, shades: int) -> str:
    """Return ``colour`` as shade ``shade`` of ``shades``, from dark to light.

    The only shade of one, and shade -1 (no chunk), is the colour itself.
    """
    if shades <= 1 or shade < 0:
        return colour
    dark = mix(colour, BLACK, _TOWARDS_BLACK.get(colour, 0.0))
    light = mix(colour, WHITE, _TOWARDS_WHITE.get(colour, 0.0))
    place = shade / (shades - 1)
    if place == 0.5:
        return colour
    return mix(dark, colour, 2 * place) if place < 0.5 else mix(colour, light, 2 * place - 1)


def heat(place: float) -> str:
    """Return the colour of a place on the scale of times, from 0 (fast) to 1 (slow)."""
    fast, usual, slow = _HEAT
    return mix(fast, usual, 2 * place) if place < 0.5 else mix(usual, slow, 2 * place - 1)


@cache
def paint(phase: Phase, shade: int = -1, second_shade: int = -1, shades: int = 1) -> Paint:
    """Return the paint of a phase; communication has one.

    Args:
        phase: Any phase.
        shade: Index of the operation's chunk among the chunks, or -1 if it has none.
        second_shade: Index of the second chunk, for ``FB``.
        shades: Number of chunks with different shades.
    """
    if phase in COMMUNICATION_PHASES:
        return plain_paint("communication", COMMUNICATION)

    def tone(colour: str, of: int = shade) -> str:
        return shaded(colour, of, shades)

    pale = ((0.15, PALE_INPUT),) if shades > 2 else ()
    bands: dict[Phase, tuple[tuple[float, str], ...]] = {
        Phase.F: ((1.0, tone(FORWARD)),),
        Phase.B: (*pale, (0.85 if pale else 1.0, tone(BACKWARD_INPUT))),
        Phase.W: ((0.8, tone(BACKWARD_WEIGHT)), (0.2, PALE_WEIGHT)),
        Phase.BW: ((0.8, tone(BACKWARD_BOTH)), (0.2, tone(BACKWARD_WEIGHT))),
        Phase.R: ((0.2, tone(FORWARD)), (0.8, RECOMPUTE)),
        Phase.FB: (
            *((0.25, tone(FORWARD)), (0.5, PAIR)),
            (0.25, tone(BACKWARD_INPUT, second_shade)),
        ),
        Phase.OPTIMIZER: ((1.0, OPTIMIZER),),
    }
    parts = [phase.label, *(str(s) for s in (shade, second_shade) if s >= 0 and shades > 1)]
    name = "-".join([*parts, f"of{shades}"] if len(parts) > 1 else parts)
    main = max(bands[phase], key=lambda band: band[0])[1]
    return Paint(name, bands[phase], number_colour(main))


def plain_paint(name: str, colour: str) -> Paint:
    """Return the paint of one colour."""
    return Paint(name, ((1.0, colour),), number_colour(colour))


def chunk_paint(phase: Phase, chunk: int, second: int, chunks: Sequence[int]) -> Paint:
    """Return the paint of an operation on one or two chunks; chunk -1 means no chunk.

    Args:
        phase: Any phase.
        chunk: Chunk of the operation.
        second: Second chunk of the operation, for ``FB``.
        chunks: All chunks that are drawn, ascending.
    """

    def shade_of(number: int) -> int:
        return chunks.index(number) if number in chunks and len(chunks) > 1 else -1

    second_shade = shade_of(second) if phase is Phase.FB else -1
    return paint(phase, shade_of(chunk), second_shade, len(chunks))
