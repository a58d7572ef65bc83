// Whose the memory of the pinned moment is: a flame graph and a table.

import { choice, el, fill } from "../base/dom.ts";
import { chosen } from "../base/palette.ts";
import { clean, count, duration, percent, several, size } from "../base/units.ts";
import { LIVE } from "../data/stream.ts";
import { FREE, FREE_CACHE, LUMPED, SMALL, type Model } from "../model/model.ts";
import { eachLive } from "../model/moment.ts";
import type { Filter, List } from "../state.ts";
import { Flame } from "./flame.ts";
import type { Page, View } from "./page.ts";

interface Row {
  /** Of a line; of a role or library its place. */
  id: number;
  name: string;
  /** What a click filters by; null: nothing. */
  filter: Filter | null;
  library: string;
  caller: string;
  /** What most of it is for. */
  role: string;
  bytes: number;
  count: number;
  /** Without memory. */
  paused: number;
  /** Over the whole run. */
  allocations: number;
  churn: number;
  lifetime: number;
}

/** Key, title, what it is sorted by, text of the cell. Figures stand below each other by their last digit. */
type Column = [string, string, (row: Row) => number | string, (row: Row) => string];

const FIGURES: Column[] = [
  ["bytes", "bytes", (row) => row.bytes, (row) => size(row.bytes)],
  ["count", "blocks", (row) => row.count, (row) => count(row.count)],
  ["allocations", "allocations", (row) => row.allocations, (row) => count(row.allocations)],
  ["churn", "allocated in all", (row) => row.churn, (row) => size(row.churn)],
  ["lifetime", "mean life", (row) => row.lifetime, (row) => (row.allocations ? duration(row.lifetime) : "")],
];
const PAUSED: Column = ["paused", "asleep", (row) => row.paused, (row) => (row.paused ? size(row.paused) : "")];
const ROLE: Column = ["role", "role", (row) => row.role, (row) => clean(row.role, 60)];
const LIBRARY: Column = ["library", "library", (row) => row.library, (row) => clean(row.library, 40)];
const LINE: Column = ["name", "line", (row) => row.name, (row) => clean(row.name, 140)];
const isFigure = (column: Column) => column === PAUSED || FIGURES.includes(column);

/** What was allocated over the whole run: how often, bytes, time that it lived. */
type Churn = Map<string | number, [number, number, number]>;

/** The role of most of it, and its part where others have some. */
function mostly(sums: Float64Array, roles: string[], bytes: number): string {
  let most = 0;
  sums.forEach((sum, n) => {
    if (sum > sums[most]) most = n;
  });
  const part = bytes > 0 && sums[most] < bytes ? ` ${percent(sums[most], bytes)}` : "";
  return roles[most] + part;
}

/** Rows that are shown at once. */
const ROWS = 200;

export class Who implements View {
  readonly node = el("section", { class: "who-view", label: "Who holds the memory" });
  private readonly flame: Flame;
  private readonly table = el("div", { class: "table" });
  private readonly find = el("input", { class: "find", label: "Search lines, functions, libraries" });
  private readonly notes = el("span", { class: "dim" });
  private readonly lists = el("div", { class: "switches" });
  /** Lines that hold nothing at the pinned moment are shown, too. */
  private idle = false;
  private kept: { model: Model; list: List; churn: Churn } | null = null;
  private most = ROWS;

  constructor(private readonly page: Page) {
    this.flame = new Flame(page);
    this.find.type = "search";
    this.find.placeholder = "search a line, function or library ( / )";
    this.find.addEventListener("input", () => page.store.set({ search: this.find.value }));
    const frames = choice("", false, () => page.store.set({ frames: !page.store.state.frames }));
    const flip = choice("", false, () => page.store.set({ inverted: !page.store.state.inverted }));
    page.store.listen(() => this.name(frames, flip));
    this.name(frames, flip);
    this.node.append(
      el("div", { class: "bar-row" }, frames, flip, this.find, this.notes),
      this.flame.node,
      this.lists,
      this.table,
    );
  }

  private name(frames: HTMLElement, flip: HTMLElement): void {
    const { state } = this.page.store;
    frames.textContent = state.frames ? "fold frames of frameworks" : "show frames of frameworks";
    flip.textContent = state.inverted ? "outermost frame first" : "innermost frame first";
  }

  /** Back to all stacks. */
  clear(): void {
    this.flame.clear();
  }

  focus(): void {
    this.find.focus();
  }

  /** What a row stands for: the line of a stack, its library, or a role. */
  private keyOf(list: List, owner: number, role: number): string | number {
    const { model } = this.page;
    if (list === "role") return model.page.roles[role] ?? "unknown";
    return list === "library" ? model.library(owner) : model.page.owners[owner][3];
  }

