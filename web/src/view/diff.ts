// Two runs, or two moments of one: what grew, by line and by library, and both on one axis.

import { choice, el, fill, row, table, theme } from "../base/dom.ts";
import { clean, count, percent, seconds, size } from "../base/units.ts";
import { FREE_CACHE, type Model } from "../model/model.ts";
import { byRole, holders, moment, type Moment } from "../model/moment.ts";
import { chart } from "./lines.ts";
import type { Page, View } from "./page.ts";
import { curve, highest, stepsOf } from "./ranks.ts";

export interface Grown {
  name: string;
  library: string;
  before: number;
  now: number;
  counts: [number, number];
}

/** What grew from one moment to another. `parts`: key, name, library, bytes and count of what a moment has. */
function grown(moments: [Model, Moment][], parts: (model: Model, at: Moment) => [string, string, string, number, number][]): Grown[] {
  const all = new Map<string, Grown>();
  moments.forEach(([model, at], which) => {
    for (const [key, name, library, bytes, count] of parts(model, at)) {
      const one = all.get(key) ?? { name, library, before: 0, now: 0, counts: [0, 0] };
      if (which) one.now += bytes;
      else one.before += bytes;
      one.counts[which] += count;
      all.set(key, one);
    }
  });
  return [...all.values()].sort((a, b) => Math.abs(b.now - b.before) - Math.abs(a.now - a.before) || b.now - a.now);
}

/** By role, where the roles of both are known. */
function compareRoles(before: [Model, Moment], now: [Model, Moment]): Grown[] {
  if (!before[0].hasRoles || !now[0].hasRoles) return [];
  return grown([before, now], (model, at) =>
    byRole(model, at)
      .filter(({ role }) => role !== FREE_CACHE)
      .map(({ role, bytes, count }) => [role, role, role, bytes, count]),
  );
}

/** By what people read: ids differ from trace to trace. */
export function compare(before: [Model, Moment], now: [Model, Moment], by: "line" | "library"): Grown[] {
  return grown([before, now], (model, at) =>
    holders(model, at).map(({ holder, library, bytes, count }) => {
      const line = model.holderLine(holder);
      const name = by === "library" && holder >= 0 ? library : line;
      return [`${library}\n${name}`, name, library, bytes, count];
    }),
  );
}

/** The part of a difference that named lines explain: of all lines that changed as it did, the bytes of named ones. */
export function explained(lines: Grown[], difference: number): string {
  const changes = lines.map((line) => ({ line, by: (line.now - line.before) * Math.sign(difference) }));
  const same = changes.filter(({ by }) => by > 0);
  const sum = (all: { by: number }[]) => all.reduce((bytes, { by }) => bytes + by, 0);
  const named = same.filter(({ line }) => line.library !== "unknown" || line.name.includes(":"));
  const what = difference > 0 ? "grew" : "shrank";
  return `${percent(sum(named), sum(same))} of what ${what} is in named lines.`;
}

const ROWS = 60;
/** Of the columns. */
const NUMBERS = ["number", "", "number", "number", "number"];
const POINTS = 400;

export class Diff implements View {
  readonly node = el("section", { class: "diff", label: "Difference" });
  private byStep = true;

  constructor(private readonly page: Page) {}

  private readonly again = () => this.draw();

  draw(): void {
    const { page } = this;
    const { model } = page;
    const { range, second } = page.store.state;
    if (page.facts.runs.length > 1) {
      const other = page.other(this.again);
      if (other === null || typeof other === "string") {
        fill(this.node, el("p", { class: "dim", text: other ?? "Reading the other run." }));
        return;
      }
      const labels: [string, string] = [page.facts.runs[1].label, page.facts.runs[0].label];
      const most = (one: Model): [Model, Moment] => [one, moment(one, one.allocated.highest(0, one.last))];
      this.show(most(other), most(model), labels, true);
      return;
    }
    if (range && second) {
      const at = (one: [number, number]) => moment(model, model.allocated.highest(model.at(one[0]), model.at(one[1])));
      this.show([model, at(range)], [model, at(second)], ["the first range", "the second range"], false);
      return;
    }
    if (page.ordinal !== model.first) {
      const first = model.failed === null ? "the peak" : "the failure";
      this.show([model, moment(model, model.first)], [model, page.moment], [first, "the pinned moment"], false);
      return;
    }
    fill(
      this.node,
      el("p", {
        text:
          `Pin a moment to compare it with ${model.failed === null ? "the peak" : "the failure"}, or brush a range and, with Shift, a second one. ` +
          "Two runs on one page: vramtrace report --html B.vtrace --against A.vtrace.",
      }),
    );
  }

