//! The text format of Prometheus, version 0.0.4.

use std::fmt::Write;

pub type Labels<'a> = &'a [(&'a str, &'a str)];

#[derive(Clone, Copy)]
pub enum Kind {
    Counter,
    Gauge,
    Histogram,
}

#[derive(Default)]
pub struct Text(String);

/// One metric, whose samples follow each other.
pub struct Metric<'a> {
    text: &'a mut String,
    name: &'a str,
}

impl Text {
    pub fn metric<'a>(&'a mut self, name: &'a str, kind: Kind, help: &str) -> Metric<'a> {
        let kind = match kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        };
        let help = help.replace('\\', "\\\\").replace('\n', "\\n");
        self.0 += &format!("# HELP {name} {help}\n# TYPE {name} {kind}\n");
        Metric { text: &mut self.0, name }
    }

    pub fn finish(self) -> String {
        self.0
    }
}

impl Metric<'_> {
    pub fn sample(&mut self, labels: Labels, value: f64) -> &mut Self {
        self.line("", labels, value);
        self
    }

    /// Of counts by their upper bounds, which rise; those above all bounds are in `above`.
    pub fn histogram(&mut self, bounds: impl Iterator<Item = (f64, u64)>, above: u64, sum: f64) {
        let mut count = 0;
        for (bound, more) in bounds {
            count += more;
            self.line("_bucket", &[("le", &bound.to_string())], count as f64);
        }
        count += above;
        self.line("_bucket", &[("le", "+Inf")], count as f64);
        self.line("_sum", &[], sum);
        self.line("_count", &[], count as f64);
    }

    fn line(&mut self, suffix: &str, labels: Labels, value: f64) {
        let label = |(name, value): &(&str, &str)| format!("{name}=\"{}\"", escaped(value));
        let labels: Vec<String> = labels.iter().map(label).collect();
        let labels = if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
        // Writing to a string does not fail.
        let _ = writeln!(self.text, "{}{suffix}{labels} {value}", self.name);
    }
}

fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_follow_their_help_and_type() {
        let mut text = Text::default();
        text.metric("a_total", Kind::Counter, "What\nis \\ it").sample(&[("name", "x\"\\\n")], 3.0);
        text.metric("b", Kind::Gauge, "B").sample(&[], 0.5).sample(&[("k", "v"), ("l", "w")], 1e9);
        assert_eq!(
            text.finish(),
            "# HELP a_total What\\nis \\\\ it\n# TYPE a_total counter\na_total{name=\"x\\\"\\\\\\n\"} 3\n\
             # HELP b B\n# TYPE b gauge\nb 0.5\nb{k=\"v\",l=\"w\"} 1000000000\n"
        );
    }

    #[test]
    fn a_histogram_adds_up() {
        let mut text = Text::default();
        let bounds = [(0.000000002, 1), (0.5, 2)].into_iter();
        text.metric("t", Kind::Histogram, "T").histogram(bounds, 4, 9.5);
        assert_eq!(
            text.finish(),
            "# HELP t T\n# TYPE t histogram\nt_bucket{le=\"0.000000002\"} 1\nt_bucket{le=\"0.5\"} 3\n\
             t_bucket{le=\"+Inf\"} 7\nt_sum 9.5\nt_count 7\n"
        );
    }
}
