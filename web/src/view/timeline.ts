// The run over time: stacked up to what nvidia-smi shows; the cap, what is reserved and allocated as
// lines; phases as a lane; marks. Hovering shows, a click pins a moment, dragging brushes a range.

import { el, fill, fit, fitted, oncePerFrame, theme } from "../base/dom.ts";
import { byteSteps, clean, seconds, size, steps } from "../base/units.ts";
import { colour, ink, rgb } from "../base/palette.ts";
import type { Stack } from "../model/groups.ts";
import type { FilterBy } from "../state.ts";
import { Field, FREE_CACHE } from "../model/model.ts";
import type { Page, View } from "./page.ts";
import * as tooltip from "./tooltip.ts";

const LEFT = 74;
const RIGHT = 12;
const TOP = 10;
const AXIS = 22;
const LANE = 13;
const LANES = 3;

interface Column {
  ordinal: number;
  top: number;
  stack: Float64Array;
}

const MARKS: Record<string, [string, string]> = {
  oom: ["out of memory", "#d55e00"],
  refusal: ["refused", "#cc79a7"],
  warned: ["over the cap, given", "#e69f00"],
  flush: ["segments given back", "#56b4e9"],
  emptied: ["cache given back whole", "#0072b2"],
  sleep: ["fell asleep: unmapped, may come back", "#332288"],
};

export class Timeline implements View {
  readonly node = el("section", { class: "timeline", label: "Memory over time" });
  private readonly canvas = el("canvas", { role: "img" });
  private readonly legend = el("div", { class: "legend" });
  private readonly status = el("div", { class: "status dim" });
  private readonly switches = el("div", { class: "switches" });
  private readonly surface = document.createElement("canvas");
  private image: ImageData | null = null;
  private columns: Column[] = [];
  private key = "";
  private described = "";
  private named = "";
  private high = 1;
  private height = 300;
  private drag: { from: number; y: number; second: boolean; pan: boolean; view: [number, number]; moved: boolean } | null = null;
  private readonly redraw = oncePerFrame(() => this.draw());

  constructor(private readonly page: Page) {
    this.node.append(el("div", { class: "bar-row" }, this.switches, this.status), this.canvas, this.legend);
    this.canvas.tabIndex = 0;
    this.canvas.addEventListener("mousedown", (event) => this.down(event));
    this.canvas.addEventListener("mousemove", (event) => this.hover(event));
    this.canvas.addEventListener("mouseleave", () => tooltip.hide());
    window.addEventListener("mousemove", (event) => this.move(event));
    window.addEventListener("mouseup", (event) => this.up(event));
    this.canvas.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    this.canvas.addEventListener("dblclick", () => page.store.set({ view: null }));
  }

  /** The space that it may take. */
  resize(height: number): void {
    this.height = Math.max(170, height);
  }

  // Places on the canvas.

  /** Measured once for a picture: asking the browser is slow. */
  private plot = { width: 20, top: TOP, bottom: 100, lanes: 0 };

  private place(): void {
    const width = Math.max(20, this.canvas.clientWidth - LEFT - RIGHT);
    const lanes = this.lanes * LANE;
    this.plot = { width, top: TOP, bottom: this.height - AXIS - lanes, lanes };
  }

  private get lanes(): number {
    const { ranges } = this.page.model.page.phases;
    return Math.min(LANES, ranges.reduce((most, range) => Math.max(most, range[3] + 1), 0));
  }

  private x(ns: number): number {
    const [from, to] = this.page.view;
    return LEFT + ((ns - from) / (to - from)) * this.plot.width;
  }

  private ns(x: number): number {
    const [from, to] = this.page.view;
    return from + ((x - LEFT) / this.plot.width) * (to - from);
  }

  private y(bytes: number): number {
    const { top, bottom } = this.plot;
    return bottom - (bytes / this.high) * (bottom - top);
  }

