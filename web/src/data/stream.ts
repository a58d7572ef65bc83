// The columns of one process (src/report/html/columns.rs describes the format).

/** The end of what is live at the end. */
export const LIVE = 0xffffffff;

export interface Records {
  length: number;
  /** Ordinals: live at moment n where start <= n < end. */
  start: Uint32Array;
  end: Uint32Array;
  size: Float64Array;
  address: Float64Array;
}

export interface Blocks extends Records {
  owner: Uint32Array;
  role: Uint8Array;
  phase: Uint32Array;
  /** Bytes that have memory below them: `size`, less what is asleep. */
  held: Float64Array;
  /** 1: it goes on from another record: it fell asleep, woke, or is another's now. */
  continues: Uint8Array;
}

export interface Memory extends Blocks {
  share: Float64Array;
  /** From when on it is a segment of a framework; 0: it is none. */
  segment: Uint32Array;
}

export interface Mappings extends Records {
  device: Uint8Array;
  segment: Uint32Array;
  /** Whose it is while nothing is mapped there, and 1; 0: it is mapped. */
  asleep: Uint32Array;
}

export interface Sums {
  length: number;
  ordinal: Uint32Array;
  device: Uint8Array;
  field: Uint8Array;
  value: Float64Array;
}

export interface Stream {
  /** The last ordinal. */
  last: number;
  /** By ordinal, ns since the start. */
  time: Float64Array;
  blocks: Blocks;
  memory: Memory;
  mappings: Mappings;
  sums: Sums;
}

const COLUMNS = [0, 1, 8, 10, 7, 3];

/** The number at a place, and where the next one is. */
let next = 0;
function number(bytes: Uint8Array, at: number): number {
  let byte = bytes[at++];
  let value = byte & 127;
  let scale = 128;
  while (byte >= 128) {
    byte = bytes[at++];
    value += (byte & 127) * scale;
    scale *= 128;
  }
  next = at;
  return value;
}

/** All numbers of a column. */
function column(bytes: Uint8Array, at: number, many: number, into: Float64Array): void {
  for (let n = 0; n < many; n++) {
    let byte = bytes[at++];
    if (byte < 128) {
      into[n] = byte;
      continue;
    }
    let value = byte & 127;
    let scale = 128;
    do {
      byte = bytes[at++];
      value += (byte & 127) * scale;
      scale *= 128;
    } while (byte >= 128);
    into[n] = value;
  }
}

function signed(value: number): number {
  return value % 2 === 0 ? value / 2 : -(value + 1) / 2;
}

function bytesOf(value: number): number {
  return value % 2 === 0 ? value * 256 : (value - 1) / 2;
}

function addressFrom(before: number, value: number): number {
  return value % 2 === 0 ? before + signed(value / 2) * 512 : before + signed((value - 1) / 2);
}

interface FrameAt {
  kind: number;
  records: number;
  columns: number[];
}

function frames(bytes: Uint8Array): FrameAt[] {
  const all: FrameAt[] = [];
  let at = 0;
  while (at < bytes.length) {
    const kind = bytes[at];
    const columns = COLUMNS[kind];
    if (!columns) throw new Error(`the data of the page is damaged at byte ${at}`);
    const frame: FrameAt = { kind, records: number(bytes, at + 1), columns: [] };
    at = next;
    for (let n = 0; n < columns; n++) {
      const long = number(bytes, at);
      frame.columns.push(next);
      at = next + long;
    }
    all.push(frame);
  }
  if (at !== bytes.length) throw new Error("the data of the page ends early");
  return all;
}

function ends(into: Records, at: number, since: number, life: number, last: number): number {
  if (since === 0) {
    into.start[at] = life;
    into.end[at] = LIVE;
    return last;
  }
  const end = last + signed(since - 1);
  into.start[at] = end - life;
  into.end[at] = end;
  return end;
}

const u8 = (length: number) => new Uint8Array(length);
const u32 = (length: number) => new Uint32Array(length);
const f64 = (length: number) => new Float64Array(length);

