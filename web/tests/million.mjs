// A page of 1,000,000 blocks, and that of the recorded run: sizes, time to write, first paint, frames.

import assert from "node:assert/strict";
import { statSync } from "node:fs";
import { command, launch, open, page, probe } from "./browser.mjs";

const MB = 1e6;
const began = performance.now();
const file = page("million", ["million.vtrace"]);
const wrote = (performance.now() - began) / 1e3;
const bytes = statSync(file).size;
const recorded = statSync(page("recorded", ["recorded.vtrace"])).size;
console.log(`command     ${command}`);
console.log(`written in  ${wrote.toFixed(2)} s`);
console.log(`file        ${(bytes / MB).toFixed(1)} MB; of the recorded run ${(recorded / MB).toFixed(2)} MB`);

const browser = await launch();
const shown = await open(browser, file);
const { tab } = shown;
const times = await tab.evaluate(() => ({
  shown: performance.getEntriesByName("vramtrace-shown")[0].startTime,
  paint: performance.getEntriesByType("paint").map((entry) => [entry.name, entry.startTime]),
}));
const { blocks } = await probe(tab);
console.log(`blocks      ${blocks}`);
console.log(`first view  ${times.shown.toFixed(0)} ms after the address was opened; ${JSON.stringify(times.paint)}`);

/** Frames of a second in which something moves at each of them. */
async function frames(name, tabName, step) {
  await tab.evaluate((one) => window.vramtrace.store.set({ tab: one, view: null }), tabName);
  await tab.waitForTimeout(1500);
  const rate = await tab.evaluate(async (step) => {
    const { store, timeline } = window.vramtrace;
    const move = new Function("timeline", "store", "n", step);
    const times = [];
    for (let n = 0; n < 90; n++) {
      await new Promise((done) => requestAnimationFrame(done));
      move(timeline, store, n);
      times.push(performance.now());
    }
    const gaps = times.slice(1).map((time, n) => time - times[n]).sort((a, b) => a - b);
    return { mean: (1000 * gaps.length) / (times.at(-1) - times[0]), worst: gaps.at(-3) };
  }, step);
  console.log(`${name.padEnd(12)}${rate.mean.toFixed(0)} frames/s, the third slowest frame ${rate.worst.toFixed(0)} ms`);
  return rate.mean;
}
const zoom = "timeline.zoom(n % 60 < 30 ? 0.93 : 1.075, 1e9)";
const pan = "if (n === 0) timeline.zoom(0.3, 1e9); timeline.pan(n % 60 < 30 ? 0.01 : -0.01)";
const rates = [
  await frames("zoom", "who", zoom),
  await frames("pan", "who", pan),
  await frames("zoom blocks", "blocks", zoom),
  await frames("pan blocks", "blocks", pan),
];
await tab.evaluate(() => window.vramtrace.store.set({ tab: "blocks", view: null }));
await tab.waitForTimeout(1200);
console.log(`drawn by    ${await tab.locator(".blocks .bar-row .dim").last().innerText()}`);
assert.deepEqual(shown.errors, []);
await browser.close();
assert.ok(bytes <= 25 * MB, "the file is at most 25 MB");
assert.ok(recorded <= 1.5 * MB, "that of the recorded run is at most 1.5 MB");
if (process.env.PAGE_TIMES) {
  assert.ok(wrote <= 5 && times.shown < 2000 && Math.min(...rates) >= 30);
}
