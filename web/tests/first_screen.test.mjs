// One truth at one moment: what the first screen says, and that other views say the same.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { createServer } from "node:http";
import { after, before, test } from "node:test";
import { golden, json, launch, open, page, pages, settled, trace, visited, vramtrace } from "./browser.mjs";

let browser;
before(async () => {
  browser = await launch();
});
after(() => browser.close());
const look = (file, options, visit) => visited(browser, file, options, visit);

const GIB = 2 ** 30;
const model = (tab, read) => tab.evaluate(`(() => { const model = window.vramtrace.page.model; return (${read})(model); })()`);
/** `1.31 GiB` as bytes. */
const bytes = (text) => {
  const [, number, unit] = /(-?[\d.]+) ([KMGT]i)?B/.exec(text);
  return Number(number) * 1024 ** ["", "Ki", "Mi", "Gi", "Ti"].indexOf(unit ?? "");
};
const failureOf = (path) => json("oom", path).ooms.at(-1);

test("the failure is pinned, and its figures are those of `oom` in the verdict, the holders and the timeline", async () => {
  const path = trace("recorded.vtrace");
  const { post_mortem: truth, size_bytes: asked } = failureOf(path);
  await look(page("failure", ["recorded.vtrace"]), {}, async (tab) => {
    const [pinned, failed, peak] = await tab.evaluate(() => [window.vramtrace.page.ordinal, window.vramtrace.page.model.failed, window.vramtrace.page.model.peak]);
    assert.equal(pinned, failed);
    assert.notEqual(pinned, peak);
    assert.equal(Number(await tab.locator(".verdict .used").getAttribute("data-bytes")), truth.used_bytes);
    assert.equal(Number(await tab.locator(".status").getAttribute("data-top")), truth.used_bytes);
    const parts = await tab.locator(".verdict .used-bar .part:not(.asked)").evaluateAll((all) => all.map((one) => Number(one.dataset.bytes)));
    assert.equal(parts.length, 4);
    assert.equal(parts.reduce((sum, one) => sum + one, 0), truth.used_bytes);
    const part = (what) => truth.used.find((one) => one.what === what).bytes;
    assert.deepEqual(parts.slice(0, 3), [part("tensors"), part("torch_cache"), part("context")]);
    assert.equal(Number(await tab.locator(".largest .free").getAttribute("data-bytes")), truth.torch.free_in_segments_bytes);
    const held = await tab.locator(".largest li").evaluateAll((all) => all.map((one) => Number(one.dataset.bytes)));
    const holders = truth.holders.filter((one) => one.frames[0]?.function !== "free in cache");
    assert.deepEqual(held, holders.slice(0, 5).map((one) => one.bytes));
    const words = await tab.locator(".verdict").innerText();
    assert.ok(words.includes(`${(asked / GIB).toFixed(2)} GiB asked by LogSoftmaxBackward0`), words);
    assert.match(await tab.locator(".largest h2").innerText(), /at the failure/);
    assert.match(words, /13\.24 GiB counted by the cap of 14\.44 GiB/);
  });
});

test("a refused call of the driver is a failure, too: pinned, marked, with the whole memory as allocated", async () => {
  const path = trace("refused.vtrace");
  const { post_mortem: truth } = failureOf(path);
  await look(page("refused", ["refused.vtrace"]), {}, async (tab) => {
    assert.equal(await tab.title(), "OOM, train.py");
    const { ordinal, failed, marks } = await tab.evaluate(() => {
      const { page } = window.vramtrace;
      return { ordinal: page.ordinal, failed: page.model.failed, marks: page.model.marks.map(({ what, ordinal }) => [what, ordinal]) };
    });
    assert.equal(ordinal, failed);
    assert.deepEqual(marks, [["oom", failed]]);
    assert.match(await tab.locator(".legend").innerText(), /out of memory/);
    assert.equal(Number(await tab.locator(".verdict .used").getAttribute("data-bytes")), truth.used_bytes);
    assert.equal(Number(await tab.locator(".verdict .part.tensors").first().getAttribute("data-bytes")), 400 * 2 ** 20);
  });
});

