// Tables of the numbers in the report.

// Maximum number of rows in the tables of hosts, profiles and memory.
const MOST_LISTED = 256;

// Minimum fraction of a window that is noticeable. The value is the same as in the report.
const NOTICEABLE = 0.01;

// Returns the mean of the primary ratio, and a description of its range and limitations. Clock bounds
// are mentioned only if they are wider than the confidence interval.
function headlineOf(report) {
  const spread = report.summary.bubble_ratio[report.headline];
  // With two values, the confidence interval extends 12.7 standard errors to each side, so the values
  // themselves are more informative.
  const pair = spread.n === 2 ? ` (${percent(spread.min)} and ${percent(spread.max)} in two iterations)` : null;
  const interval = spread.ci95 === null ? "" : ` ± ${percent(spread.ci95)} (95 % confidence interval of the mean, n = ${spread.n})`;
  const range = pair ?? interval;
  const marks = marksOf(report, report.headline, 2 * (spread.ci95 ?? 0));
  const kernels = report.summary.kernel_time?.sentence;
  const low = report.summary.bubble_low[report.headline]?.mean ?? spread.mean;
  const outside = spread.mean - low > NOTICEABLE
    ? `${percent(low)} with compute outside every operation counted as work` : "";
  return [spread.mean, [range, marks, outside, kernels].filter(Boolean).join("; ")];
}

// Notes on a ratio: its clock bounds if they are wider than `least`, and the reasons why it may not be
// the ratio of the whole pipeline.
function marksOf(report, name, least = 0) {
  const interval = report.summary.bubble_interval?.[name];
  const needs = report.iterations.some((own) => own.bubble_interval && name in own.bubble_interval);
  const notes = [];
  if (interval && interval[1] - interval[0] > least) notes.push(`clock bounds ${between(interval)} %`);
  if (report.iterations.some((own) => own.clock_set || (needs && own.clocks_contradict))) notes.push("! clocks contradict each other");
  const texts = report.restrictions.map((own) => own.text || own.code);
  notes.push(...texts.filter(Boolean).map((text) => clean(text, 200)));
  return notes.join("; ");
}

// Two ratios in percent, with enough decimals to distinguish them.
function between([low, high]) {
  const places = [1, 2, 3, 4, 5, 6].find((own) => (100 * low).toFixed(own) !== (100 * high).toFixed(own)) ?? 6;
  return `${(100 * low).toFixed(places)} to ${(100 * high).toFixed(places)}`;
}

function ratiosTable(run) {
  const { report } = run;
  const { summary } = report;
  const unit = commonUnit(Object.values(summary.window_ns).map((own) => own?.mean));
  const rows = run.ratioDefinitions.filter((own) => summary.bubble_ratio[own.name]).map((own) => {
    const spread = summary.bubble_ratio[own.name];
    const window = summary.window_ns[own.name];
    return [
      own.name === report.headline ? element("strong", {}, own.name) : own.name,
      share(spread.mean), share(spread.std), share(spread.min), share(spread.max), share(spread.ci95), spread.n,
      share(summary.bubble_low[own.name]?.mean), share(summary.bubble_overhead[own.name]?.mean), time(window?.mean, unit), time(window?.std, unit), marksOf(report, own.name),
    ];
  });
  return table(null, ["definition", "mean", "SD", "min", "max", "95 % CI", "n", "lower bound", "bubble / compute", `window, ${unit[1]}`, `window SD, ${unit[1]}`, "notes"], rows, { id: "ratios", lastText: true });
}

function definitions(run) {
  return element("dl", {}, ...run.ratioDefinitions.flatMap((own) => [
    element("dt", {}, own.name), element("dd", {}, `${own.words}. ${own.definition}`),
  ]));
}

// Returns the ranks that tables list: all ranks, or only those in the timeline if there are very many.
function listedRanks(run) {
  return run.report.ranks.slice(...run.listed);
}

// Table of the busy time and bubble of each rank, as means over the averaged iterations.
function ranksTable(run) {
  const { means } = run;
  const phases = Object.keys(means.busy);
  const unit = commonUnit([...Object.values(means.busy), means.bubble].flat());
  const rows = listedRanks(run).map(({ index }) => [
    element("span", {}, `${run.culprits.has(index) ? "► " : ""}${run.rankLabel(index)}`), ...phases.map((phase) => time(means.busy[phase][index], unit)), time(means.bubble[index], unit),
    share(means.ratio[index]), share(means.gap[index]),
  ]);
  return table(`busy time by phase, and bubble, in ${unit[1]}, mean of the averaged iterations`,
    ["rank", ...phases, "bubble", "ratio", "launch gaps"], rows, { id: "ranks" });
}

