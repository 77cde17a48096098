//! Decisions: a policy applied to parameters.

use std::fmt;

use bytesize::ByteSize;
use serde::{Deserialize, Serialize};

use super::budget::{Budget, Side};
use super::error::PolicyError;
use super::policy::OffloadPolicy;
use super::select;

/// Bytes of parameters already on the device's books, which count against the budget.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Used {
    /// Bytes in host memory.
    pub offloaded: u64,
    /// Bytes in device memory.
    pub resident: u64,
}

impl Used {
    /// Adds `bytes` to the side of `placement`, stopping at `u64::MAX`.
    pub fn record(&mut self, placement: Placement, bytes: u64) {
        let side = match placement {
            Placement::Resident => &mut self.resident,
            Placement::Offloaded => &mut self.offloaded,
        };
        *side = side.saturating_add(bytes);
    }
}

/// A parameter to be placed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ParamInfo {
    /// Its dotted path in the module.
    pub name: String,
    /// Its size.
    pub bytes: u64,
    /// Whether operations read some rows of it at a time, as those of an embedding do: in host memory it
    /// costs next to nothing.
    pub by_rows: bool,
}

impl ParamInfo {
    /// A parameter that operations read as a whole.
    pub fn new(name: impl Into<String>, bytes: u64) -> Self {
        Self {
            name: name.into(),
            bytes,
            by_rows: false,
        }
    }

    /// Sets [`by_rows`](Self::by_rows).
    #[must_use]
    pub fn with_rows(mut self, by_rows: bool) -> Self {
        self.by_rows = by_rows;
        self
    }
}

/// Where a parameter's bytes live.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Placement {
    /// In device memory.
    Resident,
    /// In host memory.
    Offloaded,
}

impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Resident => "resident",
            Self::Offloaded => "offloaded",
        })
    }
}

/// Where a parameter goes, and why. Displays as the placement, a colon and the reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Decision {
    /// Where it goes.
    pub placement: Placement,
    /// Why.
    pub reason: Reason,
}

impl Decision {
    pub(crate) fn resident(reason: Reason) -> Self {
        Self {
            placement: Placement::Resident,
            reason,
        }
    }

    pub(crate) fn offloaded(reason: Reason) -> Self {
        Self {
            placement: Placement::Offloaded,
            reason,
        }
    }
}

impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.placement, self.reason)
    }
}

/// Why a parameter goes where it goes. Displays as a short phrase.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// Offloaded: it fits the host budget.
    WithinHostBudget,
    /// Resident: it is larger than what is left of the host budget.
    OverHostBudget {
        /// The bytes left when it was considered.
        left: u64,
    },
    /// Resident: it fits the device budget.
    WithinDeviceBudget,
    /// Offloaded: it is larger than what is left of the device budget.
    OverDeviceBudget {
        /// The bytes left when it was considered.
        left: u64,
    },
    /// Offloaded: optimizer state that fits the budget for such.
    WithinStateBudget,
    /// Resident: optimizer state that is larger than what is left of the budget for such.
    OverStateBudget {
        /// The bytes left when it was considered.
        left: u64,
    },
    /// Offloaded: everything is.
    Everything,
    /// Resident: nothing is offloaded.
    Nothing,
    /// Resident: `keep` names it.
    Kept {
        /// The first selector of `keep` that matches it.
        selector: String,
    },
    /// Resident: no selector of `params` matches it.
    NotSelected,
    /// Resident for now: its name is not known yet, and the policy goes by names.
    Unnamed,
    /// Resident: it has no bytes.
    Empty,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::WithinHostBudget => f.write_str("fits the host budget"),
            Self::OverHostBudget { left } => {
                write!(f, "host budget has {} left", ByteSize::b(*left))
            }
            Self::WithinDeviceBudget => f.write_str("fits the device budget"),
            Self::OverDeviceBudget { left } => {
                write!(f, "device budget has {} left", ByteSize::b(*left))
            }
            Self::WithinStateBudget => f.write_str("fits the budget of optimizer state"),
            Self::OverStateBudget { left } => {
                let left = ByteSize::b(*left);
                write!(f, "budget of optimizer state has {left} left")
            }
            Self::Everything => f.write_str("everything is offloaded"),
            Self::Nothing => f.write_str("nothing is offloaded"),
            Self::Kept { selector } => write!(f, "kept by `{selector}`"),
            Self::NotSelected => f.write_str("not selected by `params`"),
            Self::Unnamed => f.write_str("has no name yet, placed later by name"),
            Self::Empty => f.write_str("has no bytes"),
        }
    }
}

