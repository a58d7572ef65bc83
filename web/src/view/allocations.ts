// What was allocated in the brushed range, also what was freed in it: by line, and by size.

import { el, fill, row, table } from "../base/dom.ts";
import { clean, count, duration, seconds, several, size } from "../base/units.ts";
import { LIVE } from "../data/stream.ts";
import type { Page, View } from "./page.ts";

interface Made {
  holder: number;
  library: string;
  count: number;
  bytes: number;
  stayed: number;
  short: number;
  life: number;
}

const ROWS = 100;
/** Of the columns; a narrow page leaves some out. */
const CLASSES = ["number", "number", "number", "of-churn number", "of-lifetime number", "of-library"];

export class Allocations implements View {
  readonly node = el("section", { class: "allocations", label: "Allocations in the range" });

  constructor(private readonly page: Page) {}

  draw(): void {
    const { page } = this;
    const { model } = page;
    const range = page.store.state.range ?? page.view;
    const [from, to] = [model.at(range[0]), model.at(range[1])];
    const wanted = page.wanted();
    const all = new Map<number, Made>();
    const sizes = new Float64Array(64);
    const bytesBySize = new Float64Array(64);
    // What lives for less than a hundredth of the range comes and goes.
    const short = (range[1] - range[0]) / 100;
    let [many, bytes, shorts] = [0, 0, 0];
    const lists = model.hasBlocks ? [model.blocks] : [model.memory];
    for (const of of lists) {
      for (let n = 0; n < of.length; n++) {
        if ((of.start[n] <= from && from > 0) || of.continues[n]) continue;
        if (of.start[n] > to) continue;
        const owner = of.owner[n];
        if (!model.owned[owner] || model.isTaken(owner) || (wanted && !wanted(owner, of.role[n]))) continue;
        const power = Math.min(63, Math.max(0, Math.floor(Math.log2(Math.max(1, of.size[n])))));
        sizes[power]++;
        bytesBySize[power] += of.size[n];
        const holder = model.page.owners[owner][3];
        let made = all.get(holder);
        if (!made) {
          made = { holder, library: model.library(owner), count: 0, bytes: 0, stayed: 0, short: 0, life: 0 };
          all.set(holder, made);
        }
        const end = of.end[n];
        const life = model.time[end === LIVE ? model.last : end] - model.time[of.start[n]];
        made.count++;
        made.bytes += of.size[n];
        made.life += life;
        many++;
        bytes += of.size[n];
        if (end > to) made.stayed += of.size[n];
        else if (life < short) {
          made.short++;
          shorts++;
        }
      }
    }
    const rows = [...all.values()].sort((a, b) => b.bytes - a.bytes || a.holder - b.holder);
    fill(
      this.node,
      el("p", {
        text:
          `From ${seconds(range[0])} to ${seconds(range[1])}: ${several(many, "allocation")}, ${size(bytes)} in all; ` +
          `${count(shorts)} lived for less than ${duration(short)}.` +
          (page.store.state.range ? "" : " Drag over the timeline to choose a range."),
      }),
      model.page.lumped > 0 &&
        el("p", { class: "warning", text: `Blocks of fewer than ${size(model.page.lumped_below)} are not listed one by one here.` }),
      this.histogram(sizes, bytesBySize),
      this.table(rows),
    );
  }

  private histogram(sizes: Float64Array, bytes: Float64Array): HTMLElement {
    const first = sizes.findIndex((n) => n > 0);
    if (first < 0) return el("p", { class: "dim", text: "Nothing was allocated." });
    let last = 63;
    while (sizes[last] === 0) last--;
    const most = Math.max(...sizes);
    const bars: HTMLElement[] = [];
    for (let power = first; power <= last; power++) {
      const bar = el("span", { class: "column" });
      bar.style.height = `${Math.max(sizes[power] > 0 ? 2 : 0, (70 * sizes[power]) / most)}px`;
      bars.push(
        el(
          "div",
          { class: "bin", title: `${size(2 ** power)} to ${size(2 ** (power + 1))}: ${several(sizes[power], "allocation")}, ${size(bytes[power])}` },
          bar,
          el("span", { class: "dim", text: size(2 ** power).replace(".00", "") }),
        ),
      );
    }
    return el("div", { class: "histogram", label: "Sizes of allocations" }, ...bars);
  }

  private table(rows: Made[]): HTMLElement {
    const { page } = this;
    const { model } = page;
    const shown = rows.slice(0, ROWS).map((made) =>
      row(
        [
          size(made.bytes), count(made.count), size(made.stayed), count(made.short),
          duration(made.life / Math.max(1, made.count)), clean(made.library, 40), clean(model.holderLine(made.holder), 200),
        ],
        [...CLASSES, "text"],
        { on: { click: () => page.filter("holder", model.holderLabel(made.holder)) } },
      ),
    );
    const made = table(["allocated", "allocations", "stayed", "came and went", "mean life", "library", "line"], shown, CLASSES);
    if (rows.length > ROWS) made.append(el("p", { class: "dim", text: `${several(rows.length - ROWS, "line")} more` }));
    return made;
  }
}
