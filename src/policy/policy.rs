//! The policy: what the user asks for, in code and in configuration files.

use bytesize::ByteSize;
use serde::{Deserialize, Serialize};

use super::budget::{Budget, RawSize};
use super::error::PolicyError;
use super::order::Order;
use super::select;

/// Which parameters go to host memory, and how they are read from there.
///
/// ```
/// use burn_offload::{ByteSize, OffloadPolicy, Order};
///
/// let policy = OffloadPolicy::host_budget(ByteSize::gib(20))
///     .with_params(["mlp.experts"])
///     .with_keep(["layers.0"])
///     .with_order(Order::Spread);
/// assert!(policy.validate().is_ok());
/// ```
///
/// # Configuration files
///
/// Exactly one of `host_budget`, `device_budget`, `everything = true` and `nothing = true` is
/// needed; a `false` counts as absent. The rest is optional. A size is a whole number of bytes or a
/// text such as `"20GiB"` (binary) or `"20 GB"` (decimal). Sizes are written back in bytes, so that
/// they stay exact. Fields that are not known are refused, and so is what
/// [`validate`](Self::validate) refuses.
///
/// ```
/// use burn_offload::{ByteSize, OffloadPolicy, Order};
///
/// let policy: OffloadPolicy = toml::from_str(
///     r#"
///     host_budget = "20GiB"      # one of the four
///     params = ["mlp.experts"]   # default: all
///     keep = ["layers.0"]        # default: none
///     order = "spread"           # "module" (default), "largest" or "spread"
///     access = "auto"            # "auto" (default), "in_place" or "staged"
///     staging_budget = "1GiB"    # default: room for the two largest parameters
///     prefetch = true            # the default
///     unscoped_threshold = "1MB" # default: only what Burn says is a parameter
///     optimizer_state = "40GiB"  # default: all on the device
///     uva = true                 # the default
///     pin = true                 # the default
///     "#,
/// )?;
/// assert_eq!(
///     policy,
///     OffloadPolicy::host_budget(ByteSize::gib(20))
///         .with_params(["mlp.experts"])
///         .with_keep(["layers.0"])
///         .with_order(Order::Spread)
///         .with_staging_budget(ByteSize::gib(1))
///         .with_unscoped_threshold(ByteSize::mb(1))
///         .with_optimizer_state(ByteSize::gib(40))
/// );
///
/// let error = toml::from_str::<OffloadPolicy>("host_budget = \"lots\"").unwrap_err();
/// assert!(error.to_string().contains("`host_budget` is `lots`, which is not a size"));
/// # Ok::<(), toml::de::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "RawPolicy", into = "RawPolicy")]
#[non_exhaustive]
pub struct OffloadPolicy {
    /// How many bytes may be where.
    pub budget: Budget,
    /// Selectors of the parameters that may be offloaded; empty means all.
    ///
    /// A selector matches a parameter if it is one or more whole segments in a row of its dotted
    /// name: `experts.w2_weight` matches `mlp.experts.w2_weight`, not
    /// `mlp.experts.w2_weight_scale`.
    pub params: Vec<String>,
    /// Selectors of the parameters that are never offloaded, even where `params` selects them.
    pub keep: Vec<String>,
    /// Which parameters a plan considers first.
    pub order: Order,
    /// How operations read offloaded parameters. Default: whatever is faster.
    pub access: AccessMode,
    /// At most so much device memory for copies of offloaded parameters that are about to be used or
    /// in use; never exceeded. Default: room for the two largest parameters, with fusion (which keeps
    /// operations queued) for the four largest. A parameter that does not fit is read in place, or
    /// copied for the one operation where that cannot be.
    pub staging_budget: Option<ByteSize>,
    /// Whether parameters are copied ahead of their use, in the order that the model was seen to use
    /// them. Default: `true`.
    pub prefetch: bool,
    /// From this size on, tensors that are made of host data or random numbers outside Burn's parameter
    /// scope are taken for parameters too. Default: none are.
    ///
    /// For where parameters arrive without that scope: from a client of `burn-remote` or `burn-router`,
    /// or through `Tensor::from_data` without a `Param`. What is not a parameter but as large, such as
    /// a batch of inputs, is then offloaded too, while there is room; choose a size above theirs. Such
    /// tensors have no names: where the policy has selectors, they stay on the device.
    pub unscoped_threshold: Option<ByteSize>,
    /// At most so much host memory, beside the budget, for what an offloaded optimizer
    /// ([`OffloadedOptimizer`](crate::OffloadedOptimizer)) keeps from one step to the next, as moments; what does not fit stays
    /// on the device. Default: all of it stays there.
    pub optimizer_state: Option<ByteSize>,
    /// Whether kernels may read offloaded parameters in place, across the bus. Default: `true`.
    pub uva: bool,
    /// Whether the host memory is page-locked. Default: `true`.
    pub pin: bool,
}

