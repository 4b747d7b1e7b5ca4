// The overview of a run with many ranks has one colored cell per pipeline and stage. A click on a cell
// shows the operations of its ranks.

const CELL_WIDTH = [5, 16];
const CELL_HEIGHT = [2, 10];
const BAND_GAP = 16;
const OVERVIEW_GUTTER = 92;
const MAX_HEIGHT = 560;
// Colors of values below, at and above the median.
const DIVERGING = ["#2b6cb0", "#f4f4f2", "#b3261e"];

class Overview {
  constructor(run, shards, show) {
    [this.run, this.shards, this.show] = [run, shards, show];
    this.canvas = byId("overview").querySelector("canvas");
    this.tip = element("div", { class: "tip", "aria-hidden": "true", hidden: true });
    byId("overview").append(this.tip);
    this.context = this.canvas.getContext("2d");
    this.columns = this.pipelines();
    this.stages = [...new Set(run.report.ranks.map((rank) => rank.stage))].sort((a, b) => a - b);
    this.measures = this.listMeasures();
    this.measure = this.measures[0];
    this.cursor = [0, 0];
    this.shown = -1;
    this.listen();
    new ResizeObserver(() => this.paint()).observe(byId("overview"));
    this.choose(0);
  }

  // One column per pipeline. If pipelines are unknown, one column for the first copies of all stages,
  // one for the second copies, and so on.
  pipelines() {
    const found = new Map();
    const copies = new Map();
    for (const rank of this.run.report.ranks) {
      const shard = this.shards ? this.shards.of(rank.index) : 0;
      const copy = copies.get(rank.stage) ?? 0;
      if (rank.pipeline === null) copies.set(rank.stage, copy + 1);
      const key = rank.pipeline === null ? `copy ${copy}` : rank.pipeline;
      const column = found.get(key) ?? found.set(key, { pipeline: rank.pipeline, copy, first: rank.index, shard, cells: new Map() }).get(key);
      (column.cells.get(rank.stage) ?? column.cells.set(rank.stage, []).get(rank.stage)).push(rank.index);
    }
    return [...found.values()];
  }

  name({ pipeline, copy }) {
    return pipeline === null ? `copy ${copy}` : `pipeline p${pipeline}`;
  }

  // The quantities that cells can show: the bubble ratio, and the time of each phase relative to the
  // median of its stage.
  listMeasures() {
    const { means } = this.run;
    const middle = measureDistribution(means.ratio)?.median ?? 0;
    const found = [{ name: `${this.run.data.measure.name}`, values: means.ratio, middle, least: 0.01, words: percent }];
    for (const [phase, values] of Object.entries(means.busy)) {
      const words = (times) => times === null ? "–" : `${significant(times)} times the stage’s median`;
      found.push({ name: `${phase} time / the stage’s median`, values: divideByStageMedian(this.run, values), middle: 1, least: 0.05, words });
    }
    return found;
  }

  choose(at) {
    this.measure = this.measures[at];
    const away = this.measure.values.filter((value) => value !== null).map((value) => Math.abs(value - this.measure.middle));
    this.reach = Math.max(this.measure.least, away.reduce((most, distance) => Math.max(most, distance), 0) * 0.8);
    this.values = this.columns.map((column) => this.stages.map((stage) => this.valueOf(column.cells.get(stage))));
    this.paint();
    const { middle, words } = this.measure;
    byId("overview-legend").replaceChildren(...[middle - this.reach, middle, middle + this.reach].map((value, place) =>
      element("li", {}, makeSwatch(DIVERGING[place]), words(value) + (place === 0 ? " or less" : place === 2 ? " or more" : ""))));
  }

  // Returns the value of a cell: the value of its rank that differs most from the median.
  valueOf(ranks) {
    const known = (ranks ?? []).map((rank) => this.measure.values[rank]).filter((value) => value !== null);
    const away = (value) => Math.abs(value - this.measure.middle);
    return known.length ? known.reduce((most, value) => (away(value) > away(most) ? value : most)) : null;
  }

