// The painter: rows, boxes, bubbles, marks and the axis of a timeline on its canvas.
//
// Where operations are wider than a pixel they are boxes; where they are narrower, each column of
// pixels shows how its time was spent, by phase, so that nothing is dropped whatever the zoom:
//
//     zoomed in    │F 3  │F 4  │   │B 0      │      boxes with numbers
//     zoomed out   ▆▆▆▅▆▇▆▆▅▃▆▆▆▆                  shares of F, B, W, Optimizer in each pixel

const LANE_SHARE = 0.28;
// Of numbers in boxes, px: the first that fits.
const NUMBER_SIZES = [12, 10, 8];

class Painter {
  constructor(timeline) {
    this.at = timeline;
    this.shares = new Shares(timeline.run);
  }

  paint() {
    const began = performance.now();
    const { context: c } = this.at;
    if (this.at.plotWidth < 1) return;
    c.setTransform(this.at.scale, 0, 0, this.at.scale, 0, 0);
    c.fillStyle = this.at.ink.paper;
    c.fillRect(0, 0, this.at.width, this.at.height);
    c.font = "11px system-ui, sans-serif";
    c.textBaseline = "middle";
    const first = Math.floor(this.at.rowTop / this.at.rowHeight);
    const last = Math.min(this.at.rows.length, first + Math.ceil((this.at.height - AXIS_HEIGHT) / this.at.rowHeight) + 1);
    for (let row = first; row < last; row += 1) this.paintRow(row, this.at.top(row));
    this.paintMarks();
    this.paintAxis();
    this.paintWindow();
    this.paintScroll();
    this.at.canvas.dataset.tookMs = (performance.now() - began).toFixed(1);
  }

  paintRow(place, top) {
    const { context: c, rowHeight } = this.at;
    const { rank } = this.at.rows[place];
    const inset = rowHeight > 16 ? 2 : 1;
    let height = rowHeight - 2 * inset;
    let lane = 0;
    if (this.at.lanes.communication) {
      lane = this.at.lanes.operations ? Math.max(3, Math.round(height * LANE_SHARE)) : height;
      height -= this.at.lanes.operations ? lane + 1 : 0;
    }
    c.save();
    c.beginPath();
    c.rect(this.at.gutter, AXIS_HEIGHT, this.at.plotWidth, this.at.height - AXIS_HEIGHT);
    c.clip();
    c.fillStyle = this.at.ink.band;
    c.fillRect(this.at.gutter, top + inset, this.at.plotWidth, rowHeight - 2 * inset);
    const { compute, communication } = this.at.run;
    if (this.at.lanes.operations && this.isDense(compute, rank)) {
      this.paintShares(compute, rank, top + inset, height, this.bubbleColours());
      this.paintLoose(rank, top + inset, height);
    } else {
      this.paintBubbles(rank, top + inset, height);
      if (this.at.lanes.operations) {
        this.paintLoose(rank, top + inset, height);
        this.paintBoxes(compute, rank, top + inset, height, true);
      }
    }
    const below = top + rowHeight - inset - lane;
    if (lane && this.isDense(communication, rank)) this.paintShares(communication, rank, below, lane);
    else if (lane) this.paintBoxes(communication, rank, below, lane, false);
    c.restore();
    this.paintLabel(this.at.rows[place], top);
  }

  paintLabel({ label, replicas }, top) {
    const { context: c } = this.at;
    if (top < AXIS_HEIGHT - this.at.rowHeight) return;
    c.save();
    c.beginPath();
    c.rect(0, AXIS_HEIGHT, this.at.gutter - 6, this.at.height - AXIS_HEIGHT);
    c.clip();
    c.font = `${Math.min(12, this.at.rowHeight - 1)}px system-ui, sans-serif`;
    c.fillStyle = this.at.ink.quiet;
    c.textAlign = "right";
    const ratio = this.at.callbacks.ratioOf?.(replicas);
    const text = ratio === null || ratio === undefined ? "" : percent(ratio, 1);
    c.fillText(text, this.at.gutter - 10, top + this.at.rowHeight / 2);
    const room = this.at.gutter - 20 - c.measureText(text).width;
    c.textAlign = "left";
    c.fillStyle = this.at.ink.text;
    c.fillText(this.fitted(label, room), 4, top + this.at.rowHeight / 2);
    c.restore();
  }

