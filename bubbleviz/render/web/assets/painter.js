// The painter: draws the rows of a timeline on its canvas.
//
// Operations that are wider than a pixel are drawn as boxes. If operations are narrower, each pixel
// column shows how its time was spent, by phase. No operation is lost at any zoom level:
//
//     zoomed in    │F 3  │F 4  │   │B 0      │      boxes with numbers
//     zoomed out   ▆▆▆▅▆▇▆▆▅▃▆▆▆▆                  shares of F, B, W, Optimizer in each pixel
//
// Both are written into a raster, so the cost of a frame depends on the number of pixels, not on the
// number of operations. Marks over the rows are drawn by the canvas. Rows are rewritten only if they
// have changed.

const LANE_SHARE = 0.28;
// Font sizes of numbers in boxes, px. The first size that fits is used.
const NUMBER_SIZES = [12, 10, 9];
// Minimum width of a box with a number, px.
const MIN_NUMBERED_WIDTH = 9;
// Opacity of the background over operations that are not selected.
const PALE = 0.72;
// Minimum number of characters of a device in the label of a lane.
const MIN_DEVICE_LENGTH = 5;

class Painter {
  constructor(timeline) {
    this.timeline = timeline;
    this.spent = new SpentByRank(timeline.run);
    this.raster = new Raster();
    this.marks = new Marks(timeline);
    this.minimap = new Minimap(timeline);
    this.texts = [];
    this.widths = new Map();
  }

  // Discards the sums of the previous ranks.
  forget() {
    this.spent = new SpentByRank(this.timeline.run);
    this.drawn = this.labeled = null;
  }

  paint() {
    const began = performance.now();
    const { context: c } = this.timeline;
    if (this.timeline.plotWidth < 1) return;
    const { left, top, wide, tall } = this.plot();
    const key = JSON.stringify([this.timeline.fromNs, this.timeline.untilNs, this.timeline.rowTop, this.timeline.by, this.timeline.lanes, this.timeline.ink, this.timeline.chain.size && this.timeline.selected, wide, tall, this.timeline.rowHeight]);
    if (key !== this.drawn) this.paintRows(wide, tall);
    this.drawn = key;
    c.setTransform(1, 0, 0, 1, 0, 0);
    if (this.timeline.printing) this.printRows(left, top);
    else c.putImageData(this.raster.image, left, top);
    c.setTransform(this.timeline.scale, 0, 0, this.timeline.scale, 0, 0);
    c.textBaseline = "middle";
    this.paintTexts();
    this.paintLabels();
    this.marks.paint();
    this.minimap.paint();
    this.timeline.canvas.dataset.tookMs = (performance.now() - began).toFixed(1);
    this.timeline.canvas.dataset.work = this.raster.work;
  }

  // When the page is printed, only the canvas's drawing commands are printed, not its pixels.
  printRows(left, top) {
    const sheet = document.createElement("canvas");
    [sheet.width, sheet.height] = [this.raster.wide, this.raster.tall];
    sheet.getContext("2d").putImageData(this.raster.image, 0, 0);
    this.timeline.context.drawImage(sheet, left, top);
  }

  // Position and size of the plot in pixels of the screen.
  plot() {
    const { scale, canvas } = this.timeline;
    const [left, top] = [Math.round(this.timeline.gutter * scale), Math.round(AXIS_HEIGHT * scale)];
    return { left, top, wide: Math.max(1, canvas.width - left), tall: Math.max(1, canvas.height - top) };
  }

  // Half-open range of the rows in view.
  inView() {
    const { rowTop, rowHeight, rows, height } = this.timeline;
    const first = Math.floor(rowTop / rowHeight);
    return [first, Math.min(rows.length, first + Math.ceil((height - AXIS_HEIGHT) / rowHeight) + 1)];
  }

  paintRows(wide, tall) {
    const { ink } = this.timeline;
    this.colors = {
      paper: parseColor(ink.paper), band: parseColor(ink.band), gap: parseColor(ink.gap),
      loose: parseColor(this.timeline.run.data.unattributed_color),
      causes: this.timeline.run.data.causes.map((cause) => parseColor(cause.color)),
      paints: this.timeline.run.data.paints.map((paint) => paint.bands.map(([, color]) => parseColor(color))),
    };
    this.raster.begin(wide, tall, this.colors.paper);
    this.perNs = wide / (this.timeline.untilNs - this.timeline.fromNs);
    this.texts.length = 0;
    this.cramped = false;
    const [first, last] = this.inView();
    for (let row = first; row < last; row += 1) this.paintRow(row);
  }