/// What a [`Budget`] comes to.
enum Rule {
    /// One decision for every parameter that has bytes.
    Same(Decision),
    /// As long as there is room.
    Cap(Allowance),
}

impl Rule {
    fn new(budget: Budget, used: Used) -> Self {
        let (side, budget, used) = match budget {
            Budget::Everything => return Self::Same(Decision::offloaded(Reason::Everything)),
            Budget::Nothing => return Self::Same(Decision::resident(Reason::Nothing)),
            Budget::Host(size) => (Side::Host, size.as_u64(), used.offloaded),
            Budget::Device(size) => (Side::Device, size.as_u64(), used.resident),
        };
        Self::Cap(Allowance {
            side,
            budget,
            used,
            left: budget.saturating_sub(used),
        })
    }
}

/// A budget that has a size, and what is left of it.
struct Allowance {
    side: Side,
    budget: u64,
    used: u64,
    left: u64,
}

impl Allowance {
    fn place(&mut self, bytes: u64) -> Decision {
        let left = self.left;
        let rest = left.checked_sub(bytes);
        self.left = rest.unwrap_or(left);
        match (self.side, rest) {
            (Side::Host, Some(_)) => Decision::offloaded(Reason::WithinHostBudget),
            (Side::Host, None) => Decision::resident(Reason::OverHostBudget { left }),
            (Side::Device, Some(_)) => Decision::resident(Reason::WithinDeviceBudget),
            (Side::Device, None) => Decision::offloaded(Reason::OverDeviceBudget { left }),
        }
    }

    fn reserve(&mut self, reserved: &Reserved) -> Result<(), PolicyError> {
        let Some(largest) = reserved.largest else {
            return Ok(());
        };
        let &Reserved {
            kept, unselected, ..
        } = reserved;
        // A sum beyond `u64` fits no budget.
        let rest = kept
            .checked_add(unselected)
            .and_then(|bytes| self.left.checked_sub(bytes));
        self.left = rest.ok_or_else(|| PolicyError::NeverOffloadedOverBudget {
            budget: self.budget,
            needed: self.used.saturating_add(kept).saturating_add(unselected),
            resident: self.used,
            kept,
            unselected,
            largest: largest.name.clone(),
            largest_bytes: largest.bytes,
        })?;
        Ok(())
    }
}

/// The parameters that a device budget must hold whatever happens.
#[derive(Default)]
struct Reserved<'a> {
    kept: u64,
    unselected: u64,
    largest: Option<&'a ParamInfo>,
}

impl<'a> Reserved<'a> {
    fn add(&mut self, param: &'a ParamInfo, reason: &Reason) {
        let sum = match reason {
            Reason::Kept { .. } => &mut self.kept,
            Reason::NotSelected => &mut self.unselected,
            _ => return,
        };
        *sum = sum.saturating_add(param.bytes);
        if self
            .largest
            .is_none_or(|largest| param.bytes > largest.bytes)
        {
            self.largest = Some(param);
        }
    }
}

impl OffloadPolicy {
    /// Places one allocation, in the order allocations come. `name` is `None` for an allocation
    /// whose name is not known.
    ///
    /// `used` is what earlier allocations took. A parameter is offloaded under a host budget, or
    /// stays under a device budget, if it fits what is left; a later, smaller one may fit where a
    /// larger one did not. Kept and unselected parameters always stay, even where the device budget
    /// has no room for them: only [`plan`](Self::plan) can see them coming. Where the policy has
    /// selectors and a budget with a size, an allocation without a name stays, to be placed later
    /// by name. [`order`](Self::order) has no effect here. The policy should be
    /// [valid](Self::validate).
    ///
    /// ```
    /// use burn_offload::{ByteSize, OffloadPolicy, Used};
    ///
    /// let policy = OffloadPolicy::host_budget(ByteSize::b(100));
    /// let mut used = Used::default();
    /// let decisions = [60, 50, 40].map(|bytes| {
    ///     let decision = policy.decide(None, bytes, used);
    ///     used.record(decision.placement, bytes);
    ///     decision.to_string()
    /// });
    /// assert_eq!(
    ///     decisions,
    ///     [
    ///         "offloaded: fits the host budget",
    ///         "resident: host budget has 40 B left",
    ///         "offloaded: fits the host budget",
    ///     ]
    /// );
    /// ```
    pub fn decide(&self, name: Option<&str>, bytes: u64, used: Used) -> Decision {
        if bytes == 0 {
            return Decision::resident(Reason::Empty);
        }
        match Rule::new(self.budget, used) {
            Rule::Same(decision) => decision,
            Rule::Cap(mut allowance) => self
                .decide_by_name(name)
                .unwrap_or_else(|| allowance.place(bytes)),
        }
    }

