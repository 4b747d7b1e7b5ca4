// The report's numbers as tables, taken from the report itself.

function headlineOf(report) {
  const spread = report.summary.bubble_ratio[report.headline];
  const range = spread.ci95 === null ? "" : ` ± ${percent(spread.ci95)} (95 % confidence interval of the mean, n = ${spread.n})`;
  return [percent(spread.mean), range];
}

function ratiosTable(run) {
  const { report } = run;
  const { summary } = report;
  const rows = run.statistics.filter((own) => summary.bubble_ratio[own.name]).map((own) => {
    const spread = summary.bubble_ratio[own.name];
    const window = summary.window_ns[own.name];
    return [
      own.name === report.headline ? element("strong", {}, own.name) : own.name,
      percent(spread.mean), percent(spread.std), percent(spread.min), percent(spread.max), spread.ci95 === null ? "–" : `± ${percent(spread.ci95)}`, spread.n,
      percent(summary.bubble_low[own.name]?.mean), percent(summary.bubble_overhead[own.name]?.mean), milliseconds(window?.mean),
    ];
  });
  const made = table(null, ["definition", "mean", "std", "min", "max", "95 % CI", "n", "low", "overhead", "window, ms"], rows);
  made.id = "ratios";
  return made;
}

function definitions(run) {
  return element("dl", {}, ...run.statistics.flatMap((own) => [
    element("dt", {}, own.name), element("dd", {}, `${own.summary}: ${own.definition}`),
  ]));
}

function causesTable(run) {
  const sums = run.report.summary.cause_ns[run.report.headline] ?? {};
  const total = Object.values(sums).reduce((a, b) => a + b, 0);
  const rows = run.data.causes.filter(({ name }) => sums[name]).sort((a, b) => sums[b.name] - sums[a.name]).map((own) => [
    element("span", {}, swatch(own.colour), own.name), milliseconds(sums[own.name]), percent(sums[own.name] / total, 1), own.meaning,
  ]);
  const made = table(null, ["cause", "ms", "share", "what it is"], rows);
  made.classList.add("last-text");
  return made;
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
  return table("in milliseconds; first and last: of the first and the last microbatch", ["stage", "chunk", "phase", "n", "median", "std", "min", "max", "first", "last"], rows, { left: 3 });
}

function coverageTable(run) {
  const rows = run.report.coverage.map((own) => [
    element("span", {}, run.rankLabel(own.rank)), own.gpu_ns ? percent(own.attributed_gpu_ns / own.gpu_ns) : "–", milliseconds(own.gpu_ns), milliseconds(own.comm_ns), milliseconds(own.copy_ns),
  ]);
  return table(null, ["rank", "explained", "compute, ms", "communication, ms", "copies, ms"], rows);
}

function limitations(run) {
  const { limitations: all } = run.report;
  if (!all.length) return element("p", { class: "quiet" }, "None: everything could be told.");
  return list(all.map((own) => `${clean(own.what, 200)}: ${clean(own.because, 600)}${own.count ? ` (${own.count})` : ""}`));
}

function provenance(run) {
  const { report } = run;
  const rows = report.profiles.map((own) => [
    element("span", { class: "path" }, clean(own.path, 300)), clean(own.host, 80), `${own.format} ${own.nsys_version ? clean(own.nsys_version, 60) : ""}`.trim(), own.kernels, own.linked_kernels, own.attributed_kernels,
    own.clock_uncertainty_ns === null ? "unknown" : duration(own.clock_uncertainty_ns),
  ]);
  const made = table(null, ["profile", "host", "format", "kernels", "linked", "attributed", "clock ±"], rows, { left: 3 });
  return [
    element("p", {}, `bubbleviz ${report.bubbleviz}, naming ${clean(report.convention, 200)}`),
    run.data.command ? element("pre", {}, clean(run.data.command, 2000)) : null,
    element("div", { class: "wide" }, made),
    element("p", { class: "methods" }, report.methods),
  ];
}

function gapsList(run) {
  const { biggest_gaps: all } = run.report;
  if (!all?.length) return element("p", { class: "quiet" }, "No idle interval stands out.");
  return list(all.map((own) => clean(own.sentence, 500)));
}

function whatIfTable(run) {
  const rows = run.report.what_if.map((own) => [clean(own.name, 60), milliseconds(own.makespan_ns), percent(own.bubble_ratio), clean(own.change, 200)]);
  const made = table(null, ["change", "iteration, ms", "schedule", "what it is"], rows);
  made.classList.add("last-text");
  return rows.length ? made : element("p", { class: "quiet" }, "Cannot be told for this run.");
}
