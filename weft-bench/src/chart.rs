//! Charts as SVG, with colours that can be read on light and on dark ground.

use anyhow::{Context, Result};
use std::path::Path;

const SIZE: (f64, f64) = (900.0, 420.0);
const COLOURS: [&str; 2] = ["#4285be", "#e0822c"];

fn text(x: f64, y: f64, size: u32, anchor: &str, says: &str) -> String {
    let says = says.replace('&', "&amp;").replace('<', "&lt;");
    format!(
        "<text x=\"{x:.0}\" y=\"{y:.0}\" font-size=\"{size}\" font-family=\"sans-serif\" fill=\"#808080\" \
         text-anchor=\"{anchor}\">{says}</text>\n"
    )
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