/// How operations read offloaded parameters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum AccessMode {
    /// Whatever is faster, for each operation: in place what is small or read in part, a copy of what
    /// is read more than once.
    #[default]
    Auto,
    /// In place, always: no device memory is taken for copies.
    InPlace,
    /// A copy, always.
    Staged,
}

impl OffloadPolicy {
    /// Offloads at most `bytes`: a hard cap on the host memory used.
    pub fn host_budget(bytes: ByteSize) -> Self {
        Self::new(Budget::Host(bytes))
    }

    /// Keeps at most `bytes` of parameters on the device, and offloads the rest.
    pub fn device_budget(bytes: ByteSize) -> Self {
        Self::new(Budget::Device(bytes))
    }

    /// Offloads every parameter.
    pub fn everything() -> Self {
        Self::new(Budget::Everything)
    }

    /// Offloads no parameter.
    pub fn nothing() -> Self {
        Self::new(Budget::Nothing)
    }

    fn new(budget: Budget) -> Self {
        Self {
            budget,
            params: Vec::new(),
            keep: Vec::new(),
            order: Order::default(),
            access: AccessMode::default(),
            staging_budget: None,
            prefetch: true,
            unscoped_threshold: None,
            optimizer_state: None,
            uva: true,
            pin: true,
        }
    }

    /// Sets [`params`](Self::params), in place of those before.
    #[must_use]
    pub fn with_params(mut self, selectors: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.params = selectors.into_iter().map(Into::into).collect();
        self
    }

    /// Sets [`keep`](Self::keep), in place of those before.
    #[must_use]
    pub fn with_keep(mut self, selectors: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.keep = selectors.into_iter().map(Into::into).collect();
        self
    }

    /// Sets [`order`](Self::order).
    #[must_use]
    pub fn with_order(mut self, order: Order) -> Self {
        self.order = order;
        self
    }

    /// Sets [`access`](Self::access).
    #[must_use]
    pub fn with_access(mut self, access: AccessMode) -> Self {
        self.access = access;
        self
    }

    /// Sets [`staging_budget`](Self::staging_budget).
    #[must_use]
    pub fn with_staging_budget(mut self, bytes: ByteSize) -> Self {
        self.staging_budget = Some(bytes);
        self
    }

    /// Sets [`prefetch`](Self::prefetch).
    #[must_use]
    pub fn with_prefetch(mut self, prefetch: bool) -> Self {
        self.prefetch = prefetch;
        self
    }

    /// Sets [`unscoped_threshold`](Self::unscoped_threshold).
    #[must_use]
    pub fn with_unscoped_threshold(mut self, bytes: ByteSize) -> Self {
        self.unscoped_threshold = Some(bytes);
        self
    }

    /// Sets [`optimizer_state`](Self::optimizer_state).
    #[must_use]
    pub fn with_optimizer_state(mut self, bytes: ByteSize) -> Self {
        self.optimizer_state = Some(bytes);
        self
    }

    /// Sets [`uva`](Self::uva).
    #[must_use]
    pub fn with_uva(mut self, uva: bool) -> Self {
        self.uva = uva;
        self
    }

    /// Sets [`pin`](Self::pin).
    #[must_use]
    pub fn with_pin(mut self, pin: bool) -> Self {
        self.pin = pin;
        self
    }

    /// Whether names matter: whether `params` or `keep` has a selector.
    pub fn has_selectors(&self) -> bool {
        !self.params.is_empty() || !self.keep.is_empty()
    }

    /// Checks what can be checked without a model.
    ///
    /// # Errors
    ///
    /// If a selector is empty, starts or ends with a dot or white space, or has an empty segment;
    /// if the same selector is in `params` and in `keep`; if there are selectors although
    /// everything is to be offloaded; or if parameters are to be read in place although `uva` or `pin`
    /// is off.
    pub fn validate(&self) -> Result<(), PolicyError> {
        for (field, selectors) in [("params", &self.params), ("keep", &self.keep)] {
            select::validate(field, selectors)?;
            if self.budget == Budget::Everything && !selectors.is_empty() {
                return Err(PolicyError::EverythingSelects { field });
            }
        }
        if self.access == AccessMode::InPlace && !(self.uva && self.pin) {
            return Err(PolicyError::InPlaceSwitchedOff);
        }
        match self.params.iter().find(|param| self.keep.contains(param)) {
            Some(selector) => Err(PolicyError::SelectedAndKept {
                selector: selector.clone(),
            }),
            None => Ok(()),
        }
    }
}

