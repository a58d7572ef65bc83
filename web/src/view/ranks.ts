// All processes of the run on one axis: what each had, its difference from the median, the sum of each
// card, and the odd one out where there is one.

import { el, fill, row, table, theme } from "../base/dom.ts";
import { clean, seconds, size } from "../base/units.ts";
import { byRole, holders, moment } from "../model/moment.ts";
import { usual } from "../model/groups.ts";
import { after, FREE_CACHE, type Model } from "../model/model.ts";
import { chart } from "./lines.ts";
import type { Page, View } from "./page.ts";

const POINTS = 300;

/** The highest figure between two moments. */
function highest(model: Model, from: number, to: number): number {
  let found = model.top(to);
  for (const steps of [model.sums[0], model.sums[1], model.sums[2]]) {
    // Few of a cache's events change its figure.
    for (let index = after(steps.at, from); index < steps.at.length && steps.at[index] <= to; index++) {
      found = Math.max(found, model.top(steps.at[index]));
    }
  }
  return found;
}

/** When each of some processes began, after the first of them, in ns. Processes that did not run at the same time
 * are drawn from their own beginnings: on one axis each would be a pixel wide. */
export function begins(started: number[], lasted: number[]): { late: number[]; together: boolean } {
  const at = started.map((one) => one * 1e9);
  const first = Math.min(...at);
  const late = at.map((one) => Math.max(0, one - first) || 0);
  const longest = Math.max(...lasted);
  const together = late.every((one) => one <= longest);
  return { late: together ? late : late.map(() => 0), together };
}

/** The highest figure in each of equal parts of a time. */
function curve(model: Model, endNs: number, points: number): (number | null)[] {
  const values: (number | null)[] = [];
  let from = 0;
  for (let n = 0; n < points; n++) {
    const until = (endNs * (n + 1)) / points;
    if ((endNs * n) / points > model.endNs) {
      values.push(null);
      continue;
    }
    const to = model.at(until);
    values.push(highest(model, from, to));
    from = to;
  }
  return values;
}

function median(values: number[]): number {
  const sorted = [...values].sort((a, b) => a - b);
  const middle = sorted.length >> 1;
  return sorted.length % 2 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
}

/** Bytes at the peak, by role or by library. */
function composition(model: Model, by: "role" | "library"): Map<string, number> {
  const at = moment(model, model.peak);
  const sums = new Map<string, number>();
  const add = (name: string, bytes: number) => sums.set(name, (sums.get(name) ?? 0) + bytes);
  if (by === "library") {
    for (const held of holders(model, at)) {
      add(held.holder < 0 ? model.holderName(held.holder) : held.library, held.bytes);
    }
    if (at.freeBytes > 0) add(FREE_CACHE, at.freeBytes);
    return sums;
  }
  for (const of of byRole(model, at)) add(of.role, of.bytes);
  return sums;
}

/** Outliers that are named in words; the table has all. */
const NAMED = 4;

/** Which processes stand out, each with its reason. */
export function standing(all: [string, string | null][]): string {
  const outside = all.filter((one): one is [string, string] => one[1] !== null);
  if (!outside.length) return "none stands out";
  const named = outside.slice(0, NAMED).map(([name, reason]) => `${name} stands out: ${reason}`);
  if (outside.length > NAMED) named.push(`${outside.length - NAMED} more stand out`);
  return named.join("; ");
}

export class Ranks implements View {
  readonly node = el("section", { class: "ranks", label: "Ranks" });
  private models: { name: string; model: Model; process: number }[] | null = null;
  private loading = false;

  constructor(private readonly page: Page) {}

  private async loaded(): Promise<void> {
    this.loading = true;
    const run = this.page.facts;
    const all: { name: string; model: Model; process: number }[] = [];
    for (let process = 0; process < run.processes.length; process++) {
      const models = await this.page.load(process);
      for (const model of models) {
        const device = models.length > 1 ? ` GPU ${model.device}` : "";
        all.push({ name: `${run.processes[process].name}${device}`, model, process });
      }
    }
    this.models = all;
    this.draw();
  }

