// The run over time: stacked up to what nvidia-smi shows; the cap, what is reserved and allocated as
// lines; phases as a lane; marks. Hovering shows, a click pins a moment, dragging brushes a range.

import { choice, el, fill, fit, oncePerFrame, theme } from "../base/dom.ts";
import { isDark } from "../base/palette.ts";
import { clean, limitOf, seconds, size } from "../base/units.ts";
import type { Stack } from "../model/groups.ts";
import type { FilterBy } from "../state.ts";
import { Field } from "../model/model.ts";
import type { Page, View } from "./page.ts";
import { MARKS, TimelinePainter } from "./timeline_paint.ts";
import { LANE, LEFT, Scale } from "./timeline_scale.ts";
import * as tooltip from "./tooltip.ts";

export class Timeline implements View {
  readonly node = el("section", { class: "timeline", label: "Memory over time" });
  private readonly canvas = el("canvas", { role: "img" });
  private readonly legend = el("div", { class: "legend" });
  private readonly status = el("div", { class: "status dim" });
  private readonly switches = el("div", { class: "switches", label: "Stacked by" });
  private readonly moments = el("div", { class: "switches moments", label: "Shown moment" });
  readonly scale: Scale;
  private readonly painter: TimelinePainter;
  private described = "";
  private said = "";
  private named = "";
  private height = 300;
  private drag: { from: number; y: number; second: boolean; pan: boolean; view: [number, number]; moved: boolean } | null = null;
  private readonly redraw = oncePerFrame(() => this.draw());

  constructor(private readonly page: Page) {
    this.scale = new Scale(page);
    this.painter = new TimelinePainter(page, this.scale);
    this.node.append(el("div", { class: "bar-row" }, this.switches, this.status, this.moments), this.canvas, this.legend);
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
    this.height = Math.min(460, Math.max(170, height));
  }

  /** The height of all but the canvas. */
  get beside(): number {
    return this.node.offsetHeight - this.canvas.offsetHeight;
  }

  draw(): void {
    const { page } = this;
    const { model, stack } = page;
    const { draw, width } = fit(this.canvas, this.height);
    this.scale.place(this.canvas.clientWidth, this.height);
    this.scale.measure(stack);
    draw.clearRect(0, 0, width, this.height);
    this.painter.paint(draw, stack);
    this.canvas.setAttribute(
      "aria-label",
      `Memory of GPU ${model.device} over ${seconds(model.endNs)}, up to ${size(model.top(model.peak))}`,
    );
    this.describe();
    this.buttons();
  }

  /** The legend and the figures of the pinned moment. */
  private describe(): void {
    const { page } = this;
    const { model, stack, ordinal } = page;
    const at = stack.at(ordinal);
    // What is less than half a pixel high is not seen.
    const least = (0.5 * this.scale.high) / Math.max(1, this.scale.plot.bottom - this.scale.plot.top);
    const shown = stack.groups.map((_, n) => this.scale.columns.some((column) => column.stack[n] > least));
    const key = [shown, ordinal, stack.by, model.device, page.store.state.filter?.name, isDark()].join();
    if (key !== this.described) this.keys(stack, at, shown);
    this.described = key;
    this.say(ordinal);
  }

