//! Selectors: parts of parameter names.

use std::collections::HashSet;

use super::error::PolicyError;

/// Whether `selector` matches the parameter `name`: whether `.{name}.` contains `.{selector}.`.
///
/// So a selector is one or more whole segments of the dotted name, in a row and anywhere in it:
/// `experts.w2_weight` matches `mlp.experts.w2_weight` and not `mlp.experts.w2_weight_scale`.
/// There are no wildcards, and case counts.
pub fn selector_matches(selector: &str, name: &str) -> bool {
    segment_starts(name).any(|start| {
        name[start..]
            .strip_prefix(selector)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    })
}

fn segment_starts(name: &str) -> impl Iterator<Item = usize> {
    std::iter::once(0).chain(name.match_indices('.').map(|(dot, _)| dot + 1))
}

/// The first of `selectors` that matches `name`.
pub(super) fn first_match<'a>(selectors: &'a [String], name: &str) -> Option<&'a str> {
    selectors
        .iter()
        .map(String::as_str)
        .find(|selector| selector_matches(selector, name))
}

/// Refuses selectors that can match no sensible name.
pub(super) fn validate(field: &'static str, selectors: &[String]) -> Result<(), PolicyError> {
    for selector in selectors {
        let problem = if selector.is_empty() {
            "is empty"
        } else if selector.trim() != selector {
            "starts or ends with white space"
        } else if selector.starts_with('.') {
            "starts with a dot"
        } else if selector.ends_with('.') {
            "ends with a dot"
        } else if selector.contains("..") {
            "has an empty segment"
        } else {
            continue;
        };
        return Err(PolicyError::BadSelector {
            field,
            selector: selector.clone(),
            problem,
        });
    }
    Ok(())
}

/// Refuses selectors that match none of `names`.
pub(super) fn require_matches(
    field: &'static str,
    selectors: &[String],
    names: &[&str],
) -> Result<(), PolicyError> {
    for selector in selectors {
        if names.is_empty() {
            return Err(PolicyError::NoParameters {
                field,
                selector: selector.clone(),
            });
        }
        if !names.iter().any(|name| selector_matches(selector, name)) {
            return Err(PolicyError::NoMatch {
                field,
                selector: selector.clone(),
                near: near(selector, names),
            });
        }
    }
    Ok(())
}

const NEAR_AT_MOST: usize = 5;
const NEAR_SIMILARITY: f64 = 0.5;
/// Whoever thinks a selector matches inside a segment finds the segments it is inside of.
const CONTAINED_SIMILARITY: f64 = 0.75;
const CONTAINED_FROM_LEN: usize = 3;

