// What every view gets: the state, the model in force, and words that several views use.

import type { Facts } from "../data/facts.ts";
import type { Stack } from "../model/groups.ts";
import type { Model } from "../model/model.ts";
import { moment, type Moment } from "../model/moment.ts";
import type { FilterBy, Store } from "../state.ts";

/** Is memory of this owner and role wanted? */
export type Wanted = (owner: number, role: number) => boolean;

export interface Loaded {
  run: number;
  index: number;
  models: Model[];
}

export class Page {
  model!: Model;
  stack!: Stack;
  /** All processes of all runs that have been read; of one that has not, a function that reads it. */
  private kept: { ordinal: number; model: Model; at: Moment } | null = null;

  constructor(
    readonly facts: Facts,
    readonly store: Store,
    readonly load: (index: number) => Promise<Model[]>,
  ) {}

  /** The number of a process of a run, over all runs. */
  index(run: number, process: number): number {
    let index = process;
    for (let n = 0; n < run; n++) index += this.facts.runs[n].processes.length;
    return index;
  }

  /** The pinned moment; the peak where none is. */
  get ordinal(): number {
    const pin = this.store.state.pin;
    return pin === null ? this.model.peak : Math.min(Math.max(pin, 0), this.model.last);
  }

  get moment(): Moment {
    const { ordinal, model } = this;
    if (this.kept?.ordinal !== ordinal || this.kept.model !== model) {
      this.kept = { ordinal, model, at: moment(model, ordinal) };
    }
    return this.kept.at;
  }

  /** ns. */
  get view(): [number, number] {
    return this.store.state.view ?? [0, this.model.endNs];
  }

  /** Whose memory is shown; undefined: everybody's. */
  wanted(): Wanted | undefined {
    const { filter } = this.store.state;
    if (!filter) return undefined;
    const { model } = this;
    if (filter.what === "role") {
      const wanted = model.page.roles.map((name) => name === filter.name);
      return (_, role) => wanted[role];
    }
    const fits = model.page.owners.map((owner, n) =>
      filter.what === "library"
        ? model.library(n) === filter.name
        : model.holderLabel(owner[3]) === filter.name,
    );
    return (owner) => fits[owner];
  }

  pin(ordinal: number | null): void {
    this.store.set({ pin: ordinal });
  }

  /** A click on what is in force takes it back. */
  filter(what: FilterBy, name: string): void {
    const { filter } = this.store.state;
    const same = filter?.what === what && filter.name === name;
    this.store.set({ filter: same ? null : { what, name } });
  }
}

export interface View {
  node: HTMLElement;
  /** Draws anew. */
  draw(): void;
}