  // A label that is too long loses its middle: ranks differ at its ends.
  fitted(text, room) {
    const { context: c } = this.at;
    if (c.measureText(text).width <= room) return text;
    let keep = text.length;
    const cut = () => `${text.slice(0, Math.ceil(keep / 2))}…${text.slice(text.length - Math.floor(keep / 2))}`;
    while (keep > 1 && c.measureText(cut()).width > room) keep -= 1;
    return cut();
  }

  paintBubbles(rank, top, height) {
    const { context: c, run } = this.at;
    const { bubbles } = run;
    const [low, high] = bubbles.between(rank, this.at.fromNs, this.at.untilNs);
    const perPixel = (this.at.untilNs - this.at.fromNs) / (this.at.plotWidth * this.at.scale);
    let drawnTo = -Infinity;
    for (let i = low; i < high; i += 1) {
      const [start, end] = [bubbles.startNs[i], bubbles.endNs[i]];
      // Of those within one pixel the first is drawn: the next one to look at starts in the next.
      if (end - start < perPixel && start < drawnTo) {
        const next = above(bubbles.reachNs, drawnTo, i, high);
        if (next > i) i = next - 1;
        continue;
      }
      const left = this.at.x(start);
      const width = Math.max(this.at.x(end) - left, 1 / this.at.scale);
      c.fillStyle = this.at.lanes.causes ? run.data.causes[bubbles.cause[i]].colour : this.at.hatching;
      c.fillRect(left, top, width, height);
      drawnTo = Math.max(end, start + perPixel);
    }
  }

  // Idle time as it is hatched in printed pictures.
  hatched() {
    const tile = document.createElement("canvas");
    tile.width = tile.height = 6;
    const c = tile.getContext("2d");
    c.fillStyle = this.at.ink.bubble;
    c.fillRect(0, 0, 6, 6);
    c.strokeStyle = this.at.ink.hatch;
    c.lineWidth = 1.6;
    c.beginPath();
    for (const at of [-6, 0, 6]) {
      c.moveTo(at - 1, 7);
      c.lineTo(at + 7, -1);
    }
    c.stroke();
    return this.at.context.createPattern(tile, "repeat");
  }

  paintLoose(rank, top, height) {
    const { context: c, run } = this.at;
    const lane = run.unattributed;
    const [low, high] = lane.between(rank, this.at.fromNs, this.at.untilNs);
    c.fillStyle = run.data.unattributed_colour;
    let drawnTo = -Infinity;
    for (let i = low; i < high; i += 1) {
      const left = Math.max(this.at.x(lane.startNs[i]), drawnTo);
      const right = this.at.x(lane.endNs[i]);
      if (right - left < 0.3 && left <= drawnTo) continue;
      c.fillRect(left, top + height * 0.25, Math.max(right - left, 1 / this.at.scale), height * 0.5);
      drawnTo = Math.max(right, left + 1 / this.at.scale);
    }
  }

  // Whether a rank has more operations in view than can be distinguished.
  isDense(lane, rank) {
    const [low, high] = lane.between(rank, this.at.fromNs, this.at.untilNs);
    return high - low > this.at.plotWidth * 0.75;
  }

  // Colours of bubbles by cause, as pixels.
  bubbleColours() {
    return this.at.run.data.causes.map((own) => channels(this.at.lanes.causes ? own.colour : this.at.ink.bubble));
  }

