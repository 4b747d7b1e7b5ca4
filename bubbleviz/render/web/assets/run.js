// The run: its rows, the operation that runs on a rank at a given time, and the work and idle time in
// a time window.

// Binary search in rows [low, high) of a sorted column: returns the index of the first value above a
// limit, or `high` if there is none.
function findFirstAbove(column, limit, low, high) {
  while (low < high) {
    const middle = (low + high) >>> 1;
    if (column[middle] > limit) high = middle;
    else low = middle + 1;
  }
  return low;
}

// Returns the row bounds of each rank in a table that is sorted by rank: rank r has the rows
// [bounds[r], bounds[r + 1]).
function findBounds(rank, ranks) {
  const bounds = new Int32Array(ranks + 1);
  for (let i = 0; i < rank.length; i += 1) bounds[rank[i] + 1] += 1;
  for (let i = 0; i < ranks; i += 1) bounds[i + 1] += bounds[i];
  return bounds;
}

// Rank intervals sorted by (rank, start), with an index for finding them by time.
class Lane {
  constructor(rank, startNs, lengthNs, ranks) {
    this.rows = startNs.length;
    this.startNs = startNs;
    this.endNs = new Float64Array(this.rows);
    for (let i = 0; i < this.rows; i += 1) this.endNs[i] = startNs[i] + lengthNs[i];
    this.bounds = findBounds(rank, ranks);
    // Running maximum of the ends within a rank. It is sorted even if intervals of streams overlap.
    this.reachNs = new Float64Array(this.rows);
    // Half of the row in which an interval is drawn: 0 both, 1 upper, 2 lower. An interval that
    // overlaps an earlier interval is drawn in the half that is free.
    this.half = new Uint8Array(this.rows);
    for (let r = 0; r < ranks; r += 1) {
      let [reach, upper] = [-Infinity, -Infinity];
      for (let i = this.bounds[r]; i < this.bounds[r + 1]; i += 1) {
        const [start, end] = [startNs[i], this.endNs[i]];
        const beside = Math.min(reach, end) - start > 0.1 * (end - start);
        if (beside) this.half[i] = upper <= start ? 1 : 2;
        if (this.half[i] < 2) upper = Math.max(upper, end);
        reach = Math.max(reach, end);
        this.reachNs[i] = reach;
      }
    }
  }

  // Half-open range of the rows of a rank that overlap a time window.
  between(rank, fromNs, untilNs) {
    const low = this.bounds[rank];
    const high = this.bounds[rank + 1];
    return [findFirstAbove(this.reachNs, fromNs, low, high), findFirstAbove(this.startNs, untilNs, low, high)];
  }

  // The shortest interval of a rank at a time, or -1 if there is none.
  at(rank, timeNs, slackNs = 0) {
    const [low, high] = this.between(rank, timeNs - slackNs, timeNs + slackNs);
    let best = -1;
    for (let i = low; i < high; i += 1) {
      if (this.endNs[i] + slackNs < timeNs) continue;
      if (best < 0 || this.endNs[i] - this.startNs[i] < this.endNs[best] - this.startNs[best]) best = i;
    }
    return best;
  }
}

function takeRows(column, rows) {
  const values = new column.constructor(rows.length);
  for (let i = 0; i < rows.length; i += 1) values[i] = column[rows[i]];
  return values;
}

// Maximum number of ranks of a pipeline that are listed if the page contains no operations.
const MAX_PIPELINE_RANKS = 128;

class Run {
  constructor(data) {
    this.data = data;
    this.report = data.report;
    this.pipelines = new Set(this.report.ranks.map((rank) => rank.pipeline)).size;
    this.means = getMeans(this);
    this.take(data.tables, 0, this.report.ranks.length);
  }

