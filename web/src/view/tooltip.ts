// What is under the pointer. Text only.

import { el, fill } from "../base/dom.ts";
import { clean } from "../base/units.ts";

const node = el("div", { class: "tooltip", role: "tooltip" });
let shown = false;

export interface Line {
  text: string;
  colour?: string;
  strong?: boolean;
}

export function show(event: MouseEvent, lines: Line[]): void {
  if (!node.isConnected) document.body.append(node);
  fill(
    node,
    ...lines.map((line) => {
      const row = el("div", { class: line.strong ? "strong" : "" });
      if (line.colour) {
        const swatch = el("span", { class: "swatch" });
        swatch.style.background = line.colour;
        row.append(swatch);
      }
      row.append(clean(line.text, 160));
      return row;
    }),
  );
  node.style.display = "block";
  shown = true;
  const { innerWidth, innerHeight } = window;
  const [width, height] = [node.offsetWidth, node.offsetHeight];
  const right = event.clientX + 16 + width > innerWidth;
  node.style.left = `${Math.max(4, right ? event.clientX - width - 12 : event.clientX + 16)}px`;
  node.style.top = `${Math.max(4, Math.min(event.clientY + 12, innerHeight - height - 6))}px`;
}

export function hide(): void {
  if (shown) node.style.display = "none";
  shown = false;
}
