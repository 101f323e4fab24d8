//! Charts as SVG, with colours that can be read on light and on dark ground.

use anyhow::{anyhow, Context, Result};
use plotters::coord::Shift;
use plotters::prelude::*;
use std::path::Path;

const SIZE: (u32, u32) = (900, 420);
const FONT: (&str, u32) = ("sans-serif", 16);
const TITLE: (&str, u32) = ("sans-serif", 18);
const INK: RGBColor = RGBColor(128, 128, 128);
const COLOURS: [RGBColor; 4] =
    [RGBColor(66, 133, 190), RGBColor(224, 130, 44), RGBColor(66, 160, 96), RGBColor(170, 110, 190)];

pub struct Line {
    pub name: String,
    pub points: Vec<(f64, f64)>,
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// Lines over a logarithmic axis; `label` names its places.
pub fn lines(path: &Path, title: &str, lines: &[Line], label: &dyn Fn(f64) -> String) -> Result<()> {
    let all = || lines.iter().flat_map(|line| line.points.iter());
    let left = all().map(|point| point.0).fold(f64::INFINITY, f64::min);
    let right = all().map(|point| point.0).fold(left, f64::max).max(left * 2.0);
    let top = all().map(|point| point.1).fold(0.0, f64::max) * 1.1;
    save(path, |area| {
        let mut chart = ChartBuilder::on(area)
            .caption(title, TITLE.into_font().color(&INK))
            .margin(12)
            .x_label_area_size(36)
            .y_label_area_size(52)
            .build_cartesian_2d((left..right).log_scale().base(2.0), 0.0..top)?;
        let (ink, label) = (FONT.into_font().color(&INK), |page: &f64| label(*page));
        let mut mesh = chart.configure_mesh();
        mesh.axis_style(INK).bold_line_style(INK.mix(0.25)).light_line_style(TRANSPARENT);
        mesh.label_style(ink.clone()).x_labels(12).x_label_formatter(&label).draw()?;
        for (line, colour) in lines.iter().zip(COLOURS.iter().cycle()) {
            let colour = *colour;
            let drawn = LineSeries::new(line.points.iter().copied(), colour.stroke_width(2)).point_size(3);
            chart
                .draw_series(drawn)?
                .label(&line.name)
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], colour.stroke_width(2)));
        }
        let legend = SeriesLabelPosition::UpperLeft;
        chart.configure_series_labels().position(legend).label_font(ink).draw()?;
        Ok(())
    })
}

/// Bars over each other, one for each name, drawn from zero to `most`, with what each says.
pub struct Bars {
    pub title: String,
    pub most: f64,
    pub bars: Vec<(String, f64, String)>,
}

/// Charts of bars side by side, in the same order of names.
pub fn bars(path: &Path, charts: &[Bars]) -> Result<()> {
    save(path, |area| {
        for ((area, bars), colour) in area.split_evenly((1, charts.len())).iter().zip(charts).zip(COLOURS) {
            draw_bars(area, bars, colour)?;
        }
        Ok(())
    })
}

fn draw_bars(
    area: &Area,
    bars: &Bars,
    colour: RGBColor,
) -> std::result::Result<(), Box<dyn std::error::Error>> {
    let (width, height) = area.dim_in_pixel();
    let (name_width, value_width) = (120, 110);
    let ink = FONT.into_font().color(&INK);
    area.draw(&Text::new(bars.title.clone(), (12, 12), TITLE.into_font().color(&INK)))?;
    let pitch = (height as i32 - 52) / bars.bars.len().max(1) as i32;
    let room = f64::from(width as i32 - name_width - value_width);
    for (at, (name, value, says)) in bars.bars.iter().enumerate() {
        let top = 44 + at as i32 * pitch;
        let (left, bottom) = (name_width, top + pitch * 2 / 3);
        let right = left + (value / bars.most * room) as i32;
        let text = (top + bottom) / 2 - 7;
        area.draw(&Text::new(name.clone(), (12, text), ink.clone()))?;
        area.draw(&Rectangle::new([(left, top), (right, bottom)], colour.filled()))?;
        area.draw(&Text::new(says.clone(), (right + 6, text), ink.clone()))?;
    }
    Ok(())
}

/// Makes the folder, draws, and writes the file.
fn save(
    path: &Path,
    draw: impl FnOnce(&Area) -> std::result::Result<(), Box<dyn std::error::Error>>,
) -> Result<()> {
    let mut text = String::new();
    {
        let area = SVGBackend::with_string(&mut text, SIZE).into_drawing_area();
        let drawn = draw(&area).and_then(|()| Ok(area.present()?));
        drawn.map_err(|error| anyhow!("drawing {}: {error}", path.display()))?;
    }
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))?;
    }
    std::fs::write(path, text).with_context(|| format!("writing {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_are_as_long_as_their_values() {
        let path = std::env::temp_dir().join(format!("weft-bench-{}.svg", std::process::id()));
        let bars_of = |values: &[f64]| Bars {
            title: "a < b".into(),
            most: 10.0,
            bars: values.iter().map(|value| ("name".into(), *value, format!("{value}"))).collect(),
        };
        bars(&path, &[bars_of(&[10.0, 5.0])]).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let widths: Vec<f64> = text
            .split("<rect ")
            .skip(1)
            .filter_map(|rect| rect.split("width=\"").nth(1)?.split('"').next()?.parse().ok())
            .collect();
        assert_eq!(widths.len(), 2);
        assert!((widths[0] / widths[1] - 2.0).abs() < 0.02, "{widths:?}");
        assert!(text.contains("a &lt; b"));
    }
}
