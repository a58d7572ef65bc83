import { expect, test } from "vitest";
import { begins, standing } from "./ranks.ts";

test("those that stand out are named with the reason, and only they", () => {
  const plain = (n: number): [string, null] => [`rank ${n}`, null];
  expect(standing([plain(0), plain(1)])).toBe("none stands out");
  const odd = (n: number): [string, string] => [`rank ${n}`, "refusals"];
  expect(standing([plain(0), odd(1), plain(2)])).toBe("rank 1 stands out: refusals");
  expect(standing([odd(0), plain(1), odd(2)])).toBe("rank 0 stands out: refusals; rank 2 stands out: refusals");
  expect(standing([1, 2, 3, 4, 5, 6].map(odd))).toMatch(/rank 4 stands out: refusals; 2 more stand out$/);
});

test("processes that ran hours apart begin at 0 each, those that ran together where they did", () => {
  const at = (time: string) => Date.parse(`2026-11-21T${time}Z`) / 1e3;
  const minutes = (n: number) => n * 60e9;
  expect(begins([at("08:00:00"), at("08:00:30")], [minutes(5), minutes(5)])).toEqual({ late: [0, 30e9], together: true });
  expect(begins([at("08:00:00"), at("11:00:00")], [minutes(5), minutes(5)])).toEqual({ late: [0, 0], together: false });
});
