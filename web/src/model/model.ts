// One device of one process: what is live at any moment, by the rules of the command
// (model/src/analysis/memory/holdings.rs): blocks stand in place of their segments, and what is left of the
// segments is PyTorch's free cache.

import type { Failure, Mark, ProcessFacts, ProcessPage } from "../data/facts.ts";
import { LIVE, type Blocks, type Memory, type Stream } from "../data/stream.ts";
import { Allocated } from "./allocated.ts";

/** What no tensor uses of PyTorch's segments. It is no holder. */
export const FREE_CACHE = "free in cache";
export const LUMPED = "small blocks, lumped";
export const REST = "driver's own and unknown";

export enum Field {
  Live, Process, Contexts, Managed, Cap, Reserved, Outside, Lumped, LumpedCount, Asleep,
}
const FIELDS = 10;

export enum Change {
  BlockStart, BlockEnd, MemoryStart, MemorySegment, MemoryEnd,
}

/** A value that changes at some ordinals. */
export class Steps {
  constructor(
    readonly at: Uint32Array,
    readonly value: Float64Array,
  ) {}

  /** The value at a moment. */
  of(ordinal: number): number {
    const index = after(this.at, ordinal) - 1;
    return index < 0 ? 0 : this.value[index];
  }
}

/** How many of the sorted numbers are not more than a value. */
export function after(sorted: ArrayLike<number>, value: number): number {
  let low = 0;
  let high = sorted.length;
  while (low < high) {
    const middle = (low + high) >>> 1;
    if (sorted[middle] <= value) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** All that changes, in order. */
export interface Changes {
  ordinal: Uint32Array;
  what: Uint8Array;
  which: Uint32Array;
}

/** A step or a phase in its row below the timeline. */
export interface Lane {
  name: string;
  /** Where the name does not fit. */
  short: string;
  /** First and last ordinal. */
  from: number;
  to: number;
  depth: number;
}

/** Steps in a row of their own, phases below it; in the order in which they begin. */
function lanes({ steps, phases }: ProcessPage, at: (ns: number) => number): Lane[] {
  const below = steps.length > 0 ? 1 : 0;
  const all = steps.map(({ number, state, begin_s: from, end_s: to }) => ({
    name: `step ${number}${state === "whole" ? "" : `, ${state}`}`, short: `${number}`,
    from: at(Math.round(from * 1e9)), to: at(Math.round(to * 1e9)), depth: 0,
  }));
  const marked = phases.ranges.map(([phase, from, to, depth]) => {
    const name = phases.names[phase - 1]?.[1] ?? "?";
    return { name, short: name, from, to, depth: depth + below };
  });
  return [...all, ...marked].sort((a, b) => a.from - b.from);
}

export class Model {
  readonly lanes: Lane[];
  readonly sums: Steps[] = [];
  readonly changes: Changes;
  readonly owned: Uint8Array;
  readonly blocks: Blocks;
  readonly memory: Memory;
  readonly last: number;
  readonly time: Float64Array;

  constructor(
    readonly stream: Stream,
    readonly page: ProcessPage,
    readonly facts: ProcessFacts,
    readonly device: number,
  ) {
    this.blocks = stream.blocks;
    this.memory = stream.memory;
    this.last = stream.last;
    this.time = stream.time;
    this.lanes = lanes(page, (ns) => this.at(ns));
    this.owned = Uint8Array.from(page.owners, (owner) => (owner[2] === device ? 1 : 0));
    for (let field = 0; field < FIELDS; field++) this.sums.push(this.steps(field));
    this.changes = this.ordered();
    this.peak = this.highest();
  }

  get hasBlocks(): boolean {
    return this.blocks.length > 0;
  }

  get endNs(): number {
    return Math.max(this.time[this.last], 1);
  }

  private steps(field: number): Steps {
    const { sums } = this.stream;
    const fits = (n: number) => sums.device[n] === this.device && sums.field[n] === field;
    let many = 0;
    for (let n = 0; n < sums.length; n++) if (fits(n)) many++;
    const [at, value] = [new Uint32Array(many), new Float64Array(many)];
    for (let n = 0, to = 0; n < sums.length; n++) {
      if (fits(n)) [at[to], value[to++]] = [sums.ordinal[n], sums.value[n]];
    }
    return new Steps(at, value);
  }

  /** By counting: there are few more ordinals than changes. */
  private ordered(): Changes {
    const { blocks, memory, owned } = this;
    const place = new Uint32Array(this.last + 2);
    const each = (visit: (ordinal: number, what: Change, which: number) => void) => {
      for (let n = 0; n < blocks.length; n++) {
        if (!owned[blocks.owner[n]]) continue;
        visit(blocks.start[n], Change.BlockStart, n);
        if (blocks.end[n] !== LIVE) visit(blocks.end[n], Change.BlockEnd, n);
      }
      for (let n = 0; n < memory.length; n++) {
        if (!owned[memory.owner[n]]) continue;
        visit(memory.start[n], Change.MemoryStart, n);
        if (memory.segment[n]) visit(memory.segment[n], Change.MemorySegment, n);
        if (memory.end[n] !== LIVE) visit(memory.end[n], Change.MemoryEnd, n);
      }
    };
    let many = 0;
    each((ordinal) => {
      place[ordinal]++;
      many++;
    });
    for (let n = 0, sum = 0; n < place.length; n++) {
      const here = place[n];
      place[n] = sum;
      sum += here;
    }
    const changes = {
      ordinal: new Uint32Array(many),
      what: new Uint8Array(many),
      which: new Uint32Array(many),
    };
    each((ordinal, what, which) => {
      const at = place[ordinal]++;
      changes.ordinal[at] = ordinal;
      changes.what[at] = what;
      changes.which[at] = which;
    });
    return changes;
  }

  /** The last moment that is not later than a time. */
  at(ns: number): number {
    return Math.max(0, after(this.time, ns) - 1);
  }

  /** What the page draws as the top: what nvidia-smi shows, or what is known of it. */
  top(ordinal: number): number {
    const shown = this.sums[Field.Process].of(ordinal);
    return shown > 0 ? shown : this.known(ordinal);
  }

  /** What allocations and contexts take on the card. */
  known(ordinal: number): number {
    return this.sums[Field.Live].of(ordinal) + this.sums[Field.Contexts].of(ordinal);
  }

  private processFigure: boolean | null = null;

  get hasProcessFigure(): boolean {
    this.processFigure ??= this.sums[Field.Process].value.some((value) => value > 0);
    return this.processFigure;
  }

  private knownRoles: Uint8Array | null = null;

  /** Of each role: does anything on this device have it? */
  get rolesHere(): Uint8Array {
    if (this.knownRoles) return this.knownRoles;
    const known = new Uint8Array(Math.max(256, this.page.roles.length));
    for (const of of [this.blocks, this.memory]) {
      for (let n = 0; n < of.length; n++) if (this.owned[of.owner[n]]) known[of.role[n]] = 1;
    }
    this.knownRoles = known;
    return known;
  }

  /** Is any role known? */
  get hasRoles(): boolean {
    return this.page.roles.some((name, n) => name !== "unknown" && this.rolesHere[n] > 0);
  }

  cap(ordinal: number): number | null {
    const value = this.sums[Field.Cap].of(ordinal);
    return value > 0 ? value - 1 : null;
  }

  /** The moment of the device's highest peak. */
  readonly peak: number;

  private highest(): number {
    const facts = this.deviceFacts;
    return this.page.peaks[this.device] ?? (facts ? this.at(facts.peak_at_s * 1e9) : this.last);
  }

  /** The failure with which the run ended on this device. */
  get failure(): Failure | null {
    return this.facts.failures.find((one) => (one.device ?? 255) === this.device) ?? null;
  }

  /** Its moment. */
  get failed(): number | null {
    const { failure } = this;
    const ordinal = failure && this.page.failure_ordinals[this.facts.failures.indexOf(failure)];
    return ordinal ?? (failure && this.at(failure.at_s * 1e9));
  }

  /** The moment that the page shows first: the failure where there is one, else the peak. */
  get first(): number {
    return this.failed ?? this.peak;
  }

  private marked: Mark[] | null = null;

  /** What is marked on the axis. The refusal with which the run ended is its out-of-memory. */
  get marks(): Mark[] {
    const ended = ({ what, ordinal }: Mark) => what === "refusal" && ordinal === this.failed;
    const here = () => this.page.marks.filter((mark) => mark.device === this.device);
    this.marked ??= here().map((mark) => (ended(mark) ? { ...mark, what: "oom" } : mark));
    return this.marked;
  }

  private amounts: Allocated | null = null;

  get allocated(): Allocated {
    this.amounts ??= new Allocated(this);
    return this.amounts;
  }

  get deviceFacts() {
    return this.facts.devices.find(({ device }) => (device ?? 255) === this.device);
  }

  /** Is what was live at this moment in the trace? */
  isKnown(ordinal: number): boolean {
    return !this.page.gaps.some(([from, to]) => ordinal >= from && ordinal < Math.max(to, from + 1));
  }

  /** Is it what the driver took for itself, not an allocation? */
  isTaken(owner: number): boolean {
    return this.page.holders[this.page.owners[owner][3]].driver_memory !== undefined;
  }

  library(owner: number): string {
    return this.page.libraries[this.page.owners[owner][4] - 1] ?? "unknown";
  }

  /** A line and who called it. */
  holderLine(holder: number): string {
    const caller = this.callerOf(holder);
    return this.holderName(holder) + (caller ? `, from ${caller}` : "");
  }

  callerOf(holder: number): string {
    return holder >= 0 ? this.page.holders[holder].caller : "";
  }

  /** What tells a holder apart from all others, in words: line, who called it, library. */
  holderLabel(holder: number): string {
    if (holder < 0) return this.holderName(holder);
    const { library } = this.page.holders[holder];
    return this.holderLine(holder) + (library ? ` (${this.page.libraries[library - 1]})` : "");
  }

  holderName(holder: number): string {
    if (holder === FREE) return FREE_CACHE;
    if (holder === SMALL) return `${LUMPED} (each below ${this.page.lumped_below} B)`;
    const name = this.page.holders[holder];
    const kind = name.driver_memory ? `${name.driver_memory}: ` : "";
    if (name.why) return kind + name.why;
    return kind + (name.line ? `${name.line} ${name.function}` : name.function);
  }
}

/** Holders that are no stack's. */
export const FREE = -1;
export const SMALL = -2;