test("verdict, five holders and the timeline are seen at 1280 x 800 without scrolling", async () => {
  for (const name of ["recorded.vtrace", "gen.vtrace", "leak.vtrace", "ranks"]) {
    await look(page(`first-${name}`, [name]), {}, async (tab) => {
      for (const part of [".verdict", ".largest", ".timeline canvas", ".legend", "nav"]) {
        const box = await tab.locator(part).boundingBox();
        assert.ok(box.y + box.height <= 800, `${name}: ${part} ends at ${box.y + box.height}`);
      }
      assert.ok((await tab.locator(".timeline canvas").boundingBox()).height >= 170);
    });
  }
});

test("one thing to try in the verdict, with its copy; the others under Advice, none twice", async () => {
  const truth = failureOf(trace("recorded.vtrace")).post_mortem;
  await look(`${pages}/failure.html`, {}, async (tab) => {
    const words = await tab.locator(".verdict").innerText();
    assert.equal(await tab.locator(".verdict .copy").count(), 1);
    assert.doesNotMatch(words, /WHAT IF|would need/);
    await tab.locator(".verdict .link").click();
    await settled(tab);
    assert.equal(await tab.locator(".advice .tries li").count(), truth.advice.length);
  });
});

test("Advice says which batch fits where marks name two batches, as `fits` does, and nothing of it else", async () => {
  const two = ["gpt2_b4.vtrace", "gpt2_b6.vtrace"];
  const truth = json("fits", ...two.map(trace));
  await look(page("batches", two), { hash: "#tab=advice" }, async (tab) => {
    const part = tab.locator(".advice .fitting");
    assert.equal(await part.locator("strong").innerText(), vramtrace("fits", "--short", ...two.map(trace)).trim());
    const rows = await part.locator("tbody tr").evaluateAll((all) => all.map((row) => [...row.cells].map((cell) => cell.textContent)));
    assert.equal(rows.length, 2);
    truth.settings.forEach(({ conf, fits, does_not_fit: fails }, n) => {
      assert.ok(rows[n][0].startsWith(conf), rows[n][0]);
      assert.deepEqual([rows[n][1], rows[n][3]], [String(fits), String(fails)]);
    });
    assert.match(await part.innerText(), /gpt2_b6\.vtrace: batch 6, reserved 6\.79 GiB at its peak/);
    assert.match(await tab.locator(".advice").innerText(), /Which batch fits/);
  });
  await look(page("one-batch", two.slice(1)), { hash: "#tab=advice" }, async (tab) => {
    assert.equal(await tab.locator(".advice .fitting").count(), 0);
  });
});

test("the map is that of `frag --at oom`", async () => {
  const [truth] = json("frag", trace("recorded.vtrace"), "--at", "oom").devices;
  await look(`${pages}/failure.html`, { hash: "#tab=map" }, async (tab) => {
    const words = await tab.locator(".map").innerText();
    const found = /(\d+) segments, ([^,]+), .*free ([^,]+), of which (.*) can be given back/.exec(words);
    assert.equal(Number(found[1]), truth.segments);
    for (const [text, wanted] of [[found[2], truth.reserved_bytes], [found[3], truth.free_in_segments_bytes], [found[4], truth.releasable_bytes]]) {
      assert.ok(Math.abs(bytes(text) - wanted) < 0.006 * GIB, `${text} for ${wanted}`);
    }
    assert.match(words, /of which 0 B can be given back/);
  });
});

test("what is free in the cache is no holder: it has its own bar, and nothing else names it", async () => {
  await look(page("free", ["gen.vtrace"]), {}, async (tab) => {
    assert.match(await tab.locator(".largest .free").innerText(), /602\.81 MiB\s+31\.2 %\s+free in cache/);
    assert.match(await tab.locator(".verdict-row", { hasText: "HOLDER" }).innerText(), /%: modeling_utils\.py:3645 PreTrainedModel/);
    for (const part of [".verdict-row:has-text('HOLDER')", ".largest ol", ".who-view tbody"]) {
      assert.doesNotMatch(await tab.locator(part).innerText(), /free/, part);
    }
    assert.match(await tab.locator(".who-view tfoot").innerText(), /free in cache/);
  });
});

