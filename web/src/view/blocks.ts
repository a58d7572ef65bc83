// Every live block over time, stacked without holes as PyTorch's memory_viz stacks them: as high as it is large, the
// oldest lowest. A column of pixels shows its moment at which most is allocated.

import { choice, el, fill, fit, oncePerFrame, theme } from "../base/dom.ts";
import { colour, isDark, rgb } from "../base/palette.ts";
import { byteSteps, clean, count, duration, seconds, size } from "../base/units.ts";
import { Shown } from "../data/facts.ts";
import { LIVE, type Blocks } from "../data/stream.ts";
import type { Page, View } from "./page.ts";
import { eachLayer, type Layers, paintLayers } from "./paint_layers.ts";
import * as tooltip from "./tooltip.ts";

/** What is seen. */
interface Window2 {
  from: number;
  to: number;
  low: number;
  high: number;
}

const LEFT = 74;
const RIGHT = 12;
const HEIGHT = 420;
const AXIS = 20;
/** Where blocks may be hidden without a word: none is. The slider's steps are powers of 2. */
const STEPS = 31;

export class BlocksView implements View {
  readonly node = el("section", { class: "blocks", label: "Blocks over time" });
  private readonly canvas = el("canvas", { role: "img", label: "Blocks over time" });
  private readonly slider = el("input", { label: "Leave out blocks smaller than" });
  private readonly words = el("span", { class: "dim" });
  private readonly level = el("span", { class: "switches" });
  private readonly surface = document.createElement("canvas");
  private layers: Layers | null = null;
  private key = "";
  /** What the surface shows. */
  private painted: Window2 | null = null;
  private moments = new Uint32Array(0);
  private cost = 0;
  private shown = { blocks: 0, pale: 0 };
  private hidden = { blocks: 0, bytes: 0 };
  private low = 0;
  private high = 0;
  private drag: { x: number; y: number; view: [number, number]; low: number; high: number; moved: boolean } | null = null;
  private driver = false;
  private waiting = 0;
  private readonly redraw = oncePerFrame(() => this.draw());

