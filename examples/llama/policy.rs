//! The command-line flags that say where parameters go.

use std::{fs, io, path::PathBuf};

use burn_offload::{
    ByteSize, OffloadPolicy,
    policy::{Order, PolicyError},
};

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Placement")]
pub struct PolicyArgs {
    /// Offload parameters into at most this much host memory (such as 20GiB)
    #[arg(long, value_name = "SIZE", group = "budget", value_parser = size)]
    host_budget: Option<ByteSize>,

    /// Keep at most this much of the parameters on the device, and offload the rest
    #[arg(long, value_name = "SIZE", group = "budget", value_parser = size)]
    device_budget: Option<ByteSize>,

    /// Offload only parameters with these names or parts of names (such as mlp,layers.3)
    #[arg(
        long,
        value_name = "NAME,...",
        value_delimiter = ',',
        requires = "budget"
    )]
    params: Vec<String>,

    /// Never offload parameters with these names or parts of names
    #[arg(
        long,
        value_name = "NAME,...",
        value_delimiter = ',',
        requires = "budget"
    )]
    keep: Vec<String>,

    /// Which parameters are offloaded first
    #[arg(long, value_enum, requires = "budget")]
    order: Option<OrderArg>,

    /// Read the policy from this file (.toml or .json)
    #[arg(long, value_name = "FILE", conflicts_with_all = ["budget", "params", "keep", "order"])]
    policy: Option<PathBuf>,

    /// Offload nothing
    #[arg(long, conflicts_with_all = ["budget", "policy"])]
    resident: bool,
}

/// A size as a flag has it.
pub fn size(text: &str) -> Result<ByteSize, String> {
    text.parse()
        .map_err(|_| "it must be a number of bytes or a size such as 512MiB or 20GiB".into())
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum OrderArg {
    /// In the order of the model
    Module,
    /// The largest first
    Largest,
    /// Spread over the depth of the model
    Spread,
}

#[derive(Debug, thiserror::Error)]
pub enum PolicyFileError {
    #[error("cannot read {}: {source}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("{}: {source}", path.display())]
    Toml {
        path: PathBuf,
        source: toml::de::Error,
    },
    #[error("{}: {source}", path.display())]
    Json {
        path: PathBuf,
        source: serde_json::Error,
    },
    #[error("{} ends neither in .toml nor in .json", path.display())]
    Extension { path: PathBuf },
    #[error(transparent)]
    Policy(#[from] PolicyError),
}

impl PolicyArgs {
    /// The policy that the flags ask for; None if there are none.
    pub fn policy(&self) -> Result<Option<OffloadPolicy>, PolicyFileError> {
        let policy = match (self.host_budget, self.device_budget, &self.policy) {
            (Some(bytes), _, _) => OffloadPolicy::host_budget(bytes),
            (_, Some(bytes), _) => OffloadPolicy::device_budget(bytes),
            (_, _, Some(path)) => return read(path.clone()).map(Some),
            _ if self.resident => OffloadPolicy::nothing(),
            _ => return Ok(None),
        };
        let policy = policy
            .with_params(&self.params)
            .with_keep(&self.keep)
            .with_order(match self.order {
                None | Some(OrderArg::Module) => Order::Module,
                Some(OrderArg::Largest) => Order::Largest,
                Some(OrderArg::Spread) => Order::Spread,
            });
        policy.validate()?;
        Ok(Some(policy))
    }
}

fn read(path: PathBuf) -> Result<OffloadPolicy, PolicyFileError> {
    let is = |extension: &str| {
        path.extension()
            .is_some_and(|it| it.eq_ignore_ascii_case(extension))
    };
    let (toml, json) = (is("toml"), is("json"));
    if !toml && !json {
        return Err(PolicyFileError::Extension { path });
    }
    let text = match fs::read_to_string(&path) {
        Ok(text) => text,
        Err(source) => return Err(PolicyFileError::Read { path, source }),
    };
    if toml {
        toml::from_str(&text).map_err(|source| PolicyFileError::Toml { path, source })
    } else {
        serde_json::from_str(&text).map_err(|source| PolicyFileError::Json { path, source })
    }
}
