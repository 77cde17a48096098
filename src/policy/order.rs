//! In what order a plan visits the parameters.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use super::budget::Side;
use super::plan::ParamInfo;

/// Which parameters [`OffloadPolicy::plan`](super::OffloadPolicy::plan) considers first.
///
/// The order says who is served first; a parameter that does not fit is passed over, and later ones
/// may still fit. [`OffloadPolicy::decide`](super::OffloadPolicy::decide) has one allocation at a
/// time and takes them as they come, whatever the order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// In the order of the module.
    ///
    /// With a host budget the first parameters are offloaded; with a device budget the first ones
    /// stay.
    #[default]
    Module,
    /// The largest parameters are offloaded first: the fewest transfers for the bytes.
    ///
    /// With a host budget the largest are considered first. With a device budget the smallest are
    /// considered first for staying, which comes to the same. Between parameters of one size the
    /// module's order decides.
    Largest,
    /// Offloaded parameters are spread over the depth of the model, so that the transfer of each
    /// can hide behind the computing of the resident layers before it.
    ///
    /// Embeddings, of which some rows are read at a time, come before all: in host memory they cost next to
    /// nothing. The other layers are visited in van der Corput (bit-reversed) order: of eight, 0, 4, 2, 6, 1, 5, 3, 7.
    /// Any first few of them are spread evenly. Within a layer, the module's order holds. With a
    /// host budget this is the order of offloading; with a device budget, parameters are considered
    /// for staying in the reverse of it.
    ///
    /// A parameter's layer is its name up to and including the first segment of digits only
    /// (`model.layers.3`). A name without one belongs to the group of its first segment. Only
    /// parameters that may be offloaded are counted.
    Spread,
}

impl Order {
    /// The indices of `params` in the order in which they are offered room in the memory `side`.
    pub(super) fn visit(self, side: Side, params: &[&ParamInfo]) -> Vec<usize> {
        let mut indices: Vec<usize> = (0..params.len()).collect();
        match (self, side) {
            (Self::Module, _) => {}
            (Self::Largest, Side::Host) => {
                indices.sort_by_key(|&i| std::cmp::Reverse(params[i].bytes));
            }
            (Self::Largest, Side::Device) => indices.sort_by_key(|&i| params[i].bytes),
            (Self::Spread, side) => {
                let (layer_of, layers) = number_layers(params);
                let mut rank = vec![0; layers];
                for (position, layer) in van_der_corput(layers).into_iter().enumerate() {
                    rank[layer] = position;
                }
                // None comes first.
                indices.sort_by_key(|&i| layer_of[i].map(|layer| rank[layer]));
                if side == Side::Device {
                    indices.reverse();
                }
            }
        }
        indices
    }
}

/// The layer number of each parameter, by first appearance, and how many layers there are. Parameters that
/// are read by rows are in none.
fn number_layers(params: &[&ParamInfo]) -> (Vec<Option<usize>>, usize) {
    let mut numbers = HashMap::new();
    let layer_of = params
        .iter()
        .map(|param| {
            let next = numbers.len();
            (!param.by_rows).then(|| *numbers.entry(layer(&param.name)).or_insert(next))
        })
        .collect();
    (layer_of, numbers.len())
}

fn layer(name: &str) -> &str {
    let mut end = 0;
    for segment in name.split('.') {
        end += segment.len();
        if !segment.is_empty() && segment.bytes().all(|byte| byte.is_ascii_digit()) {
            return &name[..end];
        }
        end += 1;
    }
    name.split('.').next().unwrap_or(name)
}

