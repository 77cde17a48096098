//! What can be wrong with a policy.

use std::fmt::Write;

use bytesize::ByteSize;

/// Why a policy cannot be used.
///
/// Each message names the field or parameter, the bytes where bytes matter, and what to write
/// instead.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PolicyError {
    /// Parameters are to be read in place, which is switched off.
    #[error(
        "`access` is `in_place`, but reading in place needs `uva` and `pin`, and one of them is off: \
         leave both on, or let `access` be `auto`"
    )]
    InPlaceSwitchedOff,

    /// None of the four budget fields is there.
    #[error(
        "the policy has no budget: write one of `host_budget = \"20GiB\"` (offload at most so \
         much), `device_budget = \"20GiB\"` (keep at most so much on the device), `everything = \
         true` or `nothing = true`"
    )]
    NoBudget,
    /// More than one of the four budget fields is there.
    #[error("the policy has {}: keep one of them and remove the rest", and(.fields))]
    ManyBudgets {
        /// The budget fields that are there.
        fields: Vec<&'static str>,
    },
    /// A budget is not a size.
    #[error(
        "`{field}` is `{text}`, which is not a size: write a whole number of bytes, or a number \
         with a unit, such as \"20GiB\" or \"512 MiB\""
    )]
    BadSize {
        /// The field.
        field: &'static str,
        /// What it holds.
        text: String,
    },
    /// A budget has more bytes than can be counted.
    #[error(
        "`{field}` is `{text}`, which is more than can be counted: write at most {max} bytes",
        max = u64::MAX
    )]
    SizeTooLarge {
        /// The field.
        field: &'static str,
        /// What it holds.
        text: String,
    },
    /// A selector can match no name.
    #[error(
        "`{field}` has the selector `{selector}`, which {problem}: write whole segments of a \
         parameter's name, such as `mlp` or `mlp.experts`"
    )]
    BadSelector {
        /// `params` or `keep`.
        field: &'static str,
        /// The selector.
        selector: String,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// A selector is in both lists.
    #[error(
        "the selector `{selector}` is in `params` and in `keep`, and what is kept is never \
         offloaded: remove it from one of them"
    )]
    SelectedAndKept {
        /// The selector.
        selector: String,
    },
    /// Everything is to be offloaded, and yet there are selectors.
    #[error(
        "`everything` offloads every parameter, so `{field}` has no effect: remove `{field}`, or \
         replace `everything` by a `host_budget` large enough for all that is selected"
    )]
    EverythingSelects {
        /// `params` or `keep`.
        field: &'static str,
    },
    /// A selector matches none of the parameters.
    #[error(
        "the selector `{selector}` in `{field}` matches no parameter{}: a selector is one or more \
         whole segments of a parameter's name, such as `mlp` or `mlp.experts`; correct it or \
         remove it",
        did_you_mean(.near)
    )]
    NoMatch {
        /// `params` or `keep`.
        field: &'static str,
        /// The selector.
        selector: String,
        /// Up to five selectors that read like it and match something, best first.
        near: Vec<String>,
    },
    /// There are selectors, and no named parameter to select.
    #[error(
        "the selector `{selector}` in `{field}` matches no parameter, as there are no named \
         parameters at all: plan with the parameters of a module, or remove `{field}`"
    )]
    NoParameters {
        /// `params` or `keep`.
        field: &'static str,
        /// The selector.
        selector: String,
    },
    /// The parameters that are never offloaded are too large for the device budget.
    #[error(
        "`device_budget` is {}, but {} must stay on the device: {} already there, {} kept by \
         `keep` and {} not selected by `params` (the largest is `{largest}` with {}); raise \
         `device_budget` to at least {}{}",
        size(*.budget), size(*.needed), size(*.resident), size(*.kept), size(*.unselected),
        size(*.largest_bytes), size(*.needed), or_drop(*.kept, *.unselected)
    )]
    NeverOffloadedOverBudget {
        /// The device budget.
        budget: u64,
        /// The least budget that would do; `u64::MAX` where the sum is larger still.
        needed: u64,
        /// Bytes already resident when the plan was made.
        resident: u64,
        /// Bytes of the parameters kept by `keep`.
        kept: u64,
        /// Bytes of the parameters not selected by `params`.
        unselected: u64,
        /// The largest parameter among those that are never offloaded.
        largest: String,
        /// Its bytes.
        largest_bytes: u64,
    },
}

