// Which moment and which bytes a pixel of the timeline stands for.

import type { Stack } from "../model/groups.ts";
import type { Page } from "./page.ts";

export const LEFT = 74;
export const RIGHT = 12;
export const TOP = 10;
export const AXIS = 22;
export const LANE = 13;
export const LANES = 3;

export interface Column {
  ordinal: number;
  top: number;
  stack: Float64Array;
}

export class Scale {
  columns: Column[] = [];
  high = 1;
  private key = "";

  constructor(private readonly page: Page) {}

  /** Measured once for a picture: asking the browser is slow. */
  plot = { width: 20, top: TOP, bottom: 100, lanes: 0 };

  /** `wide`: of the canvas. */
  place(wide: number, height: number): void {
    const width = Math.max(20, wide - LEFT - RIGHT);
    const lanes = this.lanes * LANE;
    this.plot = { width, top: TOP, bottom: height - AXIS - lanes, lanes };
  }

  get lanes(): number {
    return Math.min(LANES, this.page.model.lanes.reduce((most, range) => Math.max(most, range.depth + 1), 0));
  }

  x(ns: number): number {
    const [from, to] = this.page.view;
    return LEFT + ((ns - from) / (to - from)) * this.plot.width;
  }

  ns(x: number): number {
    const [from, to] = this.page.view;
    return from + ((x - LEFT) / this.plot.width) * (to - from);
  }

  y(bytes: number): number {
    const { top, bottom } = this.plot;
    return bottom - (bytes / this.high) * (bottom - top);
  }

  /** What a pixel shows: the highest moment in it, of its figure and its stack. */
  measure(stack: Stack): void {
    const { model } = this.page;
    const [from, to] = this.page.view;
    const { width } = this.plot;
    const many = Math.round(width);
    const key = [from, to, many, stack.by, model.device, model.page.name, this.page.store.state.filter?.name].join();
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

  columnAt(x: number): Column | undefined {
    return this.columns[Math.floor(((x - LEFT) / this.plot.width) * this.columns.length)];
  }
}
