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

const FIXED: Record<string, string> = {
  unknown: "#8f8f8f",
  others: "#b3b3b3",
  "PyTorch cache (free)": "#c6cbd3",
  "CUDA context": "#5d6673",
  "driver's own and unknown": "#9aa3ad",
  "small blocks, lumped": "#c9b79c",
};

const ROLES: Record<string, string> = {
  weights: "#0072b2", gradients: "#d55e00", "optimizer state": "#009e73", activations: "#e69f00",
  "KV cache": "#cc79a7", temporary: "#f0e442", workspace: "#56b4e9", input: "#882255",
  communication: "#332288", "graph memory": "#999933", "context and modules": "#5d6673",
};

function hash(text: string): number {
  let value = 2166136261;
  for (let at = 0; at < text.length; at++) {
    value = Math.imul(value ^ text.charCodeAt(at), 16777619);
  }
  return value >>> 0;
}

/** The colour of a library, role, line or phase, by its name alone. */
export function colour(name: string): string {
  // Names are a program's: `constructor` is one too.
  if (Object.hasOwn(FIXED, name)) return FIXED[name];
  if (Object.hasOwn(ROLES, name)) return ROLES[name];
  const index = Object.hasOwn(KNOWN, name) ? KNOWN[name] : hash(name) % COLOURS.length;
  return COLOURS[index];
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