  // --- geometry

  layOut() {
    const room = Math.max(100, this.canvas.parentElement.clientWidth - OVERVIEW_GUTTER - 2);
    const count = this.columns.length;
    this.wide = Math.min(CELL_WIDTH[1], Math.max(CELL_WIDTH[0], Math.floor(room / count)));
    this.perBand = Math.max(1, Math.min(count, Math.floor(room / this.wide)));
    this.bands = Math.ceil(count / this.perBand);
    const rows = this.stages.length;
    this.tall = Math.min(CELL_HEIGHT[1], Math.max(CELL_HEIGHT[0], Math.floor((MAX_HEIGHT / this.bands - BAND_GAP) / rows)));
    this.bandHeight = this.tall * rows + BAND_GAP;
    this.height = this.bands * this.bandHeight;
    this.scale = Math.max(window.devicePixelRatio || 1, matchMedia("print").matches ? 2 : 1);
    this.width = room + OVERVIEW_GUTTER;
    this.canvas.style.height = `${this.height}px`;
    this.canvas.width = Math.round(this.width * this.scale);
    this.canvas.height = Math.round(this.height * this.scale);
  }

  // Returns the upper left corner of a cell.
  corner(column, row) {
    const band = Math.floor(column / this.perBand);
    return [OVERVIEW_GUTTER + (column % this.perBand) * this.wide, band * this.bandHeight + BAND_GAP + row * this.tall];
  }

  cellAt(x, y) {
    const band = Math.floor(y / this.bandHeight);
    const row = Math.floor((y - band * this.bandHeight - BAND_GAP) / this.tall);
    const place = Math.floor((x - OVERVIEW_GUTTER) / this.wide);
    const column = band * this.perBand + place;
    const inside = place >= 0 && place < this.perBand && row >= 0 && row < this.stages.length && column < this.columns.length;
    return inside ? [column, row] : null;
  }

  paint() {
    if (!this.values || this.canvas.parentElement.clientWidth < 1) return;
    this.layOut();
    const style = getComputedStyle(this.canvas);
    const ink = (name) => style.getPropertyValue(`--${name}`).trim();
    const { context: c } = this;
    c.setTransform(this.scale, 0, 0, this.scale, 0, 0);
    c.fillStyle = ink("paper");
    c.fillRect(0, 0, this.width, this.height);
    const colors = DIVERGING.map(parseColor);
    const between = this.wide > 6 && this.tall > 4 ? 1 : 0;
    this.values.forEach((rows, column) => rows.forEach((value, row) => {
      const [x, y] = this.corner(column, row);
      c.fillStyle = value === null ? ink("gap") : this.colorOf(value, colors);
      c.fillRect(x, y, this.wide - between, this.tall - between);
    }));
    c.font = "11px system-ui, sans-serif";
    c.fillStyle = ink("quiet");
    c.textBaseline = "middle";
    for (let band = 0; band < this.bands; band += 1) this.paintLabels(c, band);
    c.strokeStyle = ink("accent");
    c.lineWidth = 2;
    this.columns.forEach((column, at) => {
      if (column.pipeline !== null && column.shard === this.shown) this.outline(c, at, 0, this.stages.length);
      if (column.pipeline === null) this.underline(c, column, at);
    });
    if (document.activeElement === this.canvas) {
      c.strokeStyle = ink("text");
      this.outline(c, ...this.cursor, 1);
    }
  }

  // Marks the cells that the timeline shows in a column that is not a pipeline.
  underline(c, column, at) {
    const shown = this.shards?.all[this.shown];
    if (!shown) return;
    this.stages.forEach((stage, row) => {
      const ranks = column.cells.get(stage) ?? [];
      if (!ranks.some((rank) => shown.first <= rank && rank < shown.last)) return;
      const [x, y] = this.corner(at, row);
      c.strokeRect(x, y + this.tall - 1, this.wide, 0.5);
    });
  }

