// How the page looks and is used: colours, themes, the wheel, what is chosen, and that nothing is cut off.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { launch, page, pages, settled, visited } from "./browser.mjs";

let browser;
before(async () => {
  browser = await launch();
  page("look", ["recorded.vtrace"]);
});
after(() => browser.close());
const file = `${pages}/look.html`;
const look = (options, visit, of = file) => visited(browser, of, options, visit);
const set = async (tab, change) => {
  await tab.evaluate((change) => window.vramtrace.store.set(change), change);
  await settled(tab);
};
/** Colours of a canvas, with how many pixels of it have each. */
const colours = (tab, selector) =>
  tab.locator(selector).evaluate((canvas) => {
    const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
    const all = {};
    for (let n = 0; n < data.length; n += 4) {
      if (data[n + 3] < 255) continue;
      const hex = `#${[0, 1, 2].map((at) => data[n + at].toString(16).padStart(2, "0")).join("")}`;
      all[hex] = (all[hex] ?? 0) + 1;
    }
    return all;
  });
const groups = (tab) => tab.evaluate(() => window.vramtrace.page.stack.groups.map(({ name, colour }) => [name, colour]));
const hex = (rgb) => `#${rgb.match(/\d+/g).slice(0, 3).map((part) => Number(part).toString(16).padStart(2, "0")).join("")}`;

test("one colour has one meaning: bars and table follow the stacking, the flame graph is neutral", async () => {
  await look({}, async (tab) => {
    for (const by of ["library", "role", "holder"]) {
      await set(tab, { by });
      const known = await groups(tab);
      const used = known.map(([, colour]) => colour);
      assert.equal(new Set(used).size, used.length, `${by}: two groups have one colour`);
      const shown = await tab.locator(".largest .bar, .who-view td .swatch").evaluateAll((all) => all.map((one) => one.style.background));
      assert.ok(shown.length > 8);
      for (const one of shown) assert.ok(used.includes(hex(one)), `${one} stands for nothing by ${by}`);
    }
    // The weights' line has the colour of the weights where roles are stacked.
    await set(tab, { by: "role" });
    const weights = Object.fromEntries(await groups(tab)).weights;
    const row = tab.locator(".who-view tbody tr", { hasText: "weights" }).first();
    assert.equal(hex(await row.locator(".swatch").first().evaluate((one) => one.style.background)), weights);
    const flame = await colours(tab, ".flame canvas");
    for (const [name, colour] of await groups(tab)) assert.ok((flame[colour] ?? 0) < 200, `${name}'s colour is in the flame graph`);
    const own = await tab.evaluate(() => getComputedStyle(document.documentElement).getPropertyValue("--own").trim());
    assert.ok(flame[own] > 2000, "the program's frames are accented");
    assert.equal(await tab.evaluate(() => window.vramtrace.facts.processes[0].frames.filter(([, , , , shown]) => shown === 2).length > 3), true);
  });
});

test("marks have no colour of the areas", async () => {
  await look({}, async (tab) => {
    const areas = new Set((await groups(tab)).map(([, colour]) => colour));
    const signs = await tab.locator(".legend .sign").evaluateAll((all) => all.map((one) => [one.textContent, getComputedStyle(one).color]));
    assert.ok(signs.length >= 1);
    assert.equal(new Set(signs.map(([sign]) => sign)).size, signs.length, "signs tell them apart");
    for (const [sign, colour] of signs) assert.ok(!areas.has(hex(colour)), `${sign} ${colour}`);
  });
});

test("dark: the free cache is dark, and no line of the grid lies over the data", async () => {
  await look({ dark: true }, async (tab) => {
    const free = Object.fromEntries(await groups(tab))["free in cache"];
    assert.ok([1, 3, 5].every((at) => parseInt(free.slice(at, at + 2), 16) < 90), free);
    assert.ok((await colours(tab, ".timeline canvas"))[free] > 5000);
  });
  for (const dark of [false, true]) {
    await look({ dark }, async (tab) => {
      // At the heights of the grid's lines, within the areas.
      const found = await tab.evaluate(() => {
        const canvas = document.querySelector(".timeline canvas");
        const grid = getComputedStyle(document.documentElement).getPropertyValue("--grid").trim();
        const { data, width } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
        const { columns, scale } = window.vramtrace.timeline;
        const { top, bottom } = scale.plot;
        let many = 0;
        for (let n = 0; n < columns.length; n++) {
          const x = Math.floor(74 + n + 0.5);
          for (let y = Math.ceil(scale.y(columns[n].top)) + 3; y < bottom; y++) {
            const at = 4 * (y * width + x);
            const hex = `#${[0, 1, 2].map((part) => data[at + part].toString(16).padStart(2, "0")).join("")}`;
            if (y > top && hex === grid) many++;
          }
        }
        return many;
      });
      assert.ok(found < 40, `${found} pixels of the grid`);
    });
  }
});

