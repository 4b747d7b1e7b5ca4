// Vega-Lite charts: idle time by rank and cause, phase times, and iteration ratios.

// Maximum number of bars. If there are more, ranks are combined into stages. And maximum number of
// columns of a heat map. If there are more, several microbatches share a column.
const MAX_BARS = 64;
const MAX_COLUMNS = 256;

// The style sheet sets the colors of text and lines, because they differ between screen and paper.
const SHARED = {
  background: null,
  font: "system-ui, sans-serif",
  view: { stroke: null },
  axis: { titleFontWeight: "normal" },
  legend: { orient: "top", columns: 4, symbolType: "square" },
};

// Returns the bar of a rank, or the bar of its stage. A missing bar is added.
function findBar(rows, run, rank, byStage) {
  const { stage } = run.report.ranks[rank];
  const label = byStage && stage !== null ? `stage ${stage}` : run.rankLabel(rank);
  const row = rows.get(label) ?? rows.set(label, { sums: {}, n: 0, order: byStage ? stage ?? rank : rank }).get(label);
  row.n += 1;
  return row;
}

function sumIdleOfEntries(run, byStage) {
  const { headline, iterations } = run.report;
  const rows = new Map();
  for (const iteration of iterations.filter((iteration) => iteration.averaged && iteration.bubble_ratio[headline] !== null)) {
    const { rank: ranks, cause_ns: idle } = iteration.ranks ?? { rank: [] };
    ranks.forEach((rank, at) => {
      const row = findBar(rows, run, rank, byStage);
      for (const [cause, column] of Object.entries(idle[headline] ?? {})) row.sums[cause] = (row.sums[cause] ?? 0) + column[at];
    });
  }
  return rows;
}

function sumIdleOfMeans(run, byStage) {
  const rows = new Map();
  run.report.ranks.forEach(({ index }) => {
    const row = findBar(rows, run, index, byStage);
    for (const [cause, ns] of Object.entries(run.means.idle)) row.sums[cause] = (row.sums[cause] ?? 0) + (ns[index] ?? 0);
  });
  return rows;
}

// Chart of the idle time of each rank by cause. Times are means over the averaged iterations.
function makeCausesSpec(run) {
  const { report } = run;
  const byStage = report.ranks.length > MAX_BARS;
  const rows = run.means.idle ? sumIdleOfMeans(run, byStage) : sumIdleOfEntries(run, byStage);
  const values = [];
  for (const [label, { sums, n, order }] of rows) {
    run.data.causes.forEach(({ name }, place) => {
      if (sums[name]) values.push({ label, order, cause: name, place, ms: sums[name] / n / 1e6 });
    });
  }
  const used = run.data.causes.filter(({ name }) => values.some((value) => value.cause === name));
  return values.length === 0 ? null : {
    description: "Bars: idle time of each rank by cause, mean of the averaged iterations, in milliseconds.",
    data: { values },
    height: rows.size * (rows.size > 24 ? 12 : 20),
    width: "container",
    mark: { type: "bar", tooltip: true, stroke: "#7a828c", strokeWidth: 0.5 },
    encoding: {
      y: { field: "label", type: "nominal", sort: { field: "order", op: "min" }, title: null, axis: { labelLimit: 170, labelOverlap: false } },
      x: { field: "ms", type: "quantitative", title: "idle ms per iteration" },
      color: { field: "cause", type: "nominal", title: null, scale: { domain: used.map((cause) => cause.name), range: used.map((cause) => cause.color) } },
      order: { field: "place" },
      tooltip: [
        { field: "label", title: byStage ? "stage" : "rank" }, { field: "cause" }, { field: "ms", title: "ms", format: ",.3~g" },
      ],
    },
  };
}

// The quantities that a heat map can show, with their color scales and the value of an operation.
const MEASURES = {
  time: {
    title: "ms", format: ",.3~g", of: (columns, row) => columns.length_ns[row] / 1e6,
    scale: { scheme: "viridis", reverse: true, zero: false },
  },
  slowness: {
    title: "times the median of its stage", format: ".3~g", of: (columns, row) => columns.thousandths[row] / 1000,
    scale: { domain: [0.5, 1, 1.5], range: ["#2b6cb0", "#f4f4f2", "#b3261e"], clamp: true },
  },
};