test("a range pins the moment at which most is allocated, and two ranges are compared by it", async () => {
  await look(page("ranges", ["gpt2.vtrace"]), {}, async (tab) => {
    const most = (from, to) => tab.evaluate(([from, to]) => {
      const { allocated } = window.vramtrace.page.model;
      let best = from;
      for (let n = from; n <= to; n++) if (allocated.held(n) > allocated.held(best)) best = n;
      return [best, allocated.held(best)];
    }, [from, to]);
    const box = await tab.locator(".timeline canvas").boundingBox();
    const drag = async (from, to) => {
      await tab.mouse.move(box.x + from, box.y + 60);
      await tab.mouse.down();
      await tab.mouse.move(box.x + (from + to) / 2, box.y + 60);
      await tab.mouse.move(box.x + to, box.y + 60);
      await tab.mouse.up();
      await settled(tab);
      return tab.evaluate(() => window.vramtrace.store.state);
    };
    const state = await drag(640, 800);
    const ends = await tab.evaluate((range) => range.map((ns) => window.vramtrace.page.model.at(ns)), state.range);
    const [, wanted] = await most(...ends);
    assert.equal(await model(tab, `(model) => model.allocated.held(${state.pin})`), wanted);
    await tab.keyboard.down("Shift");
    const { second } = await drag(300, 560);
    await tab.keyboard.up("Shift");
    const [, other] = await most(...(await tab.evaluate((range) => range.map((ns) => window.vramtrace.page.model.at(ns)), second)));
    assert.notEqual(other, wanted);
    const shown = bytes(/second range \+?(.*) allocated/.exec(await tab.locator(".status").innerText())[1]);
    assert.ok(Math.abs(shown - (other - wanted)) <= 0.006 * GIB, `${shown} for ${other - wanted}`);
  });
});

test("a click on a step pins what is allocated at most in it, not a plateau of the cache; two steps are compared by it", async () => {
  const truth = json("report", trace("gpt2.vtrace"), "--by", "step").processes[0].steps.steps.map(({ number, devices }) => ({ number, ...devices[0] }));
  assert.equal(truth.length, 5);
  await look(page("steps", ["gpt2.vtrace"]), {}, async (tab) => {
    const click = async (number, shift) => {
      const [x, y] = await tab.evaluate((number) => {
        const { timeline, page } = window.vramtrace;
        const { begin_s: from, end_s: to } = page.model.page.steps.find((one) => one.number === number);
        const at = ((from + to) / 2) * 1e9;
        const { plot } = timeline.scale;
        return [timeline.scale.x(at), plot.bottom + 6];
      }, number);
      const box = await tab.locator(".timeline canvas").boundingBox();
      if (shift) await tab.keyboard.down("Shift");
      await tab.mouse.click(box.x + x, box.y + y);
      if (shift) await tab.keyboard.up("Shift");
      await settled(tab);
    };
    for (const { number, peak_bytes: most } of truth) {
      await click(number, false);
      assert.equal(await tab.evaluate(() => window.vramtrace.page.model.allocated.of(window.vramtrace.page.ordinal)), most, `step ${number}`);
    }
    await click(3, false);
    await click(4, true);
    const difference = async () => bytes(/second range \+?(.*) allocated/.exec(await tab.locator(".status").innerText())[1]);
    assert.equal(await difference(), 0);
    await click(1, true);
    // Step 1 has no optimizer state yet, the cache keeps growing until step 2.
    const [first, , third] = truth.map((step) => step.peak_bytes);
    const found = await difference();
    assert.ok(found < 0 && Math.abs(found - (first - third)) < 0.1 * GIB, `${found} for ${first - third}`);
  });
});

