// A page of 1,000,000 blocks, and that of the recorded run: sizes, the time to write it, the first view,
// frames. Times are taken PAGE_ROUNDS times; the best of each counts, as others may use the machine.

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { readFileSync, statSync } from "node:fs";
import { cpus, loadavg } from "node:os";
import { join } from "node:path";
import { command, launch, open, page, pages, probe, trace, vramtrace } from "./browser.mjs";

const MB = 1e6;
const rounds = Number(process.env.PAGE_ROUNDS ?? 3);
const loads = [];
const load = () => loads.push(loadavg()[0]);

/** Writes the page; the seconds that it took, and the most memory of the command, in MB. */
async function write(file) {
  const began = performance.now();
  const child = spawn(command, ["report", "--html", "--force", "-o", file, trace("million.vtrace")], { stdio: "ignore" });
  let most = 0;
  const watch = setInterval(() => {
    const status = /VmHWM:\s+(\d+) kB/.exec(tryRead(`/proc/${child.pid}/status`));
    if (status) most = Math.max(most, Number(status[1]) * 1024);
  }, 20);
  const status = await new Promise((done) => child.on("exit", done));
  clearInterval(watch);
  assert.equal(status, 0);
  return { seconds: (performance.now() - began) / 1e3, memory: most / MB };
}

function tryRead(path) {
  try {
    return readFileSync(path, "utf8");
  } catch {
    return "";
  }
}

/** Frames of a second in which something moves at each of them. */
async function frames(tab, tabName, step) {
  await tab.evaluate((one) => window.vramtrace.store.set({ tab: one, view: null }), tabName);
  await tab.waitForTimeout(1500);
  return tab.evaluate(async (step) => {
    const { store, timeline } = window.vramtrace;
    const move = new Function("timeline", "store", "n", step);
    const times = [];
    for (let n = 0; n < 90; n++) {
      await new Promise((done) => requestAnimationFrame(done));
      move(timeline, store, n);
      times.push(performance.now());
    }
    return (1000 * (times.length - 1)) / (times.at(-1) - times[0]);
  }, step);
}
const ZOOM = "timeline.zoom(n % 60 < 30 ? 0.93 : 1.075, 1e9)";
const PAN = "if (n === 0) timeline.zoom(0.3, 1e9); timeline.pan(n % 60 < 30 ? 0.01 : -0.01)";

/** Opens the page in a browser that has not seen it. */
async function look(file) {
  const browser = await launch();
  const { tab, errors, requests } = await open(browser, file);
  const first = await tab.evaluate(() => performance.getEntriesByName("vramtrace-shown")[0].startTime / 1e3);
  const { blocks } = await probe(tab);
  const moves = [];
  for (const name of ["who", "blocks"]) for (const step of [ZOOM, PAN]) moves.push(await frames(tab, name, step));
  await tab.evaluate(() => window.vramtrace.store.set({ tab: "blocks", view: null }));
  await tab.waitForTimeout(1200);
  assert.deepEqual(errors, []);
  const outside = requests.filter((url) => !url.startsWith("file:") && !url.startsWith("blob:"));
  await browser.close();
  return { first, blocks, moves, outside: outside.length };
}

const file = join(pages, "million.html");
const recorded = statSync(page("recorded", ["recorded.vtrace"])).size / MB;
const [wrote, looks] = [[], []];
for (let n = 0; n < rounds; n++) {
  load();
  wrote.push(await write(file));
  looks.push(await look(file));
}
load();
const bytes = statSync(file).size / MB;
const code = statSync(new URL("../dist/index.html", import.meta.url)).size / MB;
const best = {
  written: Math.min(...wrote.map((one) => one.seconds)),
  memory: Math.max(...wrote.map((one) => one.memory)),
  first: Math.min(...looks.map((one) => one.first)),
  moves: [0, 1, 2, 3].map((n) => Math.max(...looks.map((one) => one.moves[n]))),
  outside: Math.max(...looks.map((one) => one.outside)),
};
const { blocks } = looks[0];
const rate = (n) => best.moves[n].toFixed(0);
const events = JSON.parse(vramtrace("report", "--json", trace("million.vtrace"))).processes[0].events;
console.log(`${blocks.toLocaleString("en")} blocks, a trace of ${(statSync(trace("million.vtrace")).size / MB).toFixed(1)} MB, ${events?.toLocaleString("en")} events`);
console.log(`${new Date().toISOString().slice(0, 10)}; ${cpus().length} x ${cpus()[0].model}; load ${loads.map((one) => one.toFixed(1)).join(", ")}; the best of ${rounds}\n`);
const rows = [
  ["written in", `${best.written.toFixed(1)} s`, "5 s", best.written <= 5],
  ["memory of the command, the mapped trace in it", `${best.memory.toFixed(0)} MB`, "", true],
  ["file", `${bytes.toFixed(1)} MB`, "25 MB", bytes <= 25],
  ["code in it", `${code.toFixed(2)} MB`, "0.3 MB", code <= 0.3],
  ["first view", `${best.first.toFixed(1)} s`, "2 s", best.first < 2],
  ["zoom and pan, timeline", `${rate(0)} and ${rate(1)} frames/s`, "30", Math.min(best.moves[0], best.moves[1]) >= 30],
  ["zoom and pan, with all blocks", `${rate(2)} and ${rate(3)} frames/s`, "30", Math.min(best.moves[2], best.moves[3]) >= 30],
  ["requests that leave the page", String(best.outside), "0", best.outside === 0],
  ["page of the recorded run", `${recorded.toFixed(2)} MB`, "1.5 MB", recorded <= 1.5],
];
console.log("| | measured | limit |\n|---|---|---|");
for (const [name, value, limit, holds] of rows) console.log(`| ${name} | ${value} | ${limit} |${holds ? "" : " <-- missed"}`);
// Times are a matter of the machine: they fail where that is asked for.
const timed = ["written in", "first view", "zoom"];
const strict = (name) => Boolean(process.env.PAGE_TIMES) || !timed.some((one) => name.startsWith(one));
const missed = rows.filter(([name, , , holds]) => !holds && strict(name)).map(([name]) => name);
assert.deepEqual(missed, []);
