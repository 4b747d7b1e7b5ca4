// The report's numbers as tables, taken from the report itself.

// Where compute outside every operation can move a ratio by more than this, its lower bound is beside it.
const NOTICEABLE = 0.01;

function headlineOf(report) {
  const spread = report.summary.bubble_ratio[report.headline];
  const range = spread.ci95 === null ? "" : ` ± ${percent(spread.ci95)} (95 % confidence interval of the mean, n = ${spread.n})`;
  const marks = marksOf(report, report.headline);
  const told = report.summary.kernel_time?.sentence;
  const kernels = told ? `; ${told}` : "";
  const low = report.summary.bubble_low[report.headline]?.mean ?? spread.mean;
  const outside = spread.mean - low > NOTICEABLE
    ? `; ${percent(low)} with compute outside every operation counted as work` : "";
  return [percent(spread.mean), range + (marks ? `; ${marks}` : "") + outside + kernels];
}

// Notes beside a ratio: its clock bounds, and why it is not that of a whole pipeline.
function marksOf(report, name) {
  const interval = report.summary.bubble_interval?.[name];
  const needs = report.iterations.some((own) => own.bubble_interval && name in own.bubble_interval);
  const notes = [];
  if (interval && interval[0] < interval[1]) notes.push(`clock bounds ${percent(interval[0], 3)} to ${percent(interval[1], 3)}`);
  if (needs && report.iterations.some((own) => own.clocks_contradict)) notes.push("! clocks contradict each other");
  // A report without codes has the words of one alone.
  const texts = report.restrictions?.map((own) => own.text || own.code) ?? [report.restriction];
  notes.push(...texts.filter(Boolean).map((text) => clean(text, 200)));
  return notes.join("; ");
}

function ratiosTable(run) {
  const { report } = run;
  const { summary } = report;
  const rows = run.ratioDefinitions.filter((own) => summary.bubble_ratio[own.name]).map((own) => {
    const spread = summary.bubble_ratio[own.name];
    const window = summary.window_ns[own.name];
    return [
      own.name === report.headline ? element("strong", {}, own.name) : own.name,
      percent(spread.mean), percent(spread.std), percent(spread.min), percent(spread.max), spread.ci95 === null ? "–" : `± ${percent(spread.ci95)}`, spread.n,
      percent(summary.bubble_low[own.name]?.mean), percent(summary.bubble_overhead[own.name]?.mean), milliseconds(window?.mean), milliseconds(window?.std), marksOf(report, own.name),
    ];
  });
  const made = table(null, ["definition", "mean", "SD", "min", "max", "95 % CI", "n", "lower bound", "bubble / compute", "window, ms", "window SD, ms", ""], rows);
  made.id = "ratios";
  made.classList.add("last-text");
  return made;
}

function definitions(run) {
  return element("dl", {}, ...run.ratioDefinitions.flatMap((own) => [
    element("dt", {}, own.name), element("dd", {}, `${own.summary}: ${own.definition}`),
  ]));
}

function causesTable(run) {
  const sums = run.report.summary.cause_ns[run.report.headline] ?? {};
  const total = Object.values(sums).reduce((a, b) => a + b, 0);
  if (!total) return element("p", { class: "quiet" }, "No averaged iteration has idle time.");
  const n = windowsOf(run);
  const rows = run.data.causes.filter(({ name }) => sums[name]).sort((a, b) => sums[b.name] - sums[a.name]).map((own) => [
    element("span", {}, swatch(own.colour), own.name), milliseconds(sums[own.name] / n), percent(sums[own.name] / total, 1), own.meaning,
  ]);
  const made = table("mean of a rank in an averaged iteration", ["cause", "ms", "share", "meaning"], rows);
  made.classList.add("last-text");
  return made;
}

// The number of windows of ranks that the averages of the primary ratio are over.
function windowsOf(run) {
  const name = run.report.headline;
  const averaged = run.report.iterations.filter((own) => own.averaged && own.bubble_ratio[name] !== null);
  return averaged.reduce((sum, own) => sum + own.ranks.filter((entry) => name in entry.cause_ns).length, 0);
}

// Busy time and bubble of each rank, mean of the averaged iterations.
function ranksTable(run) {
  const { report } = run;
  const averaged = report.iterations.filter((own) => own.averaged);
  const entries = report.ranks.map((rank) => averaged.flatMap((own) => own.ranks.filter((entry) => entry.rank === rank.index)));
  const phases = run.data.compute_phases.map((code) => run.data.phases[code]).filter((phase) => entries.flat().some((own) => own.busy_ns[phase]));
  const mean = (own, of) => {
    const values = own.map(of).filter((value) => value !== null && value !== undefined);
    return values.length ? values.reduce((a, b) => a + b, 0) / values.length : null;
  };
  const rows = report.ranks.map((rank, at) => [
    element("span", {}, run.rankLabel(rank.index)),
    ...phases.map((phase) => milliseconds(mean(entries[at], (own) => own.busy_ns[phase] ?? 0))),
    milliseconds(mean(entries[at], (own) => own.bubble_ns[report.headline])),
    percent(mean(entries[at], (own) => own.bubble_ratio[report.headline])),
    percent(mean(entries[at], (own) => own.compute_ns ? (own.compute_ns - own.active_ns) / own.compute_ns : null)),
  ]);
  return table("busy time by phase in milliseconds, mean of an averaged iteration; launch gaps: share of busy time in which no kernel runs",
    ["rank", ...phases, "bubble", "ratio", "launch gaps"], rows);
}

