// First iteration: how long the stages warm up, and what warming up at the same time would save.

const FIRST_STEP_HEADERS = ["stage", "rank", "extra time of forwards, ms", "extra time of backwards, ms", "extra time, ms", "longest host activity"];

function makeFirstStepPanel(run) {
  const { first_step: step } = run.report;
  const ms = [1e6, "ms"];
  const rows = step.stages.slice(0, MAX_LISTED).map((stage) => [
    stage.stage, element("span", {}, run.rankLabel(stage.rank)),
    ...[stage.forward_ns, stage.backward_ns, stage.forward_ns + stage.backward_ns].map((ns) => makeTimeCell(ns, ms)),
    stage.activity ? cleanText(stage.activity, 60) : "–",
  ]);
  const made = table(describeSelection(step.stages.length, "stage", "the first"), FIRST_STEP_HEADERS, rows, { left: 2, id: "first-step", lastText: true });
  const format = (ns) => `${formatInUnit(ns, ms)} ms`;
  const saving = step.saving_ns > 0 ? ` A forward and a backward of all stages at once, before this iteration, would save up to ${format(step.saving_ns)}.` : "";
  return [
    makeNote(`Iteration ${cleanText(run.report.iterations[step.iteration].name, 60)} takes ${format(step.length_ns)} instead of ${format(step.usual_ns)}. The extra times of the stages are ${format(step.total_ns)} in total and at most ${format(step.longest_ns)} each. During ${format(step.elapsed_ns)}, at least one stage takes extra time.${saving}`),
    ...explainTable("extra time in the first iteration", made),
  ];
}
