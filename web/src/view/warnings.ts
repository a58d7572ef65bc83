// What is missing in a trace: it stands below the verdict.

import { el } from "../base/dom.ts";
import { clean, count, duration, seconds, several, size } from "../base/units.ts";
import type { Model } from "../model/model.ts";

export function warnings(model: Model): HTMLElement[] {
  const { damage, running, stopped, history_from_s: from, live_is_known: known } = model.facts;
  const all: string[] = [];
  if (damage.places > 0) {
    const where = damage.first[0] ? `; first: ${damage.first[0]}` : "";
    all.push(`The trace is damaged in ${several(damage.places, "place")} (${size(damage.bytes)}): what stood there is missing here${where}`);
  }
  if (!known) all.push("Events are missing: what is live at the end is a guess");
  else if (from > 0) all.push(`Events before ${seconds(from * 1e9)} are not in the trace${samples(model)}`);
  if (stopped) all.push(`Recording stopped at ${seconds(stopped.at_s * 1e9)}: ${stopped.reason}`);
  if (running) all.push("The process was running when the page was written");
  if (model.page.lumped > 0) {
    all.push(`The run has many blocks: ${count(model.page.lumped)} of fewer than ${size(model.page.lumped_below)} are one sum here`);
  }
  if (!model.hasProcessFigure && model.last > 0) {
    all.push("The trace has no figure of nvidia-smi: the top edge is what was recorded, allocations and contexts");
  }
  if (!model.facts.has_stacks && model.last > 0) {
    const form = model.facts.imported_from;
    all.push(form ? `The trace was made from a ${form}: it has no stacks` : "The trace has no stacks");
  }
  if (!model.facts.has_times) all.push("The trace has no times: events are in order, a microsecond apart");
  return all.map((text) => el("p", { class: "warning", role: "status", text: clean(text, 500) }));
}

/** What the recorder's samples of erased events resolve, and what shows them. */
function samples(model: Model): string {
  const before = model.facts.sampled_before;
  if (!before) return "";
  const [finest, coarsest] = [duration(before.finest_s * 1e9), duration(before.coarsest_s * 1e9)];
  const each = finest === coarsest ? finest : `${finest} to ${coarsest}`;
  return `: samples of the recorder stand for them, one value for each ${each} of ${seconds(before.from_s * 1e9)} to ${seconds(before.until_s * 1e9)}, in the leaks below and in \`vramtrace report --at\``;
}
