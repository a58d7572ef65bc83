import { expect, test } from "vitest";
import { standing } from "./ranks.ts";

test("those that stand out are named with the reason, and only they", () => {
  const plain = (n: number): [string, null] => [`rank ${n}`, null];
  expect(standing([plain(0), plain(1)])).toBe("none stands out");
  const odd = (n: number): [string, string] => [`rank ${n}`, "refusals"];
  expect(standing([plain(0), odd(1), plain(2)])).toBe("rank 1 stands out: refusals");
  expect(standing([odd(0), plain(1), odd(2)])).toBe("rank 0 stands out: refusals; rank 2 stands out: refusals");
  expect(standing([1, 2, 3, 4, 5, 6].map(odd))).toMatch(/rank 4 stands out: refusals; 2 more stand out$/);
});
