import { expect, test } from "vitest";
import { explained, type Grown } from "./diff.ts";

test("the named part of a difference is between 0 and 100 %", () => {
  const line = (name: string, before: number, now: number): Grown =>
    ({ name, library: "unknown", before, now, counts: [1, 1] });
  const grew = [line("a.py:1", 0, 300), line("(no frames)", 0, 100), line("b.py:2", 300, 0)];
  expect(explained(grew, 100)).toMatch(/^75(\.0)? % of what grew/);
  expect(explained(grew.map((one) => ({ ...one, before: one.now, now: one.before })), -100)).toMatch(/^75(\.0)? % of what shrank/);
  expect(explained([line("(no frames)", 0, 5), line("a.py:1", 50, 10)], 5)).toMatch(/^0(\.0)? %/);
});
