// What is to be known first: why it was out of memory and what to do; else what leaks; else the peak
// and who held it. Beside it the largest holders of the pinned moment.

import { el, fill } from "../base/dom.ts";
import { colour } from "../base/palette.ts";
import { clean, count, duration, percent, seconds, size } from "../base/units.ts";
import type { LeakFacts, StackFacts } from "../data/facts.ts";
import { holders, moment, type Held } from "../model/moment.ts";
import type { Model } from "../model/model.ts";
import { compare } from "./diff.ts";
import type { Page, View } from "./page.ts";

/** `train.py:41 step` of the frame that stands for a stack. */
export function lead(stack: StackFacts): string {
  const frame = stack.frames[stack.lead ?? 0];
  if (!frame) return "(no frames)";
  const file = frame.file.split("/").pop() ?? "";
  const place = file && frame.line !== null ? `${file}:${frame.line}` : file;
  return clean(`${place} ${frame.function}`.trim(), 120);
}

function growing(model: Model): LeakFacts | undefined {
  const leaks = model.page.advice.leaks?.leaks ?? [];
  return leaks.find((leak) => leak.verdict === "growing" && leak.confidence >= 0.5);
}

function row(label: string, ...lines: string[]): HTMLElement {
  return el(
    "div",
    { class: "verdict-row" },
    el("span", { class: "label", text: label }),
    el("span", {}, ...lines.map((text, n) => el("div", { class: n ? "dim" : "", text: clean(text, 400) }))),
  );
}

function fix(lines: string[]): HTMLElement {
  const [command, ...rest] = lines;
  const button = el("button", {
    class: "copy",
    text: "copy",
    title: "copies the line",
    on: {
      click: () => {
        void navigator.clipboard?.writeText(command);
        button.textContent = "copied";
      },
    },
  });
  return el(
    "div",
    { class: "verdict-row fix" },
    el("span", { class: "label", text: "FIX" }),
    el(
      "span",
      {},
      el("div", {}, el("code", { text: clean(command, 300) }), button),
      ...rest.map((text) => el("div", { class: "dim", text: clean(text, 300) })),
    ),
  );
}

export class Verdict implements View {
  readonly node = el("section", { class: "verdict", label: "Verdict" });

  private readonly again = () => this.draw();

  constructor(private readonly page: Page) {}

  draw(): void {
    const { model } = this.page;
    fill(this.node, ...this.against(model), ...this.warnings(), ...this.words(model), ...this.odd());
    const device = model.deviceFacts;
    const tone = model.page.verdict.length || growing(model) ? "bad" : "good";
    this.node.dataset.tone = device ? tone : "good";
  }

  private words(model: Model): HTMLElement[] {
    const { verdict } = model.page;
    if (verdict.length) {
      return verdict
        .filter((part) => part.label !== "NEXT")
        .map((part) => {
          if (part.label === "") return el("h2", { text: clean(part.lines.join(" "), 300) });
          if (part.label === "FIX") return fix(part.lines);
          return row(part.label, ...part.lines);
        });
    }
    const leak = growing(model);
    if (leak) {
      const rate = leak.rate_bytes_per_s ?? 0;
      const soon = leak.exhausted_in_s;
      return [
        el("h2", { text: `LEAK: ${size(rate)} a second, ${lead(leak)}` }),
        row("HELD", `${size(leak.bytes)} in ${count(leak.count)} blocks at the end`),
        ...leak.evidence.slice(0, 2).map((text, n) => row(n ? "" : "WHY", text)),
        ...(soon === null ? [] : [row("FULL IN", duration(soon * 1e9))]),
      ];
    }
    return this.peak(model);
  }

  /** What grew from the other run to this. */
  private against(model: Model): HTMLElement[] {
    const { page } = this;
    if (page.facts.runs.length < 2) return [];
    const other = page.other(this.again);
    if (other === null || typeof other === "string") return [el("h2", { text: other ?? "Reading the other run." })];
    const [before, now] = [moment(other, other.peak), moment(model, model.peak)];
    const difference = now.total - before.total;
    const grown = compare([other, before], [model, now], "line");
    const cause = grown.find((line) => Math.sign(line.now - line.before) === Math.sign(difference));
    const by = (bytes: number) => `${bytes > 0 ? "+" : ""}${size(bytes)}`;
    const against = clean(page.facts.runs[1].label.split("/").pop() ?? "", 50);
    const title = difference === 0 ? `Its peak is that of ${against}` : `${by(difference)} at the peak, against ${against}`;
    return [
      el("h2", { text: title }),
      ...(cause ? [row("CAUSE", `${by(cause.now - cause.before)}: ${cause.name}`)] : []),
    ];
  }

  /** The process that stands out among all of the run. */
  private odd(): HTMLElement[] {
    const { processes } = this.page.facts.runs[0].report;
    const which = processes.findIndex((process) => process.odd !== null);
    if (which < 0) return [];
    const name = this.page.facts.runs[0].processes[which].name;
    return [row("RANKS", `${name} stands out: ${processes[which].odd}`)];
  }

