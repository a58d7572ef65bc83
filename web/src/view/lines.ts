// Curves by uPlot.

import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import { theme } from "../base/dom.ts";
import { clean, seconds, size } from "../base/units.ts";

export interface Curve {
  name: string;
  colour: string;
  values: (number | null)[];
  dash?: number[];
}

export interface Chart {
  title: string;
  /** Seconds. */
  x: number[];
  curves: Curve[];
  height: number;
  width: number;
  /** Of all charts that are to be compared. */
  highest?: number;
  legend?: boolean;
}

export function chart(into: HTMLElement, of: Chart): uPlot {
  const stroke = theme("text");
  const grid = { stroke: theme("grid"), width: 1 };
  const options: uPlot.Options = {
    width: Math.max(160, of.width),
    height: of.height,
    title: clean(of.title, 80),
    legend: { show: of.legend ?? true },
    cursor: { drag: { x: false, y: false } },
    scales: {
      x: { time: false },
      y: { range: (_u, _low, high) => [0, Math.max(1, of.highest ?? high) * 1.05] },
    },
    axes: [
      { stroke, grid, values: (_u, at) => at.map((x) => `${+x.toPrecision(6)}`), size: 30 },
      {
        stroke, grid, size: 74,
        splits: (_u, _axis, _low, high) => {
          let step = 1;
          while (high / step > 5) step *= 2;
          return Array.from({ length: Math.floor(high / step) + 1 }, (_, n) => n * step);
        },
        values: (_u, at) => at.map((bytes) => size(bytes).replace(".00", "")),
      },
    ],
    series: [
      { label: "time", value: (_u, x) => (x === null ? "" : seconds(x * 1e9)) },
      ...of.curves.map((curve) => ({
        label: clean(curve.name, 60),
        stroke: curve.colour,
        width: 1.6,
        dash: curve.dash,
        points: { show: false },
        value: (_u: uPlot, bytes: number | null) => (bytes === null ? "" : size(bytes)),
      })),
    ],
  };
  const data = [of.x, ...of.curves.map((curve) => curve.values)] as uPlot.AlignedData;
  return new uPlot(options, data, into);
}
