import { expect, test } from "vitest";
import { colour, ink, rgb } from "./palette.ts";

test("a name has one colour, whatever else is on the page", () => {
  expect(colour("transformers")).toBe(colour("transformers"));
  expect(colour("PyTorch")).not.toBe(colour("transformers"));
  for (const name of ["constructor", "__proto__", "toString", ""]) expect(colour(name)).toMatch(/^#[0-9a-f]{6}$/);
});

test("ink is read on every colour", () => {
  const light = ([r, g, b]: number[]) => {
    const linear = [r, g, b].map((v) => (v / 255 <= 0.03928 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4));
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2];
  };
  for (const name of ["PyTorch", "transformers", "cuBLAS", "NCCL", "XLA", "unknown", "a", "b", "c", "d"]) {
    const [one, two] = [light(rgb(colour(name))), light(rgb(ink(colour(name))))];
    expect((Math.max(one, two) + 0.05) / (Math.min(one, two) + 0.05)).toBeGreaterThan(3.5);
  }
});
