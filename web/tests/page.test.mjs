// The page in a real browser: what is drawn, what is printed, and that nothing is loaded from a network.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { after, before, test } from "node:test";
import { json, launch, open, page, pages, probe, settled, trace, visited, vramtrace } from "./browser.mjs";

let browser;
before(async () => {
  browser = await launch();
});
after(() => browser.close());
const look = (file, options, visit) => visited(browser, file, options, visit);

const TABS = ["who", "blocks", "map", "allocations", "advice", "ranks", "facts"];

test("out of memory: verdict, fix and holders stand on the first screen", async () => {
  const printed = vramtrace("report", trace("oom.vtrace"));
  await look(page("oom", ["oom.vtrace"]), {}, async (tab) => {
    const words = await tab.locator(".verdict").innerText();
    const shown = words.replace(/\s+/g, " ");
    for (const label of ["OUT OF MEMORY", "why", "try"]) {
      const text = new RegExp(`^ *${label} +(.*?)(?: +\\(replayed.*)?$`, "m").exec(printed)[1];
      assert.ok(shown.includes(text), `${words}\n\n${text}`);
    }
    for (const part of [".verdict", ".largest", ".timeline canvas", "nav"]) {
      const box = await tab.locator(part).boundingBox();
      assert.ok(box.y + box.height <= 800, `${part} is below the first screen: ${JSON.stringify(box)}`);
    }
    assert.equal(await tab.locator(".largest li").count(), Math.min(5, json("holders", trace("oom.vtrace")).holders.length));
    assert.equal(await tab.evaluate(() => document.documentElement.scrollWidth <= innerWidth), true);
  });
});

test("the drawn height is the figure, within a pixel", async () => {
  await look(page("height", ["after.vtrace"]), {}, async (tab) => {
    for (const part of [0.1, 0.37, 0.61, 0.93]) {
      const found = await tab.evaluate((part) => {
        const app = window.vramtrace;
        const { last } = app.probe();
        const canvas = document.querySelector(".timeline canvas");
        app.store.set({ pin: Math.floor(last * part), view: null });
        app.timeline.draw();
        const { columns } = app.timeline;
        const { drawn } = app.probe();
        const step = (canvas.clientWidth - 74 - 12) / columns.length;
        // Beside the pin's line, where the height is the same for a few pixels.
        let c = Math.max(2, Math.floor((drawn.x - 74) / step) - 4);
        const flat = (n) => [-2, -1, 1, 2].every((by) => columns[n + by]?.top === columns[n].top);
        while (c > 2 && !flat(c)) c--;
        const x = Math.floor(74 + (c + 0.5) * step);
        const { data } = canvas.getContext("2d").getImageData(x, 0, 1, canvas.height);
        // From above, the first pixel that is no background and no line of the grid.
        const light = (y) => data[4 * y] > 205 && Math.abs(data[4 * y] - data[4 * y + 1]) < 15;
        let y = 0;
        while (y < canvas.height && (data[4 * y + 3] < 128 || light(y))) y++;
        const scale = (drawn.bottom - 10) / drawn.high;
        return { seen: y, wanted: drawn.bottom - columns[c].top * scale, flat: flat(c) };
      }, part);
      assert.ok(found.flat && Math.abs(found.seen + 0.5 - found.wanted) <= 1, JSON.stringify(found));
    }
  });
});

/** Bytes as the page and the command write them. */
function size(bytes) {
  const power = bytes < 1024 ? 0 : Math.min(3, Math.floor(Math.log2(bytes) / 10));
  return power === 0 ? `${bytes} B` : `${(bytes / 1024 ** power).toFixed(2)} ${["B", "KiB", "MiB", "GiB"][power]}`;
}

