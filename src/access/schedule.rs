//! The order in which parameters are used, learned from watching.

use std::{collections::HashMap, hash::Hash};

/// What follows on what. A use is known by the two before it on the same stream where that was seen
/// before, else by the one before it, so that a weight that several layers share does not confuse it.
#[derive(Debug)]
pub struct Schedule<T> {
    followers: HashMap<(Option<T>, T), Follower<T>>,
    /// By stream: the last two uses.
    last: HashMap<u64, (Option<T>, T)>,
}

#[derive(Debug)]
struct Follower<T> {
    next: T,
    /// How often it was right lately, less how often it was wrong.
    confidence: u8,
}

/// From here on a follower is believed.
const BELIEVED: u8 = 2;
const MOST: u8 = 3;

impl<T> Default for Schedule<T> {
    fn default() -> Self {
        Self {
            followers: HashMap::new(),
            last: HashMap::new(),
        }
    }
}

impl<T: Copy + Eq + Hash> Schedule<T> {
    /// Notes a use. Several uses in a row count as one.
    pub fn used(&mut self, stream: u64, now: T) {
        let Some(&(before, last)) = self.last.get(&stream) else {
            self.last.insert(stream, (None, now));
            return;
        };
        if last == now {
            return;
        }
        self.learn((None, last), now);
        if before.is_some() {
            self.learn((before, last), now);
        }
        self.last.insert(stream, (Some(last), now));
    }

    fn learn(&mut self, context: (Option<T>, T), next: T) {
        let follower = self.followers.entry(context).or_insert(Follower {
            next,
            confidence: 0,
        });
        if follower.next == next {
            follower.confidence = (follower.confidence + 1).min(MOST);
        } else if follower.confidence > 1 {
            follower.confidence -= 1;
        } else {
            *follower = Follower {
                next,
                confidence: 1,
            };
        }
    }

    /// What is used next on the stream, as far as that is believed, at most `most` uses ahead.
    pub fn upcoming(&self, stream: u64, most: usize) -> Vec<T> {
        let mut uses = Vec::new();
        let Some(&(mut before, mut last)) = self.last.get(&stream) else {
            return uses;
        };
        while uses.len() < most {
            let believed = |context| {
                let follower = self.followers.get(&context)?;
                (follower.confidence >= BELIEVED).then_some(follower.next)
            };
            let by_two = before.and_then(|b| believed((Some(b), last)));
            let Some(next) = by_two.or_else(|| believed((None, last))) else {
                break;
            };
            uses.push(next);
            (before, last) = (Some(last), next);
        }
        uses
    }

    /// Forgets all that is not to be kept.
    pub fn retain(&mut self, keep: impl Fn(&T) -> bool) {
        let both =
            |(before, last): &(Option<T>, T)| before.as_ref().is_none_or(&keep) && keep(last);
        self.followers
            .retain(|context, follower| both(context) && keep(&follower.next));
        self.last.retain(|_, context| both(context));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn walk(schedule: &mut Schedule<u32>, uses: &[u32]) {
        for &at in uses {
            schedule.used(0, at);
        }
    }

    #[test]
    fn an_order_that_repeats_is_learned_and_runs_on_into_the_next_step() {
        let mut schedule = Schedule::default();
        walk(&mut schedule, &[1, 2, 3]);
        assert!(schedule.upcoming(0, 4).is_empty());
        walk(&mut schedule, &[1, 2, 3]);
        walk(&mut schedule, &[1, 2, 3]);
        assert_eq!(schedule.upcoming(0, 4), [1, 2, 3, 1]);
        assert!(
            schedule.upcoming(7, 4).is_empty(),
            "another stream has done nothing"
        );
    }

    #[test]
    fn a_weight_that_is_used_twice_a_step_is_followed_by_the_right_one() {
        let mut schedule = Schedule::default();
        for _ in 0..4 {
            walk(&mut schedule, &[1, 9, 2, 9, 3]);
        }
        assert_eq!(schedule.upcoming(0, 5), [1, 9, 2, 9, 3]);
    }

    #[test]
    fn what_has_no_pattern_is_not_foretold() {
        let mut schedule = Schedule::default();
        // Each is followed by each in turn.
        for round in 0..40u32 {
            walk(&mut schedule, &[0, 1 + round % 3]);
        }
        assert!(schedule.upcoming(0, 1).len() <= 1);
        let mut right = 0;
        for round in 0..30u32 {
            schedule.used(0, 100);
            let expert = 1 + (round * 7 + round / 3) % 5;
            right += u32::from(schedule.upcoming(0, 1) == [expert]);
            schedule.used(0, expert);
        }
        assert!(right < 15);
    }

    #[test]
    fn a_change_is_followed_after_a_few_steps() {
        let mut schedule = Schedule::default();
        for _ in 0..5 {
            walk(&mut schedule, &[1, 2, 3]);
        }
        for _ in 0..5 {
            walk(&mut schedule, &[1, 5, 3]);
        }
        assert_eq!(schedule.upcoming(0, 3), [1, 5, 3]);
    }

    #[test]
    fn what_is_forgotten_is_not_foretold() {
        let mut schedule = Schedule::default();
        for _ in 0..5 {
            walk(&mut schedule, &[1, 2, 3]);
        }
        schedule.retain(|at| *at != 2);
        // The stream's last uses were of what is gone: it begins anew.
        assert!(schedule.upcoming(0, 3).is_empty());
        schedule.used(0, 3);
        assert_eq!(schedule.upcoming(0, 3), [1]);
        assert!(
            schedule
                .followers
                .keys()
                .all(|(b, l)| *b != Some(2) && *l != 2)
        );
    }
}
