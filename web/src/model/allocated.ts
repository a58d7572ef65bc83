// Bytes that somebody holds, at any moment: blocks, and memory of the driver that is no segment of a cache. What is
// free in the cache is not in it, so that the steps of a run do not look alike.

import { after, Change, Field, type Model } from "./model.ts";

/** Moments for which sums are kept. */
const CHUNKS = 16384;

export class Allocated {
  private readonly chunk: number;
  /** Of each chunk of ordinals: bytes of blocks and of all that is held, before it. */
  private readonly before: Float64Array;
  /** The first change in each chunk. */
  private readonly first: Uint32Array;
  /** The highest moment of each chunk, and what was held then. */
  private readonly best: Uint32Array;
  private readonly highestIn: Float64Array;

  constructor(private readonly model: Model) {
    const moments = model.last + 1;
    this.chunk = Math.max(1, Math.ceil(moments / CHUNKS));
    const many = Math.ceil(moments / this.chunk);
    this.before = new Float64Array(many * 2);
    this.first = new Uint32Array(many);
    this.best = new Uint32Array(many);
    this.highestIn = new Float64Array(many);
    const at = { blocks: 0, held: 0, change: 0 };
    for (let n = 0; n < many; n++) {
      this.before[n * 2] = at.blocks;
      this.before[n * 2 + 1] = at.held;
      this.first[n] = at.change;
      const from = n * this.chunk;
      [this.best[n], this.highestIn[n]] = this.walk(at, from, Math.min(from + this.chunk - 1, model.last));
    }
  }

  /** Applies all changes from one ordinal to another; the moment of the most held bytes, and these. */
  private walk(at: { blocks: number; held: number; change: number }, from: number, to: number): [number, number] {
    const { changes, blocks, memory, sums } = this.model;
    const lumped = sums[Field.Lumped];
    let next = after(lumped.at, from - 1);
    let small = next > 0 ? lumped.value[next - 1] : 0;
    let [best, most] = [from, -1];
    let ordinal = from;
    while (ordinal <= to) {
      for (; at.change < changes.ordinal.length && changes.ordinal[at.change] === ordinal; at.change++) {
        const which = changes.which[at.change];
        switch (changes.what[at.change]) {
          case Change.BlockStart:
            at.blocks += blocks.held[which];
            at.held += blocks.held[which];
            break;
          case Change.BlockEnd:
            at.blocks -= blocks.held[which];
            at.held -= blocks.held[which];
            break;
          // What becomes a segment of a cache was never anybody's.
          case Change.MemoryStart:
            if (memory.segment[which] === 0) at.held += memory.share[which];
            break;
          case Change.MemoryEnd:
            if (memory.segment[which] === 0) at.held -= memory.share[which];
            break;
          case Change.MemorySegment:
        }
      }
      for (; next < lumped.at.length && lumped.at[next] <= ordinal; next++) small = lumped.value[next];
      const held = at.held + small;
      if (held > most) [best, most] = [ordinal, held];
      // Nothing changes up to the next of these.
      const soon = at.change < changes.ordinal.length ? changes.ordinal[at.change] : Infinity;
      ordinal = Math.max(ordinal + 1, Math.min(soon, next < lumped.at.length ? lumped.at[next] : Infinity));
    }
    return [best, most];
  }

  private from(chunk: number) {
    return { blocks: this.before[chunk * 2], held: this.before[chunk * 2 + 1], change: this.first[chunk] };
  }

  private at(ordinal: number) {
    const chunk = Math.min(Math.floor(ordinal / this.chunk), this.first.length - 1);
    const at = this.from(chunk);
    this.walk(at, chunk * this.chunk, ordinal);
    return at;
  }

  /** What is allocated: in tensors, or in calls of the driver where there is no cache. */
  of(ordinal: number): number {
    const { hasBlocks, sums } = this.model;
    return hasBlocks ? this.at(ordinal).blocks + sums[Field.Lumped].of(ordinal) : sums[Field.Live].of(ordinal);
  }

  /** What is held by somebody. */
  held(ordinal: number): number {
    return this.at(ordinal).held + this.model.sums[Field.Lumped].of(ordinal);
  }

  /** The moment from one ordinal to another at which most is held; the first of equal ones. */
  highest(from: number, to: number): number {
    let found = from;
    let most = this.held(from);
    for (let chunk = Math.floor(from / this.chunk); chunk <= Math.floor(to / this.chunk); chunk++) {
      const [first, last] = [chunk * this.chunk, Math.min((chunk + 1) * this.chunk - 1, this.model.last)];
      let [best, held] = [this.best[chunk], this.highestIn[chunk]];
      if (first < from || last > to) {
        const at = this.from(chunk);
        if (first < from) this.walk(at, first, from);
        [best, held] = this.walk(at, Math.max(first, from), Math.min(last, to));
      }
      if (held > most) [found, most] = [best, held];
    }
    return found;
  }
}
