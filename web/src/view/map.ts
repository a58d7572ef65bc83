// The address space at the pinned moment: each segment a row, its blocks by holder, what is free
// between them. Rows have the same length, or one scale.

import { choice, el, fill, fit, fitted, theme } from "../base/dom.ts";
import { clean, percent, seconds, several, size } from "../base/units.ts";
import type { Segment } from "../model/moment.ts";
import type { Page, View, Wanted } from "./page.ts";
import * as tooltip from "./tooltip.ts";

const LEFT = 268;
const ROW = 15;
const STEP = 18;
/** Rows that are drawn at once: a canvas has a largest height. */
const ROWS = 400;

interface Row {
  segment: Segment | null;
  /** Memory that is no segment: index. */
  memory: number;
  /** What is asleep and in no segment: index of the mapping. */
  asleep: number;
  address: number;
  bytes: number;
  y: number;
}

export class MapView implements View {
  readonly node = el("section", { class: "map", label: "Address space" });
  private readonly canvas = el("canvas", { role: "img", label: "Segments and blocks by address" });
  private readonly words = el("div", { class: "dim" });
  private readonly sort = choice("", false, () => {
    this.bySize = !this.bySize;
    this.draw();
  });
  private readonly scale = choice("", false, () => {
    this.oneScale = !this.oneScale;
    this.draw();
  });
  private rows: Row[] = [];
  private bySize = true;
  private oneScale = true;
  private largest = 1;
  private most = ROWS;
  private zoom = 1;

  constructor(private readonly page: Page) {
    const zoom = (by: number) => () => {
      this.zoom = Math.min(64, Math.max(1, this.zoom * by));
      this.draw();
    };
    const scroll = el("div", { class: "scroll" }, this.canvas);
    this.node.append(
      el(
        "div",
        { class: "bar-row" },
        this.sort,
        this.scale,
        choice("wider", false, zoom(2)),
        choice("narrower", false, zoom(0.5)),
        this.words,
      ),
      scroll,
    );
    this.canvas.addEventListener("mousemove", (event) => this.hover(event));
    this.canvas.addEventListener("mouseleave", () => tooltip.hide());
    this.canvas.addEventListener("click", (event) => {
      const block = this.blockAt(event);
      if (block !== null) page.filter("holder", page.model.holderLabel(page.model.page.owners[page.model.blocks.owner[block]][3]));
    });
  }

  draw(): void {
    const { page } = this;
    const { model } = page;
    const at = page.moment;
    this.sort.textContent = this.bySize ? "sorted by free bytes" : "sorted by address";
    const memory = model.memory;
    const rows: Row[] = at.segments.map((segment) => ({
      segment, memory: -1, asleep: -1, address: segment.address, bytes: segment.bytes, y: 0,
    }));
    for (const n of at.memory) {
      // What the driver took has no address.
      if (model.isTaken(memory.owner[n])) continue;
      rows.push({ segment: null, memory: n, asleep: -1, address: memory.address[n], bytes: memory.size[n], y: 0 });
    }
    const { mappings } = model.stream;
    for (const n of at.asleep) {
      rows.push({ segment: null, memory: -1, asleep: n, address: mappings.address[n], bytes: mappings.size[n], y: 0 });
    }
    if (this.bySize) rows.sort((a, b) => free(b) - free(a) || a.address - b.address);
    else rows.sort((a, b) => a.address - b.address);
    const shown = rows.slice(0, this.most);
    this.largest = rows.reduce((most, row) => Math.max(most, row.bytes), 1);
    this.scale.textContent = this.oneScale ? "one scale for all" : "rows of the same length";
    this.canvas.style.width = `${100 * this.zoom}%`;
    const { draw, width } = fit(this.canvas, Math.max(40, shown.length * STEP + 8));
    const wanted = page.wanted();
    draw.clearRect(0, 0, width, this.canvas.clientHeight);
    draw.font = "11px ui-monospace, monospace";
    draw.textBaseline = "middle";
    shown.forEach((row, n) => {
      row.y = 4 + n * STEP;
      this.row(draw, row, this.scaleOf(row, width), wanted);
    });
    this.rows = shown;
    const releasable = at.segments.filter((segment) => segment.blocks.length === 0 && segment.asleep === 0);
    const asleep = at.segments.reduce((sum, segment) => sum + segment.asleep, 0);
    const bytes = releasable.reduce((sum, segment) => sum + segment.bytes, 0);
    const reserved = at.segments.reduce((sum, segment) => sum + segment.bytes, 0);
    const used = at.segments.reduce((sum, segment) => sum + segment.used, 0);
    fill(
      this.words,
      [
        page.when,
        `${several(at.segments.length, "segment")}, ${size(reserved)}, ${percent(used, reserved)} in blocks`,
        `free ${size(reserved - used)}, of which ${size(bytes)} can be given back${bytes > 0 ? " (bold frame)" : ""}`,
        asleep > 0 ? `asleep ${size(asleep)}: unmapped, may come back (pale)` : "",
        rows.length > shown.length ? `${rows.length - shown.length} rows more` : "",
      ]
        .filter(Boolean)
        .join("; "),
      rows.length > shown.length &&
        choice("show more", false, () => {
          this.most += ROWS;
          this.draw();
        }),
    );
    if (rows.length === 0) this.words.textContent = "No memory was held at this moment.";
  }

