// The document of facts (src/report/html/document.rs): what the commands print as JSON.

export interface Frame {
  language: "python" | "native";
  function: string;
  file: string;
  line: number | null;
  library: string | null;
}

/** How a frame is shown: always, on demand, always as the program's own. */
export enum Shown {
  Always, OnDemand, Own,
}

export interface StackFacts {
  frames: Frame[];
  lead: number | null;
  caller: number | null;
}

export interface DeviceFacts {
  ordinal: number | null;
  uuid: string | null;
  name: string;
  total_bytes: number | null;
  cap_bytes: number | null;
  peak_bytes: number;
  peak_at_s: number;
  in_use_at_peak: { headline_bytes: number };
  live_bytes: number;
  process_bytes: number | null;
  peak_process_bytes: number | null;
  context_bytes: number;
  unattributed_bytes: number | null;
  allocations: number;
  frees: number;
  refused_by_cap: number;
  refused_by_driver: number;
  driver_bytes: Record<string, number> | null;
  torch?: {
    allocated_bytes: number;
    reserved_bytes: number;
    peak_allocated_bytes: number;
    peak_reserved_bytes: number;
  };
}

export interface ProcessFacts {
  pid: number;
  host: string;
  trace: string;
  command: string[];
  rank: number | null;
  started: string;
  duration_s: number;
  ended_in_order: boolean;
  ended_out_of_memory: boolean;
  running: boolean;
  history_from_s: number;
  /** The recorder's samples of the time before: for how long a time there is one value. */
  sampled_before?: { from_s: number; until_s: number; finest_s: number; coarsest_s: number };
  live_is_known: boolean;
  stopped: { at_s: number; reason: string } | null;
  events: number;
  devices: DeviceFacts[];
  odd: string | null;
  damage: { places: number; bytes: number; first: string[] };
}

export interface Paragraph {
  label: string;
  lines: string[];
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

/** Memory in use at a failure: the parts add up. */
export interface Used {
  bytes: number;
  tensors: number;
  cache: number;
  context: number;
  rest: number;
  in_nvidia_smi: boolean;
}

/** A failure with which the run ended. */
export interface Failure {
  device: number;
  ordinal: number | null;
  at_s: number;
  of_torch: boolean;
  asked_bytes: number;
  line: string;
  caller: string;
  limit: string;
  limit_bytes: number | null;
  /** The process's own cap refused it. */
  of_cap: boolean;
  used: Used;
  /** The most promising first. */
  tries: { text: string; copy: string | null }[];
}

export interface Mark {
  ordinal: number;
  what: "refusal" | "oom" | "flush" | "emptied" | "sleep" | "warned";
  device: number;
  bytes: number;
  by?: string;
}

export interface LeakFacts extends StackFacts {
  verdict: "growing" | "never_freed" | "freed_at_end";
  level: "driver" | "tensor";
  device: number | null;
  bytes: number;
  count: number;
  rate_bytes_per_s: number | null;
  exhausted_in_s: number | null;
  confidence: number;
  library: string | null;
  name?: string;
  evidence: string[];
  shape: number[];
}

export interface FragFacts {
  ordinal: number | null;
  at: string;
  at_s: number | null;
  reserved_bytes: number;
  allocated_bytes: number;
  free_in_segments_bytes: number;
  largest_free_block_bytes: number;
  releasable_bytes: number;
  unusable_bytes: number;
  fragmentation: number | null;
  segments: number;
  holders: (StackFacts & {
    pinned_bytes: number;
    segments: number;
    alone: number;
    bytes: number;
    blocks: number;
    library: string | null;
    /** Where no line of the program is known: a step of backward. */
    name?: string;
    no_frames?: string;
  })[];
}

export interface WhatifFacts {
  ordinal: number;
  in_force: string | null;
  recorded_peak_reserved_bytes: number;
  recorded_peak_allocated_bytes: number;
  settings: {
    conf: string;
    in_force: boolean;
    peak_reserved_bytes: number;
    peak_allocated_bytes: number;
    retries: number;
    at_capacity: { capacity_bytes: number; origin: string; fits: boolean; retries: number; spare_bytes: number | null }[];
    smallest_capacity_bytes: number | null;
    compatible: boolean;
    reason: string | null;
  }[];
  caveats: string[];
}

export interface ProcessPage {
  name: string;
  imported_from: string | null;
  has_times: boolean;
  has_stacks: boolean;
  program: string;
  /** How it ended without a failure; null: with one, or the trace does not tell. */
  ended: string | null;
  verdict: Paragraph[];
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
  /** Number, first and last ordinal, and `skipped` or `unfinished` or nothing. */
  steps: [number, number, number, string][];
  marks: Mark[];
  more_marks: boolean;
  gaps: [number, number][];
  peaks: [number, number][];
  ooms: [number, number][];
  last: number;
  blocks: number;
  memory: number;
  lumped_below: number;
  lumped: number;
  advice: {
    frag: FragFacts[];
    whatif: { devices: WhatifFacts[] } | null;
    no_whatif: string | null;
    leaks: { leaks: LeakFacts[] } | null;
  };
  problems: string[];
}

/** Which batch, or which length, fits on the recorded card. */
export interface FitsFacts {
  line: string;
  /** `batch` or `length`. */
  varied: string;
  recorded: { trace: string; values: { name: string; value: number }[][]; peak_reserved_bytes: number }[];
  settings: { conf: string; in_force: boolean; forbidden: string | null; fits: number; does_not_fit: number | null }[];
  caveats: string[];
}

export interface RunFacts {
  label: string;
  /** Where marks name two batches or lengths. */
  fits: FitsFacts | null;
  report: { processes: ProcessFacts[] };
  processes: ProcessPage[];
}

export interface Facts {
  schema: string;
  version: string;
  redacted: boolean;
  runs: RunFacts[];
}
