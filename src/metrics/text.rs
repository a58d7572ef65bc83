//! The text of a scrape, by the `prometheus-client` crate: OpenMetrics 1.0, or the older text format for clients that
//! do not ask for it.

use std::collections::BTreeMap;
use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::exemplar::Exemplar;
use prometheus_client::registry::Registry;

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

/// A sample: the labels and the value.
type Sample = (Vec<(&'static str, String)>, f64);

#[derive(Debug)]
struct Samples(BTreeMap<Family, Vec<Sample>>);

pub fn encode(groups: &BTreeMap<Group, Series>, node: Series, format: Format) -> String {
    let mut families: BTreeMap<Family, Vec<Sample>> = BTreeMap::new();
    let of_groups = groups.iter().map(|(group, series)| (Some(group), series));
    for (group, series) in of_groups.chain([(None, &node)]) {
        for (name, value) in &series.0 {
            let of_process = group.into_iter().flat_map(|group| group.labels());
            let mut labels: Vec<_> =
                of_process.map(|(label, value)| (label, value.to_string())).collect();
            if !name.device.is_empty() {
                labels.push(("device", name.device.to_string()));
            }
            if let Some(label) = name.family.about().label {
                labels.push((label, name.label.to_string()));
            }
            families.entry(name.family).or_default().push((labels, *value));
        }
    }
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Samples(families)));
    let mut out = String::new();
    // A String takes everything.
    let _ = text::encode(&mut out, &registry);
    match format {
        Format::OpenMetrics => out,
        Format::Plain => plain(&out),
    }
}

impl Collector for Samples {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), fmt::Error> {
        for (family, samples) in &self.0 {
            let about = family.about();
            let kind = match about.kind {
                Kind::Gauge => MetricType::Gauge,
                Kind::Counter => MetricType::Counter,
            };
            let mut metric =
                encoder.encode_descriptor(about.name, about.help, about.unit.as_ref(), kind)?;
            for (labels, value) in samples {
                match labels.is_empty() {
                    true => put(&mut metric, about.kind, *value)?,
                    false => put(&mut metric.encode_family(labels)?, about.kind, *value)?,
                }
            }
        }
        Ok(())
    }
}

fn put(metric: &mut MetricEncoder, kind: Kind, value: f64) -> Result<(), fmt::Error> {
    match kind {
        Kind::Gauge => metric.encode_gauge(&value),
        Kind::Counter => {
            metric.encode_counter::<[(&str, &str); 0], f64, f64>(&value, None::<&Exemplar<_, _>>)
        }
    }
}

/// The older format: a counter's type is that of its series, and there are no units and no end.
fn plain(open_metrics: &str) -> String {
    let counters: Vec<&str> = open_metrics
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE ")?.strip_suffix(" counter"))
        .collect();
    let mut out = String::with_capacity(open_metrics.len());
    for line in open_metrics.lines() {
        let comment = ["# HELP ", "# TYPE "].into_iter().find(|mark| line.starts_with(mark));
        match comment.and_then(|mark| Some((mark, line[mark.len()..].split_once(' ')?))) {
            Some((mark, (name, rest))) if counters.contains(&name) => {
                out.push_str(&format!("{mark}{name}_total {rest}"));
            }
            None if line.starts_with('#') => continue,
            _ => out.push_str(line),
        }
        out.push('\n');
    }
    out
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
        let open = encode(&groups, node.clone(), Format::OpenMetrics);
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
        let plain = encode(&groups, node, Format::Plain);
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
