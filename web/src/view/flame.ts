// Bytes by stack as rectangles: each as wide as what was held below it.

import { el, fit, fitted, theme } from "../base/dom.ts";
import { clean, percent, size } from "../base/units.ts";
import { Shown } from "../data/facts.ts";
import { LUMPED } from "../model/model.ts";
import { eachLive } from "../model/moment.ts";
import type { Page, Wanted } from "./page.ts";
import * as tooltip from "./tooltip.ts";

export interface Node {
  name: string;
  detail: string;
  /** A frame of the program's own code. */
  own: boolean;
  bytes: number;
  children: Map<string, Node>;
  parent: Node | null;
  depth: number;
}

const ROW = 17;
const DEEPEST = 40;

/** By owner: what is wanted of the pinned moment. */
function bytesOf(page: Page, wanted: Wanted): Float64Array {
  const { model } = page;
  const bytes = new Float64Array(model.page.owners.length);
  eachLive(model, page.moment, (owner, role, size) => {
    if (wanted(owner, role)) bytes[owner] += size;
  });
  return bytes;
}

export function tree(page: Page): Node {
  const { model } = page;
  const { state } = page.store;
  const at = page.moment;
  const wanted = page.wanted();
  const root: Node = {
    name: "all", detail: "", own: false, bytes: 0, children: new Map(), parent: null, depth: 0,
  };
  const add = (path: { name: string; detail: string; own: boolean }[], bytes: number) => {
    root.bytes += bytes;
    let node = root;
    for (const frame of path) {
      const key = `${frame.name}\n${frame.detail}`;
      let child = node.children.get(key);
      if (!child) {
        child = { ...frame, bytes: 0, children: new Map(), parent: node, depth: node.depth + 1 };
        node.children.set(key, child);
      }
      child.bytes += bytes;
      node = child;
      if (node.depth > DEEPEST) return;
    }
  };
  const { nodes, frames, files } = model.page;
  const named = frames.map(([name, file, line, , shown]) => {
    const path = files[file] ?? "";
    const base = path.split("/").pop() ?? "";
    return {
      name: base ? `${name} ${base}:${line}` : name,
      detail: path,
      own: shown === Shown.Own,
    };
  });
  const bytes = wanted ? bytesOf(page, wanted) : at.bytes;
  model.page.owners.forEach((owner, n) => {
    if (bytes[n] <= 0) return;
    const path: (typeof named)[number][] = [];
    for (let node = owner[0], steps = 0; node > 0 && steps < 4096; node = nodes[node - 1][0], steps++) {
      const frame = nodes[node - 1][1];
      if (state.frames || frames[frame]?.[4] !== Shown.OnDemand) path.push(named[frame]);
    }
    if (!state.inverted) path.reverse();
    if (path.length === 0) {
      const name = model.holderName(owner[3]);
      path.push({ name: name || "no frames", detail: "", own: false });
    }
    add(path, bytes[n]);
  });
  if (!wanted) {
    if (at.lumped > 0) add([{ name: LUMPED, detail: "", own: false }], at.lumped);
  }
  return root;
}

interface Drawn {
  node: Node;
  x: number;
  width: number;
}

export class Flame {
  readonly node = el("div", { class: "flame" });
  private readonly canvas = el("canvas", { role: "img", label: "Bytes by stack" });
  private drawn: Drawn[] = [];
  private zoomed: string[] = [];

  constructor(private readonly page: Page) {
    this.node.append(this.canvas);
    this.canvas.addEventListener("mousemove", (event) => this.hover(event));
    this.canvas.addEventListener("mouseleave", () => tooltip.hide());
    this.canvas.addEventListener("click", (event) => {
      const found = this.at(event);
      if (!found) return;
      this.zoomed = [];
      for (let node: Node | null = found.node; node?.parent; node = node.parent) {
        this.zoomed.unshift(`${node.name}\n${node.detail}`);
      }
      this.draw();
    });
  }

  private at(event: MouseEvent): Drawn | undefined {
    const row = Math.floor(event.offsetY / ROW);
    return this.drawn.find(
      (one) => one.node.depth === row && event.offsetX >= one.x && event.offsetX < one.x + one.width,
    );
  }

  /** Back to the whole. */
  clear(): void {
    this.zoomed = [];
  }

  draw(): void {
    const root = tree(this.page);
    let focus = root;
    for (const key of this.zoomed) {
      const next = focus.children.get(key);
      if (!next) break;
      focus = next;
    }
    this.drawn = [];
    let deepest = 0;
    const width = Math.max(50, this.node.clientWidth);
    const place = (node: Node, x: number, wide: number) => {
      if (wide < 0.6) return;
      this.drawn.push({ node, x, width: wide });
      deepest = Math.max(deepest, node.depth);
      let at = x;
      for (const child of [...node.children.values()].sort((a, b) => b.bytes - a.bytes)) {
        const part = node.bytes > 0 ? (child.bytes / node.bytes) * wide : 0;
        place(child, at, part);
        at += part;
      }
    };
    for (let node = focus.parent; node; node = node.parent) this.drawn.push({ node, x: 0, width });
    place(focus, 0, width);
    const { draw } = fit(this.canvas, Math.min(ROW * (deepest + 1), 420));
    draw.clearRect(0, 0, width, this.canvas.clientHeight);
    draw.font = "11px system-ui, sans-serif";
    draw.textBaseline = "middle";
    const { search } = this.page.store.state;
    for (const one of this.drawn) {
      const all = one.node.depth === 0;
      const hit = search !== "" && one.node.name.toLowerCase().includes(search.toLowerCase());
      draw.globalAlpha = search !== "" && !hit && !all ? 0.35 : 1;
      draw.fillStyle = theme(all ? "panel" : one.node.own ? "own" : "frame");
      draw.fillRect(one.x, one.node.depth * ROW, Math.max(0.6, one.width - 0.7), ROW - 1);
      draw.globalAlpha = 1;
      draw.fillStyle = theme("text");
      const text = all ? `held ${size(one.node.bytes)}` : clean(one.node.name, 200);
      draw.fillText(fitted(draw, text, one.width - 6), one.x + 3, one.node.depth * ROW + ROW / 2);
    }
  }

  private hover(event: MouseEvent): void {
    const found = this.at(event);
    if (!found) return tooltip.hide();
    const { node } = found;
    const total = this.drawn.find((one) => one.node.depth === 0)?.node.bytes ?? 0;
    tooltip.show(event, [
      { text: node.name, strong: true },
      { text: `${size(node.bytes)}  ${percent(node.bytes, total)}` },
      ...(node.detail ? [{ text: node.detail }] : []),
    ]);
  }
}