  outline(c, column, row, rows) {
    const [x, y] = this.corner(column, row);
    c.strokeRect(x - 1, y - 1, this.wide + 1, this.tall * rows + 1);
  }

  paintLabels(c, band) {
    const [first, last] = [band * this.perBand, Math.min(this.columns.length, (band + 1) * this.perBand) - 1];
    const [, top] = this.corner(first, 0);
    const stage = (row) => this.stages[row] === null ? "" : `stage ${this.stages[row]}`;
    c.textAlign = "right";
    c.fillText(stage(0), OVERVIEW_GUTTER - 6, top + Math.max(this.tall / 2, 5));
    const bottom = top + this.tall * (this.stages.length - 0.5);
    if (this.tall * this.stages.length > 26) c.fillText(stage(this.stages.length - 1), OVERVIEW_GUTTER - 6, Math.min(bottom, top + this.tall * this.stages.length - 5));
    c.textAlign = "left";
    c.fillText(this.name(this.columns[first]), OVERVIEW_GUTTER, top - 8);
    if (last - first > 40) {
      c.textAlign = "right";
      c.fillText(this.name(this.columns[last]), OVERVIEW_GUTTER + (last - first + 1) * this.wide, top - 8);
    }
  }

  colorOf(value, [low, middle, high]) {
    const share = Math.max(-1, Math.min(1, (value - this.measure.middle) / this.reach));
    const pixel = mixColors(middle, share < 0 ? low : high, Math.abs(share));
    return `rgb(${pixel & 255} ${(pixel >> 8) & 255} ${(pixel >> 16) & 255})`;
  }

  // --- pointer and keys

  listen() {
    const { canvas } = this;
    const place = (event) => {
      const box = canvas.getBoundingClientRect();
      return this.cellAt(event.clientX - box.left, event.clientY - box.top);
    };
    canvas.addEventListener("pointermove", (event) => this.hover(place(event), event));
    canvas.addEventListener("pointerleave", () => { this.tip.hidden = true; });
    canvas.addEventListener("click", (event) => {
      const cell = place(event);
      if (!cell) return;
      this.cursor = cell;
      this.open();
    });
    for (const kind of ["focus", "blur"]) canvas.addEventListener(kind, () => this.paint());
    canvas.addEventListener("keydown", (event) => this.onKey(event));
    const measures = byId("overview-measure");
    measures.append(...this.measures.map((measure, at) => element("option", { value: at }, measure.name)));
    measures.addEventListener("change", () => this.choose(Number(measures.value)));
    const chosen = byId("overview-pipeline");
    const known = this.columns.map((column) => column.pipeline).filter((pipeline) => pipeline !== null);
    chosen.parentElement.hidden = !known.length;
    [chosen.min, chosen.max] = [known[0] ?? 0, known.at(-1) ?? 0];
    chosen.addEventListener("change", () => {
      const at = this.columns.findIndex((candidate) => String(candidate.pipeline) === chosen.value);
      if (at < 0) return;
      this.cursor = [at, 0];
      this.open();
    });
  }

  describe([column, row]) {
    const pipeline = this.columns[column];
    const ranks = pipeline.cells.get(this.stages[row]) ?? [];
    const stage = this.stages[row] === null ? "" : `, stage ${this.stages[row]}`;
    const labels = ranks.slice(0, 3).map((rank) => cleanText(this.run.report.ranks[rank].label, 60)).join(", ");
    return [`${this.name(pipeline)}${stage}`, `${this.measure.name}: ${this.measure.words(this.values[column][row])}`, ranks.length > 3 ? `${labels} and ${ranks.length - 3} more` : labels || "no rank"];
  }

