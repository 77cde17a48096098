//! The losses, and a picture of them.

use std::{
    ops::Range,
    path::{Path, PathBuf},
};

use plotters::prelude::*;

/// Losses by step.
#[derive(Debug, Default)]
pub struct Losses {
    pub training: Vec<(u64, f32)>,
    pub validation: Vec<(u64, f32)>,
}

#[derive(Debug, thiserror::Error)]
#[error("cannot draw {}: {why}", path.display())]
pub struct PlotError {
    path: PathBuf,
    why: String,
}

impl Losses {
    /// The lowest validation loss so far; infinite before the first.
    pub fn lowest(&self) -> f32 {
        let losses = self.validation.iter().map(|(_, loss)| *loss);
        losses.fold(f32::INFINITY, f32::min)
    }

    /// Draws them, as SVG.
    pub fn plot(&self, path: &Path) -> Result<(), PlotError> {
        self.draw(path).map_err(|error| PlotError {
            path: path.to_owned(),
            why: error.to_string(),
        })
    }

    fn draw(&self, path: &Path) -> Result<(), Box<dyn std::error::Error>> {
        let area = SVGBackend::new(path, (800, 480)).into_drawing_area();
        area.fill(&WHITE)?;
        let (steps, losses) = self.ranges();
        let mut chart = ChartBuilder::on(&area)
            .margin(16)
            .x_label_area_size(40)
            .y_label_area_size(56)
            .build_cartesian_2d(steps, losses)?;
        let mesh = &mut chart.configure_mesh();
        mesh.light_line_style(TRANSPARENT)
            .x_desc("step")
            .y_desc("loss, nats a token")
            .draw()?;
        let series = [
            ("training", &self.training, RGBColor(150, 180, 220)),
            ("validation", &self.validation, RGBColor(200, 60, 40)),
        ];
        for (name, points, color) in series {
            chart
                .draw_series(LineSeries::new(
                    points.iter().copied(),
                    color.stroke_width(2),
                ))?
                .label(name)
                .legend(move |(x, y)| {
                    PathElement::new([(x, y), (x + 16, y)], color.stroke_width(2))
                });
        }
        let labels = &mut chart.configure_series_labels();
        labels
            .position(SeriesLabelPosition::UpperRight)
            .background_style(WHITE)
            .border_style(BLACK)
            .draw()?;
        area.present()?;
        Ok(())
    }

    fn ranges(&self) -> (Range<u64>, Range<f32>) {
        let points = || self.training.iter().chain(&self.validation);
        let last = points().map(|(step, _)| *step).max().unwrap_or(0);
        let losses = points().map(|(_, loss)| *loss);
        let (low, high) = losses.fold((f32::INFINITY, 0f32), |(low, high), loss| {
            (low.min(loss), high.max(loss))
        });
        // Lines that end at the frame are cut.
        let margin = 0.05 * (high - low).max(0.1);
        (0..last.max(1), low.min(high) - margin..high + margin)
    }
}
