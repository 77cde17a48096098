//! The backend under test: burn-cuda, with every tensor in host memory.

/// The backend that every test runs on. With the feature `fusion`, burn-cuda's own default.
pub type InnerBackend = burn_offload::Offloaded<burn_offload::target::cuda::Cuda>;

/// Every tensor is offloaded, whatever made it.
pub fn init() {
    InnerBackend::configure(&Default::default(), burn_offload::OffloadPolicy::everything())
        .expect("the policy holds and there is a GPU");
}
