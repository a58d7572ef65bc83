// Figures as people read them, in the words of the command (model/src/units.rs).

const KIB = 1024;

/** `512 B`, `1.50 KiB`, `12.00 MiB`, `3.25 GiB`. */
export function size(bytes: number): string {
  const sign = bytes < 0 ? "-" : "";
  let value = Math.abs(bytes);
  if (value < KIB) return `${sign}${Math.round(value)} B`;
  for (const unit of ["KiB", "MiB", "GiB", "TiB"]) {
    value /= KIB;
    if (value < KIB || unit === "TiB") return `${sign}${value.toFixed(2)} ${unit}`;
  }
  return "";
}

/** A limit in the unit that it was given in, as `format/src/size.rs` has it: `1500 MiB`, not 1.46 GiB. */
export function limitOf(bytes: number): string {
  const exact = (step: number) => bytes >= step && Math.floor((Math.ceil((bytes * 100) / step) * step) / 100) === bytes;
  const mib = bytes / KIB ** 2;
  if (exact(KIB ** 3)) return size(bytes);
  if (Number.isInteger(mib) && mib > 0 && mib <= 9999) return `${mib} MiB`;
  if (exact(1e9)) return `${(bytes / 1e9).toFixed(2)} GB`;
  return size(bytes);
}

/** `1,234,567`. */
export function count(n: number): string {
  return Math.round(n).toString().replace(/\B(?=(\d{3})+(?!\d))/g, ",");
}

/** `1 block`, `2 blocks`. */
export function several(n: number, what: string): string {
  return `${count(n)} ${what}${n === 1 ? "" : "s"}`;
}

/** `12.345 s` from nanoseconds; as fine as neighbours on an axis need. */
export function seconds(ns: number, digits = 3): string {
  return `${(ns / 1e9).toFixed(digits)} s`;
}

/** A length of time: `1.5 ms`, `9.0 s`, `12.5 min`. */
export function duration(ns: number): string {
  const s = ns / 1e9;
  if (s < 1e-3) return `${(s * 1e6).toFixed(1)} us`;
  if (s < 0.1) return `${(s * 1e3).toFixed(1)} ms`;
  if (s < 120) return `${s.toFixed(s < 10 ? 3 : 1)} s`;
  if (s < 7200) return `${(s / 60).toFixed(1)} min`;
  if (s < 172800) return `${(s / 3600).toFixed(1)} h`;
  return `${(s / 86400).toFixed(1)} days`;
}

export function percent(part: number, whole: number): string {
  return whole > 0 ? `${((100 * part) / whole).toFixed(1)} %` : "";
}

// Turns the direction of text, joins or hides it: a reader would see other text than there is.
const INVISIBLE =
  // eslint-disable-next-line no-control-regex
  /[\u0000-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]|\udb40[\udc00-\udc7f]/g;

/** Text of a trace, with what cannot be seen shown as `?`, cut in the middle where it is long. */
export function clean(text: string, most = 300): string {
  const seen = text.replace(INVISIBLE, "?");
  if (seen.length <= most) return seen;
  const tail = Math.floor((most - 3) / 3);
  return `${seen.slice(0, most - 3 - tail)}...${seen.slice(seen.length - tail)}`;
}

/** Steps of an axis: round numbers, at most `most` of them. */
export function steps(from: number, to: number, most: number, bases = [1, 2, 5, 10]): number[] {
  const range = to - from;
  if (!(range > 0) || most < 1) return [];
  const power = 10 ** Math.floor(Math.log10(range / most));
  const base = bases.find((b) => (range / (b * power)) <= most) ?? 10;
  const step = base * power;
  const all: number[] = [];
  for (let at = Math.ceil(from / step) * step; at <= to + step * 1e-9; at += step) all.push(at);
  return all;
}

/** The same for bytes: powers of 2. */
export function byteSteps(to: number, most: number): number[] {
  let step = 1;
  while (to / step > most) step *= 2;
  const all: number[] = [];
  for (let at = 0; at <= to; at += step) all.push(at);
  return all;
}
