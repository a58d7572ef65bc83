import { expect, test } from "vitest";
import type { ProcessFacts, ProcessPage } from "../data/facts.ts";
import { LIVE, type Stream } from "../data/stream.ts";
import { Stack } from "./groups.ts";
import { after, LUMPED, Model } from "./model.ts";
import { byRole, holders, moment } from "./moment.ts";

const MIB = 2 ** 20;

/** A segment of 20 MiB from 1 on (a segment since 2), a block of 8 in it from 2 to 4, one of 4 from 3 on; 6 MiB of the driver's from 5 on. */
function made(): Model {
  const records = (rows: number[][]) => ({
    length: rows.length,
    start: Uint32Array.from(rows, (row) => row[0]),
    end: Uint32Array.from(rows, (row) => row[1]),
    size: Float64Array.from(rows, (row) => row[2] * MIB),
    address: Float64Array.from(rows, (row) => row[3]),
    owner: Uint32Array.from(rows, (row) => row[4]),
    role: Uint8Array.from(rows, (row) => row[6] ?? 1),
    phase: new Uint32Array(rows.length),
    held: Float64Array.from(rows, (row) => row[2] * MIB),
    continues: new Uint8Array(rows.length),
  });
  const memory = [[1, LIVE, 20, 4096, 0, 2], [5, LIVE, 6, 4096 + 64 * MIB, 0, 0]];
  const stream: Stream = {
    last: 6,
    time: Float64Array.from([0, 10, 20, 30, 40, 50, 60]),
    blocks: records([[2, 4, 8, 4096, 1, 0, 0], [3, LIVE, 4, 4096 + 8 * MIB, 2]]),
    memory: {
      ...records(memory),
      share: Float64Array.from(memory, (row) => row[2] * MIB),
      segment: Uint32Array.from(memory, (row) => row[5]),
    },
    mappings: { ...records([]), device: new Uint8Array(0), segment: new Uint32Array(0), asleep: new Uint32Array(0) },
    sums: {
      length: 3,
      ordinal: Uint32Array.from([1, 5, 5]),
      device: new Uint8Array(3),
      field: Uint8Array.from([0, 0, 1]),
      value: Float64Array.from([20 * MIB, 26 * MIB, 30 * MIB]),
    },
  };
  const name = (line: string, library: number) => ({ line, function: "f", caller: "", library });
  const page = {
    name: "p", owners: [[0, 1, 0, 0, 1], [0, 12, 0, 1, 2], [0, 12, 0, 1, 2]],
    holders: [name("a.py:1", 1), name("b.py:2", 2)], libraries: ["A", "B"], failure_ordinals: [],
    phases: { names: [], ranges: [], more: false, moments: [] }, steps: [], peaks: { 0: 5 }, gaps: [[6, 6]],
    roles: ["weights", "unknown", "free in cache"], lumped_below: 0,
  } as unknown as ProcessPage;
  return new Model(stream, page, { devices: [], failures: [] } as unknown as ProcessFacts, 0);
}

test("steps have the first row below the timeline, phases the rows below", () => {
  const model = made();
  const page = {
    ...model.page,
    steps: [{ number: 1, state: "whole", begin_s: 1e-8, end_s: 3e-8 }, { number: 2, state: "unfinished", begin_s: 4e-8, end_s: 6e-8 }],
    phases: { names: [[0, "forward"]], ranges: [[1, 2, 3, 0]], more: false, moments: [] },
  } as unknown as ProcessPage;
  const { lanes } = new Model(model.stream, page, model.facts, 0);
  expect(lanes.map(({ name, short, depth }) => [name, short, depth])).toEqual([
    ["step 1", "1", 0], ["forward", "forward", 1], ["step 2, unfinished", "2", 0],
  ]);
});

test("a moment is what the command says", () => {
  const model = made();
  const bytes = (ordinal: number) =>
    holders(model, moment(model, ordinal)).map((held) => [model.holderName(held.holder), held.bytes / MIB, held.count]);
  expect(bytes(0)).toEqual([]);
  expect(bytes(1)).toEqual([["a.py:1 f", 20, 1]]);
  expect(bytes(3)).toEqual([["b.py:2 f", 12, 2]]);
  expect(bytes(5)).toEqual([["a.py:1 f", 6, 1], ["b.py:2 f", 4, 1]]);
  expect([moment(model, 5).total, moment(model, 5).held]).toEqual([26 * MIB, 10 * MIB]);
});

