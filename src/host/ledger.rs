use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use crate::policy::{Decision, Placement, Used};

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
    resident: u64,
    /// Host bytes charged: those of live parameters, and those on their way back to the system.
    charged: u64,
}

impl Books {
    fn used(&self) -> Used {
        Used {
            offloaded: self.charged,
            resident: self.resident,
        }
    }

    fn count(&mut self, record: &Record) {
        if record.decision.placement == Placement::Resident {
            self.resident += record.bytes;
        }
    }

    fn discount(&mut self, record: &Record) {
        if record.decision.placement == Placement::Resident {
            self.resident -= record.bytes;
        }
    }
}

/// The right to a number of host bytes. They count against the budget until it is dropped.
#[derive(Debug)]
pub struct Charge {
    ledger: Arc<Ledger>,
    bytes: u64,
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.ledger.lock().charged -= self.bytes;
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
            books.discount(&record);
        }
    }
}

/// The outcome of asking the ledger for a place.
#[derive(Debug)]
pub struct Admission {
    /// What the policy said, with the budget as it stood.
    pub decision: Decision,
    /// The host bytes, reserved, when that is to offload.
    pub charge: Option<Charge>,
}

impl Ledger {
    fn lock(&self) -> MutexGuard<'_, Books> {
        // Every update below is complete before anything that may panic, so the books are whole.
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens a line for a parameter that is resident.
    pub fn open(self: &Arc<Self>, record: Record) -> Entry {
        let mut books = self.lock();
        let id = books.next;
        books.next += 1;
        books.count(&record);
        books.records.insert(id, record);
        Entry {
            ledger: self.clone(),
            id,
        }
    }

    /// Asks `decide` for a place for `bytes` more bytes, and reserves them if it is the host.
    /// One step: no other allocation sees the books in between.
    pub fn admit(self: &Arc<Self>, bytes: u64, decide: impl FnOnce(Used) -> Decision) -> Admission {
        let mut books = self.lock();
        let decision = decide(books.used());
        let charge = (decision.placement == Placement::Offloaded).then(|| {
            books.charged += bytes;
            Charge {
                ledger: self.clone(),
                bytes,
            }
        });
        Admission { decision, charge }
    }

    /// What the device holds: host bytes charged, and parameter bytes resident.
    pub fn used(&self) -> Used {
        self.lock().used()
    }

    /// Host bytes of parameters that are gone but whose memory queued work may still read.
    pub fn retiring(&self) -> u64 {
        let books = self.lock();
        let live: u64 = books
            .records
            .values()
            .filter(|r| r.decision.placement == Placement::Offloaded)
            .map(|r| r.bytes)
            .sum();
        books.charged.saturating_sub(live)
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
        books.discount(&old);
        books.count(&new);
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
        assert!(first.charge.is_some());
        assert!(
            admit(3).charge.is_none(),
            "11 bytes are over the budget of 10"
        );
        assert_eq!(
            ledger.retiring(),
            8,
            "charged, but no live parameter has it"
        );
        drop(first);
        assert!(admit(10).charge.is_some());
    }

    #[test]
    fn concurrent_admissions_never_pass_the_budget() {
        let ledger = Arc::new(Ledger::default());
        let policy = OffloadPolicy::host_budget(bytesize::ByteSize::b(1000));
        let kept = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..100 {
                        let got = ledger.admit(7, |used| policy.decide(None, 7, used));
                        assert!(ledger.used().offloaded <= 1000);
                        kept.lock().unwrap().extend(got.charge);
                    }
                });
            }
        });
        assert_eq!(kept.lock().unwrap().len(), 1000 / 7);
    }
}
