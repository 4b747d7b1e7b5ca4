// The timeline: a canvas with one row per rank or stage, its view and selection, and hit testing.

const AXIS_HEIGHT = 40;
const MIN_SPAN_NS = 50;
// Height in px of a row that has space for its name, and maximum number of rows of this height.
const MIN_NAMED_HEIGHT = 11, MAX_NAMED_ROWS = 64;
// An iteration is in view if more than this share of it is visible, or if it covers more than this
// share of the view.
const MIN_SEEN_SHARE = 0.1;

class Timeline {
  constructor(run, box, callbacks) {
    this.run = run;
    this.callbacks = callbacks;
    this.canvas = box.querySelector("canvas");
    this.tip = box.querySelector(".tip");
    // Pixels are written, not drawn. If the canvas were on a graphics card, all pixels would have to be
    // transferred in each frame.
    this.context = this.canvas.getContext("2d", { alpha: false, willReadFrequently: true });
    this.lanes = { operations: true, communication: false, causes: false, critical: false };
    this.by = run.last - run.first > 64 && !run.data.idle ? "stage" : "rank";
    this.selected = -1;
    this.selectedBubble = -1;
    this.chain = new Set();
    this.hovered = null;
    this.window = null;
    this.chosen = -1;
    this.selecting = false;
    this.rowTop = 0;
    this.rows = run.rows(this.by);
    this.bands = this.iterationBands();
    [this.fromNs, this.untilNs] = [run.startNs, run.endNs];
    this.painter = new Painter(this);
    this.gestures = new Gestures(this);
    new ResizeObserver(() => this.resize()).observe(box);
    this.resize();
  }

  iterationBands() {
    return this.run.report.iterations
      .map((iteration) => ({ index: iteration.index, name: cleanText(iteration.name, 40), span: this.run.iterationSpan(iteration.index) }))
      .filter((band) => band.span);
  }

  // --- geometry

