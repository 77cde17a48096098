use bytesize::ByteSize;

use crate::{host::HostError, policy::PolicyError};

/// What can go wrong when a device is configured or parameters are placed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OffloadError {
    /// The policy does not hold together, or does not fit the module.
    #[error(transparent)]
    Policy(#[from] PolicyError),

    /// The budget asks for more host memory than this process can have.
    #[error(
        "`host_budget` is {budget} ({} bytes), but this machine or container has {limit} ({} \
         bytes) in all: lower `host_budget`, or run where there is more memory",
        budget.as_u64(), limit.as_u64()
    )]
    BudgetExceedsMemory {
        /// The policy's host budget.
        budget: ByteSize,
        /// The memory of the machine, or the limit of its control group.
        limit: ByteSize,
    },

    /// There is no CUDA driver on this machine.
    #[error(
        "no CUDA driver: {reason}. Install the NVIDIA driver, or use `Offloaded<Flex>` on a \
         machine without a GPU"
    )]
    NoDriver {
        /// What was looked for.
        reason: String,
    },

    /// The device does not exist or does not answer.
    #[error("the device {device} cannot be used: {reason}. Check the index and `nvidia-smi`")]
    NoDevice {
        /// The device, as Burn names it.
        device: String,
        /// What the driver said.
        reason: String,
    },

    /// The system gave no host memory for a parameter.
    #[error("the parameter `{name}` ({bytes} bytes) was not offloaded: {source}")]
    Refused {
        /// The parameter's path.
        name: String,
        /// Its size.
        bytes: u64,
        /// What the system said.
        source: HostError,
    },

    /// The device did not take back a parameter.
    #[error(
        "the device did not take back the parameter `{name}` ({bytes} bytes): {reason}. It stays in \
         host memory; free device memory, or let more parameters be offloaded"
    )]
    NotRecalled {
        /// The parameter's path.
        name: String,
        /// Its size.
        bytes: u64,
        /// What the backend said.
        reason: String,
    },

    /// A parameter could not be read from the device.
    #[error(
        "a tensor could not be copied from the device: {reason}. The device may have failed; the \
         parameter was left where it is"
    )]
    Read {
        /// What the backend said.
        reason: String,
    },
}