function records(n: number): Records {
  return { length: n, start: u32(n), end: u32(n), size: f64(n), address: f64(n) };
}

function blocksOf(n: number): Blocks {
  return { ...records(n), owner: u32(n), role: u8(n), phase: u32(n), held: f64(n), continues: u8(n) };
}

export function decode(bytes: Uint8Array): Stream {
  const all = frames(bytes);
  const many = (kind: number) => all.filter((f) => f.kind === kind).reduce((n, f) => n + f.records, 0);
  const [, last, ofBlocks, ofMemory, ofMappings, ofSums] = [0, 1, 2, 3, 4, 5].map(many);
  const stream: Stream = {
    last,
    time: f64(last + 1),
    blocks: blocksOf(ofBlocks),
    memory: { ...blocksOf(ofMemory), share: f64(ofMemory), segment: u32(ofMemory) },
    mappings: { ...records(ofMappings), device: u8(ofMappings), segment: u32(ofMappings), asleep: u32(ofMappings) },
    sums: { length: ofSums, ordinal: u32(ofSums), device: u8(ofSums), field: u8(ofSums), value: f64(ofSums) },
  };
  const at = [0, 0, 0, 0, 0, 0];
  const end = [0, 0, 0, 0, 0];
  const address = [0, 0, 0, 0, 0];
  let time = 0;
  let ordinal = 0;
  const known = new Map<number, number>();
  const most = all.reduce((n, frame) => Math.max(n, frame.records), 0);
  const columns = Array.from({ length: 10 }, () => new Float64Array(most));
  for (const frame of all) {
    const { kind, records } = frame;
    frame.columns.forEach((place, n) => column(bytes, place, records, columns[n]));
    const [a, b, c, d, e, f, g, h, i, j] = columns;
    const first = at[kind];
    at[kind] += records;
    if (kind === 1) {
      for (let n = 0; n < records; n++) {
        time += a[n];
        stream.time[first + n + 1] = time * 64;
      }
    } else if (kind === 2 || kind === 3) {
      const into = kind === 2 ? stream.blocks : stream.memory;
      let last = end[kind];
      let place = address[kind];
      for (let n = 0; n < records; n++) {
        const to = first + n;
        last = ends(into, to, a[n], b[n], last);
        into.size[to] = bytesOf(c[n]);
        into.owner[to] = d[n];
        place = addressFrom(place, e[n]);
        into.address[to] = place;
        into.role[to] = f[n];
        into.phase[to] = g[n];
        into.continues[to] = h[n] % 2;
        into.held[to] = into.size[to] - bytesOf(Math.floor(h[n] / 2));
      }
      end[kind] = last;
      address[kind] = place;
      if (kind === 3) {
        for (let n = 0; n < records; n++) {
          stream.memory.share[first + n] = bytesOf(i[n]);
          stream.memory.segment[first + n] = j[n] && j[n] - 1 + stream.memory.start[first + n];
        }
      }
    } else if (kind === 4) {
      const into = stream.mappings;
      for (let n = 0; n < records; n++) {
        const to = first + n;
        end[4] = ends(into, to, a[n], b[n], end[4]);
        into.size[to] = bytesOf(c[n]);
        address[4] = addressFrom(address[4], d[n]);
        into.address[to] = address[4];
        into.device[to] = e[n];
        into.segment[to] = f[n] && f[n] - 1 + into.start[to];
        into.asleep[to] = g[n];
      }
    } else {
      const into = stream.sums;
      for (let n = 0; n < records; n++) {
        const to = first + n;
        ordinal += a[n];
        const value = (known.get(b[n]) ?? 0) + signed(c[n]);
        known.set(b[n], value);
        into.ordinal[to] = ordinal;
        into.device[to] = b[n] >> 4;
        into.field[to] = b[n] & 15;
        into.value[to] = value;
      }
    }
  }
  return stream;
}
