// Tables of the numbers in the report.

// Maximum number of rows in the tables of hosts, profiles and memory.
const MAX_LISTED = 256;

// Minimum fraction of a window that is noticeable. The value is the same as in the report.
const NOTICEABLE = 0.01;

// Returns the mean of the primary ratio, and a description of its range and limitations. Clock bounds
// are mentioned only if they are wider than the confidence interval.
function describeHeadline(report) {
  const spread = report.summary.bubble_ratio[report.headline];
  // With two values, the confidence interval extends 12.7 standard errors to each side, so the values
  // themselves are more informative.
  const pair = spread.n === 2 ? ` (${percent(spread.min)} and ${percent(spread.max)} in two iterations)` : null;
  const interval = spread.ci95 === null ? "" : ` ± ${percent(spread.ci95)} (95 % confidence interval of the mean, n = ${spread.n})`;
  const range = pair ?? interval;
  const marks = listNotes(report, report.headline, 2 * (spread.ci95 ?? 0));
  const profiling = report.profiling_cost?.sentence;
  const kernels = report.summary.kernel_time?.sentence;
  const low = report.summary.bubble_low[report.headline]?.mean ?? spread.mean;
  const outside = spread.mean - low > NOTICEABLE
    ? `${percent(low)} with compute outside every operation counted as work` : "";
  return [spread.mean, [range, marks, profiling, outside, kernels].filter(Boolean).join("; ")];
}

// Notes on a ratio: its clock bounds if they are wider than `least`, and the reasons why it may not be
// the ratio of the whole pipeline.
function listNotes(report, name, least = 0) {
  const interval = report.summary.bubble_interval?.[name];
  const needs = report.iterations.some((iteration) => iteration.bubble_interval && name in iteration.bubble_interval);
  const notes = [];
  if (interval && interval[1] - interval[0] > least) notes.push(`clock bounds ${formatBounds(interval)} %`);
  if (report.iterations.some((iteration) => iteration.clock_set || (needs && iteration.clocks_contradict))) notes.push("! clocks contradict each other");
  const texts = report.restrictions.map((restriction) => restriction.text || restriction.code);
  notes.push(...texts.filter(Boolean).map((text) => cleanText(text, 200)));
  return notes.join("; ");
}

// Two ratios in percent, with enough decimals to distinguish them.
function formatBounds([low, high]) {
  const places = [1, 2, 3, 4, 5, 6].find((decimals) => (100 * low).toFixed(decimals) !== (100 * high).toFixed(decimals)) ?? 6;
  return `${(100 * low).toFixed(places)} to ${(100 * high).toFixed(places)}`;
}

function makeRatiosTable(run) {
  const { report } = run;
  const { summary } = report;
  const unit = chooseCommonUnit(Object.values(summary.window_ns).map((spread) => spread?.mean));
  const rows = run.ratioDefinitions.filter((ratio) => summary.bubble_ratio[ratio.name]).map((ratio) => {
    const spread = summary.bubble_ratio[ratio.name];
    const window = summary.window_ns[ratio.name];
    return [
      ratio.name === report.headline ? element("strong", {}, ratio.name) : ratio.name,
      makeShareCell(spread.mean), makeShareCell(spread.std), makeShareCell(spread.min), makeShareCell(spread.max), makeShareCell(spread.ci95), spread.n,
      makeShareCell(summary.bubble_low[ratio.name]?.mean), makeShareCell(summary.bubble_overhead[ratio.name]?.mean), makeTimeCell(window?.mean, unit), makeTimeCell(window?.std, unit), listNotes(report, ratio.name),
    ];
  });
  return table(null, ["definition", "mean", "SD", "min", "max", "95 % CI", "n", "lower bound", "bubble / compute", `window, ${unit[1]}`, `window SD, ${unit[1]}`, "notes"], rows, { id: "ratios", lastText: true });
}

function listDefinitions(run) {
  return element("dl", {}, ...run.ratioDefinitions.flatMap((ratio) => [
    element("dt", {}, ratio.name), element("dd", {}, `${ratio.words}. ${ratio.definition}`),
  ]));
}

// Returns the ranks that tables list: all ranks, or only those in the timeline if there are very many.
function listRanks(run) {
  return run.report.ranks.slice(...run.listed);
}

// Table of the busy time and bubble of each rank, as means over the averaged iterations.
function makeRanksTable(run) {
  const { means } = run;
  const phases = Object.keys(means.busy);
  const unit = chooseCommonUnit([...Object.values(means.busy), means.bubble].flat());
  const rows = listRanks(run).map(({ index }) => [
    element("span", {}, `${run.culprits.has(index) ? "► " : ""}${run.rankLabel(index)}`), ...phases.map((phase) => makeTimeCell(means.busy[phase][index], unit)), makeTimeCell(means.bubble[index], unit),
    makeShareCell(means.ratio[index]), makeShareCell(means.gap[index]),
  ]);
  return table(`busy time by phase, and bubble, in ${unit[1]}, mean of the averaged iterations`,
    ["rank", ...phases, "bubble", "ratio", "launch gaps"], rows, { id: "ranks" });
}

