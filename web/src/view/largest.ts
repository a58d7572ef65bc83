// The largest holders of the pinned moment, each a line and who called it; below them what is free in the cache.

import { el, fill } from "../base/dom.ts";
import { chosen, colour } from "../base/palette.ts";
import { clean, percent, size } from "../base/units.ts";
import { FREE_CACHE } from "../model/model.ts";
import { holders, type Held } from "../model/moment.ts";
import type { Page, View } from "./page.ts";

const SHOWN = 5;

export class Largest implements View {
  readonly node = el("section", { class: "largest", label: "Largest holders" });

  constructor(private readonly page: Page) {}

  draw(): void {
    const { page } = this;
    const { model } = page;
    const at = page.moment;
    const all = holders(model, at);
    const shown = all.slice(0, SHOWN);
    const lines = shown.map((held) => model.holderLine(held.holder));
    const more = all.length > SHOWN ? `, ${SHOWN} of ${all.length} lines` : "";
    fill(
      this.node,
      el("h2", { text: `Who held it ${page.when}${more}` }),
      all.length ? el("ol", {}, ...shown.map((held, n) => this.row(held, at.total, lines.indexOf(lines[n]) !== lines.lastIndexOf(lines[n])))) : el("p", { class: "dim", text: "Nothing was held." }),
      at.freeBytes > 0 && this.free(at.freeBytes, at.total),
      !model.isKnown(page.ordinal) &&
        el("p", { class: "warning", text: "Events are missing here: what was live is not known." }),
    );
  }

  private track(bytes: number, total: number, paint: string): HTMLElement {
    const bar = el("span", { class: "bar" });
    bar.style.width = `${total > 0 ? (100 * bytes) / total : 0}%`;
    bar.style.background = paint;
    return el("span", { class: "track" }, bar);
  }

  /** It is no holder: nobody uses it. */
  private free(bytes: number, total: number): HTMLElement {
    const row = el(
      "div",
      { class: "holder free", title: "Segments of PyTorch's cache, in no tensor" },
      el("span", { class: "figure", text: size(bytes) }),
      el("span", { class: "share", text: percent(bytes, total) }),
      el("span", { class: "who" }, el("span", { class: "name dim", text: FREE_CACHE })),
      this.track(bytes, total, colour(FREE_CACHE)),
    );
    row.dataset.bytes = String(bytes);
    return row;
  }

  /** `twice`: another library has memory by the same line. */
  private row(held: Held, total: number, twice: boolean): HTMLElement {
    const { page } = this;
    const { model } = page;
    const { filter } = page.store.state;
    const label = model.holderLabel(held.holder);
    const mine = filter?.what === "holder" && filter.name === label;
    const caller = model.callerOf(held.holder);
    const library = twice || !caller ? held.library : "";
    const beside = [caller && `from ${caller}`, library].filter(Boolean).join(", ");
    const item = el(
      "li",
      {},
      el(
        "button",
        {
          class: mine ? "holder chosen" : "holder",
          title: model.holderLine(held.holder),
          on: { click: () => page.filter("holder", label) },
        },
        el("span", { class: "figure", text: size(held.bytes) }),
        el("span", { class: "share", text: percent(held.bytes, total) }),
        el(
          "span",
          { class: "who" },
          el("span", { class: "name", text: clean(model.holderName(held.holder), 90) }),
          el("span", { class: "dim", text: clean(beside, 110) }),
        ),
        this.track(held.bytes, total, mine ? chosen() : page.tint(held.holder)),
      ),
    );
    item.dataset.bytes = String(held.bytes);
    item.dataset.count = String(held.count);
    return item;
  }
}