  private peak(model: Model): HTMLElement[] {
    const device = model.deviceFacts;
    if (!device || model.last === 0) {
      return [el("h2", { text: "No GPU memory was used" }), row("TRACE", "it holds no allocation")];
    }
    const at = model.peak;
    const largest = holders(model, this.page.moment.ordinal === at ? this.page.moment : this.at(at))[0];
    const words: HTMLElement[] = [
      el("h2", { text: `Peak ${size(device.peak_bytes)} on GPU ${device.ordinal ?? "?"} at ${seconds(device.peak_at_s * 1e9)}` }),
    ];
    if (largest) {
      const share = percent(largest.bytes, this.at(at).total);
      words.push(row("HOLDER", `${size(largest.bytes)}, ${share}: ${model.holderName(largest.holder)}`));
    }
    const torch = device.torch;
    if (torch) {
      const [most, all] = [torch.peak_allocated_bytes, torch.peak_reserved_bytes];
      words.push(row("PYTORCH", `reserved ${size(all)}, of which ${size(most)} at most in tensors`));
    }
    if (device.cap_bytes !== null) {
      const { refused_by_cap: refused } = device;
      words.push(row("CAP", `${size(device.cap_bytes)}; ${count(refused)} requests refused by it`));
    }
    return words;
  }

  private at(ordinal: number) {
    const { page } = this;
    const before = page.store.state.pin;
    if (page.ordinal === ordinal) return page.moment;
    page.store.state.pin = ordinal;
    const at = page.moment;
    page.store.state.pin = before;
    return at;
  }

  private warnings(): HTMLElement[] {
    const { model } = this.page;
    const { damage, running, stopped, history_from_s: from, live_is_known: known } = model.facts;
    const all: string[] = [];
    if (damage.places > 0) {
      const where = damage.first[0] ? `; first: ${damage.first[0]}` : "";
      all.push(
        `The trace is damaged in ${count(damage.places)} places (${size(damage.bytes)}): what stood there is missing here${where}`,
      );
    }
    if (!known) all.push("Events are missing: what is live at the end is a guess");
    else if (from > 0) all.push(`Events before ${seconds(from * 1e9)} are not in the trace`);
    if (stopped) all.push(`Recording stopped at ${seconds(stopped.at_s * 1e9)}: ${stopped.reason}`);
    if (running) all.push("The process was running when the page was written");
    if (model.page.lumped > 0) {
      all.push(
        `The run has many blocks: ${count(model.page.lumped)} of fewer than ${size(model.page.lumped_below)} are one sum here`,
      );
    }
    if (!model.hasProcessFigure && model.last > 0) {
      all.push("The trace has no figure of nvidia-smi's: the top edge is allocations and contexts");
    }
    if (!model.page.has_stacks && model.last > 0) {
      const from = model.page.imported_from;
      all.push(from ? `The trace was made from a ${from}: it has no stacks` : "The trace has no stacks");
    }
    if (!model.page.has_times) all.push("The trace has no times: events are in order, a microsecond apart");
    return all.map((text) => el("p", { class: "warning", role: "status", text: clean(text, 500) }));
  }
}

export class Largest implements View {
  readonly node = el("section", { class: "largest", label: "Largest holders" });

  constructor(private readonly page: Page) {}

  draw(): void {
    const { page } = this;
    const { model } = page;
    const at = page.moment;
    const all = holders(model, at);
    const when = page.ordinal === model.peak ? "at the peak" : `at ${seconds(model.time[page.ordinal])}`;
    const list = el("ol", {}, ...all.slice(0, 5).map((held) => this.row(held, at.total)));
    fill(
      this.node,
      el("h2", { text: `Held ${when}: ${size(at.total)}` }),
      all.length ? list : el("p", { class: "dim", text: "Nothing was held." }),
      !model.isKnown(page.ordinal) &&
        el("p", { class: "warning", text: "Events are missing here: what was live is not known." }),
    );
  }

  private row(held: Held, total: number): HTMLElement {
    const { page } = this;
    const { model } = page;
    const name = model.holderName(held.holder);
    const { filter } = page.store.state;
    const label = model.holderLabel(held.holder);
    const chosen = filter?.what === "holder" && filter.name === label;
    const bar = el("span", { class: "bar" });
    bar.style.width = `${total > 0 ? (100 * held.bytes) / total : 0}%`;
    bar.style.background = colour(held.holder < 0 ? name : held.library);
    const caller = held.holder >= 0 ? model.page.holders[held.holder].caller : "";
    const item = el(
      "li",
      {},
      el(
        "button",
        {
          class: chosen ? "holder chosen" : "holder",
          title: "shows only this line",
          on: { click: () => page.filter("holder", label) },
        },
        el("span", { class: "figure", text: size(held.bytes) }),
        el("span", { class: "share", text: percent(held.bytes, total) }),
        el(
          "span",
          { class: "who" },
          el("span", { class: "name", text: clean(name, 90) }),
          el("span", { class: "dim", text: clean(caller ? `from ${caller}` : held.library, 90) }),
        ),
        el("span", { class: "track" }, bar),
      ),
    );
    item.dataset.bytes = String(held.bytes);
    item.dataset.count = String(held.count);
    return item;
  }
}
