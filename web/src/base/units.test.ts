import { expect, test } from "vitest";
import { byteSteps, clean, count, duration, limitOf, percent, size, steps } from "./units.ts";

test("figures are those of the command", () => {
  expect([0, 512, 1536, 24 * 2 ** 30, -(2 ** 20)].map(size)).toEqual(["0 B", "512 B", "1.50 KiB", "24.00 GiB", "-1.00 MiB"]);
  expect([0, 999, 1000, 1234567].map(count)).toEqual(["0", "999", "1,000", "1,234,567"]);
  expect(duration(1_500_000)).toBe("1.5 ms");
  expect(percent(1, 3)).toBe("33.3 %");
});

test("a limit is printed as it was given", () => {
  const given = [8 * 2 ** 30, 1500 * 2 ** 20, Math.floor(14.44 * 2 ** 30), 256 * 2 ** 20, 8e9, 14787 * 2 ** 20, 0];
  expect(given.map(limitOf)).toEqual(["8.00 GiB", "1500 MiB", "14.44 GiB", "256 MiB", "8.00 GB", "14.44 GiB", "0 B"]);
});

test("what cannot be seen is shown", () => {
  expect(clean("a\u202eb\u0000\u200b")).toBe("a?b??");
  expect(clean("x".repeat(10_000)).length).toBe(300);
});

test("steps of an axis are round and few", () => {
  expect(steps(0, 10, 5)).toEqual([0, 2, 4, 6, 8, 10]);
  expect(steps(3, 3, 5)).toEqual([]);
  expect(byteSteps(1000, 4)).toEqual([0, 256, 512, 768]);
});