test("six questions: holder, fix and cause without a click; rank, nvidia-smi and leak with one; two steps with two", async () => {
  const recorded = trace("recorded.vtrace");
  const printed = vramtrace("report", recorded);
  await look(page("seven", ["recorded.vtrace"]), {}, async (tab) => {
    // 1. Who held most at the failure? No click.
    const largest = json("oom", recorded).ooms.at(-1).post_mortem.holders[0];
    const first = tab.locator(".largest li").first();
    assert.equal(Number(await first.getAttribute("data-bytes")), largest.bytes);
    assert.ok((await first.innerText()).includes(largest.frames[largest.lead].function));
    // 2. What is the fix? No click.
    const [, fix] = /^ *try +(\S+)/m.exec(printed);
    assert.equal(await tab.locator(".verdict .fix code").innerText(), `export ${fix}`);
    // 3. What of nvidia-smi's figure is not PyTorch's? One click.
    await tab.keyboard.press("p");
    await tab.locator("nav .tab", { hasText: "Facts" }).click();
    await settled(tab);
    const at = json("report", recorded, "--at", "peak").processes[0].devices[0];
    const row = tab.locator(".facts tr", { hasText: "in nvidia-smi beyond PyTorch's reserved" });
    assert.equal(await row.locator("td").innerText(), size(at.process_bytes - at.torch.reserved_bytes));
  });
  // 4. Which rank stands out? One click.
  await look(page("seven-ranks", ["ranks"]), {}, async (tab) => {
    await tab.locator("nav .tab", { hasText: "Ranks" }).click();
    await tab.locator(".ranks tr.odd").waitFor();
    assert.match(await tab.locator(".ranks tr.odd").innerText(), /rank 2[^;]*\+700\.00 MiB[^;]*train\.py \+700\.00 MiB\s/);
    assert.equal(await tab.locator(".ranks tr.odd").count(), 1);
  });
  // 5. Which line grows? One click.
  await look(page("seven-leak", ["leak.vtrace"]), {}, async (tab) => {
    await tab.locator("nav .tab", { hasText: "Advice" }).click();
    await settled(tab);
    assert.match(await tab.locator(".advice .leak").first().innerText(), /data\.py:12 load[\s\S]*growing/);
  });
  // 6. What grew between two steps? Two clicks.
  await look(page("seven-steps", ["phases.vtrace"]), {}, async (tab) => {
    const box = await tab.locator(".timeline canvas").boundingBox();
    const click = async (step, shift) => {
      const x = box.x + 74 + ((box.width - 74 - 12) * (step * 100 + 45)) / 595; // The last event is at 595 ms.
      const y = box.y + box.height - 22 - 2 * 13 + 10;
      if (shift) await tab.keyboard.down("Shift");
      await tab.mouse.click(x, y);
      if (shift) await tab.keyboard.up("Shift");
      await settled(tab);
    };
    await click(1, false);
    await click(4, true);
    // 41 and 44 MiB beside 20, in pages of 2 MiB.
    assert.match(await tab.locator(".status").innerText(), /^0\.450000 s[\s\S]*range 0\.101 s[\s\S]*second range \+2\.00 MiB allocated/);
  });
});

test("brush, pin, second range, keys and the link", async () => {
  await look(page("brush", ["after.vtrace"]), {}, async (tab) => {
    const box = await tab.locator(".timeline canvas").boundingBox();
    const drag = async (from, to) => {
      await tab.mouse.move(box.x + from, box.y + 60);
      await tab.mouse.down();
      await tab.mouse.move(box.x + (from + to) / 2, box.y + 60);
      await tab.mouse.move(box.x + to, box.y + 60);
      await tab.mouse.up();
      await settled(tab);
    };
    const state = () => tab.evaluate(() => window.vramtrace.store.state);
    await drag(200, 400);
    const brushed = await state();
    assert.ok(brushed.range[0] < brushed.range[1] && brushed.pin !== null);
    await tab.keyboard.down("Shift");
    await drag(600, 800);
    await tab.keyboard.up("Shift");
    assert.ok((await state()).second[0] > brushed.range[1]);
    assert.match(await tab.locator(".status").innerText(), /second range [+-]?/);
    await tab.waitForTimeout(250);
    const hash = await tab.evaluate(() => location.hash);
    await tab.keyboard.press("Escape");
    assert.equal((await state()).range, null);
    await tab.mouse.click(box.x + 500, box.y + 80);
    const { pin } = await state();
    await tab.keyboard.press("ArrowRight");
    assert.equal((await state()).pin, pin + 1);
    await tab.keyboard.press("+");
    assert.ok((await state()).view[1] - (await state()).view[0] > 0);
    await tab.keyboard.press("0");
    assert.equal((await state()).view, null);
    await tab.keyboard.press("p");
    assert.equal((await probe(tab)).ordinal, (await probe(tab)).peak);
    const again = await open(browser, `${pages}/brush.html`, { hash });
    assert.deepEqual((await again.tab.evaluate(() => window.vramtrace.store.state)).range.map(Math.round), brushed.range.map(Math.round));
    await again.close();
  });
});