  /** What a pixel shows: the highest moment in it, of its figure and its stack. */
  private measure(stack: Stack): void {
    const { model } = this.page;
    const [from, to] = this.page.view;
    const { width } = this.plot;
    const many = Math.round(width);
    const key = [from, to, many, stack.by, model.device, model.page.name].join();
    if (key === this.key) return;
    this.key = key;
    this.columns = [];
    let next = model.at(from);
    // Chunks in order of time: a column has those whose highest moment lies in it.
    let chunk = 0;
    const { best } = stack;
    const walk = stack.walk();
    this.high = 1;
    for (let n = 0; n < many; n++) {
      const first = next;
      next = model.at(from + ((to - from) * (n + 1)) / many);
      while (chunk < best.length && best[chunk] < first) chunk++;
      let ordinal = -1;
      let [top, used] = [-1, -Infinity];
      while (chunk < best.length && best[chunk] <= next && best[chunk] > first) {
        const here = model.top(best[chunk]);
        // Of equal ones that with the most in blocks.
        const inBlocks = stack.usedAtBest(chunk);
        if (here > top || (here === top && inBlocks > used)) [top, used, ordinal] = [here, inBlocks, best[chunk]];
        chunk++;
      }
      const last = this.columns.at(-1);
      let column: Column;
      if (ordinal >= 0) column = { ordinal, top, stack: stack.at(ordinal) };
      else if (next === first && last && last.ordinal === first) column = last;
      else {
        ordinal = walk.highest(Math.min(first + 1, next), next);
        column = { ordinal, top: model.top(ordinal), stack: walk.best };
      }
      this.columns.push(column);
      this.high = Math.max(this.high, column.top);
    }
    // A cap that is near is part of the picture.
    const cap = this.highestCap();
    if (cap !== null && cap < this.high * 1.6) this.high = Math.max(this.high, cap);
    this.high *= 1.04;
  }

  private highestCap(): number | null {
    const caps = this.columns.map((column) => this.page.model.cap(column.ordinal));
    const known = caps.filter((cap): cap is number => cap !== null);
    return known.length ? Math.max(...known) : null;
  }

  draw(): void {
    const { page } = this;
    const { model, stack } = page;
    const { draw, width } = fit(this.canvas, this.height);
    this.place();
    this.measure(stack);
    draw.clearRect(0, 0, width, this.height);
    draw.font = "11px system-ui, sans-serif";
    this.gaps(draw);
    this.areas(draw, stack);
    this.axes(draw);
    this.lines(draw);
    this.phases(draw);
    this.marks(draw);
    this.ranges(draw);
    this.pinned(draw);
    this.canvas.setAttribute(
      "aria-label",
      `Memory of GPU ${model.device} over ${seconds(model.endNs)}, up to ${size(model.top(model.peak))}`,
    );
    this.describe();
    this.buttons();
  }

  /** Filled pixel by pixel: a browser without a GPU takes many times as long for paths of that many points. */
  private areas(draw: CanvasRenderingContext2D, stack: Stack): void {
    const wanted = this.page.store.state.filter;
    const { top, bottom, width } = this.plot;
    const ratio = window.devicePixelRatio || 1;
    const [w, h] = [Math.max(1, Math.round(width * ratio)), Math.max(1, Math.round((bottom - top) * ratio))];
    if (this.image?.width !== w || this.image.height !== h) {
      this.image = new ImageData(w, h);
      [this.surface.width, this.surface.height] = [w, h];
    }
    const pixels = new Uint32Array(this.image.data.buffer);
    pixels.fill(0);
    const colours = stack.groups.map((group) => {
      const [r, g, b] = rgb(group.colour);
      const alpha = wanted && wanted.name !== group.name ? 89 : 255;
      // As bytes in memory: red, green, blue, opacity.
      return ((alpha << 24) | (b << 16) | (g << 8) | r) >>> 0;
    });
    const many = this.columns.length;
    const scale = h / this.high;
    for (let c = 0; c < many; c++) {
      const left = Math.round((c * w) / many);
      const right = Math.round(((c + 1) * w) / many);
      const of = this.columns[c].stack;
      let sum = 0;
      let low = h;
      for (let n = 0; n < of.length; n++) {
        if (of[n] <= 0) continue;
        sum += of[n];
        const high = Math.max(0, h - Math.round(sum * scale));
        for (let y = high; y < low; y++) {
          const row = y * w;
          for (let x = left; x < right; x++) pixels[row + x] = colours[n];
        }
        low = Math.min(low, high);
      }
    }
    this.surface.getContext("2d")?.putImageData(this.image, 0, 0);
    draw.drawImage(this.surface, LEFT, top, width, bottom - top);
  }

