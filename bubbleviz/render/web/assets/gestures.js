// Gestures: handles mouse wheel, pointer and keyboard events on the canvas of a timeline.

class Gestures {
  constructor(timeline) {
    this.timeline = timeline;
    this.drag = null;
    this.listen();
  }

  listen() {
    const { canvas } = this.timeline;
    canvas.addEventListener("wheel", (event) => this.onWheel(event), { passive: false });
    canvas.addEventListener("pointerdown", (event) => this.onPointerDown(event));
    canvas.addEventListener("pointermove", (event) => this.onPointerMove(event));
    canvas.addEventListener("pointerup", (event) => this.onPointerUp(event));
    canvas.addEventListener("pointercancel", () => {
      this.drag = null;
      this.onLeave();
    });
    // The content under the pointer has moved, or the page has lost the focus.
    addEventListener("scroll", () => this.onLeave(), { passive: true, capture: true });
    addEventListener("blur", () => this.onLeave());
    addEventListener("keydown", (event) => {
      if (event.key === "Escape") this.onLeave();
    });
    canvas.addEventListener("pointerleave", () => this.onLeave());
    canvas.addEventListener("dblclick", (event) => this.onDoubleClick(event));
    canvas.addEventListener("keydown", (event) => this.onKey(event));
  }

  locate(event) {
    const box = this.timeline.canvas.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  }

  // Without a modifier key, the wheel scrolls the page.
  onWheel(event) {
    const sideways = event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY);
    const zooming = event.ctrlKey || event.metaKey;
    if (!sideways && !zooming && !event.altKey) return;
    event.preventDefault();
    const [x] = this.locate(event);
    const lines = event.deltaMode === 1 ? 16 : 1;
    if (sideways && !zooming) {
      this.timeline.pan(((event.deltaX || event.deltaY) * lines) / this.timeline.plotWidth);
    } else if (event.altKey) {
      this.timeline.moveRows(event.deltaY * lines);
      this.timeline.draw();
    } else {
      this.timeline.zoom(Math.exp(Math.max(-1, Math.min(1, event.deltaY * lines * 0.002))), this.timeline.timeAt(Math.max(x, this.timeline.gutter)));
    }
  }

  onPointerDown(event) {
    if (event.button !== 0) return;
    const [x, y] = this.locate(event);
    this.timeline.canvas.focus({ preventScroll: true });
    this.timeline.canvas.setPointerCapture(event.pointerId);
    const selecting = (this.timeline.selecting || event.shiftKey) && x >= this.timeline.gutter;
    this.drag = { x, y, fromNs: this.timeline.fromNs, untilNs: this.timeline.untilNs, top: this.timeline.rowTop, selecting, startNs: this.timeline.timeAt(x), moved: false };
  }

  onPointerMove(event) {
    const [x, y] = this.locate(event);
    if (!this.drag) {
      this.hover(x, y);
      return;
    }
    const { drag } = this;
    drag.moved ||= Math.abs(x - drag.x) + Math.abs(y - drag.y) > 3;
    if (!drag.moved) return;
    this.unhover();
    if (drag.selecting) {
      this.timeline.window = [drag.startNs, this.timeline.timeAt(Math.min(Math.max(x, this.timeline.gutter), this.timeline.width))].sort((a, b) => a - b);
      this.timeline.draw();
      return;
    }
    const step = ((drag.x - x) / this.timeline.plotWidth) * (drag.untilNs - drag.fromNs);
    this.timeline.rowTop = drag.top;
    this.timeline.moveRows(drag.y - y);
    this.timeline.show(drag.fromNs + step, drag.untilNs + step);
  }

  onPointerUp(event) {
    const { drag } = this;
    this.drag = null;
    if (!drag) return;
    if (drag.moved) {
      if (drag.selecting) this.timeline.setWindow(this.timeline.window);
      return;
    }
    const [x, y] = this.locate(event);
    if (y < 16 && x >= this.timeline.gutter) {
      const band = this.timeline.bands.find(({ span }) => span[0] <= this.timeline.timeAt(x) && this.timeline.timeAt(x) < span[1]);
      if (band) this.timeline.callbacks.iteration?.(band.index);
      return;
    }
    const found = this.timeline.hit(x, y);
    if (found?.bubble >= 0) this.timeline.selectBubble(found.bubble);
    else this.timeline.select(found?.row ?? -1);
  }

  onDoubleClick(event) {
    const found = this.timeline.hit(...this.locate(event));
    if (!found || found.row < 0) this.timeline.whole();
    else {
      const { start_ns: start, length_ns: length } = this.timeline.run.operations;
      this.timeline.show(start[found.row] - 2 * length[found.row], start[found.row] + 3 * length[found.row]);
    }
  }

  hover(x, y) {
    const found = this.timeline.hit(x, y);
    const changed = found?.row !== this.timeline.hovered?.row || found?.bubble !== this.timeline.hovered?.bubble;
    this.timeline.hovered = found;
    const lines = found ? this.timeline.callbacks.describe(found) : [];
    this.timeline.tip.replaceChildren(...lines.map((line, at) => element(at ? "div" : "strong", {}, line)));
    this.timeline.tip.hidden = !lines.length;
    if (lines.length) {
      const right = x + 16 + this.timeline.tip.offsetWidth > this.timeline.width;
      this.timeline.tip.style.left = `${right ? Math.max(0, x - 12 - this.timeline.tip.offsetWidth) : x + 16}px`;
      this.timeline.tip.style.top = `${y + 14}px`;
    }
    if (changed) this.timeline.draw();
  }

  unhover() {
    this.timeline.tip.hidden = true;
    this.timeline.hovered = null;
  }

  onLeave() {
    if (this.timeline.tip.hidden && !this.timeline.hovered) return;
    this.unhover();
    this.timeline.draw();
  }

  onKey(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const keys = {
      ArrowLeft: () => this.timeline.pan(-0.15), ArrowRight: () => this.timeline.pan(0.15),
      ArrowUp: () => this.timeline.step(0, -1), ArrowDown: () => this.timeline.step(0, 1),
      "+": () => this.timeline.zoom(1 / 1.5), "=": () => this.timeline.zoom(1 / 1.5), "-": () => this.timeline.zoom(1.5),
      0: () => this.timeline.whole(), Home: () => this.timeline.whole(),
      n: () => this.timeline.step(1, 0), p: () => this.timeline.step(-1, 0),
      b: () => this.timeline.stepBubble(event.shiftKey ? -1 : 1),
      s: () => this.timeline.setWindow([this.timeline.fromNs, this.timeline.untilNs]),
      Escape: () => this.escape(),
    };
    const act = keys[event.key] ?? keys[event.key.toLowerCase()];
    if (!act) return;
    event.preventDefault();
    this.onLeave();
    act();
  }

  // Cancels the most recent action first.
  escape() {
    if (this.drag) this.drag = null;
    if (this.timeline.window && this.timeline.selected < 0 && this.timeline.selectedBubble < 0) this.timeline.setWindow(null);
    else this.timeline.select(-1);
  }
}
