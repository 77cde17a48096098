//! The backend under test: Flex, with every tensor in host memory.

/// The backend that every test runs on.
pub type InnerBackend = burn_offload::Offloaded<burn_flex::Flex>;

/// Every tensor is offloaded, whatever made it.
pub fn init() {
    InnerBackend::configure(&Default::default(), burn_offload::OffloadPolicy::everything())
        .expect("the policy holds");
}
