//! The text of a scrape: OpenMetrics 1.0, or the older text format of Prometheus for clients that do not ask for it.

use std::collections::BTreeMap;

use super::families::{Family, Kind};
use super::series::{Group, Series};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    OpenMetrics,
    /// Version 0.0.4 of Prometheus.
    Plain,
}

impl Format {
    /// What a client that sends this header `Accept` gets.
    pub fn accepted(accept: &str) -> Format {
        match accept.contains("application/openmetrics-text") {
            true => Format::OpenMetrics,
            false => Format::Plain,
        }
    }

    pub fn content_type(self) -> &'static str {
        match self {
            Format::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Format::Plain => "text/plain; version=0.0.4; charset=utf-8",
        }
    }
}

pub fn encode(groups: &BTreeMap<Group, Series>, node: &Series, format: Format) -> String {
    let mut families: BTreeMap<Family, String> = BTreeMap::new();
    let of_groups = groups.iter().map(|(group, series)| (Some(group), series));
    for (group, series) in of_groups.chain([(None, node)]) {
        for (name, value) in &series.0 {
            let about = name.family.about();
            let of_process = group.into_iter().flat_map(|group| group.labels());
            let device = Some(("device", &*name.device)).filter(|(_, device)| !device.is_empty());
            let own = about.label.map(|label| (label, &*name.label));
            let labels = labels(of_process.chain(device).chain(own));
            let samples = families.entry(name.family).or_default();
            samples.push_str(&format!("{}{labels} {value:?}\n", about.full_name()));
        }
    }
    let mut out = String::new();
    for (family, samples) in &families {
        let about = family.about();
        let open = format == Format::OpenMetrics;
        // In the older format a counter's name is that of its series, and there are no units.
        let name = if open { about.base_name() } else { about.full_name() };
        let kind = if about.kind == Kind::Gauge { "gauge" } else { "counter" };
        out.push_str(&format!("# HELP {name} {}\n# TYPE {name} {kind}\n", about.help));
        if let Some(unit) = about.unit.filter(|_| open) {
            out.push_str(&format!("# UNIT {name} {unit}\n"));
        }
        out.push_str(samples);
    }
    if format == Format::OpenMetrics {
        out.push_str("# EOF\n");
    }
    out
}

/// `{job="7",rank="0"}`; nothing without labels.
fn labels<'l>(all: impl Iterator<Item = (&'static str, &'l str)>) -> String {
    let escaped =
        |value: &str| value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    let all: Vec<String> =
        all.map(|(name, value)| format!("{name}=\"{}\"", escaped(value))).collect();
    if all.is_empty() { String::new() } else { format!("{{{}}}", all.join(",")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_formats_have_the_same_series() {
        let group = Group { executable: "a \"b\"\\".into(), ..Group::default() };
        let mut series = Series::default();
        series.put(Family::Used, "GPU-1", "", 1024.0);
        series.put(Family::Refusals, "GPU-1", "cap", 3.0);
        let mut node = Series::default();
        node.put(Family::PageProblems, "", "", 0.0);
        let groups = BTreeMap::from([(group, series)]);
        let open = encode(&groups, &node, Format::OpenMetrics);
        let labels = r#"job="",rank="",pod="",container="",executable="a \"b\"\\",device="GPU-1""#;
        let used = format!("vramtrace_memory_used_bytes{{{labels}}} 1024.0\n");
        let refused = format!("vramtrace_refusals_total{{{labels},by=\"cap\"}} 3.0\n");
        for line in [
            &used,
            &refused,
            "# TYPE vramtrace_memory_used_bytes gauge\n",
            "# UNIT vramtrace_memory_used_bytes bytes\n",
            "# TYPE vramtrace_refusals counter\n",
            "vramtrace_page_problems 0.0\n",
        ] {
            assert!(open.contains(line), "{line} in {open}");
        }
        assert!(open.ends_with("# EOF\n"));
        let plain = encode(&groups, &node, Format::Plain);
        for line in [&used, &refused, "# TYPE vramtrace_refusals_total counter\n"] {
            assert!(plain.contains(line), "{line} in {plain}");
        }
        assert!(!plain.contains("UNIT") && !plain.contains("EOF"), "{plain}");
        let series = |text: &str| text.lines().filter(|line| !line.starts_with('#')).count();
        assert_eq!((series(&open), series(&plain)), (3, 3));
    }

    #[test]
    fn prometheus_and_others_get_what_they_ask_for() {
        let prometheus = "application/openmetrics-text;version=1.0.0;q=0.75,text/plain;q=0.5";
        assert_eq!(Format::accepted(prometheus), Format::OpenMetrics);
        assert_eq!(Format::accepted("*/*"), Format::Plain);
    }
}
