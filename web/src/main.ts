// The page: reads its data, shows the first screen, then what is asked for.

import "./style.css";
import { el, fill, forgetTheme } from "./base/dom.ts";
import { darken } from "./base/palette.ts";
import { clean } from "./base/units.ts";
import type { Facts } from "./data/facts.ts";
import { loadFacts, loadStream } from "./data/load.ts";
import { Stack, usual } from "./model/groups.ts";
import { Model } from "./model/model.ts";
import { byRole } from "./model/moment.ts";
import { Latest } from "./model/selection.ts";
import { Store, TABS, type Tab } from "./state.ts";
import { AdviceView } from "./view/advice.ts";
import { Allocations } from "./view/allocations.ts";
import { BlocksView } from "./view/blocks.ts";
import { FactsView } from "./view/facts.ts";
import { drawHeader, titleOf } from "./view/header.ts";
import { Largest } from "./view/largest.ts";
import { MapView } from "./view/map.ts";
import { Page, type View } from "./view/page.ts";
import { Ranks } from "./view/ranks.ts";
import { Strip } from "./view/strip.ts";
import { Timeline } from "./view/timeline.ts";
import * as tooltip from "./view/tooltip.ts";
import { Verdict } from "./view/verdict.ts";
import { Who } from "./view/who.ts";

const TITLES: Record<Tab, string> = {
  who: "Who", blocks: "Blocks", map: "Map", allocations: "Allocations", advice: "Advice",
  ranks: "Ranks", facts: "Facts",
};

function loader(facts: Facts): (index: number) => Promise<Model[]> {
  const known = new Map<number, Promise<Model[]>>();
  return (index) => {
    const there = known.get(index);
    if (there) return there;
    const made = loadStream(index).then((stream) => {
      const [page, of] = [facts.processes[index], facts.report.processes[index]];
      const listed = of.devices.map((device) => device.device ?? 255);
      const devices = listed.length ? listed : [...new Set(page.owners.map((owner) => owner[2]))];
      return (devices.length ? devices : [0]).map((device) => new Model(stream, page, of, device));
    });
    known.set(index, made);
    return made;
  };
}

class App {
  private readonly page: Page;
  private readonly strip: Strip;
  private readonly verdict: Verdict;
  private readonly largest: Largest;
  readonly timeline: Timeline;
  private readonly views: Map<Tab, () => View>;
  private readonly made = new Map<Tab, View>();
  private readonly header = el("header");
  private readonly tabs = el("nav", { role: "tablist", label: "Views" });
  private readonly main = el("main");
  private models: Model[] = [];
  private readonly latest = new Latest();
  private who: Who | null = null;
  private readonly stacks = new Map<string, Stack>();

  constructor(
    readonly facts: Facts,
    readonly store: Store,
  ) {
    this.page = new Page(facts, store, loader(facts));
    this.strip = new Strip(this.page);
    this.verdict = new Verdict(this.page);
    this.largest = new Largest(this.page);
    this.timeline = new Timeline(this.page);
    const { page } = this;
    this.views = new Map<Tab, () => View>([
      ["who", () => (this.who = new Who(page))],
      ["blocks", () => new BlocksView(page)],
      ["map", () => new MapView(page)],
      ["allocations", () => new Allocations(page)],
      ["advice", () => new AdviceView(page)],
      ["ranks", () => new Ranks(page)],
      ["facts", () => new FactsView(page)],
    ]);
  }