  private axes(draw: CanvasRenderingContext2D): void {
    const { top, bottom, width } = this.plot;
    draw.fillStyle = theme("text");
    draw.strokeStyle = theme("grid");
    draw.lineWidth = 1;
    draw.textAlign = "right";
    draw.textBaseline = "middle";
    for (const bytes of byteSteps(this.high, Math.max(2, Math.floor((bottom - top) / 34)))) {
      const y = Math.round(this.y(bytes)) + 0.5;
      draw.beginPath();
      draw.moveTo(LEFT, y);
      draw.lineTo(LEFT + width, y);
      draw.stroke();
      draw.fillText(size(bytes).replace(".00", ""), LEFT - 6, y);
    }
    draw.textAlign = "center";
    draw.textBaseline = "top";
    const [from, to] = this.page.view;
    const marks = steps(from / 1e9, to / 1e9, Math.max(2, Math.floor(width / 95)));
    const gap = marks.length > 1 ? marks[1] - marks[0] : 1;
    const digits = Math.max(0, Math.min(9, -Math.floor(Math.log10(gap) + 1e-9)));
    for (const at of marks) {
      const x = this.x(at * 1e9);
      draw.beginPath();
      draw.moveTo(x, bottom);
      draw.lineTo(x, bottom + 4);
      draw.stroke();
      const text = seconds(at * 1e9, digits);
      // The last one ends with the axis.
      const half = draw.measureText(text).width / 2;
      draw.fillText(text, Math.min(x, LEFT + width + RIGHT - half), this.height - AXIS + 6);
    }
  }

  private lines(draw: CanvasRenderingContext2D): void {
    const { model } = this.page;
    const line = (value: (column: Column) => number | null, style: string, dash: number[], wide: number) => {
      draw.beginPath();
      const step = this.plot.width / this.columns.length;
      let open = false;
      this.columns.forEach((column, n) => {
        const bytes = value(column);
        if (bytes === null) {
          open = false;
          return;
        }
        const y = Math.max(TOP - 4, this.y(bytes));
        if (open) draw.lineTo(LEFT + n * step, y);
        else draw.moveTo(LEFT + n * step, y);
        draw.lineTo(LEFT + (n + 1) * step, y);
        open = true;
      });
      draw.strokeStyle = style;
      draw.lineWidth = wide;
      draw.setLineDash(dash);
      draw.stroke();
      draw.setLineDash([]);
    };
    const live = model.sums[Field.Live];
    line((column) => live.of(column.ordinal), theme("line-driver"), [1, 2], 1);
    if (model.hasBlocks) {
      const reserved = model.sums[Field.Reserved];
      const free = this.page.stack.groups.findIndex((group) => group.name === FREE_CACHE);
      line((column) => reserved.of(column.ordinal), theme("line-reserved"), [4, 3], 1.2);
      // Blocks that have memory below them.
      const asleep = model.sums[Field.Asleep];
      const inBlocks = ({ ordinal, stack }: Column) => reserved.of(ordinal) - asleep.of(ordinal) - stack[free];
      line(inBlocks, theme("line-allocated"), [], 1);
    }
    line((column) => column.top, theme("text"), [], 1.2);
    line((column) => model.cap(column.ordinal), theme("bad"), [7, 4], 1.6);
  }

  private gaps(draw: CanvasRenderingContext2D): void {
    const { model } = this.page;
    const { top, bottom } = this.plot;
    draw.fillStyle = theme("gap");
    for (const [from, to] of model.page.gaps) {
      const [left, right] = [this.x(model.time[Math.max(0, from - 1)]), this.x(model.time[to])];
      draw.fillRect(left, top, Math.max(2, right - left), bottom - top);
      draw.save();
      draw.fillStyle = theme("text");
      draw.textAlign = "left";
      draw.textBaseline = "top";
      draw.fillText(fitted(draw, "events are missing", Math.max(90, right - left)), Math.max(left, LEFT) + 3, top + 2);
      draw.restore();
    }
  }