test("roles: known in a recorded training, stacked, listed and filtered by", async () => {
  await look(page("roles", ["gpt2.vtrace"]), {}, async (tab) => {
    await tab.locator(".switches .switch.chosen", { hasText: "role" }).waitFor();
    const legend = await tab.locator(".legend").innerText();
    for (const role of ["weights", "gradients", "optimizer state", "activations"]) assert.ok(legend.includes(role), legend);
    assert.match(await tab.locator(".who-view tbody").innerText(), /optimizer state/);
    await tab.locator(".who-view .switches .switch", { hasText: "role" }).click();
    await settled(tab);
    await tab.locator(".who-view tbody tr", { hasText: "weights" }).click();
    await settled(tab);
    await tab.locator(".who-view .switches .switch", { hasText: "line" }).click();
    await settled(tab);
    const sum = await tab.locator(".who-view tbody tr").evaluateAll((all) => all.reduce((sum, row) => sum + Number(row.dataset.bytes), 0));
    const weights = json("holders", trace("gpt2.vtrace"), "--by", "role").holders.find((held) => held.role === "weights");
    assert.equal(sum, weights.bytes);
  });
});

test("filter, search and sort", async () => {
  await look(page("filter", ["oom.vtrace"]), {}, async (tab) => {
    const rows = tab.locator(".who-view tbody tr");
    const all = await rows.count();
    await tab.keyboard.press("/");
    await settled(tab);
    await tab.keyboard.type("mlp");
    await settled(tab);
    const found = await rows.allInnerTexts();
    assert.ok(found.length > 0 && found.length < all && found.every((text) => text.includes("mlp")), String(found));
    await tab.keyboard.press("Escape");
    await settled(tab);
    assert.equal(await rows.count(), all);
    await tab.getByRole("button", { name: /^blocks/ }).click();
    await settled(tab);
    const counts = await rows.evaluateAll((all) => all.map((row) => Number(row.dataset.count)));
    assert.deepEqual(counts, [...counts].sort((a, b) => b - a));
    await tab.locator(".largest li button").first().click();
    await settled(tab);
    assert.equal(await rows.count(), 1);
    await tab.locator("nav .filter").click();
    await settled(tab);
    assert.equal(await rows.count(), all);
  });
});

test("what sleeps is shown as such, in the table, the blocks and the map", async () => {
  const path = trace("sleeping.vtrace");
  const asleep = json("holders", path, "--at", "0.16").holders.reduce((sum, held) => sum + (held.paused_bytes ?? 0), 0);
  assert.equal(asleep, 64 * 2 ** 20);
  await look(page("sleeping", ["sleeping.vtrace"]), {}, async (tab) => {
    await tab.evaluate(() => window.vramtrace.store.set({ pin: window.vramtrace.probe().at(160e6) }));
    await settled(tab);
    const shown = await tab.locator(".who-view tbody tr, .who-view tfoot tr").evaluateAll((rows) => rows.reduce((sum, row) => sum + Number(row.dataset.paused), 0));
    assert.equal(shown, asleep);
    assert.match(await tab.locator(".who-view thead").innerText(), /asleep/);
    await tab.evaluate(() => window.vramtrace.store.set({ tab: "map" }));
    await settled(tab);
    // 40 MiB of segments; one of 24 is the program's own.
    assert.match(await tab.locator(".map").innerText(), /asleep 40\.00 MiB/);
    await tab.evaluate(() => window.vramtrace.store.set({ tab: "blocks" }));
    await settled(tab);
    const { pale, all } = await tab.evaluate(() => window.vramtrace.probe().painted());
    // Six blocks slept twice, less those that were freed meanwhile; nothing else is pale.
    assert.ok(pale === 12 && all > 20, `${pale} of ${all}`);
  });
});

