// Elements, made by hand: text is only ever text.

type Child = Node | string | null | undefined | false;

interface Options {
  class?: string;
  text?: string;
  title?: string;
  id?: string;
  role?: string;
  label?: string;
  on?: Partial<Record<keyof HTMLElementEventMap, (event: never) => void>>;
}

export function el<K extends keyof HTMLElementTagNameMap>(
  tag: K,
  options: Options = {},
  ...children: Child[]
): HTMLElementTagNameMap[K] {
  const node = document.createElement(tag);
  if (options.class) node.className = options.class;
  if (options.id) node.id = options.id;
  if (options.text !== undefined) node.textContent = options.text;
  if (options.title) node.title = options.title;
  if (options.role) node.setAttribute("role", options.role);
  if (options.label) node.setAttribute("aria-label", options.label);
  for (const [name, handler] of Object.entries(options.on ?? {})) {
    node.addEventListener(name, handler as EventListener);
  }
  for (const child of children) if (child) node.append(child);
  return node;
}

/** Replaces what is in an element. */
export function fill(node: Element, ...children: Child[]): void {
  node.replaceChildren(...children.filter((child): child is Node | string => !!child));
}

export interface Canvas {
  draw: CanvasRenderingContext2D;
  /** In CSS pixels. */
  width: number;
  ratio: number;
}

/** Gives a canvas the size that it is shown with. */
export function fit(node: HTMLCanvasElement, height?: number): Canvas {
  const ratio = window.devicePixelRatio || 1;
  const width = Math.max(50, node.clientWidth || node.parentElement?.clientWidth || 300);
  const high = Math.max(20, height ?? node.clientHeight);
  const [w, h] = [Math.round(width * ratio), Math.round(high * ratio)];
  if (height !== undefined) node.style.height = `${height}px`;
  if (node.width !== w || node.height !== h) [node.width, node.height] = [w, h];
  const draw = node.getContext("2d");
  if (!draw) throw new Error("this browser draws no canvas");
  draw.setTransform(ratio, 0, 0, ratio, 0, 0);
  return { draw, width, ratio };
}

const colours = new Map<string, string>();

/** The colour that the style sheet gives a name, of the theme in force. */
export function theme(name: string): string {
  let known = colours.get(name);
  if (known === undefined) {
    known = getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim() || "#888";
    colours.set(name, known);
  }
  return known;
}

/** After another theme came into force. */
export function forgetTheme(): void {
  colours.clear();
}

/** Copies text. Where the page has no clipboard (plain http, some files), by the command of old browsers. */
export async function copyText(text: string): Promise<boolean> {
  try {
    if (navigator.clipboard) {
      await navigator.clipboard.writeText(text);
      return true;
    }
  } catch {
    // Refused: the other way may be allowed.
  }
  const area = el("textarea", { label: "copied text" });
  area.value = text;
  area.className = "offscreen";
  document.body.append(area);
  area.select();
  const copied = document.execCommand("copy");
  area.remove();
  return copied;
}

/** A button that copies a line. */
export function copyButton(text: string): HTMLElement {
  const button = el("button", {
    class: "copy",
    text: "copy",
    title: "copies the line",
    on: {
      click: () => {
        void copyText(text).then((copied) => (button.textContent = copied ? "copied" : "select it and copy"));
      },
    },
  });
  return button;
}

/** A button; of several that exclude each other one is `chosen`. */
export function choice(text: string, chosen: boolean, click: () => void): HTMLElement {
  return el("button", { class: chosen ? "switch chosen" : "switch", text, on: { click } });
}

type Cell = Child | Child[];

/** A row of a table. `classes`: those of the columns. */
export function row(cells: Cell[], classes: string[] = [], options: Options = {}): HTMLElement {
  return el("tr", options, ...cells.map((cell, n) => el("td", { class: classes[n] ?? "" }, ...[cell].flat())));
}

export function table(head: string[], rows: HTMLElement[], classes: string[] = []): HTMLElement {
  const names = el("tr", {}, ...head.map((text, n) => el("th", { class: classes[n] ?? "", text })));
  return el("div", { class: "table" }, el("table", {}, el("thead", {}, names), el("tbody", {}, ...rows)));
}

/** At most one call a frame. */
export function oncePerFrame(work: () => void): () => void {
  let waiting = false;
  return () => {
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => {
      waiting = false;
      work();
    });
  };
}

/** Text cut so that it fits. */
export function fitted(draw: CanvasRenderingContext2D, text: string, width: number): string {
  if (width < 12) return "";
  if (draw.measureText(text).width <= width) return text;
  let [low, high] = [0, Math.min(text.length, 200)];
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (draw.measureText(`${text.slice(0, middle)}…`).width <= width) low = middle;
    else high = middle - 1;
  }
  return low > 1 ? `${text.slice(0, low)}…` : "";
}