  // Converts a time, or a height on the page, to whole pixels.
  pixel(timeNs) {
    return Math.round((timeNs - this.timeline.fromNs) * this.perNs);
  }

  line(y) {
    return Math.round((y - AXIS_HEIGHT) * this.timeline.scale);
  }

  paintRow(place) {
    const { rowHeight, lanes, run } = this.timeline;
    const { rank } = this.timeline.rows[place];
    const [above, below] = rowHeight > 16 ? [2, 2] : rowHeight > 7 ? [1, 1] : [0, 1];
    const top = this.timeline.top(place) + above;
    const height = rowHeight - above - below;
    const lane = !lanes.communication ? 0 : lanes.operations ? Math.max(2, Math.round(height * LANE_SHARE)) : height;
    const edges = [this.line(top), this.line(top + height - (lane && lanes.operations ? lane + 1 : lane))];
    this.raster.box(0, this.raster.wide, edges[0], this.line(top + height), this.colors.band);
    if (!lane || lanes.operations) this.paintOperations(rank, edges[0], edges[1]);
    if (lane) {
      const band = [this.line(top + height - lane), this.line(top + height)];
      if (this.isDense(run.communication, rank)) this.paintShares(run.communication, rank, ...band, false);
      else this.paintBoxes(run.communication, rank, ...band, false);
    }
  }

  paintOperations(rank, top, bottom) {
    const { run, lanes } = this.timeline;
    if (!lanes.operations) {
      this.paintBubbles(rank, top, bottom);
      return;
    }
    // On a page about idle time, only bubbles are in the lane of idle time.
    const dense = this.isDense(run.compute, rank) || (run.data.idle && this.isDense(run.bubbles, rank));
    if (dense) this.paintShares(run.compute, rank, top, bottom, true);
    else this.paintBubbles(rank, top, bottom);
    this.paintUnattributed(rank, top, bottom);
    if (!dense) this.paintBoxes(run.compute, rank, top, bottom, true);
  }

  // Whether a rank has more operations in view than can be distinguished.
  isDense(lane, rank) {
    const [low, high] = lane.between(rank, this.timeline.fromNs, this.timeline.untilNs);
    return high - low > this.timeline.plotWidth * 0.75;
  }

  pale(pixel) {
    return this.timeline.chain.size ? mixColors(pixel, this.colors.band, PALE) : pixel;
  }

  paintShares(lane, rank, top, bottom, withIdle) {
    const work = this.spent.work(lane, rank);
    const { causes } = this.timeline.lanes;
    const idle = withIdle ? this.spent.idle(rank, causes) : { count: 0, until() {} };
    const idleColors = (causes ? this.colors.causes : [this.colors.gap]).map((color) => this.pale(color));
    const workColors = work.colors.map((color) => this.pale(parseColor(color)));
    this.raster.columns([this.timeline.fromNs, this.timeline.untilNs], top, bottom, work, workColors, idle, idleColors);
  }

  // Visits the intervals in view with their pixels. Only the first of several in the same pixel is visited.
  distinct(lane, rank, visit) {
    const [low, high] = lane.between(rank, this.timeline.fromNs, this.timeline.untilNs);
    const perPixel = 1 / this.perNs;
    let drawnTo = -Infinity;
    for (let i = low; i < high; i += 1) {
      const start = lane.startNs[i];
      const end = lane.endNs[i];
      // Continue with the first interval that ends in a later pixel.
      if (end < drawnTo) {
        i = Math.max(i, findFirstAbove(lane.reachNs, drawnTo, i, high) - 1);
        continue;
      }
      const left = this.pixel(Math.max(start, drawnTo));
      visit(i, left, Math.max(this.pixel(end), left + 1));
      drawnTo = Math.max(end, start + perPixel);
    }
  }

  paintBubbles(rank, top, bottom) {
    const { bubbles } = this.timeline.run;
    const { causes } = this.timeline.lanes;
    const colors = this.colors.causes;
    this.distinct(bubbles, rank, (i, left, right) => {
      if (causes) this.raster.box(left, right, top, bottom, colors[bubbles.cause[i]]);
      else this.raster.pattern(left, right, top, bottom, this.timeline.hatching);
    });
  }

  paintUnattributed(rank, top, bottom) {
    const quarter = Math.round((bottom - top) / 4);
    this.distinct(this.timeline.run.unattributed, rank, (_, left, right) => {
      this.raster.box(left, right, top + quarter, Math.max(bottom - quarter, top + quarter + 1), this.colors.loose);
    });
  }