test("allocated is PyTorch's figure, and the words are the same in the status and the verdict", async () => {
  const path = trace("gen.vtrace");
  await look(`${pages}/free.html`, {}, async (tab) => {
    const at = json("report", path, "--at", "peak").processes[0].devices[0];
    const status = await tab.locator(".status").innerText();
    const mib = (n) => `${(n / 2 ** 20).toFixed(2)} MiB`;
    assert.ok(status.includes(`allocated ${mib(at.torch.allocated_bytes)}`), status);
    const words = await tab.locator(".verdict").innerText();
    assert.ok(words.includes(`allocated ${mib(at.torch.allocated_bytes)}`), words);
    assert.match(words, /in nvidia-smi/);
    const highest = json("report", path).processes[0].devices[0].torch.peak_allocated_bytes;
    assert.ok(words.includes(`allocated ${(highest / GIB).toFixed(2)} GiB at`), words);
  });
});

test("a healthy run has no invented problem", async () => {
  for (const name of ["gpt2.vtrace", "gen.vtrace"]) {
    await look(page(`healthy-${name}`, [name]), {}, async (tab) => {
      assert.equal(await tab.locator(".verdict").getAttribute("data-tone"), "good");
      assert.equal(await tab.locator(".warning").count(), 0);
      assert.doesNotMatch(await tab.locator("body").innerText(), /OUT OF MEMORY|LEAK|TRY/);
      assert.equal(await tab.locator(".moments .switch", { hasText: "failure" }).count(), 0);
    });
  }
});

test("the verdict says how a run ended that did not fail", async () => {
  await look(`${pages}/healthy-gpt2.vtrace.html`, {}, async (tab) => {
    assert.equal(await tab.locator(".verdict-row", { hasText: "ENDED" }).innerText(), "ENDED\nin order, no leak, no request refused");
  });
  await look(page("killed", [golden("killed")]), {}, async (tab) => {
    assert.match(await tab.locator(".verdict-row", { hasText: "ENDED" }).innerText(), /its end was not recorded; at 0\.001 s 108\.00 MiB were live/);
    assert.match(await tab.locator("header .end.bad").innerText(), /in a way that was not recorded/);
  });
  await look(page("refusals", [golden("capped")]), {}, async (tab) => {
    assert.match(await tab.locator(".verdict-row", { hasText: "ENDED" }).innerText(), /in order, 32\.00 TiB refused on GPU 0 at 0\.002 s, one of 3 refusals, and the program went on; limit: 4\.00 GiB by the cap/);
  });
});

test("what was asked for is drawn to scale: it ends beyond the limit that it did not fit in", async () => {
  await look(page("group", [golden("group")]), {}, async (tab) => {
    const [asked, limit] = [".used-bar .asked", ".used-bar .limit"].map((part) => tab.locator(`.verdict ${part}`).boundingBox());
    const [end, mark] = [(await asked).x + (await asked).width, (await limit).x];
    assert.ok(end > mark + 5, `asked ends at ${end}, the limit is at ${mark}`);
    const [{ post_mortem: truth }] = json("oom", golden("group")).ooms;
    const left = 2 ** 30 - truth.used_bytes;
    assert.ok((await tab.locator(".verdict").innerText()).includes(`no room: asked 600.00 MiB, ${(left / 2 ** 20).toFixed(2)} MiB left of the limit`));
  });
});