fn size(bytes: u64) -> String {
    if bytes < 1024 {
        format!("{bytes} bytes")
    } else {
        format!("{bytes} bytes ({})", ByteSize::b(bytes))
    }
}

fn and(fields: &[&str]) -> String {
    let quoted: Vec<_> = fields.iter().map(|field| format!("`{field}`")).collect();
    quoted.join(" and ")
}

fn did_you_mean(near: &[String]) -> String {
    let mut text = String::new();
    for (i, name) in near.iter().enumerate() {
        let lead = if i == 0 { " (near it: " } else { ", " };
        let _ = write!(text, "{lead}`{name}`");
    }
    if !near.is_empty() {
        text.push(')');
    }
    text
}

fn or_drop(kept: u64, unselected: u64) -> &'static str {
    match (kept > 0, unselected > 0) {
        (true, true) => ", drop entries of `keep`, or add entries to `params`",
        (true, false) => " or drop entries of `keep`",
        (false, _) => " or add entries to `params`",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts() {
        for (error, text) in [
            (
                PolicyError::NoBudget,
                "the policy has no budget: write one of `host_budget = \"20GiB\"` (offload at \
                 most so much), `device_budget = \"20GiB\"` (keep at most so much on the device), \
                 `everything = true` or `nothing = true`",
            ),
            (
                PolicyError::ManyBudgets {
                    fields: vec!["host_budget", "nothing"],
                },
                "the policy has `host_budget` and `nothing`: keep one of them and remove the rest",
            ),
            (
                PolicyError::BadSize {
                    field: "host_budget",
                    text: "lots".into(),
                },
                "`host_budget` is `lots`, which is not a size: write a whole number of bytes, or \
                 a number with a unit, such as \"20GiB\" or \"512 MiB\"",
            ),
            (
                PolicyError::SizeTooLarge {
                    field: "device_budget",
                    text: "16EiB".into(),
                },
                "`device_budget` is `16EiB`, which is more than can be counted: write at most \
                 18446744073709551615 bytes",
            ),
            (
                PolicyError::BadSelector {
                    field: "keep",
                    selector: ".norm".into(),
                    problem: "starts with a dot",
                },
                "`keep` has the selector `.norm`, which starts with a dot: write whole segments \
                 of a parameter's name, such as `mlp` or `mlp.experts`",
            ),
            (
                PolicyError::SelectedAndKept {
                    selector: "mlp".into(),
                },
                "the selector `mlp` is in `params` and in `keep`, and what is kept is never \
                 offloaded: remove it from one of them",
            ),
            (
                PolicyError::EverythingSelects { field: "keep" },
                "`everything` offloads every parameter, so `keep` has no effect: remove `keep`, \
                 or replace `everything` by a `host_budget` large enough for all that is selected",
            ),
            (
                PolicyError::NoMatch {
                    field: "params",
                    selector: "mpl".into(),
                    near: vec!["mlp".into(), "mlp.up".into()],
                },
                "the selector `mpl` in `params` matches no parameter (near it: `mlp`, `mlp.up`): \
                 a selector is one or more whole segments of a parameter's name, such as `mlp` or \
                 `mlp.experts`; correct it or remove it",
            ),
            (
                PolicyError::NoMatch {
                    field: "keep",
                    selector: "zzz".into(),
                    near: vec![],
                },
                "the selector `zzz` in `keep` matches no parameter: a selector is one or more \
                 whole segments of a parameter's name, such as `mlp` or `mlp.experts`; correct it \
                 or remove it",
            ),
            (
                PolicyError::NoParameters {
                    field: "keep",
                    selector: "norm".into(),
                },
                "the selector `norm` in `keep` matches no parameter, as there are no named \
                 parameters at all: plan with the parameters of a module, or remove `keep`",
            ),
            (
                PolicyError::NeverOffloadedOverBudget {
                    budget: 1024,
                    needed: 3584,
                    resident: 512,
                    kept: 3072,
                    unselected: 0,
                    largest: "embed.weight".into(),
                    largest_bytes: 2048,
                },
                "`device_budget` is 1024 bytes (1.0 KiB), but 3584 bytes (3.5 KiB) must stay on \
                 the device: 512 bytes already there, 3072 bytes (3.0 KiB) kept by `keep` and 0 \
                 bytes not selected by `params` (the largest is `embed.weight` with 2048 bytes \
                 (2.0 KiB)); raise `device_budget` to at least 3584 bytes (3.5 KiB) or drop \
                 entries of `keep`",
            ),
        ] {
            assert_eq!(error.to_string(), text);
        }
    }
}