  async start(root: HTMLElement): Promise<void> {
    this.applyTheme();
    if (!location.hash.includes("p=")) this.store.state.process = this.strip.first();
    await this.choose();
    fill(
      root,
      this.header,
      this.strip.node,
      el("div", { class: "first" }, this.verdict.node, this.largest.node),
      this.timeline.node,
      this.tabs,
      this.main,
    );
    this.all();
    this.store.listen((changed) => void this.changed(changed));
    window.addEventListener("resize", () => this.all());
    window.addEventListener("keydown", (event) => this.key(event));
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
      this.applyTheme();
      this.all();
    });
    performance.mark("vramtrace-shown");
    document.documentElement.dataset.ready = "1";
  }

  /** Loads what is selected. False: something else was selected meanwhile. */
  private choose(): Promise<boolean> {
    return this.latest.take(this.page.load(this.page.process), (models) => this.chosen(models));
  }

  private chosen(models: Model[]): void {
    const { state } = this.store;
    this.models = models;
    // A device that ran out of memory comes first.
    const failed = (model: Model) => Number(model.failure !== null);
    const highest = [...this.models].sort((a, b) => failed(b) - failed(a) || b.top(b.peak) - a.top(a.peak))[0];
    this.page.model = this.models.find((model) => model.device === state.device) ?? highest;
    this.restack();
    document.title = titleOf(this.page.model, this.facts.label);
  }

  private restack(): void {
    const { model } = this.page;
    const { filter } = this.store.state;
    const by = this.store.state.by ?? usual(model);
    const key = `${model.page.name} ${model.device} ${by}`;
    let stack = this.stacks.get(key);
    if (!stack || stack.model !== model) {
      stack = new Stack(model, by);
      this.stacks.set(key, stack);
    }
    // What was chosen is a band of its own, in any stacking.
    const wanted = this.page.wanted();
    this.page.stack = filter && wanted ? new Stack(model, by, { name: filter.name, wanted }) : stack;
  }

  private async changed(changed: Set<string>): Promise<void> {
    if (changed.has("theme")) this.applyTheme();
    const selected = changed.has("process") || changed.has("device");
    if (selected && !(await this.choose())) return;
    if (selected) return this.all();
    if (changed.has("by") || changed.has("filter")) this.restack();
    const all = ["theme", "tab"].some((key) => changed.has(key));
    if (all) return this.all();
    if (["pin", "filter", "by"].some((key) => changed.has(key))) this.largest.draw();
    if (changed.has("filter")) this.tab();
    this.timeline.later();
    const onlyView = changed.size === 1 && changed.has("view");
    const { tab } = this.store.state;
    // Moving the view changes what lies on its axis.
    if (!onlyView || tab === "blocks" || tab === "allocations") this.later();
  }

  private waiting = false;

  private later(): void {
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => {
      this.waiting = false;
      this.view().draw();
    });
  }

  private view(): View {
    const { tab } = this.store.state;
    let view = this.made.get(tab);
    if (!view) {
      view = (this.views.get(tab) ?? this.views.get("who"))!();
      this.made.set(tab, view);
    }
    return view;
  }

  private all(): void {
    forgetTheme();
    drawHeader(this.header, this.page, this.models, () => this.turn());
    this.strip.draw();
    this.verdict.draw();
    this.largest.draw();
    this.tab();
    const above = [this.header, this.strip.node, this.verdict.node.parentElement, this.tabs];
    const used = above.reduce((sum, node) => sum + (node?.offsetHeight ?? 0), 0);
    // What is beside the canvas is known when it was drawn.
    this.timeline.draw();
    this.timeline.resize(window.innerHeight - used - this.timeline.beside - 24);
    this.timeline.draw();
    const view = this.view();
    fill(this.main, view.node);
    view.draw();
  }

  private tab(): void {
    const { state } = this.store;
    const many = this.facts.processes.length > 1 || this.models.length > 1;
    fill(
      this.tabs,
      ...TABS.filter((tab) => tab !== "ranks" || many).map((tab) => {
        const button = el("button", {
          class: state.tab === tab ? "tab chosen" : "tab",
          role: "tab",
          text: TITLES[tab],
          on: { click: () => this.store.set({ tab }) },
        });
        button.setAttribute("aria-selected", String(state.tab === tab));
        return button;
      }),
      state.filter &&
        el("button", {
          class: "filter",
          text: `only ${clean(state.filter.name, 60)}  ×`,
          title: "shows all again",
          on: { click: () => this.store.set({ filter: null }) },
        }),
    );
  }

  private turn(): void {
    const dark = document.documentElement.dataset.theme
      ? document.documentElement.dataset.theme === "dark"
      : matchMedia("(prefers-color-scheme: dark)").matches;
    this.store.set({ theme: dark ? "light" : "dark" });
  }

  private applyTheme(): void {
    const { theme } = this.store.state;
    if (theme) document.documentElement.dataset.theme = theme;
    else delete document.documentElement.dataset.theme;
    darken(theme ? theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches);
    for (const stack of [...this.stacks.values(), this.page.stack]) stack?.recolour();
  }

  private key(event: KeyboardEvent): void {
    const typing = event.target instanceof HTMLInputElement || event.target instanceof HTMLSelectElement;
    if (event.key === "Escape") {
      (document.activeElement as HTMLElement | null)?.blur();
      tooltip.hide();
      this.who?.clear();
      this.store.set({ filter: null, range: null, second: null, search: "", pin: null });
      this.later();
      return;
    }
    if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
    const { page, store, timeline } = this;
    const step = (by: number) => page.pin(Math.min(Math.max(page.ordinal + by, 0), page.model.last));
    const keys: Record<string, () => void> = {
      "+": () => timeline.zoom(0.5),
      "=": () => timeline.zoom(0.5),
      "-": () => timeline.zoom(2),
      "0": () => store.set({ view: null }),
      p: () => page.pin(page.model.peak),
      f: () => page.pin(null),
      t: () => this.turn(),
      ArrowLeft: () => (event.shiftKey ? timeline.pan(-0.1) : step(-1)),
      ArrowRight: () => (event.shiftKey ? timeline.pan(0.1) : step(1)),
      "/": () => {
        store.set({ tab: "who" });
        requestAnimationFrame(() => this.who?.focus());
      },
    };
    const work = keys[event.key] ?? keys[event.key.toLowerCase()];
    const number = Number(event.key);
    if (work) work();
    else if (number >= 1 && number <= TABS.length) store.set({ tab: TABS[number - 1] });
    else return;
    event.preventDefault();
  }

  /** What tests read. */
  probe() {
    const { page, timeline } = this;
    const { model } = page;
    return {
      ordinal: page.ordinal,
      peak: model.peak,
      last: model.last,
      top: model.top(page.ordinal),
      total: page.moment.total,
      drawn: timeline.probe(page.ordinal),
      blocks: model.blocks.length,
      memory: model.memory.length,
      painted: () => (this.made.get("blocks") as BlocksView).drawn(),
      map: () => (this.made.get("map") as MapView).drawn(),
      at: (ns: number) => model.at(ns),
      roles: () => byRole(model, page.moment),
      stack: () => ({ names: page.stack.groups.map((group) => group.name), bytes: [...page.stack.at(page.ordinal)] }),
    };
  }
}

function failed(error: unknown): void {
  const root = document.getElementById("app");
  const text = error instanceof Error ? error.message : String(error);
  if (root) fill(root, el("p", { class: "warning", text: `The page cannot be shown: ${clean(text, 500)}` }));
  document.documentElement.dataset.ready = "failed";
}

async function main(): Promise<void> {
  const root = document.getElementById("app");
  if (!root) return;
  const app = new App(await loadFacts(), new Store());
  await app.start(root);
  (window as unknown as { vramtrace: unknown }).vramtrace = app;
}

main().catch(failed);