  paintBoxes(lane, rank, top, bottom, numbered) {
    const { run, chain } = this.timeline;
    const [low, high] = lane.between(rank, this.timeline.fromNs, this.timeline.untilNs);
    const { paint } = run.operations;
    const numbers = numbered && (bottom - top) / this.timeline.scale >= 10;
    const middle = Math.round((top + bottom) / 2);
    for (let i = low; i < high; i += 1) {
      const row = lane.operation[i];
      const start = lane.startNs[i];
      const end = lane.endNs[i];
      const left = this.pixel(start);
      let right = Math.max(this.pixel(end), left + 1);
      if (right - left > 4 * this.timeline.scale) right -= 1;
      const half = lane.half[i];
      const [from, until] = [half === 2 ? middle : top, half === 1 ? middle : bottom];
      const faded = chain.size && !chain.has(row);
      this.paintBands(paint[row], left, right, from, until, faded);
      if (numbers && !half && !faded && !this.cramped && left >= 0 && right <= this.raster.wide && run.operations.microbatch[row] >= 0) {
        this.cramped = right - left < MIN_NUMBERED_WIDTH * this.timeline.scale;
        this.texts.push([row, left, right, from, bottom]);
      }
    }
  }

  paintBands(paint, left, right, top, bottom, faded) {
    const { bands } = this.timeline.run.data.paints[paint];
    let share = 0;
    let from = top;
    for (let k = 0; k < bands.length; k += 1) {
      share += bands[k][0];
      const until = k === bands.length - 1 ? bottom : Math.round(top + share * (bottom - top));
      const color = this.colors.paints[paint][k];
      this.raster.box(left, right, from, until, faded ? this.pale(color) : color);
      from = until;
    }
    // Equal bands at the top and the bottom are an outline, so the sides get edges in the same color.
    const last = bands.length - 1;
    const edge = Math.min(Math.round(this.timeline.scale), Math.floor((right - left) / 3));
    if (last < 2 || bands[0][1] !== bands[last][1]) return;
    const color = faded ? this.pale(this.colors.paints[paint][0]) : this.colors.paints[paint][0];
    this.raster.box(left, left + edge, top, bottom, color);
    this.raster.box(right - edge, right, top, bottom, color);
  }

  // --- letters

  // Microbatch numbers, either in all boxes that are fully in view or in none, all in the same size.
  paintTexts() {
    const { context: c, run, scale, gutter } = this.timeline;
    if (this.cramped) return;
    const numbered = this.texts.map(([row, ...box]) => [run.microbatches(row), row, ...box]);
    const size = NUMBER_SIZES.find((candidate) => numbered.every(([text, , left, right]) => this.widthOf(text, candidate) <= (right - left) / scale - 2));
    if (!size) return;
    c.textAlign = "center";
    c.font = `${size}px system-ui, sans-serif`;
    for (const [text, row, left, right, top, bottom] of numbered) {
      c.fillStyle = run.data.paints[run.operations.paint[row]].number;
      c.fillText(text, gutter + (left + right) / 2 / scale, AXIS_HEIGHT + (top + bottom) / 2 / scale + 0.5);
    }
  }

  // All digits have the same width, and a semicolon is narrower.
  widthOf(text, size) {
    const key = size * 64 + text.length;
    if (!this.widths.has(key)) {
      this.timeline.context.font = `${size}px system-ui, sans-serif`;
      this.widths.set(key, this.timeline.context.measureText("8".repeat(text.length)).width);
    }
    return this.widths.get(key);
  }

  // Names of rows, on a separate canvas, because drawing text is slow.
  paintLabels() {
    const { scale, gutter, height, canvas } = this.timeline;
    const key = JSON.stringify([this.timeline.rowTop, this.timeline.by, this.timeline.ink, gutter, height, scale, this.timeline.rowHeight, this.timeline.ratedIteration]);
    this.board ??= document.createElement("canvas");
    const { left } = this.plot();
    if (key !== this.labeled) {
      [this.board.width, this.board.height] = [left, canvas.height];
      const c = this.board.getContext("2d");
      c.setTransform(scale, 0, 0, scale, 0, 0);
      c.fillStyle = this.timeline.ink.paper;
      c.fillRect(0, 0, gutter + 1, height);
      c.textBaseline = "middle";
      const [first, last] = this.inView();
      const step = Math.ceil(MIN_NAMED_HEIGHT / this.timeline.rowHeight);
      const named = [];
      for (let row = Math.ceil(first / step) * step; row < last; row += step) named.push({ ...this.label(c, this.timeline.rows[row]), middle: this.timeline.top(row) + this.timeline.rowHeight / 2 });
      // All labels have the same form, as short as the longest one needs.
      const form = Math.max(0, ...named.map((label) => this.formOf(c, label)));
      canvas.dataset.labels = JSON.stringify(named.map((label) => this.paintLabel(c, label, form)));
    }
    this.labeled = key;
    this.timeline.context.drawImage(this.board, 0, 0, left, canvas.height, 0, 0, left / scale, canvas.height / scale);
  }