// Returns the values of a phase's operations in all averaged iterations, by stage and microbatch.
function collectCells(run, phase, measure) {
  const columns = run.operations;
  const averaged = new Set(run.report.iterations.filter((iteration) => iteration.averaged).map((iteration) => iteration.index));
  const code = run.data.phases.indexOf(phase);
  const cells = new Map();
  for (let row = 0; row < columns.rows; row += 1) {
    if (columns.phase[row] !== code || columns.thousandths[row] <= 0 || columns.microbatch[row] < 0 || columns.virtual_stage[row] < 0) continue;
    if (averaged.size && !averaged.has(columns.iteration[row])) continue;
    const key = columns.virtual_stage[row] * 2 ** 24 + columns.microbatch[row];
    const cell = cells.get(key) ?? cells.set(key, { stage: columns.virtual_stage[row], microbatch: columns.microbatch[row], all: [] }).get(key);
    cell.all.push(measure.of(columns, row));
  }
  return [...cells.values()];
}

function computeMedian(values) {
  const sorted = Float64Array.from(values).sort();
  return (sorted[(sorted.length - 1) >> 1] + sorted[sorted.length >> 1]) / 2;
}

// Assigns cells to columns. If there are too many microbatches, several of them share a column that
// shows the slowest one.
function assignColumns(cells) {
  const [first, last] = cells.reduce(([low, high], cell) => [Math.min(low, cell.microbatch), Math.max(high, cell.microbatch)], [Infinity, -Infinity]);
  const share = Math.ceil((last - first + 1) / MAX_COLUMNS);
  const shown = new Map();
  for (const { stage, microbatch, all } of cells) {
    const value = computeMedian(all);
    const column = first + Math.floor((microbatch - first) / share) * share;
    const key = `${stage} ${column}`;
    const known = shown.get(key);
    if (!known || value > known.value) shown.set(key, { stage, microbatch: column, slowest: microbatch, value });
  }
  return [share, [...shown.values()]];
}

function makeHeatSpec(run, phase, name) {
  const measure = MEASURES[name];
  const cells = collectCells(run, phase, measure);
  if (!cells.length) return null;
  const [share, values] = assignColumns(cells);
  return {
    description: `Heat map: ${phase} of each microbatch on each stage, ${measure.title}, median over iterations.`,
    data: { values },
    width: "container",
    height: 14 * new Set(values.map((value) => value.stage)).size,
    mark: { type: "rect", tooltip: true },
    encoding: {
      x: { field: "microbatch", type: "ordinal", title: share > 1 ? `microbatch (slowest of ${share} per column)` : "microbatch", axis: { labelOverlap: true, labelAngle: 0 } },
      y: { field: "stage", type: "ordinal", title: "stage" },
      color: { field: "value", type: "quantitative", title: measure.title, scale: measure.scale, legend: { gradientLength: 160, orient: "top", symbolType: null, format: measure.format } },
      tooltip: [{ field: "stage" }, { field: "slowest", title: "microbatch" }, { field: "value", title: measure.title, format: measure.format }],
    },
  };
}

// An axis of iterations, with ticks at their indices and the names from the report as labels.
function makeIterationAxis({ iterations }) {
  const step = Math.ceil(iterations.length / 12);
  const ticks = iterations.map((iteration) => iteration.index).filter((index) => index % step === 0);
  const labels = ticks.map((index) => cleanText(iterations[index].name, 20));
  return { field: "index", type: "quantitative", title: "iteration", axis: { values: ticks, labelExpr: `${JSON.stringify(labels)}[datum.value / ${step}]`, labelOverlap: true }, scale: { nice: false, zero: false } };
}