/// The policy as configuration files have it.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawPolicy {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    host_budget: Option<RawSize>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    device_budget: Option<RawSize>,
    #[serde(default, skip_serializing_if = "is_false")]
    everything: bool,
    #[serde(default, skip_serializing_if = "is_false")]
    nothing: bool,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    params: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    keep: Vec<String>,
    #[serde(default)]
    order: Order,
    #[serde(default)]
    access: AccessMode,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    staging_budget: Option<RawSize>,
    #[serde(default = "yes")]
    prefetch: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    unscoped_threshold: Option<RawSize>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    optimizer_state: Option<RawSize>,
    #[serde(default = "yes")]
    uva: bool,
    #[serde(default = "yes")]
    pin: bool,
}

fn is_false(value: &bool) -> bool {
    !value
}

fn yes() -> bool {
    true
}

impl TryFrom<RawPolicy> for OffloadPolicy {
    type Error = PolicyError;

    fn try_from(raw: RawPolicy) -> Result<Self, PolicyError> {
        let mut budgets = Vec::new();
        if let Some(size) = raw.host_budget {
            let field = "host_budget";
            budgets.push((field, Budget::Host(size.parse(field)?)));
        }
        if let Some(size) = raw.device_budget {
            let field = "device_budget";
            budgets.push((field, Budget::Device(size.parse(field)?)));
        }
        if raw.everything {
            budgets.push(("everything", Budget::Everything));
        }
        if raw.nothing {
            budgets.push(("nothing", Budget::Nothing));
        }
        let budget = match budgets[..] {
            [] => return Err(PolicyError::NoBudget),
            [(_, budget)] => budget,
            _ => {
                return Err(PolicyError::ManyBudgets {
                    fields: budgets.into_iter().map(|(field, _)| field).collect(),
                });
            }
        };
        let size = |field, size: Option<RawSize>| size.map(|size| size.parse(field)).transpose();
        let policy = Self {
            budget,
            params: raw.params,
            keep: raw.keep,
            order: raw.order,
            access: raw.access,
            staging_budget: size("staging_budget", raw.staging_budget)?,
            prefetch: raw.prefetch,
            unscoped_threshold: size("unscoped_threshold", raw.unscoped_threshold)?,
            optimizer_state: size("optimizer_state", raw.optimizer_state)?,
            uva: raw.uva,
            pin: raw.pin,
        };
        policy.validate()?;
        Ok(policy)
    }
}

