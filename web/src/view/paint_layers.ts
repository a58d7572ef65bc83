// Live blocks at each column of a picture, stacked without holes: the oldest lowest; what lies above a block that is
// freed moves down. A column shows one moment.

import type { Blocks } from "../data/stream.ts";
import { Change, type Changes } from "../model/model.ts";

/** Blocks that are drawn, by index. */
export interface Layers {
  changes: Changes;
  /** Driver allocations instead of blocks. */
  driver: boolean;
  of: Blocks;
  /** Bytes; 0: it is not drawn. */
  height: Float64Array;
  /** Red, green, blue, opacity, as bytes in memory. */
  colour: Uint32Array;
}

/** Visits the live blocks of some moments, in order; at each the oldest first. */
export function eachLayer(layers: Layers, moments: ArrayLike<number>, visit: (column: number, live: () => number) => void): void {
  const { changes, driver, height } = layers;
  const [start, end] = driver ? [Change.MemoryStart, Change.MemoryEnd] : [Change.BlockStart, Change.BlockEnd];
  const many = height.length;
  // A list in order of beginning: the place `many` is before the first and after the last.
  const next = new Uint32Array(many + 1).fill(many);
  const before = new Uint32Array(many + 1).fill(many);
  let change = 0;
  for (let column = 0; column < moments.length; column++) {
    const moment = moments[column];
    for (; change < changes.ordinal.length && changes.ordinal[change] <= moment; change++) {
      const which = changes.which[change];
      if (changes.what[change] === start) {
        if (height[which] === 0) continue;
        const last = before[many];
        next[last] = which;
        before[which] = last;
        next[which] = many;
        before[many] = which;
      } else if (changes.what[change] === end && height[which] > 0) {
        next[before[which]] = next[which];
        before[next[which]] = before[which];
      }
    }
    let at = many;
    visit(column, () => {
      at = next[at];
      return at === many ? -1 : at;
    });
  }
}

/** What of the plane is seen. */
export interface Seen {
  low: number;
  high: number;
}

/** A block of so many pixels gets an edge, so that neighbours of a colour are told apart. */
const EDGED = 4;

/** Draws all columns over all of the canvas. */
export function paintLayers(into: HTMLCanvasElement, layers: Layers, moments: ArrayLike<number>, { low, high }: Seen): void {
  const { width, height } = into;
  const image = new ImageData(width, height);
  const pixels = new Uint32Array(image.data.buffer);
  const scale = height / (high - low);
  const many = moments.length;
  eachLayer(layers, moments, (column, live) => {
    const left = Math.round((column * width) / many);
    const right = Math.round(((column + 1) * width) / many);
    let bytes = 0;
    for (let which = live(); which >= 0; which = live()) {
      const bottom = Math.min(height, height - Math.round((bytes - low) * scale));
      bytes += layers.height[which];
      const top = Math.max(0, height - Math.round((bytes - low) * scale));
      if (bottom <= 0) break;
      const colour = layers.colour[which];
      const edge = bottom - top >= EDGED ? top : -1;
      // The edge is half as opaque.
      const pale = ((colour & 0xffffff) | ((colour >>> 25) << 24)) >>> 0;
      for (let y = top; y < bottom; y++) {
        for (let x = left; x < right; x++) pixels[y * width + x] = y === edge ? pale : colour;
      }
    }
  });
  into.getContext("2d")?.putImageData(image, 0, 0);
}