test("a clicked holder is a bold band of its own, in any stacking", async () => {
  await look({}, async (tab) => {
    const line = tab.locator(".largest li button").first();
    const held = Number(await tab.locator(".largest li").first().getAttribute("data-bytes"));
    await line.click();
    await settled(tab);
    for (const by of ["role", "library", "holder"]) {
      await set(tab, { by });
      const { names, bytes } = await tab.evaluate(() => window.vramtrace.probe().stack());
      assert.match(names[0], /activations\.py:66/, by);
      assert.equal(bytes[0], held, by);
      const chosen = await tab.evaluate(() => window.vramtrace.page.stack.groups[0].colour);
      assert.ok((await colours(tab, ".timeline canvas"))[chosen] > 1000, `${by}: the band is drawn`);
      assert.equal(hex(await line.locator(".bar").evaluate((one) => one.style.background)), chosen);
    }
    await tab.keyboard.press("Escape");
    await set(tab, { by: "role" });
    assert.doesNotMatch((await groups(tab))[0][0], /activations\.py/);
  });
});

test("the wheel scrolls the page, Ctrl and the wheel zoom; Escape clears all that was chosen", async () => {
  await look({ hash: "#tab=blocks" }, async (tab) => {
    const state = () => tab.evaluate(() => window.vramtrace.store.state);
    for (const part of [".timeline canvas", ".blocks canvas"]) {
      await tab.evaluate(() => window.scrollTo(0, 0));
      await tab.locator(part).hover({ position: { x: 500, y: 60 } });
      await tab.mouse.wheel(0, 120);
      await tab.waitForFunction(() => window.scrollY > 0);
      assert.equal((await state()).view, null, `${part}: the wheel alone zooms`);
      await tab.evaluate(() => window.scrollTo(0, 0));
      await tab.locator(part).hover({ position: { x: 500, y: 60 } });
      await tab.keyboard.down("Control");
      await tab.mouse.wheel(0, -120);
      await tab.keyboard.up("Control");
      await settled(tab);
      assert.notEqual((await state()).view, null, part);
      await set(tab, { view: null });
    }
    await set(tab, { pin: 5, range: [1e8, 2e8], second: [3e8, 4e8], search: "x", filter: { what: "role", name: "weights" } });
    await tab.keyboard.press("Escape");
    const { pin, range, second, search, filter } = await state();
    assert.deepEqual([pin, range, second, search, filter], [null, null, null, "", null]);
  });
});

test("whole run, peak and failure stand apart from the stackings, and say which is shown", async () => {
  await look({}, async (tab) => {
    assert.deepEqual(await tab.locator(".moments .switch").allInnerTexts(), ["whole run", "peak", "failure"]);
    assert.doesNotMatch(await tab.locator(".timeline .switches").first().innerText(), /peak|whole/);
    assert.deepEqual(await tab.locator(".moments .switch.chosen").allInnerTexts(), ["whole run", "failure"]);
    await tab.locator(".moments .switch", { hasText: "peak" }).click();
    await settled(tab);
    assert.deepEqual(await tab.locator(".moments .switch.chosen").allInnerTexts(), ["whole run", "peak"]);
    assert.match(await tab.locator(".status").innerText(), /^peak/);
    await tab.keyboard.press("f");
    await settled(tab);
    assert.match(await tab.locator(".status").innerText(), /^failure/);
  });
});

test("the allocated line is in the legend, and does not paint spikes black", async () => {
  await look({}, async (tab) => {
    assert.match(await tab.locator(".status").innerText(), /allocated 11\.01 GiB/);
    assert.equal(await tab.locator(".status .stroke.allocated").count(), 1);
    // Of the pixels of a spike's column, below its top, few are black.
    const black = await tab.evaluate(() => {
      const canvas = document.querySelector(".timeline canvas");
      const { timeline, page } = window.vramtrace;
      const { scale } = timeline;
      const { data, width } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
      const held = timeline.columns.map((column) => page.model.allocated.of(column.ordinal));
      const shares = [];
      for (let n = 2; n < held.length - 8; n++) {
        // Higher by 2 GiB than what is two columns beside it on both sides.
        if (held[n] - Math.max(held[n - 2], held[n + 2]) < 2 * 2 ** 30) continue;
        const x = Math.floor(74 + n + 0.5);
        const [from, to] = [scale.y(held[n]), scale.y(Math.max(held[n - 2], held[n + 2]))].map(Math.round);
        let many = 0;
        for (let y = from + 3; y < to; y++) {
          const at = 4 * (y * width + x);
          if (data[at] + data[at + 1] + data[at + 2] < 150) many++;
        }
        shares.push(many / (to - from - 3));
      }
      return shares;
    });
    assert.ok(black.length > 2, `${black.length} spikes`);
    assert.ok(Math.max(...black) < 0.2, black.join());
  });
});

