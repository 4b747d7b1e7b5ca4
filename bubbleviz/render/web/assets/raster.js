// The raster contains the pixels of the plot. Pixels are written one by one, and then put on the
// canvas all at once.

class Raster {
  constructor() {
    this.wide = this.tall = 0;
    // Number of look-ups and number of boxes in the last frame. Tests compare them with the number of pixels.
    this.work = 0;
  }

  // Starts a raster of the given size, which is filled with one color.
  begin(wide, tall, color) {
    if (wide !== this.wide || tall !== this.tall) {
      [this.wide, this.tall] = [wide, tall];
      this.image = new ImageData(wide, tall);
      this.pixels = new Uint32Array(this.image.data.buffer);
    }
    this.pixels.fill(color);
    this.work = 0;
  }

  // Fills a box with whole-pixel bounds.
  box(left, right, top, bottom, color) {
    const { pixels, wide } = this;
    const from = Math.max(0, left);
    const to = Math.min(wide, right);
    const last = Math.min(this.tall, bottom);
    this.work += 1;
    for (let y = Math.max(0, top); y < last; y += 1) {
      const line = y * wide;
      if (to - from > 24) pixels.fill(color, line + from, line + to);
      else for (let at = line + from; at < line + to; at += 1) pixels[at] = color;
    }
  }

  // Fills a box with a pattern, a square tile of pixels.
  pattern(left, right, top, bottom, tile) {
    const size = Math.sqrt(tile.length);
    const from = Math.max(0, left);
    const to = Math.min(this.wide, right);
    const last = Math.min(this.tall, bottom);
    this.work += 1;
    for (let y = Math.max(0, top); y < last; y += 1) {
      const line = y * this.wide;
      const row = (y % size) * size;
      for (let x = from; x < to; x += 1) this.pixels[line + x] = tile[row + (x % size)];
    }
  }

  // Fills the pixel columns of a row according to how their time was spent, with work at the bottom.
  columns([fromNs, untilNs], top, bottom, work, workColors, idle, idleColors) {
    const { wide } = this;
    const first = Math.max(0, top);
    const last = Math.min(this.tall, bottom);
    const perPixel = (untilNs - fromNs) / wide;
    const heightPerNs = (bottom - top) / perPixel;
    const before = new Float64Array(work.count);
    const after = new Float64Array(work.count);
    const idleBefore = new Float64Array(idle.count);
    const idleAfter = new Float64Array(idle.count);
    work.until(fromNs, before);
    let idleKnown = -1;
    this.work += 2 * wide;
    for (let x = 0; x < wide; x += 1) {
      const rightNs = fromNs + (x + 1) * perPixel;
      work.until(rightNs, after);
      let y = bottom;
      for (let k = 0; k < work.count; k += 1) {
        const spentNs = after[k] - before[k];
        before[k] = after[k];
        if (spentNs <= 0) continue;
        const next = y - spentNs * heightPerNs;
        this.column(x, Math.round(next), Math.round(y), first, last, workColors[k]);
        y = next;
      }
      if (y <= first + 0.5) continue;
      if (idleKnown !== x) idle.until(rightNs - perPixel, idleBefore);
      idle.until(rightNs, idleAfter);
      for (let k = 0; k < idle.count; k += 1) {
        const spentNs = idleAfter[k] - idleBefore[k];
        idleBefore[k] = idleAfter[k];
        if (spentNs <= 0) continue;
        const next = y - spentNs * heightPerNs;
        this.column(x, Math.round(next), Math.round(y), first, last, idleColors[k]);
        y = next;
      }
      idleKnown = x + 1;
    }
  }

  column(x, top, bottom, first, last, color) {
    const { wide, pixels } = this;
    const end = (bottom < last ? bottom : last) * wide + x;
    for (let at = (top > first ? top : first) * wide + x; at < end; at += wide) pixels[at] = color;
  }
}

// Converts a color "#rrggbb" to a pixel of image data in little-endian byte order.
function parseColor(color) {
  const value = parseInt(color.slice(1), 16);
  return ((255 << 24) | ((value & 255) << 16) | (value & 0xff00) | (value >> 16)) >>> 0;
}

// Mixes a share of another pixel's color into a pixel.
function mixColors(pixel, other, share) {
  let made = 255 << 24;
  for (const shift of [0, 8, 16]) {
    const [a, b] = [(pixel >> shift) & 255, (other >> shift) & 255];
    made |= Math.round(a + (b - a) * share) << shift;
  }
  return made >>> 0;
}