  paintBoxes(lane, rank, top, height, numbers) {
    const [low, high] = lane.between(rank, this.at.fromNs, this.at.untilNs);
    const { context: c, run } = this.at;
    const { paint } = run.operations;
    const chosen = this.at.chain.size > 0;
    let reach = -Infinity;
    c.textAlign = "center";
    for (let i = low; i < high; i += 1) {
      const row = lane.operation[i];
      const [start, end] = [lane.startNs[i], lane.endNs[i]];
      const left = Math.max(this.at.x(start), this.at.gutter - 2);
      const right = Math.min(this.at.x(end), this.at.width + 2);
      const space = right - left > 4 ? 0.6 : 0;
      const width = Math.max(right - left - space, 1 / this.at.scale);
      // One that runs beside an earlier one has the lower half.
      const beside = Math.min(reach, end) - start > 0.1 * (end - start);
      const [y, tall] = beside ? [top + height / 2, height / 2] : [top, height];
      const own = run.data.paints[paint[row]];
      c.globalAlpha = chosen && !this.at.chain.has(row) ? 0.28 : 1;
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
    const { context: c } = this.at;
    if (!text) return;
    const size = NUMBER_SIZES.find((own) => {
      c.font = `${Math.min(own, height * 0.72)}px system-ui, sans-serif`;
      return c.measureText(text).width <= width - 2;
    });
    if (!size) return;
    c.fillStyle = colour;
    c.fillText(text, left + width / 2, top + height / 2 + 0.5);
  }

  paintShares(lane, rank, top, height, bubbleColours = []) {
    const wide = Math.round(this.at.plotWidth * this.at.scale);
    const tall = Math.max(1, Math.round(height * this.at.scale));
    const image = this.shares.image(lane, rank, [this.at.fromNs, this.at.untilNs], wide, tall, bubbleColours);
    const board = this.board ?? (this.board = document.createElement("canvas"));
    if (board.width < wide || board.height < tall) {
      board.width = Math.max(board.width, wide);
      board.height = Math.max(board.height, tall);
    }
    const c = board.getContext("2d");
    c.putImageData(image, 0, 0);
    this.at.context.globalAlpha = this.at.chain.size ? 0.28 : 1;
    this.at.context.drawImage(board, 0, 0, wide, tall, this.at.gutter, top, wide / this.at.scale, height);
    this.at.context.globalAlpha = 1;
  }

  // --- marks, axis, window

  paintMarks() {
    const { context: c, run } = this.at;
    const { rank, start_ns: start, length_ns: length } = run.operations;
    const place = new Map(this.at.rows.map((row, at) => [row.rank, at]));
    const box = (row, colour, thick) => {
      const at = place.get(rank[row]);
      if (at === undefined || length[row] < 0) return;
      const [left, right] = [this.at.x(start[row]), this.at.x(start[row] + length[row])];
      if (right < this.at.gutter || left > this.at.width) return;
      c.strokeStyle = colour;
      c.lineWidth = thick;
      c.strokeRect(left, this.at.top(at) + 1, Math.max(right - left, 1), this.at.rowHeight - 2);
    };
    c.save();
    c.beginPath();
    c.rect(this.at.gutter, AXIS_HEIGHT, this.at.plotWidth, this.at.height - AXIS_HEIGHT);
    c.clip();
    if (this.at.lanes.critical) for (const row of run.critical) this.paintCritical(row, place.get(rank[row]));
    this.paintChain(place);
    if (this.at.selected >= 0) box(this.at.selected, this.at.ink.text, 2.5);
    else if (this.at.hovered?.row >= 0) box(this.at.hovered.row, this.at.ink.text, 1.5);
    c.restore();
  }

  // A strip below an operation that bounds the iteration.
  paintCritical(row, at) {
    const { start_ns: start, length_ns: length } = this.at.run.operations;
    const [left, right] = [this.at.x(start[row]), this.at.x(start[row] + length[row])];
    if (at === undefined || right < this.at.gutter || left > this.at.width) return;
    const thick = Math.max(2, this.at.rowHeight * 0.16);
    this.at.context.fillStyle = this.at.ink.accent;
    this.at.context.fillRect(left, this.at.top(at + 1) - thick, Math.max(right - left, 1), thick);
  }

  // A line from operation to operation of the same microbatch.
  paintChain(place) {
    const { context: c } = this.at;
    const { rank, start_ns: start, length_ns: length } = this.at.run.operations;
    let last = null;
    c.strokeStyle = this.at.ink.text;
    c.lineWidth = 1.2;
    c.beginPath();
    for (const row of this.at.chain) {
      const at = place.get(rank[row]);
      if (at === undefined) continue;
      const y = this.at.top(at + 0.5);
      if (last) {
        c.moveTo(last[0], last[1]);
        c.lineTo(this.at.x(start[row]), y);
      }
      last = [this.at.x(start[row] + length[row]), y];
    }
    c.stroke();
  }

  paintAxis() {
    const { context: c } = this.at;
    c.fillStyle = this.at.ink.paper;
    c.fillRect(0, 0, this.at.width, AXIS_HEIGHT);
    c.save();
    c.beginPath();
    c.rect(this.at.gutter, 0, this.at.plotWidth, this.at.height);
    c.clip();
    c.font = "11px system-ui, sans-serif";
    this.at.bands.forEach(({ name, span }, at) => {
      const [left, right] = [Math.max(this.at.x(span[0]), this.at.gutter), Math.min(this.at.x(span[1]), this.at.width)];
      if (right <= left) return;
      c.fillStyle = at % 2 ? this.at.ink.grid : this.at.ink.bubble;
      c.fillRect(left, 0, right - left, 16);
      c.fillStyle = this.at.ink.text;
      c.textAlign = "center";
      if (c.measureText(name).width < right - left - 4) c.fillText(name, (left + right) / 2, 8.5);
    });
    const step = niceStep((this.at.untilNs - this.at.fromNs) / (this.at.plotWidth / 110));
    const origin = this.at.run.startNs;
    c.strokeStyle = this.at.ink.grid;
    c.lineWidth = 1;
    const first = Math.ceil((this.at.fromNs - origin) / step);
    for (let tick = first; tick * step <= this.at.untilNs - origin; tick += 1) {
      const time = tick * step;
      const x = this.at.x(time + origin);
      c.beginPath();
      c.moveTo(x, 32);
      c.lineTo(x, AXIS_HEIGHT);
      c.stroke();
      c.fillStyle = this.at.ink.quiet;
      const text = stepLabel(time, step);
      const half = c.measureText(text).width / 2;
      c.textAlign = "center";
      c.fillText(text, Math.min(Math.max(x, this.at.gutter + half + 2), this.at.width - half - 2), 25);
    }
    c.restore();
    c.fillStyle = this.at.ink.quiet;
    c.textAlign = "left";
    c.fillText("iteration", 4, 8.5);
    c.fillText("time since start", 4, 25);
  }

  paintWindow() {
    if (!this.at.window) return;
    const { context: c } = this.at;
    const [left, right] = this.at.window.map((time) => Math.min(Math.max(this.at.x(time), this.at.gutter), this.at.width));
    c.save();
    c.globalAlpha = 0.16;
    c.fillStyle = this.at.ink.accent;
    c.fillRect(left, AXIS_HEIGHT, right - left, this.at.height - AXIS_HEIGHT);
    c.restore();
    c.strokeStyle = this.at.ink.accent;
    c.lineWidth = 1.5;
    c.strokeRect(left, AXIS_HEIGHT, right - left, this.at.height - AXIS_HEIGHT - 1);
  }

  // Which of the rows are in view, where not all are.
  paintScroll() {
    const { context: c } = this.at;
    const room = this.at.height - AXIS_HEIGHT;
    const all = this.at.rows.length * this.at.rowHeight;
    if (all <= room) return;
    c.fillStyle = this.at.ink.quiet;
    c.fillRect(this.at.width - 5, AXIS_HEIGHT + (this.at.rowTop / all) * room, 4, Math.max(12, (room / all) * room));
  }
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