// Table of the communication times of each rank, as means over the averaged iterations. Null if there
// is no communication.
function makeCommunicationTable(run) {
  const { communication } = run.means;
  const columns = ["wait", "transfer", "exposed", "communication"];
  const times = columns.map((name) => communication[name]).flat();
  if (!times.some((ns) => ns > 0)) return null;
  const unit = chooseCommonUnit(times);
  const rows = listRanks(run).map(({ index }) => [
    element("span", {}, run.rankLabel(index)), ...columns.map((name) => makeTimeCell(communication[name][index], unit)),
    makeShareCell(communication.communication[index] ? communication.overlapped[index] / communication.communication[index] : null),
  ]);
  return table(`in ${unit[1]}, mean of the averaged iterations`, ["rank", "wait", "transfer", "exposed", "kernels", "overlap"], rows, { id: "communications" });
}

// Table of unattributed compute, by kernel name.
function listUnattributed(run) {
  const { unattributed_kernels: all } = run.report;
  if (!all?.length) return [];
  const unit = chooseCommonUnit(all.map((kernel) => kernel.gpu_ns));
  const rows = all.slice(0, 40).map((kernel) => [element("span", { class: "path" }, cleanText(kernel.name, 120)), run.rankLabel(kernel.rank), formatNumber(kernel.count), makeTimeCell(kernel.gpu_ns, unit), cleanText(kernel.where, 120)]);
  const made = table(null, ["kernel", "rank", "n", `time, ${unit[1]}`, "launched"], rows, { left: 2, lastText: true });
  return [element("h3", {}, "Largest unattributed compute"), ...explainTable("largest unattributed compute", made)];
}

// The name of a compared schedule, worded as in the terminal.
function nameSchedule(choice, ran) {
  if (choice.name === "measured") return "as measured";
  if (choice.name === "no-delay") return "as measured, no delays";
  const name = cleanText(choice.name, 60);
  return choice.name === ran?.name ? `${name} (this one)` : name;
}

// Table of other schedules, simulated with the measured times.
function compareSchedules(run) {
  const { what_if: others, schedule } = run.report;
  if (!others.rows.length) return [makeNote(cleanText(others.reason ?? "", 300))];
  // If iterations overlap, the windows of ranks are compared instead of makespans.
  const stage = others.window === "stage";
  const lengthNs = (choice) => { const ms = stage ? choice.cost_ms : choice.makespan_ms; return ms === null ? null : ms * 1e6; };
  const unit = chooseCommonUnit(others.rows.map(lengthNs));
  const inBytes = others.rows.some((choice) => choice.peak_bytes !== null && choice.peak_bytes !== undefined);
  const limit = others.limit_bytes;
  const rows = others.rows.map((choice) => [
    nameSchedule(choice, schedule), makeTimeCell(lengthNs(choice), unit), makeShareCell(choice.bubble_ratio), makeShareCell(choice.speedup),
    choice.peak_activations === null ? "–" : significant(choice.peak_activations), ...(inBytes ? [makeMemoryCell(choice.peak_bytes)] : []), choice.fits === null ? cleanText(choice.reason ?? "", 120) : choice.fits ? "yes" : "no",
  ]);
  const made = table("Schedules at the measured times", ["order", `${stage ? "stage window" : "iteration"}, ${unit[1]}`, "ratio", "time saved", "activations", ...(inBytes ? ["peak memory"] : []), limit === null ? "fits in the same memory" : `fits in ${formatMemory(limit)}`], rows, { id: "schedules", lastText: true });
  const chart = listSchedulePoints(run)[1].length < 2 ? [] : [makeNote("Lower left is better. The line connects the schedules that no other schedule beats in both."), element("div", { id: "schedules-chart", class: "chart" })];
  return [...explainTable("other schedules", made), ...chart];
}

function makePhaseTimesTable(run) {
  const names = ["median_ns", "std_ns", "min_ns", "max_ns", "first_ns", "last_ns"];
  const unit = chooseCommonUnit(run.report.phase_times.map((entry) => entry.max_ns));
  const chunks = run.report.phase_times.some((entry) => entry.chunk > 0) ? ["chunk"] : [];
  const rows = run.report.phase_times.map((entry) => [entry.stage ?? "–", ...chunks.map(() => entry.chunk ?? "–"), entry.phase, formatNumber(entry.n), ...names.map((name) => makeTimeCell(entry[name], unit))]);
  return table(`in ${unit[1]}`, ["stage", ...chunks, "phase", "n", "median", "SD", "min", "max", "first", "last"], rows, { left: 2 + chunks.length });
}