test("hostile names are text", async () => {
  await look(page("hostile", ["hostile.vtrace"]), {}, async (tab) => {
    for (const name of TABS) {
      await tab.evaluate((tab) => window.vramtrace.store.set({ tab }), name);
      await settled(tab);
    }
    await tab.evaluate(() => window.vramtrace.store.set({ tab: "who", frames: true }));
    await settled(tab);
    const words = await tab.locator("body").innerText();
    assert.ok(words.includes("</script><script>window.hacked = 1</script>"));
    assert.ok(words.includes("constructor") && words.includes("__proto__"));
    // Text that turns the direction, and control characters, are not in what is shown.
    // eslint-disable-next-line no-control-regex
    assert.doesNotMatch(words, /[\u202a-\u202e\u0000-\u0008\u001b]/);
    assert.equal(await tab.locator("#app img, #app script, #app b").count(), 0);
    assert.equal(await tab.evaluate(() => document.documentElement.scrollWidth <= innerWidth + 1), true);
  });
});

test("names that are no UTF-8 are shown as the command shows them", async () => {
  const path = trace("invalid.vtrace");
  const [frame] = json("holders", path).holders[0].frames;
  assert.match(frame.function, /^broken_\ufffd+\(_function$/);
  const file = page("invalid", ["invalid.vtrace"]);
  new TextDecoder("utf-8", { fatal: true }).decode(readFileSync(file));
  await look(file, {}, async (tab) => {
    for (const one of TABS) {
      await tab.evaluate((tab) => window.vramtrace.store.set({ tab }), one);
      await settled(tab);
    }
    assert.equal(await tab.locator("header .command").innerText(), json("report", path).processes[0].command.join(" "));
    assert.ok((await tab.locator(".largest li").first().innerText()).includes(frame.function));
    await tab.evaluate(() => window.vramtrace.store.set({ tab: "who" }));
    await settled(tab);
    const row = await tab.locator(".who-view tbody tr").first().innerText();
    assert.ok(row.includes(frame.function) && row.includes(frame.file.split("/").at(-1)), row);
    const phases = await tab.evaluate(() => window.vramtrace.timeline.page.model.page.phases.names.map((one) => one[1]));
    assert.match(phases.join(), /^broken_\ufffd+\(_phase$/);
  });
});

for (const [name, words] of [
  ["empty.vtrace", /No GPU memory was used/],
  ["plain.vtrace", /no stacks/],
  ["damaged.vtrace", /damaged in \d+ place/],
  ["lost.vtrace", /(Events|events).*(missing|not in the trace)/],
  ["import.csv", /(no stacks|no times)/],
  ["leak.vtrace", /LEAK/],
]) {
  test(`${name} is shown, with a line for what is wrong with it`, async () => {
    await look(page(name.replace(".", "-"), [name]), {}, async (tab) => {
      assert.match(await tab.locator(".verdict").innerText(), words);
      for (const one of TABS) {
        await tab.evaluate((tab) => window.vramtrace.store.set({ tab }), one);
        await settled(tab);
      }
    });
  });
}

test("ranks: the odd one out is named", async () => {
  await look(page("ranks", ["ranks"]), { hash: "#tab=ranks" }, async (tab) => {
    await tab.locator(".multiples .u-wrap").nth(3).waitFor();
    assert.equal(await tab.locator(".multiple").count(), 4);
    const words = await tab.locator(".ranks").innerText();
    assert.match(words, /rank 2/);
    const odd = json("report", trace("ranks")).processes.map((process) => process.odd);
    assert.ok(odd[2], "the command names it");
    assert.ok(words.includes(odd[2].slice(0, 40)), words);
  });
});

test("dark, and narrow", async () => {
  await look(`${pages}/oom.html`, { dark: true, width: 420, height: 800 }, async (tab) => {
    assert.equal(await tab.evaluate(() => document.documentElement.scrollWidth <= innerWidth), true);
    const back = await tab.evaluate(() => getComputedStyle(document.body).backgroundColor);
    assert.match(back, /rgb\((\d{1,2}), (\d{1,2}), (\d{1,2})\)/);
  });
});
