// A run of many processes: what ended, where and why; then a strip of all of them.

import { el, fill } from "../base/dom.ts";
import { clean, several, size } from "../base/units.ts";
import type { ProcessFacts, ProcessPage } from "../data/facts.ts";
import { endOf } from "./header.ts";
import type { Page, View } from "./page.ts";
import { askedBy } from "./verdict.ts";

/** From so many processes on, cells have no names. */
const MANY = 32;

const peakOf = (facts: ProcessFacts) =>
  facts.devices.reduce((most, device) => Math.max(most, device.peak_bytes), 0);

interface Cell {
  which: number;
  facts: ProcessFacts;
  page: ProcessPage;
  /** Seconds since 1970 of the failure; null: none. */
  failed: number | null;
  /** It left without an end. */
  killed: boolean;
}

export class Strip implements View {
  readonly node = el("section", { class: "strip", label: "All processes" });
  private readonly cells: Cell[];
  /** The process with the verdict of the run, where it leaks. */
  private readonly leaking: Cell | undefined;

  constructor(private readonly page: Page) {
    this.cells = page.facts.processes.map((one, which) => {
      const facts = page.facts.report.processes[which];
      const [first] = facts.failures;
      const killed = facts.ended === "cut_off";
      return { which, facts, page: one, failed: first ? facts.started_unix_s + first.at_s : null, killed };
    });
    this.leaking = this.cells.find(({ which, facts }) => which === page.facts.report.verdict_of && facts.verdict?.kind === "leak");
  }

  private get failures(): Cell[] {
    return this.cells.filter((cell) => cell.failed !== null).sort((a, b) => (a.failed ?? 0) - (b.failed ?? 0));
  }

  /** The process that is shown first: the one that failed first, else one that leaks or was killed, else the first. */
  first(): number {
    if (this.cells.length < 2) return 0;
    return (this.failures[0] ?? this.leaking ?? this.cells.find((cell) => cell.killed) ?? this.cells[0]).which;
  }

  draw(): void {
    this.node.hidden = this.cells.length < 2;
    if (this.node.hidden) return;
    const most = this.cells.reduce((highest, cell) => Math.max(highest, peakOf(cell.facts)), 1);
    fill(
      this.node,
      ...this.words(),
      el("div", { class: this.cells.length > MANY ? "cells many" : "cells" }, ...this.cells.map((cell) => this.cell(cell, most))),
    );
  }

  private words(): HTMLElement[] {
    const [first, ...others] = this.failures;
    const killed = this.cells.filter((cell) => cell.killed);
    const words = this.leaking ? [`${this.leaking.page.name}: ${this.leaking.facts.verdict?.text}`] : [];
    if (first) {
      const [failure] = first.facts.failures;
      words.push(`${first.page.name} ran out of memory first, on GPU ${failure.device ?? "?"} of ${first.facts.host}: ${askedBy(failure)}`);
      if (others.length) words.push(`${several(others.length, "other process").replace("processs", "processes")} too`);
    }
    if (killed.length) {
      const names = killed.slice(0, 4).map((cell) => cell.page.name).join(", ");
      words.push(`${names}${killed.length > 4 ? ` and ${killed.length - 4} more` : ""} ended ${[...new Set(killed.map((cell) => endOf(cell.facts)))].join(" or ")}`);
    }
    words.push(this.others(words.length > 0));
    return words.filter((text) => text).map((text, n) => el(n ? "p" : "h2", { text: clean(text, 400) }));
  }

  /** The processes without a failure; `failed`: others have one. */
  private others(failed: boolean): string {
    const rest = this.cells.filter((cell) => cell.failed === null && !cell.killed);
    const inOrder = rest.filter((cell) => cell.facts.ended === "in_order").length;
    const running = rest.filter((cell) => cell.facts.running).length;
    const all = several(this.cells.length, "process").replace("processs", "processes");
    const words = failed ? [] : [inOrder === this.cells.length ? `${all}, all ended in order` : all];
    if (failed && inOrder) words.push(inOrder === 1 ? "1 process ended in order" : `${inOrder} processes ended in order`);
    if (running) words.push(`${running} still running`);
    return words.join(", ");
  }

  private cell({ which, facts, page, failed, killed }: Cell, most: number): HTMLElement {
    const { store } = this.page;
    const state = failed !== null ? "failed" : killed ? "killed" : facts.odd !== null ? "odd" : "fine";
    const bar = el("span", { class: "bar" });
    bar.style.width = `${(100 * peakOf(facts)) / most}%`;
    const sign = { failed: "OOM", killed: "killed", odd: "stands out", fine: "" }[state];
    const name = page.name.split("/").pop() ?? page.name;
    const cell = el(
      "button",
      {
        class: `cell ${state}${this.page.process === which ? " chosen" : ""}`,
        title: clean(`${name}: ${size(peakOf(facts))} at its peak, ended ${endOf(facts) || "as imported"}`, 200),
        on: { click: () => store.set({ process: which, device: -1, pin: null, view: null, range: null, second: null, filter: null }) },
      },
      el("span", { class: "name", text: clean(name, 30) }),
      el("span", { class: "state", text: sign || size(peakOf(facts)) }),
      el("span", { class: "track" }, bar),
    );
    cell.dataset.state = state;
    return cell;
  }
}
