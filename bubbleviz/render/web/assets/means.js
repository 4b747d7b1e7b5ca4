// Mean values of each rank over the averaged iterations. Pages with many ranks contain these means
// as columns. For other pages, they are computed here.

const TIMES_OF_COMMUNICATION = ["wait", "transfer", "exposed", "communication", "overlapped"];
// Marks an unknown value in a column of integers. Smaller values are unknown as well.
const UNKNOWN = -2000000000;

function computeMean(entries, of) {
  const values = entries.map(({ ranks, at }) => of(ranks, at)).filter((value) => value !== null && value !== undefined);
  return values.length ? values.reduce((a, b) => a + b, 0) / values.length : null;
}

// For each rank, its entries in the averaged iterations: the columns of the iteration, and the index
// of the rank in these columns.
function listEntriesByRank(run) {
  const entries = run.report.ranks.map(() => []);
  for (const iteration of run.report.iterations) {
    const { ranks } = iteration;
    if (iteration.averaged && ranks) ranks.rank.forEach((rank, at) => entries[rank].push({ ranks, at }));
  }
  return entries;
}

function getMeans(run) {
  return run.data.meansTable ? readMeans(run) : computeMeans(run);
}

function computeMeans(run) {
  const { headline } = run.report;
  const entries = listEntriesByRank(run);
  const each = (of) => entries.map((rankEntries) => computeMean(rankEntries, of));
  const labels = run.data.compute_phases.map((code) => run.data.phases[code]);
  const phases = labels.filter((phase) => entries.some((all) => all.some(({ ranks, at }) => ranks.busy_ns[phase][at])));
  return {
    ratio: each((ranks, at) => ranks.bubble_ratio[headline]?.[at]),
    bubble: each((ranks, at) => ranks.bubble_ns[headline]?.[at]),
    busy: Object.fromEntries(phases.map((phase) => [phase, each((ranks, at) => ranks.busy_ns[phase][at])])),
    gap: each((ranks, at) => ranks.compute_ns[at] ? (ranks.compute_ns[at] - ranks.active_ns[at]) / ranks.compute_ns[at] : null),
    communication: Object.fromEntries(TIMES_OF_COMMUNICATION.map((name) => [name, each((ranks, at) => ranks.communication[`${name}_ns`][at])])),
  };
}

function readMeans(run) {
  const table = run.data.meansTable;
  const column = (name, share = 1) => Array.from(table[name], (value) => value <= UNKNOWN ? null : value * share);
  // Columns with a common prefix, keyed by the part between prefix and unit: F for busy_F_ns.
  const columns = (lead) => Object.fromEntries(Object.keys(table).filter((name) => name.startsWith(`${lead}_`))
    .map((name) => [name.slice(lead.length + 1, -"_ns".length), column(name)]));
  return {
    ratio: column("ratio_ppb", 1e-9), gap: column("gap_ppb", 1e-9), bubble: column("bubble_ns"),
    busy: columns("busy"), communication: columns("communication"), idle: columns("idle"),
  };
}

// The distribution of values: minimum, median, 95th percentile and maximum. Nulls are ignored.
function measureDistribution(values) {
  const sorted = Float64Array.from(values.filter((value) => value !== null)).sort();
  if (!sorted.length) return null;
  const at = (share) => {
    const place = share * (sorted.length - 1);
    const low = Math.floor(place);
    const high = Math.min(low + 1, sorted.length - 1);
    return sorted[low] + (sorted[high] - sorted[low]) * (place - low);
  };
  return { low: sorted[0], median: at(0.5), p95: at(0.95), high: sorted.at(-1) };
}

// The value of each rank divided by the median of its stage, or null if the rank has no value.
function divideByStageMedian(run, values) {
  const byStage = new Map();
  run.report.ranks.forEach(({ stage }, rank) => {
    if (values[rank] !== null) (byStage.get(stage) ?? byStage.set(stage, []).get(stage)).push(values[rank]);
  });
  const medians = new Map([...byStage].map(([stage, stageValues]) => [stage, measureDistribution(stageValues).median]));
  return values.map((value, rank) => {
    const middle = medians.get(run.report.ranks[rank].stage);
    return value === null || !(middle > 0) ? null : value / middle;
  });
}
