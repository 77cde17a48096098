//! Nothing is forgotten: every method of Burn's backend traits, those with default bodies too, is
//! forwarded. Read from the source of the `burn-backend` that cargo resolved.

mod burn_source;

use std::{collections::BTreeSet, path::Path};

use burn_source::{methods, parse};

use proc_macro2::{TokenStream, TokenTree};
use syn::{ImplItem, Item};

/// Burn's trait, the file it is in, and ours.
const TRAITS: [(&str, &str, &str); 9] = [
    ("Backend", "base.rs", "mod.rs"),
    ("FloatTensorOps", "ops/tensor.rs", "ops/float.rs"),
    ("IntTensorOps", "ops/int_tensor.rs", "ops/int.rs"),
    ("BoolTensorOps", "ops/bool_tensor.rs", "ops/bool.rs"),
    ("QTensorOps", "ops/qtensor.rs", "ops/quantized.rs"),
    ("ActivationOps", "ops/activation.rs", "ops/activation.rs"),
    ("ModuleOps", "ops/modules/base.rs", "ops/module.rs"),
    ("TransactionOps", "ops/transaction.rs", "ops/transaction.rs"),
    (
        "DistributedBackend",
        "distributed/ops.rs",
        "ops/distributed.rs",
    ),
];

/// Of `DistributedBackend`, left to their defaults, which talk to Burn's communication server of the backend they are called on:
/// it has to be that of `Offloaded` itself, whose tensors it is given.
const OURS_BY_DEFAULT: [&str; 7] = [
    "start_communication_server",
    "close_communication_server",
    "register_sync_parameters",
    "submit_sync_collective",
    "submit_gradient_sync",
    "comm_device",
    "float_from_ref",
];

/// The names after `fn`, in the tokens of a macro call.
fn functions(tokens: TokenStream, names: &mut BTreeSet<String>) {
    let mut after_fn = false;
    for token in tokens {
        match token {
            TokenTree::Ident(ident) if after_fn => {
                names.insert(ident.to_string());
                after_fn = false;
            }
            TokenTree::Ident(ident) => after_fn = ident == "fn",
            _ => after_fn = false,
        }
    }
}

fn implemented(file: &syn::File, name: &str) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for item in &file.items {
        let Item::Impl(item) = item else { continue };
        let Some((_, path, _)) = &item.trait_ else {
            continue;
        };
        if path.segments.last().is_none_or(|s| s.ident != name) {
            continue;
        }
        for item in &item.items {
            match item {
                ImplItem::Fn(method) => {
                    names.insert(method.sig.ident.to_string());
                }
                ImplItem::Macro(call) => functions(call.mac.tokens.clone(), &mut names),
                _ => {}
            }
        }
    }
    names
}

#[test]
fn every_method_of_every_backend_trait_is_forwarded() {
    let ours = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/backend");

    let mut missing = Vec::new();
    let mut total = 0;
    for (name, theirs, here) in TRAITS {
        let declared = methods(name, Path::new(theirs));
        let implemented = implemented(&parse(&ours.join(here)), name);
        assert!(!declared.is_empty(), "{name} has methods");
        total += declared.len();
        missing.extend(
            declared
                .difference(&implemented)
                .filter(|method| {
                    name != "DistributedBackend" || !OURS_BY_DEFAULT.contains(&method.as_str())
                })
                .map(|m| format!("{name}::{m}")),
        );
    }
    assert!(total > 400, "only {total} methods were found");
    assert!(missing.is_empty(), "left to their defaults: {missing:#?}");
}
