// Every block as a rectangle: as wide as it lived, as high as it is large, where no other live block
// is drawn. WebGL2 draws them; where there is none, or none but software, a canvas does.

import { el, fill, fit, oncePerFrame, theme } from "../base/dom.ts";
import { colour, isDark, rgb } from "../base/palette.ts";
import { byteSteps, count, duration, seconds, size } from "../base/units.ts";
import { Shown } from "../data/facts.ts";
import { LIVE, type Blocks } from "../data/stream.ts";
import { GlPainter } from "./paint_gl.ts";
import { RasterPainter } from "./paint_raster.ts";
import type { Page, View } from "./page.ts";
import * as tooltip from "./tooltip.ts";

/** Rectangles, in order of their beginning. */
export interface Rectangles {
  length: number;
  /** Index of the block. */
  which: Uint32Array;
  /** ns. */
  from: Float64Array;
  to: Float64Array;
  /** Bytes. */
  low: Float64Array;
  high: Float64Array;
  /** Red, green, blue, opacity. */
  colour: Uint8Array;
}

/** What of the plane is seen. */
export interface Window2 {
  from: number;
  to: number;
  low: number;
  high: number;
}

export interface Painter {
  readonly name: string;
  /** Draws what is seen over all of the canvas. */
  paint(into: HTMLCanvasElement, all: Rectangles, seen: Window2): void;
  forget(): void;
}

const LEFT = 74;
const HEIGHT = 420;
const AXIS = 20;
/** Where blocks may be hidden without a word: none is. The slider's steps are powers of 2. */
const STEPS = 31;

function choose(): Painter {
  const gl = GlPainter.make();
  const forced = (window as unknown as { vramtracePainter?: string }).vramtracePainter;
  if (!gl) return new RasterPainter("canvas: no WebGL2");
  return gl.software && forced !== "webgl" ? new RasterPainter("canvas: WebGL2 is software here") : gl;
}

export class BlocksView implements View {
  readonly node = el("section", { class: "blocks", label: "Blocks over time" });
  private readonly canvas = el("canvas", { role: "img", label: "Blocks over time" });
  private readonly slider = el("input", { label: "Lump blocks smaller than" });
  private readonly words = el("span", { class: "dim" });
  private readonly level = el("span", { class: "switches" });
  private readonly surface = document.createElement("canvas");
  private painter: Painter;
  private rectangles: Rectangles | null = null;
  private key = "";
  /** What the surface shows. */
  private painted: Window2 | null = null;
  private cost = 0;
  private hidden = { blocks: 0, bytes: 0 };
  private low = 0;
  private high = 0;
  private drag: { x: number; y: number; view: [number, number]; low: number; high: number; moved: boolean } | null = null;
  private driver = false;
  private waiting = 0;
  private readonly redraw = oncePerFrame(() => this.draw());

  constructor(private readonly page: Page) {
    this.painter = choose();
    this.slider.type = "range";
    this.slider.min = "0";
    this.slider.max = String(STEPS);
    this.slider.addEventListener("input", () => {
      const power = Number(this.slider.value);
      page.store.set({ small: power === 0 ? 0 : 2 ** (power + 8) });
    });
    this.node.append(
      el("div", { class: "bar-row" }, this.level, el("label", {}, "lump blocks below ", this.slider), this.words),
      this.canvas,
    );
    this.canvas.addEventListener("mousemove", (event) => this.hover(event));
    this.canvas.addEventListener("mouseleave", () => tooltip.hide());
    this.canvas.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    this.canvas.addEventListener("mousedown", (event) => {
      const { low, high } = this.seen;
      this.drag = { x: event.clientX, y: event.clientY, view: page.view, low, high, moved: false };
      event.preventDefault();
    });
    window.addEventListener("mousemove", (event) => this.move(event));
    window.addEventListener("mouseup", (event) => this.up(event));
    this.canvas.addEventListener("dblclick", () => {
      this.high = 0;
      page.store.set({ view: null });
      this.redraw();
    });
  }

  private get of(): Blocks {
    const { model } = this.page;
    return this.driver || !model.hasBlocks ? model.memory : model.blocks;
  }