  /** Allocations over the whole run: how many, bytes, time. */
  private churn(list: List): Churn {
    const { model } = this.page;
    if (this.kept?.model === model && this.kept.list === list) return this.kept.churn;
    const churn: Churn = new Map();
    const roles = Math.max(1, model.page.roles.length);
    // By owner and role first: there are few of them.
    const sums = new Float64Array(model.page.owners.length * roles * 3);
    for (const of of [model.blocks, model.memory]) {
      for (let n = 0; n < of.length; n++) {
        const owner = of.owner[n];
        if (!model.owned[owner]) continue;
        const end = of.end[n] === LIVE ? model.last : of.end[n];
        const at = (owner * roles + Math.min(of.role[n], roles - 1)) * 3;
        // What goes on from another record was allocated there.
        if (!of.continues[n]) {
          sums[at]++;
          sums[at + 1] += of.size[n];
        }
        sums[at + 2] += model.time[end] - model.time[of.start[n]];
      }
    }
    model.page.owners.forEach((_, owner) => {
      for (let role = 0; role < roles; role++) {
        const at = (owner * roles + role) * 3;
        if (sums[at] === 0 && sums[at + 2] === 0) continue;
        const key = this.keyOf(list, owner, role);
        const all = churn.get(key) ?? [0, 0, 0];
        churn.set(key, [all[0] + sums[at], all[1] + sums[at + 1], all[2] + sums[at + 2]]);
      }
    });
    this.kept = { model, list, churn };
    return churn;
  }

  private empty(list: List, key: string | number, library: string): Row {
    const { model } = this.page;
    const [allocations, bytes, time] = this.churn(list).get(key) ?? [0, 0, 0];
    const lifetime = allocations ? time / allocations : 0;
    const figures = { bytes: 0, count: 0, paused: 0, allocations, churn: bytes, lifetime };
    if (typeof key === "string") {
      const filter: Filter = { what: list === "role" ? "role" : "library", name: key };
      return { id: 0, name: key, filter, library: key, caller: "", role: "", ...figures };
    }
    const caller = key >= 0 ? model.page.holders[key].caller : "";
    const filter: Filter = { what: "holder", name: model.holderLabel(key) };
    return { id: key, name: model.holderName(key), filter, library, caller, role: "", ...figures };
  }

  private all(): Row[] {
    const { page } = this;
    const { model } = page;
    const { list, filter } = page.store.state;
    const at = page.moment;
    const wanted = page.wanted();
    const held = new Map<string | number, Row>();
    const row = (key: string | number, library: string): Row => {
      const known = held.get(key);
      if (known) return known;
      const made = this.empty(list, key, library);
      held.set(key, made);
      return made;
    };
    // Lines that hold nothing now are listed too, for what they allocated.
    if (list === "line" && filter?.what !== "role") {
      model.page.owners.forEach((owner, n) => model.owned[n] && row(owner[3], model.library(n)));
    }
    const roles = new Map<Row, Float64Array>();
    eachLive(model, at, (owner, role, bytes) => {
      if (wanted && !wanted(owner, role)) return;
      const one = row(this.keyOf(list, owner, role), model.library(owner));
      one.bytes += bytes;
      one.count++;
      let sums = roles.get(one);
      if (!sums) roles.set(one, (sums = new Float64Array(model.page.roles.length)));
      sums[role] += bytes;
    });
    for (const [one, sums] of roles) one.role = mostly(sums, model.page.roles, one.bytes);
    if (list === "line" && filter?.what !== "role") {
      at.paused.forEach((paused, owner) => {
        if (paused > 0 && (!wanted || wanted(owner, 0))) row(model.page.owners[owner][3], "").paused += paused;
      });
    }
    const other = (name: string, library: string, id: number, bytes: number, count: number, paused = 0) => {
      const what = list === "line" ? "holder" : list;
      if (bytes + paused === 0 || (filter && (filter.what !== what || filter.name !== name))) return;
      const figures = { bytes, count, paused, allocations: 0, churn: 0, lifetime: 0 };
      held.set(name, { id, name, filter: { what, name }, library, caller: "", role: "", ...figures });
    };
    const small = list === "line" ? model.holderName(SMALL) : LUMPED;
    other(small, list === "line" ? "unknown" : small, SMALL, at.lumped, at.lumpedCount);
    return [...held.values()];
  }

  /** It is no holder, and stands below them. */
  private free(): Row | null {
    const { store, moment: at } = this.page;
    const paused = store.state.list === "line" ? at.freePaused : 0;
    if (at.freeBytes + paused === 0 || store.state.filter || store.state.search) return null;
    const figures = { bytes: at.freeBytes, count: at.freeCount, paused, allocations: 0, churn: 0, lifetime: 0 };
    return { id: FREE, name: FREE_CACHE, filter: null, library: "", caller: "", role: "", ...figures };
  }

