// Shards: the ranks of one or several pipelines, unpacked when they are shown (see shards.py).

// Decodes a column of zigzag-encoded numbers (0, -1, 1, -2 are stored as 0, 1, 2, 3). The lowest bytes
// of all numbers come first, then all second bytes, and so on.
function decodeColumn(bytes, at, rows, width) {
  const values = new Float64Array(rows);
  for (let plane = 0, unit = 1; plane < width; plane += 1, unit *= 256) {
    const from = at + plane * rows;
    for (let i = 0; i < rows; i += 1) values[i] += bytes[from + i] * unit;
  }
  for (let i = 0; i < rows; i += 1) values[i] = values[i] % 2 ? -(values[i] + 1) / 2 : values[i] / 2;
  return values;
}

// Columns that are stored as values. All other columns are stored as differences between rows.
const LENGTHS = new Set(["length_ns", "active_ns", "thousandths", "later_ns", "longer_ns"]);

function addUp(steps) {
  for (let i = 1; i < steps.length; i += 1) steps[i] += steps[i - 1];
}

// Returns the tables of a block. Times are doubles, which are exact below 2**53. All other columns are
// 32-bit integers.
function decodeTables(buffer) {
  const bytes = new Uint8Array(buffer);
  const length = new DataView(buffer).getUint32(0, true);
  const layout = JSON.parse(new TextDecoder().decode(bytes.subarray(4, 4 + length)));
  let at = 4 + length;
  const tables = {};
  for (const [name, [rows, widths]] of Object.entries(layout)) {
    tables[name] = { rows };
    for (const [column, width] of Object.entries(widths)) {
      const values = decodeColumn(bytes, at, rows, width);
      if (!LENGTHS.has(column)) addUp(values);
      tables[name][column] = column.endsWith("_ns") ? values : Int32Array.from(values);
      at += rows * width;
    }
  }
  return tables;
}

// Computes the start times of busy intervals from their offsets to the operations.
function restorePieces(pieces, operations) {
  const { later_ns: start, longer_ns: length } = pieces;
  for (let i = 0; i < pieces.rows; i += 1) {
    start[i] += operations.start_ns[pieces.operation[i]];
    length[i] += operations.length_ns[pieces.operation[i]];
  }
  return { rows: pieces.rows, operation: pieces.operation, start_ns: start, length_ns: length };
}

const IN_UNITS = ["start_ns", "length_ns", "active_ns"];

class Shards {
  constructor(data) {
    this.data = data;
    this.all = data.shards.all.map(([first, last, structure, times]) => ({ first, last, structure, times }));
    this.unitNs = data.shards.unit_ns;
    this.blocks = new Map();
  }

  // The index of the shard that contains a rank, or -1 if the page does not contain the rank.
  of(rank) {
    return this.all.findIndex((shard) => shard.first <= rank && rank < shard.last);
  }

  // The tables of a shard, in the format of a page with few ranks.
  async tables(place) {
    const { first, structure, times } = this.all[place];
    const [structureTables, tables] = await Promise.all([this.block(structure), this.block(times)]);
    for (const [name, columns] of Object.entries(structureTables)) tables[name] = { ...tables[name], ...columns };
    for (const name of ["compute", "communication"]) tables[name] = restorePieces(tables[name], tables.operations);
    for (const columns of Object.values(tables)) {
      for (const values of IN_UNITS.map((name) => columns[name] ?? [])) {
        for (let i = 0; i < values.length; i += 1) if (values[i] > 0) values[i] *= this.unitNs;
      }
      if (columns.rank) for (let i = 0; i < columns.rank.length; i += 1) columns.rank[i] += first;
    }
    return tables;
  }

  async block(number) {
    return decodeTables(await inflate(`block-${number}`));
  }
}