  private get all(): number {
    const { page } = this.page.model;
    return Math.max(1, this.of === this.page.model.blocks ? page.lanes_bytes : page.memory_lanes_bytes);
  }

  private get seen(): Window2 {
    const [from, to] = this.page.view;
    return { from, to, low: this.low, high: this.high > 0 ? this.high : this.all * 1.02 };
  }

  /** Rectangles of what is wanted, by their beginning. */
  private prepare(): Rectangles {
    const { page } = this;
    const { model } = page;
    const { state } = page.store;
    const { filter, small } = state;
    const key = [model.page.name, model.device, page.stack.by, small, filter?.name, this.of === model.memory, isDark()].join("\n");
    if (this.rectangles && key === this.key) return this.rectangles;
    this.key = key;
    const of = this.of;
    const wanted = page.wanted();
    const order: number[] = [];
    this.hidden = { blocks: 0, bytes: 0 };
    for (let n = 0; n < of.length; n++) {
      if (!model.owned[of.owner[n]]) continue;
      if (of.size[n] < small) {
        this.hidden.blocks++;
        this.hidden.bytes += of.size[n];
      } else order.push(n);
    }
    const which = Uint32Array.from(order);
    const { start } = of;
    which.sort((a, b) => start[a] - start[b]);
    const length = which.length;
    const made: Rectangles = {
      length,
      which,
      from: new Float64Array(length),
      to: new Float64Array(length),
      low: new Float64Array(length),
      high: new Float64Array(length),
      colour: new Uint8Array(length * 4),
    };
    const colours = page.stack.groups.map((group) => rgb(group.colour));
    const grey = rgb(colour("others"));
    for (let at = 0; at < length; at++) {
      const n = which[at];
      made.from[at] = model.time[of.start[n]];
      made.to[at] = of.end[n] === LIVE ? model.endNs : model.time[of.end[n]];
      made.low[at] = of.lane[n] * 512;
      made.high[at] = made.low[at] + of.size[n];
      const shown = !wanted || wanted(of.owner[n], of.role[n]);
      const [r, g, b] = shown ? colours[page.stack.groupOf(of, n)] : grey;
      // What is asleep is pale: nothing of the card is below it.
      const pale = of.size[n] > 0 && of.held[n] === 0;
      made.colour.set([r, g, b, !shown ? 60 : pale ? 90 : 255], at * 4);
    }
    this.rectangles = made;
    this.painter.forget();
    this.painted = null;
    return made;
  }

  draw(): void {
    const { page } = this;
    const { model } = page;
    const canvas = fit(this.canvas, HEIGHT);
    const { draw, width, ratio } = canvas;
    const plot = { width: width - LEFT - 12, height: HEIGHT - AXIS };
    const all = this.prepare();
    const seen = this.seen;
    const [w, h] = [Math.round(plot.width * ratio), Math.round(plot.height * ratio)];
    if (this.surface.width !== w || this.surface.height !== h) {
      [this.surface.width, this.surface.height] = [w, h];
      this.painted = null;
    }
    const same = this.painted && (["from", "to", "low", "high"] as const).every((k) => this.painted?.[k] === seen[k]);
    if (!same) this.paint(all, seen);
    draw.clearRect(0, 0, width, HEIGHT);
    this.show(draw, plot, seen);
    this.axes(draw, plot, seen);
    const x = LEFT + ((model.time[page.ordinal] - seen.from) / (seen.to - seen.from)) * plot.width;
    if (x >= LEFT && x <= LEFT + plot.width) {
      draw.fillStyle = theme("text");
      draw.fillRect(x, 0, 1, plot.height);
    }
    this.describe(all);
  }

  /** Now where it is quick; else the last picture is moved until the pointer rests. */
  private paint(all: Rectangles, seen: Window2): void {
    clearTimeout(this.waiting);
    const paint = () => {
      const began = performance.now();
      this.painter.paint(this.surface, all, seen);
      this.cost = performance.now() - began;
      this.painted = seen;
    };
    if (!this.painted || this.cost < 18) {
      paint();
      return;
    }
    this.waiting = window.setTimeout(() => {
      paint();
      this.redraw();
    }, 120);
  }