  // Sets the timeline: the tables of the ranks [first, last), which are all ranks or a shard.
  take(tables, first, last) {
    const { data } = this;
    [this.first, this.last] = [first, last];
    this.listed = data.many && !data.shards ? this.findPipelineRange(first) : [first, last];
    this.operations = tables.operations;
    this.several = this.workSpans = undefined;
    const ranks = this.report.ranks.length;
    const { compute, communication, unattributed, bubbles, windows } = tables;
    const lane = (pieces) => new Lane(takeRows(this.operations.rank, pieces.operation), pieces.start_ns, pieces.length_ns, ranks);
    this.compute = Object.assign(lane(compute), { operation: compute.operation });
    this.communication = Object.assign(lane(communication), { operation: communication.operation });
    this.unattributed = new Lane(unattributed.rank, unattributed.start_ns, unattributed.length_ns, ranks);
    this.bubbleRows = bubbles;
    const byStart = this.inOrder(bubbles);
    this.bubbles = Object.assign(
      new Lane(takeRows(bubbles.rank, byStart), takeRows(bubbles.start_ns, byStart), takeRows(bubbles.length_ns, byStart), ranks),
      { cause: takeRows(bubbles.cause, byStart), row: byStart });
    this.windows = windows;
    this.bounds = findBounds(this.operations.rank, ranks);
    this.critical = new Set(tables.critical.operation);
    [this.startNs, this.endNs] = this.extent();
    this.optimizer = data.phases.indexOf("Optimizer");
  }

  // Returns a half-open range of at most about MAX_PIPELINE_RANKS ranks of the same pipeline around a rank.
  findPipelineRange(rank) {
    const { ranks } = this.report;
    const alike = (at) => ranks[at]?.pipeline === ranks[rank]?.pipeline;
    let [first, last] = [rank, rank];
    while (first > 0 && alike(first - 1) && rank - first < MAX_PIPELINE_RANKS) first -= 1;
    while (last < ranks.length && alike(last) && last - first < MAX_PIPELINE_RANKS) last += 1;
    return [first, last];
  }

  // Returns the rows of bubbles sorted by (rank, start). They may not be sorted yet, because the
  // windows of consecutive iterations can overlap.
  inOrder(bubbles) {
    const rows = Int32Array.from({ length: bubbles.rows }, (_, i) => i);
    for (let i = 1; i < bubbles.rows; i += 1) {
      if (bubbles.rank[i] === bubbles.rank[i - 1] && bubbles.start_ns[i] < bubbles.start_ns[i - 1]) {
        return rows.sort((a, b) => bubbles.rank[a] - bubbles.rank[b] || bubbles.start_ns[a] - bubbles.start_ns[b] || a - b);
      }
    }
    return rows;
  }

  extent() {
    let low = Infinity;
    let high = -Infinity;
    for (const lane of [this.compute, this.communication, this.unattributed, this.bubbles]) {
      for (let i = 0; i < lane.rows; i += 1) {
        if (lane.startNs[i] < low) low = lane.startNs[i];
        if (lane.endNs[i] > high) high = lane.endNs[i];
      }
    }
    return low < high ? [low, high] : [0, 1];
  }

  get ratioDefinitions() {
    return this.data.ratios;
  }

  phase(row) {
    return this.data.phases[this.operations.phase[row]];
  }

  // The outliers whose ranks are marked.
  get outliers() {
    return (this.report.outliers ?? []).filter((outlier) => outlier.is_marked);
  }

  // Indices of the marked ranks: those that the first advice is about, or else the outliers.
  get culprits() {
    const step = (this.report.first ?? []).find((entry) => entry.is_marked);
    this.marked ??= new Set(step ? this.report.advice[step.advice].ranks : this.outliers.flatMap((outlier) => outlier.ranks));
    return this.marked;
  }

  // The microbatch numbers of an operation, as shown in its box.
  microbatches(row) {
    const { microbatch, second_microbatch: second } = this.operations;
    return [microbatch[row], second[row]].filter((number) => number >= 0).join(";");
  }

  label(row) {
    return `${this.phase(row)} ${this.microbatches(row)}`.trim() + this.chunkLabel(row);
  }