  hover(cell, event) {
    this.tip.hidden = !cell;
    if (!cell) return;
    this.tip.replaceChildren(...this.describe(cell).map((line, at) => element(at ? "div" : "strong", {}, line)));
    const box = this.canvas.parentElement.getBoundingClientRect();
    const x = event.clientX - box.left;
    const right = x + 16 + this.tip.offsetWidth > box.width;
    this.tip.style.left = `${right ? Math.max(0, x - 12 - this.tip.offsetWidth) : x + 16}px`;
    this.tip.style.top = `${event.clientY - box.top + this.canvas.parentElement.scrollTop + 14}px`;
  }

  onKey(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const [column, row] = this.cursor;
    const moves = { ArrowLeft: [column - 1, row], ArrowRight: [column + 1, row], ArrowUp: [column, row - 1], ArrowDown: [column, row + 1], Home: [0, row], End: [this.columns.length - 1, row] };
    if (event.key === "Enter" || event.key === " ") this.open();
    else if (moves[event.key]) {
      const limit = (value, most) => Math.max(0, Math.min(most, value));
      this.cursor = [limit(moves[event.key][0], this.columns.length - 1), limit(moves[event.key][1], this.stages.length - 1)];
      byId("live").textContent = this.describe(this.cursor).join("; ");
      this.paint();
    } else return;
    event.preventDefault();
  }

  open() {
    const column = this.columns[this.cursor[0]];
    this.show((column.cells.get(this.stages[this.cursor[1]]) ?? [column.first])[0]);
  }

  // Marks the pipeline that the timeline shows.
  mark(shard) {
    this.shown = shard;
    const column = this.columns.find((candidate) => candidate.shard === shard);
    if (column && column.pipeline !== null) byId("overview-pipeline").value = String(column.pipeline);
    this.paint();
  }
}

// --- outliers

// The table of outliers.
function listOutliers(run, show) {
  const { outliers } = run.report;
  if (!outliers.length) return [makeNote("No rank, host, pipeline or stage stands out.")];
  const rows = outliers.map((outlier) => [
    element("button", { type: "button", class: "link", onclick: () => show(outlier.ranks[0]) }, `${outlier.ranks.some((rank) => run.culprits.has(rank)) ? "► " : ""}${cleanText(outlier.name, 120)}`),
    formatNumber(outlier.ranks.length), makeShareCell(outlier.bubble_ratio), `${outlier.above_median > 0 ? "+" : ""}${significant(100 * outlier.above_median, 2)}`, cleanText(outlier.why, 120),
  ]);
  return explainTable("outliers", table(null, ["what", "ranks", "ratio", "vs. median, points", "why"], rows, { id: "standing-out", lastText: true }));
}

// Distributions over ranks: one row per quantity, and one row per stage for the ratio.
function makeSpreadTable(run) {
  const { means } = run;
  const times = [...Object.entries(means.busy).map(([phase, values]) => [`${phase} time`, values]), ["bubble", means.bubble]];
  const unit = chooseCommonUnit(times.flatMap(([, values]) => values));
  const row = (name, values, words) => {
    const spread = measureDistribution(values);
    return spread && [name, words(spread.low), words(spread.median), words(spread.p95), words(spread.high)];
  };
  const stages = [...new Set(run.report.ranks.map((rank) => rank.stage))].filter((stage) => stage !== null).sort((a, b) => a - b);
  const of = (stage) => run.report.ranks.filter((rank) => rank.stage === stage).map((rank) => means.ratio[rank.index]);
  const rows = [
    row("ratio, %", means.ratio, makeShareCell), row("launch gaps, %", means.gap, makeShareCell),
    ...times.map(([name, values]) => row(`${name}, ${unit[1]}`, values, (ns) => makeTimeCell(ns, unit))),
    ...stages.map((stage) => row(`ratio of stage ${stage}, %`, of(stage), makeShareCell)),
  ];
  return table(`${formatCount(run.report.ranks.length, "rank")}, means of the averaged iterations`, ["quantity", "minimum", "median of ranks", "95 %", "maximum"], rows.filter(Boolean), { id: "spread" });
}