  private phases(draw: CanvasRenderingContext2D): void {
    const { model } = this.page;
    const { phases } = model.page;
    const { bottom, width } = this.plot;
    draw.textAlign = "left";
    draw.textBaseline = "middle";
    const last = [-1, -1, -1];
    for (const [phase, from, to, depth] of [...phases.ranges].sort((a, b) => a[1] - b[1])) {
      if (depth >= LANES) continue;
      const left = Math.max(LEFT, this.x(model.time[from]));
      const right = Math.min(LEFT + width, this.x(model.time[to]));
      // Ranges of less than a pixel beside others are not seen.
      if (right < LEFT || left > LEFT + width || right <= last[depth] + 0.3) continue;
      last[depth] = right;
      const name = phases.names[phase - 1]?.[1] ?? "?";
      const y = bottom + 5 + depth * LANE;
      const fillStyle = colour(name);
      draw.fillStyle = fillStyle;
      draw.fillRect(left, y, Math.max(1, right - left - 0.5), LANE - 2);
      draw.fillStyle = ink(fillStyle);
      draw.fillText(fitted(draw, clean(name, 60), right - left - 6), left + 3, y + (LANE - 2) / 2);
    }
  }

  private marks(draw: CanvasRenderingContext2D): void {
    const { model } = this.page;
    const { top, bottom, width } = this.plot;
    for (const mark of model.page.marks) {
      if (mark.device !== model.device) continue;
      const x = this.x(model.time[mark.ordinal]);
      if (x < LEFT || x > LEFT + width) continue;
      const strong = mark.what === "oom";
      draw.fillStyle = draw.strokeStyle = MARKS[mark.what][1];
      draw.lineWidth = strong ? 2 : 1;
      draw.beginPath();
      draw.moveTo(x, strong ? top : bottom - 8);
      draw.lineTo(x, bottom);
      draw.stroke();
      draw.beginPath();
      const y = strong ? top + 4 : bottom - 8;
      draw.moveTo(x - 4, y - 5);
      draw.lineTo(x + 4, y - 5);
      draw.lineTo(x, y + 2);
      draw.fill();
    }
  }

  private ranges(draw: CanvasRenderingContext2D): void {
    const { range, second } = this.page.store.state;
    const { top, bottom } = this.plot;
    [range, second].forEach((one, n) => {
      if (!one) return;
      const [left, right] = [Math.max(LEFT, this.x(one[0])), this.x(one[1])];
      draw.fillStyle = n ? "rgba(213,94,0,0.18)" : "rgba(0,114,178,0.18)";
      draw.fillRect(left, top, right - left, bottom - top);
      draw.strokeStyle = n ? "#d55e00" : "#0072b2";
      draw.lineWidth = 1;
      draw.strokeRect(left, top, right - left, bottom - top);
    });
  }

  private pinned(draw: CanvasRenderingContext2D): void {
    const { model, ordinal } = this.page;
    const x = this.x(model.time[ordinal]);
    const { top, bottom, width } = this.plot;
    if (x < LEFT - 1 || x > LEFT + width + 1) return;
    draw.strokeStyle = theme("text");
    draw.lineWidth = 1;
    draw.beginPath();
    draw.moveTo(x, top);
    draw.lineTo(x, bottom);
    draw.stroke();
    draw.fillStyle = theme("text");
    draw.beginPath();
    draw.arc(x, this.y(model.top(ordinal)), 3.5, 0, 7);
    draw.fill();
  }

  /** The legend and the figures of the pinned moment. */
  private describe(): void {
    const { page } = this;
    const { model, stack, ordinal } = page;
    const at = stack.at(ordinal);
    const shown = stack.groups.map((_, n) => this.columns.some((column) => column.stack[n] > 0));
    const key = [shown, ordinal, stack.by, model.device, page.store.state.filter?.name].join();
    if (key !== this.described) this.keys(stack, at, shown);
    this.described = key;
    this.say(ordinal);
  }

  private keys(stack: Stack, at: Float64Array, shown: boolean[]): void {
    const { page } = this;
    const items = stack.groups
      .map((group, n) => ({ group, bytes: at[n] }))
      .filter(({ bytes }, n) => bytes > 0 || shown[n]);
    fill(
      this.legend,
      ...items.reverse().map(({ group, bytes }) => {
        const swatch = el("span", { class: "swatch" });
        swatch.style.background = group.colour;
        const isRole = stack.by !== "role" || page.model.page.roles.includes(group.name);
        const filterable = stack.by !== "phase" && isRole;
        return el(
          "button",
          {
            class: page.store.state.filter?.name === group.name ? "key chosen" : "key",
            title: filterable ? "shows only this" : "",
            on: { click: () => filterable && page.filter(stack.by as FilterBy, group.name) },
          },
          swatch,
          clean(group.name, 44),
          el("span", { class: "dim", text: ` ${size(bytes)}` }),
        );
      }),
    );
  }

