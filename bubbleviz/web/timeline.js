// The timeline: a row a rank (or stage) on a canvas, from the whole run down to single kernels' time.
//
// Where operations are wider than a pixel they are boxes; where they are narrower, each column of
// pixels shows how its time was spent, by phase, so that nothing is dropped whatever the zoom:
//
//     zoomed in    │F 3  │F 4  │   │B 0      │      boxes with numbers
//     zoomed out   ▆▆▆▅▆▇▆▆▅▃▆▆▆▆                  shares of F, B, W, Optimizer in each pixel

const AXIS_HEIGHT = 40;
const LANE_SHARE = 0.28;
const LEAST_SPAN_NS = 50;

class Timeline {
  constructor(run, box, callbacks) {
    this.run = run;
    this.callbacks = callbacks;
    this.canvas = box.querySelector("canvas");
    this.tip = box.querySelector(".tip");
    this.context = this.canvas.getContext("2d");
    this.lanes = { operations: true, communication: false, causes: false, critical: false };
    this.by = run.report.ranks.length > 64 ? "stage" : "rank";
    this.selected = -1;
    this.chain = new Set();
    this.hovered = null;
    this.window = null;
    this.selecting = false;
    this.rowTop = 0;
    this.sums = new Map();
    this.rows = run.rows(this.by);
    this.bands = this.iterationBands();
    [this.fromNs, this.untilNs] = [run.startNs, run.endNs];
    this.listen();
    new ResizeObserver(() => this.resize()).observe(box);
    this.resize();
  }

  iterationBands() {
    return this.run.report.iterations
      .map((own) => ({ index: own.index, name: clean(own.name, 40), span: this.run.iterationSpan(own.index) }))
      .filter((own) => own.span);
  }

  // --- geometry

