// Computes how the time of each pixel was spent, for intervals that are narrower than a pixel.
//
// With running sums of time by code, the shares of a pixel require two look-ups. A regular grid reduces
// each look-up to one or two steps. Therefore, the cost of a frame depends on the number of pixels, not
// on the number of intervals.

class Spent {
  // Prepares the rows [low, high) of a lane, which are sorted by start. Codes are in [0, count).
  constructor(lane, low, high, codeOf, count) {
    const rows = high - low;
    this.startNs = lane.startNs.subarray(low, high);
    this.endNs = lane.endNs.subarray(low, high);
    this.count = count;
    this.codes = new Uint8Array(rows);
    this.sums = new Float64Array((rows + 1) * count);
    for (let i = 0; i < rows; i += 1) {
      const [from, to] = [i * count, (i + 1) * count];
      for (let k = 0; k < count; k += 1) this.sums[to + k] = this.sums[from + k];
      this.codes[i] = codeOf(low + i);
      this.sums[to + this.codes[i]] += this.endNs[i] - this.startNs[i];
    }
    this.grid();
  }

  // Computes the number of intervals that start before each of a series of equally spaced times.
  grid() {
    const rows = this.startNs.length;
    this.cells = Math.max(1, rows);
    this.firstNs = rows ? this.startNs[0] : 0;
    const span = rows ? this.startNs[rows - 1] - this.firstNs : 0;
    this.perNs = span > 0 ? this.cells / span : 0;
    this.places = new Int32Array(this.cells + 2);
    for (let i = 0; i < rows; i += 1) this.places[this.cell(this.startNs[i]) + 1] += 1;
    for (let i = 0; i <= this.cells; i += 1) this.places[i + 1] += this.places[i];
  }

  cell(timeNs) {
    const cell = Math.floor((timeNs - this.firstNs) * this.perNs);
    return cell < 0 ? 0 : cell > this.cells ? this.cells : cell;
  }

  // Returns the number of intervals that have started at a given time.
  countStarted(timeNs) {
    const cell = this.cell(timeNs);
    let low = this.places[cell];
    const high = this.places[cell + 1];
    if (high - low > 8) return findFirstAbove(this.startNs, timeNs, low, high);
    while (low < high && this.startNs[low] <= timeNs) low += 1;
    return low;
  }

  // Writes into `spent` the time that was spent until a given time, by code. This is the sum of all
  // intervals that have started, minus the remaining part of an interval that is still running.
  until(timeNs, spent) {
    const { count, sums } = this;
    const next = this.countStarted(timeNs);
    const at = next * count;
    for (let k = 0; k < count; k += 1) spent[k] = sums[at + k];
    if (next > 0 && this.endNs[next - 1] > timeNs) spent[this.codes[next - 1]] -= this.endNs[next - 1] - timeNs;
  }
}

// The running sums of all ranks of a run. They are computed when they are first needed.
class SpentByRank {
  constructor(run) {
    this.run = run;
    this.made = new Map();
  }

  // Returns the sums for a lane of operations, by color.
  work(lane, rank) {
    return this.of(`${rank} ${lane === this.run.compute}`, () => {
      const { paint } = this.run.operations;
      const [low, high] = [lane.bounds[rank], lane.bounds[rank + 1]];
      const colors = new Map();
      const codes = new Map();
      const codeOf = (i) => {
        const id = paint[lane.operation[i]];
        if (!codes.has(id)) {
          const color = this.run.data.paints[id].bands.reduce((a, b) => (b[0] > a[0] ? b : a))[1];
          if (!colors.has(color)) colors.set(color, colors.size);
          codes.set(id, colors.get(color));
        }
        return codes.get(id);
      };
      for (let i = low; i < high; i += 1) codeOf(i);
      return Object.assign(new Spent(lane, low, high, codeOf, colors.size), { colors: [...colors.keys()] });
    });
  }

  // Returns the sums of bubbles, by cause or in total.
  idle(rank, byCause) {
    return this.of(`${rank} ${byCause ? "causes" : "bubbles"}`, () => {
      const { bubbles, data } = this.run;
      const codeOf = byCause ? (i) => bubbles.cause[i] : () => 0;
      return new Spent(bubbles, bubbles.bounds[rank], bubbles.bounds[rank + 1], codeOf, byCause ? data.causes.length : 1);
    });
  }

  of(key, make) {
    if (!this.made.has(key)) {
      if (this.made.size > 512) this.made.clear();
      this.made.set(key, make());
    }
    return this.made.get(key);
  }
}