  resize() {
    const style = getComputedStyle(this.canvas);
    this.ink = Object.fromEntries(
      ["paper", "text", "quiet", "frame", "band", "gap", "hatch", "grid", "accent"].map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
    this.printing = matchMedia("print").matches;
    // Paper has a higher resolution than the screen.
    this.scale = Math.max(window.devicePixelRatio || 1, this.printing ? 2 : 1);
    this.hatching = makeHatch(this.ink, this.scale);
    this.width = this.canvas.clientWidth;
    // Labels of lanes contain names of devices, which are longer than those of stages.
    const [minGutter, share] = this.run.data.idle ? [120, 0.24] : [110, 0.18];
    this.gutter = Math.round(Math.min(260, Math.max(minGutter, this.width * share)));
    // Rows are high enough for their names, unless there are very many.
    const named = AXIS_HEIGHT + 2 + MIN_NAMED_HEIGHT * Math.min(this.rows.length, MAX_NAMED_ROWS);
    const room = Math.round(Math.max(240, named, Math.min(900, window.innerHeight * 0.44)));
    this.rowHeight = Math.floor(Math.max(5, Math.min(34, (room - AXIS_HEIGHT - 2) / Math.max(1, this.rows.length))));
    this.height = Math.min(room, AXIS_HEIGHT + this.rows.length * this.rowHeight + 2);
    this.canvas.style.height = `${this.height}px`;
    this.canvas.width = Math.round(this.width * this.scale);
    this.canvas.height = Math.round(this.height * this.scale);
    this.moveRows(0);
    // Resizing clears a canvas, and printing does not wait for the next frame, so paint immediately.
    this.painter.paint();
  }

  get plotWidth() {
    return this.width - this.gutter;
  }

  x(timeNs) {
    return this.gutter + ((timeNs - this.fromNs) / (this.untilNs - this.fromNs)) * this.plotWidth;
  }

  timeAt(x) {
    return this.fromNs + ((x - this.gutter) / this.plotWidth) * (this.untilNs - this.fromNs);
  }

  // Upper edge of a row.
  top(place) {
    return AXIS_HEIGHT + place * this.rowHeight - this.rowTop;
  }

  rowAt(y) {
    if (y < AXIS_HEIGHT) return -1;
    const row = Math.floor((y - AXIS_HEIGHT + this.rowTop) / this.rowHeight);
    return row < this.rows.length ? row : -1;
  }

  // --- what is shown

  show(fromNs, untilNs) {
    const whole = this.run.endNs - this.run.startNs;
    const span = Math.min(Math.max(untilNs - fromNs, MIN_SPAN_NS), whole * 1.04);
    const middle = (fromNs + untilNs) / 2;
    const low = this.run.startNs - whole * 0.02;
    this.gestures?.unhover();
    this.fromNs = Math.min(Math.max(middle - span / 2, low), this.run.endNs + whole * 0.02 - span);
    this.untilNs = this.fromNs + span;
    this.chosen = -1;
    this.draw();
  }

  whole() {
    const margin = (this.run.endNs - this.run.startNs) * 0.01;
    this.rowTop = 0;
    this.show(this.run.startNs - margin, this.run.endNs + margin);
    this.callbacks.wholeShown?.();
  }

  zoom(factor, atNs = (this.fromNs + this.untilNs) / 2) {
    const left = (atNs - this.fromNs) * factor;
    const span = (this.untilNs - this.fromNs) * factor;
    this.show(atNs - left, atNs - left + span);
  }

  pan(share) {
    const step = (this.untilNs - this.fromNs) * share;
    this.show(this.fromNs + step, this.untilNs + step);
  }

  moveRows(pixels) {
    const room = this.height - AXIS_HEIGHT;
    const most = Math.max(0, this.rows.length * this.rowHeight - room + 2);
    this.rowTop = Math.min(Math.max(0, this.rowTop + pixels), most);
  }

  showIteration(index) {
    const band = this.bands.find((candidate) => candidate.index === index);
    if (!band) return;
    const margin = (band.span[1] - band.span[0]) * 0.02;
    this.show(band.span[0] - margin, band.span[1] + margin);
    // Adjacent iterations may overlap this one. If so, they are in view as well.
    this.chosen = index;
  }

  // Index of the iteration whose ratios are shown next to rows, or -1 to show means. It is the chosen
  // iteration, or else the only iteration in view.
  get ratedIteration() {
    const index = this.chosen >= 0 ? this.chosen : this.iterationInView();
    return this.run.hasRankRatios(index) ? index : -1;
  }

  // Returns the only iteration in view, or -1. Iterations that are barely visible are ignored.
  iterationInView() {
    const viewNs = this.untilNs - this.fromNs;
    const seen = this.bands.filter(({ span: [startNs, endNs] }) => {
      const seenNs = Math.min(endNs, this.untilNs) - Math.max(startNs, this.fromNs);
      return seenNs > MIN_SEEN_SHARE * Math.min(viewNs, endNs - startNs);
    });
    return seen.length === 1 ? seen[0].index : -1;
  }

  // Updates the timeline after the run has loaded other ranks.
  reload() {
    this.painter.forget();
    this.bands = this.iterationBands();
    this.chain = new Set();
    this.selected = this.selectedBubble = -1;
    this.hovered = this.window = null;
    this.callbacks.selected?.(-1, -1);
    this.callbacks.windowed?.(null);
    this.setRows(this.by);
  }

  setRows(by) {
    this.by = by;
    this.rows = this.run.rows(by);
    this.rowTop = 0;
    this.resize();
  }

  setLane(name, on) {
    this.lanes[name] = on;
    this.gestures.unhover();
    this.draw();
  }

  setWindow(range) {
    this.window = range;
    this.draw();
    this.callbacks.windowed?.(range);
  }

  select(row, { reveal = false } = {}) {
    this.selected = row;
    this.selectedBubble = -1;
    this.chain = new Set(row < 0 ? [] : this.run.chain(row));
    if (row >= 0 && reveal) this.reveal(this.run.operations, row);
    this.draw();
    this.callbacks.selected?.(row, -1);
  }

  selectBubble(bubble, { reveal = false } = {}) {
    this.selected = -1;
    this.selectedBubble = bubble;
    this.chain = new Set();
    if (reveal) this.reveal(this.run.bubbleRows, bubble);
    this.draw();
    this.callbacks.selected?.(-1, bubble);
  }

  // Scrolls and pans to a row of a table.
  reveal({ start_ns: start, length_ns: length, rank }, row) {
    const place = this.rows.findIndex((candidate) => candidate.rank === rank[row]);
    const top = place * this.rowHeight - this.rowTop;
    if (place >= 0 && (top < 0 || top + this.rowHeight > this.height - AXIS_HEIGHT)) this.moveRows(top - this.rowHeight);
    const end = start[row] + length[row];
    const span = this.untilNs - this.fromNs;
    if (start[row] < this.fromNs || end > this.untilNs) {
      const middle = (start[row] + end) / 2;
      const wide = Math.max(span, length[row] * 1.2);
      this.show(middle - wide / 2, middle + wide / 2);
    }
  }

  // Selects the next operation that matches a search: `rank 5`, `BW12 stage 3`, or part of the name of a
  // range. Returns its label, or null if there is none.
  find(words) {
    const { run } = this;
    const [, kind, number] = words.match(/\b(rank|stage)\s*(\d+)\b/i) ?? [];
    const rest = words.replace(/\b(rank|stage)\s*\d+\b/i, "").trim().toLowerCase();
    const ranks = run.report.ranks.filter((entry) => !kind || String(kind.toLowerCase() === "stage" ? entry.stage : entry.global_rank ?? entry.index) === number);
    const wanted = new Set(ranks.map((entry) => entry.index));
    const { rank, name: names, rows } = run.operations;
    const named = (row) => run.label(row).replace(" ", "").toLowerCase() === rest.replace(" ", "");
    const contains = (row) => `${run.rankLabel(rank[row])} ${run.name(names[row])}`.toLowerCase().includes(rest);
    const work = (row) => run.data.compute_phases.includes(run.operations.phase[row]);
    for (const fits of rest ? [named, contains] : [work]) {
      for (let step = 1; step <= rows; step += 1) {
        const row = (Math.max(this.selected, -1) + step) % rows;
        if (wanted.has(rank[row]) && fits(row)) {
          this.select(row, { reveal: true });
          return `${run.label(row)} of ${run.rankLabel(rank[row])}`;
        }
      }
    }
    return null;
  }

  draw() {
    if (this.pending) return;
    this.pending = requestAnimationFrame(() => {
      this.pending = 0;
      this.painter.paint();
    });
  }

  // --- what is at a point

  hit(x, y) {
    const place = this.rowAt(y);
    if (place < 0 || x < this.gutter) return null;
    const { rank } = this.rows[place];
    const timeNs = this.timeAt(x);
    const slackNs = (1.5 * (this.untilNs - this.fromNs)) / this.plotWidth;
    const inLane = ((y - AXIS_HEIGHT + this.rowTop) % this.rowHeight) / this.rowHeight;
    const lanes = [this.run.compute];
    if (this.lanes.communication) lanes.splice(inLane > 1 - LANE_SHARE ? 0 : 1, 0, this.run.communication);
    for (const slack of [0, slackNs]) {
      for (const lane of lanes) {
        const found = lane.at(rank, timeNs, slack);
        if (found >= 0 && lane.endNs[found] + slack >= timeNs) return { rank, timeNs, row: lane.operation[found], bubble: -1 };
      }
      const bubble = this.run.bubbles.at(rank, timeNs, slack);
      if (slack === 0 && bubble >= 0 && this.run.bubbles.endNs[bubble] >= timeNs) return { rank, timeNs, row: -1, bubble: this.run.bubbles.row[bubble] };
    }
    return { rank, timeNs, row: -1, bubble: -1 };
  }

  // --- from operation to operation, and from bubble to bubble

  // Selects the next (1) or previous (-1) bubble on the same rank, starting from the selected bubble or
  // operation, or from the left edge.
  stepBubble(along) {
    const { bubbles, bubbleRows, operations } = this.run;
    const chosen = this.selectedBubble >= 0 ? bubbleRows : this.selected >= 0 ? operations : null;
    const row = Math.max(this.selectedBubble, this.selected);
    const rank = chosen ? chosen.rank[row] : this.rows[Math.floor(this.rowTop / this.rowHeight)]?.rank;
    if (rank === undefined) return;
    const [low, high] = [bubbles.bounds[rank], bubbles.bounds[rank + 1]];
    const fromNs = chosen ? chosen.start_ns[row] : this.fromNs;
    const next = findFirstAbove(bubbles.startNs, fromNs, low, high);
    const at = along > 0 ? next : findFirstAbove(bubbles.startNs, fromNs - 1, low, high) - 1;
    if (at >= low && at < high) this.selectBubble(bubbles.row[at], { reveal: true });
  }

  // Selects the next or previous operation on the rank of the selected operation, or the operation at
  // the same time on a row above or below.
  step(along, down) {
    const { run } = this;
    if (this.selected < 0) {
      const rank = this.rows[Math.floor(this.rowTop / this.rowHeight)]?.rank;
      if (rank === undefined) return;
      const [low, high] = run.compute.between(rank, this.fromNs, this.untilNs);
      if (low < high) this.select(run.compute.operation[low], { reveal: true });
      return;
    }
    if (along) {
      const next = run.neighbor(this.selected, along);
      if (next >= 0) this.select(next, { reveal: true });
      return;
    }
    const place = this.rows.findIndex((row) => row.replicas.includes(run.operations.rank[this.selected]));
    const row = this.rows[place + down];
    if (place < 0 || !row) return;
    const middle = run.operations.start_ns[this.selected] + run.operations.length_ns[this.selected] / 2;
    const [low, high] = [run.compute.bounds[row.rank], run.compute.bounds[row.rank + 1]];
    if (low === high) return;
    const next = Math.min(findFirstAbove(run.compute.startNs, middle, low, high), high - 1);
    const nearer = next > low && middle - run.compute.startNs[next - 1] < Math.abs(run.compute.startNs[next] - middle) ? next - 1 : next;
    this.select(run.compute.operation[nearer], { reveal: true });
  }
}
