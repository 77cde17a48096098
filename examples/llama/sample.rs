//! The choice of the next token.

use rand::{RngExt, SeedableRng, rngs::StdRng};

/// How tokens are chosen.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sampling {
    /// 0 is the most likely token every time; the higher, the more even the odds.
    pub temperature: f32,
    /// Choose among this many of the most likely tokens.
    pub top_k: Option<usize>,
    /// Choose among the most likely tokens that together have this probability.
    pub top_p: Option<f32>,
    pub seed: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
#[error("the model's output is not a number: in this dtype it overflows, or a weight is damaged")]
pub struct NotANumber;

pub struct Sampler {
    sampling: Sampling,
    rng: StdRng,
}

impl Sampler {
    pub fn new(sampling: Sampling) -> Self {
        Self {
            sampling,
            rng: StdRng::seed_from_u64(sampling.seed),
        }
    }

    /// Chooses a token by the logits of all.
    pub fn choose(&mut self, logits: &[f32]) -> Result<u32, NotANumber> {
        if logits.is_empty() || logits.iter().any(|logit| logit.is_nan()) {
            return Err(NotANumber);
        }
        // From the most likely; of equals, the one of lower number.
        let mut ranking: Vec<(u32, f32)> = (0..).zip(logits.iter().copied()).collect();
        let best_first = |a: &(u32, f32), b: &(u32, f32)| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0));
        let Sampling {
            temperature,
            top_k,
            top_p,
            ..
        } = self.sampling;
        let kept = if temperature > 0.0 {
            top_k.unwrap_or(usize::MAX)
        } else {
            1
        };
        let kept = kept.clamp(1, ranking.len());
        if kept < ranking.len() {
            ranking.select_nth_unstable_by(kept - 1, best_first);
            ranking.truncate(kept);
        }
        ranking.sort_unstable_by(best_first);
        let (best, top) = ranking[0];
        if kept == 1 {
            return Ok(best);
        }

        let odds = ranking
            .iter()
            .map(|(_, logit)| ((logit - top) / temperature).exp());
        let mut odds: Vec<f32> = odds.collect();
        let mut total: f32 = odds.iter().sum();
        if let Some(top_p) = top_p {
            let mut sum = 0.0;
            let wanted = top_p * total;
            let enough = odds.iter().position(|odd| {
                sum += odd;
                sum >= wanted
            });
            if let Some(last) = enough {
                odds.truncate(last + 1);
                total = sum;
            }
        }
        let mut point = self.rng.random::<f32>() * total;
        let chosen = odds.iter().position(|odd| {
            point -= odd;
            point < 0.0
        });
        // Rounding may leave a little of the point after the last.
        Ok(ranking[chosen.unwrap_or(odds.len() - 1)].0)
    }
}
