// What is live at one moment: by holder, by segment.

import type { Model } from "./model.ts";
import { after, Field, FREE_CACHE, LUMPED, SMALL } from "./model.ts";

export interface Held {
  holder: number;
  library: string;
  bytes: number;
  count: number;
  /** Held, too, but without memory: it was unmapped and may come back. Not in `bytes`. */
  paused: number;
}

export interface Segment {
  address: number;
  bytes: number;
  expandable: boolean;
  /** Indexes of blocks by address. */
  blocks: number[];
  used: number;
  /** Bytes of it without memory. */
  asleep: number;
}

export interface Moment {
  ordinal: number;
  /** By owner. */
  bytes: Float64Array;
  count: Uint32Array;
  paused: Float64Array;
  /** Indexes of live blocks and of live memory that is no segment. */
  blocks: number[];
  memory: number[];
  /** Of mappings that are asleep and lie in no segment. */
  asleep: number[];
  segments: Segment[];
  freeBytes: number;
  freeCount: number;
  freePaused: number;
  lumped: number;
  lumpedCount: number;
  total: number;
  /** What somebody holds: all but what is free in the cache. */
  held: number;
}

export function moment(model: Model, ordinal: number): Moment {
  const { blocks, memory, owned } = model;
  const owners = model.page.owners.length;
  const found: Moment = {
    ordinal,
    bytes: new Float64Array(owners),
    count: new Uint32Array(owners),
    paused: new Float64Array(owners),
    blocks: [],
    memory: [],
    asleep: [],
    segments: [],
    freeBytes: 0,
    freeCount: 0,
    freePaused: 0,
    lumped: model.sums[Field.Lumped].of(ordinal),
    lumpedCount: model.sums[Field.LumpedCount].of(ordinal),
    total: 0,
    held: 0,
  };
  let cached = 0;
  for (let n = 0; n < memory.length; n++) {
    if (memory.start[n] > ordinal || memory.end[n] <= ordinal || !owned[memory.owner[n]]) continue;
    if (memory.segment[n] && memory.segment[n] <= ordinal) {
      cached += memory.share[n];
      if (memory.address[n] > 0) {
        const [address, bytes] = [memory.address[n], memory.size[n]];
        found.segments.push({ address, bytes, expandable: false, blocks: [], used: 0, asleep: 0 });
      }
      continue;
    }
    found.memory.push(n);
    found.bytes[memory.owner[n]] += memory.share[n];
    found.count[memory.owner[n]]++;
  }
  mapped(model, ordinal, found);
  found.segments.sort((a, b) => a.address - b.address);
  let [inBlocks, paused] = [0, 0];
  for (let n = 0; n < blocks.length; n++) {
    if (blocks.start[n] > ordinal || blocks.end[n] <= ordinal || !owned[blocks.owner[n]]) continue;
    found.blocks.push(n);
    const held = blocks.held[n];
    found.bytes[blocks.owner[n]] += held;
    found.count[blocks.owner[n]]++;
    inBlocks += held;
    if (held === blocks.size[n]) continue;
    found.paused[blocks.owner[n]] += blocks.size[n] - held;
    paused += blocks.size[n] - held;
  }
  const starts = found.segments.map((segment) => segment.address);
  for (const n of found.blocks) {
    const segment = found.segments[after(starts, blocks.address[n]) - 1];
    if (segment && blocks.address[n] < segment.address + segment.bytes) {
      segment.blocks.push(n);
      segment.used += blocks.size[n];
    }
  }
  for (const segment of found.segments) {
    segment.blocks.sort((a, b) => blocks.address[a] - blocks.address[b]);
    // Free bytes with memory, or asleep.
    let awake = segment.bytes - segment.asleep;
    for (const n of segment.blocks) awake -= blocks.held[n];
    if (awake > 0 || segment.bytes - segment.used > Math.max(0, awake)) found.freeCount++;
  }
  const outside = model.sums[Field.Outside].of(ordinal);
  // Lumped blocks lie in segments too: which, is not recorded.
  const lumpedInside = model.hasBlocks ? found.lumped : 0;
  found.freeBytes = Math.max(0, cached - (inBlocks - outside) - lumpedInside);
  found.freePaused = Math.max(0, model.sums[Field.Asleep].of(ordinal) - paused);
  found.total = found.freeBytes + found.lumped;
  for (const bytes of found.bytes) found.total += bytes;
  found.held = found.total - found.freeBytes;
  return found;
}

