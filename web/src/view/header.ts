// Program, GPU, host, date, duration and end of the shown process; the title of the tab.

import { el, fill } from "../base/dom.ts";
import { clean, duration, size } from "../base/units.ts";
import type { ProcessFacts } from "../data/facts.ts";
import type { Model } from "../model/model.ts";
import type { Page } from "./page.ts";
import { leakOf } from "./verdict.ts";

const base = (path: string) => path.split("/").pop() ?? path;

/** What the page is about; an imported trace names no program. */
function programOf(facts: ProcessFacts, label: string): string {
  return facts.program || base(label);
}

/** How the run ended; empty: an imported trace does not tell. */
export function endOf({ ended, ended_in_order: inOrder, exit_status: status, failures, imported_from: form }: ProcessFacts): string {
  if (failures.length) {
    const what = failures.some((one) => one.level === "tensor") ? "torch.OutOfMemoryError" : "out of memory";
    return inOrder || form !== null ? what : `${what}, and not in order`;
  }
  const known: Record<string, string> = { unknown: "", in_order: "in order", running: "not yet: it was running" };
  const left = status === null ? "in a way that was not recorded" : `by _exit, with status ${status}`;
  return known[ended] ?? left;
}

/** What the tab says of the run. */
export function titleOf(model: Model, label: string): string {
  const program = programOf(model.facts, label);
  if (model.failure) return clean(`OOM, ${program}`, 100);
  if (leakOf(model)) return clean(`leak, ${program}`, 100);
  return clean(`${program}: ${size(model.top(model.peak))}`, 100);
}

export function dateOf(unixS: number): string {
  const at = new Date(unixS * 1e3);
  return Number.isNaN(at.getTime()) || at.getTime() === 0 ? "" : `${at.toISOString().slice(0, 16).replace("T", " ")} UTC`;
}

function select(label: string, options: [string, string][], value: string, change: (value: string) => void): HTMLElement {
  const node = el("select", { label });
  for (const [id, text] of options) {
    const option = el("option", { text: clean(text, 60) });
    option.value = id;
    node.append(option);
  }
  node.value = value;
  node.addEventListener("change", () => change(node.value));
  return node;
}

export function drawHeader(into: HTMLElement, page: Page, models: Model[], turn: () => void): void {
  const { store, facts, model } = page;
  const device = model.deviceFacts;
  const end = endOf(model.facts);
  // Of an imported trace only the number is known.
  const product = device && device.total_bytes !== null ? device.name : "";
  const gpu = device ? `${device.device === null ? "GPU ?" : `GPU ${device.device}`} ${product}`.trim() : "";
  const command = model.facts.command.join(" ");
  const part = (name: string, text: string, title = "") => (text ? el("span", { class: name, text: clean(text, 160), title: clean(title, 300) }) : null);
  fill(
    into,
    el("strong", { class: "program", text: clean(programOf(model.facts, facts.label), 60), title: clean(facts.label, 300) }),
    facts.processes.length > 1
      ? select("Process", facts.processes.map((one, n) => [String(n), base(one.name)]), String(store.state.process), (value) =>
          store.set({ process: Number(value), device: -1, pin: null, view: null, range: null, second: null }))
      : null,
    models.length > 1
      ? select("Device", models.map((one) => [String(one.device), one.device === 255 ? "GPU ?" : `GPU ${one.device}`]), String(model.device), (value) =>
          store.set({ device: Number(value), pin: null }))
      : null,
    part("gpu", gpu),
    part("dim host", model.facts.host),
    part("dim date", dateOf(model.facts.started_unix_s)),
    part("dim ran", model.facts.has_times ? `ran ${duration(model.facts.duration_s * 1e9)}` : ""),
    part(model.facts.failures.length || end.startsWith("in a way") ? "end bad" : "end", end && `ended ${end}`),
    part("command", command || facts.label, facts.label),
    el("button", { class: "switch", text: "theme", title: "light or dark (T)", on: { click: turn } }),
  );
}
