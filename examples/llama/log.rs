//! What the library tells: warnings on the terminal, and everything in a timeline.

use std::{
    fs::File,
    io::{self, BufWriter},
    path::{Path, PathBuf},
};

use tracing_chrome::{ChromeLayerBuilder, FlushGuard};
use tracing_subscriber::{Layer, filter::LevelFilter, fmt, layer::SubscriberExt, registry};

#[derive(Debug, thiserror::Error)]
#[error("cannot write the timeline to {}: {source}", path.display())]
pub struct TraceError {
    path: PathBuf,
    source: io::Error,
}

/// Shows warnings from now on, and writes a timeline that Perfetto opens, where one is asked for, until the
/// guard is dropped.
pub fn start(trace: Option<&Path>) -> Result<Option<FlushGuard>, TraceError> {
    let terminal = fmt::layer()
        .with_writer(io::stderr)
        .without_time()
        .with_target(false)
        .with_filter(LevelFilter::WARN);
    let (timeline, guard) = match trace {
        None => (None, None),
        Some(path) => {
            let file = File::create(path).map_err(|source| TraceError {
                path: path.to_owned(),
                source,
            })?;
            let layer = ChromeLayerBuilder::new()
                .writer(BufWriter::new(file))
                .include_args(true);
            let (layer, guard) = layer.build();
            (Some(layer), Some(guard))
        }
    };
    let subscriber = registry().with(terminal).with(timeline);
    // A test that starts twice keeps the first.
    if let Err(error) = tracing::subscriber::set_global_default(subscriber) {
        eprintln!("note: {error}");
    }
    Ok(guard)
}
