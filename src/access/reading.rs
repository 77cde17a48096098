//! How an operation reads an operand.

/// How an operation reads an operand.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reading {
    /// How often it reads what it reads.
    pub reuse: Reuse,
    /// The share of the parameter's bytes that it reads at all, from 0 to 1.
    pub share: f64,
}

/// How often an operation reads each byte of an operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reuse {
    /// A few rows of the whole: gathers, selections, embeddings.
    Rows,
    /// About once: element-wise operations and reductions.
    Once,
    /// Tile by tile, the same bytes again and again: products and convolutions.
    Often,
}