/// Up to [`NEAR_AT_MOST`] selectors that do match something and read like `selector`, best first:
/// whole names, and runs of about as many segments as it has.
fn near(selector: &str, names: &[&str]) -> Vec<String> {
    let wanted = selector.to_lowercase();
    let segments = wanted.split('.').count();
    let mut seen = HashSet::new();
    let mut scored = Vec::new();
    let mut consider = |candidate| {
        if !seen.insert(candidate) || validate("", &[str::to_owned(candidate)]).is_err() {
            return;
        }
        let lower = candidate.to_lowercase();
        let mut score = strsim::normalized_damerau_levenshtein(&wanted, &lower);
        if wanted.len() >= CONTAINED_FROM_LEN && lower.contains(&wanted) {
            score = score.max(CONTAINED_SIMILARITY);
        }
        if score >= NEAR_SIMILARITY {
            scored.push((score, candidate));
        }
    };
    for &name in names {
        let mut starts: Vec<usize> = segment_starts(name).collect();
        starts.push(name.len() + 1);
        for run in segments.saturating_sub(1).max(1)..=segments + 1 {
            for ends in starts.windows(run + 1) {
                consider(&name[ends[0]..ends[run] - 1]);
            }
        }
        consider(name);
    }
    scored.sort_by(|(a, _), (b, _)| b.total_cmp(a));
    scored
        .into_iter()
        .take(NEAR_AT_MOST)
        .map(|(_, candidate)| candidate.to_owned())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn selector_rule() {
        for (selector, name, expected) in [
            ("experts.w2_weight", "mlp.experts.w2_weight", true),
            ("experts.w2_weight", "mlp.experts.w2_weight_scale", false),
            ("experts.w2_weight", "mlp.shared_experts.w2_weight", false),
            ("mlp", "layers.0.mlp.up.weight", true),
            ("layers.0", "model.layers.0.up", true),
            ("layers.0", "model.layers.01.up", false),
            ("layers.0", "layers.0", true),
            ("0.mlp", "layers.0.mlp", true),
            ("layers.mlp", "layers.0.mlp", false),
            ("Norm", "norm", false),
            ("a.a", "xa.a.a", true),
            ("a.b", "a", false),
            ("layers.*", "layers.0", false),
            ("größe", "modell.größe.w", true),
            ("grö", "modell.größe.w", false),
            ("e\u{301}", "é", false),
            ("a b", "x.a b.y", true),
            ("a", "", false),
            ("a", ".", false),
            ("a", "a.", true),
            ("a", ".a", true),
            ("a", "..a..", true),
            ("a.b", "a..b", false),
            ("", "", true),
            ("", "a", false),
            ("", "a..b", true),
            ("", "a.", true),
            (".", "a..b", false),
            (".", "..", true),
        ] {
            let (name_, selector_) = (format!(".{name}."), format!(".{selector}."));
            assert_eq!(
                name_.contains(&selector_),
                expected,
                "table: {selector:?} in {name:?}"
            );
            assert_eq!(
                selector_matches(selector, name),
                expected,
                "{selector:?} in {name:?}"
            );
        }
    }

    #[test]
    fn near_names() {
        let names = [
            "embed.weight",
            "layers.0.input_layernorm.gamma",
            "layers.0.mlp.experts.w2_weight",
            "layers.0.mlp.experts.w2_weight_scale",
            "layers.1.input_layernorm.gamma",
            "größe",
        ];
        assert_eq!(near("expert", &names)[0], "experts");
        assert_eq!(near("experts.w2_wieght", &names)[0], "experts.w2_weight");
        assert_eq!(near("Embed", &names)[0], "embed");
        assert_eq!(near("norm", &names)[0], "input_layernorm");
        assert_eq!(near("layers.*.mlp", &names)[0], "layers.0.mlp");
        assert_eq!(near("gröse", &names)[0], "größe");
        assert_eq!(near("zzzzzzzzzzzz", &names), [""; 0]);
        assert!(near("weight", &names).len() <= NEAR_AT_MOST);
        assert_eq!(near("ab", &["", ".", ".ba", "..", "b."]), ["ba", "b"]);
    }

    #[test]
    fn bad_selectors() {
        for bad in ["", " ", " a", "a\n", ".", ".a", "a.", "a..b"] {
            assert!(validate("keep", &[bad.to_owned()]).is_err(), "{bad:?}");
        }
        for good in ["a", "a.b", "0", "größe", "a b"] {
            assert!(validate("keep", &[good.to_owned()]).is_ok(), "{good:?}");
        }
    }

    proptest! {
        #[test]
        fn is_the_rule_to_the_letter(selector in "[ab.é]{0,4}", name in "[ab.é]{0,9}") {
            prop_assert_eq!(
                selector_matches(&selector, &name),
                format!(".{name}.").contains(&format!(".{selector}."))
            );
        }

        #[test]
        fn near_names_do_match(selector in "[ab]{1,3}(\\.[ab]{1,3}){0,2}", name in "[ab.é]{0,12}") {
            for near in near(&selector, &[&name]) {
                prop_assert!(selector_matches(&near, &name));
            }
        }
    }
}
