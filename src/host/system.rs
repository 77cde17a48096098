use super::StagingOptions;

/// How host memory may be taken, and read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostOptions {
    /// Whether kernels may read it in place.
    pub uva: bool,
    /// Whether it may be page-locked.
    pub pin: bool,
    /// How it is copied to the device.
    pub staging: StagingOptions,
}

impl HostOptions {
    /// The options given, less what `BURN_OFFLOAD_DISABLE_UVA=1` and `BURN_OFFLOAD_DISABLE_PIN=1`
    /// switch off.
    pub fn with_environment(self) -> Self {
        let on = |name| std::env::var(name).is_ok_and(|v| !matches!(v.as_str(), "" | "0"));
        Self {
            uva: self.uva && !on("BURN_OFFLOAD_DISABLE_UVA"),
            pin: self.pin && !on("BURN_OFFLOAD_DISABLE_PIN"),
            staging: self.staging,
        }
    }
}

/// The memory this process can have at most, in bytes: the machine's, or its control group's limit
/// where that is lower. `None` where the system does not say.
pub fn memory_limit() -> Option<u64> {
    let mut system = sysinfo::System::new();
    system.refresh_memory();
    let machine = system.total_memory();
    let group = system.cgroup_limits().map(|limits| limits.total_memory);
    let limit = group.filter(|g| *g > 0).map_or(machine, |g| g.min(machine));
    (limit > 0).then_some(limit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machine_says_how_much_memory_it_has() {
        let limit = memory_limit().expect("the system says");
        assert!(limit > 64 << 20, "{limit}");
    }
}
