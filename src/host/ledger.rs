use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use crate::policy::{Decision, Placement, Reason, Used};

use super::MemoryKind;

/// One parameter on a device's books.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Record {
    /// The parameter's path in its module, once it was placed by name.
    pub name: Option<String>,
    /// The shape, in elements.
    pub shape: Vec<usize>,
    /// The element type.
    pub dtype: String,
    /// The size in bytes.
    pub bytes: u64,
    /// Where the bytes are, and why.
    pub decision: Decision,
    /// The kind of host memory, when offloaded.
    pub memory: Option<MemoryKind>,
    /// The parameter that this one is tied to, in a module's report: the bytes are that one's.
    pub shares: Option<String>,
    /// Why the system did not let the decision be carried out.
    pub refused: Option<String>,
    /// What the bytes are for.
    #[serde(default)]
    pub role: Role,
}

/// What a tensor on the books is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Role {
    /// A module's parameter.
    #[default]
    Parameter,
    /// What an optimizer keeps for a parameter from one step to the next, as moments.
    OptimizerState,
}

/// What parameters lost their place in host memory: an operation's result took their place, as an
/// optimizer's does that is not offloaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Displaced {
    /// How often.
    pub parameters: u64,
    /// Their bytes.
    pub bytes: u64,
}

impl Record {
    /// The side of the budget that the parameter's line counts on. Host bytes are charged by their memory,
    /// and what waits on the device for its name is on no side yet.
    fn counts(&self) -> u64 {
        match self.decision {
            Decision {
                placement: Placement::Resident,
                ref reason,
            } if *reason != Reason::Unnamed && self.role == Role::Parameter => self.bytes,
            _ => 0,
        }
    }

    /// Whether the parameter waits on the device until it is placed by name.
    pub fn is_waiting(&self) -> bool {
        self.decision.reason == Reason::Unnamed
    }
}

/// The account of one device: every parameter, where it is, and the host bytes taken.
#[derive(Debug, Default)]
pub struct Ledger {
    books: Mutex<Books>,
}

#[derive(Debug, Default)]
struct Books {
    next: u64,
    records: BTreeMap<u64, Record>,
    /// Bytes of parameters that were placed on the device, and those reserved for them.
    resident: u64,
    /// Host bytes charged: those of live parameters, and those on their way back to the system.
    charged: u64,
    /// Host bytes charged to optimizer state, which has a budget of its own.
    state: u64,
    displaced: Displaced,
}

/// The side of the books that bytes count on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Account {
    Resident,
    Offloaded,
    State,
}

impl From<Placement> for Account {
    fn from(placement: Placement) -> Self {
        match placement {
            Placement::Resident => Self::Resident,
            Placement::Offloaded => Self::Offloaded,
        }
    }
}

impl Books {
    fn used(&self) -> Used {
        Used {
            offloaded: self.charged,
            resident: self.resident,
        }
    }

    fn side(&mut self, side: Account) -> &mut u64 {
        match side {
            Account::Resident => &mut self.resident,
            Account::Offloaded => &mut self.charged,
            Account::State => &mut self.state,
        }
    }
}

/// The right to a number of bytes in host memory, or on the device. They count against the budget until
/// it is dropped: with the host memory, or once a resident parameter has its line in the books.
#[derive(Debug)]
pub struct Charge {
    ledger: Arc<Ledger>,
    bytes: u64,
    side: Account,
}

impl Drop for Charge {
    fn drop(&mut self) {
        *self.ledger.lock().side(self.side) -= self.bytes;
    }
}

/// A parameter's line in the books, for as long as the parameter lives.
#[derive(Debug)]
pub struct Entry {
    ledger: Arc<Ledger>,
    id: u64,
}

impl Drop for Entry {
    fn drop(&mut self) {
        let mut books = self.ledger.lock();
        if let Some(record) = books.records.remove(&self.id) {
            books.resident -= record.counts();
        }
    }
}

/// The outcome of asking the ledger for a place.
#[derive(Debug)]
pub struct Admission {
    /// What the policy said, with the budget as it stood.
    pub decision: Decision,
    /// The bytes, reserved where that is.
    pub charge: Charge,
}