  private say(ordinal: number): void {
    const { page } = this;
    const { model, stack } = page;
    const what = model.hasProcessFigure ? "nvidia-smi" : "allocations and contexts";
    const reserved = model.sums[Field.Reserved].of(ordinal);
    const cap = model.cap(ordinal);
    const words = [
      ordinal === model.peak ? `peak, ${seconds(model.time[ordinal], 6)}` : seconds(model.time[ordinal], 6),
      `${what} ${size(model.top(ordinal))}`,
      model.hasBlocks && `reserved ${size(reserved)}`,
      `driver ${size(model.sums[Field.Live].of(ordinal))}`,
      cap !== null && `cap ${size(cap)}`,
    ].filter(Boolean);
    const { range, second } = page.store.state;
    if (range) words.push(`range ${seconds(range[0])} to ${seconds(range[1])}`);
    if (range && second) {
      const one = stack.highest(model.at(range[0]), model.at(range[1]));
      const two = stack.highest(model.at(second[0]), model.at(second[1]));
      const more = model.top(two) - model.top(one);
      words.push(`second range ${more >= 0 ? "+" : ""}${size(more)}`);
    }
    this.status.textContent = words.join("   ");
    this.status.dataset.top = String(model.top(ordinal));
    this.status.dataset.ordinal = String(ordinal);
  }

  private buttons(): void {
    const { page } = this;
    const { model, stack } = page;
    const key = `${stack.by} ${model.device} ${model.page.name}`;
    if (key === this.named) return;
    this.named = key;
    const all: [typeof stack.by, boolean][] = [
      ["library", true],
      ["role", model.hasRoles],
      ["holder", true],
      ["phase", model.page.phases.names.length > 0],
    ];
    fill(
      this.switches,
      el("span", { class: "dim", text: "stacked by " }),
      ...all
        .filter(([, there]) => there)
        .map(([by]) =>
          el("button", {
            class: stack.by === by ? "switch chosen" : "switch",
            text: by === "holder" ? "line" : by,
            on: { click: () => page.store.set({ by }) },
          }),
        ),
      el("button", { class: "switch", text: "whole run", on: { click: () => page.store.set({ view: null }) } }),
      el("button", { class: "switch", text: "peak", on: { click: () => page.store.set({ pin: null }) } }),
    );
  }

  // Pointer and keys.

  private columnAt(x: number): Column | undefined {
    return this.columns[Math.floor(((x - LEFT) / this.plot.width) * this.columns.length)];
  }

  private hover(event: MouseEvent): void {
    const { model, stack } = this.page;
    const column = this.columnAt(event.offsetX);
    if (!column || this.drag?.moved) return tooltip.hide();
    const lines: tooltip.Line[] = [
      { text: `${seconds(model.time[column.ordinal], 6)}   ${size(column.top)}`, strong: true },
    ];
    const { top, bottom } = this.plot;
    if (event.offsetY > bottom) lines.push(...this.phaseLines(event));
    const near = model.page.marks.filter(
      (mark) => mark.device === model.device && Math.abs(this.x(model.time[mark.ordinal]) - event.offsetX) < 5,
    );
    for (const mark of near.slice(0, 4)) {
      const [words, colour] = MARKS[mark.what];
      lines.push({ text: `${words}: ${size(mark.bytes)}${mark.by ? ` by ${mark.by}` : ""}`, colour });
    }
    const under = ((bottom - event.offsetY) / (bottom - top)) * this.high;
    let sum = 0;
    const rows: tooltip.Line[] = [];
    stack.groups.forEach((group, n) => {
      const bytes = column.stack[n];
      if (bytes <= 0) return;
      const here = under >= sum && under < sum + bytes;
      sum += bytes;
      rows.push({ text: `${size(bytes)}  ${group.name}`, colour: group.colour, strong: here });
    });
    tooltip.show(event, [...lines, ...rows.reverse()]);
  }

  private phaseLines(event: MouseEvent): tooltip.Line[] {
    const { model } = this.page;
    const at = model.at(this.ns(event.offsetX));
    const { phases } = model.page;
    return phases.ranges
      .filter(([, from, to]) => from <= at && at <= to)
      .slice(0, 6)
      .map(([phase, from, to]) => ({
        text: `${phases.names[phase - 1]?.[1] ?? "?"}  ${seconds(model.time[to] - model.time[from], 6)}`,
      }));
  }

