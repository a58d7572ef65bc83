// What every view gets: the state, the model in force, and words that several views use.

import type { Facts } from "../data/facts.ts";
import type { Stack } from "../model/groups.ts";
import { LUMPED, SMALL, type Model } from "../model/model.ts";
import { moment, type Moment } from "../model/moment.ts";
import { colour } from "../base/palette.ts";
import { seconds } from "../base/units.ts";
import type { FilterBy, Store } from "../state.ts";

/** Is memory of this owner and role wanted? */
export type Wanted = (owner: number, role: number) => boolean;

export class Page {
  /** Of the chosen process and device. */
  model!: Model;
  stack!: Stack;
  private kept: { ordinal: number; model: Model; at: Moment } | null = null;

  constructor(
    readonly facts: Facts,
    readonly store: Store,
    readonly load: (index: number) => Promise<Model[]>,
  ) {}

  /** The chosen process. */
  get process(): number {
    const most = Math.max(0, this.facts.processes.length - 1);
    return Math.min(Math.max(this.store.state.process, 0), most);
  }

  /** The pinned moment; where none is, the failure, else the peak. */
  get ordinal(): number {
    const pin = this.store.state.pin;
    return pin === null ? this.model.first : Math.min(Math.max(pin, 0), this.model.last);
  }

  /** `at the failure`, `at the peak`, `at 1.234 s`. */
  get when(): string {
    const { ordinal, model } = this;
    if (ordinal === model.failed) return "at the failure";
    return ordinal === model.peak ? "at the peak" : `at ${seconds(model.time[ordinal])}`;
  }

  private tints: { at: Moment; stack: Stack; of: Map<number, string> } | null = null;

  /** The colour of a holder: of what it is mostly stacked as at the pinned moment. */
  tint(holder: number): string {
    const { model, moment: at, stack } = this;
    if (this.tints?.at !== at || this.tints.stack !== stack) {
      const sums = new Map<number, Float64Array>();
      for (const [list, of] of [[at.blocks, model.blocks], [at.memory, model.memory]] as const) {
        for (const n of list) {
          const held = model.page.owners[of.owner[n]][3];
          let sum = sums.get(held);
          if (!sum) sums.set(held, (sum = new Float64Array(stack.groups.length)));
          sum[stack.groupOf(of, n)] += of.held[n];
        }
      }
      const of = new Map<number, string>();
      for (const [held, sum] of sums) of.set(held, stack.groups[sum.indexOf(Math.max(...sum))].colour);
      this.tints = { at, stack, of };
    }
    return this.tints.of.get(holder) ?? colour(holder === SMALL ? LUMPED : "others");
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

  /** Shows a part of the run, at least 640 ns of it. */
  look(from: number, to: number): void {
    const end = this.model.endNs;
    const long = Math.min(Math.max(to - from, 640), end);
    const start = Math.min(Math.max(from, 0), end - long);
    this.store.set({ view: long >= end ? null : [start, start + long] });
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
