//! Which bytes of the staging memory are whose.

use std::collections::BTreeMap;

/// Kernels load up to 16 bytes at once, and the copy engine likes more.
const ALIGNMENT: u64 = 512;

/// A fixed number of bytes, shared out to tenants. Pure arithmetic: it holds no memory.
#[derive(Debug)]
pub struct Room<T> {
    capacity: u64,
    /// By offset: the length and the tenant.
    taken: BTreeMap<u64, (u64, T)>,
}

/// Where a new tenant goes, and who has to leave for it.
#[derive(Debug, PartialEq, Eq)]
pub struct Vacancy<T> {
    /// In bytes from the start.
    pub offset: u64,
    /// The tenants that are there now.
    pub evicted: Vec<T>,
}

/// A piece of the room: free, or one tenant's.
struct Piece<T> {
    offset: u64,
    len: u64,
    tenant: Option<T>,
}

impl<T: Copy + Eq> Room<T> {
    /// Room for `capacity` bytes.
    pub fn new(capacity: u64) -> Self {
        Self {
            capacity,
            taken: BTreeMap::new(),
        }
    }

    /// The bytes in all.
    pub fn capacity(&self) -> u64 {
        self.capacity
    }

    /// The bytes that `bytes` take, with what is lost to alignment.
    pub fn rounded(bytes: u64) -> u64 {
        bytes.max(1).next_multiple_of(ALIGNMENT)
    }

    /// Finds `bytes` bytes in a row. `cost` says what it costs to evict a tenant; `None` that it
    /// cannot be. Of the places there are, the one is taken whose dearest tenant is the cheapest.
    pub fn find(&self, bytes: u64, cost: impl Fn(&T) -> Option<u64>) -> Option<Vacancy<T>> {
        let bytes = Self::rounded(bytes);
        let pieces = self.pieces();
        let mut best: Option<(Option<u64>, usize, Vacancy<T>)> = None;
        for first in 0..pieces.len() {
            let (mut len, mut dearest, mut evicted) = (0, None, Vec::new());
            for piece in &pieces[first..] {
                if let Some(tenant) = piece.tenant {
                    let Some(cost) = cost(&tenant) else { break };
                    dearest = dearest.max(Some(cost));
                    evicted.push(tenant);
                }
                len += piece.len;
                if len < bytes {
                    continue;
                }
                let better = best
                    .as_ref()
                    .is_none_or(|(b, n, _)| (dearest, evicted.len()) < (*b, *n));
                if better {
                    let offset = pieces[first].offset;
                    best = Some((dearest, evicted.len(), Vacancy { offset, evicted }));
                }
                break;
            }
        }
        best.map(|(_, _, vacancy)| vacancy)
    }

    /// Gives a vacancy that [`find`](Self::find) found for `bytes` bytes to a tenant.
    pub fn take(&mut self, vacancy: &Vacancy<T>, bytes: u64, tenant: T) {
        let gone = |t: &T| vacancy.evicted.contains(t);
        self.taken.retain(|_, (_, t)| !gone(t));
        let taken = (Self::rounded(bytes), tenant);
        self.taken.insert(vacancy.offset, taken);
    }

    /// A tenant leaves.
    #[cfg(any(feature = "cuda", test))]
    pub fn leave(&mut self, tenant: &T) {
        self.taken.retain(|_, (_, t)| t != tenant);
    }

    fn pieces(&self) -> Vec<Piece<T>> {
        let mut pieces = Vec::with_capacity(2 * self.taken.len() + 1);
        let mut at = 0;
        let end = (self.capacity, 0, None);
        let taken = self.taken.iter().map(|(o, (l, t))| (*o, *l, Some(*t)));
        for (offset, len, tenant) in taken.chain([end]) {
            if offset > at {
                pieces.push(Piece {
                    offset: at,
                    len: offset - at,
                    tenant: None,
                });
            }
            if tenant.is_some() {
                pieces.push(Piece {
                    offset,
                    len,
                    tenant,
                });
            }
            at = offset + len;
        }
        pieces
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_cheapest_neighbours_leave() {
        let mut room = Room::new(4 * 512);
        for tenant in 0..4u64 {
            let vacancy = room.find(512, |_| None).unwrap();
            assert_eq!(vacancy.offset, tenant * 512);
            room.take(&vacancy, 512, tenant);
        }
        assert_eq!(room.find(1, |_| None), None);
        // Of all pairs of neighbours, 1 and 2 are the one whose dearest is the cheapest.
        let costs = [9, 1, 2, 3];
        let vacancy = room.find(1000, |t| Some(costs[*t as usize])).unwrap();
        assert_eq!(
            vacancy,
            Vacancy {
                offset: 512,
                evicted: vec![1, 2]
            }
        );
        assert_eq!(room.find(1000, |t| (t % 2 == 1).then_some(0)), None);
        assert_eq!(room.find(2049, |_| Some(0)), None, "larger than the room");
    }

    proptest! {
        #[test]
        fn tenants_never_overlap_nor_leave_the_room(
            capacity in 0u64..20_000,
            requests in prop::collection::vec((0u64..6000, 0..3), 0..60),
        ) {
            let mut room = Room::new(capacity);
            let mut stuck = Vec::new();
            for (at, (bytes, then)) in requests.into_iter().enumerate() {
                let found = room.find(bytes, |t| (!stuck.contains(t)).then_some(*t as u64));
                let Some(vacancy) = found else { continue };
                prop_assert!(vacancy.evicted.iter().all(|t| !stuck.contains(t)));
                room.take(&vacancy, bytes, at);
                match then {
                    0 => stuck.push(at),
                    1 => {
                        room.leave(&at);
                        prop_assert!(room.taken.values().all(|(_, t)| *t != at));
                    }
                    _ => {}
                }
                let mut end = 0;
                for (offset, (len, _)) in &room.taken {
                    prop_assert!(*offset >= end && offset % ALIGNMENT == 0);
                    end = offset + len;
                }
                prop_assert!(end <= room.capacity());
                prop_assert!(stuck.iter().all(|t| room.taken.values().any(|(_, u)| u == t)));
            }
        }
    }
}