  draw(): void {
    if (!this.models) {
      fill(this.node, el("p", { class: "dim", text: "Reading the other processes." }));
      if (!this.loading) void this.loaded();
      return;
    }
    const { page } = this;
    const all = this.models;
    const started = all.map((one) => page.facts.report.processes[one.process].started_unix_s);
    const { late, together } = begins(started, all.map((one) => one.model.endNs));
    const end = Math.max(...all.map((one, n) => one.model.endNs + late[n]));
    const curves = all.map((one, n) => {
      const skipped = Math.floor((late[n] / end) * POINTS);
      const points = curve(one.model, end - late[n], POINTS - skipped);
      return [...new Array<null>(skipped).fill(null), ...points];
    });
    const peaks = all.map((one) => one.model.top(one.model.peak));
    const middle = median(peaks);
    const most = Math.max(...peaks, 1);
    const x = Array.from({ length: POINTS }, (_, n) => (end * (n + 0.5)) / POINTS / 1e9);
    // The same for all: else parts of one would stand against other parts of another.
    const by = all.every((one) => usual(one.model) === "role") ? "role" : "library";
    const parts = all.map((one) => composition(one.model, by));
    const names = [...new Set(parts.flatMap((sums) => [...sums.keys()]))];
    const reports = page.facts.report.processes;
    const odd = all.map((one) => reports[one.process].odd);
    const grid = el("div", { class: "multiples" });
    const peakName = all.every((one) => one.model.hasProcessFigure) ? "in nvidia-smi at the peak" : "recorded at the peak";
    const rows = all.map((one, n) => {
      const differences = names
        .map((name) => {
          const here = parts[n].get(name) ?? 0;
          return { name, by: here - median(parts.map((sums) => sums.get(name) ?? 0)) };
        })
        .sort((a, b) => Math.abs(b.by) - Math.abs(a.by))
        .filter(({ by }) => Math.abs(by) > middle / 100)
        .slice(0, 3);
      return row(
        [
          clean(one.name, 60), size(peaks[n]), `${peaks[n] >= middle ? "+" : ""}${size(peaks[n] - middle)}`,
          differences.map(({ name, by }) => `${clean(name, 30)} ${by > 0 ? "+" : ""}${size(by)}`).join("; "), clean(odd[n] ?? "", 200),
        ],
        ["", "number", "number", "", "text"],
        { class: odd[n] ? "odd" : "", on: { click: () => page.store.set({ process: one.process, device: one.model.device, pin: null, view: null }) } },
      );
    });
    fill(
      this.node,
      el("p", { text: this.words(odd, middle) }),
      !together && el("p", { class: "dim", text: "They did not run at the same time: each is drawn from its own beginning." }),
      table(["process", peakName, "to the median", "where", "what stands out"], rows, ["", "number", "number"]),
      ...(together ? this.cards(curves, x) : []),
      grid,
    );
    const width = Math.max(220, Math.floor(this.node.clientWidth / Math.min(4, Math.max(1, all.length))) - 12);
    all.forEach((one, n) => {
      const box = el("div", { class: odd[n] ? "multiple odd" : "multiple" });
      grid.append(box);
      const flat = x.map((_, at) => (curves[n][at] === null ? null : middle));
      chart(box, {
        title: one.name, x, width, height: 150, highest: most, legend: false,
        curves: [
          { name: "in nvidia-smi", colour: theme(odd[n] ? "bad" : "text"), values: curves[n] },
          { name: "median of the peaks", colour: theme("dim"), values: flat, dash: [4, 3] },
        ],
      });
    });
  }

  private words(odd: (string | null)[], middle: number): string {
    const all = this.models ?? [];
    if (all.length < 2) return "One process on one device: there is nothing to compare.";
    return clean(`${all.length} processes and devices; the median of what each had at its peak is ${size(middle)}; ${standing(all.map((one, n) => [one.name, odd[n]]))}.`, 600);
  }

  /** Cards that several processes share: the sum. */
  private cards(curves: (number | null)[][], x: number[]): HTMLElement[] {
    const cards = new Map<string, number[]>();
    (this.models ?? []).forEach((one, n) => {
      const key = `${one.model.facts.host} ${one.model.deviceFacts?.uuid ?? `${n}`}`;
      cards.set(key, [...(cards.get(key) ?? []), n]);
    });
    const shared = [...cards.values()].filter((which) => which.length > 1);
    return shared.map((which) => {
      const box = el("div", {});
      const sum = x.map((_, at) => which.reduce((all, n) => all + (curves[n][at] ?? 0), 0));
      const most = Math.max(...sum);
      const names = which.map((n) => this.models?.[n].name).join(", ");
      requestAnimationFrame(() =>
        chart(box, {
          title: `one card, shared by ${names}: ${size(most)} at most together`, x, width: this.node.clientWidth - 20, height: 170, legend: false,
          curves: [
            { name: "together", colour: theme("text"), values: sum },
            ...which.map((n) => ({ name: this.models?.[n].name ?? "", colour: theme("dim"), values: curves[n] })),
          ],
        }),
      );
      box.dataset.highest = String(most);
      box.title = `together ${size(most)} at ${seconds(x[sum.indexOf(most)] * 1e9)}`;
      return box;
    });
  }
}