impl Ledger {
    fn lock(&self) -> MutexGuard<'_, Books> {
        // Every update below is complete before anything that may panic, so the books are whole.
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens a parameter's line.
    pub fn open(self: &Arc<Self>, record: Record) -> Entry {
        let mut books = self.lock();
        let id = books.next;
        books.next += 1;
        books.resident += record.counts();
        books.records.insert(id, record);
        Entry {
            ledger: self.clone(),
            id,
        }
    }

    /// Asks `decide` for a place for `bytes` more bytes, and reserves them there.
    /// One step: no other allocation sees the books in between.
    pub fn admit(self: &Arc<Self>, bytes: u64, decide: impl FnOnce(Used) -> Decision) -> Admission {
        let mut books = self.lock();
        let decision = decide(books.used());
        let charge = Charge {
            ledger: self.clone(),
            bytes: if decision.reason == Reason::Unnamed {
                0
            } else {
                bytes
            },
            side: decision.placement.into(),
        };
        *books.side(charge.side) += charge.bytes;
        Admission { decision, charge }
    }

    /// Asks for host memory for `bytes` more bytes of optimizer state, of which there may be `budget` in
    /// all, and reserves them where there is room.
    pub fn admit_state(self: &Arc<Self>, bytes: u64, budget: u64) -> Admission {
        let mut books = self.lock();
        let left = budget.saturating_sub(books.state);
        let (decision, charged) = if bytes > left {
            (Decision::resident(Reason::OverStateBudget { left }), 0)
        } else {
            (Decision::offloaded(Reason::WithinStateBudget), bytes)
        };
        books.state += charged;
        let charge = Charge {
            ledger: self.clone(),
            bytes: charged,
            side: Account::State,
        };
        Admission { decision, charge }
    }

    /// Notes that a parameter lost its place in host memory. Tells whether it was the first.
    pub fn displace(&self, bytes: u64) -> bool {
        let displaced = &mut self.lock().displaced;
        displaced.parameters += 1;
        displaced.bytes += bytes;
        displaced.parameters == 1
    }

    /// What parameters lost their place in host memory so far.
    pub fn displaced(&self) -> Displaced {
        self.lock().displaced
    }

    /// What counts against budgets: host bytes charged, and bytes of parameters placed on the device.
    /// Those that wait there for their names are not placed yet.
    pub fn used(&self) -> Used {
        self.lock().used()
    }

    /// Host bytes of parameters, or of optimizer state, that are gone but whose memory queued work may
    /// still read.
    pub fn retiring(&self, role: Role) -> u64 {
        let books = self.lock();
        let live: u64 = books
            .records
            .values()
            .filter(|r| r.decision.placement == Placement::Offloaded && r.role == role)
            .map(|r| r.bytes)
            .sum();
        let charged = match role {
            Role::Parameter => books.charged,
            Role::OptimizerState => books.state,
        };
        charged.saturating_sub(live)
    }

    /// All lines, in the order in which the parameters came.
    pub fn records(&self) -> Vec<Record> {
        self.lock().records.values().cloned().collect()
    }
}

impl Entry {
    /// A copy of the line.
    pub fn record(&self) -> Record {
        self.ledger.lock().records[&self.id].clone()
    }

