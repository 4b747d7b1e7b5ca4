"""The content of the rows: merged marks, boxes, numbers, hollow marks and communication lanes."""

from __future__ import annotations

import drawsvg

from bubbleviz.model.columns import NONE
from bubbleviz.model.phases import Phase
from bubbleviz.render.picture.page import Page, px
from bubbleviz.render.picture.rows.boxes import Boxes
from bubbleviz.render.picture.rows.lane import CommunicationLane
from bubbleviz.render.picture.rows.paints import OperationPaints
from bubbleviz.render.picture.rows.spanless import SpanlessOperations
from bubbleviz.render.picture.rows.tooltips import Tooltips, counted_work
from bubbleviz.render.selection import Selection
from bubbleviz.report.report import Report


class RowPainter:
    """Draws the operations of one selection of a report, on rows of one height.

    Args:
        page: the page.
        report: any report.
        selection: what of it is drawn.
        width: of the plot, px.
        height: of a row, px.
        lane: height of the communication lane below it, px; 0 for none.

    Attributes:
        paints: of the operations.
        boxes: the compute operations.
        spanless: those without device time.
        lane: the communication operations; None where they are not drawn.
    """

    def __init__(
        self,
        page: Page,
        report: Report,
        selection: Selection,
        width: float,
        height: float,
        lane: float,
    ) -> None:
        self._page = page
        self._height = height
        self.paints = OperationPaints(report.operations, selection)
        chunked = self.paints.shades > 1
        tooltips = Tooltips(report, selection.start_ns, chunked=chunked)
        self.boxes = Boxes(page, report, selection, self.paints, tooltips, width, height)
        self.spanless = SpanlessOperations(report.operations, selection, tooltips)
        self.lane = CommunicationLane(report, selection, tooltips, width, lane) if lane else None

    @property
    def merged_words(self) -> str:
        """The number of merged operations, communication included; empty for none."""
        lane = 0 if self.lane is None else self.lane.merged.operations
        return counted_work(self.boxes.merged.operations + lane, self.boxes.merged.unattributed)

    @property
    def merged_colours(self) -> list[str]:
        """Two colours that stand for the merged operations."""
        kinds = list(dict.fromkeys(kind for kind, _ in self.boxes.merged.kinds))
        kinds = kinds or [Phase.COLLECTIVE]
        return [self.paints.of(kind, NONE).main for kind in (kinds[0], kinds[1 % len(kinds)])]

    @property
    def narrower(self) -> float:
        """Merged operations are narrower than this, px."""
        lane = 0.0 if self.lane is None else self.lane.merged.narrower
        return max(self.boxes.merged.narrower, lane)

    def draw(self, row: int, left: float, top: float) -> None:
        """Draw one row with its upper left corner there."""
        group = drawsvg.Group(transform=f"translate({px(left)} {px(top)})")
        self.boxes.draw(group, row)
        self.spanless.draw(group, row, self._height)
        if self.lane is not None:
            self.lane.draw(group, row, self._height)
        if group.children:
            self._page.elements.append(group)
