// What is to be known first: why it was out of memory and what to do; else what leaks; else the peak and who held
// it. All figures are of one moment: the failure, or the peak.

import { copyButton, el, fill } from "../base/dom.ts";
import { clean, duration, limitOf, percent, seconds, several, size } from "../base/units.ts";
import type { Failure, LeakFacts, StackFacts } from "../data/facts.ts";
import { moment, holders, type Moment } from "../model/moment.ts";
import type { Model } from "../model/model.ts";
import type { Page, View } from "./page.ts";
import { usedBar, type UsedParts } from "./used.ts";
import { warnings } from "./warnings.ts";

/** `train.py:41 step` of a frame. */
function placeOf(stack: StackFacts, which: number | null): string {
  const frame = which === null ? undefined : stack.frames[which];
  if (!frame) return "";
  const file = frame.file.split("/").pop() ?? "";
  const place = file && frame.line !== null ? `${file}:${frame.line}` : file;
  return clean(`${place} ${frame.function}`.trim(), 120);
}

/** A line and who called it. */
export function lead(stack: StackFacts): string {
  const line = placeOf(stack, stack.lead ?? 0);
  const caller = placeOf(stack, stack.caller);
  return line ? line + (caller ? `, from ${caller}` : "") : "no line is known";
}

/** The leak that the verdict is about. */
export function leakOf(model: Model): LeakFacts | null {
  const { verdict } = model.facts;
  return verdict?.kind === "leak" ? verdict.leak : null;
}

/** `600.00 MiB asked by train.py:31`. */
export function askedBy({ size_bytes: bytes, line }: Failure): string {
  return line === null ? size(bytes) : `${size(bytes)} asked by ${line}`;
}

function row(label: string, ...lines: (string | HTMLElement)[]): HTMLElement {
  const line = (of: string | HTMLElement, n: number) =>
    typeof of === "string" ? el("div", { class: n ? "dim" : "", text: clean(of, 400) }) : of;
  return el("div", { class: "verdict-row" }, el("span", { class: "label", text: label }), el("span", {}, ...lines.map(line)));
}

/** What stands beside the line to copy: the words of a setting begin with it. */
export function besideLine({ conf, text }: Failure["advice"][number]): string {
  return conf ? text.slice(text.indexOf("(")) : text;
}

/** The parts of what was in use at a failure. */
function partsOf({ used, used_bytes: whole }: Failure): UsedParts {
  const cached = used.some(({ what }) => what === "tensors" || what === "torch_cache");
  const sum = (...names: string[]) => used.filter(({ what }) => names.includes(what)).reduce((all, { bytes }) => all + bytes, 0);
  const tensors = cached ? sum("tensors") : sum("tensors", "library", "rounding");
  const [cache, context] = [sum("torch_cache"), sum("context")];
  return { tensors, cache, context, rest: whole - tensors - cache - context };
}

/** The parts of what is in nvidia-smi at a moment. */
function partsAt(model: Model, at: Moment): UsedParts {
  const top = model.top(at.ordinal);
  const contexts = model.sums[2].of(at.ordinal);
  const allocated = Math.min(model.allocated.of(at.ordinal), top);
  const cache = Math.min(at.freeBytes, top - allocated);
  const context = Math.min(contexts, top - allocated - cache);
  return { tensors: allocated, cache, context, rest: top - allocated - cache - context };
}

export class Verdict implements View {
  readonly node = el("section", { class: "verdict", label: "Verdict" });

  constructor(private readonly page: Page) {}

  draw(): void {
    const { model } = this.page;
    const setting = model.deviceFacts?.engine_setting_text;
    fill(this.node, ...this.words(model), setting && row("SETTING", setting), ...this.odd(), ...warnings(model));
    const bad = model.failure !== null || leakOf(model);
    this.node.dataset.tone = bad ? "bad" : "good";
  }

  private words(model: Model): HTMLElement[] {
    const { failure } = model;
    if (failure) return this.failed(failure);
    const leak = leakOf(model);
    if (leak) {
      const rate = leak.rate_bytes_per_s;
      const soon = leak.exhausted_in_s;
      return [
        el("h2", { text: rate === null ? `LEAK: ${size(leak.bytes)}` : `LEAK: ${size(rate)} a second` }),
        row("LINE", lead(leak)),
        row("HELD", `${size(leak.bytes)} in ${several(leak.count, leak.level === "tensor" ? "block" : "allocation")} at the end`),
        ...leak.evidence.slice(0, 2).map((text, n) => row(n ? "" : "WHY", text)),
        ...(soon === null ? [] : [row("FULL IN", duration(soon * 1e9))]),
      ];
    }
    return this.peak(model);
  }

