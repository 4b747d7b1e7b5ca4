// Marks: draws the selection, the critical path, the window and the axis over the rows of a timeline.

class Marks {
  constructor(timeline) {
    this.timeline = timeline;
  }

  paint() {
    this.paintMarks();
    this.paintWindow();
    this.paintAxis();
    this.paintLength();
    this.paintScroll();
  }

  paintMarks() {
    const { context: c, run } = this.timeline;
    const { rank } = run.operations;
    const place = new Map(this.timeline.rows.map((row, at) => [row.rank, at]));
    const box = ({ rank: ranks, start_ns: starts, length_ns: lengths }, row, thick) => {
      const at = place.get(ranks[row]);
      if (at === undefined || lengths[row] < 0) return;
      const [left, right] = [this.timeline.x(starts[row]), this.timeline.x(starts[row] + lengths[row])];
      if (right < this.timeline.gutter || left > this.timeline.width) return;
      c.strokeStyle = this.timeline.ink.text;
      c.lineWidth = thick;
      c.strokeRect(left, this.timeline.top(at) + 1, Math.max(right - left, 1), this.timeline.rowHeight - 2);
    };
    c.save();
    c.beginPath();
    c.rect(this.timeline.gutter, AXIS_HEIGHT, this.timeline.plotWidth, this.timeline.height - AXIS_HEIGHT);
    c.clip();
    if (this.timeline.lanes.critical) for (const row of run.critical) this.paintCritical(row, place.get(rank[row]));
    this.paintChain(place);
    const { operations, bubbleRows } = run;
    const { selected, selectedBubble, hovered } = this.timeline;
    if (selected >= 0) box(operations, selected, 2.5);
    else if (selectedBubble >= 0) box(bubbleRows, selectedBubble, 2.5);
    if (hovered?.row >= 0 && hovered.row !== selected) box(operations, hovered.row, 1.5);
    else if (hovered?.bubble >= 0 && hovered.bubble !== selectedBubble) box(bubbleRows, hovered.bubble, 1.5);
    c.restore();
  }

  // A strip along the bottom of an operation on the critical path.
  paintCritical(row, at) {
    const { start_ns: start, length_ns: length } = this.timeline.run.operations;
    const [left, right] = [this.timeline.x(start[row]), this.timeline.x(start[row] + length[row])];
    if (at === undefined || right < this.timeline.gutter || left > this.timeline.width) return;
    const thick = Math.max(2, this.timeline.rowHeight * 0.16);
    this.timeline.context.fillStyle = this.timeline.ink.accent;
    this.timeline.context.fillRect(left, this.timeline.top(at + 1) - thick, Math.max(right - left, 1), thick);
  }

  // Lines that connect the operations of the same microbatch.
  paintChain(place) {
    const { context: c } = this.timeline;
    const { rank, start_ns: start, length_ns: length } = this.timeline.run.operations;
    let last = null;
    c.strokeStyle = this.timeline.ink.text;
    c.lineWidth = 1.2;
    c.beginPath();
    for (const row of this.timeline.chain) {
      const at = place.get(rank[row]);
      if (at === undefined) continue;
      const y = this.timeline.top(at + 0.5);
      if (last) {
        c.moveTo(last[0], last[1]);
        c.lineTo(this.timeline.x(start[row]), y);
      }
      last = [this.timeline.x(start[row] + length[row]), y];
    }
    c.stroke();
  }

  paintAxis() {
    const { context: c } = this.timeline;
    c.fillStyle = this.timeline.ink.paper;
    c.fillRect(0, 0, this.timeline.width, AXIS_HEIGHT);
    c.save();
    c.beginPath();
    c.rect(this.timeline.gutter, 0, this.timeline.plotWidth, this.timeline.height);
    c.clip();
    c.font = "11px system-ui, sans-serif";
    this.timeline.bands.forEach(({ name, span }, at) => {
      const [left, right] = [Math.max(this.timeline.x(span[0]), this.timeline.gutter), Math.min(this.timeline.x(span[1]), this.timeline.width)];
      if (right <= left) return;
      c.fillStyle = at % 2 ? this.timeline.ink.grid : this.timeline.ink.gap;
      c.fillRect(left, 0, right - left, 16);
      c.fillStyle = this.timeline.ink.text;
      c.textAlign = "center";
      if (c.measureText(name).width < right - left - 4) c.fillText(name, (left + right) / 2, 8.5);
    });
    const step = roundStep((this.timeline.untilNs - this.timeline.fromNs) / (this.timeline.plotWidth / 110));
    const origin = this.timeline.run.startNs;
    c.strokeStyle = this.timeline.ink.grid;
    c.lineWidth = 1;
    const first = Math.ceil((this.timeline.fromNs - origin) / step);
    for (let tick = first; tick * step <= this.timeline.untilNs - origin; tick += 1) {
      const time = tick * step;
      const x = this.timeline.x(time + origin);
      c.beginPath();
      c.moveTo(x, 32);
      c.lineTo(x, AXIS_HEIGHT);
      c.stroke();
      c.fillStyle = this.timeline.ink.quiet;
      const text = formatStep(time, step);
      const half = c.measureText(text).width / 2;
      c.textAlign = "center";
      c.fillText(text, Math.min(Math.max(x, this.timeline.gutter + half + 2), this.timeline.width - half - 2), 25);
    }
    c.restore();
    c.fillStyle = this.timeline.ink.quiet;
    c.textAlign = "left";
    const unit = this.timeline.run.data.idle ? "step" : "iteration";
    c.fillText(unit, 4, 8.5);
    this.paintRatioTitle(4 + c.measureText(unit).width + 8);
    c.fillText("time since start", 4, 25);
  }

