// Colours that people who do not see red and green tell apart (after Okabe and Ito, and Tol), with
// as much difference in lightness as in hue. A library has the same colour on every page.

const COLOURS = [
  "#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442", "#332288",
  "#88ccee", "#44aa99", "#999933", "#882255", "#aa4499", "#6699cc", "#ddcc77", "#117733",
];

const KNOWN: Record<string, number> = {
  PyTorch: 5, transformers: 0, cuBLAS: 6, cuDNN: 10, NCCL: 3, XLA: 2, CuPy: 4, TensorFlow: 1,
  Triton: 12, torchvision: 9, vllm: 8, diffusers: 13,
};

/** What is no holder stays in the background, in both themes. */
const FIXED: Record<string, [light: string, dark: string]> = {
  unknown: ["#8f8f8f", "#8f8f8f"],
  others: ["#b3b3b3", "#7d7d7d"],
  "free in cache": ["#d3d8df", "#2f363f"],
  "driver's own and unknown": ["#9aa3ad", "#7a838e"],
  "small blocks, lumped": ["#c9b79c", "#8d7f69"],
};

/** Dark colours that are not seen on a dark page. */
const LIGHTER: Record<string, string> = {
  "#332288": "#8577e0", "#882255": "#c9578a", "#117733": "#4cae6b", "#0072b2": "#2e8fd0",
};

const ROLES: Record<string, string> = {
  weights: "#0072b2", gradients: "#d55e00", "optimizer state": "#009e73", activations: "#e69f00",
  "KV cache": "#cc79a7", "copies of weights": "#7f7fbf", temporary: "#f0e442", workspace: "#56b4e9", input: "#882255",
  communication: "#332288", "graph memory": "#999933", "context and modules": "#5d6674",
};

function hash(text: string): number {
  let value = 2166136261;
  for (let at = 0; at < text.length; at++) {
    value = Math.imul(value ^ text.charCodeAt(at), 16777619);
  }
  return value >>> 0;
}

let dark = false;

/** The theme for which colours are chosen. */
export function darken(on: boolean): void {
  dark = on;
}

export function isDark(): boolean {
  return dark;
}

/** The colour of a library, role, line or phase, by its name alone. */
export function colour(name: string): string {
  // Names are a program's: `constructor` is one too.
  if (Object.hasOwn(FIXED, name)) return FIXED[name][dark ? 1 : 0];
  const index = Object.hasOwn(KNOWN, name) ? KNOWN[name] : hash(name) % COLOURS.length;
  const found = Object.hasOwn(ROLES, name) ? ROLES[name] : COLOURS[index];
  return dark && Object.hasOwn(LIGHTER, found) ? LIGHTER[found] : found;
}

/** What is chosen by a click. No name has this colour. */
export function chosen(): string {
  return dark ? "#ff5fb0" : "#e6007e";
}

/** Red, green and blue, 0 to 255. */
export function rgb(hex: string): [number, number, number] {
  const value = parseInt(hex.slice(1), 16);
  return [value >> 16, (value >> 8) & 255, value & 255];
}

/** Black or white, whatever is read better on it: the contrast of WCAG. */
export function ink(hex: string): string {
  const [r, g, b] = rgb(hex).map((part) => {
    const value = part / 255;
    return value <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.179 ? "#111111" : "#ffffff";
}
