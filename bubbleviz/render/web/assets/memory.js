// Memory: tables of rank and operation memory, and a plot of schedules by memory and bubble ratio.

const MEMORY_UNITS = [[1e12, "TB"], [1e9, "GB"], [1e6, "MB"], [1e3, "kB"]];

// Height of a label in the plot, as a fraction of the highest ratio.
const LABEL_SHARE = 0.07;

function formatMemory(bytes) {
  const unit = MEMORY_UNITS.find(([size]) => Math.abs(bytes) >= size);
  return unit ? `${significant(bytes / unit[0])} ${unit[1]}` : `${formatNumber(bytes)} B`;
}

function makeMemoryCell(bytes) {
  return bytes === null || bytes === undefined ? "–" : element("span", { title: `${formatNumber(bytes)} bytes` }, formatMemory(bytes));
}

function makeMemoryPanel(run) {
  const { ranks, operations } = run.report.memory;
  const fullest = ranks.length > MAX_LISTED ? [...ranks].sort((a, b) => b.peak_bytes - a.peak_bytes).slice(0, MAX_LISTED) : ranks;
  const peaks = table(describeSelection(ranks.length, "rank", "the fullest"), ["rank", "peak", "resident"],
    fullest.map((rank) => [element("span", {}, run.rankLabel(rank.rank)), makeMemoryCell(rank.peak_bytes), makeMemoryCell(rank.resident_bytes)]), { id: "memory-ranks" });
  const kinds = table(null, ["virtual stage", "phase", "operations", "leaves", "needs", "kept until B", "kept until W"],
    operations.map((operation) => [operation.virtual_stage ?? "–", operation.phase, formatNumber(operation.n), ...["net_bytes", "above_bytes", "held_bytes", "kept_bytes"].map((name) => makeMemoryCell(operation[name]))]), { left: 2, id: "memory-operations" });
  return [element("div", { class: "pair" },
    element("div", {}, element("h3", {}, "Ranks"), ...explainTable("memory of ranks", peaks)),
    element("div", {}, element("h3", {}, "Operations"), ...explainTable("memory of operations", kinds)))];
}

// Draws one dot per schedule whose ratio and memory are known. Schedules with equal values share a
// dot and a label.
function listSchedulePoints(run) {
  const { what_if: others, schedule } = run.report;
  const rows = (others?.rows ?? []).filter((row) => row.name !== "no-delay");
  const inBytes = rows.some((row) => row.peak_bytes !== null && row.peak_bytes !== undefined);
  const points = new Map();
  for (const row of rows) {
    const memory = inBytes ? row.peak_bytes : row.peak_activations;
    if (memory === null || memory === undefined || row.bubble_ratio === null) continue;
    const key = `${memory} ${row.bubble_ratio.toFixed(6)}`;
    const point = points.get(key) ?? points.set(key, { memory, ratio: row.bubble_ratio, names: [], fits: false }).get(key);
    point.names.push(nameSchedule(row, schedule));
    point.fits ||= Boolean(row.fits);
  }
  return [inBytes, [...points.values()].sort((a, b) => a.memory - b.memory || a.ratio - b.ratio)];
}

// Joins the labels of dots that are so close that their labels would overlap.
function joinLabels(values) {
  const labels = [];
  const nearest = LABEL_SHARE * Math.max(...values.map((value) => value.ratio));
  for (const value of values) {
    const near = labels.find((other) => other.memory === value.memory && Math.abs(other.ratio - value.ratio) < nearest);
    if (near) near.schedules += `, ${value.schedules}`;
    else labels.push({ ...value });
  }
  return labels;
}

function makeSchedulesSpec(run) {
  const [inBytes, points] = listSchedulePoints(run);
  if (points.length < 2) return null;
  const limit = inBytes ? run.report.what_if.limit_bytes : null;
  const unit = inBytes ? MEMORY_UNITS.find(([size]) => Math.max(...points.map((point) => point.memory)) >= size) ?? [1, "B"] : [1, ""];
  const most = 1.08 * Math.max(limit ?? 0, ...points.map((point) => point.memory)) / unit[0];
  const values = points.map((point) => ({ memory: point.memory / unit[0], ratio: point.ratio, schedules: point.names.join(", "), fits: point.fits ? "yes" : "no" }));
  // The Pareto front: the schedules that no other schedule beats in both ratio and memory.
  const best = values.filter((value, at) => values.slice(0, at).every((other) => other.ratio > value.ratio));
  const measured = values.filter((value) => !best.includes(value) && /as measured|\(this one\)/.test(value.schedules));
  const labeled = [...best, ...joinLabels(measured)];
  const title = inBytes ? `memory of the fullest device, ${unit[1]}` : "activations of the fullest device, in microbatches of a stage";
  const x = { field: "memory", type: "quantitative", title, scale: { domain: [0, most], nice: false } };
  const y = { field: "ratio", type: "quantitative", title: "bubble ratio", axis: { format: ".3~%" }, scale: { zero: true } };
  // Labels are above the dots of schedules on the front, and below all other dots.
  const label = (isRight, isBest) => ({
    data: { values: labeled.filter((value) => (value.memory > most / 2) === isRight && best.includes(value) === isBest) },
    mark: { type: "text", align: isRight ? "right" : "left", dx: isRight ? -8 : 8, dy: isBest ? -7 : 12, fontSize: 11, limit: 320 },
    encoding: { x, y, text: { field: "schedules" } },
  });
  const border = { data: { values: [{ memory: (limit ?? 0) / unit[0] }] }, mark: { type: "rule", strokeDash: [4, 3] }, encoding: { x } };
  return {
    description: "Dots: the bubble ratio of each schedule and the memory of its fullest device. Filled dots fit.",
    width: "container",
    height: 220,
    layer: [
      { data: { values: best }, mark: { type: "line", interpolate: "step-after", opacity: 0.5, strokeWidth: 1 }, encoding: { x, y, color: { value: "#7a828c" } } },
      ...(limit === null ? [] : [border]),
      { data: { values }, mark: { type: "point", size: 60, stroke: "#0072b2", strokeWidth: 1.5, opacity: 1, tooltip: true },
        encoding: { x, y, fill: { field: "fits", type: "nominal", title: null, scale: { domain: ["yes", "no"], range: ["#0072b2", "transparent"] }, legend: null },
          tooltip: [{ field: "schedules" }, { field: "memory", title: inBytes ? unit[1] : "microbatches", format: ",.4~g" }, { field: "ratio", format: ".3p" }, { field: "fits" }] } },
      label(false, true), label(true, true), label(false, false), label(true, false),
    ],
  };
}