    /// Places all parameters of a model, given in module order, and what else the device already
    /// holds. The decisions are in the order of `params`.
    ///
    /// `used` must not count the parameters that are being planned. Under a device budget, the bytes
    /// of kept and unselected parameters are set aside before the others are considered, in the
    /// order that [`order`](Self::order) says.
    ///
    /// A plan never takes more of a budget than `used` left, and the same input gives the same plan.
    /// Other things equal, a larger host budget never offloads fewer bytes in all, and a larger
    /// device budget never offloads more.
    ///
    /// # Errors
    ///
    /// If the policy is not [valid](Self::validate); if a selector matches none of the names; or if
    /// the parameters that are never offloaded are, with those already resident, too large for the
    /// device budget.
    ///
    /// ```
    /// use burn_offload::{ByteSize, OffloadPolicy, ParamInfo, Used};
    ///
    /// let params = [("embed.weight", 40), ("layers.0.up", 30), ("layers.1.up", 30)]
    ///     .map(|(name, bytes)| ParamInfo::new(name, bytes));
    /// let policy = OffloadPolicy::device_budget(ByteSize::b(80)).with_keep(["layers.1"]);
    /// let plan: Vec<_> = policy
    ///     .plan(&params, Used::default())?
    ///     .iter()
    ///     .map(ToString::to_string)
    ///     .collect();
    /// assert_eq!(
    ///     plan,
    ///     [
    ///         "resident: fits the device budget",
    ///         "offloaded: device budget has 10 B left",
    ///         "resident: kept by `layers.1`",
    ///     ]
    /// );
    ///
    /// let error = policy.with_keep(["layer.1"]).plan(&params, Used::default()).unwrap_err();
    /// assert!(error.to_string().contains("near it: `layers.1`"));
    /// # Ok::<(), burn_offload::PolicyError>(())
    /// ```
    pub fn plan(&self, params: &[ParamInfo], used: Used) -> Result<Vec<Decision>, PolicyError> {
        self.validate()?;
        let names: Vec<&str> = params.iter().map(|param| param.name.as_str()).collect();
        select::require_matches("params", &self.params, &names)?;
        select::require_matches("keep", &self.keep, &names)?;

        let mut allowance = match Rule::new(self.budget, used) {
            Rule::Same(decision) => {
                let decide = |param: &ParamInfo| match param.bytes {
                    0 => Decision::resident(Reason::Empty),
                    _ => decision.clone(),
                };
                return Ok(params.iter().map(decide).collect());
            }
            Rule::Cap(allowance) => allowance,
        };

        let mut decisions = vec![Decision::resident(Reason::Empty); params.len()];
        let mut reserved = Reserved::default();
        let (mut open, mut open_params) = (Vec::new(), Vec::new());
        for (i, param) in params.iter().enumerate().filter(|(_, p)| p.bytes > 0) {
            if let Some(decision) = self.decide_by_name(Some(&param.name)) {
                reserved.add(param, &decision.reason);
                decisions[i] = decision;
            } else {
                open.push(i);
                open_params.push(param);
            }
        }
        if allowance.side == Side::Device {
            allowance.reserve(&reserved)?;
        }
        for visited in self.order.visit(allowance.side, &open_params) {
            decisions[open[visited]] = allowance.place(open_params[visited].bytes);
        }
        Ok(decisions)
    }

    /// The decision under a budget that has a size, where the name alone decides.
    fn decide_by_name(&self, name: Option<&str>) -> Option<Decision> {
        let Some(name) = name else {
            return self
                .has_selectors()
                .then(|| Decision::resident(Reason::Unnamed));
        };
        if let Some(selector) = select::first_match(&self.keep, name) {
            return Some(Decision::resident(Reason::Kept {
                selector: selector.to_owned(),
            }));
        }
        let selected = self.params.is_empty() || select::first_match(&self.params, name).is_some();
        (!selected).then(|| Decision::resident(Reason::NotSelected))
    }
}

