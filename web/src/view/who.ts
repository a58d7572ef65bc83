// Whose the memory of the pinned moment is: a flame graph and a table.

import { el, fill } from "../base/dom.ts";
import { colour } from "../base/palette.ts";
import { clean, count, duration, percent, several, size } from "../base/units.ts";
import { LIVE } from "../data/stream.ts";
import { FREE, SMALL } from "../model/model.ts";
import { Flame } from "./flame.ts";
import type { Page, View } from "./page.ts";

interface Row {
  holder: number;
  name: string;
  label: string;
  library: string;
  caller: string;
  bytes: number;
  count: number;
  /** Over the whole run. */
  allocations: number;
  churn: number;
  lifetime: number;
}

const COLUMNS: [string, string, (row: Row) => number | string][] = [
  ["bytes", "bytes", (row) => row.bytes],
  ["count", "blocks", (row) => row.count],
  ["allocations", "allocations", (row) => row.allocations],
  ["churn", "allocated in all", (row) => row.churn],
  ["lifetime", "mean life", (row) => row.lifetime],
  ["library", "library", (row) => row.library],
  ["name", "line", (row) => row.name],
];

/** Rows that are shown at once. */
const ROWS = 200;

export class Who implements View {
  readonly node = el("section", { class: "who-view", label: "Who holds the memory" });
  private readonly flame: Flame;
  private readonly table = el("div", { class: "table" });
  private readonly find = el("input", { class: "find", label: "Search lines, functions, libraries" });
  private readonly notes = el("span", { class: "dim" });
  private rows: { device: unknown; churn: Map<number, [number, number, number]> } | null = null;
  private most = ROWS;

  constructor(private readonly page: Page) {
    this.flame = new Flame(page);
    this.find.type = "search";
    this.find.placeholder = "search a line, function or library ( / )";
    this.find.addEventListener("input", () => page.store.set({ search: this.find.value }));
    const frames = el("button", {
      class: "switch",
      on: { click: () => page.store.set({ frames: !page.store.state.frames }) },
    });
    const flip = el("button", {
      class: "switch",
      on: { click: () => page.store.set({ inverted: !page.store.state.inverted }) },
    });
    page.store.listen(() => this.name(frames, flip));
    this.name(frames, flip);
    this.node.append(
      el("div", { class: "bar-row" }, frames, flip, this.find, this.notes),
      this.flame.node,
      this.table,
    );
  }

  private name(frames: HTMLElement, flip: HTMLElement): void {
    const { state } = this.page.store;
    frames.textContent = state.frames ? "fold frames of frameworks" : "show frames of frameworks";
    flip.textContent = state.inverted ? "outermost frame first" : "innermost frame first";
  }

  focus(): void {
    this.find.focus();
  }

  /** Allocations of each holder over the whole run: how many, bytes, time. */
  private churn(): Map<number, [number, number, number]> {
    const { model } = this.page;
    if (this.rows?.device === model) return this.rows.churn;
    const churn = new Map<number, [number, number, number]>();
    const sums = model.page.owners.map(() => [0, 0, 0] as [number, number, number]);
    for (const of of [model.blocks, model.memory]) {
      for (let n = 0; n < of.length; n++) {
        const owner = of.owner[n];
        if (!model.owned[owner]) continue;
        const end = of.end[n] === LIVE ? model.last : of.end[n];
        const sum = sums[owner];
        sum[0]++;
        sum[1] += of.size[n];
        sum[2] += model.time[end] - model.time[of.start[n]];
      }
    }
    model.page.owners.forEach((owner, n) => {
      const all = churn.get(owner[3]) ?? [0, 0, 0];
      churn.set(owner[3], [all[0] + sums[n][0], all[1] + sums[n][1], all[2] + sums[n][2]]);
    });
    this.rows = { device: model, churn };
    return churn;
  }