  /** What tests read: the rows in order. */
  drawn(): { bytes: number; free: number; width: number }[] {
    const width = this.canvas.clientWidth;
    return this.rows.map((row) => ({ bytes: row.bytes, free: free(row), width: row.bytes * this.scaleOf(row, width) }));
  }

  /** Pixels a byte. */
  private scaleOf(row: Row, width: number): number {
    return (width - LEFT - 12) / Math.max(1, this.oneScale ? this.largest : row.bytes);
  }

  private row(
    draw: CanvasRenderingContext2D,
    row: Row,
    scale: number,
    wanted: Wanted | undefined,
  ): void {
    const { model } = this.page;
    const { blocks, memory } = model;
    const { segment, y } = row;
    draw.fillStyle = theme("text");
    draw.textAlign = "left";
    const fillOf = row.asleep >= 0 ? "asleep" : !segment ? "no segment" : segment.asleep === segment.bytes ? "asleep" : percent(segment.used, segment.bytes);
    const address = row.address > 0 ? `0x${row.address.toString(16)}` : "no address";
    draw.fillText(`${address.padEnd(16)} ${size(row.bytes).padStart(10)} ${fillOf.padStart(8)}`, 4, y + ROW / 2);
    const width = Math.max(1.5, row.bytes * scale);
    draw.fillStyle = theme("hole");
    draw.fillRect(LEFT, y, width, ROW);
    const block = (from: number, bytes: number, owner: number, role: number, group: string, asleep: boolean) => {
      draw.globalAlpha = (!wanted || wanted(owner, role) ? 1 : 0.2) * (asleep ? 0.35 : 1);
      draw.fillStyle = group;
      const wide = Math.max(0.5, bytes * scale);
      draw.fillRect(LEFT + from * scale, y, wide > 3 ? wide - 0.6 : wide, ROW);
      draw.globalAlpha = 1;
    };
    const { stack } = this.page;
    if (segment) {
      for (const n of segment.blocks) {
        const paint = stack.groups[stack.groupOf(blocks, n)].colour;
        block(blocks.address[n] - segment.address, blocks.size[n], blocks.owner[n], blocks.role[n], paint, blocks.held[n] === 0);
      }
    } else if (row.asleep >= 0) {
      const owner = model.stream.mappings.asleep[row.asleep] - 1;
      block(0, row.bytes, owner, 255, theme("dim"), true);
    } else {
      const n = row.memory;
      block(0, row.bytes, memory.owner[n], memory.role[n], stack.groups[stack.groupOf(memory, n)].colour, false);
    }
    const empty = segment?.blocks.length === 0 && segment.asleep === 0;
    draw.lineWidth = empty ? 2 : 1;
    const pinned = segment && segment.asleep === 0 && segment.blocks.length === 1 && segment.used < segment.bytes / 2;
    draw.strokeStyle = theme(empty ? "text" : "grid");
    draw.setLineDash(segment?.expandable ? [3, 2] : []);
    draw.strokeRect(LEFT + 0.5, y + 0.5, width, ROW - 1);
    draw.setLineDash([]);
    if (pinned && width > 120) {
      draw.fillStyle = theme("text");
      draw.font = "10px system-ui, sans-serif";
      draw.textAlign = "right";
      draw.fillText(fitted(draw, "held by one block", width / 2), LEFT + width - 4, y + ROW / 2);
      draw.font = "11px ui-monospace, monospace";
    }
  }

