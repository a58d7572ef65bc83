// What the timeline is stacked by, and the stack at any moment: exact, at whatever zoom.

import { chosen, colour } from "../base/palette.ts";
import { after, Change, Field, FREE_CACHE, LUMPED, REST, type Model, type Steps } from "./model.ts";
import { eachLive, moment } from "./moment.ts";

export type By = "library" | "role" | "holder" | "phase";

export interface Group {
  name: string;
  colour: string;
}

/** What was chosen by a click: it is the lowest band of the stack. */
export interface Band {
  name: string;
  wanted: (owner: number, role: number) => boolean;
}

/** Groups that are named; the others are one. */
const MOST = 9;
/** Moments for which the stack is kept. A picture walks through the changes of a chunk for each pixel. */
const CHUNKS = 16384;

export class Stack {
  readonly groups: Group[] = [];
  private ofOwner: Uint16Array | null = null;
  private ofRole: Uint16Array | null = null;
  private ofPhase: Uint16Array | null = null;
  private readonly others: number;
  /** Groups below those of `by`. */
  private readonly shift: number;
  private readonly free: number;
  private readonly width: number;
  private readonly chunk: number;
  /** Of each chunk of ordinals: the stack before it, the highest moment in it and its stack. */
  private readonly before: Float64Array;
  readonly best: Uint32Array;
  private readonly bestSums: Float64Array;
  /** The first change at or after each chunk. */
  private readonly first: Uint32Array;

  constructor(
    readonly model: Model,
    readonly by: By,
    private readonly band: Band | null = null,
  ) {
    const names = this.assign();
    this.others = names.length;
    if (band) this.groups.push({ name: band.name, colour: "" });
    this.shift = this.groups.length;
    this.free = this.shift + names.length + 1;
    for (const name of [...names, "others", FREE_CACHE, LUMPED, REST]) this.groups.push({ name, colour: "" });
    this.recolour();
    this.width = this.free + 1;
    const moments = model.last + 1;
    this.chunk = Math.max(1, Math.ceil(moments / CHUNKS));
    const chunks = Math.ceil(moments / this.chunk);
    this.before = new Float64Array(chunks * this.width);
    this.bestSums = new Float64Array(chunks * this.width);
    this.best = new Uint32Array(chunks);
    this.first = new Uint32Array(chunks);
    this.sweep(chunks);
  }

  /** After another theme came into force, too. Each name has a colour of its own. */
  recolour(): void {
    const used = new Set<string>();
    this.groups.forEach((group, n) => {
      group.colour = n < this.shift ? chosen() : colour(group.name);
      let { name } = group;
      for (let n = 0; used.has(group.colour) && n < 40; n++) {
        name += "'";
        group.colour = colour(name);
      }
      used.add(group.colour);
    });
  }

  /** The names of the groups, those with most bytes at the first moment of the page first. */
  private assign(): string[] {
    const { model } = this;
    if (this.by === "role") return this.assignRoles();
    const at = moment(model, model.first);
    const bytes = new Map<string, number>();
    const add = (name: string, more: number) => bytes.set(name, (bytes.get(name) ?? 0) + more);
    const owners = model.page.owners;
    const nameOf = (n: number) =>
      this.by === "library" ? model.library(n) : model.holderLabel(owners[n][3]);
    const phaseName = (phase: number) =>
      phase === 0 ? "outside of phases" : (model.page.phases.names[phase - 1]?.[1] ?? "?");
    if (this.by === "library" || this.by === "holder") {
      owners.forEach((_, n) => add(nameOf(n), at.bytes[n]));
    } else {
      for (const [list, of] of [[at.blocks, model.blocks], [at.memory, model.memory]] as const) {
        for (const n of list) {
          add(phaseName(of.phase[n]), of.held[n]);
        }
      }
    }
    const names = [...bytes].sort((a, b) => b[1] - a[1]).slice(0, MOST).map(([name]) => name);
    const place = (name: string) => (names.includes(name) ? names.indexOf(name) : names.length);
    if (this.by === "library" || this.by === "holder") {
      const known = new Map(names.map((name, n) => [name, n]));
      this.ofOwner = Uint16Array.from(owners, (_, n) => known.get(nameOf(n)) ?? names.length);
    } else {
      const many = model.page.phases.names.length + 1;
      this.ofPhase = Uint16Array.from({ length: many }, (_, n) => place(phaseName(n)));
    }
    return names;
  }

