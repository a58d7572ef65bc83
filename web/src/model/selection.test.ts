import { expect, test } from "vitest";
import type { Facts } from "../data/facts.ts";
import { counterpart, Latest, Loaded, sameDevice } from "./selection.ts";

/** A promise, and what fulfils it. */
function deferred<T>(): [Promise<T>, (value: T) => void] {
  let done!: (value: T) => void;
  const promise = new Promise<T>((resolve) => (done = resolve));
  return [promise, done];
}

const settled = () => new Promise((resolve) => setTimeout(resolve));

test("a result that comes late is dropped, in whatever order results come", async () => {
  const latest = new Latest();
  const shown: string[] = [];
  const [first, endFirst] = deferred<string>();
  const [second, endSecond] = deferred<string>();
  const taken = [latest.take(first, (name) => shown.push(name)), latest.take(second, (name) => shown.push(name))];
  endSecond("second");
  await settled();
  endFirst("first");
  expect(await Promise.all(taken)).toEqual([false, true]);
  expect(shown).toEqual(["second"]);
});

test("what is loaded belongs to its selection", async () => {
  const loaded = new Loaded<string>();
  const ends = new Map<string, (value: string) => void>();
  const asked: string[] = [];
  let drawn = 0;
  const get = (key: string) =>
    loaded.get(key, () => {
      asked.push(key);
      const [promise, end] = deferred<string>();
      ends.set(key, end);
      return promise;
    }, () => drawn++);
  expect(get("process 0")).toBe(null);
  expect(get("process 0")).toBe(null);
  expect(get("process 1")).toBe(null);
  ends.get("process 1")!("one");
  ends.get("process 0")!("zero");
  await settled();
  expect([get("process 1"), drawn, asked]).toEqual(["one", 1, ["process 0", "process 1"]]);
  expect(get("process 0"), "it is read again, or from the page's cache").toBe(null);
});

test("a process is compared with that of its rank, else with that of its place", () => {
  const run = (ranks: (number | null)[]) => ({ report: { processes: ranks.map((rank) => ({ rank })) } });
  const facts = (...runs: (number | null)[][]) => ({ runs: runs.map(run) }) as unknown as Facts;
  expect([0, 1, 2].map((n) => counterpart(facts([0, 1, 2], [2, 0]), 1, n))).toEqual([1, null, 0]);
  expect([0, 1, 2].map((n) => counterpart(facts([null, null, null], [null, null]), 1, n))).toEqual([0, 1, null]);
  expect(counterpart(facts([3], [null]), 1, 0)).toBe(null);
});

test("a device is compared with that of its ordinal", () => {
  const devices = (...all: number[]) => all.map((device) => ({ device }));
  expect(sameDevice(1, 2, devices(0, 1))).toEqual({ device: 1 });
  expect(sameDevice(2, 2, devices(0, 1))).toBe(null);
  expect(sameDevice(3, 1, devices(0))).toEqual({ device: 0 });
  expect(sameDevice(3, 1, devices(0, 1))).toBe(null);
});