// Table of the communication times of each rank, as means over the averaged iterations. Null if there
// is no communication.
function communicationTable(run) {
  const { communication } = run.means;
  const columns = ["wait", "transfer", "exposed", "communication"];
  const times = columns.map((name) => communication[name]).flat();
  if (!times.some((ns) => ns > 0)) return null;
  const unit = commonUnit(times);
  const rows = listedRanks(run).map(({ index }) => [
    element("span", {}, run.rankLabel(index)), ...columns.map((name) => time(communication[name][index], unit)),
    share(communication.communication[index] ? communication.overlapped[index] / communication.communication[index] : null),
  ]);
  return table(`in ${unit[1]}, mean of the averaged iterations`, ["rank", "wait", "transfer", "exposed", "kernels", "overlap"], rows, { id: "communications" });
}

// Table of unattributed compute, by kernel name.
function outside(run) {
  const { unattributed_kernels: all } = run.report;
  if (!all?.length) return [];
  const unit = commonUnit(all.map((own) => own.gpu_ns));
  const rows = all.slice(0, 40).map((own) => [element("span", { class: "path" }, clean(own.name, 120)), run.rankLabel(own.rank), grouped(own.count), time(own.gpu_ns, unit), clean(own.where, 120)]);
  const made = table(null, ["kernel", "rank", "n", `time, ${unit[1]}`, "launched"], rows, { left: 2, lastText: true });
  return [element("h3", {}, "Largest unattributed compute"), ...explained("largest unattributed compute", made)];
}

// The name of a compared schedule, worded as in the terminal.
function scheduleName(choice, ran) {
  if (choice.name === "measured") return "as measured";
  if (choice.name === "no-delay") return "as measured, no delays";
  const name = clean(choice.name, 60);
  return choice.name === ran?.name ? `${name} (this one)` : name;
}

// Table of other schedules, simulated with the measured times.
function otherSchedules(run) {
  const { what_if: others, schedule } = run.report;
  if (!others.rows.length) return [quiet(clean(others.reason ?? "", 300))];
  // If iterations overlap, the windows of ranks are compared instead of makespans.
  const stage = others.window === "stage";
  const lengthNs = (own) => { const ms = stage ? own.cost_ms : own.makespan_ms; return ms === null ? null : ms * 1e6; };
  const unit = commonUnit(others.rows.map(lengthNs));
  const inBytes = others.rows.some((own) => own.peak_bytes !== null && own.peak_bytes !== undefined);
  const limit = others.limit_bytes;
  const rows = others.rows.map((own) => [
    scheduleName(own, schedule), time(lengthNs(own), unit), share(own.bubble_ratio), share(own.speedup),
    own.peak_activations === null ? "–" : significant(own.peak_activations), ...(inBytes ? [memoryCell(own.peak_bytes)] : []), own.fits === null ? clean(own.reason ?? "", 120) : own.fits ? "yes" : "no",
  ]);
  const made = table("Schedules at the measured times", ["order", `${stage ? "stage window" : "iteration"}, ${unit[1]}`, "ratio", "time saved", "activations", ...(inBytes ? ["peak memory"] : []), limit === null ? "fits in the same memory" : `fits in ${memorySize(limit)}`], rows, { id: "schedules", lastText: true });
  const chart = schedulePoints(run)[1].length < 2 ? [] : [quiet("Lower left is better. The line connects the schedules that no other schedule beats in both."), element("div", { id: "schedules-chart", class: "chart" })];
  return [...explained("other schedules", made), ...chart];
}

function phaseTimesTable(run) {
  const names = ["median_ns", "std_ns", "min_ns", "max_ns", "first_ns", "last_ns"];
  const unit = commonUnit(run.report.phase_times.map((own) => own.max_ns));
  const chunks = run.report.phase_times.some((own) => own.chunk > 0) ? ["chunk"] : [];
  const rows = run.report.phase_times.map((own) => [own.stage ?? "–", ...chunks.map(() => own.chunk ?? "–"), own.phase, grouped(own.n), ...names.map((name) => time(own[name], unit))]);
  return table(`in ${unit[1]}`, ["stage", ...chunks, "phase", "n", "median", "SD", "min", "max", "first", "last"], rows, { left: 2 + chunks.length });
}

