//! Where a walk through a module's parameters is.

/// Each step's name, and the type it is a field of.
#[derive(Default)]
pub struct Walk(Vec<(String, String)>);

impl Walk {
    pub fn enter(&mut self, name: &str, container: &str) {
        self.0.push((name.to_owned(), container.to_owned()));
    }

    pub fn exit(&mut self) {
        self.0.pop();
    }

    /// The parameter's path: `model.layers.3.self_attn.q_proj.weight`.
    pub fn name(&self) -> String {
        let names: Vec<&str> = self.0.iter().map(|(name, _)| name.as_str()).collect();
        names.join(".")
    }

    /// Whether a parameter of this rank is the matrix of a linear layer.
    pub fn is_linear_weight(&self, rank: usize) -> bool {
        rank == 2
            && self
                .0
                .last()
                .is_some_and(|(_, container)| container == "Struct:Linear")
    }
}