  private show(draw: CanvasRenderingContext2D, plot: { width: number; height: number }, seen: Window2): void {
    const was = this.painted;
    if (!was) return;
    draw.save();
    draw.beginPath();
    draw.rect(LEFT, 0, plot.width, plot.height);
    draw.clip();
    const x = (ns: number) => LEFT + ((ns - seen.from) / (seen.to - seen.from)) * plot.width;
    const y = (bytes: number) => plot.height * (1 - (bytes - seen.low) / (seen.high - seen.low));
    draw.imageSmoothingEnabled = false;
    draw.drawImage(this.surface, x(was.from), y(was.high), x(was.to) - x(was.from), y(was.low) - y(was.high));
    draw.restore();
  }

  private axes(draw: CanvasRenderingContext2D, plot: { width: number; height: number }, seen: Window2): void {
    draw.font = "11px system-ui, sans-serif";
    draw.fillStyle = theme("text");
    draw.textAlign = "right";
    draw.textBaseline = "middle";
    for (const bytes of byteSteps(seen.high, 12 * (seen.high / (seen.high - seen.low)))) {
      if (bytes < seen.low) continue;
      const y = plot.height * (1 - (bytes - seen.low) / (seen.high - seen.low));
      draw.fillText(size(bytes).replace(".00", ""), LEFT - 6, Math.max(6, y));
    }
    draw.textBaseline = "top";
    draw.textAlign = "left";
    draw.fillText(seconds(seen.from, 6), LEFT, plot.height + 5);
    draw.textAlign = "right";
    draw.fillText(seconds(seen.to, 6), LEFT + plot.width, plot.height + 5);
  }

  private describe(all: Rectangles): void {
    const { page } = this;
    const { model } = page;
    const { small } = page.store.state;
    const power = small > 0 ? Math.round(Math.log2(small)) - 8 : 0;
    if (Number(this.slider.value) !== power) this.slider.value = String(power);
    const parts = [`${size(small)}`, `${count(all.length)} blocks drawn`];
    if (this.hidden.blocks) parts.push(`${count(this.hidden.blocks)} smaller ones (${size(this.hidden.bytes)}) left out`);
    if (model.page.lumped) parts.push(`${count(model.page.lumped)} of fewer than ${size(model.page.lumped_below)} are not in the page`);
    parts.push(this.painter.name);
    this.words.textContent = parts.join("; ");
    this.words.dataset.blocks = String(all.length);
    const levels: [string, boolean][] = [["blocks of PyTorch", false], ["memory of the driver", true]];
    fill(
      this.level,
      ...(model.hasBlocks ? levels : []).map(([text, driver]) =>
        el("button", {
          class: this.driver === driver ? "switch chosen" : "switch",
          text,
          on: {
            click: () => {
              this.driver = driver;
              this.high = 0;
              this.redraw();
            },
          },
        }),
      ),
    );
  }

  private find(event: MouseEvent): number {
    const all = this.rectangles;
    if (!all) return -1;
    const seen = this.seen;
    const wide = this.canvas.clientWidth - LEFT - 12;
    const ns = seen.from + ((event.offsetX - LEFT) / wide) * (seen.to - seen.from);
    const bytes = seen.low + (1 - event.offsetY / (HEIGHT - AXIS)) * (seen.high - seen.low);
    // A block of less than a pixel is found by its nearest edge.
    const [near, tall] = [((seen.to - seen.from) / wide) * 0.5, ((seen.high - seen.low) / HEIGHT) * 0.5];
    let found = -1;
    for (let n = 0; n < all.length; n++) {
      if (all.from[n] > ns + near) break;
      if (all.to[n] >= ns - near && all.low[n] <= bytes + tall && all.high[n] >= bytes - tall) found = n;
    }
    return found;
  }