function coverageTable(run) {
  const { coverage } = run.report;
  const unit = commonUnit(coverage.flatMap((own) => [own.gpu_ns, own.comm_ns, own.copy_ns]));
  const rows = coverage.filter((own) => run.listed[0] <= own.rank && own.rank < run.listed[1]).map((own) => [
    element("span", {}, run.rankLabel(own.rank)), own.gpu_ns ? share(own.attributed_gpu_ns / own.gpu_ns) : "–", time(own.gpu_ns, unit), time(own.comm_ns, unit), time(own.copy_ns, unit),
  ]);
  return table(null, ["rank", "attributed", `compute, ${unit[1]}`, `communication, ${unit[1]}`, `copies, ${unit[1]}`], rows);
}

function clocksTable(run) {
  const hosts = new Map();
  for (const own of run.report.profiles) hosts.set(`${own.host} ${own.clock_drift_ppm} ${own.clock_uncertainty_ns}`, own);
  // Offsets are known to microseconds, even if they are many seconds long.
  const unit = [1e6, "ms", 3];
  // If there are very many hosts, only the hosts with the largest uncertainty are listed.
  const least = [...hosts.values()].sort((a, b) => (b.clock_uncertainty_ns ?? Infinity) - (a.clock_uncertainty_ns ?? Infinity));
  const rows = (hosts.size > MOST_LISTED ? least.slice(0, MOST_LISTED) : [...hosts.values()]).map((own) => [
    clean(own.host, 80), time(own.clock_offset_ns, unit), own.clock_uncertainty_ns === null ? "unknown" : duration(own.clock_uncertainty_ns), significant(own.clock_drift_ppm),
  ]);
  return table(fewOf(hosts.size, "host", "the most uncertain"), ["host", `offset, ${unit[1]}`, "clock ±", "drift, ppm"], rows);
}

function limitations(run) {
  const { limitations: all } = run.report;
  if (!all.length) return quiet("None.");
  return list(all.map((own) => `${clean(own.what, 200)}: ${clean(own.reason, 600)}${own.count ? ` (${own.count})` : ""}`));
}

// Returns the caption of a table that lists only MOST_LISTED entries, or null if it lists all entries.
function fewOf(count, thing, which) {
  return count > MOST_LISTED ? `${MOST_LISTED} of ${counted(count, thing)}: ${which}` : null;
}

function profilesTable(run) {
  const { profiles } = run.report;
  const rows = profiles.slice(0, MOST_LISTED).map((own) => [
    element("span", { class: "path" }, clean(own.path, 300)), clean(own.host, 80), `${own.format} ${own.nsys_version ? clean(own.nsys_version, 60) : ""}`.trim(), dated(own) ?? "–", grouped(own.kernels), grouped(own.linked_kernels), grouped(own.attributed_kernels),
  ]);
  return table(fewOf(profiles.length, "profile", "the first"), ["profile", "host", "format", "recorded (UTC)", "compute kernels", "linked", "in operations"], rows, { left: 4 });
}

// Returns the time at which a profile was recorded, or null if the file does not contain the time.
function dated(profile) {
  const ns = profile.session_utc_ns;
  return ns ? new Date(ns / 1e6).toISOString().slice(0, 16).replace("T", " ") : null;
}

function provenance(run) {
  const { report } = run;
  return [
    element("p", {}, `bubbleviz ${report.version}, ${report.profiles.every((own) => own.format === "nsys") ? "NVTX " : ""}convention: ${clean(report.convention, 200)}`),
    run.data.command ? element("pre", { tabindex: 0 }, clean(run.data.command, 2000)) : null,
    element("p", { class: "methods" }, report.methods),
    element("h3", {}, "Profiles"),
    ...explained("profiles", profilesTable(run)),
  ];
}

function changesTable(run) {
  const { changes } = run.report;
  if (!changes) return null;
  const all = [{ ...changes, name: "measured", change: "as measured" }, ...changes.rows];
  const unit = commonUnit(all.map((own) => own.makespan_ns));
  const rows = all.map((own) => [clean(own.name, 60), time(own.makespan_ns, unit), share(own.bubble_ratio), clean(own.change, 200)]);
  return table("Typical iteration after single changes, all else as measured", ["change", `iteration, ${unit[1]}`, "schedule ratio", "meaning"], rows, { lastText: true });
}