  /** What ended the run. */
  private failed(failure: Failure): HTMLElement[] {
    const known = failure.in_nvidia_smi ? "in nvidia-smi" : "recorded";
    const [most, capped] = [failure.could_have_bytes, failure.refused_by === "cap"];
    const limit = most === null ? "" : ` of ${(capped ? limitOf : size)(most)}`;
    const word = capped ? `counted by the cap${limit}` : limit ? `${known}${limit} that it could have` : known;
    return [
      el("h2", { text: clean(`OUT OF MEMORY  ${failure.title}`, 300) }),
      row("CAUSE", failure.text),
      ...(failure.leak_text === null ? [] : [row("LEAK", failure.leak_text)]),
      row("LIMIT", failure.limit_text),
      ...(failure.line === null ? [] : [row("LINE", askedBy(failure))]),
      ...(failure.step_text === null ? [] : [row("STEP", failure.step_text)]),
      row("USED", usedBar({ ...partsOf(failure), bytes: failure.used_bytes, limit: most, asked: failure.size_bytes, word })),
      ...this.best(failure),
    ];
  }

  /** The one thing to try; the others stand under Advice. */
  private best(failure: Failure): HTMLElement[] {
    const best = failure.advice.at(0);
    if (!best) return [];
    const more = failure.advice.length > 1 && el("button", {
      class: "link",
      text: `${failure.advice.length - 1} more under Advice`,
      on: { click: () => this.page.store.set({ tab: "advice" }) },
    });
    const line = best.copy ? el("div", {}, el("code", { text: clean(best.copy, 300) }), copyButton(best.copy)) : el("div", { text: clean(best.text, 300) });
    const rest = el("div", { class: "dim" }, best.copy ? `${clean(besideLine(best), 300)}  ` : "", more);
    const made = row("TRY", line, rest);
    made.classList.add("fix");
    return [made];
  }

  /** The process that stands out among all of the run. */
  private odd(): HTMLElement[] {
    const { processes } = this.page.facts.report;
    const which = processes.findIndex((process) => process.odd !== null);
    if (which < 0) return [];
    const name = this.page.facts.processes[which].name;
    return [row("RANKS", `${name} stands out: ${processes[which].odd}`)];
  }

  private peak(model: Model): HTMLElement[] {
    const device = model.deviceFacts;
    if (!device || model.last === 0) {
      return [el("h2", { text: "No GPU memory was used" }), row("TRACE", "it holds no allocation")];
    }
    const { page } = this;
    const at = page.ordinal === model.peak ? page.moment : moment(model, model.peak);
    const top = model.top(model.peak);
    const word = model.hasProcessFigure ? "in nvidia-smi" : "recorded";
    const card = device.total_bytes === null ? "" : ` of the card's ${size(device.total_bytes)}`;
    const gpu = device.device === null ? "an unknown GPU" : `GPU ${device.device}`;
    const words: HTMLElement[] = [
      el("h2", { text: `Peak: ${size(top)} ${word} on ${gpu} at ${seconds(model.time[model.peak])}` }),
      row("USED", usedBar({ ...partsAt(model, at), bytes: top, limit: device.total_bytes, asked: 0, word: word + card })),
    ];
    const held = holders(model, at);
    // Each process has a context.
    const largest = held.find(({ holder }) => holder < 0 || model.page.holders[holder].driver_memory !== "context") ?? held.at(0);
    const { ended, verdict } = model.facts;
    const lines = [(ended === "in_order" ? "in order, " : "") + (verdict?.text ?? ""), ...(verdict?.handled ? [askedBy(verdict.handled)] : [])];
    if (ended === "in_order" || ended === "cut_off") words.push(row("ENDED", ...lines));
    if (largest) words.push(row("HOLDER", `${size(largest.bytes)}, ${percent(largest.bytes, at.total)}: ${model.holderLine(largest.holder)}`));
    if (device.torch) {
      const highest = model.allocated.highest(0, model.last);
      const most = device.peak_process_bytes ?? 0;
      words.push(row("HIGHEST", `${most > top ? `in nvidia-smi ${size(most)}, ` : ""}allocated ${size(model.allocated.of(highest))} at ${seconds(model.time[highest])}, reserved ${size(device.torch.peak_reserved_bytes)}`));
    }
    if (device.cap_bytes !== null) {
      const refused = device.refused_by_cap;
      words.push(row("CAP", `${limitOf(device.cap_bytes)}; ${size(top + model.sums[3].of(model.peak))} counted by the cap; ${refused ? several(refused, "request") : "no request"} refused by it`));
    }
    return words;
  }
}
