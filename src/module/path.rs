/// The path of the parameter a mapper or visitor is at, under a prefix.
#[derive(Debug)]
pub struct Path {
    segments: Vec<String>,
}

impl Path {
    /// A path under `prefix`: empty, or segments joined by dots.
    pub fn new(prefix: &str) -> Self {
        let prefix = prefix.trim_matches('.');
        Self {
            segments: prefix
                .split('.')
                .filter(|s| !s.is_empty())
                .map(Into::into)
                .collect(),
        }
    }

    /// Goes into a field of a module.
    pub fn enter(&mut self, name: &str) {
        self.segments.push(name.to_string());
    }

    /// Comes out of it.
    pub fn exit(&mut self) {
        self.segments.pop();
    }

    /// The segments joined by dots.
    pub fn name(&self) -> String {
        self.segments.join(".")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_may_have_dots_at_its_ends() {
        for (prefix, name) in [("", "w"), ("vision", "vision.w"), ("a.b.", "a.b.w")] {
            let mut path = Path::new(prefix);
            path.enter("w");
            assert_eq!(path.name(), name);
            path.exit();
            path.enter("v");
            assert_eq!(path.name(), name.replace('w', "v"));
        }
    }
}