#[cfg(test)]
mod tests {
    use super::super::order::Order;
    use super::*;
    use proptest::prelude::*;

    fn params(list: &[(&str, u64)]) -> Vec<ParamInfo> {
        list.iter()
            .map(|&(name, bytes)| ParamInfo::new(name, bytes))
            .collect()
    }

    fn offloaded_names<'a>(params: &'a [ParamInfo], plan: &[Decision]) -> Vec<&'a str> {
        params
            .iter()
            .zip(plan)
            .filter(|(_, decision)| decision.placement == Placement::Offloaded)
            .map(|(param, _)| param.name.as_str())
            .collect()
    }

    #[test]
    fn decides_one_by_one() {
        use Placement::{Offloaded, Resident};
        let host = OffloadPolicy::host_budget(ByteSize::b(100));
        let device = OffloadPolicy::device_budget(ByteSize::b(100));
        let used = Used {
            offloaded: 60,
            resident: 70,
        };
        let kept = || Reason::Kept {
            selector: "norm".into(),
        };
        for (policy, name, bytes, placement, reason) in [
            (&host, None, 40, Offloaded, Reason::WithinHostBudget),
            (
                &host,
                None,
                41,
                Resident,
                Reason::OverHostBudget { left: 40 },
            ),
            (&host, None, 0, Resident, Reason::Empty),
            (&device, None, 30, Resident, Reason::WithinDeviceBudget),
            (
                &device,
                Some("a"),
                31,
                Offloaded,
                Reason::OverDeviceBudget { left: 30 },
            ),
            (
                &OffloadPolicy::everything(),
                Some("a"),
                9,
                Offloaded,
                Reason::Everything,
            ),
            (
                &OffloadPolicy::everything(),
                None,
                0,
                Resident,
                Reason::Empty,
            ),
            (
                &OffloadPolicy::nothing(),
                None,
                9,
                Resident,
                Reason::Nothing,
            ),
            (
                &host.clone().with_keep(["norm"]),
                None,
                9,
                Resident,
                Reason::Unnamed,
            ),
            (
                &host.clone().with_params(["mlp"]),
                None,
                9,
                Resident,
                Reason::Unnamed,
            ),
            (
                &host.clone().with_keep(["norm"]),
                Some("norm.w"),
                9,
                Resident,
                kept(),
            ),
            (
                &host.clone().with_keep(["norm"]),
                Some("norm1.w"),
                9,
                Offloaded,
                Reason::WithinHostBudget,
            ),
            (
                &host.clone().with_params(["mlp"]),
                Some("mlp.w"),
                9,
                Offloaded,
                Reason::WithinHostBudget,
            ),
            (
                &host.clone().with_params(["mlp"]),
                Some("up.w"),
                9,
                Resident,
                Reason::NotSelected,
            ),
            (
                &device.clone().with_keep(["norm"]),
                Some("norm.w"),
                99,
                Resident,
                kept(),
            ),
            (
                &host.clone().with_params(["mlp"]).with_keep(["norm"]),
                Some("mlp.norm"),
                9,
                Resident,
                kept(),
            ),
        ] {
            assert_eq!(
                policy.decide(name, bytes, used),
                Decision { placement, reason },
                "{policy:?} {name:?} {bytes}"
            );
        }
        let over = Used {
            offloaded: 101,
            resident: u64::MAX,
        };
        let left = |decision: Decision| decision.reason;
        assert_eq!(
            left(host.decide(None, 1, over)),
            Reason::OverHostBudget { left: 0 }
        );
        assert_eq!(
            left(device.decide(None, 1, over)),
            Reason::OverDeviceBudget { left: 0 }
        );
    }

    #[test]
    fn orders() {
        let model = params(&[
            ("layers.0.a", 10),
            ("layers.0.b", 30),
            ("layers.1.a", 10),
            ("layers.1.b", 30),
            ("layers.2.a", 10),
            ("layers.2.b", 30),
            ("layers.3.a", 10),
            ("layers.3.b", 30),
        ]);
        let host = OffloadPolicy::host_budget(ByteSize::b(90));
        let device = OffloadPolicy::device_budget(ByteSize::b(80));
        for (policy, order, expected) in [
            (
                &host,
                Order::Module,
                &["0.a", "0.b", "1.a", "1.b", "2.a"][..],
            ),
            (&host, Order::Largest, &["0.b", "1.b", "2.b"]),
            (&host, Order::Spread, &["0.a", "0.b", "1.a", "2.a", "2.b"]),
            (&device, Order::Module, &["2.a", "2.b", "3.a", "3.b"]),
            (&device, Order::Largest, &["1.b", "2.b", "3.b"]),
            (&device, Order::Spread, &["0.a", "0.b", "2.a", "2.b"]),
        ] {
            let policy = policy.clone().with_order(order);
            let plan = policy.plan(&model, Used::default()).unwrap();
            let expected: Vec<_> = expected.iter().map(|s| format!("layers.{s}")).collect();
            assert_eq!(offloaded_names(&model, &plan), expected, "{policy:?}");
        }
    }

    #[test]
    fn spread_counts_only_layers_that_may_be_offloaded() {
        let names: Vec<String> = (0..8)
            .map(|i| match i % 2 {
                0 => format!("layers.{i}.mlp"),
                _ => format!("layers.{i}.experts"),
            })
            .collect();
        let model: Vec<_> = names.iter().map(|name| (name.as_str(), 10)).collect();
        let model = params(&model);
        let plan = OffloadPolicy::host_budget(ByteSize::b(20))
            .with_params(["experts"])
            .with_order(Order::Spread)
            .plan(&model, Used::default())
            .unwrap();
        assert_eq!(
            offloaded_names(&model, &plan),
            ["layers.1.experts", "layers.5.experts"]
        );
    }

    #[test]
    fn device_budget_sets_aside_what_never_moves() {
        let model = params(&[("a", 40), ("b", 40), ("norm", 20), ("empty", 0)]);
        let policy = OffloadPolicy::device_budget(ByteSize::b(70)).with_keep(["norm", "empty"]);
        let used = Used {
            offloaded: 1000,
            resident: 10,
        };
        let plan = policy.plan(&model, used).unwrap();
        let texts: Vec<_> = plan.iter().map(ToString::to_string).collect();
        assert_eq!(
            texts,
            [
                "resident: fits the device budget",
                "offloaded: device budget has 0 B left",
                "resident: kept by `norm`",
                "resident: has no bytes",
            ]
        );

        let error = OffloadPolicy::device_budget(ByteSize::b(29))
            .with_keep(["norm"])
            .plan(&model, used)
            .unwrap_err();
        assert_eq!(
            error,
            PolicyError::NeverOffloadedOverBudget {
                budget: 29,
                needed: 30,
                resident: 10,
                kept: 20,
                unselected: 0,
                largest: "norm".into(),
                largest_bytes: 20,
            }
        );
        assert!(
            OffloadPolicy::device_budget(ByteSize::b(30))
                .with_keep(["norm"])
                .plan(&model, used)
                .is_ok()
        );
    }

    #[test]
    fn a_budget_already_overrun_offloads_all_the_rest() {
        let model = params(&[("a", 1), ("b", 2)]);
        let used = Used {
            offloaded: 0,
            resident: 11,
        };
        let plan = OffloadPolicy::device_budget(ByteSize::b(10))
            .plan(&model, used)
            .unwrap();
        assert_eq!(offloaded_names(&model, &plan), ["a", "b"]);
    }

    #[test]
    fn selectors_must_match() {
        let model = params(&[("mlp.up", 1), ("norm.gamma", 1)]);
        for (policy, field, selector, near) in [
            (
                OffloadPolicy::host_budget(ByteSize::b(9)).with_params(["mlp", "mpl"]),
                "params",
                "mpl",
                &["mlp"][..],
            ),
            (
                OffloadPolicy::nothing().with_keep(["nrom.gamma"]),
                "keep",
                "nrom.gamma",
                &["norm.gamma", "gamma"],
            ),
        ] {
            let error = policy.plan(&model, Used::default()).unwrap_err();
            assert_eq!(
                error,
                PolicyError::NoMatch {
                    field,
                    selector: selector.to_owned(),
                    near: near.iter().map(|&near| near.to_owned()).collect(),
                }
            );
        }
        assert_eq!(
            OffloadPolicy::host_budget(ByteSize::b(9))
                .with_keep(["norm"])
                .plan(&[], Used::default()),
            Err(PolicyError::NoParameters {
                field: "keep",
                selector: "norm".into(),
            })
        );
        assert_eq!(
            OffloadPolicy::host_budget(ByteSize::b(9)).plan(&[], Used::default()),
            Ok(vec![])
        );
        assert!(
            OffloadPolicy::everything()
                .with_keep(["norm"])
                .plan(&model, Used::default())
                .is_err()
        );
    }

    #[test]
    fn sums_beyond_u64_neither_panic_nor_wrap() {
        let model = params(&[("a", u64::MAX), ("b", u64::MAX), ("c", 1)]);
        let used = Used {
            offloaded: u64::MAX,
            resident: u64::MAX,
        };
        for used in [used, Used::default()] {
            let error = OffloadPolicy::device_budget(ByteSize::b(u64::MAX))
                .with_keep(["a"])
                .with_params(["c"])
                .plan(&model, used)
                .unwrap_err();
            assert!(
                matches!(
                    error,
                    PolicyError::NeverOffloadedOverBudget {
                        needed: u64::MAX,
                        ..
                    }
                ),
                "{error:?}"
            );
        }
        let plan = OffloadPolicy::host_budget(ByteSize::b(u64::MAX))
            .plan(&model, Used::default())
            .unwrap();
        assert_eq!(offloaded_names(&model, &plan), ["a"]);
        let mut used = used;
        used.record(Placement::Offloaded, 1);
        assert_eq!(used.offloaded, u64::MAX);
    }

    #[test]
    fn texts() {
        for (reason, text) in [
            (Reason::WithinHostBudget, "fits the host budget"),
            (
                Reason::OverHostBudget { left: 3 << 20 },
                "host budget has 3.0 MiB left",
            ),
            (Reason::WithinDeviceBudget, "fits the device budget"),
            (
                Reason::OverDeviceBudget { left: 0 },
                "device budget has 0 B left",
            ),
            (Reason::Everything, "everything is offloaded"),
            (Reason::Nothing, "nothing is offloaded"),
            (
                Reason::Kept {
                    selector: "norm".into(),
                },
                "kept by `norm`",
            ),
            (Reason::NotSelected, "not selected by `params`"),
            (Reason::Unnamed, "has no name yet, placed later by name"),
            (Reason::Empty, "has no bytes"),
        ] {
            assert_eq!(reason.to_string(), text);
            let decision = Decision::resident(reason);
            let json = serde_json::to_string(&decision).unwrap();
            assert_eq!(
                serde_json::from_str::<Decision>(&json).unwrap(),
                decision,
                "{json}"
            );
        }
        assert_eq!(format!("{:>9}", Placement::Resident), " resident");
        assert_eq!(
            serde_json::to_string(&Decision::offloaded(Reason::OverDeviceBudget { left: 7 }))
                .unwrap(),
            r#"{"placement":"offloaded","reason":{"over_device_budget":{"left":7}}}"#
        );
    }

    #[derive(Clone, Debug)]
    struct Case {
        params: Vec<ParamInfo>,
        used: Used,
        order: Order,
        keep: Vec<String>,
        select: Vec<String>,
    }

    impl Case {
        fn plan(&self, budget: Budget) -> Result<Vec<Decision>, PolicyError> {
            let mut policy = OffloadPolicy::nothing()
                .with_order(self.order)
                .with_keep(self.keep.iter())
                .with_params(self.select.iter());
            policy.budget = budget;
            policy.plan(&self.params, self.used)
        }

        /// Exact sums, which `u64` may not hold.
        fn bytes(&self, plan: &[Decision], placement: Placement) -> u128 {
            self.params
                .iter()
                .zip(plan)
                .filter(|(_, decision)| decision.placement == placement)
                .map(|(param, _)| u128::from(param.bytes))
                .sum()
        }
    }

    fn any_bytes() -> impl Strategy<Value = u64> {
        prop_oneof![8 => 0u64..50, 1 => (u64::MAX - 50)..=u64::MAX]
    }

    fn any_case() -> impl Strategy<Value = Case> {
        let orders = prop_oneof![
            Just(Order::Module),
            Just(Order::Largest),
            Just(Order::Spread)
        ];
        let subset = |of: &'static [&'static str]| {
            prop::sample::subsequence(of, 0..=of.len())
                .prop_map(|names| names.into_iter().map(str::to_owned).collect::<Vec<_>>())
        };
        (
            prop::collection::vec(("(layers\\.[0-9]\\.)?(up|down|norm)", any_bytes()), 0..24),
            (any_bytes(), any_bytes()),
            orders,
            subset(&["norm", "layers.3"]),
            subset(&["up", "down", "layers.4"]),
        )
            .prop_map(|(list, (offloaded, resident), order, keep, select)| {
                let params: Vec<_> = list
                    .into_iter()
                    .map(|(name, bytes)| ParamInfo::new(name, bytes))
                    .collect();
                let matched = |selectors: Vec<String>| {
                    selectors
                        .into_iter()
                        .filter(|selector| {
                            params
                                .iter()
                                .any(|param| select::selector_matches(selector, &param.name))
                        })
                        .collect()
                };
                Case {
                    keep: matched(keep),
                    select: matched(select),
                    params,
                    used: Used {
                        offloaded,
                        resident,
                    },
                    order,
                }
            })
    }

    fn any_budget() -> impl Strategy<Value = u64> {
        prop_oneof![8 => 0u64..600, 1 => any::<u64>(), 1 => Just(u64::MAX)]
    }

    proptest! {
        #[test]
        fn host_budget_holds_and_is_monotone(case in any_case(), a in any_budget(), b in any_budget()) {
            let (small, large) = (a.min(b), a.max(b));
            let offloaded = |budget| {
                let plan = case.plan(Budget::Host(ByteSize::b(budget))).unwrap();
                assert_eq!(plan.len(), case.params.len());
                case.bytes(&plan, Placement::Offloaded)
            };
            let room = u128::from(small.saturating_sub(case.used.offloaded));
            prop_assert!(offloaded(small) <= room);
            prop_assert!(offloaded(small) <= offloaded(large));
        }

        #[test]
        fn device_budget_holds_and_is_monotone(case in any_case(), a in any_budget(), b in any_budget()) {
            let plan = |budget| case.plan(Budget::Device(ByteSize::b(budget)));
            let (small, large) = (a.min(b), a.max(b));
            match (plan(small), plan(large)) {
                (Ok(fewer), Ok(more)) => {
                    let room = u128::from(small.saturating_sub(case.used.resident));
                    prop_assert!(case.bytes(&fewer, Placement::Resident) <= room);
                    prop_assert!(
                        case.bytes(&fewer, Placement::Offloaded)
                            >= case.bytes(&more, Placement::Offloaded)
                    );
                }
                (Err(PolicyError::NeverOffloadedOverBudget { needed, .. }), larger) => {
                    prop_assert!(small < needed || needed == u64::MAX);
                    prop_assert!(larger.is_err() || large >= needed);
                    if needed < u64::MAX {
                        prop_assert!(plan(needed).is_ok());
                        prop_assert!(plan(needed - 1).is_err());
                    }
                }
                (fewer, more) => prop_assert!(false, "{:?} {:?}", fewer, more),
            }
        }

        #[test]
        fn never_moves_what_is_kept_and_repeats_itself(
            case in any_case(),
            size in any_budget(),
            host in any::<bool>(),
        ) {
            let size = ByteSize::b(size);
            let budget = if host { Budget::Host(size) } else { Budget::Device(size) };
            let plan = case.plan(budget);
            prop_assert_eq!(&plan, &case.plan(budget));
            for (param, decision) in case.params.iter().zip(plan.into_iter().flatten()) {
                let name = param.name.as_str();
                let selected =
                    case.select.is_empty() || select::first_match(&case.select, name).is_some();
                if select::first_match(&case.keep, name).is_some() || !selected {
                    prop_assert_eq!(decision.placement, Placement::Resident);
                }
            }
        }

        #[test]
        fn a_plan_in_module_order_is_one_decision_after_the_other(
            mut case in any_case(),
            size in any_budget(),
            host in any::<bool>(),
        ) {
            case.order = Order::Module;
            let size = ByteSize::b(size);
            let budget = if host {
                Budget::Host(size)
            } else {
                // What is set aside for these, only a plan can see coming.
                case.keep.clear();
                case.select.clear();
                Budget::Device(size)
            };
            let mut policy = OffloadPolicy::nothing()
                .with_keep(case.keep.iter())
                .with_params(case.select.iter());
            policy.budget = budget;
            let mut used = case.used;
            for (param, planned) in case.params.iter().zip(case.plan(budget).unwrap()) {
                let decision = policy.decide(Some(&param.name), param.bytes, used);
                used.record(decision.placement, param.bytes);
                prop_assert_eq!(decision, planned);
            }
        }
    }
}