  // The chunk of an operation, if ranks have several chunks.
  chunkLabel(row) {
    this.several ??= this.operations.chunk.some((chunk) => chunk > 0);
    if (!this.several || this.operations.chunk[row] < 0) return "";
    const both = [this.operations.chunk[row], this.operations.second_chunk[row]].filter((chunk) => chunk >= 0);
    return ` of chunk ${both.join(";")}`;
  }

  name(id) {
    return id < 0 ? "" : cleanText(this.data.names[id]);
  }

  // Label of a rank's row: the name of the row if it has one. Otherwise, it is the label of the rank,
  // without its pipeline if all rows are in the same pipeline.
  rowLabel(rank) {
    const { pipeline, row_label: name } = this.report.ranks[rank];
    if (name) return cleanText(name);
    const label = this.rankLabel(rank);
    const one = this.data.shards && this.report.ranks.slice(this.first, this.last).every((other) => other.pipeline === pipeline);
    return one && label.startsWith(`p${pipeline} `) ? label.slice(`p${pipeline} `.length) : label;
  }

  // Label of a rank: its pipeline if there are several, its stage, and its location.
  rankLabel(rank) {
    const entry = this.report.ranks[rank];
    const stage = entry.stage === null ? "" : `stage ${entry.stage} · `;
    const pipeline = this.pipelines > 1 && entry.pipeline !== null ? `p${entry.pipeline} ` : "";
    return `${pipeline}${stage}${cleanText(entry.label)}`;
  }

  // Returns the rows, which are ranks or stages. A stage is represented by its replica in the pipeline
  // with the most marked ranks, or else by its first replica.
  rows(by) {
    const ranks = this.report.ranks.slice(this.first, this.last);
    if (by === "rank") return ranks.map((rank) => ({ rank: rank.index, label: this.rowLabel(rank.index), replicas: [rank.index] }));
    const rows = new Map();
    for (const rank of ranks) {
      const key = rank.stage === null ? `rank ${rank.index}` : `stage ${rank.stage}`;
      const label = rank.stage === null ? this.rankLabel(rank.index) : key;
      const row = rows.get(key) ?? { rank: rank.index, label, replicas: [], stage: rank.stage ?? Infinity };
      row.replicas.push(rank.index);
      rows.set(key, row);
    }
    const found = [...rows.values()].sort((a, b) => a.stage - b.stage || a.rank - b.rank);
    const pipelines = [...this.culprits].sort((a, b) => a - b).map((rank) => this.report.ranks[rank].pipeline);
    const markedIn = (pipeline) => pipelines.filter((candidate) => candidate === pipeline).length;
    const pipeline = pipelines.find((candidate) => pipelines.every((other) => markedIn(candidate) >= markedIn(other)));
    for (const row of found) {
      const replicas = row.replicas.filter((rank) => this.report.ranks[rank].pipeline === pipeline);
      row.rank = replicas.find((rank) => this.culprits.has(rank)) ?? replicas[0] ?? row.rank;
    }
    return found.map((row) => (row.replicas.length > 1 ? { ...row, label: this.replicaLabel(row) } : row));
  }

  // Label of a row that stands for several replicas, with the pipeline of the replica that is drawn.
  replicaLabel({ rank, label, replicas }) {
    const entry = this.report.ranks[rank];
    const pipeline = entry.pipeline === null ? "" : `p${entry.pipeline} `;
    return `${pipeline}${label} (one of ${replicas.length})`;
  }

  // Whether the page contains the ratio of each rank in each iteration. Pages with very many
  // ranks contain only means.
  hasRankRatios(index) {
    return (this.report.iterations[index]?.ranks?.rank.length ?? 0) > 0;
  }

  // Returns the bubble ratio of a rank in an iteration, or its mean over the averaged iterations if
  // the index is -1. Returns null if the ratio is unknown.
  rankRatio(rank, index) {
    if (index < 0) return this.means.ratio[rank];
    this.rankRatios ??= this.report.iterations.map(({ ranks }) => new Map((ranks?.rank ?? []).map((rankIndex, at) => [rankIndex, ranks.bubble_ratio[this.report.headline]?.[at]])));
    return this.rankRatios[index].get(rank) ?? null;
  }