  private keys(stack: Stack, at: Float64Array, shown: boolean[]): void {
    const { page } = this;
    const items = stack.groups
      .map((group, n) => ({ group, bytes: at[n] }))
      .filter(({ bytes }, n) => bytes > 0 || shown[n]);
    const filter = page.store.state.filter?.name;
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
            class: filter === group.name ? "key chosen" : "key",
            title: filterable ? "shows only this" : "",
            on: { click: () => filterable && page.filter(stack.by as FilterBy, group.name) },
          },
          swatch,
          clean(group.name, 44),
          bytes > 0 && el("span", { class: "dim", text: ` ${size(bytes)}` }),
        );
      }),
      ...this.markKeys(),
      el("span", { class: "key dim", text: "drag: range, Ctrl + wheel: zoom" }),
    );
  }

  /** What the marks on the axis mean, and how many there are. */
  private markKeys(): HTMLElement[] {
    const { marks: here } = this.page.model;
    return Object.entries(MARKS).flatMap(([what, [words, ink, sign_]]) => {
      const many = here.filter((mark) => mark.what === what).length;
      if (!many) return [];
      const sign = el("span", { class: "sign", text: sign_ });
      sign.style.color = theme(ink);
      return [el("span", { class: "key" }, sign, words, el("span", { class: "dim", text: many > 1 ? ` ${many} times` : "" }))];
    });
  }

  private say(ordinal: number): void {
    const { page } = this;
    const { model, stack } = page;
    const { range, second } = page.store.state;
    const key = [ordinal, range, second, stack.by, model.device, model.page.name].join();
    if (key === this.said) return;
    this.said = key;
    const reserved = model.sums[Field.Reserved].of(ordinal);
    const cap = model.cap(ordinal);
    const counted = model.top(ordinal) + model.sums[Field.Managed].of(ordinal);
    const line = (name: string, text: string) => el("span", {}, el("span", { class: `stroke ${name}` }), text);
    const time = seconds(model.time[ordinal], 6);
    const named = ordinal === model.failed ? "failure, " : ordinal === model.peak ? "peak, " : "";
    const words: (HTMLElement | string)[] = [
      el("strong", { text: named + time }),
      line("top", `${model.hasProcessFigure ? "in nvidia-smi" : "recorded"} ${size(model.top(ordinal))}`),
      ...(model.hasBlocks ? [line("reserved", `reserved ${size(reserved)}`)] : []),
      line("allocated", `allocated ${size(model.allocated.of(ordinal))}`),
      ...(cap === null ? [] : [line("cap", `counted by the cap ${size(counted)} of ${limitOf(cap)}`)]),
    ];
    if (range) words.push(`range ${seconds(range[0])} to ${seconds(range[1])}`);
    if (range && second) {
      const [one, two] = [range, second].map(([from, to]) => model.allocated.highest(model.at(from), model.at(to)));
      const more = model.allocated.held(two) - model.allocated.held(one);
      words.push(`second range ${more >= 0 ? "+" : ""}${size(more)} allocated`);
    }
    fill(this.status, ...words.flatMap((word, n) => (n ? ["   ", word] : [word])));
    this.status.dataset.top = String(model.top(ordinal));
    this.status.dataset.ordinal = String(ordinal);
  }

  private buttons(): void {
    const { page } = this;
    const { model, stack } = page;
    const pinned = page.ordinal === model.failed ? "failure" : page.ordinal === model.peak ? "peak" : "";
    const key = `${stack.by} ${model.device} ${model.page.name} ${pinned} ${page.store.state.view}`;
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
        .map(([by]) => choice(by === "holder" ? "line" : by, stack.by === by, () => page.store.set({ by }))),
    );
    fill(
      this.moments,
      choice("whole run", page.store.state.view === null, () => page.store.set({ view: null })),
      choice("peak", pinned === "peak", () => page.pin(model.peak)),
      model.failed !== null && choice("failure", pinned === "failure", () => page.pin(null)),
    );
  }

  // Pointer and keys.

  private hover(event: MouseEvent): void {
    const { model, stack } = this.page;
    const column = this.scale.columnAt(event.offsetX);
    if (!column || this.drag?.moved) return tooltip.hide();
    const lines: tooltip.Line[] = [
      { text: `${seconds(model.time[column.ordinal], 6)}   ${size(column.top)}`, strong: true },
    ];
    const { top, bottom } = this.scale.plot;
    if (event.offsetY > bottom) lines.push(...this.phaseLines(event));
    const near = model.marks.filter((mark) => Math.abs(this.scale.x(model.time[mark.ordinal]) - event.offsetX) < 5);
    for (const mark of near.slice(0, 4)) {
      const [words, ink] = MARKS[mark.what];
      lines.push({ text: `${words}: ${size(mark.bytes)}${mark.by ? ` by ${mark.by}` : ""}`, colour: theme(ink) });
    }
    const under = ((bottom - event.offsetY) / (bottom - top)) * this.scale.high;
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
    const at = model.at(this.scale.ns(event.offsetX));
    return model.lanes
      .filter(({ from, to }) => from <= at && at <= to)
      .slice(0, 6)
      .map(({ name, from, to }) => ({ text: `${name}  ${seconds(model.time[to] - model.time[from], 6)}` }));
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
      const by = ((drag.from - x) / this.scale.plot.width) * (to - from);
      this.page.look(from + by, to + by);
      return;
    }
    const clamp = (ns: number) => Math.min(Math.max(ns, 0), this.page.model.endNs);
    const ends = [this.scale.ns(drag.from), this.scale.ns(x)].sort((a, b) => a - b).map(clamp) as [number, number];
    if (ends[1] > ends[0]) this.page.store.set(drag.second ? { second: ends } : { range: ends });
  }

  private up(event: MouseEvent): void {
    const { drag, page } = this;
    this.drag = null;
    if (!drag) return;
    const { model } = page;
    if (drag.moved) {
      if (drag.pan) return;
      const chosen = drag.second ? page.store.state.second : page.store.state.range;
      // The moment of the range is pinned at which most is allocated.
      if (chosen) page.pin(model.allocated.highest(model.at(chosen[0]), model.at(chosen[1])));
      return;
    }
    const x = event.clientX - this.canvas.getBoundingClientRect().left;
    const phase = this.phaseAt(x, drag.y);
    if (phase) {
      page.store.set(drag.second ? { second: phase } : { range: phase });
      page.pin(model.allocated.highest(model.at(phase[0]), model.at(phase[1])));
      return;
    }
    const column = this.scale.columnAt(x);
    if (column) page.store.set({ pin: column.ordinal, range: null, second: null });
  }

  /** The range in time of the step or phase that is drawn there: a click on it brushes it. */
  private phaseAt(x: number, y: number): [number, number] | null {
    const { model } = this.page;
    const depth = Math.floor((y - this.scale.plot.bottom - 5) / LANE);
    if (y < this.scale.plot.bottom + 5 || depth >= this.scale.lanes) return null;
    const at = this.scale.ns(x);
    const found = model.lanes.find(
      (range) => range.depth === depth && model.time[range.from] <= at && at <= model.time[range.to],
    );
    return found ? [model.time[found.from], model.time[found.to]] : null;
  }

  /** The wheel scrolls the page: with Ctrl it zooms, with Shift or sideways it moves the view. */
  private wheel(event: WheelEvent): void {
    const sideways = event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY);
    if (!event.ctrlKey && !sideways) return;
    event.preventDefault();
    const [from, to] = this.page.view;
    if (!event.ctrlKey) {
      const by = ((event.deltaX || event.deltaY) / this.scale.plot.width) * (to - from);
      this.page.look(from + by, to + by);
      return;
    }
    this.zoom(Math.exp(Math.max(-120, Math.min(120, event.deltaY)) / 300), this.scale.ns(event.offsetX));
  }

  zoom(by: number, around = this.page.model.time[this.page.ordinal]): void {
    const [from, to] = this.page.view;
    const centre = Math.min(Math.max(around, from), to);
    this.page.look(centre - (centre - from) * by, centre + (to - centre) * by);
  }

  pan(part: number): void {
    const [from, to] = this.page.view;
    this.page.look(from + part * (to - from), to + part * (to - from));
  }

  /** What tests measure, as below. */
  get columns() {
    return this.scale.columns;
  }

  /** What tests measure: the height that is drawn for a moment, and the scale. */
  probe(ordinal: number) {
    const { bottom } = this.scale.plot;
    return { y: this.scale.y(this.page.model.top(ordinal)), x: this.scale.x(this.page.model.time[ordinal]), bottom, high: this.scale.high };
  }

  later(): void {
    this.redraw();
  }
}