    /// Changes the line; the totals follow.
    pub fn update(&self, change: impl FnOnce(&mut Record)) {
        let mut books = self.ledger.lock();
        let old = books.records[&self.id].clone();
        let mut new = old.clone();
        change(&mut new);
        books.resident = books.resident - old.counts() + new.counts();
        books.records.insert(self.id, new);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::{OffloadPolicy, Reason};

    fn record(bytes: u64, placement: Placement) -> Record {
        Record {
            name: None,
            shape: vec![bytes as usize],
            dtype: "u8".into(),
            bytes,
            decision: Decision {
                placement,
                reason: Reason::Everything,
            },
            memory: None,
            shares: None,
            refused: None,
            role: Role::Parameter,
        }
    }

    #[test]
    fn totals_follow_opening_changing_and_dropping() {
        let ledger = Arc::new(Ledger::default());
        let a = ledger.open(record(10, Placement::Resident));
        let b = ledger.open(record(5, Placement::Resident));
        assert_eq!(ledger.used().resident, 15);
        a.update(|r| r.decision.placement = Placement::Offloaded);
        assert_eq!(ledger.used().resident, 5);
        b.update(|r| r.bytes = 6);
        assert_eq!(ledger.used().resident, 6);
        drop((a, b));
        assert_eq!(ledger.used(), Used::default());
        assert!(ledger.records().is_empty());
    }

    #[test]
    fn a_charge_counts_until_the_memory_is_given_back() {
        let ledger = Arc::new(Ledger::default());
        let policy = OffloadPolicy::host_budget(bytesize::ByteSize::b(10));
        let admit = |bytes| ledger.admit(bytes, |used| policy.decide(None, bytes, used));
        let first = admit(8);
        assert_eq!(first.decision.placement, Placement::Offloaded);
        assert_eq!(
            admit(3).decision.placement,
            Placement::Resident,
            "11 bytes are over the budget of 10"
        );
        assert_eq!(
            ledger.retiring(Role::Parameter),
            8,
            "charged, but no live parameter has it"
        );
        drop(first);
        assert_eq!(admit(10).decision.placement, Placement::Offloaded);
    }

    #[test]
    fn concurrent_admissions_never_pass_the_budget() {
        let cap = bytesize::ByteSize::b(1000);
        for (policy, capped) in [
            (OffloadPolicy::host_budget(cap), Placement::Offloaded),
            (OffloadPolicy::device_budget(cap), Placement::Resident),
        ] {
            let ledger = Arc::new(Ledger::default());
            let kept = Mutex::new(Vec::new());
            std::thread::scope(|scope| {
                for _ in 0..8 {
                    scope.spawn(|| {
                        for _ in 0..100 {
                            let got = ledger.admit(7, |used| policy.decide(None, 7, used));
                            let used = ledger.used();
                            let used = match capped {
                                Placement::Offloaded => used.offloaded,
                                Placement::Resident => used.resident,
                            };
                            assert!(used <= 1000);
                            if got.decision.placement == capped {
                                kept.lock().unwrap().push(got.charge);
                            }
                        }
                    });
                }
            });
            assert_eq!(kept.lock().unwrap().len(), 1000 / 7);
        }
    }

    #[test]
    fn optimizer_state_has_a_budget_of_its_own() {
        let ledger = Arc::new(Ledger::default());
        let first = ledger.admit_state(6, 10);
        assert_eq!(first.decision.placement, Placement::Offloaded);
        let second = ledger.admit_state(5, 10);
        assert_eq!(second.decision.reason, Reason::OverStateBudget { left: 4 });
        assert_eq!(ledger.used(), Used::default());
        assert_eq!(ledger.retiring(Role::OptimizerState), 6);
        let mut line = record(6, Placement::Offloaded);
        line.role = Role::OptimizerState;
        let entry = ledger.open(line);
        assert_eq!(ledger.retiring(Role::OptimizerState), 0);
        assert_eq!(ledger.retiring(Role::Parameter), 0);
        entry.update(|r| r.decision.placement = Placement::Resident);
        assert_eq!(ledger.used(), Used::default());
        drop(first);
        assert_eq!(ledger.retiring(Role::OptimizerState), 0);
    }

    #[test]
    fn what_waits_for_its_name_counts_once_it_is_placed() {
        let ledger = Arc::new(Ledger::default());
        let policy = OffloadPolicy::device_budget(bytesize::ByteSize::b(10)).with_keep(["norm"]);
        let waiting = ledger.admit(8, |used| policy.decide(None, 8, used));
        let mut line = record(8, Placement::Resident);
        line.decision = waiting.decision;
        let entry = ledger.open(line);
        assert_eq!(ledger.used(), Used::default());
        entry.update(|r| r.decision.reason = Reason::WithinDeviceBudget);
        assert_eq!(ledger.used().resident, 8);
    }
}