  // Returns possible headings of the ratios next to the rows, longest first. Index -1 means that the
  // ratios are means.
  ratioTitles(index) {
    const { idle } = this.data.measure;
    if (index < 0) {
      const { n } = this.report.summary.bubble_ratio[this.report.headline];
      return [`${idle}, mean of ${formatCount(n, "iteration")}`, `mean of ${formatCount(n, "iteration")}`, `mean of ${n}`, "mean"];
    }
    const name = cleanText(this.report.iterations[index].name, 40);
    return [`${idle} in iteration ${name}`, idle];
  }

  // Returns the [start, end] of all windows of an iteration. Without windows, it is the time from the
  // first to the last operation, or null if there are no operations.
  iterationSpan(index) {
    const { iteration, start_ns: start, length_ns: length, ratio } = this.windows;
    const headline = this.ratioDefinitions.findIndex((definition) => definition.name === this.report.headline);
    for (const wanted of [headline, null]) {
      let [low, high] = [Infinity, -Infinity];
      for (let i = 0; i < this.windows.rows; i += 1) {
        if (iteration[i] !== index || (wanted !== null && ratio[i] !== wanted)) continue;
        low = Math.min(low, start[i]);
        high = Math.max(high, start[i] + length[i]);
      }
      if (low < high) return [low, high];
    }
    let [low, high] = [Infinity, -Infinity];
    for (let i = 0; i < this.compute.rows; i += 1) {
      if (this.operations.iteration[this.compute.operation[i]] !== index) continue;
      low = Math.min(low, this.compute.startNs[i]);
      high = Math.max(high, this.compute.endNs[i]);
    }
    return low < high ? [low, high] : null;
  }

  // Returns the [start, end] of the work of an iteration on all ranks, without optimizers.
  workSpan(index) {
    this.workSpans ??= this.allWorkSpans();
    return this.workSpans.get(index) ?? this.iterationSpan(index);
  }

  allWorkSpans() {
    const spans = new Map();
    for (let i = 0; i < this.compute.rows; i += 1) {
      const row = this.compute.operation[i];
      const index = this.operations.iteration[row];
      if (index < 0 || this.operations.phase[row] === this.optimizer) continue;
      const span = spans.get(index) ?? spans.set(index, [Infinity, -Infinity]).get(index);
      if (this.compute.startNs[i] < span[0]) span[0] = this.compute.startNs[i];
      if (this.compute.endNs[i] > span[1]) span[1] = this.compute.endNs[i];
    }
    return spans;
  }

  // The iterations whose work is entirely inside a time window.
  wholeIterations(fromNs, untilNs) {
    if (this.data.idle) return [];
    return this.report.iterations.map((entry) => entry.index).filter((index) => {
      const span = this.workSpan(index);
      return span && span[0] >= fromNs && span[1] <= untilNs;
    });
  }

  // Returns the length of the union of a rank's intervals that count as work, inside a time window.
  work(rank, fromNs, untilNs, iteration, counted) {
    const [low, high] = this.compute.between(rank, fromNs, untilNs);
    let [sum, reach] = [0, fromNs];
    for (let i = low; i < high; i += 1) {
      const row = this.compute.operation[i];
      if (counted !== "everything" && this.operations.iteration[row] !== iteration) continue;
      if (counted === "iteration" && this.operations.phase[row] === this.optimizer) continue;
      const start = Math.max(this.compute.startNs[i], reach);
      const end = Math.min(this.compute.endNs[i], untilNs);
      if (end > start) {
        sum += end - start;
        reach = end;
      }
    }
    return sum;
  }

