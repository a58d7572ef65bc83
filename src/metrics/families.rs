//! The metrics: name, type, unit, meaning, and how series are merged. docs/metrics.md has the same table.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Gauge,
    /// Its name in the text ends in `_total`.
    Counter,
}

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
    /// Without the unit.
    pub name: &'static str,
    pub unit: Option<&'static str>,
    pub kind: Kind,
    pub merge: Merge,
    /// The label that only this metric has.
    pub label: Option<&'static str>,
    pub help: &'static str,
}

macro_rules! families {
    ($($family:ident: $name:literal, $unit:expr, $kind:ident, $merge:ident, $label:expr, $help:literal;)*) => {
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
                        unit: $unit,
                        kind: Kind::$kind,
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
    Used: "vramtrace_memory_used", Some("bytes"), Gauge, Sum, None,
        "Memory of the device that the processes have, as the cap counts it";
    Cap: "vramtrace_memory_cap", Some("bytes"), Gauge, Sum, None,
        "Cap of the processes that have one";
    CapRatio: "vramtrace_memory_cap_ratio", None, Gauge, Most, None,
        "Used memory divided by the cap, of the process that is nearest to its cap";
    Peak: "vramtrace_memory_peak", Some("bytes"), Gauge, Sum, None,
        "Most memory that each process had allocated at once";
    CacheFree: "vramtrace_memory_cache_free", Some("bytes"), Gauge, Sum, None,
        "Free bytes in the segments of a framework's cache, as of its last report";
    Library: "vramtrace_library_memory", Some("bytes"), Gauge, Sum, Some("library"),
        "Memory by the library that made the request";
    Role: "vramtrace_role_memory", Some("bytes"), Gauge, Sum, Some("role"),
        "Memory by its purpose, as of the last pass over the trace";
    Refusals: "vramtrace_refusals", None, Counter, Sum, Some("by"),
        "Requests for memory that were refused by the cap or by the driver";
    OutOfMemory: "vramtrace_out_of_memory", None, Counter, Sum, Some("cause"),
        "Out-of-memory failures by cause, as of the last pass over the trace";
    Leaks: "vramtrace_leaks", None, Gauge, Sum, Some("verdict"),
        "Leaks by verdict, as of the last pass over the trace";
    Growth: "vramtrace_growth_bytes_per_second", None, Gauge, Sum, None,
        "Growth of the lines with the verdict growing, as of the last pass over the trace";
    Exhaustion: "vramtrace_exhaustion", Some("seconds"), Gauge, Least, None,
        "Time from the last pass over the trace until the cap or the card is full at the rate of the lines with the verdict growing";
    Resolution: "vramtrace_history_resolution", Some("seconds"), Gauge, Most, None,
        "Longest time for which leak verdicts, growth and exhaustion have one value, where samples of the recorder stand for erased events; absent where they rest on events alone";
    CapNotInForce: "vramtrace_cap_not_in_force", None, Gauge, Sum, Some("reason"),
        "Processes with a cap that does not refuse every request above it";
    Idle: "vramtrace_idle", Some("seconds"), Gauge, Least, None,
        "Time for which NVML has shown no utilization of a process that holds memory; absent where it is not known";
    IdleKnown: "vramtrace_idle_known", None, Gauge, Least, None,
        "1 where NVML tells the utilization of the processes, else 0";
    Processes: "vramtrace_processes", None, Gauge, Sum, None,
        "Recorded processes that live";
    RecorderStopped: "vramtrace_recorder_stopped", None, Gauge, Sum, None,
        "Processes whose recording ended before they did";
    PageAge: "vramtrace_page_age", Some("seconds"), Gauge, Most, None,
        "Age of the figures of the live page: they are stored while the process calls the driver";
    TraceAge: "vramtrace_trace_age", Some("seconds"), Gauge, Most, None,
        "Time since the last pass over the trace; absent before the first, and where the trace cannot be read";
    NodeOutOfMemory: "vramtrace_node_out_of_memory", None, Counter, Sum, Some("cause"),
        "Out-of-memory failures of this node that were found since the exporter started, also of processes that have ended";
    GpuUsed: "vramtrace_gpu_memory_used", Some("bytes"), Gauge, Sum, None,
        "Memory of the GPU that is in use, by NVML";
    GpuTotal: "vramtrace_gpu_memory_limit", Some("bytes"), Gauge, Sum, None,
        "Memory of the GPU, by NVML";
    Untraced: "vramtrace_untraced_memory", Some("bytes"), Gauge, Sum, None,
        "Memory of the GPU in use, by NVML, less that of the recorded processes";
    NvmlAge: "vramtrace_nvml_age", Some("seconds"), Gauge, Most, None,
        "Time since NVML answered; absent if it never did";
    PageProblems: "vramtrace_page_problems", None, Gauge, Sum, None,
        "Live pages that could not be read";
    Folded: "vramtrace_processes_folded", None, Gauge, Sum, None,
        "Processes that are in the series with the labels other, because of the limit of series";
    PassCpu: "vramtrace_pass_cpu", Some("seconds"), Counter, Sum, None,
        "CPU time of the passes over traces";
}

impl About {
    /// The name with the unit.
    pub fn base_name(&self) -> String {
        let unit = self.unit.map_or(String::new(), |unit| format!("_{unit}"));
        format!("{}{unit}", self.name)
    }

    /// The name of its series.
    pub fn full_name(&self) -> String {
        let end = if self.kind == Kind::Counter { "_total" } else { "" };
        format!("{}{end}", self.base_name())
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
            let kind = if about.kind == Kind::Counter { "counter" } else { "gauge" };
            let merge = match about.merge {
                Merge::Sum => "sum",
                Merge::Most => "most",
                Merge::Least => "least",
            };
            [about.full_name(), kind.into(), about.label.unwrap_or("").into(), merge.into()]
        });
        let found = rows.iter().map(|row| [row[1], row[2], row[4], row[5]].map(String::from));
        assert_eq!(found.collect::<Vec<_>>(), expected.collect::<Vec<_>>());
    }
}
