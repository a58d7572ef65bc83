// Rectangles by filling pixels: where there is no WebGL2, or where that is software too, which takes
// seconds for a million of them.

import { after } from "../model/model.ts";
import type { Painter, Rectangles, Window2 } from "./blocks.ts";

export class RasterPainter implements Painter {
  private image: ImageData | null = null;

  constructor(readonly name: string) {}

  forget(): void {
    this.image = null;
  }

  paint(into: HTMLCanvasElement, all: Rectangles, seen: Window2): void {
    const draw = into.getContext("2d");
    if (!draw) return;
    const { width, height } = into;
    if (this.image?.width !== width || this.image.height !== height) this.image = draw.createImageData(width, height);
    const pixels = new Uint32Array(this.image.data.buffer);
    pixels.fill(0);
    raster(pixels, width, height, all, seen);
    draw.putImageData(this.image, 0, 0);
  }
}

/** Fills the pixels of all that is seen; nothing is so small that it has none. */
export function raster(pixels: Uint32Array, width: number, height: number, all: Rectangles, seen: Window2): void {
  const colours = new Uint32Array(all.colour.buffer, all.colour.byteOffset, all.length);
  const across = width / (seen.to - seen.from);
  const up = height / (seen.high - seen.low);
  const last = after(all.from, seen.to);
  for (let n = 0; n < last; n++) {
    if (all.to[n] < seen.from || all.high[n] < seen.low || all.low[n] > seen.high) continue;
    let left = Math.floor((all.from[n] - seen.from) * across);
    let right = Math.floor((all.to[n] - seen.from) * across);
    let top = height - Math.floor((all.high[n] - seen.low) * up);
    let bottom = height - Math.floor((all.low[n] - seen.low) * up);
    // A line between neighbours where there is room for it.
    if (right - left > 5) right--;
    if (bottom - top > 5) top++;
    if (right <= left) right = left + 1;
    if (bottom <= top) top = bottom - 1;
    left = Math.max(0, left);
    top = Math.max(0, top);
    right = Math.min(width, right);
    bottom = Math.min(height, bottom);
    const colour = colours[n];
    for (let y = top; y < bottom; y++) {
      const row = y * width;
      if (right - left < 16) for (let x = left; x < right; x++) pixels[row + x] = colour;
      else pixels.fill(colour, row + left, row + right);
    }
  }
}
