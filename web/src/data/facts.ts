// The document of facts (src/report/html/document.rs). What it has of the commands' JSON is typed by their schemas:
// types.mjs writes generated/.

import type { Document as Fits } from "./generated/fits.ts";
import type { Document as Frag } from "./generated/frag.ts";
import type { Document as Leaks } from "./generated/leaks.ts";
import type { Explained, ListedOom } from "./generated/oom.ts";
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

/** A failure with which the run ended. */
export interface Failure extends Pick<ListedOom, "device" | "at_s" | "level" | "size_bytes" | "refused_by">, Pick<Explained, "used" | "used_bytes"> {
  ordinal: number | null;
  /** The cap; else what the process could have had. */
  could_have_bytes: number | null;
  /** NVML had a figure. */
  in_nvidia_smi: boolean;
  has_cache: boolean;
  /** The most promising first. */
  tries: { text: string; copy: string | null }[];
}

export interface Mark {
  ordinal: number;
  what: "refusal" | "oom" | "warned";
  device: number;
  bytes: number;
  by?: string;
}

export interface ProcessPage {
  name: string;
  imported_from: string | null;
  has_times: boolean;
  has_stacks: boolean;
  program: string;
  /** How it ended without a failure; null: with one, or the trace does not tell. */
  ended: string | null;
  /** Why it ended out of memory, as `vramtrace report` prints it; or nothing. */
  verdict: string;
  failures: Failure[];
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
  more_marks: boolean;
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
