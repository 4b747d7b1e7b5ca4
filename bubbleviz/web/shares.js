// Shares: how the time of each pixel was spent, where operations are narrower than pixels.
//
// Running sums of busy time by colour make a pixel's shares two look-ups, whatever lies in it.

class Shares {
  constructor(run) {
    this.run = run;
    this.sums = new Map();
  }

  // Running sums of a rank's busy time by paint, in the order of its lane.
  sumsOf(lane, rank) {
    const key = `${rank}:${lane === this.run.compute}`;
    if (this.sums.has(key)) return this.sums.get(key);
    const { paint } = this.run.operations;
    const [low, high] = [lane.bounds[rank], lane.bounds[rank + 1]];
    const colours = new Map();
    const place = this.run.data.paints.map((own) => {
      const colour = own.bands.reduce((a, b) => (b[0] > a[0] ? b : a))[1];
      if (!colours.has(colour)) colours.set(colour, colours.size);
      return colours.get(colour);
    });
    const sums = Array.from(colours, () => new Float64Array(high - low + 1));
    for (let i = low; i < high; i += 1) {
      const own = place[paint[lane.operation[i]]];
      for (let k = 0; k < sums.length; k += 1) sums[k][i - low + 1] = sums[k][i - low];
      sums[own][i - low + 1] += lane.endNs[i] - lane.startNs[i];
    }
    const made = { sums, place, colours: [...colours.keys()].map(channels) };
    if (this.sums.size > 256) this.sums.clear();
    this.sums.set(key, made);
    return made;
  }

  // Busy time of each colour up to a time: whole operations from the sums, a part of the one at it.
  spentUntil(lane, rank, made, timeNs, spent) {
    const [low, high] = [lane.bounds[rank], lane.bounds[rank + 1]];
    const next = above(lane.startNs, timeNs, low, high);
    for (let k = 0; k < spent.length; k += 1) spent[k] = made.sums[k][next - low];
    if (next > low && lane.endNs[next - 1] > timeNs) {
      spent[made.place[this.run.operations.paint[lane.operation[next - 1]]]] -= lane.endNs[next - 1] - timeNs;
    }
  }

  // A picture of a rank's lane between two times, a column a pixel.
  image(lane, rank, [fromNs, untilNs], wide, tall) {
    const made = this.sumsOf(lane, rank);
    const image = new ImageData(wide, tall);
    const pixels = new Uint32Array(image.data.buffer);
    const perPixel = (untilNs - fromNs) / wide;
    let before = new Float64Array(made.sums.length);
    let after = new Float64Array(made.sums.length);
    this.spentUntil(lane, rank, made, fromNs, before);
    for (let x = 0; x < wide; x += 1) {
      this.spentUntil(lane, rank, made, fromNs + (x + 1) * perPixel, after);
      let y = 0;
      for (let k = 0; k < after.length; k += 1) {
        const share = Math.max(0, after[k] - before[k]) / perPixel;
        const until = Math.min(tall, y + share * tall);
        // From the bottom up; a sliver of idle time stays visible.
        for (let own = Math.round(y); own < Math.round(until); own += 1) pixels[(tall - 1 - own) * wide + x] = made.colours[k];
        y = until;
      }
      [before, after] = [after, before];
    }
    return image;
  }
}

// A colour "#rrggbb" as a pixel of image data, which has the lowest byte first.
function channels(colour) {
  const value = parseInt(colour.slice(1), 16);
  return ((255 << 24) | ((value & 255) << 16) | (value & 0xff00) | (value >> 16)) >>> 0;
}
