// Memory in use as one bar: tensors, cache, context, rest. The parts add up to the figure.

import { el } from "../base/dom.ts";
import { limitOf, percent, size } from "../base/units.ts";

export interface UsedParts {
  tensors: number;
  cache: number;
  context: number;
  rest: number;
}

export interface UsedBar extends UsedParts {
  bytes: number;
  /** The cap, or what the card has. Null: not known. */
  limit: number | null;
  /** What did not fit. 0: nothing. */
  asked: number;
  /** What the sum is, and of what: `in nvidia-smi of the card's 24.00 GiB`. */
  word: string;
}

const PARTS: [keyof UsedParts, string][] = [
  ["tensors", "allocated"], ["cache", "free in cache"], ["context", "CUDA context"], ["rest", "rest"],
];

/** Of a bar that is not to scale, this part is what was asked for. */
const ASKED = 0.35;
/** To scale, the whole is at most this many times what is used: else nothing is to be seen of the parts. */
const TO_SCALE = 16;

export function usedBar(of: UsedBar): HTMLElement {
  const used = Math.max(of.bytes, 1);
  const toScale = of.asked > 0 && Math.max(of.bytes + of.asked, of.limit ?? 0) <= TO_SCALE * used;
  const asked = toScale ? of.asked : Math.min(of.asked, (used * ASKED) / (1 - ASKED));
  // A limit far away would leave nothing to see of the parts.
  const near = toScale || (of.asked === 0 && (of.limit ?? 0) <= 2.5 * used);
  const limit = near ? of.limit : null;
  const whole = Math.max(of.bytes + asked, limit ?? 0, 1);
  const part = (name: string, bytes: number, title: string) => {
    const one = el("span", { class: `part ${name}`, title });
    one.style.width = `${(100 * Math.max(0, bytes)) / whole}%`;
    one.dataset.bytes = String(bytes);
    return one;
  };
  const shown = PARTS.filter(([name]) => of[name] !== 0);
  const bar = el(
    "div",
    { class: "used-bar" },
    ...shown.map(([name, words]) => part(name, of[name], `${words} ${size(of[name])}, ${percent(of[name], of.bytes)}`)),
    of.asked > 0 && part("asked", asked, `asked for ${size(of.asked)}`),
  );
  if (limit !== null) {
    const mark = el("span", { class: "limit", title: `limit ${limitOf(limit)}` });
    mark.style.left = `${(100 * limit) / whole}%`;
    bar.append(mark);
  }
  const words = shown.map(([name, text]) =>
    el("span", { class: "used-key" }, el("span", { class: `swatch part ${name}` }), `${text} ${size(of[name])}`),
  );
  if (of.asked > 0) words.push(el("span", { class: "used-key" }, el("span", { class: "swatch part asked" }), `asked ${size(of.asked)}`));
  const node = el(
    "div",
    { class: "used" },
    el("div", {}, el("strong", { text: size(of.bytes) }), ` ${of.word}`),
    bar,
    el("div", { class: "used-keys" }, ...words),
  );
  node.dataset.bytes = String(of.bytes);
  return node;
}
