// What is shown, and the link to it: the state stands in the URL's hash.

import type { By } from "./model/groups.ts";

export type Tab =
  | "who" | "blocks" | "map" | "allocations" | "advice" | "ranks" | "diff" | "facts";
export const TABS: Tab[] = ["who", "blocks", "map", "allocations", "advice", "ranks", "diff", "facts"];

export type FilterBy = "library" | "holder" | "role";
/** What a row of the table stands for. */
export type List = "line" | "role" | "library";

export interface Filter {
  what: FilterBy;
  name: string;
}

export interface State {
  process: number;
  device: number;
  by: By | null;
  /** ns; null: the whole run. */
  view: [number, number] | null;
  /** An ordinal; null: the failure with which the run ended, else the peak. */
  pin: number | null;
  range: [number, number] | null;
  second: [number, number] | null;
  tab: Tab;
  filter: Filter | null;
  search: string;
  sort: string;
  list: List;
  /** Frames of frameworks are shown. */
  frames: boolean;
  inverted: boolean;
  /** Blocks below this are lumped in the view of blocks. */
  small: number;
  theme: "light" | "dark" | null;
}

export function initial(): State {
  return {
    process: 0, device: -1, by: null, view: null, pin: null, range: null, second: null, tab: "who",
    filter: null, search: "", sort: "bytes", list: "line", frames: false, inverted: false, small: 0, theme: null,
  };
}

type Listener = (changed: Set<keyof State>) => void;

export class Store {
  state: State;
  private readonly listeners: Listener[] = [];
  private saved = "";

  constructor() {
    this.state = parse(location.hash);
    window.addEventListener("hashchange", () => {
      if (location.hash !== this.saved) this.set(parse(location.hash), false);
    });
  }

  listen(listener: Listener): void {
    this.listeners.push(listener);
  }

  set(change: Partial<State>, save = true): void {
    const changed = new Set<keyof State>();
    for (const key of Object.keys(change) as (keyof State)[]) {
      if (JSON.stringify(this.state[key]) !== JSON.stringify(change[key])) changed.add(key);
    }
    if (changed.size === 0) return;
    this.state = { ...this.state, ...change };
    if (save) this.save();
    for (const listener of this.listeners) listener(changed);
  }

  private waiting = 0;

  /** Browsers limit how often an address may change. */
  private save(): void {
    clearTimeout(this.waiting);
    this.waiting = window.setTimeout(() => {
      this.saved = format(this.state);
      history.replaceState(null, "", this.saved || "#");
    }, 150);
  }
}

const NUMBER = /^-?\d+(\.\d+)?$/;

function pair(text: string | null): [number, number] | null {
  const parts = (text ?? "").split("~");
  if (parts.length !== 2 || !parts.every((part) => NUMBER.test(part))) return null;
  const [from, to] = parts.map(Number);
  return from < to ? [from, to] : null;
}

function whole(text: string | null, otherwise: number | null): number | null {
  return text !== null && /^-?\d{1,15}$/.test(text) ? Number(text) : otherwise;
}

export function parse(hash: string): State {
  const state = initial();
  const values = new URLSearchParams(hash.replace(/^#/, ""));
  const get = (key: string) => values.get(key);
  state.process = whole(get("p"), 0) ?? 0;
  state.device = whole(get("gpu"), -1) ?? -1;
  const by = get("by");
  if (by === "library" || by === "role" || by === "holder" || by === "phase") state.by = by;
  state.view = pair(get("view"));
  state.pin = whole(get("at"), null);
  state.range = pair(get("range"));
  state.second = pair(get("and"));
  state.tab = TABS.find((tab) => tab === get("tab")) ?? "who";
  const filter = get("filter");
  const split = filter?.indexOf(":") ?? -1;
  if (filter && split > 0) {
    const what = filter.slice(0, split);
    if (what === "library" || what === "holder" || what === "role") state.filter = { what, name: filter.slice(split + 1) };
  }
  state.search = get("find") ?? "";
  state.sort = get("sort") ?? "bytes";
  const list = get("list");
  if (list === "role" || list === "library") state.list = list;
  state.frames = get("frames") === "all";
  state.inverted = get("flip") === "1";
  state.small = Math.max(0, whole(get("small"), 0) ?? 0);
  const theme = get("theme");
  if (theme === "light" || theme === "dark") state.theme = theme;
  return state;
}

export function format(state: State): string {
  const values = new URLSearchParams();
  const put = (key: string, value: string | number | null, usual: string | number | null) => {
    if (value !== usual && value !== null) values.set(key, String(value));
  };
  const both = (range: [number, number] | null) => range && range.map((n) => Math.round(n)).join("~");
  put("p", state.process, 0);
  put("gpu", state.device, -1);
  put("by", state.by, null);
  put("view", both(state.view), null);
  put("at", state.pin, null);
  put("range", both(state.range), null);
  put("and", both(state.second), null);
  put("tab", state.tab, "who");
  if (state.filter) put("filter", `${state.filter.what}:${state.filter.name}`, null);
  put("find", state.search, "");
  put("sort", state.sort, "bytes");
  put("list", state.list, "line");
  put("frames", state.frames ? "all" : "", "");
  put("flip", state.inverted ? "1" : "", "");
  put("small", state.small, 0);
  put("theme", state.theme, null);
  const text = values.toString();
  return text && `#${text}`;
}
