//! Burn's backend traits, read from the source of the `burn-backend` that cargo resolved.

use std::{collections::BTreeSet, fs, path::Path};

use syn::{Item, TraitItem};

pub fn parse(path: &Path) -> syn::File {
    let text = fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    syn::parse_file(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// The methods of the trait `name`, which is in `file` of `burn-backend`'s `src/backend`.
pub fn methods(name: &str, file: &Path) -> BTreeSet<String> {
    let metadata = cargo_metadata::MetadataCommand::new()
        .manifest_path(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"))
        .exec()
        .expect("cargo knows this crate");
    let package = metadata
        .packages
        .iter()
        .find(|p| p.name.as_str() == "burn-backend")
        .expect("burn-backend is a dependency");
    let folder = package.manifest_path.parent();
    let folder = folder.expect("a manifest is in a folder");
    let source = parse(&folder.as_std_path().join("src/backend").join(file));
    let found = source.items.iter().find_map(|item| match item {
        Item::Trait(item) if item.ident == name => Some(item),
        _ => None,
    });
    let methods = found.unwrap_or_else(|| panic!("Burn has no trait {name}"));
    let names = methods.items.iter().filter_map(|item| match item {
        TraitItem::Fn(method) => Some(method.sig.ident.to_string()),
        _ => None,
    });
    names.collect()
}