// The axis starts at zero, so that small differences do not look like a trend.
function makeTrendSpec(run) {
  const { report } = run;
  const known = run.ratioDefinitions.map((ratio) => ratio.name);
  // Ratios that are equal in every iteration share a line. Its label contains all their names.
  const shown = (name) => JSON.stringify(report.iterations.map((iteration) => iteration.bubble_ratio[name]?.toFixed(4)));
  const called = (name) => known.filter((other) => shown(other) === shown(name)).join(" = ");
  const names = known.filter((name) => called(name).split(" = ")[0] === name);
  const values = report.iterations.flatMap((iteration) =>
    names.filter((name) => iteration.bubble_ratio[name] !== null && iteration.bubble_ratio[name] !== undefined).map((name) => ({
      index: iteration.index, iteration: cleanText(iteration.name, 40), definition: called(name), ratio: iteration.bubble_ratio[name],
      averaged: iteration.averaged ? "averaged" : "not averaged",
    })));
  return values.length === 0 ? null : {
    description: "Lines: bubble ratio of each iteration by each definition.",
    data: { values },
    width: "container",
    height: 190,
    layer: [{ mark: { type: "line", strokeWidth: 1.5 } }, { mark: { type: "point", size: 45, filled: true, tooltip: true, cursor: "pointer" } }],
    encoding: {
      x: makeIterationAxis(report),
      y: { field: "ratio", type: "quantitative", title: "bubble ratio", axis: { format: ".3~%" }, scale: { zero: true } },
      color: { field: "definition", type: "nominal", title: null, scale: { domain: names.map(called), range: ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"] } },
      shape: { field: "averaged", type: "nominal", title: null, scale: { domain: ["averaged", "not averaged"], range: ["circle", "triangle-up"] }, legend: values.some((value) => value.averaged !== "averaged") ? {} : null },
      tooltip: [{ field: "iteration" }, { field: "definition" }, { field: "ratio", format: ".3p" }, { field: "averaged", title: " " }],
    },
  };
}

class Charts {
  constructor(run, timeline) {
    this.run = run;
    this.timeline = timeline;
    this.views = new Map();
    this.phases = ["F", "B", "BW", "W", "FB"].filter((phase) => collectCells(run, phase, MEASURES.time).length);
    [this.phase] = this.phases;
    this.measure = "time";
  }

  // Draws a chart, or a note if there is nothing to draw.
  async draw(id, spec) {
    const place = document.getElementById(id);
    this.views.get(id)?.finalize();
    this.views.delete(id);
    if (!spec) {
      place.replaceChildren(element("p", { class: "quiet" }, "Nothing to show: no averaged iteration has these values."));
      return null;
    }
    const whole = { $schema: "https://vega.github.io/schema/vega-lite/v6.json", config: SHARED, ...spec };
    const made = await vegaEmbed(place, whole, { actions: false, renderer: "svg", ast: true, logLevel: 1, tooltip: { theme: "custom" } });
    this.views.set(id, made);
    return made.view;
  }

  async all() {
    await this.trend("trend", makeTrendSpec(this.run));
    await this.draw("causes-chart", makeCausesSpec(this.run));
    await this.heat(this.phase, this.measure);
    if (this.run.report.slowdown) await this.trend("slowdown-trend", makeSlowdownSpec(this.run));
    if (this.run.report.chunk_costs?.length) await this.chunks(findSlowestChunks(this.run.report.chunk_costs));
    const schedules = makeSchedulesSpec(this.run);
    if (schedules) await this.draw("schedules-chart", schedules);
  }

  // Draws a chart of iterations. A click on a point shows the iteration in the timeline.
  async trend(id, spec) {
    const view = await this.draw(id, spec);
    view?.addEventListener("click", (_, item) => {
      if (item?.datum?.index !== undefined) this.timeline.callbacks.iteration(item.datum.index);
    });
  }

  async chunks(place) {
    await this.draw("chunks-chart", makeChunksSpec(this.run, place));
  }

  async heat(phase, measure) {
    [this.phase, this.measure] = [phase, measure];
    await this.draw("heat", phase ? makeHeatSpec(this.run, phase, measure) : null);
  }
}
