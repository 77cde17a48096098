use crate::policy::AccessMode;

/// How offloaded bytes are copied to the device when operations need them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StagingOptions {
    /// Whether operations read in place or a copy.
    pub access: AccessMode,
    /// The most device memory for copies, in bytes. `None` is room for the two largest parameters.
    pub budget: Option<u64>,
    /// Whether copies are made ahead of their use.
    pub prefetch: bool,
}

impl Default for StagingOptions {
    fn default() -> Self {
        Self {
            access: AccessMode::Auto,
            budget: None,
            prefetch: true,
        }
    }
}

/// What a device did to read offloaded parameters, since the process began.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[non_exhaustive]
pub struct Stats {
    /// Reads in place, across the bus.
    pub in_place: u64,
    /// Copies to the device.
    pub staged: u64,
    /// Their bytes.
    pub staged_bytes: u64,
    /// Copies made ahead of their use.
    pub prefetched: u64,
    /// Uses of a copy that was made ahead.
    pub hits: u64,
    /// Further uses of a copy that was still there.
    pub reused: u64,
    /// Uses that had to begin the copy themselves.
    pub misses: u64,
    /// Copies made ahead that were written over before they were used.
    pub wasted: u64,
    /// Uses for which there was no room, and which went another way.
    pub no_room: u64,
    /// The device memory that copies have, in bytes.
    pub ring_bytes: u64,
    /// The link's copy speed as measured, in bytes a second.
    pub link_bytes_per_second: Option<u64>,
}
