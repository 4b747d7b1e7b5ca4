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
    const used = new Set();
    for (let i = low; i < high; i += 1) used.add(paint[lane.operation[i]]);
    const colours = new Map();
    const place = this.run.data.paints.map((own, id) => {
      if (!used.has(id)) return -1;
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
  // Returns the next row, from which the search for a later time can begin.
  spentUntil(lane, rank, made, timeNs, spent, begin = lane.bounds[rank]) {
    const [low, high] = [lane.bounds[rank], lane.bounds[rank + 1]];
    const next = onward(lane.startNs, timeNs, begin, high);
    for (let k = 0; k < spent.length; k += 1) spent[k] = made.sums[k][next - low];
    if (next > low && lane.endNs[next - 1] > timeNs) {
      spent[made.place[this.run.operations.paint[lane.operation[next - 1]]]] -= lane.endNs[next - 1] - timeNs;
    }
    return next;
  }

  // A picture of a rank's lane between two times, a column a pixel: busy time from the bottom up,
  // and above it what is idle in the colour of its bubble, where colours for bubbles are given.
  image(lane, rank, [fromNs, untilNs], wide, tall, bubbleColours = []) {
    const made = this.sumsOf(lane, rank);
    const image = new ImageData(wide, tall);
    const pixels = new Uint32Array(image.data.buffer);
    const perPixel = (untilNs - fromNs) / wide;
    const { bubbles } = this.run;
    const lastBubble = bubbleColours.length ? bubbles.bounds[rank + 1] : bubbles.bounds[rank];
    let bubble = bubbles.bounds[rank];
    let before = new Float64Array(made.sums.length);
    let after = new Float64Array(made.sums.length);
    let next = this.spentUntil(lane, rank, made, fromNs, before);
    for (let x = 0; x < wide; x += 1) {
      const rightNs = fromNs + (x + 1) * perPixel;
      next = this.spentUntil(lane, rank, made, rightNs, after, next);
      let y = 0;
      for (let k = 0; k < after.length; k += 1) {
        const until = Math.min(tall, y + (Math.max(0, after[k] - before[k]) / perPixel) * tall);
        fill(pixels, x, wide, tall, Math.round(y), Math.round(until), made.colours[k]);
        y = until;
      }
      bubble = onward(bubbles.reachNs, rightNs - perPixel, bubble, lastBubble);
      if (bubble < lastBubble && bubbles.startNs[bubble] < rightNs) fill(pixels, x, wide, tall, Math.round(y), tall, bubbleColours[bubbles.cause[bubble]]);
      [before, after] = [after, before];
    }
    return image;
  }
}

// Colours a part of a column of pixels; heights count from the bottom.
function fill(pixels, x, wide, tall, from, until, colour) {
  for (let at = from; at < until; at += 1) pixels[(tall - 1 - at) * wide + x] = colour;
}

// As above(), for a place that is not far behind the first.
function onward(column, limit, low, high) {
  let step = 1;
  while (low + step < high && column[low + step] <= limit) step *= 2;
  return above(column, limit, low + (step >> 1), Math.min(low + step + 1, high));
}

// A colour "#rrggbb" as a pixel of image data, which has the lowest byte first.
function channels(colour) {
  const value = parseInt(colour.slice(1), 16);
  return ((255 << 24) | ((value & 255) << 16) | (value & 0xff00) | (value >> 16)) >>> 0;
}
