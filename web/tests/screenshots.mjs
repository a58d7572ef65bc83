// The pictures of README.md and docs/: `node tests/screenshots.mjs DIRECTORY`.

import { join } from "node:path";
import { launch, open, page } from "./browser.mjs";

const [directory] = process.argv.slice(2);
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
await browser.close();
