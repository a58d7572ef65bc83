// What the tests in a real browser share: pages written by the command, opened without a network.

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { existsSync, mkdirSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath, pathToFileURL } from "node:url";
import { chromium } from "playwright-core";

const root = join(dirname(fileURLToPath(import.meta.url)), "../..");
export const command = process.env.VRAMTRACE ?? join(root, "target/debug/vramtrace");
export const traces = process.env.PAGE_TRACES ?? join(root, "target/page-traces");
export const pages = join(traces, "pages");
mkdirSync(pages, { recursive: true });

/** What the command prints. */
export function vramtrace(...args) {
  return execFileSync(command, args, { encoding: "utf8", maxBuffer: 1 << 28, stdio: ["ignore", "pipe", "pipe"] });
}

export function json(...args) {
  return JSON.parse(vramtrace(...args, "--json"));
}

/** Writes a page of traces in the directory of the tests. */
export function page(name, inputs, ...options) {
  const out = join(pages, `${name}.html`);
  const paths = inputs.map((input) => (input.startsWith("/") ? input : join(traces, input)));
  vramtrace("report", "--html", "--force", "-o", out, ...options, ...paths);
  return out;
}

export function trace(name) {
  return join(traces, name);
}

/** A trace of the command's own tests. */
export function golden(name) {
  return join(root, `tests/data/golden/${name}.vtrace.gz`);
}

export async function launch() {
  const paths = [process.env.CHROMIUM, "/usr/bin/chromium", "/usr/bin/chromium-browser"];
  const executablePath = paths.find((path) => path && existsSync(path));
  if (!executablePath) throw new Error("chromium is needed");
  return chromium.launch({
    executablePath,
    args: ["--no-sandbox", "--enable-unsafe-swiftshader", "--disable-dev-shm-usage"],
  });
}

/** A page with what went wrong in it, and what it asked of a network. */
export async function open(browser, file, { hash = "", dark = false, width = 1280, height = 800, setup } = {}) {
  const context = await browser.newContext({ viewport: { width, height }, colorScheme: dark ? "dark" : "light" });
  const tab = await context.newPage();
  const errors = [];
  const requests = [];
  tab.on("console", (message) => {
    if (["error", "warning"].includes(message.type()) && !/GPU stall|GL Driver|willReadFrequently/.test(message.text())) errors.push(message.text());
  });
  tab.on("pageerror", (error) => errors.push(String(error)));
  tab.on("request", (request) => requests.push(request.url()));
  if (setup) await tab.addInitScript(setup);
  await tab.goto(pathToFileURL(file).href + hash);
  await tab.waitForFunction(() => document.documentElement.dataset.ready, null, { timeout: 60000 });
  await settled(tab);
  return { tab, errors, requests, close: () => context.close() };
}

/** After the frames in which views draw. */
export async function settled(tab) {
  await tab.evaluate(() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done, 20)))));
}

export function probe(tab) {
  return tab.evaluate(() => window.vramtrace.probe());
}

/** Opens a page, looks, and then nothing may have gone wrong or out. */
export async function visited(browser, file, options, visit) {
  const shown = await open(browser, file, options);
  try {
    await visit(shown.tab);
    await settled(shown.tab);
    assert.deepEqual(shown.errors, []);
    assert.deepEqual(shown.requests.filter((url) => !url.startsWith("file:") && !url.startsWith("blob:")), []);
    assert.equal(shown.requests.filter((url) => url.startsWith("file:")).length, 1);
    assert.equal(await shown.tab.evaluate(() => window.hacked), undefined);
  } finally {
    await shown.close();
  }
}