  draw(): void {
    const { page } = this;
    const { state } = page.store;
    if (this.find.value !== state.search) this.find.value = state.search;
    this.flame.draw();
    this.switches();
    const words = state.search.toLowerCase().split(/\s+/).filter(Boolean);
    const fits = (row: Row) => {
      const text = `${row.name} ${row.caller} ${row.library} ${row.role}`.toLowerCase();
      const { filter } = state;
      if (state.list === "line" && filter?.what === "library" && row.library !== filter.name) return false;
      if (state.list === "line" && filter?.what === "holder" && row.filter?.name !== filter.name) return false;
      return words.every((word) => text.includes(word));
    };
    const columns = this.columns();
    const [key, down] = state.sort.startsWith("-") ? [state.sort.slice(1), false] : [state.sort, true];
    const by = (columns.find(([name]) => name === key) ?? columns[0])[2];
    const found = this.all().filter(fits);
    const rows = this.idle || words.length ? found : found.filter((row) => row.bytes + row.paused > 0);
    rows.sort((a, b) => {
      const [x, y] = [by(a), by(b)];
      const order = typeof x === "number" && typeof y === "number" ? y - x : String(x).localeCompare(String(y));
      return (down ? order : -order) || b.bytes - a.bytes || a.id - b.id;
    });
    const bytes = rows.reduce((sum, row) => sum + row.bytes, 0);
    this.notes.textContent = `${several(rows.length, state.list)}, ${size(bytes)} ${page.when}`.replace("librarys", "libraries");
    this.fillTable(columns, rows, key, down);
    const hidden = found.length - rows.length;
    if (hidden > 0 || this.idle) {
      const text = this.idle ? "hide lines that hold nothing" : `show ${several(hidden, "line")} that ${hidden === 1 ? "holds" : "hold"} nothing ${page.when}`;
      this.table.append(choice(text, false, () => this.turn()));
    }
  }

  private turn(): void {
    this.idle = !this.idle;
    this.draw();
  }

  private columns(): Column[] {
    const { list } = this.page.store.state;
    if (list !== "line") return [...FIGURES, [list, list, (row) => row.name, (row) => clean(row.name, 60)]];
    const { moment } = this.page;
    const sleeps = moment.freePaused > 0 || moment.paused.some((bytes) => bytes > 0);
    const figures = sleeps ? [...FIGURES.slice(0, 2), PAUSED, ...FIGURES.slice(2)] : FIGURES;
    return [...figures, ...(this.page.model.hasRoles ? [ROLE] : []), LIBRARY, LINE];
  }

  private switches(): void {
    const { store, model } = this.page;
    const lists: List[] = model.hasRoles ? ["line", "role", "library"] : ["line", "library"];
    fill(
      this.lists,
      el("span", { class: "dim", text: "table by " }),
      ...lists.map((list) => choice(list, store.state.list === list, () => store.set({ list }))),
    );
  }

  /** In the colour that the timeline gives it; none where the timeline is stacked by something else. */
  private swatch(row: Row): HTMLElement | null {
    const { page } = this;
    const { list, filter } = page.store.state;
    let paint: string | undefined;
    if (filter && row.filter?.name === filter.name && row.filter.what === filter.what) paint = chosen();
    else if (row.id === FREE || list === page.stack.by) paint = page.stack.groups.find((group) => group.name === row.name)?.colour;
    else if (list === "line" && row.bytes > 0) paint = page.tint(row.id);
    if (!paint) return null;
    const one = el("span", { class: "swatch" });
    one.style.background = paint;
    return one;
  }

  private cell(column: Column, row: Row): HTMLElement {
    const [name, , , text] = column;
    const cell = el("td", { class: `of-${name}${isFigure(column) ? " number" : ""}`, text: text(row) });
    if (name === "bytes") {
      cell.append(`  ${percent(row.bytes, this.page.moment.total)}`);
      cell.prepend(this.swatch(row) ?? "");
    } else if (name === "name") {
      cell.classList.add("text");
      if (row.caller) cell.append(el("span", { class: "dim", text: `  from ${clean(row.caller, 100)}` }));
    }
    return cell;
  }

  private fillTable(columns: Column[], rows: Row[], key: string, down: boolean): void {
    const { page } = this;
    const head = el(
      "tr",
      {},
      ...columns.map((column) => {
        const [name, title] = column;
        const text = title + (name === key ? (down ? " ↓" : " ↑") : "");
        const click = () => page.store.set({ sort: name === key && down ? `-${name}` : name });
        return el("th", { class: `of-${name}${isFigure(column) ? " number" : ""}` }, el("button", { text, on: { click } }));
      }),
    );
    const tr = (row: Row) => {
      const { filter } = row;
      const line = el(
        "tr",
        {
          class: [filter && page.store.state.filter?.name === filter.name && "chosen", row.bytes + row.paused === 0 && "gone"].filter(Boolean).join(" "),
          on: { click: () => filter && page.filter(filter.what, filter.name) },
        },
        ...columns.map((column) => this.cell(column, row)),
      );
      line.dataset.bytes = String(row.bytes);
      line.dataset.count = String(row.count);
      line.dataset.paused = String(row.paused);
      line.dataset.name = row.name;
      return line;
    };
    const body = rows.slice(0, this.most).map(tr);
    const free = this.free();
    const more =
      rows.length > this.most &&
      choice(`show ${count(Math.min(ROWS * 5, rows.length - this.most))} more of ${count(rows.length)}`, false, () => {
        this.most += ROWS * 5;
        this.draw();
      });
    this.table.dataset.list = page.store.state.list;
    fill(this.table, el("table", {}, el("thead", {}, head), el("tbody", {}, ...body), free && el("tfoot", {}, tr(free))), more);
  }
}