/** All that is live at a moment and is no segment: owner, role, bytes. */
export function eachLive(model: Model, at: Moment, take: (owner: number, role: number, bytes: number) => void): void {
  const { blocks, memory } = model;
  for (const n of at.memory) take(memory.owner[n], memory.role[n], memory.share[n]);
  for (const n of at.blocks) take(blocks.owner[n], blocks.role[n], blocks.held[n]);
  const unknown = model.page.roles.indexOf("unknown");
  for (const n of at.asleep) take(model.stream.mappings.asleep[n] - 1, unknown, 0);
}

/** Mapped segments, neighbours are one; and what is asleep outside of segments. */
function mapped(model: Model, ordinal: number, found: Moment): void {
  const { mappings } = model.stream;
  const live: number[] = [];
  for (let n = 0; n < mappings.length; n++) {
    if (mappings.start[n] > ordinal || mappings.end[n] <= ordinal) continue;
    if (mappings.device[n] !== model.device && mappings.device[n] !== 255) continue;
    if (mappings.segment[n] && mappings.segment[n] <= ordinal) live.push(n);
    else if (mappings.asleep[n]) {
      const owner = mappings.asleep[n] - 1;
      found.asleep.push(n);
      found.count[owner]++;
      found.paused[owner] += mappings.size[n];
    }
  }
  live.sort((a, b) => mappings.address[a] - mappings.address[b]);
  let last: Segment | null = null;
  for (const n of live) {
    const [address, bytes] = [mappings.address[n], mappings.size[n]];
    const asleep = mappings.asleep[n] ? bytes : 0;
    if (last && last.address + last.bytes === address) {
      last.bytes += bytes;
      last.asleep += asleep;
    } else found.segments.push((last = { address, bytes, expandable: true, blocks: [], used: 0, asleep }));
  }
}

export interface OfRole {
  role: string;
  bytes: number;
  count: number;
}

/** As `vramtrace holders --by role` lists them: largest first. */
export function byRole(model: Model, at: Moment): OfRole[] {
  const { roles } = model.page;
  const all = roles.map((role): OfRole => ({ role, bytes: 0, count: 0 }));
  const add = (role: number, bytes: number, count: number) => {
    const of = all[role] ?? all[all.length - 1];
    of.bytes += bytes;
    of.count += count;
  };
  eachLive(model, at, (_, role, bytes) => add(role, bytes, 1));
  if (at.freeBytes > 0) add(roles.indexOf(FREE_CACHE), at.freeBytes, at.freeCount);
  if (at.lumped > 0) all.push({ role: LUMPED, bytes: at.lumped, count: at.lumpedCount });
  const order = new Map(all.map((of, n) => [of.role, n]));
  return all
    .filter((of) => of.count > 0)
    .sort((a, b) => b.bytes - a.bytes || (order.get(a.role) ?? 0) - (order.get(b.role) ?? 0));
}

/** As `vramtrace holders` lists them, without what is free in the cache: largest first. */
export function holders(model: Model, at: Moment): Held[] {
  const all = new Map<number, Held>();
  model.page.owners.forEach((owner, n) => {
    if (at.count[n] === 0) return;
    const held = all.get(owner[3]);
    if (held) {
      held.bytes += at.bytes[n];
      held.count += at.count[n];
      held.paused += at.paused[n];
    } else {
      const [bytes, count, paused] = [at.bytes[n], at.count[n], at.paused[n]];
      all.set(owner[3], { holder: owner[3], library: model.library(n), bytes, count, paused });
    }
  });
  if (at.lumped > 0) {
    all.set(SMALL, { holder: SMALL, library: "unknown", bytes: at.lumped, count: at.lumpedCount, paused: 0 });
  }
  return [...all.values()].sort((a, b) => b.bytes - a.bytes || b.count - a.count || a.holder - b.holder);
}