  // Returns the forms of a row's label, longest first, and the text and space next to it.
  label(c, { label, rank, replicas }) {
    const slow = replicas.some((replica) => this.timeline.run.culprits.has(replica));
    const ratio = this.timeline.callbacks.ratioOf?.(rank, this.timeline.ratedIteration);
    const text = ratio === null || ratio === undefined ? "" : percent(ratio);
    const font = `${slow ? "bold " : ""}${Math.max(10, Math.min(12, this.timeline.rowHeight - 1))}px system-ui, sans-serif`;
    c.font = font;
    const room = this.timeline.gutter - 17 - c.measureText(text).width;
    const forms = this.timeline.run.data.idle ? [shortenLane(c, label, room)] : listLabelForms(slow ? `► ${label}` : label);
    return { forms, slow, text, font, room };
  }

  // Returns the index of the longest form that fits, or of the last form if none fits.
  formOf(c, { forms, font, room }) {
    c.font = font;
    const fitting = forms.findIndex((form) => c.measureText(form).width <= room);
    return fitting < 0 ? forms.length - 1 : fitting;
  }

  // Draws a label in the given form, and returns the drawn text.
  paintLabel(c, { forms, slow, text, font, room, middle }, form) {
    c.font = font;
    c.fillStyle = this.timeline.ink.quiet;
    c.textAlign = "right";
    // Keeps the names of the first and the last row inside the canvas if rows are not tall.
    const y = this.timeline.rowTop ? middle : Math.max(AXIS_HEIGHT + 6, Math.min(this.timeline.height - 6, middle));
    c.fillText(text, this.timeline.gutter - 10, y);
    c.textAlign = "left";
    c.fillStyle = slow ? this.timeline.ink.accent : this.timeline.ink.text;
    const label = truncateMiddle(c, forms[form], room);
    c.fillText(label, 4, y);
    return label;
  }
}

// Returns a label and its shorter forms: without the location after the stage, then without the number
// of copies, then abbreviated, then with the mark next to it, then without the mark. Marked labels are bold as well.
function listLabelForms(whole) {
  const [place] = whole.split(" · ");
  const [name] = place.split(" (one of ");
  const short = name.replace("stage ", "s").replace(" GPU ", ":");
  return [whole, place, name, short, short.replace("► ", "►"), short.replace("► ", "")];
}

// Shortens the label of a lane, such as "compute, node1:0". The name of the lane is kept, and the device
// is left out if there is no room for a few of its characters.
function shortenLane(c, label, room) {
  if (c.measureText(label).width <= room) return label;
  const [lane, device = ""] = label.split(/, (.*)/);
  const part = truncateMiddle(c, device.replace(" GPU ", ":"), room - c.measureText(`${lane}, `).width);
  return part.length >= MIN_DEVICE_LENGTH ? `${lane}, ${part}` : lane.replace("communication", "comm.");
}

// Cuts out the middle of a label that is too long, because the labels of ranks differ at their ends.
function truncateMiddle(c, text, room) {
  if (c.measureText(text).width <= room) return text;
  let keep = text.length;
  const cut = () => `${text.slice(0, Math.ceil(keep / 2))}…${text.slice(text.length - Math.floor(keep / 2))}`;
  while (keep > 1 && c.measureText(cut()).width > room) keep -= 1;
  return cut();
}

// Returns the hatch of idle time as a square tile of pixels. It is the same as in pictures.
function makeHatch(ink, scale) {
  const tile = document.createElement("canvas");
  const size = Math.max(4, Math.round(6 * scale));
  tile.width = tile.height = size;
  const c = tile.getContext("2d");
  c.scale(size / 6, size / 6);
  c.fillStyle = ink.gap;
  c.fillRect(0, 0, 6, 6);
  c.strokeStyle = ink.hatch;
  c.lineWidth = 1.6;
  c.beginPath();
  for (const at of [-6, 0, 6]) {
    c.moveTo(at - 1, 7);
    c.lineTo(at + 7, -1);
  }
  c.stroke();
  return new Uint32Array(c.getImageData(0, 0, size, size).data.buffer.slice(0));
}
