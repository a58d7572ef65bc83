import { expect, test } from "vitest";
import { format, initial, parse } from "./state.ts";

test("a link shows the same view", () => {
  const state = {
    ...initial(),
    view: [5, 900] as [number, number],
    pin: 77,
    range: [10, 20] as [number, number],
    second: [30, 40] as [number, number],
    by: "holder" as const,
    tab: "map" as const,
    filter: { what: "holder" as const, name: "a:1 f&g=#h \u202e" },
    search: "x y",
    sort: "-count",
    frames: true,
    small: 4096,
    theme: "dark" as const,
  };
  expect(parse(format(state))).toEqual(state);
  expect(format(initial())).toBe("");
});

test("an address that says nothing sound is the first view", () => {
  for (const hash of ["#view=a~b&at=1e9&tab=nothing&by=x&p=-", "#%%%", "#filter=x", "#view=9~1", "#range=1~2~3"]) {
    expect(parse(hash)).toEqual(initial());
  }
});