  /** All that occur, in the order of the list: what lives longest is lowest. */
  private assignRoles(): string[] {
    const { page, rolesHere } = this.model;
    const names = page.roles.filter((_, n) => rolesHere[n] > 0);
    const place = (n: number) => names.indexOf(page.roles[n] ?? "");
    this.ofRole = Uint16Array.from({ length: 256 }, (_, n) => (place(n) < 0 ? names.length : place(n)));
    return names;
  }

  groupOf(of: { owner: Uint32Array; role: Uint8Array; phase: Uint32Array }, n: number): number {
    if (this.band?.wanted(of.owner[n], of.role[n])) return 0;
    if (this.ofOwner) return this.shift + this.ofOwner[of.owner[n]];
    if (this.ofRole) return this.shift + this.ofRole[of.role[n]];
    return this.shift + (this.ofPhase?.[of.phase[n]] ?? this.others);
  }

  apply(sums: Float64Array, at: number): void {
    const { changes, blocks, memory } = this.model;
    const which = changes.which[at];
    switch (changes.what[at]) {
      case Change.BlockStart:
        sums[this.groupOf(blocks, which)] += blocks.held[which];
        sums[this.free] -= blocks.held[which];
        break;
      case Change.BlockEnd:
        sums[this.groupOf(blocks, which)] -= blocks.held[which];
        sums[this.free] += blocks.held[which];
        break;
      case Change.MemoryStart:
        sums[this.groupOf(memory, which)] += memory.share[which];
        break;
      case Change.MemorySegment:
        sums[this.groupOf(memory, which)] -= memory.share[which];
        sums[this.free] += memory.share[which];
        break;
      default: {
        const segment = memory.segment[which] > 0;
        sums[segment ? this.free : this.groupOf(memory, which)] -= memory.share[which];
      }
    }
  }

  private sweep(chunks: number): void {
    const { model, width } = this;
    const { changes } = model;
    const sums = new Float64Array(width);
    const [live, shown, contexts] = cursors(model);
    let at = 0;
    for (let chunk = 0; chunk < chunks; chunk++) {
      this.before.set(sums, chunk * width);
      this.first[chunk] = at;
      const from = chunk * this.chunk;
      const to = Math.min(from + this.chunk, model.last + 1);
      let highest = -1;
      let second = -Infinity;
      for (let ordinal = from; ordinal < to; ordinal++) {
        const start = at;
        while (at < changes.ordinal.length && changes.ordinal[at] === ordinal) this.apply(sums, at++);
        const top = shown.go(ordinal) || live.go(ordinal) + contexts.go(ordinal);
        if (at === start && top <= highest) continue;
        const used = -sums[this.free];
        if (top > highest || (top === highest && used > second)) {
          highest = top;
          second = used;
          this.best[chunk] = ordinal;
          this.bestSums.set(sums, chunk * width);
        }
      }
    }
  }

  /** The stack at a moment, from the bottom up; its sum is the height. */
  at(ordinal: number): Float64Array {
    const chunk = Math.min(Math.floor(ordinal / this.chunk), this.best.length - 1);
    if (this.best[chunk] === ordinal) {
      return this.whole(ordinal, this.bestSums.subarray(chunk * this.width, (chunk + 1) * this.width));
    }
    const { sums, at: first } = this.start(ordinal);
    const { changes } = this.model;
    for (let at = first; at < changes.ordinal.length && changes.ordinal[at] <= ordinal; at++) {
      this.apply(sums, at);
    }
    return this.whole(ordinal, sums);
  }

  /** With what is beside allocations, up to what nvidia-smi shows. */
  whole(ordinal: number, sums: Float64Array): Float64Array {
    const { model } = this;
    const all = new Float64Array(this.groups.length);
    all.set(sums.length > this.width ? sums.subarray(0, this.width) : sums);
    const lumped = model.sums[Field.Lumped].of(ordinal);
    all[this.free] += model.sums[Field.Outside].of(ordinal);
    if (model.hasBlocks) all[this.free] -= lumped;
    all[this.free] = Math.max(0, all[this.free]);
    all[this.free + 1] = lumped;
    const top = model.top(ordinal);
    let sum = 0;
    for (let n = 0; n < all.length - 1; n++) {
      all[n] = Math.max(0, all[n]);
      // Pages are counted once, shares of them for each: the height is that of the pages.
      if (sum + all[n] > top) all[n] = Math.max(0, top - sum);
      sum += all[n];
    }
    all[all.length - 1] = Math.max(0, top - sum);
    return all;
  }

