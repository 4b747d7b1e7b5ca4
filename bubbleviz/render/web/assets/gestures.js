// Gestures: handles mouse wheel, pointer and keyboard events on the canvas of a timeline.

class Gestures {
  constructor(timeline) {
    this.at = timeline;
    this.drag = null;
    this.listen();
  }

  listen() {
    const { canvas } = this.at;
    canvas.addEventListener("wheel", (event) => this.wheeled(event), { passive: false });
    canvas.addEventListener("pointerdown", (event) => this.pressed(event));
    canvas.addEventListener("pointermove", (event) => this.pointed(event));
    canvas.addEventListener("pointerup", (event) => this.released(event));
    canvas.addEventListener("pointercancel", () => {
      this.drag = null;
      this.left();
    });
    // The content under the pointer has moved, or the page has lost the focus.
    addEventListener("scroll", () => this.left(), { passive: true, capture: true });
    addEventListener("blur", () => this.left());
    addEventListener("keydown", (event) => {
      if (event.key === "Escape") this.left();
    });
    canvas.addEventListener("pointerleave", () => this.left());
    canvas.addEventListener("dblclick", (event) => this.twice(event));
    canvas.addEventListener("keydown", (event) => this.keyed(event));
  }

  place(event) {
    const box = this.at.canvas.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  }

  // Without a modifier key, the wheel scrolls the page.
  wheeled(event) {
    const sideways = event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY);
    const zooming = event.ctrlKey || event.metaKey;
    if (!sideways && !zooming && !event.altKey) return;
    event.preventDefault();
    const [x] = this.place(event);
    const lines = event.deltaMode === 1 ? 16 : 1;
    if (sideways && !zooming) {
      this.at.pan(((event.deltaX || event.deltaY) * lines) / this.at.plotWidth);
    } else if (event.altKey) {
      this.at.moveRows(event.deltaY * lines);
      this.at.draw();
    } else {
      this.at.zoom(Math.exp(Math.max(-1, Math.min(1, event.deltaY * lines * 0.002))), this.at.timeAt(Math.max(x, this.at.gutter)));
    }
  }

  pressed(event) {
    if (event.button !== 0) return;
    const [x, y] = this.place(event);
    this.at.canvas.focus({ preventScroll: true });
    this.at.canvas.setPointerCapture(event.pointerId);
    const selecting = (this.at.selecting || event.shiftKey) && x >= this.at.gutter;
    this.drag = { x, y, fromNs: this.at.fromNs, untilNs: this.at.untilNs, top: this.at.rowTop, selecting, startNs: this.at.timeAt(x), moved: false };
  }

  pointed(event) {
    const [x, y] = this.place(event);
    if (!this.drag) {
      this.hover(x, y);
      return;
    }
    const { drag } = this;
    drag.moved ||= Math.abs(x - drag.x) + Math.abs(y - drag.y) > 3;
    if (!drag.moved) return;
    this.unhover();
    if (drag.selecting) {
      this.at.window = [drag.startNs, this.at.timeAt(Math.min(Math.max(x, this.at.gutter), this.at.width))].sort((a, b) => a - b);
      this.at.draw();
      return;
    }
    const step = ((drag.x - x) / this.at.plotWidth) * (drag.untilNs - drag.fromNs);
    this.at.rowTop = drag.top;
    this.at.moveRows(drag.y - y);
    this.at.show(drag.fromNs + step, drag.untilNs + step);
  }

  released(event) {
    const { drag } = this;
    this.drag = null;
    if (!drag) return;
    if (drag.moved) {
      if (drag.selecting) this.at.setWindow(this.at.window);
      return;
    }
    const [x, y] = this.place(event);
    if (y < 16 && x >= this.at.gutter) {
      const band = this.at.bands.find(({ span }) => span[0] <= this.at.timeAt(x) && this.at.timeAt(x) < span[1]);
      if (band) this.at.callbacks.iteration?.(band.index);
      return;
    }
    const found = this.at.hit(x, y);
    if (found?.bubble >= 0) this.at.selectBubble(found.bubble);
    else this.at.select(found?.row ?? -1);
  }

  twice(event) {
    const found = this.at.hit(...this.place(event));
    if (!found || found.row < 0) this.at.whole();
    else {
      const { start_ns: start, length_ns: length } = this.at.run.operations;
      this.at.show(start[found.row] - 2 * length[found.row], start[found.row] + 3 * length[found.row]);
    }
  }

  hover(x, y) {
    const found = this.at.hit(x, y);
    const changed = found?.row !== this.at.hovered?.row || found?.bubble !== this.at.hovered?.bubble;
    this.at.hovered = found;
    const lines = found ? this.at.callbacks.describe(found) : [];
    this.at.tip.replaceChildren(...lines.map((line, at) => element(at ? "div" : "strong", {}, line)));
    this.at.tip.hidden = !lines.length;
    if (lines.length) {
      const right = x + 16 + this.at.tip.offsetWidth > this.at.width;
      this.at.tip.style.left = `${right ? Math.max(0, x - 12 - this.at.tip.offsetWidth) : x + 16}px`;
      this.at.tip.style.top = `${y + 14}px`;
    }
    if (changed) this.at.draw();
  }

  unhover() {
    this.at.tip.hidden = true;
    this.at.hovered = null;
  }

  left() {
    if (this.at.tip.hidden && !this.at.hovered) return;
    this.unhover();
    this.at.draw();
  }

  keyed(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const keys = {
      ArrowLeft: () => this.at.pan(-0.15), ArrowRight: () => this.at.pan(0.15),
      ArrowUp: () => this.at.step(0, -1), ArrowDown: () => this.at.step(0, 1),
      "+": () => this.at.zoom(1 / 1.5), "=": () => this.at.zoom(1 / 1.5), "-": () => this.at.zoom(1.5),
      0: () => this.at.whole(), Home: () => this.at.whole(),
      n: () => this.at.step(1, 0), p: () => this.at.step(-1, 0),
      b: () => this.at.stepBubble(event.shiftKey ? -1 : 1),
      s: () => this.at.setWindow([this.at.fromNs, this.at.untilNs]),
      Escape: () => this.escape(),
    };
    const act = keys[event.key] ?? keys[event.key.toLowerCase()];
    if (!act) return;
    event.preventDefault();
    this.left();
    act();
  }

  // Cancels the most recent action first.
  escape() {
    if (this.drag) this.drag = null;
    if (this.at.window && this.at.selected < 0 && this.at.selectedBubble < 0) this.at.setWindow(null);
    else this.at.select(-1);
  }
}