  private all(): Row[] {
    const { page } = this;
    const { model } = page;
    const churn = this.churn();
    const at = page.moment;
    const held = new Map<number, Row>();
    const row = (holder: number, library: string): Row => {
      const known = held.get(holder);
      if (known) return known;
      const [allocations, bytes, time] = churn.get(holder) ?? [0, 0, 0];
      const made: Row = {
        holder,
        name: model.holderName(holder),
        label: model.holderLabel(holder),
        library,
        caller: holder >= 0 ? model.page.holders[holder].caller : "",
        bytes: 0,
        count: 0,
        allocations,
        churn: bytes,
        lifetime: allocations ? time / allocations : 0,
      };
      held.set(holder, made);
      return made;
    };
    model.page.owners.forEach((owner, n) => {
      if (!model.owned[n]) return;
      const one = row(owner[3], model.library(n));
      one.bytes += at.bytes[n];
      one.count += at.count[n];
    });
    if (at.freeBytes > 0) {
      const free = row(FREE, "PyTorch");
      [free.bytes, free.count] = [at.freeBytes, at.freeCount];
    }
    if (at.lumped > 0) {
      const small = row(SMALL, "unknown");
      [small.bytes, small.count] = [at.lumped, at.lumpedCount];
    }
    return [...held.values()];
  }

  draw(): void {
    const { page } = this;
    const { state } = page.store;
    if (this.find.value !== state.search) this.find.value = state.search;
    this.flame.draw();
    const words = state.search.toLowerCase().split(/\s+/).filter(Boolean);
    const fits = (row: Row) => {
      const text = `${row.name} ${row.caller} ${row.library}`.toLowerCase();
      const { filter } = state;
      if (filter && (filter.what === "library" ? row.library : row.label) !== filter.name) return false;
      return words.every((word) => text.includes(word));
    };
    const [key, down] = state.sort.startsWith("-") ? [state.sort.slice(1), false] : [state.sort, true];
    const by = (COLUMNS.find(([name]) => name === key) ?? COLUMNS[0])[2];
    const rows = this.all().filter(fits);
    rows.sort((a, b) => {
      const [x, y] = [by(a), by(b)];
      const order = typeof x === "number" && typeof y === "number" ? y - x : String(x).localeCompare(String(y));
      return (down ? order : -order) || b.bytes - a.bytes || a.holder - b.holder;
    });
    const bytes = rows.reduce((sum, row) => sum + row.bytes, 0);
    this.notes.textContent = `${several(rows.length, "line")}, ${size(bytes)}`;
    this.fillTable(rows, key, down);
  }

  private fillTable(rows: Row[], key: string, down: boolean): void {
    const { page } = this;
    const total = page.moment.total;
    const head = el(
      "tr",
      {},
      ...COLUMNS.map(([name, title]) =>
        el(
          "th",
          {},
          el("button", {
            text: title + (name === key ? (down ? " ↓" : " ↑") : ""),
            on: { click: () => page.store.set({ sort: name === key && down ? `-${name}` : name }) },
          }),
        ),
      ),
    );
    const body = rows.slice(0, this.most).map((row) => {
      const swatch = el("span", { class: "swatch" });
      swatch.style.background = colour(row.holder < 0 ? row.name : row.library);
      const line = el(
        "tr",
        {
          class: page.store.state.filter?.name === row.label ? "chosen" : "",
          on: { click: () => page.filter("holder", row.label) },
        },
        el("td", { class: "number", text: `${size(row.bytes)}  ${percent(row.bytes, total)}` }),
        el("td", { class: "number", text: count(row.count) }),
        el("td", { class: "number", text: count(row.allocations) }),
        el("td", { class: "number", text: size(row.churn) }),
        el("td", { class: "number", text: row.allocations ? duration(row.lifetime) : "" }),
        el("td", {}, swatch, clean(row.library, 40)),
        el(
          "td",
          { class: "text" },
          clean(row.name, 140),
          row.caller ? el("span", { class: "dim", text: `  from ${clean(row.caller, 100)}` }) : null,
        ),
      );
      line.dataset.bytes = String(row.bytes);
      line.dataset.count = String(row.count);
      return line;
    });
    const more =
      rows.length > this.most &&
      el("button", {
        class: "switch",
        text: `show ${count(Math.min(ROWS * 5, rows.length - this.most))} more of ${count(rows.length)}`,
        on: {
          click: () => {
            this.most += ROWS * 5;
            this.draw();
          },
        },
      });
    fill(this.table, el("table", {}, el("thead", {}, head), el("tbody", {}, ...body)), more);
  }
}
