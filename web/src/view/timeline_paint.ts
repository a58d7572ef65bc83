// Draws the timeline: areas, axes, lines, phases, marks, ranges and the pinned moment.

import { fitted, theme } from "../base/dom.ts";
import { ink, rgb } from "../base/palette.ts";
import { byteSteps, clean, seconds, size, steps } from "../base/units.ts";
import type { Stack } from "../model/groups.ts";
import { Field } from "../model/model.ts";
import type { Page } from "./page.ts";
import { type Column, LANE, LANES, LEFT, RIGHT, type Scale, TOP } from "./timeline_scale.ts";

/** What is marked on the axis: words, colour of the theme, sign. No colour of the areas is used: signs tell marks apart. */
export const MARKS: Record<string, [string, string, string]> = {
  oom: ["out of memory", "bad", "▼"],
  refusal: ["refused", "bad", "▽"],
  warned: ["over the cap, given", "text", "▽"],
};

/** The opacity of lines where they go up or down. */
const STEEP = 0.3;

export class TimelinePainter {
  private readonly surface = document.createElement("canvas");
  private image: ImageData | null = null;

  constructor(
    private readonly page: Page,
    private readonly scale: Scale,
  ) {}

  paint(draw: CanvasRenderingContext2D, stack: Stack): void {
    draw.font = "11px system-ui, sans-serif";
    this.gaps(draw);
    // Lines of the grid lie below the data.
    this.axes(draw);
    this.areas(draw, stack);
    this.lines(draw);
    this.phases(draw);
    this.marks(draw);
    this.ranges(draw);
    this.pinned(draw);
  }

