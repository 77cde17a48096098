//! A progress bar for burn-train, which has none without its terminal interface.

use std::collections::{BTreeMap, HashMap};

use burn_train::{
    metric::{MetricDefinition, MetricId},
    renderer::{
        EvaluationName, EvaluationProgress, MetricState, MetricsRenderer,
        MetricsRendererEvaluation, MetricsRendererTraining, ProgressType, TrainingProgress,
    },
};
use indicatif::{ProgressBar, ProgressStyle};

pub struct Bar {
    bar: ProgressBar,
    names: HashMap<MetricId, String>,
    /// The latest figures of the images held out.
    valid: BTreeMap<String, String>,
}

impl Bar {
    pub fn new() -> Self {
        let template = "{elapsed_precise} {wide_bar} epoch {pos}/{len} {msg}";
        let bar = ProgressBar::new(0);
        // Without the template the bar's own will do.
        let bar = match ProgressStyle::with_template(template) {
            Ok(style) => bar.with_style(style),
            Err(_) => bar,
        };
        Self {
            bar,
            names: HashMap::new(),
            valid: BTreeMap::new(),
        }
    }

    fn show(&self, progress: &TrainingProgress) {
        let epochs = &progress.global_progress;
        self.bar.set_length(epochs.items_total as u64);
        self.bar.set_position(epochs.items_processed as u64);
    }
}

impl MetricsRendererTraining for Bar {
    fn update_train(&mut self, _: MetricState) {}

    fn update_valid(&mut self, state: MetricState) {
        let (MetricState::Generic(entry) | MetricState::Numeric(entry, _)) = state;
        let name = self.names.get(&entry.metric_id).cloned();
        let figures = entry.serialized_entry.formatted;
        self.valid.insert(name.unwrap_or_default(), figures);
        let valid: Vec<_> = self.valid.iter().collect();
        let valid = valid
            .iter()
            .map(|(name, figures)| format!("{name}: {figures}"));
        self.bar.set_message(valid.collect::<Vec<_>>().join("; "));
    }

    fn render_train(&mut self, progress: TrainingProgress, _: Vec<ProgressType>) {
        self.show(&progress);
    }

    fn render_valid(&mut self, progress: TrainingProgress, _: Vec<ProgressType>) {
        self.show(&progress);
    }
}

impl MetricsRendererEvaluation for Bar {
    fn update_test(&mut self, _: EvaluationName, _: MetricState) {}

    fn render_test(&mut self, _: EvaluationProgress, _: Vec<ProgressType>) {}
}

impl MetricsRenderer for Bar {
    fn manual_close(&mut self) {}

    fn register_metric(&mut self, definition: MetricDefinition) {
        self.names.insert(definition.metric_id, definition.name);
    }
}
