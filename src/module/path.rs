/// Where a visitor or mapper is in a module: the path of the parameter, under a prefix, and the type of the
/// module that has it.
#[derive(Debug)]
pub struct Path {
    /// Each step's name, and the type it is a field of.
    steps: Vec<(String, String)>,
}

impl Path {
    /// A path under `prefix`: empty, or segments joined by dots.
    pub fn new(prefix: &str) -> Self {
        let segments = prefix.split('.').filter(|s| !s.is_empty());
        Self {
            steps: segments.map(|s| (s.to_string(), String::new())).collect(),
        }
    }

    /// Goes into a field of a module of type `container`.
    pub fn enter(&mut self, name: &str, container: &str) {
        self.steps.push((name.to_string(), container.to_string()));
    }

    /// Comes out of it.
    pub fn exit(&mut self) {
        self.steps.pop();
    }

    /// The segments joined by dots.
    pub fn name(&self) -> String {
        let names: Vec<&str> = self.steps.iter().map(|(name, _)| name.as_str()).collect();
        names.join(".")
    }

    /// The type of the module that the parameter is a field of, as `Struct:Linear`.
    pub fn container(&self) -> &str {
        self.steps.last().map_or("", |(_, container)| container)
    }

    /// Whether the parameter is a table of which operations read some rows at a time.
    pub fn is_read_by_rows(&self) -> bool {
        self.container() == "Struct:Embedding"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_may_have_dots_at_its_ends() {
        for (prefix, name) in [("", "w"), ("vision", "vision.w"), ("a.b.", "a.b.w")] {
            let mut path = Path::new(prefix);
            path.enter("w", "Struct:Linear");
            assert_eq!(path.name(), name);
            assert!(!path.is_read_by_rows());
            path.exit();
            path.enter("v", "Struct:Embedding");
            assert_eq!(path.name(), name.replace('w', "v"));
            assert!(path.is_read_by_rows());
        }
    }
}
