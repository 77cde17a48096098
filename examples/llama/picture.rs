//! A picture of where a model's parameters are: a bar for each layer, as long as its bytes, in the colours of
//! the places.

use std::path::{Path, PathBuf};

use burn_offload::{ByteSize, Placement, Report, host::Record};
use plotters::{
    prelude::*,
    style::text_anchor::{HPos, Pos, VPos},
};

const WIDTH: u32 = 960;
const ROW: i32 = 18;
const HEAD: i32 = 64;
/// Where bars begin and end.
const BARS: [i32; 2] = [200, 840];
const HOST: RGBColor = RGBColor(240, 150, 60);
const DEVICE: RGBColor = RGBColor(70, 120, 190);

#[derive(Debug, thiserror::Error)]
#[error("cannot draw {}: {why}", path.display())]
pub struct PictureError {
    path: PathBuf,
    why: String,
}

/// Parameters that stand together in the model.
struct Group<'a> {
    name: &'a str,
    parameters: Vec<&'a Record>,
}

impl Group<'_> {
    fn bytes(&self) -> u64 {
        self.parameters.iter().map(|p| p.bytes).sum()
    }
}

/// Draws the report as SVG, with the seconds that a step was measured to take.
pub fn draw(report: &Report, step: Option<f64>, path: &Path) -> Result<(), PictureError> {
    try_draw(report, step, path).map_err(|error| PictureError {
        path: path.to_owned(),
        why: error.to_string(),
    })
}

fn try_draw(
    report: &Report,
    step: Option<f64>,
    path: &Path,
) -> Result<(), Box<dyn std::error::Error>> {
    let groups = groups(report);
    let height = HEAD + ROW * groups.len() as i32 + ROW;
    let area = SVGBackend::new(path, (WIDTH, height as u32)).into_drawing_area();
    area.fill(&WHITE)?;
    let font = ("sans-serif", 13).into_font().color(&BLACK);
    let left = font.pos(Pos::new(HPos::Left, VPos::Center));
    let right = font.pos(Pos::new(HPos::Right, VPos::Center));

    let mut x = 16;
    for (color, place, bytes) in [
        (HOST, "host memory", report.offloaded_bytes()),
        (DEVICE, "device", report.resident_bytes()),
    ] {
        area.draw(&Rectangle::new([(x, 10), (x + 14, 24)], color.filled()))?;
        let text = format!("{place}: {}", size(bytes));
        area.draw(&Text::new(text, (x + 20, 17), left.clone()))?;
        x += 220;
    }
    let mut steps = Vec::new();
    if let Some(seconds) = report.link_seconds_per_step() {
        steps.push(format!(
            "a step takes the link at least {:.1} ms",
            seconds * 1e3
        ));
    }
    if let Some(seconds) = step {
        steps.push(format!("a step took {:.1} ms", seconds * 1e3));
    }
    area.draw(&Text::new(steps.join("; "), (16, 42), left.clone()))?;

    let largest = groups.iter().map(Group::bytes).max().unwrap_or(1).max(1);
    let [from, to] = BARS;
    let scale = f64::from(to - from) / largest as f64;
    for (at, group) in (0..).zip(&groups) {
        let top = HEAD + at * ROW;
        let middle = top + ROW / 2;
        area.draw(&Text::new(
            group.name.to_owned(),
            (from - 10, middle),
            right.clone(),
        ))?;
        let mut before = 0;
        for parameter in &group.parameters {
            let edge = |bytes: u64| from + (bytes as f64 * scale).round() as i32;
            let color = match parameter.decision.placement {
                Placement::Offloaded => HOST,
                _ => DEVICE,
            };
            let corners = [
                (edge(before), top + 2),
                (edge(before + parameter.bytes), top + ROW - 2),
            ];
            area.draw(&Rectangle::new(corners, color.filled()))?;
            area.draw(&Rectangle::new(corners, WHITE.stroke_width(1)))?;
            before += parameter.bytes;
        }
        area.draw(&Text::new(size(before), (to + 10, middle), left.clone()))?;
    }
    area.present()?;
    Ok(())
}

fn size(bytes: u64) -> String {
    ByteSize::b(bytes).display().iec().to_string()
}

/// The parameters by layer. A tied one's bytes are in the group of the other.
fn groups(report: &Report) -> Vec<Group<'_>> {
    let mut groups: Vec<Group<'_>> = Vec::new();
    for parameter in report.parameters.iter().filter(|p| p.shares.is_none()) {
        let name = layer(parameter.name.as_deref().unwrap_or("(unnamed)"));
        match groups.last_mut() {
            Some(group) if group.name == name => group.parameters.push(parameter),
            _ => groups.push(Group {
                name,
                parameters: vec![parameter],
            }),
        }
    }
    groups
}

/// A parameter's path up to the layer's number, or up to its own name where there is none.
fn layer(name: &str) -> &str {
    let mut end = 0;
    for segment in name.split('.') {
        end += segment.len();
        if segment.bytes().all(|byte| byte.is_ascii_digit()) {
            return &name[..end];
        }
        end += 1;
    }
    name.rsplit_once('.').map_or(name, |(parent, _)| parent)
}
