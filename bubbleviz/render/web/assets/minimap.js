// The minimap shows how busy the ranks are over the entire run. A frame marks the part that the
// timeline shows.

class Minimap {
  constructor(timeline) {
    this.timeline = timeline;
    this.canvas = document.getElementById("minimap");
    const move = (event) => {
      if (!(event.buttons & 1)) return;
      const { run } = this.timeline;
      const box = this.canvas.getBoundingClientRect();
      const middle = run.startNs + ((event.clientX - box.left) / box.width) * (run.endNs - run.startNs);
      const half = (this.timeline.untilNs - this.timeline.fromNs) / 2;
      this.timeline.show(middle - half, middle + half);
    };
    this.canvas.addEventListener("pointerdown", (event) => {
      this.canvas.setPointerCapture(event.pointerId);
      move(event);
    });
    this.canvas.addEventListener("pointermove", move);
  }

  // The time in which operations ran, summed over the ranks, for each pixel column.
  busy(columns) {
    const { run } = this.timeline;
    if (this.counted?.length === columns && this.of === run.operations) return this.counted;
    const sums = new Float64Array(columns);
    const perNs = columns / (run.endNs - run.startNs);
    const { startNs, endNs, rows } = run.compute;
    for (let i = 0; i < rows; i += 1) {
      const [from, until] = [(startNs[i] - run.startNs) * perNs, (endNs[i] - run.startNs) * perNs];
      for (let at = Math.max(0, Math.floor(from)); at < Math.min(columns, until); at += 1) sums[at] += Math.min(until, at + 1) - Math.max(from, at);
    }
    [this.counted, this.of] = [sums, run.operations];
    return sums;
  }

  paint() {
    const { run, ink, fromNs, untilNs, gutter, scale } = this.timeline;
    const { canvas } = this;
    const [wide, tall] = [canvas.clientWidth, canvas.clientHeight];
    if (!wide || !gutter) return;
    [canvas.width, canvas.height] = [Math.round(wide * scale), Math.round(tall * scale)];
    const c = canvas.getContext("2d");
    c.setTransform(scale, 0, 0, scale, 0, 0);
    const sums = this.busy(wide);
    const most = sums.reduce((a, b) => Math.max(a, b), 1);
    c.fillStyle = ink.band;
    c.fillRect(0, 0, wide, tall);
    c.fillStyle = ink.quiet;
    sums.forEach((sum, at) => c.fillRect(at, tall - (sum / most) * tall, 1, tall));
    const x = (timeNs) => ((timeNs - run.startNs) / (run.endNs - run.startNs)) * wide;
    const [left, right] = [Math.max(0, x(fromNs)), Math.min(wide, x(untilNs))];
    c.strokeStyle = ink.accent;
    c.lineWidth = 2;
    c.strokeRect(left + 1, 1, Math.max(right - left - 2, 2), tall - 2);
  }
}