  /** Looks at moments one after the other, as long as they come in order without reading anew. */
  walk(): Walk {
    return new Walk(this);
  }

  /** For a walk: the sums before a chunk, and its first change. */
  start(ordinal: number): { chunk: number; sums: Float64Array; at: number } {
    const chunk = Math.min(Math.floor(ordinal / this.chunk), this.best.length - 1);
    const sums = this.before.slice(chunk * this.width, (chunk + 1) * this.width);
    return { chunk: chunk * this.chunk, sums, at: this.first[chunk] };
  }

  /** Bytes of the cache that blocks use, less a constant. */
  used(sums: Float64Array): number {
    return -sums[this.free];
  }

  /** The same at the highest moment of a chunk. */
  usedAtBest(chunk: number): number {
    return -this.bestSums[chunk * this.width + this.free];
  }

  get length(): number {
    return this.chunk;
  }
}

/** Goes from moment to moment. */
export class Walk {
  private sums: Float64Array;
  private at: number;
  private now = -1;
  private readonly cursors: Cursor[];

  constructor(private readonly stack: Stack) {
    const start = stack.start(0);
    [this.sums, this.at] = [start.sums, start.at];
    this.cursors = cursors(stack.model);
  }

  private top(ordinal: number): number {
    const [live, shown, contexts] = this.cursors;
    const process = shown.go(ordinal);
    const known = live.go(ordinal) + contexts.go(ordinal);
    return process > 0 ? process : known;
  }

  private go(ordinal: number): void {
    const { stack } = this;
    const far = ordinal < this.now || ordinal - this.now > 2 * stack.length;
    if (far) {
      const start = stack.start(ordinal);
      [this.sums, this.at] = [start.sums, start.at];
    }
    const { changes } = stack.model;
    while (this.at < changes.ordinal.length && changes.ordinal[this.at] <= ordinal) {
      stack.apply(this.sums, this.at++);
    }
    this.now = ordinal;
  }

  /** The highest figure from one moment to another, of equal ones the most in blocks; it stays in `best`. */
  highest(from: number, to: number): number {
    const { stack } = this;
    this.go(from);
    let found = from;
    let top = this.top(from);
    let used = stack.used(this.sums);
    this.best = stack.whole(from, this.sums);
    for (let ordinal = from + 1; ordinal <= to; ordinal++) {
      this.go(ordinal);
      const here = this.top(ordinal);
      if (here < top) continue;
      const more = stack.used(this.sums);
      if (here === top && more <= used) continue;
      [top, used, found] = [here, more, ordinal];
      this.kept.set(this.sums);
      this.dirty = true;
    }
    if (this.dirty) this.best = stack.whole(found, this.kept);
    this.dirty = false;
    return found;
  }

  /** The stack at the last highest moment. */
  best: Float64Array = new Float64Array(0);
  private dirty = false;
  private readonly kept = new Float64Array(64);
}

/** Of what the top is made. */
function cursors({ sums }: Model): Cursor[] {
  return [Field.Live, Field.Process, Field.Contexts].map((field) => new Cursor(sums[field]));
}

/** A value that changes at some moments, looked at in order. */
class Cursor {
  private index = 0;
  private last = -1;

  constructor(private readonly steps: Steps) {}

  go(ordinal: number): number {
    const { at, value } = this.steps;
    if (ordinal < this.last) this.index = after(at, ordinal);
    else if (ordinal - this.last > 4096) this.index = after(at, ordinal);
    while (this.index < at.length && at[this.index] <= ordinal) this.index++;
    this.last = ordinal;
    return this.index > 0 ? value[this.index - 1] : 0;
  }
}

/** By role where they are known, else by library: the part of the bytes at the peak that is not. */
export function usual(model: Model): By {
  let [known, all] = [0, 0];
  eachLive(model, moment(model, model.peak), (_, role, bytes) => {
    all += bytes;
    if ((model.page.roles[role] ?? "unknown") !== "unknown") known += bytes;
  });
  return all > 0 && known >= 0.8 * all ? "role" : "library";
}