  private rowAt(event: MouseEvent): { row: Row; address: number } | null {
    const row = this.rows.find((one) => event.offsetY >= one.y && event.offsetY < one.y + ROW);
    if (!row) return null;
    return { row, address: row.address + (event.offsetX - LEFT) / this.scaleOf(row, this.canvas.clientWidth) };
  }

  private blockAt(event: MouseEvent): number | null {
    const found = this.rowAt(event);
    const { blocks } = this.page.model;
    const inside = (n: number) =>
      found !== null && blocks.address[n] <= found.address && found.address < blocks.address[n] + blocks.size[n];
    return found?.row.segment?.blocks.find(inside) ?? null;
  }

  private hover(event: MouseEvent): void {
    const found = this.rowAt(event);
    if (!found) return tooltip.hide();
    const { model } = this.page;
    const { segment, memory } = found.row;
    const lines: tooltip.Line[] = [];
    const n = this.blockAt(event);
    if (n !== null) {
      const { blocks } = model;
      const holder = model.page.owners[blocks.owner[n]][3];
      const library = model.library(blocks.owner[n]);
      lines.push(
        { text: size(blocks.size[n]), strong: true },
        { text: clean(model.holderLine(holder), 200), colour: this.page.stack.groups[this.page.stack.groupOf(blocks, n)].colour },
        { text: `${model.page.roles[blocks.role[n]]}, ${library}` },
        { text: `allocated at ${seconds(model.time[blocks.start[n]], 6)}` },
      );
    } else if (memory >= 0) {
      const owner = model.page.owners[model.memory.owner[memory]];
      const kind = model.page.kinds.find(([id]) => id === owner[1])?.[1] ?? "memory";
      lines.push(
        { text: `${size(model.memory.size[memory])} of the driver (${kind})`, strong: true },
        { text: clean(model.holderLine(owner[3]), 200) },
      );
    }
    if (found.row.asleep >= 0) {
      const owner = model.page.owners[model.stream.mappings.asleep[found.row.asleep] - 1];
      lines.push(
        { text: `${size(found.row.bytes)} asleep: unmapped, may come back`, strong: true },
        { text: clean(model.holderLine(owner[3]), 200) },
      );
    }
    if (segment) {
      lines.push(
        { text: `${segment.expandable ? "expandable segment" : "segment"} 0x${segment.address.toString(16)}` },
        { text: `${size(segment.bytes)}, ${size(segment.bytes - segment.used)} free, ${several(segment.blocks.length, "block")}` },
      );
      if (segment.asleep > 0) lines.push({ text: `${size(segment.asleep)} asleep: unmapped, may come back` });
      else if (segment.blocks.length === 0) lines.push({ text: "holds no block: it can be given back" });
    }
    tooltip.show(event, lines);
  }
}

function free(row: Row): number {
  return row.segment ? row.segment.bytes - row.segment.used : 0;
}
