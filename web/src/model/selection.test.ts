import { expect, test } from "vitest";
import { Latest } from "./selection.ts";

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
