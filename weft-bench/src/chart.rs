//! Charts as SVG, with colours that can be read on light and on dark ground.

use anyhow::{Context, Result};
use std::path::Path;

const SIZE: (f64, f64) = (900.0, 420.0);
const COLOURS: [&str; 4] = ["#4285be", "#e0822c", "#42a060", "#aa6ebe"];

pub struct Line {
    pub name: String,
    pub points: Vec<(f64, f64)>,
}

fn text(x: f64, y: f64, size: u32, anchor: &str, says: &str) -> String {
    let says = says.replace('&', "&amp;").replace('<', "&lt;");
    format!(
        "<text x=\"{x:.0}\" y=\"{y:.0}\" font-size=\"{size}\" font-family=\"sans-serif\" fill=\"#808080\" \
         text-anchor=\"{anchor}\">{says}</text>\n"
    )
}

fn rule(from: (f64, f64), to: (f64, f64), stroke: &str) -> String {
    let ((x1, y1), (x2, y2)) = (from, to);
    format!("<line x1=\"{x1:.0}\" y1=\"{y1:.0}\" x2=\"{x2:.0}\" y2=\"{y2:.0}\" {stroke}/>\n")
}

/// Lines over an axis of powers of two, of which `label` names each.
pub fn lines(path: &Path, title: &str, lines: &[Line], label: &dyn Fn(f64) -> String) -> Result<()> {
    let all = || lines.iter().flat_map(|line| line.points.iter());
    let left = all().map(|point| point.0).fold(f64::INFINITY, f64::min);
    let right = all().map(|point| point.0).fold(left * 2.0, f64::max);
    let top = all().map(|point| point.1).fold(f64::MIN_POSITIVE, f64::max) * 1.1;
    let (from, to) = ((64.0, SIZE.1 - 44.0), (SIZE.0 - 24.0, 44.0));
    let x = |value: f64| from.0 + (value / left).log2() / (right / left).log2() * (to.0 - from.0);
    let y = |value: f64| from.1 - value / top * (from.1 - to.1);
    let grid = "stroke=\"#808080\" stroke-opacity=\"0.25\"";
    let mut svg = text(SIZE.0 / 2.0, 24.0, 18, "middle", title);
    for part in 0..=5 {
        let value = top * f64::from(part) / 5.0;
        svg += &rule((from.0, y(value)), (to.0, y(value)), grid);
        svg += &text(from.0 - 8.0, y(value) + 5.0, 14, "end", &format!("{value:.2}"));
    }
    for power in 0..=(right / left).log2().round() as i32 {
        let value = left * 2f64.powi(power);
        svg += &rule((x(value), from.1), (x(value), to.1), grid);
        svg += &text(x(value), from.1 + 22.0, 12, "middle", &label(value));
    }
    for (at, (line, colour)) in lines.iter().zip(COLOURS.iter().cycle()).enumerate() {
        let points: Vec<String> =
            line.points.iter().map(|point| format!("{:.1},{:.1}", x(point.0), y(point.1))).collect();
        let stroke = format!("stroke=\"{colour}\" stroke-width=\"2\"");
        svg += &format!("<polyline points=\"{}\" fill=\"none\" {stroke}/>\n", points.join(" "));
        let beside = to.1 + 16.0 + at as f64 * 22.0;
        svg += &rule((from.0 + 12.0, beside - 5.0), (from.0 + 30.0, beside - 5.0), &stroke);
        svg += &text(from.0 + 38.0, beside, 16, "start", &line.name);
    }
    save(path, &svg)
}

/// Bars over each other, one for each name, drawn from zero to `most`, with what each says.
pub struct Bars {
    pub title: String,
    pub most: f64,
    pub bars: Vec<(String, f64, String)>,
}

/// Charts of bars side by side, in the same order of names.
pub fn bars(path: &Path, charts: &[Bars]) -> Result<()> {
    let width = SIZE.0 / charts.len() as f64;
    let mut svg = String::new();
    for (at, (chart, colour)) in charts.iter().zip(COLOURS).enumerate() {
        let left = width * at as f64;
        svg += &text(left + 12.0, 28.0, 18, "start", &chart.title);
        let pitch = (SIZE.1 - 52.0) / chart.bars.len().max(1) as f64;
        for (row, (name, value, says)) in chart.bars.iter().enumerate() {
            let (top, height) = (44.0 + row as f64 * pitch, pitch * 2.0 / 3.0);
            let (from, len) = (left + 150.0, value / chart.most * (width - 260.0));
            svg += &text(left + 12.0, top + height / 2.0 + 5.0, 16, "start", name);
            svg += &format!(
                "<rect x=\"{from:.0}\" y=\"{top:.1}\" width=\"{len:.1}\" height=\"{height:.1}\" fill=\"{colour}\"/>\n"
            );
            svg += &text(from + len + 6.0, top + height / 2.0 + 5.0, 16, "start", says);
        }
    }
    save(path, &svg)
}

/// Makes the folder, and writes the file.
fn save(path: &Path, inside: &str) -> Result<()> {
    let (width, height) = SIZE;
    let size = format!("width=\"{width}\" height=\"{height}\" viewBox=\"0 0 {width} {height}\"");
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))?;
    }
    std::fs::write(path, format!("<svg {size} xmlns=\"http://www.w3.org/2000/svg\">\n{inside}</svg>\n"))
        .with_context(|| format!("writing {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_are_as_long_as_their_values() {
        let path = std::env::temp_dir().join(format!("weft-bench-{}.svg", std::process::id()));
        let bar = |value: f64| ("name".to_owned(), value, String::new());
        let chart = Bars { title: "a < b".into(), most: 10.0, bars: vec![bar(10.0), bar(5.0)] };
        bars(&path, &[chart]).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let width = |rect: &str| rect.split("width=\"").nth(1)?.split('"').next()?.parse::<f64>().ok();
        let widths: Vec<f64> = text.split("<rect ").skip(1).filter_map(width).collect();
        assert_eq!(widths, [640.0, 320.0]);
        assert!(text.contains("a &lt; b"));
    }
}
