// The document of facts (src/report/html/document.rs). What it has of the commands' JSON is typed by their schemas:
// types.mjs writes generated/.

import type { Document as Fits } from "./generated/fits.ts";
import type { Document as Frag } from "./generated/frag.ts";
import type { Document as Leaks } from "./generated/leaks.ts";
import type { Document as Report, Step as StepFacts } from "./generated/report.ts";

export type ProcessFacts = Report["processes"][number];
export type FragFacts = Frag["devices"][number];
export type LeakFacts = Leaks["leaks"][number];
export type StackFacts = Pick<LeakFacts, "frames" | "lead" | "caller">;
/** Which batch, or which length, fits on the recorded card. */
export type FitsFacts = Fits & { line: string };

/** How a frame is shown: always, on demand, always as the program's own. */
export enum Shown {
  Always, OnDemand, Own,
}

export interface HolderName {
  line: string;
  function: string;
  caller: string;
  library: number;
  /** What the driver took the memory for. */
  driver_memory?: string;
  why?: string;
}

/** A failure with which the process ended. */
export type Failure = ProcessFacts["failures"][number];

export interface Mark {
  ordinal: number;
  what: "refusal" | "oom" | "warned";
  device: number;
  bytes: number;
  by?: string;
}

export interface ProcessPage {
  name: string;
  /** Of each of its failures; null: the page has no event of it. */
  failure_ordinals: (number | null)[];
  /** Node of the innermost frame, kind, device, holder, library and 1. */
  owners: [number, number, number, number, number][];
  holders: HolderName[];
  libraries: string[];
  /** Function, file, line, library and 1, `Shown`. */
  frames: [string, number, number, number, Shown][];
  files: string[];
  nodes: [number, number][];
  kinds: [number, string][];
  roles: string[];
  phases: {
    names: [number, string][];
    ranges: [number, number, number, number][];
    more: boolean;
    moments: [string, number][];
  };
  steps: StepFacts[];
  marks: Mark[];
  gaps: [number, number][];
  /** By device. */
  peaks: Record<string, number>;
  last: number;
  blocks: number;
  memory: number;
  lumped_below: number;
  lumped: number;
  frag: FragFacts[];
  leaks: LeakFacts[];
  problems: string[];
}

export interface Facts {
  schema: string;
  version: string;
  label: string;
  /** Where marks name two batches or lengths. */
  fits: FitsFacts | null;
  report: Report;
  processes: ProcessPage[];
}
