//! What is where, and why: as a value, as a table, and in the log.

use std::fmt;

use bytesize::ByteSize;
use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use serde::{Deserialize, Serialize};

use crate::{
    backend::DeviceState,
    host::{Displaced, MemoryKind, Record, Role},
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
    /// How many bytes a second the link copies to the device, as measured; `None` where nothing is
    /// offloaded, or there is no link.
    #[serde(default)]
    pub link_bytes_per_second: Option<u64>,
    /// Every parameter, in the order in which they were allocated or stand in the module; and, in a
    /// device's report, an optimizer's state that has a place.
    pub parameters: Vec<Record>,
    /// What lost its place in host memory on the device, for want of an
    /// [`OffloadedOptimizer`](crate::OffloadedOptimizer) or the like.
    #[serde(default)]
    pub displaced: Displaced,
}

impl Report {
    pub(crate) fn empty(device: String) -> Self {
        Self {
            device,
            access: None,
            memory: None,
            fallback: None,
            link_bytes_per_second: None,
            parameters: Vec::new(),
            displaced: Displaced::default(),
        }
    }

    pub(crate) fn of_device(state: &DeviceState) -> Self {
        Self::of(state, state.ledger.records())
    }

    pub(crate) fn of(state: &DeviceState, parameters: Vec<Record>) -> Self {
        let host = state.host();
        let offloaded = |r: &Record| r.decision.placement == Placement::Offloaded;
        let link = parameters.iter().any(offloaded);
        let link = link.then(|| host.allocator.link_bytes_per_second());
        Self {
            link_bytes_per_second: link.flatten(),
            device: state.device.clone(),
            access: Some(host.access),
            memory: Some(host.memory()),
            fallback: host.fallback,
            parameters,
            displaced: state.ledger.displaced(),
        }
    }

    /// Bytes of parameters in host memory. Shared (tied) ones count once.
    pub fn offloaded_bytes(&self) -> u64 {
        self.bytes(Role::Parameter, Placement::Offloaded)
    }

    /// Bytes of parameters in device memory.
    pub fn resident_bytes(&self) -> u64 {
        self.bytes(Role::Parameter, Placement::Resident)
    }

    /// How many parameters are in host memory.
    pub fn offloaded_parameters(&self) -> usize {
        self.at(Role::Parameter, Placement::Offloaded).count()
    }

    /// How many parameters are in device memory.
    pub fn resident_parameters(&self) -> usize {
        self.at(Role::Parameter, Placement::Resident).count()
    }

    /// Bytes of optimizer state in host memory.
    pub fn offloaded_state_bytes(&self) -> u64 {
        self.bytes(Role::OptimizerState, Placement::Offloaded)
    }

    /// Bytes of optimizer state in device memory, where the policy has a budget for such: else it has no
    /// line here.
    pub fn resident_state_bytes(&self) -> u64 {
        self.bytes(Role::OptimizerState, Placement::Resident)
    }

    fn at(&self, role: Role, placement: Placement) -> impl Iterator<Item = &Record> {
        self.parameters
            .iter()
            .filter(move |r| r.role == role && r.decision.placement == placement)
    }

    fn bytes(&self, role: Role, placement: Placement) -> u64 {
        let counted = self.at(role, placement).filter(|r| r.shares.is_none());
        counted.map(|r| r.bytes).sum()
    }

    /// The least seconds of a step that reads every offloaded parameter once: what the link takes for their
    /// bytes. Where they are copied ahead, a step takes this, or what it takes with everything resident,
    /// whichever is longer. `None` where the link's speed is not known.
    pub fn link_seconds_per_step(&self) -> Option<f64> {
        let speed = self.link_bytes_per_second?;
        Some(self.offloaded_bytes() as f64 / speed as f64)
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
        if let (Some(seconds), Some(speed)) =
            (self.link_seconds_per_step(), self.link_bytes_per_second)
        {
            writeln!(
                f,
                "a step that reads every offloaded parameter once: at least {:.1} ms, the link copies {:.1} \
                 GB/s",
                seconds * 1e3,
                speed as f64 / 1e9,
            )?;
        }
        let state = [self.offloaded_state_bytes(), self.resident_state_bytes()];
        if state != [0, 0] {
            let [offloaded, resident] = state.map(ByteSize::b);
            writeln!(
                f,
                "optimizer state: {offloaded} offloaded, {resident} resident"
            )?;
        }
        if self.displaced != Displaced::default() {
            let Displaced { parameters, bytes } = self.displaced;
            let bytes = ByteSize::b(bytes);
            writeln!(
                f,
                "lost their place in host memory: {parameters} parameters, {bytes}; an operation's result \
                 took it, as an optimizer's does that is not `.offloaded()`"
            )?;
        }
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
