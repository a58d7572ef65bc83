// Every figure on the page is the command's for the same moment.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { json, launch, page, probe, settled, trace, visited } from "./browser.mjs";

let browser;
before(async () => void (browser = await launch()));
after(() => browser.close());
const look = (file, options, visit) => visited(browser, file, options, visit);

// The last three are recorded on a GPU: training, gradient accumulation, generation.
const FIGURES = ["gpt2.vtrace", "accum.vtrace", "gen.vtrace"];
for (const name of [...FIGURES, "oom.vtrace", "driver.vtrace", "phases.vtrace", "after.vtrace", "plain.vtrace", "sleeping.vtrace"]) {
  test(`${name}: every figure is the command's at the peak, at the end and in between`, async () => {
    const path = trace(name);
    const facts = json("report", path).processes[0];
    await look(page(`figures-${name}`, [name]), {}, async (tab) => {
      const rows = () =>
        tab.locator(".who-view tbody tr, .who-view tfoot tr").evaluateAll((all) => all.map((row) => ["bytes", "count", "paused"].map((one) => Number(row.dataset[one]))).filter(([bytes, , paused]) => bytes + paused > 0));
      const roles = (held) => Object.fromEntries(held.filter(({ bytes }) => bytes > 0).map(({ role, bytes, count }) => [role, [bytes, count]]));
      const sorted = (all) => all.sort((a, b) => b[0] - a[0] || b[1] - a[1] || b[2] - a[2]);
      const same = async (at, words) => {
        let expected = [];
        try {
          expected = json("holders", path, "--at", at).holders.map((held) => [held.bytes, held.count, held.paused_bytes ?? 0]);
        } catch (error) {
          // A trace without stacks has no holders.
          assert.match(String(error.stderr), /no stacks/);
          return;
        }
        assert.deepEqual(sorted(await rows()), sorted(expected.filter(([bytes, , paused]) => bytes + paused > 0)), `${name} ${words}`);
        const byRole = json("holders", path, "--by", "role", "--at", at).holders;
        await tab.evaluate(() => window.vramtrace.store.set({ list: "role", by: "role" }));
        await settled(tab);
        const listed = await tab.locator(".who-view tbody tr, .who-view tfoot tr").evaluateAll((all) => all.map(({ dataset: { name, bytes, count } }) => ({ role: name, bytes: Number(bytes), count: Number(count) })));
        assert.deepEqual(roles(listed), roles(byRole), `${name} by role ${words}`);
        const { names, bytes } = await tab.evaluate(() => window.vramtrace.probe().stack());
        for (const { role, bytes: held } of byRole) {
          if (role !== "free in cache" && held > 0) assert.equal(bytes[names.indexOf(role)], held, `${name}: ${role} in the stack ${words}`);
        }
        await tab.evaluate(() => window.vramtrace.store.set({ list: "line", by: null }));
        await settled(tab);
      };
      await tab.evaluate(() => window.vramtrace.store.set({ pin: window.vramtrace.probe().peak }));
      await settled(tab);
      await same("peak", "at the peak");
      const device = facts.devices.find((one) => one.peak_bytes > 0);
      const { total } = await probe(tab);
      const top = await tab.evaluate(() => { const { model } = window.vramtrace.page; return model.top(model.peak); });
      assert.equal(top, device.in_use_at_peak.headline_bytes, `${name}: the headline`);
      if (name !== "plain.vtrace") {
        const sum = json("holders", path).holders.filter((held) => held.device === device.device).reduce((all, held) => all + held.bytes, 0);
        assert.equal(total, sum);
      }
      const status = tab.locator(".timeline .status");
      for (const part of [0.25, 0.5, 0.9, 1]) {
        const seconds = (facts.duration_s * part).toFixed(4);
        await tab.evaluate((ns) => window.vramtrace.store.set({ pin: window.vramtrace.probe().at(ns) }), Math.floor(Number(seconds) * 1e9));
        await settled(tab);
        await same(seconds, `at ${seconds}`);
        const at = json("report", path, "--at", seconds).processes[0].devices.find((one) => one.device === device.device);
        const shown = Number(await status.getAttribute("data-top"));
        assert.equal(shown, at.process_bytes ?? at.live_bytes + at.context_bytes, `nvidia-smi's figure at ${seconds}`);
      }
    });
  });
}