  // Computes each ratio inside a time window, with the length of its windows and the work in them. If
  // the time window contains entire iterations, only their windows count, as in the report. Otherwise
  // all windows count, clipped to the time window.
  ratios(fromNs, untilNs) {
    const found = this.ratioDefinitions.map((definition) => ({ name: definition.name, windowNs: 0, workNs: 0, ratio: null }));
    const { ratio, iteration, rank, start_ns: start, length_ns: length } = this.windows;
    const whole = new Set(this.wholeIterations(fromNs, untilNs));
    for (let i = 0; i < this.windows.rows; i += 1) {
      if (ratio[i] < 0 || (whole.size && !whole.has(iteration[i]))) continue;
      const low = whole.size ? start[i] : Math.max(start[i], fromNs);
      const high = whole.size ? start[i] + length[i] : Math.min(start[i] + length[i], untilNs);
      if (high <= low) continue;
      const sums = found[ratio[i]];
      sums.windowNs += high - low;
      sums.workNs += this.work(rank[i], low, high, iteration[i], this.ratioDefinitions[ratio[i]].work);
    }
    for (const sums of found) if (sums.windowNs > 0) sums.ratio = 1 - sums.workNs / sums.windowNs;
    return found;
  }

  // Returns the idle time by cause, in the windows of the primary ratio that ratios() counts.
  idle(fromNs, untilNs) {
    const sums = this.data.causes.map(() => 0);
    const whole = new Set(this.wholeIterations(fromNs, untilNs));
    const { rank, iteration, cause, start_ns: start, length_ns: length } = this.bubbleRows;
    const counted = this.countedWindows();
    for (let i = 0; i < this.bubbleRows.rows; i += 1) {
      if (!counted.has(iteration[i] * this.report.ranks.length + rank[i])) continue;
      if (whole.size && !whole.has(iteration[i])) continue;
      const cut = Math.min(start[i] + length[i], untilNs) - Math.max(start[i], fromNs);
      sums[cause[i]] += whole.size ? length[i] : Math.max(0, cut);
    }
    return sums;
  }

  // The (iteration, rank) pairs that have a window of the primary ratio.
  countedWindows() {
    const headline = this.ratioDefinitions.findIndex((definition) => definition.name === this.report.headline);
    const { ratio, iteration, rank } = this.windows;
    const counted = new Set();
    for (let i = 0; i < this.windows.rows; i += 1) {
      if (ratio[i] === headline) counted.add(iteration[i] * this.report.ranks.length + rank[i]);
    }
    return counted;
  }

  // Whether the pipeline of an operation's rank is known.
  pipelineKnown(row) {
    const entry = this.report.ranks[this.operations.rank[row]];
    if (entry.pipeline !== null || entry.stage === null) return entry.pipeline !== null || this.report.ranks.length === 1;
    return this.report.ranks.filter((rank) => rank.stage === entry.stage).length === 1;
  }

  // Returns the operations of a microbatch in an iteration and pipeline, sorted by time. If the
  // pipeline is unknown, only operations of the same rank are returned.
  chain(row) {
    const { rank, iteration, microbatch, second_microbatch: second, phase, start_ns: start, length_ns: length } = this.operations;
    const wanted = [microbatch[row], second[row]].filter((number) => number >= 0);
    if (!wanted.length) return [row];
    const { pipeline } = this.report.ranks[rank[row]];
    const alone = !this.pipelineKnown(row);
    const computes = new Set(this.data.compute_phases);
    const rows = [];
    for (let i = 0; i < this.operations.rows; i += 1) {
      if (iteration[i] !== iteration[row] || length[i] < 0 || !computes.has(phase[i])) continue;
      if (!wanted.includes(microbatch[i]) && !(second[i] >= 0 && wanted.includes(second[i]))) continue;
      if (alone ? rank[i] === rank[row] : this.report.ranks[rank[i]].pipeline === pipeline) rows.push(i);
    }
    return rows.sort((a, b) => start[a] - start[b] || a - b);
  }

  // The compute operation before (-1) or after (1) an operation on its rank, or -1 if there is none.
  neighbor(row, step) {
    const computes = new Set(this.data.compute_phases);
    const { rank, phase, length_ns: length } = this.operations;
    for (let i = row + step; i >= 0 && i < this.operations.rows && rank[i] === rank[row]; i += step) {
      if (length[i] >= 0 && computes.has(phase[i])) return i;
    }
    return -1;
  }
}
