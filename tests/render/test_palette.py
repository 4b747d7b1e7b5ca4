"""Colors are distinguishable with all kinds of color vision, in grayscale and in terminals."""

from __future__ import annotations

from itertools import combinations, pairwise, product

import numpy as np
import numpy.typing as npt
import pytest
from rich.color import Color, ColorSystem

from bubbleviz.analyses.idle.report import BUSY
from bubbleviz.conventions.host_activities import default_activities
from bubbleviz.explain.causes.cause import Cause
from bubbleviz.model.phases import COMPUTE as COMPUTE_PHASES
from bubbleviz.model.phases import Phase
from bubbleviz.render import palette
from bubbleviz.render.text.stacked_bar import make_legible
from bubbleviz.render.trace.json_events import RESERVED

Matrix = npt.NDArray[np.float64]

#: Machado, Oliveira and Fernandes 2009, "A physiologically-based model for simulation of color
#: vision deficiency", severity 1.0, on linear RGB.
VISIONS = {
    "normal": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "protanopia": (
        (0.152286, 1.052583, -0.204868),
        (0.114503, 0.786281, 0.099216),
        (-0.003882, -0.048116, 1.051998),
    ),
    "deuteranopia": (
        (0.367322, 0.860646, -0.227968),
        (0.280085, 0.672501, 0.047413),
        (-0.011820, 0.042940, 0.968881),
    ),
    "tritanopia": (
        (1.255528, -0.076749, -0.178779),
        (-0.078411, 0.930809, 0.147602),
        (0.004733, 0.691367, 0.303900),
    ),
}
#: Matrix from linear sRGB to XYZ, and the white point D65.
_XYZ = ((0.4124, 0.3576, 0.1805), (0.2126, 0.7152, 0.0722), (0.0193, 0.1192, 0.9505))
_WHITE = (0.95047, 1.0, 1.08883)


def linear(color: str) -> Matrix:
    channel = np.array([int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    return np.where(channel <= 0.04045, channel / 12.92, ((channel + 0.055) / 1.055) ** 2.4)


def convert_to_lab(rgb: Matrix) -> Matrix:
    """Return the CIELAB coordinates of a color in linear RGB."""
    relative = np.array(_XYZ) @ np.clip(rgb, 0, 1) / np.array(_WHITE)
    root = np.where(relative > 0.008856, np.cbrt(relative), 7.787 * relative + 16 / 116)
    return np.array(
        [116 * root[1] - 16, 500 * (root[0] - root[1]), 200 * (root[1] - root[2])], np.float64
    )


def convert_for_vision(color: str, vision: str) -> Matrix:
    """Return the CIELAB coordinates of a color as seen with a kind of color vision."""
    return convert_to_lab(np.array(VISIONS[vision]) @ linear(color))


def test_kinds_of_device_work_differ_in_grayscale() -> None:
    luminances = sorted(palette.measure_luminance(palette.ACTIVITIES[kind]) for kind in BUSY)
    # The background of a lane is the next lighter color.
    luminances.append(palette.measure_luminance(palette.LIGHT.band))
    for dark, light in pairwise(luminances):
        assert (light + 0.05) / (dark + 0.05) >= 1.25


@pytest.mark.parametrize("vision", list(VISIONS))
def test_causes_look_neither_like_each_other_nor_like_work_with_any_vision(vision: str) -> None:
    work = [
        palette.make_paint(phase).main for phase in (Phase.F, Phase.B, Phase.W, Phase.BW, Phase.R)
    ]
    work += [palette.OPTIMIZER, palette.COMMUNICATION, palette.UNATTRIBUTED]

    # Adjacent colors at a distance of 10 are distinguishable at a glance.
    for pairs, min_distance in (
        (combinations(palette.CAUSES.values(), 2), 13),
        (product(palette.CAUSES.values(), work), 11),
    ):
        for color, other_color in pairs:
            distance = np.linalg.norm(
                convert_for_vision(color, vision) - convert_for_vision(other_color, vision)
            )
            assert distance > min_distance, (color, other_color)


def test_hatches_distinguish_causes_in_grey() -> None:
    assert list(palette.CAUSE_HATCHES) == list(palette.CAUSES) == [cause.label for cause in Cause]
    assert len(set(palette.CAUSE_HATCHES.values())) == len(palette.CAUSES)
    for name, color in palette.CAUSES.items():
        # Lines must be visible in grayscale on a color of any lightness.
        assert palette.measure_contrast(palette.CAUSE_HATCHES[name].choose_ink(color), color) > 2, (
            name
        )


def compute_luma(color: str) -> float:
    """Return the lightness of a color in grayscale, 0 to 255 (Rec. 709)."""
    channels = (int(color[position : position + 2], 16) for position in (1, 3, 5))
    return sum(weight * c for weight, c in zip((0.2126, 0.7152, 0.0722), channels, strict=True))


def test_adjacent_colors_differ_in_grey_and_with_few_colors() -> None:
    phases = [
        palette.make_paint(phase).main for phase in (Phase.F, Phase.B, Phase.W, Phase.BW, Phase.R)
    ]
    pairs = [
        *pairwise(palette.CAUSES.values()),
        *pairwise(phases),
        (palette.BACKWARD_BOTH, palette.CAUSES["dependency"]),
    ]

    assert min(abs(compute_luma(one) - compute_luma(other)) for one, other in pairs) > 20
    # Terminals draw work with colors only, and causes with shade characters.
    terminal_colors = [*palette.TERMINAL.values(), *map(make_legible, palette.CAUSES.values())]
    downgraded = [Color.parse(color).downgrade(ColorSystem.EIGHT_BIT) for color in terminal_colors]
    greys = [compute_luma(color.get_truecolor().hex) for color in downgraded]
    assert min(abs(one - other) for one, other in pairwise(greys)) > 9
    for system, count in (
        (ColorSystem.EIGHT_BIT, len(terminal_colors)),
        (ColorSystem.STANDARD, 7),
    ):
        numbers = [Color.parse(color).downgrade(system).number for color in terminal_colors[:count]]
        assert len({*numbers}) == count
        assert 15 not in numbers


def test_the_optimizer_does_not_look_like_idle_time_in_grey() -> None:
    """Its main color is almost as light as the background of idle time."""
    bands = palette.make_paint(Phase.OPTIMIZER).bands

    for ink in (palette.LIGHT, palette.DARK):
        lumas = [compute_luma(color) for height, color in bands if height >= 0.15]
        assert max(abs(luma - compute_luma(ink.gap)) for luma in lumas) > 100


def test_slower_is_also_darker_in_grey() -> None:
    shades = [palette.measure_luminance(palette.get_heat_color(place / 10)) for place in range(11)]

    assert shades == sorted(shades, reverse=True)
    assert palette.measure_contrast(palette.get_heat_color(0.5), palette.get_heat_color(1.0)) > 4


def test_chrome_has_a_separate_color_for_every_phase_and_cause() -> None:
    assert list(RESERVED["operation"]) == [phase.label for phase in COMPUTE_PHASES]
    assert list(RESERVED["bubble"]) == list(palette.CAUSES)
    names = [*RESERVED["operation"].values(), *RESERVED["bubble"].values()]
    assert len(set(names)) == len(names)


def test_the_palette_names_existing_activities() -> None:
    names = {activity.name for activity in default_activities().activities}

    assert set(BUSY) <= set(palette.ACTIVITIES)
    assert set(palette.ACTIVITIES) - set(BUSY) <= names
