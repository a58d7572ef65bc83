// What is shown: a device of a process of a run. Models are loaded for a selection; a result that comes after
// another one was selected is dropped.

import type { Facts } from "../data/facts.ts";

/** The process of another run that a chosen process is compared with: of its rank, else of its place. Null: none. */
export function counterpart(facts: Facts, run: number, process: number): number | null {
  const [chosen, others] = [facts.runs[0].report.processes[process], facts.runs[run].report.processes];
  if (!chosen || !others.length) return null;
  if (chosen.rank !== null) {
    const same = others.findIndex((one) => one.rank === chosen.rank);
    return same >= 0 ? same : null;
  }
  if (process < others.length) return process;
  return others.length === 1 && facts.runs[0].report.processes.length === 1 ? 0 : null;
}

/** Of several devices the one with this ordinal. Where both runs have one device, its ordinal does not matter. */
export function sameDevice<T extends { device: number }>(chosen: number, devices: number, others: T[]): T | null {
  const same = others.find((one) => one.device === chosen);
  return same ?? (devices === 1 && others.length === 1 ? others[0] : null);
}

/** Gives the result of the newest request alone. */
export class Latest {
  private requests = 0;

  /** `then` is called unless another request was made meanwhile. */
  async take<T>(promise: Promise<T>, then: (value: T) => void): Promise<boolean> {
    const mine = ++this.requests;
    const value = await promise;
    if (mine !== this.requests) return false;
    then(value);
    return true;
  }
}

/** What a view has loaded for a selection. `get` is null until it is there, and then `ready` is called. */
export class Loaded<T> {
  private key = "";
  private value: T | null = null;
  private readonly latest = new Latest();

  get(key: string, load: () => Promise<T>, ready: () => void): T | null {
    if (key !== this.key) {
      [this.key, this.value] = [key, null];
      void this.latest.take(load(), (value) => {
        this.value = value;
        ready();
      });
    }
    return this.value;
  }
}