  // Draws the heading of the ratio column above the ratios, in the space that starts at `left`.
  paintRatioTitle(left) {
    const { context: c, gutter, canvas } = this.timeline;
    const titles = this.timeline.callbacks.ratioTitles?.(this.timeline.ratedIteration) ?? [];
    const title = titles.find((text) => c.measureText(text).width <= gutter - 10 - left) ?? titles.at(-1) ?? "";
    canvas.dataset.ratioTitle = title;
    c.textAlign = "right";
    c.fillText(title, gutter - 10, 8.5);
    c.textAlign = "left";
  }

  paintWindow() {
    if (!this.timeline.window) return;
    const { context: c } = this.timeline;
    const [left, right] = this.timeline.window.map((time) => Math.min(Math.max(this.timeline.x(time), this.timeline.gutter), this.timeline.width));
    c.save();
    c.beginPath();
    c.rect(this.timeline.gutter, AXIS_HEIGHT, this.timeline.plotWidth, this.timeline.height - AXIS_HEIGHT);
    c.clip();
    c.globalAlpha = 0.16;
    c.fillStyle = this.timeline.ink.accent;
    c.fillRect(left, AXIS_HEIGHT, right - left, this.timeline.height - AXIS_HEIGHT);
    c.globalAlpha = 1;
    c.strokeStyle = this.timeline.ink.accent;
    c.lineWidth = 1.5;
    c.strokeRect(left, AXIS_HEIGHT, right - left, this.timeline.height - AXIS_HEIGHT - 1);
    c.restore();
  }

  // Draws the length of the window above the axis.
  paintLength() {
    if (!this.timeline.window) return;
    const { context: c } = this.timeline;
    const [left, right] = this.timeline.window.map((time) => this.timeline.x(time));
    const text = duration(Math.abs(this.timeline.window[1] - this.timeline.window[0]));
    c.textAlign = "center";
    const half = c.measureText(text).width / 2 + 4;
    const middle = Math.min(Math.max((left + right) / 2, this.timeline.gutter + half), this.timeline.width - half);
    c.fillStyle = this.timeline.ink.paper;
    c.fillRect(middle - half, 17, 2 * half, 16);
    c.fillStyle = this.timeline.ink.accent;
    c.fillText(text, middle, 25);
  }

  // A scroll bar, if some rows are out of view.
  paintScroll() {
    const { context: c } = this.timeline;
    const room = this.timeline.height - AXIS_HEIGHT;
    const all = this.timeline.rows.length * this.timeline.rowHeight;
    if (all <= room) return;
    c.fillStyle = this.timeline.ink.quiet;
    c.fillRect(this.timeline.width - 5, AXIS_HEIGHT + (this.timeline.rowTop / all) * room, 4, Math.max(12, (room / all) * room));
  }
}

// Returns the smallest of the numbers 1, 2, 5, 10, 20, ... that is at least `least`.
function roundStep(least) {
  const size = 10 ** Math.floor(Math.log10(Math.max(least, 1)));
  return [1, 2, 5, 10].map((times) => times * size).find((step) => step >= least * 0.999);
}

function formatStep(timeNs, stepNs) {
  const [unit, name] = UNITS.find(([size]) => stepNs >= size / 10 && size <= 1e9) ?? UNITS.at(-1);
  const digits = Math.max(0, Math.ceil(Math.log10(unit / stepNs)));
  return `${formatNumber(timeNs / unit, Math.min(digits, 6))} ${name}`;
}
