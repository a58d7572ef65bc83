import { expect, test } from "vitest";
import type { Rectangles } from "./blocks.ts";
import { raster } from "./paint_raster.ts";

function rectangles(rows: number[][]): Rectangles {
  const of = (n: number) => Float64Array.from(rows, (row) => row[n]);
  const colour = new Uint8Array(rows.length * 4);
  rows.forEach((row, n) => colour.set([row[4], 0, 0, 255], 4 * n));
  return { length: rows.length, which: new Uint32Array(rows.length), from: of(0), to: of(1), low: of(2), high: of(3), colour };
}

function drawn(rows: number[][], seen = { from: 0, to: 10, low: 0, high: 10 }): string[] {
  const pixels = new Uint32Array(100);
  raster(pixels, 10, 10, rectangles(rows), seen);
  return Array.from({ length: 10 }, (_, y) => [...pixels.subarray(y * 10, y * 10 + 10)].map((p) => p & 255).join(""));
}

test("a rectangle fills its pixels, from the bottom up", () => {
  expect(drawn([[2, 5, 0, 3, 7]]).slice(6)).toEqual(["0000000000", "0077700000", "0077700000", "0077700000"]);
});

test("what is smaller than a pixel has one, what is outside has none", () => {
  const lines = drawn([[3, 3.1, 9.05, 9.06, 4], [20, 30, 0, 9, 5], [0, 9, 20, 30, 6]]);
  expect(lines.join("").replaceAll("0", "")).toBe("4");
  expect(lines[0]).toBe("0004000000");
});

test("a part of a rectangle is clipped where the view ends", () => {
  expect(drawn([[-50, 50, -50, 50, 3]]).join("")).toBe("3".repeat(100));
});