function makeCoverageTable(run) {
  const { coverage } = run.report;
  const unit = chooseCommonUnit(coverage.flatMap((entry) => [entry.gpu_ns, entry.comm_ns, entry.copy_ns]));
  const rows = coverage.filter((entry) => run.listed[0] <= entry.rank && entry.rank < run.listed[1]).map((entry) => [
    element("span", {}, run.rankLabel(entry.rank)), entry.gpu_ns ? makeShareCell(entry.attributed_gpu_ns / entry.gpu_ns) : "–", makeTimeCell(entry.gpu_ns, unit), makeTimeCell(entry.comm_ns, unit), makeTimeCell(entry.copy_ns, unit),
  ]);
  return table(null, ["rank", "attributed", `compute, ${unit[1]}`, `communication, ${unit[1]}`, `copies, ${unit[1]}`], rows);
}

function makeClocksTable(run) {
  const hosts = new Map();
  for (const profile of run.report.profiles) hosts.set(`${profile.host} ${profile.clock_drift_ppm} ${profile.clock_uncertainty_ns}`, profile);
  // Offsets are known to microseconds, even if they are many seconds long.
  const unit = [1e6, "ms", 3];
  // If there are very many hosts, only the hosts with the largest uncertainty are listed.
  const least = [...hosts.values()].sort((a, b) => (b.clock_uncertainty_ns ?? Infinity) - (a.clock_uncertainty_ns ?? Infinity));
  const rows = (hosts.size > MAX_LISTED ? least.slice(0, MAX_LISTED) : [...hosts.values()]).map((profile) => [
    cleanText(profile.host, 80), makeTimeCell(profile.clock_offset_ns, unit), profile.clock_uncertainty_ns === null ? "unknown" : duration(profile.clock_uncertainty_ns), significant(profile.clock_drift_ppm),
  ]);
  return table(describeSelection(hosts.size, "host", "the most uncertain"), ["host", `offset, ${unit[1]}`, "clock ±", "drift, ppm"], rows);
}

function listLimitations(run) {
  const { limitations: all } = run.report;
  if (!all.length) return makeNote("None.");
  return list(all.map((limitation) => `${cleanText(limitation.what, 200)}: ${cleanText(limitation.reason, 600)}${limitation.count ? ` (${limitation.count})` : ""}`));
}

// Returns the caption of a table that lists only MAX_LISTED entries, or null if it lists all entries.
function describeSelection(count, thing, which) {
  return count > MAX_LISTED ? `${MAX_LISTED} of ${formatCount(count, thing)}: ${which}` : null;
}

function makeProfilesTable(run) {
  const { profiles } = run.report;
  const rows = profiles.slice(0, MAX_LISTED).map((profile) => [
    element("span", { class: "path" }, cleanText(profile.path, 300)), cleanText(profile.host, 80), `${profile.format} ${profile.nsys_version ? cleanText(profile.nsys_version, 60) : ""}`.trim(), formatDate(profile) ?? "–", formatNumber(profile.kernels), formatNumber(profile.linked_kernels), formatNumber(profile.attributed_kernels),
  ]);
  return table(describeSelection(profiles.length, "profile", "the first"), ["profile", "host", "format", "recorded (UTC)", "compute kernels", "linked", "in operations"], rows, { left: 4 });
}

// Returns the time at which a profile was recorded, or null if the file does not contain the time.
function formatDate(profile) {
  const ns = profile.session_utc_ns;
  return ns ? new Date(ns / 1e6).toISOString().slice(0, 16).replace("T", " ") : null;
}

function describeProvenance(run) {
  const { report } = run;
  return [
    element("p", {}, `bubbleviz ${report.version}, ${report.profiles.every((profile) => profile.format === "nsys") ? "NVTX " : ""}convention: ${cleanText(report.convention, 200)}`),
    run.data.command ? element("pre", { tabindex: 0 }, cleanText(run.data.command, 2000)) : null,
    element("p", { class: "methods" }, report.methods),
    element("h3", {}, "Profiles"),
    ...explainTable("profiles", makeProfilesTable(run)),
  ];
}

function makeChangesTable(run) {
  const { changes } = run.report;
  if (!changes) return null;
  const all = [{ ...changes, name: "measured", change: "as measured" }, ...changes.rows];
  const unit = chooseCommonUnit(all.map((change) => change.makespan_ns));
  const rows = all.map((change) => [cleanText(change.name, 60), makeTimeCell(change.makespan_ns, unit), makeShareCell(change.bubble_ratio), cleanText(change.change, 200)]);
  return table("Typical iteration after single changes, all else as measured", ["change", `iteration, ${unit[1]}`, "schedule ratio", "meaning"], rows, { lastText: true });
}