/// `0..n`, each once, in van der Corput order.
///
/// The sequence's fractions are scaled to `n` and those that fall on a number already taken are
/// dropped, so that a count that is no power of two is covered as evenly as one that is.
fn van_der_corput(n: usize) -> Vec<usize> {
    let slots = n.next_power_of_two();
    let bits = slots.trailing_zeros();
    let mut taken = vec![false; n];
    (0..slots)
        .map(|i| {
            let reversed = i
                .reverse_bits()
                .checked_shr(usize::BITS - bits)
                .unwrap_or(0);
            // Exact, and below `n`: `reversed < slots`.
            ((reversed as u128 * n as u128) >> bits) as usize
        })
        .filter(|&i| n > 0 && !std::mem::replace(&mut taken[i], true))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn layers_of_names() {
        for (name, expected) in [
            ("model.layers.3.mlp.up.weight", "model.layers.3"),
            ("layers.12.experts.7.w", "layers.12"),
            ("3.weight", "3"),
            ("3", "3"),
            ("model.embed.weight", "model"),
            ("norm", "norm"),
            ("conv1.weight", "conv1"),
            ("layers.٣.weight", "layers"),
            ("", ""),
            (".", ""),
            ("..5", "..5"),
            ("é.0.w", "é.0"),
        ] {
            assert_eq!(layer(name), expected, "{name}");
        }
    }

    #[test]
    fn van_der_corput_orders() {
        assert_eq!(van_der_corput(0), [0; 0]);
        assert_eq!(van_der_corput(1), [0]);
        assert_eq!(van_der_corput(2), [0, 1]);
        assert_eq!(van_der_corput(3), [0, 1, 2]);
        assert_eq!(van_der_corput(6), [0, 3, 1, 4, 2, 5]);
        assert_eq!(van_der_corput(8), [0, 4, 2, 6, 1, 5, 3, 7]);
    }

    fn params(list: &[(&str, u64)]) -> Vec<ParamInfo> {
        list.iter()
            .map(|&(name, bytes)| ParamInfo::new(name, bytes))
            .collect()
    }

    #[test]
    fn visits() {
        let params = params(&[
            ("embed.w", 5),
            ("layers.0.a", 1),
            ("layers.0.b", 5),
            ("layers.1.a", 1),
            ("layers.1.b", 5),
            ("norm.w", 1),
        ]);
        let refs: Vec<_> = params.iter().collect();
        for (order, side, expected) in [
            (Order::Module, Side::Host, [0, 1, 2, 3, 4, 5]),
            (Order::Module, Side::Device, [0, 1, 2, 3, 4, 5]),
            (Order::Largest, Side::Host, [0, 2, 4, 1, 3, 5]),
            (Order::Largest, Side::Device, [1, 3, 5, 0, 2, 4]),
            (Order::Spread, Side::Host, [0, 3, 4, 1, 2, 5]),
            (Order::Spread, Side::Device, [5, 2, 1, 4, 3, 0]),
        ] {
            assert_eq!(order.visit(side, &refs), expected, "{order:?} {side:?}");
        }
    }

    #[test]
    fn tables_are_offloaded_before_all_and_stay_after_all() {
        let mut params = params(&[
            ("layers.0.a", 1),
            ("layers.1.a", 1),
            ("layers.2.a", 1),
            ("tokens.w", 5),
        ]);
        params[3].by_rows = true;
        let refs: Vec<_> = params.iter().collect();
        assert_eq!(Order::Spread.visit(Side::Host, &refs), [3, 0, 1, 2]);
        assert_eq!(Order::Spread.visit(Side::Device, &refs), [2, 1, 0, 3]);
        assert_eq!(Order::Module.visit(Side::Host, &refs), [0, 1, 2, 3]);
    }

    proptest! {
        #[test]
        fn van_der_corput_is_a_permutation_with_even_prefixes(n in 1usize..200) {
            let order = van_der_corput(n);
            let mut sorted = order.clone();
            sorted.sort_unstable();
            prop_assert_eq!(sorted, (0..n).collect::<Vec<_>>());

            for taken in 1..=n {
                let mut prefix = order[..taken].to_vec();
                prefix.sort_unstable();
                let around = prefix[0] + n;
                prefix.push(around);
                let widest = prefix.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap();
                prop_assert!(widest <= 2 * n / taken + 1, "{} of {}: gap {}", taken, n, widest);
            }
        }
    }
}