// Unattributed compute, by name of its kernels.
function outside(run) {
  const { unattributed_kernels: all } = run.report;
  if (!all?.length) return [];
  const rows = all.slice(0, 40).map((own) => [element("span", { class: "path" }, clean(own.name, 120)), run.rankLabel(own.rank), own.count, milliseconds(own.gpu_ns), clean(own.where, 120)]);
  const made = table(null, ["kernel", "rank", "n", "ms", "launched"], rows, { left: 2 });
  made.classList.add("last-text");
  return [element("h3", {}, "Largest unattributed compute"), element("div", { class: "wide" }, made)];
}

// Other schedules at the measured times, where the report has them.
function alternatives(run) {
  const { alternatives: others } = run.report;
  if (!others) return [];
  const heading = element("h3", {}, "Other schedules at these times");
  if (!others.rows.length) return [heading, element("p", { class: "quiet" }, clean(others.reason ?? "", 300))];
  // Where iterations overlap, the ranks' own windows are compared, not makespans.
  const stage = others.window === "stage";
  const time = (own) => (stage ? own.cost_ms : own.makespan_ms);
  const rows = others.rows.map((own) => [
    clean(own.name, 60), time(own) === null ? "–" : grouped(time(own), 3), percent(own.bubble_ratio), percent(own.speedup),
    own.peak_activations === null ? "–" : grouped(own.peak_activations, 2), own.fits === null ? clean(own.reason ?? "", 120) : own.fits ? "yes" : "no",
  ]);
  const made = table(null, ["schedule", stage ? "stage window, ms" : "iteration, ms", "ratio", "speed-up", "activations", "fits in the same memory"], rows);
  made.classList.add("last-text");
  return [heading, element("div", { class: "wide" }, made)];
}

function swatch(colour) {
  const made = element("span", { class: "swatch", "aria-hidden": "true" });
  made.style.background = colour;
  return made;
}

function phaseTimesTable(run) {
  const rows = run.report.phase_times.map((own) => [
    own.stage ?? "–", own.chunk ?? "–", own.phase, own.n, milliseconds(own.median_ns), milliseconds(own.std_ns), milliseconds(own.min_ns), milliseconds(own.max_ns), milliseconds(own.first_ns), milliseconds(own.last_ns),
  ]);
  return table("in milliseconds; first and last: of the first and the last microbatch", ["stage", "chunk", "phase", "n", "median", "SD", "min", "max", "first", "last"], rows, { left: 3 });
}

function coverageTable(run) {
  const rows = run.report.coverage.map((own) => [
    element("span", {}, run.rankLabel(own.rank)), own.gpu_ns ? percent(own.attributed_gpu_ns / own.gpu_ns) : "–", milliseconds(own.gpu_ns), milliseconds(own.comm_ns), milliseconds(own.copy_ns),
  ]);
  return table(null, ["rank", "attributed", "compute, ms", "communication, ms", "copies, ms"], rows);
}

function limitations(run) {
  const { limitations: all } = run.report;
  if (!all.length) return element("p", { class: "quiet" }, "None.");
  return list(all.map((own) => `${clean(own.what, 200)}: ${clean(own.reason, 600)}${own.count ? ` (${own.count})` : ""}`));
}

function provenance(run) {
  const { report } = run;
  const rows = report.profiles.map((own) => [
    element("span", { class: "path" }, clean(own.path, 300)), clean(own.host, 80), `${own.format} ${own.nsys_version ? clean(own.nsys_version, 60) : ""}`.trim(), own.kernels, own.linked_kernels, own.attributed_kernels,
    own.clock_uncertainty_ns === null ? "unknown" : duration(own.clock_uncertainty_ns),
  ]);
  const made = table(null, ["profile", "host", "format", "kernels", "linked", "attributed", "clock ±"], rows, { left: 3 });
  return [
    element("p", {}, `bubbleviz ${report.version}, ${report.profiles.every((own) => own.format === "nsys") ? "NVTX " : ""}convention: ${clean(report.convention, 200)}`),
    run.data.command ? element("pre", {}, clean(run.data.command, 2000)) : null,
    element("div", { class: "wide" }, made),
    element("p", { class: "methods" }, report.methods),
  ];
}

function bubblesList(run) {
  const { longest_bubbles: all } = run.report;
  if (!all?.length) return element("p", { class: "quiet" }, "No idle interval stands out.");
  return list(all.map((own) => clean(own.sentence, 500)));
}

function whatIfTable(run) {
  const rows = run.report.what_if.map((own) => [clean(own.name, 60), milliseconds(own.makespan_ns), percent(own.bubble_ratio), clean(own.change, 200)]);
  const made = table(null, ["change", "iteration, ms", "schedule", "meaning"], rows);
  made.classList.add("last-text");
  return rows.length ? made : element("p", { class: "quiet" }, "Unknown for this run.");
}
