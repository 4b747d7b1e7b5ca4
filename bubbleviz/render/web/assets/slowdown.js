// Slowdowns: actual divided by ideal duration, by stage and replica, and by iteration.

// All ranks differ a little, so slowdowns up to USUAL_SLOWDOWN have no color. The slowdown with the
// darkest color is at least MIN_RANGE larger.
const USUAL_SLOWDOWN = 1.02;
const MIN_RANGE = 0.1;
const MAX_REPLICAS = 64;
// Opacity of the darkest color. Text on it is legible on light and on dark pages.
const DARKEST = 0.65;

function makeSlowdownPanel(run) {
  const { slowdown } = run.report;
  if (!slowdown) return [makeNote(run.data.unsaved.no_slowdowns || "Unknown for this run.")];
  const total = element("b", { title: String(slowdown.total) }, slowdown.total.toFixed(3));
  const unit = chooseCommonUnit([slowdown.original_ns, slowdown.ideal_ns]);
  const words = element("p", {}, `An iteration takes ${formatInUnit(slowdown.original_ns, unit)} ${unit[1]}, `, total, ` times as long as an ideal iteration (${formatInUnit(slowdown.ideal_ns, unit)} ${unit[1]}), in which equal operations take their mean time. The slowdown of a rank is the slowdown of its stage or of its pipeline, whichever is smaller.`);
  const ranks = makeSlowdownTable(run);
  const curve = element("div", {}, element("h3", {}, "Slowdown of each iteration"), element("div", { id: "slowdown-trend", class: "chart" }));
  return [words, element("div", { class: "pair" }, ...(ranks ? [element("div", {}, element("h3", {}, "Slowdown of each rank"), ranks)] : []), curve)];
}

// Returns the slowdown of each stage of each replica, keyed by replica and then by stage. It is the
// slowdown of the slowest rank.
function listSlowdownsByReplica(run) {
  const replicas = new Map();
  const { number, slowdown } = run.report.slowdown.by_rank;
  const slowdownOf = new Map(number.map((rank, at) => [rank, slowdown[at]]));
  for (const { index, pipeline, stage } of run.report.ranks) {
    const value = slowdownOf.get(index);
    if (value === undefined || stage === null) continue;
    const stages = replicas.get(pipeline) ?? replicas.set(pipeline, new Map()).get(pipeline);
    stages.set(stage, Math.max(stages.get(stage) ?? 0, value));
  }
  return replicas;
}

// A table with one row per replica and one column per stage. If there are many replicas, only the
// replicas with the slowest ranks are listed.
function makeSlowdownTable(run) {
  const all = [...listSlowdownsByReplica(run)];
  if (!all.length) return null;
  const slowest = ([, stages]) => Math.max(...stages.values());
  const shown = [...all].sort((a, b) => slowest(b) - slowest(a)).slice(0, MAX_REPLICAS).sort(([a], [b]) => a - b);
  const stages = [...new Set(shown.flatMap(([, byStage]) => [...byStage.keys()]))].sort((a, b) => a - b);
  const most = Math.max(USUAL_SLOWDOWN + MIN_RANGE, ...shown.map(slowest));
  const cell = (value) => {
    if (value === undefined) return "";
    const made = element("span", { class: "heat-cell", title: String(value) }, value.toFixed(2));
    const shade = Math.max(0, (value - USUAL_SLOWDOWN) / (most - USUAL_SLOWDOWN));
    made.style.background = `rgb(179 38 30 / ${(DARKEST * shade).toFixed(3)})`;
    return made;
  };
  const rows = shown.map(([replica, byStage]) => [replica === null ? "" : `p${replica}`, ...stages.map((stage) => cell(byStage.get(stage)))]);
  const caption = all.length > shown.length ? `${shown.length} of ${formatCount(all.length, "pipeline")}, with the slowest ranks` : null;
  const made = table(caption, ["", ...stages.map((stage) => `stage ${stage}`)], rows, { id: "slowdowns" });
  return element("div", { class: "wide", tabindex: 0, role: "region", "aria-label": "table: slowdown of each rank" }, made);
}

function makeSlowdownSpec(run) {
  const { slowdown, iterations } = run.report;
  if (!slowdown) return null;
  const values = slowdown.by_iteration.number.map((index, at) => ({ index, iteration: cleanText(iterations[index].name, 40), slowdown: slowdown.by_iteration.slowdown[at] }));
  // The axis starts at an ideal iteration, so that small differences do not look like a trend.
  const low = Math.min(1, ...values.map((value) => value.slowdown));
  const high = Math.max(1 + MIN_RANGE, ...values.map((value) => value.slowdown));
  return values.length === 0 ? null : {
    description: "Line: the slowdown of each iteration relative to an ideal iteration.",
    data: { values },
    width: "container",
    height: 150,
    layer: [{ mark: { type: "line", strokeWidth: 1.5 } }, { mark: { type: "point", size: 45, filled: true, opacity: 1, tooltip: true, cursor: "pointer" } }],
    encoding: {
      x: makeIterationAxis(run.report),
      y: { field: "slowdown", type: "quantitative", title: "slowdown", axis: { format: ".3~f" }, scale: { domain: [low, high], nice: true } },
      color: { value: "#0072b2" },
      tooltip: [{ field: "iteration" }, { field: "slowdown", format: ".4~f" }],
    },
  };
}