impl From<OffloadPolicy> for RawPolicy {
    fn from(policy: OffloadPolicy) -> Self {
        let (host_budget, device_budget) = match policy.budget {
            Budget::Host(size) => (Some(size.into()), None),
            Budget::Device(size) => (None, Some(size.into())),
            Budget::Everything | Budget::Nothing => (None, None),
        };
        Self {
            host_budget,
            device_budget,
            everything: policy.budget == Budget::Everything,
            nothing: policy.budget == Budget::Nothing,
            params: policy.params,
            keep: policy.keep,
            order: policy.order,
            access: policy.access,
            staging_budget: policy.staging_budget.map(Into::into),
            prefetch: policy.prefetch,
            unscoped_threshold: policy.unscoped_threshold.map(Into::into),
            optimizer_state: policy.optimizer_state.map(Into::into),
            uva: policy.uva,
            pin: policy.pin,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn from_toml(text: &str) -> Result<OffloadPolicy, String> {
        toml::from_str(text).map_err(|error| error.to_string())
    }

    fn from_json(text: &str) -> Result<OffloadPolicy, String> {
        serde_json::from_str(text).map_err(|error| error.to_string())
    }

    #[test]
    fn parses() {
        for (text, policy) in [
            (
                "host_budget = \"20GiB\"",
                OffloadPolicy::host_budget(ByteSize::gib(20)),
            ),
            (
                "host_budget = 12345",
                OffloadPolicy::host_budget(ByteSize::b(12345)),
            ),
            (
                "device_budget = \"512 MiB\"\neverything = false",
                OffloadPolicy::device_budget(ByteSize::mib(512)),
            ),
            ("everything = true", OffloadPolicy::everything()),
            (
                "nothing = true\nuva = false\npin = false\norder = \"largest\"\nkeep = [\"a.b\"]",
                OffloadPolicy::nothing()
                    .with_uva(false)
                    .with_pin(false)
                    .with_order(Order::Largest)
                    .with_keep(["a.b"]),
            ),
        ] {
            assert_eq!(from_toml(text), Ok(policy), "{text}");
        }
        assert_eq!(
            from_json(r#"{"host_budget": 18446744073709551615, "device_budget": null}"#),
            Ok(OffloadPolicy::host_budget(ByteSize::b(u64::MAX)))
        );
    }

    #[test]
    fn refuses_and_says_why() {
        for (text, parts) in [
            ("", &["no budget", "host_budget = \"20GiB\""][..]),
            ("nothing = false", &["no budget"]),
            (
                "host_budget = 1\ndevice_budget = 1",
                &["`host_budget` and `device_budget`", "keep one"],
            ),
            (
                "everything = true\nnothing = true",
                &["`everything` and `nothing`"],
            ),
            ("host_budget = \"lots\"", &["`host_budget` is `lots`"]),
            ("device_budget = -1", &["`device_budget` is `-1`"]),
            ("device_budget = 1.5", &["`device_budget` is `1.5`"]),
            ("host_budget = true", &["`host_budget` is `true`"]),
            (
                "host_budget = \"16EiB\"",
                &["`host_budget` is `16EiB`", "more than"],
            ),
            ("host_bugdet = 1", &["host_bugdet", "host_budget"]),
            ("nothing = true\norder = \"random\"", &["random", "spread"]),
            ("nothing = true\nkeep = [\"\"]", &["`keep`", "is empty"]),
            (
                "host_budget = 1\nparams = [\"a.\"]",
                &["`params`", "`a.`", "ends with a dot"],
            ),
            (
                "host_budget = 1\nparams = [\"a\"]\nkeep = [\"b\", \"a\"]",
                &["`a`", "`params`", "`keep`"],
            ),
            (
                "everything = true\nkeep = [\"a\"]",
                &["`everything`", "`keep`"],
            ),
        ] {
            let error = from_toml(text).expect_err(text);
            for part in parts {
                assert!(error.contains(part), "{text:?}: {error:?} lacks {part:?}");
            }
        }
        let error = from_json(r#"{"host_budget": 18446744073709551616}"#).unwrap_err();
        assert!(
            error.contains("`host_budget` is `1.8446744073709552e19`"),
            "{error}"
        );
    }

    #[test]
    fn selectors_replace_those_before() {
        let policy = OffloadPolicy::nothing()
            .with_keep(["a", "b"])
            .with_keep(vec![String::from("c")]);
        assert_eq!(policy.keep, ["c"]);
        assert!(policy.has_selectors());
        assert!(!policy.with_keep([""; 0]).has_selectors());
    }

    fn any_policy() -> impl Strategy<Value = OffloadPolicy> {
        let budget = prop_oneof![
            any::<u64>().prop_map(|bytes| Budget::Host(ByteSize::b(bytes))),
            any::<u64>().prop_map(|bytes| Budget::Device(ByteSize::b(bytes))),
            Just(Budget::Everything),
            Just(Budget::Nothing),
        ];
        let order = prop_oneof![
            Just(Order::Module),
            Just(Order::Largest),
            Just(Order::Spread)
        ];
        let selectors = || prop::collection::vec("\\PC{0,6}", 0..3);
        let access = prop_oneof![
            Just(AccessMode::Auto),
            Just(AccessMode::InPlace),
            Just(AccessMode::Staged)
        ];
        let staging = (access, any::<Option<u64>>(), any::<bool>());
        let unscoped_and_state = (any::<Option<u64>>(), any::<Option<u64>>());
        (
            budget,
            order,
            selectors(),
            selectors(),
            staging,
            unscoped_and_state,
            any::<bool>(),
            any::<bool>(),
        )
            .prop_map(
                |(budget, order, params, keep, staging, (unscoped, state), uva, pin)| {
                    let (access, staging, prefetch) = staging;
                    OffloadPolicy {
                        budget,
                        params,
                        keep,
                        order,
                        access,
                        staging_budget: staging.map(ByteSize::b),
                        prefetch,
                        unscoped_threshold: unscoped.map(ByteSize::b),
                        optimizer_state: state.map(ByteSize::b),
                        uva,
                        pin,
                    }
                },
            )
    }

    proptest! {
        #[test]
        fn round_trips(mut policy in any_policy()) {
            if policy.validate().is_err() {
                policy.params.clear();
                policy.keep.clear();
                policy.access = AccessMode::Auto;
            }
            let toml = toml::to_string(&policy).unwrap();
            prop_assert_eq!(from_toml(&toml), Ok(policy.clone()), "{}", toml);
            let json = serde_json::to_string(&policy).unwrap();
            prop_assert_eq!(from_json(&json), Ok(policy), "{}", json);
        }

        #[test]
        fn parses_exactly_what_validates(policy in any_policy()) {
            let json = serde_json::to_string(&policy).unwrap();
            prop_assert_eq!(from_json(&json).is_ok(), policy.validate().is_ok());
        }
    }
}