test("a line and its caller: leak, holder, table, allocations", async () => {
  await look(`${pages}/healthy-gpt2.vtrace.html`, {}, async (tab) => {
    assert.match(await tab.locator(".verdict-row", { hasText: "HOLDER" }).innerText(), /activations\.py:66 NewGELUActivation\.forward, from roles_truth\.py:\d+/);
    assert.match(await tab.locator(".largest li").first().innerText(), /from roles_truth\.py:\d+/);
    await tab.evaluate(() => window.vramtrace.store.set({ tab: "allocations" }));
    await settled(tab);
    assert.match(await tab.locator(".allocations tbody").innerText(), /, from roles_truth\.py:\d+/);
    await tab.evaluate(() => window.vramtrace.store.set({ tab: "advice" }));
    await settled(tab);
    assert.match(await tab.locator(".advice").innerText(), /, from roles_truth\.py:\d+/);
  });
  const leak = json("leaks", trace("leak.vtrace")).leaks[0];
  await look(page("caller-leak", ["leak.vtrace"]), {}, async (tab) => {
    const words = await tab.locator(".verdict").innerText();
    assert.match(words, /data\.py:12 load/);
    assert.match(words, /HELD\s+1\.56 GiB in 400 allocations at the end/);
    if (leak.caller !== null) assert.ok(words.includes(`from ${leak.frames[leak.caller].file.split("/").pop()}`), words);
  });
});

test("no two of the largest holders read the same, and no caller is cut off", async () => {
  for (const name of ["free", "failure", "healthy-gpt2.vtrace"]) {
    await look(`${pages}/${name}.html`, {}, async (tab) => {
      const rows = await tab.locator(".largest li .who").evaluateAll((all) => all.map((one) => one.textContent));
      assert.equal(new Set(rows).size, rows.length, rows.join("\n"));
      const cut = await tab.locator(".largest li .who .dim").evaluateAll((all) => all.filter((one) => one.scrollWidth > one.clientWidth + 1).map((one) => one.textContent));
      assert.deepEqual(cut, []);
    });
  }
});

test("no frame of an allocator stands as a holder", async () => {
  await look(page("allocators", ["accum.vtrace"]), {}, async (tab) => {
    const names = await tab.evaluate(() => window.vramtrace.facts.processes[0].holders.map((one) => one.function));
    assert.ok(names.length > 10);
    assert.deepEqual(names.filter((name) => /Allocator|^c10::|^at::detail|^at::_ops/.test(name)), []);
    assert.ok(names.includes("torch::autograd::accumulate"), names.join());
  });
});

test("many processes: what ended, where and why; then all of them, the failed one first", async () => {
  const file = page("ranks-failed", ["ranks-oom"]);
  await look(file, {}, async (tab) => {
    const failed = await tab.evaluate(() => window.vramtrace.facts.report.processes.findIndex((one) => one.failures.length > 0));
    const words = await tab.locator(".strip h2").innerText();
    assert.match(words, /^rank 1 ran out of memory first, on GPU 0 of \S+: 40\.00 MiB/);
    assert.equal(await tab.locator(".strip p").innerText(), "3 processes ended in order");
    assert.equal(await tab.locator(".strip .cell").count(), 4);
    assert.equal(await tab.locator(".strip .cell[data-state=failed]").count(), 1);
    assert.match(await tab.locator(".verdict").innerText(), /OUT OF MEMORY/);
    assert.equal(await tab.evaluate(() => window.vramtrace.page.process), failed);
    const [strip, verdict] = [await tab.locator(".strip").boundingBox(), await tab.locator(".verdict").boundingBox()];
    assert.ok(strip.y < verdict.y);
    await tab.locator(".strip .cell:not([data-state=failed])").first().click();
    await tab.waitForFunction((n) => window.vramtrace.page.shownProcess !== n, failed);
    assert.doesNotMatch(await tab.locator(".verdict").innerText(), /OUT OF MEMORY/);
  });
  await look(page("ranks-fine", ["ranks"]), {}, async (tab) => {
    assert.match(await tab.locator(".strip h2").innerText(), /4 processes, all ended in order/);
  });
  await look(page("ranks-leak", ["gen.vtrace", "leak.vtrace"]), {}, async (tab) => {
    assert.match(await tab.locator(".strip h2").innerText(), /: memory leaks on GPU 0: 1\.56 GiB/);
    assert.match(await tab.locator(".verdict").innerText(), /^LEAK/);
    await tab.evaluate(() => Object.assign(window.vramtrace.page.model.deviceFacts, { engine_setting_text: "--share 0.5" }));
    await tab.evaluate(() => window.vramtrace.store.set({ tab: "facts" }));
    await settled(tab);
    assert.match(await tab.locator(".verdict").innerText(), /SETTING\s+--share 0\.5/);
  });
});

