// The pictures of README.md and docs/: `node tests/screenshots.mjs DIRECTORY [SCREEN...]`. A screen is
// what a terminal showed, with its escapes.

import { readFileSync } from "node:fs";
import { basename, join } from "node:path";
import { launch, open, page } from "./browser.mjs";

const [directory, ...screens] = process.argv.slice(2);
const file = page("recorded", ["recorded.vtrace"]);
const browser = await launch();
for (const [name, options, part] of [
  ["page.png", {}, null],
  ["page-blocks.png", { hash: "#tab=blocks&view=1325000000~1410000000", dark: true }, ".blocks"],
]) {
  const { tab, errors, close } = await open(browser, file, options);
  await tab.waitForTimeout(500);
  if (errors.length) throw new Error(errors.join("\n"));
  const path = join(directory, name);
  if (part) await tab.locator(part).screenshot({ path });
  else await tab.screenshot({ path });
  await close();
}

const COLOURS = {
  30: "#000", 31: "#d55e00", 32: "#009e73", 33: "#e69f00", 34: "#0072b2", 35: "#cc79a7", 36: "#56b4e9", 90: "#8f8f8f",
  91: "#d55e00", 92: "#5fd3a4", 93: "#f0e442", 94: "#7fb2d9", 95: "#e5b3cf", 96: "#a5d8f3",
};

/** Text with escapes for colours as spans. */
function spans(text) {
  let style = {};
  return text
    // eslint-disable-next-line no-control-regex
    .split(/(\u001b\[[0-9;]*m)/)
    .map((part) => {
      if (!part.startsWith("\u001b[")) {
        const [back, fore] = style.reversed ? ["#d8dee9", "#15181d"] : ["transparent", style.colour ?? "#d8dee9"];
        const clean = part.replaceAll("&", "&amp;").replaceAll("<", "&lt;");
        return `<span style="color:${fore};background:${back};font-weight:${style.bold ? 700 : 400}">${clean}</span>`;
      }
      const codes = part.slice(2, -1).replace(/38;5;(\d+)/, (_, n) => String(n < 8 ? 30 + Number(n) : 82 + Number(n)));
      for (const code of codes.split(";").map(Number)) {
        if (code === 0) style = {};
        else if (code === 1) style.bold = true;
        else if (code === 7) style.reversed = true;
        else if (code === 39) delete style.colour;
        else if (COLOURS[code]) style.colour = COLOURS[code];
      }
      return "";
    })
    .join("");
}

for (const screen of screens) {
  const tab = await browser.newPage({ viewport: { width: 1100, height: 500 } });
  const text = spans(readFileSync(screen, "utf8").trimEnd());
  await tab.setContent(`<pre style="display:inline-block;margin:0;padding:12px;background:#15181d;font:14px/1.25 'DejaVu Sans Mono',monospace">${text}</pre>`);
  await tab.locator("pre").screenshot({ path: join(directory, `${basename(screen, ".txt")}.png`) });
  await tab.close();
}
await browser.close();