  private hover(event: MouseEvent): void {
    if (this.drag?.moved) return;
    const found = this.find(event);
    if (found < 0 || !this.rectangles) return tooltip.hide();
    const { model } = this.page;
    const n = this.rectangles.which[found];
    const of = this.of;
    const owner = model.page.owners[of.owner[n]];
    const live = of.end[n] === LIVE;
    const end = live ? model.last : of.end[n];
    const stack: tooltip.Line[] = [];
    const { nodes, frames, files } = model.page;
    for (let node = owner[0]; node > 0 && stack.length < 8; node = nodes[node - 1][0]) {
      const [name, file, line, , folded] = frames[nodes[node - 1][1]];
      if (folded !== Shown.OnDemand) stack.push({ text: `${name}  ${(files[file] ?? "").split("/").pop()}:${line}` });
    }
    tooltip.show(event, [
      { text: `${size(of.size[n])}  ${model.library(of.owner[n])}`, strong: true },
      { text: model.page.roles[of.role[n]], colour: this.page.stack.groups[this.page.stack.groupOf(of, n)].colour },
      { text: `${of.continues[n] ? "since " : ""}${seconds(model.time[of.start[n]], 6)}, ${live ? "live at the end" : `lived ${duration(model.time[end] - model.time[of.start[n]])}`}` },
      ...(of.held[n] < of.size[n] ? [{ text: `asleep: ${size(of.size[n] - of.held[n])} of it unmapped, may come back`, strong: true }] : []),
      { text: `0x${of.address[n].toString(16)}` },
      ...stack,
    ]);
  }

  /** The wheel scrolls the page; with Ctrl it zooms in time, with Ctrl and Shift in bytes. */
  private wheel(event: WheelEvent): void {
    if (!event.ctrlKey) return;
    event.preventDefault();
    const { page } = this;
    const by = Math.exp(Math.max(-120, Math.min(120, event.deltaY)) / 300);
    const seen = this.seen;
    if (event.shiftKey) {
      const at = seen.low + (1 - event.offsetY / (HEIGHT - AXIS)) * (seen.high - seen.low);
      this.low = Math.max(0, at - (at - seen.low) * by);
      this.high = Math.min(this.all * 1.02, at + (seen.high - at) * by);
      this.redraw();
      return;
    }
    const wide = this.canvas.clientWidth - LEFT - 12;
    const ns = seen.from + ((event.offsetX - LEFT) / wide) * (seen.to - seen.from);
    const end = page.model.endNs;
    const from = Math.max(0, ns - (ns - seen.from) * by);
    const to = Math.min(end, ns + (seen.to - ns) * by);
    page.store.set({ view: from <= 0 && to >= end ? null : [from, Math.max(to, from + 640)] });
  }

  private move(event: MouseEvent): void {
    const { drag, page } = this;
    if (!drag) return;
    const [dx, dy] = [event.clientX - drag.x, event.clientY - drag.y];
    if (Math.abs(dx) + Math.abs(dy) > 3) drag.moved = true;
    if (!drag.moved) return;
    tooltip.hide();
    const [from, to] = drag.view;
    const end = page.model.endNs;
    const by = Math.min(Math.max((-dx / (this.canvas.clientWidth - LEFT - 12)) * (to - from), -from), end - to);
    if (this.high > 0) {
      const up = Math.max((dy / (HEIGHT - AXIS)) * (drag.high - drag.low), -drag.low);
      [this.low, this.high] = [drag.low + up, drag.high + up];
    }
    if (from > 0 || to < end) page.store.set({ view: [from + by, to + by] });
    this.redraw();
  }

  private up(event: MouseEvent): void {
    const { drag, page } = this;
    this.drag = null;
    if (!drag || drag.moved) return;
    const box = this.canvas.getBoundingClientRect();
    const x = event.clientX - box.left;
    const seen = this.seen;
    const ns = seen.from + ((x - LEFT) / (box.width - LEFT - 12)) * (seen.to - seen.from);
    if (x >= LEFT) page.pin(page.model.at(ns));
  }

  /** What tests read: rectangles, and how many of them are pale. */
  drawn(): { all: number; pale: number } {
    const { length, colour } = this.rectangles ?? { length: 0, colour: new Uint8Array(0) };
    let pale = 0;
    for (let at = 0; at < length; at++) if (colour[at * 4 + 3] === 90) pale++;
    return { all: length, pale };
  }
}
