// Prompt chunks in a serving run: for each virtual stage, measured and fitted forward times as a
// function of the number of tokens.

// Number of points used to draw a fitted line.
const LINE_POINTS = 33;

const nameChunkStage = (cost) => (cost.virtual_stage ?? "unknown");

function computeChunkTime(cost, tokens, prefix) {
  return cost.fixed_ns + (cost.token_ns ?? 0) * tokens + (cost.token_squared_ns ?? 0) * tokens * (tokens + 2 * prefix);
}

function makeChunksPanel(run) {
  const { chunk_costs: costs } = run.report;
  const chosen = element("select", { id: "chunk-stage" }, ...costs.map((cost, at) => element("option", { value: at }, nameChunkStage(cost))));
  chosen.value = String(findSlowestChunks(costs));
  return [
    makeNote("Time of a chunk: fixed + tokens × per token + tokens × (tokens + 2 prefix) × attention. The prefix is the number of tokens in earlier chunks of the same prompt."),
    ...explainTable("what a chunk costs", makeChunkCostsTable(costs)),
    element("h3", {}, "Measured chunks and the fit"), element("label", {}, "stage ", chosen), element("div", { id: "chunks-chart", class: "chart" }),
  ];
}

// Returns the index of the stage whose longest chunk takes the most time.
function findSlowestChunks(costs) {
  const longest = costs.map((cost) => computeChunkTime(cost, cost.most_tokens, 0));
  return longest.indexOf(Math.max(...longest));
}

// If all chunks have the same length, only upper bounds are known: the fixed cost and the cost per
// token add up to a known time.
function makeBoundedCell(cost, ns, unit) {
  const cell = makeTimeCell(ns, unit);
  return (cost.max_fixed_ns ?? null) === null ? cell : element("span", {}, "0 to ", cell);
}

function makeChunkCostsTable(costs) {
  const [ms, us] = [[1e6, "ms"], [1e3, "µs"]];
  const rows = costs.map((cost) => [
    nameChunkStage(cost), formatNumber(cost.n), `${formatNumber(cost.least_tokens)} to ${formatNumber(cost.most_tokens)}`, makeBoundedCell(cost, cost.max_fixed_ns ?? cost.fixed_ns, ms), makeBoundedCell(cost, cost.token_ns, us),
    cost.token_squared_ns ? element("span", { title: formatExact(cost.token_squared_ns) }, significant(cost.token_squared_ns)) : "–",
    makeTimeCell(cost.residual_ns, ms), makeShareCell(cost.explained),
  ]);
  return table(null, ["stage", "chunks", "tokens", "fixed, ms", "per token, µs", "attention, ns", "residual, ms", "explained"], rows, { id: "chunk-costs" });
}

// Dots: chunks. Lines: the fit without a prefix, and with the longest prefix of a full chunk.
function makeChunksSpec(run, place) {
  const cost = run.report.chunk_costs[place];
  if (!cost) return null;
  const measured = run.data.unsaved.chunk_times.find((chunks) => chunks.virtual_stage === (cost.virtual_stage ?? -1));
  const dots = (measured?.tokens ?? []).map((tokens, at) => ({ tokens, ms: measured.busy_ns[at] / 1e6 }));
  const longest = Math.max(Math.floor(cost.prompt_tokens / Math.max(cost.most_tokens, 1)) - 1, 0) * cost.most_tokens;
  const lines = [...new Set([0, longest])].flatMap((prefix) => Array.from({ length: LINE_POINTS }, (_, at) => {
    const tokens = cost.least_tokens + (cost.most_tokens - cost.least_tokens) * at / (LINE_POINTS - 1);
    return { tokens, ms: computeChunkTime(cost, tokens, prefix) / 1e6, prefix, fit: prefix ? `fit after ${formatNumber(prefix)} tokens` : "fit without a prefix" };
  }));
  const x = { field: "tokens", type: "quantitative", title: "tokens of a chunk", scale: { domain: [0, Math.max(cost.most_tokens, 1)] } };
  const y = { field: "ms", type: "quantitative", title: "ms", scale: { zero: true } };
  return {
    description: `Dots: time of each chunk on stage ${nameChunkStage(cost)} by number of tokens, in milliseconds. Lines: the fit.`,
    width: "container",
    height: 200,
    layer: [
      { data: { values: dots }, mark: { type: "point", filled: true, size: 28, opacity: 0.8, color: "#0072b2", tooltip: true }, encoding: { x, y, tooltip: [{ field: "tokens", format: "," }, { field: "ms", format: ",.4~g" }] } },
      { data: { values: lines }, mark: { type: "line", strokeWidth: 1.5 }, encoding: { x, y, color: { field: "fit", type: "nominal", title: null, sort: { field: "prefix" }, scale: { range: ["#d55e00", "#009e73"] } } } },
    ],
  };
}