test("the map is sorted by free bytes and to scale", async () => {
  await look({ hash: "#tab=map" }, async (tab) => {
    const rows = await tab.evaluate(() => window.vramtrace.probe().map().map(({ bytes, free, width }) => [bytes, free, width]));
    assert.ok(rows.length > 50);
    const free = rows.map(([, one]) => one);
    assert.deepEqual(free, [...free].sort((a, b) => b - a));
    const scales = rows.filter(([, , width]) => width > 8).map(([bytes, , width]) => bytes / width);
    assert.ok(Math.max(...scales) / Math.min(...scales) < 1.01, "one scale");
  });
});

test("blocks are compact: the picture is as high as what is allocated, without holes", async () => {
  await look({ hash: "#tab=blocks" }, async (tab) => {
    const { highest, most, holes } = await tab.evaluate(() => {
      const { allocated, last } = window.vramtrace.page.model;
      const canvas = document.querySelector(".blocks canvas");
      const { data, width } = canvas.getContext("2d").getImageData(0, 0, canvas.width, 400);
      let holes = 0;
      for (let x = 80; x < width - 14; x += 7) {
        let drawn = false;
        for (let y = 0; y < 399; y++) {
          const here = data[4 * (y * width + x) + 3] > 40;
          if (drawn && !here) holes++;
          drawn = here;
        }
      }
      return { highest: window.vramtrace.probe().painted().highest, most: allocated.of(allocated.highest(0, last)), holes };
    });
    assert.equal(highest, most);
    assert.equal(holes, 0);
  });
});

test("rows of 0 B are hidden, and shown when asked for", async () => {
  await look({}, async (tab) => {
    const bytes = () => tab.locator(".who-view tbody tr").evaluateAll((all) => all.map((row) => Number(row.dataset.bytes) + Number(row.dataset.paused)));
    const some = await bytes();
    assert.ok(some.every((one) => one > 0));
    await tab.locator(".who-view .switch", { hasText: /show \d+ lines that hold nothing/ }).click();
    await settled(tab);
    assert.ok((await bytes()).length > some.length);
    for (const text of await tab.locator(".legend .key").allInnerTexts()) assert.doesNotMatch(text, / 0 B/);
  });
});

test("nothing is cut off: legend, focus, tables at 500 and 1280", async () => {
  for (const width of [500, 1280]) {
    for (const name of ["who", "blocks", "map", "allocations", "advice", "facts"]) {
      await look({ width, hash: `#tab=${name}` }, async (tab) => {
        assert.equal(await tab.evaluate(() => document.documentElement.scrollWidth <= innerWidth), true, `${name} at ${width}`);
        const cut = await tab.evaluate(() => [...document.querySelectorAll(".legend, .table, header, .strip, .status")].filter((one) => one.offsetParent && (one.scrollWidth > one.clientWidth + 1 || one.scrollHeight > one.clientHeight + 1)).map((one) => `${one.className} ${one.scrollWidth}>${one.clientWidth} ${one.scrollHeight}>${one.clientHeight}`));
        assert.deepEqual(cut, [], `${name} at ${width}`);
      });
    }
  }
  // A focus ring lies within its element: what is around clips it.
  await look({}, async (tab) => {
    const rings = new Set();
    for (let n = 0; n < 30; n++) {
      await tab.keyboard.press("Tab");
      rings.add(await tab.evaluate(() => {
        const { outlineStyle, outlineOffset, outlineWidth } = getComputedStyle(document.activeElement);
        return outlineStyle === "solid" && parseFloat(outlineOffset) <= -parseFloat(outlineWidth);
      }));
    }
    assert.deepEqual([...rings], [true]);
  });
});

test("ranks of runs hours apart are drawn from their own beginnings", async () => {
  await look({ hash: "#tab=ranks" }, async (tab) => {
    await tab.locator(".multiples .u-wrap").nth(1).waitFor();
    assert.match(await tab.locator(".ranks").innerText(), /did not run at the same time/);
  }, page("apart", ["gpt2.vtrace", "recorded.vtrace"]));
});