  resize() {
    const style = getComputedStyle(this.canvas);
    this.ink = Object.fromEntries(
      ["paper", "text", "quiet", "frame", "band", "gap", "hatch", "grid", "accent"].map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
    this.scale = window.devicePixelRatio || 1;
    this.hatching = this.hatched();
    this.width = this.canvas.clientWidth;
    this.gutter = Math.round(Math.min(260, Math.max(110, this.width * 0.18)));
    const room = Math.max(260, Math.min(640, window.innerHeight * 0.62));
    this.rowHeight = Math.round(Math.max(11, Math.min(34, (room - AXIS_HEIGHT) / Math.max(1, this.rows.length))));
    this.height = Math.min(room, AXIS_HEIGHT + this.rows.length * this.rowHeight + 2);
    this.canvas.style.height = `${this.height}px`;
    this.canvas.width = Math.round(this.width * this.scale);
    this.canvas.height = Math.round(this.height * this.scale);
    this.moveRows(0);
    // A canvas that has changed its size is blank, and a printer does not wait for the next frame.
    this.paint();
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
    const span = Math.min(Math.max(untilNs - fromNs, LEAST_SPAN_NS), whole * 1.04);
    const middle = (fromNs + untilNs) / 2;
    const low = this.run.startNs - whole * 0.02;
    this.fromNs = Math.min(Math.max(middle - span / 2, low), this.run.endNs + whole * 0.02 - span);
    this.untilNs = this.fromNs + span;
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
    const band = this.bands.find((own) => own.index === index);
    if (!band) return;
    const margin = (band.span[1] - band.span[0]) * 0.02;
    this.show(band.span[0] - margin, band.span[1] + margin);
  }

  setRows(by) {
    this.by = by;
    this.rows = this.run.rows(by);
    this.rowTop = 0;
    this.resize();
  }

  setLane(name, on) {
    this.lanes[name] = on;
    this.draw();
  }

  setWindow(range) {
    this.window = range;
    this.draw();
    this.callbacks.windowed?.(range);
  }

  select(row, { reveal = false } = {}) {
    this.selected = row;
    this.chain = new Set(row < 0 ? [] : this.run.chain(row));
    if (row >= 0 && reveal) this.reveal(row);
    this.draw();
    this.callbacks.selected?.(row);
  }

  reveal(row) {
    const { start_ns: start, length_ns: length, rank } = this.run.operations;
    const place = this.rows.findIndex((own) => own.rank === rank[row]);
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

  // --- drawing

  draw() {
    if (this.pending) return;
    this.pending = requestAnimationFrame(() => {
      this.pending = 0;
      this.paint();
    });
  }

  paint() {
    const began = performance.now();
    const { context: c } = this;
    if (this.plotWidth < 1) return;
    c.setTransform(this.scale, 0, 0, this.scale, 0, 0);
    c.fillStyle = this.ink.paper;
    c.fillRect(0, 0, this.width, this.height);
    c.font = "11px system-ui, sans-serif";
    c.textBaseline = "middle";
    const first = Math.floor(this.rowTop / this.rowHeight);
    const last = Math.min(this.rows.length, first + Math.ceil((this.height - AXIS_HEIGHT) / this.rowHeight) + 1);
    for (let row = first; row < last; row += 1) this.paintRow(row, this.top(row));
    this.paintMarks();
    this.paintAxis();
    this.paintWindow();
    this.paintScroll();
    this.tookMs = performance.now() - began;
    this.canvas.dataset.tookMs = this.tookMs.toFixed(1);
  }

  paintRow(place, top) {
    const { context: c, rowHeight } = this;
    const { rank } = this.rows[place];
    const inset = rowHeight > 16 ? 2 : 1;
    let height = rowHeight - 2 * inset;
    let lane = 0;
    if (this.lanes.communication) {
      lane = this.lanes.operations ? Math.max(3, Math.round(height * LANE_SHARE)) : height;
      height -= this.lanes.operations ? lane + 1 : 0;
    }
    c.save();
    c.beginPath();
    c.rect(this.gutter, AXIS_HEIGHT, this.plotWidth, this.height - AXIS_HEIGHT);
    c.clip();
    c.fillStyle = this.ink.band;
    c.fillRect(this.gutter, top + inset, this.plotWidth, rowHeight - 2 * inset);
    this.paintGaps(rank, top + inset, height);
    if (this.lanes.operations) {
      this.paintLoose(rank, top + inset, height);
      this.paintOperations(this.run.compute, rank, top + inset, height, true);
    }
    if (lane) this.paintOperations(this.run.communication, rank, top + rowHeight - inset - lane, lane, false);
    c.restore();
    this.paintLabel(this.rows[place], top);
  }

  paintLabel({ label, copies }, top) {
    const { context: c } = this;
    if (top < AXIS_HEIGHT - this.rowHeight) return;
    c.save();
    c.beginPath();
    c.rect(0, AXIS_HEIGHT, this.gutter - 6, this.height - AXIS_HEIGHT);
    c.clip();
    c.font = `${Math.min(12, this.rowHeight - 1)}px system-ui, sans-serif`;
    c.fillStyle = this.ink.quiet;
    c.textAlign = "right";
    const ratio = this.callbacks.ratioOf?.(copies);
    const told = ratio === null || ratio === undefined ? "" : percent(ratio, 1);
    c.fillText(told, this.gutter - 10, top + this.rowHeight / 2);
    const room = this.gutter - 20 - c.measureText(told).width;
    c.textAlign = "left";
    c.fillStyle = this.ink.text;
    c.fillText(this.fitted(label, room), 4, top + this.rowHeight / 2);
    c.restore();
  }

  // A label that is too long loses its middle: what tells ranks apart stands at its ends.
  fitted(text, room) {
    const { context: c } = this;
    if (c.measureText(text).width <= room) return text;
    let keep = text.length;
    const cut = () => `${text.slice(0, Math.ceil(keep / 2))}…${text.slice(text.length - Math.floor(keep / 2))}`;
    while (keep > 1 && c.measureText(cut()).width > room) keep -= 1;
    return cut();
  }

  paintGaps(rank, top, height) {
    const { context: c, run } = this;
    const { gaps } = run;
    const [low, high] = gaps.between(rank, this.fromNs, this.untilNs);
    const perPixel = (this.untilNs - this.fromNs) / (this.plotWidth * this.scale);
    let drawnTo = -Infinity;
    for (let i = low; i < high; i += 1) {
      const [start, end] = [gaps.startNs[i], gaps.endNs[i]];
      // Of those within one pixel the first is drawn: the next one to look at starts in the next.
      if (end - start < perPixel && start < drawnTo) {
        const next = above(gaps.reachNs, drawnTo, i, high);
        if (next > i) i = next - 1;
        continue;
      }
      const left = this.x(start);
      const width = Math.max(this.x(end) - left, 1 / this.scale);
      c.fillStyle = this.lanes.causes ? run.data.causes[gaps.cause[i]].colour : this.hatching;
      c.fillRect(left, top, width, height);
      drawnTo = Math.max(end, start + perPixel);
    }
  }

  // Idle time as it is hatched in printed pictures.
  hatched() {
    const tile = document.createElement("canvas");
    tile.width = tile.height = 6;
    const c = tile.getContext("2d");
    c.fillStyle = this.ink.gap;
    c.fillRect(0, 0, 6, 6);
    c.strokeStyle = this.ink.hatch;
    c.lineWidth = 1.6;
    c.beginPath();
    for (const at of [-6, 0, 6]) {
      c.moveTo(at - 1, 7);
      c.lineTo(at + 7, -1);
    }
    c.stroke();
    return this.context.createPattern(tile, "repeat");
  }

  paintLoose(rank, top, height) {
    const { context: c, run } = this;
    const lane = run.unattributed;
    const [low, high] = lane.between(rank, this.fromNs, this.untilNs);
    c.fillStyle = run.data.unattributed_colour;
    let drawnTo = -Infinity;
    for (let i = low; i < high; i += 1) {
      const left = Math.max(this.x(lane.startNs[i]), drawnTo);
      const right = this.x(lane.endNs[i]);
      if (right - left < 0.3 && left <= drawnTo) continue;
      c.fillRect(left, top + height * 0.25, Math.max(right - left, 1 / this.scale), height * 0.5);
      drawnTo = Math.max(right, left + 1 / this.scale);
    }
  }

  paintOperations(lane, rank, top, height, numbers) {
    const [low, high] = lane.between(rank, this.fromNs, this.untilNs);
    if (high - low > this.plotWidth * 0.75) this.paintShares(lane, rank, top, height);
    else this.paintBoxes(lane, low, high, top, height, numbers);
  }

  paintBoxes(lane, low, high, top, height, numbers) {
    const { context: c, run } = this;
    const { paint } = run.operations;
    const chosen = this.chain.size > 0;
    let reach = -Infinity;
    c.textAlign = "center";
    for (let i = low; i < high; i += 1) {
      const row = lane.operation[i];
      const [start, end] = [lane.startNs[i], lane.endNs[i]];
      const left = Math.max(this.x(start), this.gutter - 2);
      const right = Math.min(this.x(end), this.width + 2);
      const space = right - left > 4 ? 0.6 : 0;
      const width = Math.max(right - left - space, 1 / this.scale);
      // One that runs beside an earlier one has the lower half.
      const beside = Math.min(reach, end) - start > 0.1 * (end - start);
      const [y, tall] = beside ? [top + height / 2, height / 2] : [top, height];
      const own = run.data.paints[paint[row]];
      c.globalAlpha = chosen && !this.chain.has(row) ? 0.28 : 1;
      let at = y;
      for (const [share, colour] of own.bands) {
        c.fillStyle = colour;
        c.fillRect(left, at, width, tall * share);
        at += tall * share;
      }
      if (numbers && width > 9 && tall >= 10) this.paintNumber(run.microbatches(row), own.number, left, width, y, tall);
      reach = Math.max(reach, end);
    }
    c.globalAlpha = 1;
  }

  paintNumber(text, colour, left, width, top, height) {
    const { context: c } = this;
    if (!text) return;
    c.font = `${Math.min(12, height * 0.72)}px system-ui, sans-serif`;
    if (c.measureText(text).width > width - 2) return;
    c.fillStyle = colour;
    c.fillText(text, left + width / 2, top + height / 2 + 0.5);
  }

  // --- columns of pixels

  // Running sums of a rank's busy time by paint, in the order of its lane.
  sumsOf(lane, rank) {
    const key = `${rank}:${lane === this.run.compute}`;
    if (this.sums.has(key)) return this.sums.get(key);
    const { paint } = this.run.operations;
    const [low, high] = [lane.bounds[rank], lane.bounds[rank + 1]];
    const colours = new Map();
    const place = this.run.data.paints.map((own) => {
      const colour = own.bands.reduce((a, b) => (b[0] > a[0] ? b : a))[1];
      if (!colours.has(colour)) colours.set(colour, colours.size);
      return colours.get(colour);
    });
    const sums = Array.from(colours, () => new Float64Array(high - low + 1));
    for (let i = low; i < high; i += 1) {
      const own = place[paint[lane.operation[i]]];
      for (let k = 0; k < sums.length; k += 1) sums[k][i - low + 1] = sums[k][i - low];
      sums[own][i - low + 1] += lane.endNs[i] - lane.startNs[i];
    }
    const made = { sums, place, colours: [...colours.keys()].map(channels) };
    if (this.sums.size > 256) this.sums.clear();
    this.sums.set(key, made);
    return made;
  }

  // Busy time of each colour up to a time: whole operations from the sums, a part of the one at it.
  spentUntil(lane, rank, made, timeNs, spent) {
    const [low, high] = [lane.bounds[rank], lane.bounds[rank + 1]];
    const next = above(lane.startNs, timeNs, low, high);
    for (let k = 0; k < spent.length; k += 1) spent[k] = made.sums[k][next - low];
    if (next > low && lane.endNs[next - 1] > timeNs) {
      spent[made.place[this.run.operations.paint[lane.operation[next - 1]]]] -= lane.endNs[next - 1] - timeNs;
    }
  }

  paintShares(lane, rank, top, height) {
    const made = this.sumsOf(lane, rank);
    const wide = Math.round(this.plotWidth * this.scale);
    const tall = Math.max(1, Math.round(height * this.scale));
    const image = this.columnsOf(lane, rank, made, wide, tall);
    const board = this.board ?? (this.board = document.createElement("canvas"));
    if (board.width < wide || board.height < tall) {
      board.width = Math.max(board.width, wide);
      board.height = Math.max(board.height, tall);
    }
    const c = board.getContext("2d");
    c.putImageData(image, 0, 0);
    this.context.globalAlpha = this.chain.size ? 0.28 : 1;
    this.context.drawImage(board, 0, 0, wide, tall, this.gutter, top, wide / this.scale, height);
    this.context.globalAlpha = 1;
  }

  columnsOf(lane, rank, made, wide, tall) {
    const image = new ImageData(wide, tall);
    const pixels = new Uint32Array(image.data.buffer);
    const perPixel = (this.untilNs - this.fromNs) / wide;
    let before = new Float64Array(made.sums.length);
    let after = new Float64Array(made.sums.length);
    this.spentUntil(lane, rank, made, this.fromNs, before);
    for (let x = 0; x < wide; x += 1) {
      this.spentUntil(lane, rank, made, this.fromNs + (x + 1) * perPixel, after);
      let y = 0;
      for (let k = 0; k < after.length; k += 1) {
        const share = Math.max(0, after[k] - before[k]) / perPixel;
        const until = Math.min(tall, y + share * tall);
        // From the bottom up; a sliver of idle time stays visible.
        for (let own = Math.round(y); own < Math.round(until); own += 1) pixels[(tall - 1 - own) * wide + x] = made.colours[k];
        y = until;
      }
      [before, after] = [after, before];
    }
    return image;
  }

  // --- marks, axis, window

  paintMarks() {
    const { context: c, run } = this;
    const { rank, start_ns: start, length_ns: length } = run.operations;
    const place = new Map(this.rows.map((row, at) => [row.rank, at]));
    const box = (row, colour, thick) => {
      const at = place.get(rank[row]);
      if (at === undefined || length[row] < 0) return;
      const [left, right] = [this.x(start[row]), this.x(start[row] + length[row])];
      if (right < this.gutter || left > this.width) return;
      c.strokeStyle = colour;
      c.lineWidth = thick;
      c.strokeRect(left, this.top(at) + 1, Math.max(right - left, 1), this.rowHeight - 2);
    };
    c.save();
    c.beginPath();
    c.rect(this.gutter, AXIS_HEIGHT, this.plotWidth, this.height - AXIS_HEIGHT);
    c.clip();
    if (this.lanes.critical) for (const row of run.critical) this.paintCritical(row, place.get(rank[row]));
    this.paintChain(place);
    if (this.selected >= 0) box(this.selected, this.ink.text, 2.5);
    else if (this.hovered?.row >= 0) box(this.hovered.row, this.ink.text, 1.5);
    c.restore();
  }

  // A strip below an operation that bounds the iteration.
  paintCritical(row, at) {
    const { start_ns: start, length_ns: length } = this.run.operations;
    const [left, right] = [this.x(start[row]), this.x(start[row] + length[row])];
    if (at === undefined || right < this.gutter || left > this.width) return;
    const thick = Math.max(2, this.rowHeight * 0.16);
    this.context.fillStyle = this.ink.accent;
    this.context.fillRect(left, this.top(at + 1) - thick, Math.max(right - left, 1), thick);
  }

  // A line from operation to operation of the same microbatch.
  paintChain(place) {
    const { context: c } = this;
    const { rank, start_ns: start, length_ns: length } = this.run.operations;
    let last = null;
    c.strokeStyle = this.ink.text;
    c.lineWidth = 1.2;
    c.beginPath();
    for (const row of this.chain) {
      const at = place.get(rank[row]);
      if (at === undefined) continue;
      const y = this.top(at + 0.5);
      if (last) {
        c.moveTo(last[0], last[1]);
        c.lineTo(this.x(start[row]), y);
      }
      last = [this.x(start[row] + length[row]), y];
    }
    c.stroke();
  }

  paintAxis() {
    const { context: c } = this;
    c.fillStyle = this.ink.paper;
    c.fillRect(0, 0, this.width, AXIS_HEIGHT);
    c.save();
    c.beginPath();
    c.rect(this.gutter, 0, this.plotWidth, this.height);
    c.clip();
    c.font = "11px system-ui, sans-serif";
    this.bands.forEach(({ name, span }, at) => {
      const [left, right] = [Math.max(this.x(span[0]), this.gutter), Math.min(this.x(span[1]), this.width)];
      if (right <= left) return;
      c.fillStyle = at % 2 ? this.ink.grid : this.ink.gap;
      c.fillRect(left, 0, right - left, 16);
      c.fillStyle = this.ink.text;
      c.textAlign = "center";
      if (c.measureText(name).width < right - left - 4) c.fillText(name, (left + right) / 2, 8.5);
    });
    const step = niceStep((this.untilNs - this.fromNs) / (this.plotWidth / 110));
    const origin = this.run.startNs;
    c.strokeStyle = this.ink.grid;
    c.lineWidth = 1;
    const first = Math.ceil((this.fromNs - origin) / step);
    for (let tick = first; tick * step <= this.untilNs - origin; tick += 1) {
      const time = tick * step;
      const x = this.x(time + origin);
      c.beginPath();
      c.moveTo(x, 32);
      c.lineTo(x, AXIS_HEIGHT);
      c.stroke();
      c.fillStyle = this.ink.quiet;
      const text = stepLabel(time, step);
      const half = c.measureText(text).width / 2;
      c.textAlign = "center";
      c.fillText(text, Math.min(Math.max(x, this.gutter + half + 2), this.width - half - 2), 25);
    }
    c.restore();
    c.fillStyle = this.ink.quiet;
    c.textAlign = "left";
    c.fillText("iteration", 4, 8.5);
    c.fillText("time since start", 4, 25);
  }

  paintWindow() {
    if (!this.window) return;
    const { context: c } = this;
    const [left, right] = this.window.map((time) => Math.min(Math.max(this.x(time), this.gutter), this.width));
    c.save();
    c.globalAlpha = 0.16;
    c.fillStyle = this.ink.accent;
    c.fillRect(left, AXIS_HEIGHT, right - left, this.height - AXIS_HEIGHT);
    c.restore();
    c.strokeStyle = this.ink.accent;
    c.lineWidth = 1.5;
    c.strokeRect(left, AXIS_HEIGHT, right - left, this.height - AXIS_HEIGHT - 1);
  }

  // Which of the rows are in view, where not all are.
  paintScroll() {
    const { context: c } = this;
    const room = this.height - AXIS_HEIGHT;
    const all = this.rows.length * this.rowHeight;
    if (all <= room) return;
    c.fillStyle = this.ink.quiet;
    c.fillRect(this.width - 5, AXIS_HEIGHT + (this.rowTop / all) * room, 4, Math.max(12, (room / all) * room));
  }

  // --- what lies where

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
        if (found >= 0 && lane.endNs[found] + slack >= timeNs) return { rank, timeNs, row: lane.operation[found], gap: -1 };
      }
      const gap = this.run.gaps.at(rank, timeNs, slack);
      if (slack === 0 && gap >= 0 && this.run.gaps.endNs[gap] >= timeNs) return { rank, timeNs, row: -1, gap: this.run.gaps.row[gap] };
    }
    return { rank, timeNs, row: -1, gap: -1 };
  }

  // --- what people do

  listen() {
    const { canvas } = this;
    canvas.addEventListener("wheel", (event) => this.wheeled(event), { passive: false });
    canvas.addEventListener("pointerdown", (event) => this.pressed(event));
    canvas.addEventListener("pointermove", (event) => this.pointed(event));
    canvas.addEventListener("pointerup", (event) => this.released(event));
    canvas.addEventListener("pointercancel", () => { this.drag = null; });
    canvas.addEventListener("pointerleave", () => this.left());
    canvas.addEventListener("dblclick", (event) => this.twice(event));
    canvas.addEventListener("keydown", (event) => this.keyed(event));
  }

  place(event) {
    const box = this.canvas.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  }

  wheeled(event) {
    event.preventDefault();
    const [x] = this.place(event);
    const lines = event.deltaMode === 1 ? 16 : 1;
    if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
      this.pan(((event.deltaX || event.deltaY) * lines) / this.plotWidth);
    } else if (event.altKey || x < this.gutter) {
      this.moveRows(event.deltaY * lines);
      this.draw();
    } else {
      this.zoom(Math.exp(Math.max(-1, Math.min(1, event.deltaY * lines * 0.002))), this.timeAt(Math.max(x, this.gutter)));
    }
  }

  pressed(event) {
    if (event.button !== 0) return;
    const [x, y] = this.place(event);
    this.canvas.focus({ preventScroll: true });
    this.canvas.setPointerCapture(event.pointerId);
    const selecting = (this.selecting || event.shiftKey) && x >= this.gutter;
    this.drag = { x, y, fromNs: this.fromNs, untilNs: this.untilNs, top: this.rowTop, selecting, startNs: this.timeAt(x), moved: false };
  }

  pointed(event) {
    const [x, y] = this.place(event);
    if (!this.drag) {
      this.hover(x, y);
      return;
    }
    const { drag } = this;
    drag.moved ||= Math.abs(x - drag.x) + Math.abs(y - drag.y) > 3;
    if (!drag.moved) return;
    this.unhover();
    if (drag.selecting) {
      this.window = [drag.startNs, this.timeAt(Math.min(Math.max(x, this.gutter), this.width))].sort((a, b) => a - b);
      this.draw();
      return;
    }
    const step = ((drag.x - x) / this.plotWidth) * (drag.untilNs - drag.fromNs);
    this.rowTop = drag.top;
    this.moveRows(drag.y - y);
    this.show(drag.fromNs + step, drag.untilNs + step);
  }

  released(event) {
    const { drag } = this;
    this.drag = null;
    if (!drag) return;
    if (drag.moved) {
      if (drag.selecting) this.setWindow(this.window);
      return;
    }
    const [x, y] = this.place(event);
    if (y < 16 && x >= this.gutter) {
      const band = this.bands.find(({ span }) => span[0] <= this.timeAt(x) && this.timeAt(x) < span[1]);
      if (band) this.callbacks.iteration?.(band.index);
      return;
    }
    this.select(this.hit(x, y)?.row ?? -1);
  }

  twice(event) {
    const found = this.hit(...this.place(event));
    if (!found || found.row < 0) this.whole();
    else {
      const { start_ns: start, length_ns: length } = this.run.operations;
      this.show(start[found.row] - 2 * length[found.row], start[found.row] + 3 * length[found.row]);
    }
  }

  hover(x, y) {
    const found = this.hit(x, y);
    const changed = found?.row !== this.hovered?.row;
    this.hovered = found;
    const lines = found ? this.callbacks.told(found) : [];
    this.tip.replaceChildren(...lines.map((line, at) => element(at ? "div" : "strong", {}, line)));
    this.tip.hidden = !lines.length;
    if (lines.length) {
      const right = x + 16 + this.tip.offsetWidth > this.width;
      this.tip.style.left = `${right ? Math.max(0, x - 12 - this.tip.offsetWidth) : x + 16}px`;
      this.tip.style.top = `${y + 14}px`;
    }
    if (changed) this.draw();
  }

  unhover() {
    this.tip.hidden = true;
    this.hovered = null;
  }

  left() {
    this.unhover();
    this.draw();
  }

  keyed(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const keys = {
      ArrowLeft: () => this.pan(-0.15), ArrowRight: () => this.pan(0.15),
      ArrowUp: () => this.step(0, -1), ArrowDown: () => this.step(0, 1),
      "+": () => this.zoom(1 / 1.5), "=": () => this.zoom(1 / 1.5), "-": () => this.zoom(1.5),
      0: () => this.whole(), Home: () => this.whole(),
      n: () => this.step(1, 0), p: () => this.step(-1, 0),
      s: () => this.setWindow([this.fromNs, this.untilNs]),
      Escape: () => { this.select(-1); this.setWindow(null); },
    };
    const act = keys[event.key] ?? keys[event.key.toLowerCase()];
    if (!act) return;
    event.preventDefault();
    act();
  }

  // From the selected operation to the next on its rank, or to the one at its time a row below.
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
      const next = run.neighbour(this.selected, along);
      if (next >= 0) this.select(next, { reveal: true });
      return;
    }
    const place = this.rows.findIndex((row) => row.copies.includes(run.operations.rank[this.selected]));
    const row = this.rows[place + down];
    if (place < 0 || !row) return;
    const middle = run.operations.start_ns[this.selected] + run.operations.length_ns[this.selected] / 2;
    const [low, high] = [run.compute.bounds[row.rank], run.compute.bounds[row.rank + 1]];
    if (low === high) return;
    const next = Math.min(above(run.compute.startNs, middle, low, high), high - 1);
    const nearer = next > low && middle - run.compute.startNs[next - 1] < Math.abs(run.compute.startNs[next] - middle) ? next - 1 : next;
    this.select(run.compute.operation[nearer], { reveal: true });
  }
}

// A colour "#rrggbb" as a pixel of image data, which has the lowest byte first.
function channels(colour) {
  const value = parseInt(colour.slice(1), 16);
  return ((255 << 24) | ((value & 255) << 16) | (value & 0xff00) | (value >> 16)) >>> 0;
}

// The smallest of 1, 2, 5, 10, ... that is not below a step.
function niceStep(least) {
  const size = 10 ** Math.floor(Math.log10(Math.max(least, 1)));
  return [1, 2, 5, 10].map((times) => times * size).find((step) => step >= least * 0.999);
}

function stepLabel(timeNs, stepNs) {
  const [unit, name] = UNITS.find(([own]) => stepNs >= own / 10 && own <= 1e9) ?? UNITS.at(-1);
  const digits = Math.max(0, Math.ceil(Math.log10(unit / stepNs)));
  return `${grouped(timeNs / unit, Math.min(digits, 6))} ${name}`;
}
