//! What is where, and why: as a value, as a table, and in the log.

use std::fmt;

use bytesize::ByteSize;
use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use serde::{Deserialize, Serialize};

use crate::{
    backend::DeviceState,
    host::{MemoryKind, Record},
    policy::Placement,
    target::Access,
};

/// The places of a device's or a module's parameters.
///
/// `Display` prints a table with a line for every parameter, and the totals.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Report {
    /// The device, as Burn prints it.
    pub device: String,
    /// How offloaded parameters are read; `None` for a device that was never configured.
    pub access: Option<Access>,
    /// The kind of host memory that offloaded parameters get.
    pub memory: Option<MemoryKind>,
    /// Why they are not read in place, where that could be expected.
    pub fallback: Option<String>,
    /// Every parameter, in the order in which they were allocated or stand in the module.
    pub parameters: Vec<Record>,
}

impl Report {
    pub(crate) fn empty(device: String) -> Self {
        Self {
            device,
            access: None,
            memory: None,
            fallback: None,
            parameters: Vec::new(),
        }
    }

    pub(crate) fn of_device(state: &DeviceState) -> Self {
        Self::of(state, state.ledger.records())
    }

    pub(crate) fn of(state: &DeviceState, parameters: Vec<Record>) -> Self {
        let host = state.host();
        Self {
            device: state.device.clone(),
            access: Some(host.access),
            memory: Some(host.memory()),
            fallback: host.fallback,
            parameters,
        }
    }

    /// Bytes of parameters in host memory. Shared (tied) ones count once.
    pub fn offloaded_bytes(&self) -> u64 {
        self.bytes(Placement::Offloaded)
    }

    /// Bytes of parameters in device memory.
    pub fn resident_bytes(&self) -> u64 {
        self.bytes(Placement::Resident)
    }

    /// How many parameters are in host memory.
    pub fn offloaded_parameters(&self) -> usize {
        self.at(Placement::Offloaded).count()
    }

    /// How many parameters are in device memory.
    pub fn resident_parameters(&self) -> usize {
        self.at(Placement::Resident).count()
    }

    fn at(&self, placement: Placement) -> impl Iterator<Item = &Record> {
        self.parameters
            .iter()
            .filter(move |r| r.decision.placement == placement)
    }

    fn bytes(&self, placement: Placement) -> u64 {
        let counted = self.at(placement).filter(|r| r.shares.is_none());
        counted.map(|r| r.bytes).sum()
    }

    pub(crate) fn log(&self) {
        tracing::info!(
            device = self.device,
            parameters = self.offloaded_parameters(),
            bytes = self.offloaded_bytes(),
            "total offloaded parameters: {:.2} GiB",
            gib(self.offloaded_bytes()),
        );
    }
}

fn gib(bytes: u64) -> f64 {
    bytes as f64 / (1u64 << 30) as f64
}

fn why(record: &Record) -> String {
    match (&record.refused, &record.shares) {
        (Some(refused), _) => format!("refused: {refused}"),
        (None, Some(twin)) => format!("tied to {twin}"),
        (None, None) => record.decision.reason.to_string(),
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut table = Table::new();
        table
            .load_preset(presets::NOTHING)
            .set_content_arrangement(ContentArrangement::Disabled)
            .set_header(["parameter", "shape", "dtype", "bytes", "where", "why"]);
        for record in &self.parameters {
            let place = match record.memory {
                Some(memory) => format!("host ({memory})"),
                None => "device".to_string(),
            };
            table.add_row([
                record.name.clone().unwrap_or_else(|| "(unnamed)".into()),
                format!("{:?}", record.shape),
                record.dtype.clone(),
                record.bytes.to_string(),
                place,
                why(record),
            ]);
        }
        if let Some(column) = table.column_mut(3) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        writeln!(f, "{}", table.trim_fmt())?;
        writeln!(
            f,
            "offloaded: {} parameters, {:.3} GiB ({}); resident: {} parameters, {:.3} GiB ({})",
            self.offloaded_parameters(),
            gib(self.offloaded_bytes()),
            ByteSize::b(self.offloaded_bytes()),
            self.resident_parameters(),
            gib(self.resident_bytes()),
            ByteSize::b(self.resident_bytes()),
        )?;
        match self.access {
            None => write!(f, "{}: not configured, nothing is offloaded", self.device),
            Some(Access::InPlace) => write!(
                f,
                "{}: read in place from host memory or copied ahead, whichever is faster",
                self.device
            ),
            Some(Access::Staged) => {
                write!(f, "{}: copied to the device when needed", self.device)?;
                match &self.fallback {
                    Some(reason) => write!(f, " ({reason})"),
                    None => Ok(()),
                }
            }
        }
    }
}
