// Shards: the ranks of a pipeline or a few, unpacked when they are shown (see shards.py).

// A folded column (0, -1, 1, -2 as 0, 1, 2, 3) of numbers by bytes, the lowest ones first.
function unfolded(bytes, at, rows, width) {
  const values = new Float64Array(rows);
  for (let plane = 0, unit = 1; plane < width; plane += 1, unit *= 256) {
    const from = at + plane * rows;
    for (let i = 0; i < rows; i += 1) values[i] += bytes[from + i] * unit;
  }
  for (let i = 0; i < rows; i += 1) values[i] = values[i] % 2 ? -(values[i] + 1) / 2 : values[i] / 2;
  return values;
}

// The tables of a block, with columns as they travel.
function blockTables(buffer) {
  const bytes = new Uint8Array(buffer);
  const length = new DataView(buffer).getUint32(0, true);
  const layout = JSON.parse(new TextDecoder().decode(bytes.subarray(4, 4 + length)));
  let at = 4 + length;
  const tables = {};
  for (const [name, [rows, widths]] of Object.entries(layout)) {
    tables[name] = { rows };
    for (const [column, width] of Object.entries(widths)) {
      tables[name][column] = unfolded(bytes, at, rows, width);
      at += rows * width;
    }
  }
  return tables;
}

function summedUp(steps) {
  for (let i = 1; i < steps.length; i += 1) steps[i] += steps[i - 1];
  return steps;
}

// Times of operations, from what is left of their predictions.
function restoreOperations(own, unitNs, medianOf) {
  const { rows, rank, start_ns: start, length_ns: length, active_ns: active, thousandths } = own;
  let [lastRank, end] = [-1, 0];
  for (let i = 0; i < rows; i += 1) {
    active[i] += length[i];
    const median = medianOf(own.virtual_stage[i], own.phase[i]);
    if (median > 0 && length[i] >= 0) thousandths[i] += Math.floor((1000 * (length[i] * unitNs)) / median + 0.5);
    if (length[i] < 0) {
      start[i] = -1;
      continue;
    }
    start[i] += lastRank === rank[i] ? end : 0;
    [lastRank, end] = [rank[i], start[i] + length[i]];
  }
}

function restorePieces(own, operations) {
  for (let i = 0; i < own.rows; i += 1) {
    own.start_ns[i] += operations.start_ns[own.operation[i]];
    own.length_ns[i] += operations.length_ns[own.operation[i]];
  }
}

// For each operation, the end of the last compute before it on its rank.
function endsBefore({ rows, rank, phase, start_ns: start, length_ns: length }, computes) {
  const ends = new Float64Array(rows);
  let [lastRank, end] = [-1, 0];
  for (let i = 0; i < rows; i += 1) {
    if (rank[i] !== lastRank) [lastRank, end] = [rank[i], 0];
    ends[i] = end;
    if (length[i] >= 0 && computes.has(phase[i])) end = start[i] + length[i];
  }
  return ends;
}

function restoreBubbles(own, operations, computes) {
  const { rank, start_ns: start, length_ns: length, after } = own;
  const ends = endsBefore(operations, computes);
  let end = 0;
  for (let i = 0; i < own.rows; i += 1) {
    const row = after[i];
    const known = row >= 0 && operations.rank[row] === rank[i];
    const last = i > 0 && rank[i - 1] === rank[i] ? end : 0;
    start[i] += known ? Math.max(last, ends[row]) : last;
    if (known && operations.length_ns[row] >= 0) length[i] += operations.start_ns[row] - start[i];
    end = start[i] + length[i];
  }
}

const IN_UNITS = ["start_ns", "length_ns", "active_ns"];

class Shards {
  constructor(data) {
    this.data = data;
    this.all = data.shards.all.map(([first, last, structure, times]) => ({ first, last, structure, times }));
    this.unitNs = data.shards.unit_ns;
    this.blocks = new Map();
    const medians = new Map(data.report.phase_times.map((own) => [`${own.virtual_stage ?? -1} ${data.phases.indexOf(own.phase)}`, own.median_ns]));
    this.medianOf = (stage, phase) => medians.get(`${stage} ${phase}`) ?? 0;
  }

  // The shard of a rank; -1 where the page has none.
  of(rank) {
    return this.all.findIndex((own) => own.first <= rank && rank < own.last);
  }

  // The tables of a shard, as a page of few ranks has them.
  async tables(place) {
    const { first, structure, times } = this.all[place];
    const [own, tables] = await Promise.all([this.block(structure), this.block(times)]);
    for (const [name, columns] of Object.entries(own)) {
      for (const [column, steps] of Object.entries(columns)) {
        if (column !== "rows") tables[name][column] = summedUp(steps);
      }
      tables[name].rows = columns.rows;
    }
    for (const name of ["unattributed", "bubbles", "windows", "critical"]) {
      for (const [column, steps] of Object.entries(tables[name])) {
        if (column !== "rows" && !(name === "bubbles" && IN_UNITS.includes(column))) summedUp(steps);
      }
    }
    restoreOperations(tables.operations, this.unitNs, this.medianOf);
    for (const name of ["compute", "communication"]) restorePieces(tables[name], tables.operations);
    restoreBubbles(tables.bubbles, tables.operations, new Set(this.data.compute_phases));
    for (const columns of Object.values(tables)) {
      for (const [column, values] of Object.entries(columns)) {
        if (IN_UNITS.includes(column)) {
          for (let i = 0; i < values.length; i += 1) if (values[i] > 0) values[i] *= this.unitNs;
        } else if (column !== "rows") {
          columns[column] = Int32Array.from(values);
        }
      }
      if (columns.rank) for (let i = 0; i < columns.rank.length; i += 1) columns.rank[i] += first;
    }
    return tables;
  }

  async block(number) {
    return blockTables(await inflated(`block-${number}`));
  }
}