  constructor(private readonly page: Page) {
    this.slider.type = "range";
    this.slider.min = "0";
    this.slider.max = String(STEPS);
    this.slider.addEventListener("input", () => {
      const power = Number(this.slider.value);
      page.store.set({ small: power === 0 ? 0 : 2 ** (power + 8) });
    });
    this.node.append(
      el("div", { class: "bar-row" }, this.level, el("label", {}, "leave out blocks below ", this.slider), this.words),
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

  /** Blocks of the cache, or driver allocations. */
  private get ofDriver(): boolean {
    return this.driver || !this.page.model.hasBlocks;
  }

  private get of(): Blocks {
    const { model } = this.page;
    return this.ofDriver ? model.memory : model.blocks;
  }

  private highest = 1;

  private get seen(): Window2 {
    const [from, to] = this.page.view;
    return { from, to, low: this.low, high: this.high > 0 ? this.high : this.highest * 1.04 };
  }

  /** Heights and colours of what is wanted. */
  private prepare(): Layers {
    const { page } = this;
    const { model } = page;
    const { filter, small } = page.store.state;
    const key = [model.page.name, model.device, page.stack.by, small, filter?.name, this.ofDriver, isDark()].join("\n");
    if (this.layers && key === this.key) return this.layers;
    this.key = key;
    const of = this.of;
    const bytes = this.ofDriver ? model.memory.share : of.size;
    const wanted = page.wanted();
    const packed = ([r, g, b]: number[], alpha: number) => ((alpha << 24) | (b << 16) | (g << 8) | r) >>> 0;
    const groups = page.stack.groups.map((group) => rgb(group.colour));
    const grey = packed(rgb(colour("others")), 60);
    const made: Layers = {
      changes: model.changes, driver: this.ofDriver, of, height: new Float64Array(of.length), colour: new Uint32Array(of.length),
    };
    this.hidden = { blocks: 0, bytes: 0 };
    this.shown = { blocks: 0, pale: 0 };
    for (let n = 0; n < of.length; n++) {
      if (!model.owned[of.owner[n]] || of.size[n] === 0) continue;
      if (of.size[n] < small) {
        this.hidden.blocks++;
        this.hidden.bytes += of.size[n];
        continue;
      }
      // What is asleep is pale: nothing of the card is below it.
      const pale = of.held[n] === 0;
      this.shown.blocks++;
      this.shown.pale += Number(pale);
      made.height[n] = bytes[n];
      const isWanted = !wanted || wanted(of.owner[n], of.role[n]);
      made.colour[n] = isWanted ? packed(groups[page.stack.groupOf(of, n)], pale ? 90 : 255) : grey;
    }
    this.layers = made;
    this.painted = null;
    this.highest = 1;
    return made;
  }

  /** The moment of each column: that at which most is allocated. */
  private choose(seen: Window2, many: number): Uint32Array<ArrayBuffer> {
    const { model } = this.page;
    const moments = new Uint32Array(many);
    let first = model.at(seen.from);
    for (let n = 0; n < many; n++) {
      const last = model.at(seen.from + ((seen.to - seen.from) * (n + 1)) / many);
      // Of a column without a change: what the last one left.
      moments[n] = last > first ? model.allocated.highest(first + 1, last) : last;
      first = last;
    }
    return moments;
  }

  draw(): void {
    const { page } = this;
    const { model } = page;
    const canvas = fit(this.canvas, HEIGHT);
    const { draw, width, ratio } = canvas;
    const plot = { width: width - LEFT - RIGHT, height: HEIGHT - AXIS };
    const layers = this.prepare();
    const [w, h] = [Math.round(plot.width * ratio), Math.round(plot.height * ratio)];
    if (this.surface.width !== w || this.surface.height !== h) {
      [this.surface.width, this.surface.height] = [w, h];
      this.painted = null;
    }
    const [from, to] = page.view;
    const here = this.painted?.from === from && this.painted.to === to;
    const same = here && (this.high > 0 ? this.painted?.low === this.low && this.painted.high === this.high : this.painted?.low === 0 && this.painted.high === this.seen.high);
    if (!same) this.paint(layers, Math.round(plot.width));
    const seen = this.seen;
    draw.clearRect(0, 0, width, HEIGHT);
    this.axes(draw, plot, seen);
    this.show(draw, plot, seen);
    const x = LEFT + ((model.time[page.ordinal] - seen.from) / (seen.to - seen.from)) * plot.width;
    if (x >= LEFT && x <= LEFT + plot.width) {
      draw.fillStyle = theme("text");
      draw.fillRect(x, 0, 1, plot.height);
    }
    this.describe();
  }

  /** Now where it is quick; else the last picture is moved until the pointer rests. */
  private paint(layers: Layers, wide: number): void {
    clearTimeout(this.waiting);
    const paint = () => {
      const began = performance.now();
      this.moments = this.choose(this.seen, wide);
      if (this.high === 0) this.highest = this.top(layers);
      const seen = this.seen;
      paintLayers(this.surface, layers, this.moments, seen);
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

  /** The highest column. */
  private top(layers: Layers): number {
    let highest = 1;
    eachLayer(layers, this.moments, (_, live) => {
      let sum = 0;
      for (let which = live(); which >= 0; which = live()) sum += layers.height[which];
      highest = Math.max(highest, sum);
    });
    return highest;
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

  private describe(): void {
    const { page } = this;
    const { model } = page;
    const { small } = page.store.state;
    const power = small > 0 ? Math.round(Math.log2(small)) - 8 : 0;
    if (Number(this.slider.value) !== power) this.slider.value = String(power);
    const parts = [size(small), `${count(this.shown.blocks)} blocks, the oldest lowest`];
    if (this.hidden.blocks) parts.push(`${count(this.hidden.blocks)} smaller ones (${size(this.hidden.bytes)}) left out`);
    if (model.page.lumped) parts.push(`${count(model.page.lumped)} of fewer than ${size(model.page.lumped_below)} are not in the page`);
    this.words.textContent = parts.join("; ");
    this.words.dataset.blocks = String(this.shown.blocks);
    const levels: [string, boolean][] = [["blocks of PyTorch", false], ["memory of the driver", true]];
    fill(
      this.level,
      ...(model.hasBlocks ? levels : []).map(([text, driver]) =>
        choice(text, this.driver === driver, () => {
          this.driver = driver;
          this.high = 0;
          this.redraw();
        }),
      ),
    );
  }

  /** The block under the pointer; -1: none. */
  private find(event: MouseEvent): number {
    const { layers } = this;
    const wide = this.canvas.clientWidth - LEFT - RIGHT;
    const column = Math.floor(((event.offsetX - LEFT) / wide) * this.moments.length);
    if (!layers || column < 0 || column >= this.moments.length) return -1;
    const seen = this.seen;
    const bytes = seen.low + (1 - event.offsetY / (HEIGHT - AXIS)) * (seen.high - seen.low);
    let found = -1;
    eachLayer(layers, [this.moments[column]], (_, live) => {
      let sum = 0;
      for (let which = live(); which >= 0 && found < 0; which = live()) {
        sum += layers.height[which];
        if (sum > bytes) found = which;
      }
    });
    return found;
  }

  private hover(event: MouseEvent): void {
    if (this.drag?.moved) return;
    const n = this.find(event);
    if (n < 0) return tooltip.hide();
    const { model, stack: groups } = this.page;
    const of = this.of;
    const owner = model.page.owners[of.owner[n]];
    const live = of.end[n] === LIVE;
    const end = live ? model.last : of.end[n];
    const stack: tooltip.Line[] = [];
    const { nodes, frames, files } = model.page;
    for (let node = owner[0]; node > 0 && stack.length < 8; node = nodes[node - 1][0]) {
      const [name, file, line, , shown] = frames[nodes[node - 1][1]];
      if (shown !== Shown.OnDemand) stack.push({ text: `${name}  ${(files[file] ?? "").split("/").pop()}:${line}` });
    }
    tooltip.show(event, [
      { text: `${size(of.size[n])}  ${model.library(of.owner[n])}`, strong: true },
      { text: clean(model.page.roles[of.role[n]] ?? "unknown"), colour: groups.groups[groups.groupOf(of, n)].colour },
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
    const by = Math.exp(Math.max(-120, Math.min(120, event.deltaY || event.deltaX)) / 300);
    const seen = this.seen;
    if (event.shiftKey) {
      const at = seen.low + (1 - event.offsetY / (HEIGHT - AXIS)) * (seen.high - seen.low);
      this.low = Math.max(0, at - (at - seen.low) * by);
      this.high = Math.min(this.highest * 1.04, at + (seen.high - at) * by);
      this.redraw();
      return;
    }
    const wide = this.canvas.clientWidth - LEFT - RIGHT;
    const ns = seen.from + ((event.offsetX - LEFT) / wide) * (seen.to - seen.from);
    page.look(ns - (ns - seen.from) * by, ns + (seen.to - ns) * by);
  }

  private move(event: MouseEvent): void {
    const { drag, page } = this;
    if (!drag) return;
    const [dx, dy] = [event.clientX - drag.x, event.clientY - drag.y];
    if (Math.abs(dx) + Math.abs(dy) > 3) drag.moved = true;
    if (!drag.moved) return;
    tooltip.hide();
    const [from, to] = drag.view;
    const by = (-dx / (this.canvas.clientWidth - LEFT - RIGHT)) * (to - from);
    if (this.high > 0) {
      const up = Math.max((dy / (HEIGHT - AXIS)) * (drag.high - drag.low), -drag.low);
      [this.low, this.high] = [drag.low + up, drag.high + up];
    }
    page.look(from + by, to + by);
    this.redraw();
  }

  private up(event: MouseEvent): void {
    const { drag, page } = this;
    this.drag = null;
    if (!drag || drag.moved) return;
    const box = this.canvas.getBoundingClientRect();
    const x = event.clientX - box.left;
    const seen = this.seen;
    const ns = seen.from + ((x - LEFT) / (box.width - LEFT - RIGHT)) * (seen.to - seen.from);
    if (x >= LEFT) page.pin(page.model.at(ns));
  }

  /** What tests read: blocks, how many of them are pale, and the height of the picture. */
  drawn(): { all: number; pale: number; highest: number } {
    return { all: this.shown.blocks, pale: this.shown.pale, highest: this.highest };
  }
}
