// What is shown, and the link to it: the state stands in the URL's hash.

import type { By } from "./model/groups.ts";

export type Tab =
  | "who" | "blocks" | "map" | "allocations" | "advice" | "ranks" | "facts";
export const TABS: Tab[] = ["who", "blocks", "map", "allocations", "advice", "ranks", "facts"];

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

function pair(text: string): [number, number] | undefined {
  const parts = text.split("~");
  if (parts.length !== 2 || !parts.every((part) => NUMBER.test(part))) return undefined;
  const [from, to] = parts.map(Number);
  return from < to ? [from, to] : undefined;
}

function whole(text: string): number | undefined {
  return /^-?\d{1,15}$/.test(text) ? Number(text) : undefined;
}

function oneOf<T extends string>(...all: T[]): (text: string) => T | undefined {
  return (text) => all.find((one) => one === text);
}

function filterOf(text: string): Filter | undefined {
  const split = text.indexOf(":");
  const what = oneOf<FilterBy>("library", "holder", "role")(text.slice(0, split));
  return split > 0 && what ? { what, name: text.slice(split + 1) } : undefined;
}

const both = (range: [number, number]) => range.map((n) => Math.round(n)).join("~");
const is = (value: string) => (text: string) => text === value;

/** The parameter of each part of the state, how it is read (undefined: as without it) and written. */
type Parameters = { [K in keyof State]: [string, (text: string) => State[K] | undefined, (value: NonNullable<State[K]>) => string] };
const PARAMETERS: Parameters = {
  process: ["p", whole, String],
  device: ["gpu", whole, String],
  by: ["by", oneOf<By>("library", "role", "holder", "phase"), String],
  view: ["view", pair, both],
  pin: ["at", whole, String],
  range: ["range", pair, both],
  second: ["and", pair, both],
  tab: ["tab", oneOf(...TABS), String],
  filter: ["filter", filterOf, ({ what, name }) => `${what}:${name}`],
  search: ["find", String, String],
  sort: ["sort", String, String],
  list: ["list", oneOf<List>("line", "role", "library"), String],
  frames: ["frames", is("all"), () => "all"],
  inverted: ["flip", is("1"), () => "1"],
  small: ["small", (text) => Math.max(0, whole(text) ?? 0), String],
  theme: ["theme", oneOf<"light" | "dark">("light", "dark"), String],
};
type AnyParameter = [keyof State, [string, (text: string) => unknown, (value: never) => string]];
const ALL = Object.entries(PARAMETERS) as AnyParameter[];

export function parse(hash: string): State {
  const values = new URLSearchParams(hash.replace(/^#/, ""));
  const given = ALL.flatMap(([key, [name, read]]) => {
    const text = values.get(name);
    const value = text === null ? undefined : read(text);
    return value === undefined ? [] : [[key, value]];
  });
  return { ...initial(), ...Object.fromEntries(given) };
}

export function format(state: State): string {
  const values = new URLSearchParams();
  const usual = initial();
  for (const [key, [name, , write]] of ALL) {
    const value = state[key];
    if (value !== null && value !== usual[key]) values.set(name, write(value as never));
  }
  const text = values.toString();
  return text && `#${text}`;
}