test("roles are those of blocks, and free memory of the cache", () => {
  const model = made();
  const roles = (ordinal: number) => byRole(model, moment(model, ordinal)).map((of) => [of.role, of.bytes / MIB, of.count]);
  expect(roles(1)).toEqual([["unknown", 20, 1]]);
  expect(roles(3)).toEqual([["weights", 8, 1], ["free in cache", 8, 1], ["unknown", 4, 1]]);
  expect(new Stack(model, "role").groups.slice(0, 2).map((group) => group.name)).toEqual(["weights", "unknown"]);
  expect(model.hasRoles).toBe(true);
});

test("the stack is as high as the figure at every moment", () => {
  const model = made();
  for (const by of ["library", "holder", "role", "phase"] as const) {
    const stack = new Stack(model, by);
    for (let ordinal = 0; ordinal <= model.last; ordinal++) {
      const sum = stack.at(ordinal).reduce((all, bytes) => all + bytes, 0);
      expect(sum, `${by} ${ordinal}`).toBe(model.top(ordinal));
    }
    const walk = stack.walk();
    expect(walk.highest(2, 4)).toBe(3);
    expect([...walk.best]).toEqual([...stack.at(3)]);
    expect(walk.highest(4, 6)).toBe(5);
  }
});

test("what is allocated has no free cache in it: the highest moment is another", () => {
  const { allocated, last } = made();
  const mib = (all: (ordinal: number) => number) => Array.from({ length: last + 1 }, (_, n) => all(n) / MIB);
  expect(mib((n) => allocated.of(n))).toEqual([0, 0, 8, 12, 4, 4, 4]);
  expect(mib((n) => allocated.held(n))).toEqual([0, 0, 8, 12, 4, 10, 10]);
  expect([allocated.highest(0, 6), allocated.highest(2, 6), allocated.highest(4, 6), allocated.highest(6, 6)]).toEqual([3, 3, 5, 6]);
});

test("what is chosen is the lowest band of each stack, and its height stays", () => {
  const model = made();
  for (const by of ["library", "holder", "role", "phase"] as const) {
    const band = new Stack(model, by, { name: "b", wanted: (_, role) => role === 0 });
    const plain = new Stack(model, by);
    expect(band.groups[0].name).toBe("b");
    for (let ordinal = 0; ordinal <= model.last; ordinal++) {
      const sum = (of: Stack) => of.at(ordinal).reduce((all, bytes) => all + bytes, 0);
      expect(sum(band), `${by} ${ordinal}`).toBe(sum(plain));
    }
    expect(band.at(3)[0] / MIB, by).toBe(8);
  }
});

test("moments by time are those of the command", () => {
  const model = made();
  expect([0, 9, 10, 15, 60, 99].map((ns) => model.at(ns))).toEqual([0, 0, 1, 1, 6, 6]);
  expect(model.isKnown(5)).toBe(true);
  expect(model.isKnown(6)).toBe(false);
  expect(after([1, 1, 3], 1)).toBe(2);
});

test("lumped blocks are one sum, in no role", () => {
  const { stream, page, facts } = made();
  const sums = {
    length: 5,
    ordinal: Uint32Array.from([1, 1, 1, 5, 5]),
    device: new Uint8Array(5),
    field: Uint8Array.from([0, 7, 8, 0, 1]),
    value: Float64Array.from([20 * MIB, 3001, 7, 26 * MIB, 30 * MIB]),
  };
  const model = new Model({ ...stream, sums }, page, facts, 0);
  expect(byRole(model, moment(model, 3)).map((of) => [of.role, of.bytes, of.count])).toContainEqual([LUMPED, 3001, 7]);
  const stack = new Stack(model, "role");
  expect(stack.at(3)[stack.groups.findIndex((group) => group.name === LUMPED)]).toBe(3001);
});