test("header, title and Facts say program, GPU, host, date, duration and end", async () => {
  const path = trace("recorded.vtrace");
  const printed = vramtrace("report", path);
  const end = /^ {2}ended +(.*)$/m.exec(printed)[1];
  assert.equal(end, "torch.OutOfMemoryError");
  await look(`${pages}/failure.html`, { hash: "#tab=facts" }, async (tab) => {
    assert.equal(await tab.title(), "OOM, train.py");
    const header = await tab.locator("header").innerText();
    for (const words of ["train.py", "GPU 0 NVIDIA H200", "vm", "2026-11-21 08:59 UTC", "ran 2.956 s", `ended ${end}`]) assert.ok(header.includes(words), `${words}: ${header}`);
    assert.equal(await tab.locator(".facts tr", { hasText: /^ended/ }).locator("td").innerText(), end);
  });
  await look(`${pages}/free.html`, {}, async (tab) => {
    assert.match(await tab.title(), /^roles_truth\.py: [\d.]+ GiB$/);
    assert.match(await tab.locator("header").innerText(), /ended in order/);
  });
});

test("warnings stand below the verdict's words", async () => {
  await look(page("warned", ["damaged.vtrace"]), {}, async (tab) => {
    const [words, warning] = [await tab.locator(".verdict h2").first().boundingBox(), await tab.locator(".verdict .warning").first().boundingBox()];
    assert.ok(words.y < warning.y);
  });
});

test("a page of erased events says what resolution the recorder's samples of them have", async () => {
  await look(page("erased", ["erased.vtrace"]), {}, async (tab) => {
    const words = await tab.locator(".verdict .warning").allInnerTexts();
    const found = words.find((text) => text.startsWith("Events before 18"));
    assert.match(found, /samples of the recorder stand for them, one value for each 5\.000 s to 8\.000 s of 0\.000 s to 18\.000 s/);
  });
});

test("the line is copied from a page of a server without TLS", async () => {
  const server = createServer((_, answer) => answer.end(readFileSync(`${pages}/failure.html`)));
  await new Promise((ready) => server.listen(0, "127.0.0.1", ready));
  const context = await browser.newContext();
  try {
    const tab = await context.newPage();
    // A name that no browser takes for this machine: there the page has no clipboard.
    await tab.route("http://node7.example/", async (route) => route.fulfill({ response: await route.fetch({ url: `http://127.0.0.1:${server.address().port}/` }) }));
    await tab.goto("http://node7.example/");
    await tab.waitForFunction(() => document.documentElement.dataset.ready);
    assert.equal(await tab.evaluate(() => isSecureContext), false);
    await tab.evaluate(() => document.addEventListener("copy", () => (window.copied = String(document.activeElement?.value ?? getSelection()))));
    await tab.locator(".verdict .copy").click();
    await tab.locator(".verdict .copy", { hasText: "copied" }).waitFor({ timeout: 5000 });
    assert.equal(await tab.evaluate(() => window.copied), "export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True");
  } finally {
    await context.close();
    server.close();
  }
});

test("the line is copied with a clipboard, without one, and where it is refused", async () => {
  for (const setup of [
    () => Object.defineProperty(navigator, "clipboard", { value: undefined }),
    () => Object.defineProperty(navigator, "clipboard", { value: { writeText: () => Promise.reject(new Error("no")) } }),
  ]) {
    const { tab, errors, close } = await open(browser, `${pages}/failure.html`, { setup });
    await tab.evaluate(() => {
      document.addEventListener("copy", () => (window.copied = String(document.activeElement?.value ?? getSelection())));
    });
    await tab.locator(".verdict .copy").click();
    await tab.locator(".verdict .copy", { hasText: "copied" }).waitFor({ timeout: 5000 });
    assert.equal(await tab.evaluate(() => window.copied), "export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True");
    assert.deepEqual(errors, []);
    await close();
  }
});
