// What the command says of the run: the figures of `vramtrace report --json`.

import { el, fill } from "../base/dom.ts";
import { clean, count, seconds, size } from "../base/units.ts";
import { dateOf, endOf } from "./header.ts";
import type { Page, View } from "./page.ts";

export class FactsView implements View {
  readonly node = el("section", { class: "facts", label: "Facts of the run" });

  constructor(private readonly page: Page) {}

  draw(): void {
    const { model } = this.page;
    const { facts } = model;
    const device = model.deviceFacts;
    const rows: [string, string][] = [
      ["trace", facts.trace],
      ["command", facts.command.join(" ")],
      ["host", `${facts.host}, pid ${facts.pid}${facts.rank === null ? "" : `, rank ${facts.rank}`}`],
      ["started", dateOf(facts.started_unix_s)],
      ["duration", seconds(facts.duration_s * 1e9)],
      ["ended", endOf(facts) || "not recorded"],
      ["events", count(facts.events)],
    ];
    if (device) {
      const torch = device.torch;
      rows.push(
        ["device", `GPU ${device.device ?? "?"} ${device.name}${device.total_bytes === null ? "" : `, ${size(device.total_bytes)}`}`],
        ["peak", `${size(device.peak_bytes)} at ${seconds(device.peak_at_s * 1e9)}`],
        ["live at the end", `${size(device.live_bytes)}`],
        ["allocations", `${count(device.allocations)}, ${count(device.frees)} frees`],
        ["refused", `${count(device.refused_by_cap)} by the cap, ${count(device.refused_by_driver)} by the driver`],
      );
      if (device.peak_process_bytes !== null) rows.push(["in nvidia-smi, highest", size(device.peak_process_bytes)]);
      if (torch) {
        rows.push(
          ["allocated, highest (PyTorch's tensors)", size(torch.peak_allocated_bytes)],
          ["reserved, highest (PyTorch)", size(torch.peak_reserved_bytes)],
        );
      }
      const at = this.page.ordinal;
      const beyond = model.top(at) - model.known(at);
      if (model.hasProcessFigure) {
        rows.push(
          [`in nvidia-smi beyond allocations and contexts, ${this.page.when}`, size(beyond)],
          [`in nvidia-smi beyond PyTorch's reserved, ${this.page.when}`, size(model.top(at) - model.sums[5].of(at))],
        );
      }
      for (const [name, bytes] of Object.entries(device.driver_bytes ?? {})) {
        if (bytes) rows.push([`driver's own: ${name.replaceAll("_", " ")}`, size(bytes)]);
      }
    }
    for (const text of facts.damage.first) rows.push(["damage", text]);
    for (const text of model.page.problems.slice(0, 10)) rows.push(["names", text]);
    fill(
      this.node,
      el("div", { class: "table" }, el("table", {}, el("tbody", {}, ...rows.map(([name, value]) =>
        el("tr", {}, el("th", { text: name }), el("td", { class: "text", text: clean(value, 600) })),
      )))),
      el("p", {
        class: "dim",
        text: `vramtrace ${this.page.facts.version}. ` +
          "The wheel scrolls, Ctrl + wheel zooms. Keys: + and - zoom, arrows move the pinned moment (Shift: the view), P peak, F failure, 0 whole run, 1 to 7 views, / search, T theme, Esc clears.",
      }),
    );
  }
}