  private show(before: [Model, Moment], now: [Model, Moment], labels: [string, string], runs: boolean): void {
    // What is free in a cache is nobody's.
    const difference = now[1].held - before[1].held;
    const free = now[1].freeBytes - before[1].freeBytes;
    const lines = compare(before, now, "line");
    const most = lines.find((line) => Math.sign(line.now - line.before) === Math.sign(difference || 1));
    const sign = difference >= 0 ? "+" : "";
    const words = [
      `${clean(labels[0], 60)}: ${size(before[1].held)} held at ${seconds(before[0].time[before[1].ordinal])}`,
      `${clean(labels[1], 60)}: ${size(now[1].held)} held at ${seconds(now[0].time[now[1].ordinal])}`,
      `${sign}${size(difference)}`,
      ...(free ? [`free in cache ${free > 0 ? "+" : ""}${size(free)}`] : []),
    ];
    const axis = el("div", {});
    const roles = compareRoles(before, now);
    fill(
      this.node,
      el("h3", { text: most && difference !== 0 ? `${sign}${size(difference)}: mostly ${clean(most.name, 120)} (${most.now >= most.before ? "+" : ""}${size(most.now - most.before)})` : "No difference" }),
      el("p", { text: `${words.join("; ")}. ${difference === 0 ? "" : `${explained(lines, difference)}`}` }),
      axis,
      ...(roles.length ? [this.table("by role", roles)] : []),
      this.table("by library", compare(before, now, "library")),
      this.table("by line", lines),
    );
    this.node.dataset.difference = String(difference);
    if (!runs) return;
    this.axis(axis, before[0], now[0], labels);
  }

  /** Both runs on one axis: by step where both mark steps, else by time. */
  private axis(into: HTMLElement, before: Model, now: Model, labels: [string, string]): void {
    const steps = [stepsOf(before), stepsOf(now)];
    const can = steps.every((all) => all.length > 2);
    const byStep = can && this.byStep;
    const end = Math.max(before.endNs, now.endNs);
    const many = byStep ? Math.max(steps[0].length, steps[1].length) : POINTS;
    const x = Array.from({ length: many }, (_, n) => (byStep ? n + 1 : (end * (n + 0.5)) / POINTS / 1e9));
    const values = (model: Model, which: number): (number | null)[] => {
      if (!byStep) return curve(model, end, POINTS);
      return x.map((_, n) => (steps[which][n] ? highest(model, ...steps[which][n]) : null));
    };
    if (can) {
      into.append(
        choice(byStep ? "aligned by step" : "aligned by time", false, () => {
          this.byStep = !this.byStep;
          this.draw();
        }),
      );
    }
    chart(into, {
      title: byStep ? "both runs, the highest of each step" : "both runs, by time since their start",
      x, height: 220, width: this.node.clientWidth - 10, xName: byStep ? "step" : undefined,
      curves: [
        { name: labels[0], colour: theme("dim"), values: values(before, 0), dash: [5, 3] },
        { name: labels[1], colour: theme("text"), values: values(now, 1) },
      ],
    });
  }

  private table(title: string, all: Grown[]): HTMLElement {
    const rows = all.filter((one) => one.now !== one.before).slice(0, ROWS);
    const most = Math.max(1, ...rows.map((one) => Math.abs(one.now - one.before)));
    const made = table(
      ["difference", "", "before", "now", "blocks", ...(title === "by role" ? ["role"] : ["library", "line"])],
      rows.map((one) => {
        const by = one.now - one.before;
        const bar = el("span", { class: by > 0 ? "grew" : "shrank" });
        bar.style.width = `${(80 * Math.abs(by)) / most}px`;
        const names = title === "by role" ? [] : [clean(one.name, 180)];
        const line = row(
          [
            `${by > 0 ? "+" : ""}${size(by)}`, bar, size(one.before), size(one.now), `${count(one.counts[0])} → ${count(one.counts[1])}`,
            clean(one.library, 40), ...names,
          ],
          [...NUMBERS, "", "text"],
        );
        line.dataset.by = String(by);
        return line;
      }),
      NUMBERS,
    );
    made.classList.add(title.replace(" ", "-"));
    made.prepend(el("h4", { text: title }));
    if (all.length > ROWS) made.append(el("p", { class: "dim", text: `${count(all.length - ROWS)} more` }));
    return made;
  }
}