  private down(event: MouseEvent): void {
    if (event.button > 1 || event.offsetX < LEFT) return;
    const pan = event.altKey || event.ctrlKey || event.button === 1;
    this.drag = { from: event.offsetX, y: event.offsetY, second: event.shiftKey, pan, view: this.page.view, moved: false };
    this.canvas.focus();
    event.preventDefault();
  }

  private move(event: MouseEvent): void {
    const { drag } = this;
    if (!drag) return;
    const x = event.clientX - this.canvas.getBoundingClientRect().left;
    if (Math.abs(x - drag.from) > 3) drag.moved = true;
    if (!drag.moved) return;
    tooltip.hide();
    if (drag.pan) {
      const [from, to] = drag.view;
      const by = ((drag.from - x) / this.plot.width) * (to - from);
      this.look(from + by, to + by);
      return;
    }
    const clamp = (ns: number) => Math.min(Math.max(ns, 0), this.page.model.endNs);
    const ends = [this.ns(drag.from), this.ns(x)].sort((a, b) => a - b).map(clamp) as [number, number];
    if (ends[1] > ends[0]) this.page.store.set(drag.second ? { second: ends } : { range: ends });
  }

  private up(event: MouseEvent): void {
    const { drag, page } = this;
    this.drag = null;
    if (!drag) return;
    const { model, stack } = page;
    if (drag.moved) {
      if (drag.pan) return;
      const chosen = drag.second ? page.store.state.second : page.store.state.range;
      // The highest moment of the range is pinned.
      if (chosen) page.pin(stack.highest(model.at(chosen[0]), model.at(chosen[1])));
      return;
    }
    const x = event.clientX - this.canvas.getBoundingClientRect().left;
    const phase = this.phaseAt(x, drag.y);
    if (phase) {
      page.store.set(drag.second ? { second: phase } : { range: phase });
      page.pin(stack.highest(model.at(phase[0]), model.at(phase[1])));
      return;
    }
    const column = this.columnAt(x);
    if (column) page.store.set({ pin: column.ordinal, range: null, second: null });
  }

  /** The range in time of the phase that is drawn there: a click on it brushes it. */
  private phaseAt(x: number, y: number): [number, number] | null {
    const { model } = this.page;
    const depth = Math.floor((y - this.plot.bottom - 5) / LANE);
    if (y < this.plot.bottom + 5 || depth >= this.lanes) return null;
    const at = this.ns(x);
    const inside = ([, from, to, of]: [number, number, number, number]) =>
      of === depth && model.time[from] <= at && at <= model.time[to];
    const found = model.page.phases.ranges.find(inside);
    return found ? [model.time[found[1]], model.time[found[2]]] : null;
  }

  private wheel(event: WheelEvent): void {
    event.preventDefault();
    const [from, to] = this.page.view;
    if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
      const by = ((event.deltaX || event.deltaY) / this.plot.width) * (to - from);
      this.look(from + by, to + by);
      return;
    }
    this.zoom(Math.exp(Math.max(-120, Math.min(120, event.deltaY)) / 300), this.ns(event.offsetX));
  }

  zoom(by: number, around = this.page.model.time[this.page.ordinal]): void {
    const [from, to] = this.page.view;
    const centre = Math.min(Math.max(around, from), to);
    this.look(centre - (centre - from) * by, centre + (to - centre) * by);
  }

  pan(part: number): void {
    const [from, to] = this.page.view;
    this.look(from + part * (to - from), to + part * (to - from));
  }

  private look(from: number, to: number): void {
    const end = this.page.model.endNs;
    const long = Math.min(Math.max(to - from, 640), end);
    const start = Math.min(Math.max(from, 0), end - long);
    this.page.store.set({ view: long >= end ? null : [start, start + long] });
  }

  /** What tests measure: the height that is drawn for a moment, and the scale. */
  probe(ordinal: number) {
    const { bottom } = this.plot;
    return { y: this.y(this.page.model.top(ordinal)), x: this.x(this.page.model.time[ordinal]), bottom, high: this.high };
  }

  later(): void {
    this.redraw();
  }
}
