import { expect, test } from "vitest";
import { decode, LIVE } from "./stream.ts";

function number(value: number): number[] {
  const bytes: number[] = [];
  while (value >= 128) {
    bytes.push((value % 128) + 128);
    value = Math.floor(value / 128);
  }
  return [...bytes, value];
}

function frame(kind: number, columns: number[][]): number[] {
  const body = columns.flatMap((values) => {
    const bytes = values.flatMap(number);
    return [...number(bytes.length), ...bytes];
  });
  return [kind, ...number(columns[0].length), ...body];
}

test("columns become records", () => {
  const bytes = [
    ...frame(1, [[1, 0, 300]]),
    // One that ended at 2 after 1, one that is live since 3.
    ...frame(2, [[5, 0], [1, 3], [4, 1027], [0, 5], [8, 4], [0, 1], [0, 7], [0, 5]]),
    ...frame(5, [[1, 2], [0, 0], [20, 5]]),
  ];
  const stream = decode(Uint8Array.from(bytes));
  expect([...stream.time]).toEqual([0, 64, 64, 301 * 64]);
  expect([...stream.blocks.start]).toEqual([1, 3]);
  expect([...stream.blocks.end]).toEqual([2, LIVE]);
  expect([...stream.blocks.size]).toEqual([1024, 513]);
  expect([...stream.blocks.owner]).toEqual([0, 5]);
  expect([...stream.blocks.address]).toEqual([1024, 1536]);
  expect([...stream.sums.ordinal]).toEqual([1, 3]);
  expect([...stream.sums.value]).toEqual([10, 7]);
  // Of the second, 512 bytes are asleep, and it goes on from another.
  expect([...stream.blocks.held]).toEqual([1024, 1]);
  expect([...stream.blocks.continues]).toEqual([0, 1]);
});

test("data that is cut or wrong is an error, not a picture", () => {
  expect(() => decode(Uint8Array.from([9, 1, 1]))).toThrow("damaged");
  expect(() => decode(Uint8Array.from([1, 2, 200, 1]))).toThrow("early");
});
