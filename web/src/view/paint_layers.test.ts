import { expect, test } from "vitest";
import type { Blocks } from "../data/stream.ts";
import { Change } from "../model/model.ts";
import { eachLayer, type Layers } from "./paint_layers.ts";

/** Block 0 from 1 to 4, block 1 from 2 to 3, block 2 from 3 on, block 3 from 5 on is not drawn. */
const changes = {
  ordinal: Uint32Array.from([1, 2, 3, 3, 4, 5]),
  what: Uint8Array.from([Change.BlockStart, Change.BlockStart, Change.BlockEnd, Change.BlockStart, Change.BlockEnd, Change.BlockStart]),
  which: Uint32Array.from([0, 1, 1, 2, 0, 3]),
};

test("each column has its live blocks, the oldest lowest, without holes", () => {
  const layers: Layers = { changes, driver: false, of: {} as Blocks, height: Float64Array.from([10, 20, 30, 0]), colour: new Uint32Array(4) };
  const found: number[][] = [];
  eachLayer(layers, [0, 1, 2, 3, 3, 5], (column, live) => {
    found[column] = [];
    for (let which = live(); which >= 0; which = live()) found[column].push(which);
  });
  expect(found).toEqual([[], [0], [0, 1], [0, 2], [0, 2], [2]]);
});
