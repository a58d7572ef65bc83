//! The metrics: name, meaning, and how series are merged. docs/metrics.md has the same table.

/// How the values of several series become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Merge {
    Sum,
    Most,
    Least,
}

/// A metric. Sizes are bytes, times are seconds.
#[derive(Debug)]
pub struct About {
    /// That of a counter ends in `_total`.
    pub name: &'static str,
    pub merge: Merge,
    /// The label that only this metric has; empty: none.
    pub label: &'static str,
    pub help: &'static str,
}

macro_rules! families {
    ($($family:ident: $name:literal, $merge:ident, $label:literal, $help:literal;)*) => {
        /// The metrics, in the order of the text.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Family {
            $($family,)*
        }

        impl Family {
            #[cfg(test)]
            pub const ALL: &[Family] = &[$(Family::$family),*];

            pub fn about(self) -> About {
                match self {
                    $(Family::$family => About {
                        name: $name,
                        merge: Merge::$merge,
                        label: $label,
                        help: $help,
                    },)*
                }
            }
        }
    };
}

families! {
    Used: "vramtrace_memory_used_bytes", Sum, "",
        "Memory of the device that the processes have, as the cap counts it";
    Cap: "vramtrace_memory_cap_bytes", Sum, "",
        "Cap of the processes that have one";
    CapRatio: "vramtrace_memory_cap_ratio", Most, "",
        "Used memory divided by the cap, of the process that is nearest to its cap";
    Peak: "vramtrace_memory_peak_bytes", Sum, "",
        "Most memory that each process had allocated at once";
    CacheFree: "vramtrace_memory_cache_free_bytes", Sum, "",
        "Free bytes in the segments of a framework's cache, as of its last report";
    Library: "vramtrace_library_memory_bytes", Sum, "library",
        "Memory by the library that made the request";
    Role: "vramtrace_role_memory_bytes", Sum, "role",
        "Memory by its purpose, as of the last pass over the trace";
    Refusals: "vramtrace_refusals_total", Sum, "by",
        "Requests for memory that were refused by the cap or by the driver";
    OutOfMemory: "vramtrace_out_of_memory_total", Sum, "cause",
        "Out-of-memory failures by cause, as of the last pass over the trace";
    Leaks: "vramtrace_leaks", Sum, "verdict",
        "Leaks by verdict, as of the last pass over the trace";
    Growth: "vramtrace_growth_bytes_per_second", Sum, "",
        "Growth of the lines with the verdict growing, as of the last pass over the trace";
    Exhaustion: "vramtrace_exhaustion_seconds", Least, "",
        "Time from the last pass over the trace until the cap or the card is full at the rate of the lines with the verdict growing";
    Resolution: "vramtrace_history_resolution_seconds", Most, "",
        "Longest time for which leak verdicts, growth and exhaustion have one value, where samples of the recorder stand for erased events; absent where they rest on events alone";
    CapNotInForce: "vramtrace_cap_not_in_force", Sum, "reason",
        "Processes with a cap that does not refuse every request above it";
    Idle: "vramtrace_idle_seconds", Least, "",
        "Time for which NVML has shown no utilization of a process that holds memory; absent where it is not known";
    IdleKnown: "vramtrace_idle_known", Least, "",
        "1 where NVML tells the utilization of the processes, else 0";
    Processes: "vramtrace_processes", Sum, "",
        "Recorded processes that live";
    RecorderStopped: "vramtrace_recorder_stopped", Sum, "",
        "Processes whose recording ended before they did";
    PageAge: "vramtrace_page_age_seconds", Most, "",
        "Age of the figures of the live page: they are stored while the process calls the driver";
    TraceAge: "vramtrace_trace_age_seconds", Most, "",
        "Time since the last pass over the trace; absent before the first, and where the trace cannot be read";
    NodeOutOfMemory: "vramtrace_node_out_of_memory_total", Sum, "cause",
        "Out-of-memory failures of this node that were found since the exporter started, also of processes that have ended";
    GpuUsed: "vramtrace_gpu_memory_used_bytes", Sum, "",
        "Memory of the GPU that is in use, by NVML";
    GpuTotal: "vramtrace_gpu_memory_limit_bytes", Sum, "",
        "Memory of the GPU, by NVML";
    Untraced: "vramtrace_untraced_memory_bytes", Sum, "",
        "Memory of the GPU in use, by NVML, less that of the recorded processes";
    NvmlAge: "vramtrace_nvml_age_seconds", Most, "",
        "Time since NVML answered; absent if it never did";
    PageProblems: "vramtrace_page_problems", Sum, "",
        "Live pages that could not be read";
    LeftOut: "vramtrace_processes_left_out", Sum, "",
        "Processes without series, because of the limit of series: those that use least memory";
    PassCpu: "vramtrace_pass_cpu_seconds_total", Sum, "",
        "CPU time of the passes over traces";
}

impl About {
    pub fn is_counter(&self) -> bool {
        self.name.ends_with("_total")
    }

    pub fn kind(&self) -> &'static str {
        if self.is_counter() { "counter" } else { "gauge" }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The table has each metric, in this order, as it is exported.
    #[test]
    fn the_document_lists_each_metric() {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/metrics.md");
        let page = std::fs::read_to_string(page).unwrap();
        let rows: Vec<Vec<&str>> = page
            .lines()
            .filter(|line| line.starts_with("| `vramtrace_"))
            .map(|line| line.split('|').map(|cell| cell.trim().trim_matches('`')).collect())
            .collect();
        let expected = Family::ALL.iter().map(|family| {
            let about = family.about();
            let merge = match about.merge {
                Merge::Sum => "sum",
                Merge::Most => "most",
                Merge::Least => "least",
            };
            [about.name, about.kind(), about.label, merge]
        });
        let found = rows.iter().map(|row| [row[1], row[2], row[4], row[5]]);
        assert_eq!(found.collect::<Vec<_>>(), expected.collect::<Vec<_>>());
    }
}