  /** Filled pixel by pixel: a browser without a GPU takes many times as long for paths of that many points. */
  private areas(draw: CanvasRenderingContext2D, stack: Stack): void {
    const wanted = this.page.store.state.filter;
    const { top, bottom, width } = this.scale.plot;
    const ratio = window.devicePixelRatio || 1;
    const [w, h] = [Math.max(1, Math.round(width * ratio)), Math.max(1, Math.round((bottom - top) * ratio))];
    if (this.image?.width !== w || this.image.height !== h) {
      this.image = new ImageData(w, h);
      [this.surface.width, this.surface.height] = [w, h];
    }
    const pixels = new Uint32Array(this.image.data.buffer);
    pixels.fill(0);
    const colours = stack.groups.map((group, n) => {
      const [r, g, b] = rgb(group.colour);
      const alpha = wanted && n > 0 ? 89 : 255;
      // As bytes in memory: red, green, blue, opacity.
      return ((alpha << 24) | (b << 16) | (g << 8) | r) >>> 0;
    });
    const many = this.scale.columns.length;
    const scale = h / this.scale.high;
    for (let c = 0; c < many; c++) {
      const left = Math.round((c * w) / many);
      const right = Math.round(((c + 1) * w) / many);
      const of = this.scale.columns[c].stack;
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
    const { top, bottom, width } = this.scale.plot;
    draw.fillStyle = theme("text");
    draw.strokeStyle = theme("grid");
    draw.lineWidth = 1;
    draw.textAlign = "right";
    draw.textBaseline = "middle";
    for (const bytes of byteSteps(this.scale.high, Math.max(2, Math.floor((bottom - top) / 34)))) {
      const y = Math.round(this.scale.y(bytes)) + 0.5;
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
      const x = this.scale.x(at * 1e9);
      draw.beginPath();
      draw.moveTo(x, bottom);
      draw.lineTo(x, bottom + 4);
      draw.stroke();
      const text = seconds(at * 1e9, digits);
      // The last one ends with the axis.
      const half = draw.measureText(text).width / 2;
      draw.fillText(text, Math.min(x, LEFT + width + RIGHT - half), this.scale.plot.bottom + this.scale.plot.lanes + 6);
    }
  }

  private lines(draw: CanvasRenderingContext2D): void {
    const { model } = this.page;
    const step = this.scale.plot.width / this.scale.columns.length;
    const line = (value: (column: Column) => number | null, style: string, dash: number[], wide: number) => {
      // What goes up and down is pale: spikes of a pixel would be black.
      const [flat, steep] = [new Path2D(), new Path2D()];
      let last: number | null = null;
      this.scale.columns.forEach((column, n) => {
        const bytes = value(column);
        const y = bytes === null ? null : Math.max(TOP - 4, this.scale.y(bytes));
        const x = LEFT + n * step;
        if (y !== null) {
          if (last !== y) {
            if (last !== null) {
              steep.moveTo(x, last);
              steep.lineTo(x, y);
            }
            flat.moveTo(x, y);
          }
          flat.lineTo(x + step, y);
        }
        last = y;
      });
      draw.strokeStyle = style;
      draw.lineWidth = wide;
      draw.setLineDash(dash);
      draw.stroke(flat);
      draw.setLineDash([]);
      draw.globalAlpha = STEEP;
      draw.stroke(steep);
      draw.globalAlpha = 1;
    };
    if (model.hasBlocks) {
      const reserved = model.sums[Field.Reserved];
      line((column) => reserved.of(column.ordinal), theme("line-reserved"), [4, 3], 1.2);
    }
    this.allocated(draw);
    line((column) => column.top, theme("text"), [], 1.2);
    line((column) => model.cap(column.ordinal), theme("bad"), [7, 4], 1.6);
  }

  /** Without the ways up and down: spikes of a pixel would be black. */
  private allocated(draw: CanvasRenderingContext2D): void {
    const { columns } = this.scale;
    const step = this.scale.plot.width / columns.length;
    const { allocated } = this.page.model;
    const known = new Map<number, number>();
    draw.fillStyle = theme("line-allocated");
    columns.forEach((column, n) => {
      let bytes = known.get(column.ordinal);
      if (bytes === undefined) known.set(column.ordinal, (bytes = allocated.of(column.ordinal)));
      if (bytes > 0) draw.fillRect(LEFT + n * step, this.scale.y(bytes) - 0.5, step + 0.3, 1);
    });
  }

  private gaps(draw: CanvasRenderingContext2D): void {
    const { model } = this.page;
    const { top, bottom } = this.scale.plot;
    draw.fillStyle = theme("gap");
    for (const [from, to] of model.page.gaps) {
      const [left, right] = [this.scale.x(model.time[Math.max(0, from - 1)]), this.scale.x(model.time[to])];
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
    const { bottom, width } = this.scale.plot;
    draw.textAlign = "left";
    draw.textBaseline = "middle";
    const last = [-1, -1, -1];
    for (const { name, short, from, to, depth } of model.lanes) {
      if (depth >= LANES) continue;
      const left = Math.max(LEFT, this.scale.x(model.time[from]));
      const right = Math.min(LEFT + width, this.scale.x(model.time[to]));
      // Ranges of less than a pixel beside others are not seen.
      if (right < LEFT || left > LEFT + width || right <= last[depth] + 0.3) continue;
      last[depth] = right;
      const y = bottom + 5 + depth * LANE;
      // Phases have colours of their own where the areas are stacked by them.
      const group = this.page.stack.by === "phase" ? this.page.stack.groups.find((one) => one.name === name) : undefined;
      draw.fillStyle = group?.colour ?? theme("panel-strong");
      draw.fillRect(left, y, Math.max(1, right - left - 0.5), LANE - 2);
      draw.fillStyle = group ? ink(group.colour) : theme("text");
      const fits = draw.measureText(name).width <= right - left - 6;
      draw.fillText(fitted(draw, clean(fits ? name : short, 60), right - left - 6), left + 3, y + (LANE - 2) / 2);
    }
  }

  private marks(draw: CanvasRenderingContext2D): void {
    const { model } = this.page;
    const { top, bottom, width } = this.scale.plot;
    draw.font = "9px system-ui, sans-serif";
    draw.textAlign = "center";
    draw.textBaseline = "middle";
    for (const mark of model.marks) {
      const x = this.scale.x(model.time[mark.ordinal]);
      if (x < LEFT || x > LEFT + width) continue;
      const strong = mark.what === "oom";
      const [, ink, sign] = MARKS[mark.what];
      if (strong) {
        draw.strokeStyle = theme(ink);
        draw.lineWidth = 2;
        draw.beginPath();
        draw.moveTo(x, top);
        draw.lineTo(x, bottom);
        draw.stroke();
      }
      const y = strong ? top : bottom - 7;
      // A border, so that it is seen on all colours.
      draw.lineWidth = 2.5;
      draw.strokeStyle = theme("back");
      draw.strokeText(sign, x, y);
      draw.fillStyle = theme(ink);
      draw.fillText(sign, x, y);
    }
  }

  private ranges(draw: CanvasRenderingContext2D): void {
    draw.font = "11px system-ui, sans-serif";
    const { range, second } = this.page.store.state;
    const { top, bottom } = this.scale.plot;
    [range, second].forEach((one, n) => {
      if (!one) return;
      const [left, right] = [Math.max(LEFT, this.scale.x(one[0])), this.scale.x(one[1])];
      draw.fillStyle = theme("brush");
      draw.fillRect(left, top, right - left, bottom - top);
      draw.strokeStyle = theme("text");
      draw.lineWidth = 1;
      draw.setLineDash(n ? [4, 3] : []);
      draw.strokeRect(left, top, right - left, bottom - top);
      draw.setLineDash([]);
      draw.fillStyle = theme("text");
      draw.textAlign = "left";
      draw.textBaseline = "top";
      if (right - left > 14) draw.fillText(n ? "B" : "A", left + 4, top + 3);
    });
  }

  private pinned(draw: CanvasRenderingContext2D): void {
    const { model, ordinal } = this.page;
    const x = this.scale.x(model.time[ordinal]);
    const { top, bottom, width } = this.scale.plot;
    if (x < LEFT - 1 || x > LEFT + width + 1) return;
    draw.strokeStyle = theme("text");
    draw.lineWidth = 1;
    draw.beginPath();
    draw.moveTo(x, top);
    draw.lineTo(x, bottom);
    draw.stroke();
    draw.fillStyle = theme("text");
    draw.beginPath();
    draw.arc(x, this.scale.y(model.top(ordinal)), 3.5, 0, 7);
    draw.fill();
  }
}
