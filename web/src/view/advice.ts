// What to try after an out-of-memory, and what fits, frag and leaks say.

import { copyButton, el, fill, row, table, theme } from "../base/dom.ts";
import { clean, count, duration, percent, seconds, size } from "../base/units.ts";
import type { Failure, FitsFacts, FragFacts, LeakFacts } from "../data/facts.ts";
import { chart } from "./lines.ts";
import type { Page, View } from "./page.ts";
import { besideLine, lead } from "./verdict.ts";

export class AdviceView implements View {
  readonly node = el("section", { class: "advice", label: "Advice" });

  constructor(private readonly page: Page) {}

  draw(): void {
    const { model } = this.page;
    const { page } = model;
    const here = <T extends { device: number | null }>(all: T[]) => all.filter((one) => (one.device ?? 255) === model.device);
    const leaks = here(page.leaks);
    const tries = model.failure?.advice ?? [];
    const { fits } = this.page.facts;
    fill(
      this.node,
      ...(tries.length ? [el("h3", { text: "What to try" }), el("ol", { class: "tries" }, ...tries.map((one) => this.attempt(one)))] : []),
      ...(fits ? [el("h3", { text: `Which ${clean(fits.varied, 20)} fits` }), this.fitting(fits)] : []),
      el("h3", { text: "Fragmentation of PyTorch's cache" }),
      ...(here(page.frag).length ? here(page.frag).map((one) => this.frag(one)) : [el("p", { class: "dim", text: "No blocks of PyTorch's cache were recorded." })]),
      el("h3", { text: "Leaks" }),
      leaks.length ? null : el("p", { class: "dim", text: "None was found." }),
      ...leaks.slice(0, 12).map((leak) => this.leak(leak)),
    );
  }

  private attempt(one: Failure["advice"][number]): HTMLElement {
    if (one.copy === null) return el("li", { text: clean(one.text, 300) });
    return el("li", {}, el("code", { text: clean(one.copy, 300) }), copyButton(one.copy), el("span", { class: "dim", text: `  ${clean(besideLine(one), 300)}` }));
  }

  private fitting(facts: FitsFacts): HTMLElement {
    const rows = facts.settings.map(({ conf, in_force, forbidden, fits, does_not_fit: fails }) => {
      const [from, to] = [fits + 1, (fails ?? 0) - 1];
      return [
        el("span", {}, el("code", { text: clean(conf, 80) }), in_force && " (in force)", forbidden && el("span", { class: "warning", text: ` ${clean(forbidden, 120)}` })),
        fits === 0 ? "none" : count(fits),
        from > to ? "" : from === to ? count(from) : `${count(from)} to ${count(to)}`,
        fails === null ? "-" : count(fails),
      ];
    });
    const recorded = facts.recorded.map((one) => {
      const values = one.values.map((step) => step.map(({ name, value }) => `${clean(name, 20)} ${value}`).join(" "));
      return `${clean(one.trace.split("/").pop() ?? "", 60)}: ${values.join(", ")}, reserved ${size(one.peak_reserved_bytes)} at its peak`;
    });
    return el(
      "div",
      { class: "fitting" },
      el("p", {}, el("strong", { text: clean(facts.line, 200) })),
      table(["setting", "fits", "too close to say", "does not fit"], rows.map((cells) => row(cells, ["text"]))),
      ...recorded.map((text) => el("p", { class: "dim", text })),
      ...facts.caveats.map((text) => el("p", { class: "dim", text: `Note: ${clean(text, 300)}.` })),
    );
  }

  private frag(facts: FragFacts): HTMLElement {
    const when = facts.at_s === null ? "" : ` at ${seconds(facts.at_s * 1e9)}`;
    const rows = facts.holders.slice(0, 15).map((pin) => [
      size(pin.pinned_bytes),
      count(pin.segments),
      count(pin.alone),
      size(pin.bytes),
      clean(pin.library ?? "unknown", 40),
      clean(pin.no_frames ?? pin.name ?? lead(pin), 140),
    ]);
    const words = [
      `${facts.at === "oom" ? "When it was out of memory" : "When it reserved most"}${when}: reserved ${size(facts.reserved_bytes)}`,
      `in blocks ${size(facts.allocated_bytes)} (${percent(facts.allocated_bytes, facts.reserved_bytes)})`,
      `free ${size(facts.free_in_segments_bytes)}, largest hole ${size(facts.largest_free_block_bytes)}`,
      `can be given back ${size(facts.releasable_bytes)}`,
      `too small for the usual request ${size(facts.unusable_bytes)}`,
    ];
    return el(
      "div",
      {},
      el("p", { text: `${words.join("; ")}.` }),
      rows.length ? table(["keeps free", "segments", "alone in", "holds", "library", "line"], rows.map((cells) => row(cells))) : null,
    );
  }

  private leak(leak: LeakFacts): HTMLElement {
    const rate = leak.rate_bytes_per_s;
    const words = [
      leak.verdict.replaceAll("_", " "),
      `${size(leak.bytes)} in ${count(leak.count)}`,
      rate === null ? "" : `${size(rate)} a second`,
      leak.exhausted_in_s === null ? "" : `full in ${duration(leak.exhausted_in_s * 1e9)}`,
      `confidence ${leak.confidence}`,
    ];
    const drawn = el("div", { class: "growth" });
    const box = el(
      "div",
      { class: "leak" },
      el("div", {}, el("strong", { text: lead(leak) }), el("span", { class: "dim", text: `  ${clean(leak.library ?? "", 40)}` })),
      el("div", { text: words.filter(Boolean).join("; ") }),
      ...leak.evidence.map((text) => el("div", { class: "dim", text: clean(text, 300) })),
      drawn,
    );
    if (leak.shape.length > 1) {
      const { duration_s: long } = this.page.model.facts;
      const x = leak.shape.map((_, n) => (long * (n + 1)) / leak.shape.length);
      requestAnimationFrame(() =>
        chart(drawn, {
          title: "held, the least in each part of the run", x, height: 130, width: Math.min(620, this.node.clientWidth), legend: false,
          curves: [{ name: "held", colour: theme("text"), values: leak.shape }],
        }),
      );
    }
    return box;
  }
}
