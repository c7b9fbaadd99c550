//! Planted bugs: a model that cannot fail proves nothing.
//!
//! A bug is planted at a **site**, a line of `src/shm` that is found by its text, so that it stays where it belongs when
//! the file changes, and is missed with a clear message when the line is gone.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::panic::Location;

use loom::sync::atomic::Ordering;

/// A line with an atomic operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Site {
    file: &'static str,
    line: u32,
}

#[derive(Debug, Clone)]
pub enum Plant {
    /// The operations order less than they say: two of them where either would be enough.
    Weaken(Vec<Site>, Ordering),
    /// The store is made only after the operation at the second site, by the same thread.
    Late(Site, Site),
    /// The store or exchange is left out.
    Skip(Site),
    /// All regions of a ring, or slots of a cell, share one buffer.
    OneBuffer,
}

thread_local! {
    // loom runs all threads of a model on one thread of the operating system.
    static PLANTED: RefCell<Option<Plant>> = const { RefCell::new(None) };
    static EXECUTED: RefCell<BTreeSet<Site>> = const { RefCell::new(BTreeSet::new()) };
    static LATE: RefCell<Vec<Box<dyn FnOnce()>>> = const { RefCell::new(Vec::new()) };
}

macro_rules! sources {
    ($($file:literal),*) => {
        const SOURCES: &[(&str, &str)] = &[$(($file, include_str!(concat!("../../../src/shm/", $file)))),*];
    };
}

sources!(
    "cell.rs",
    "exchange.rs",
    "exchange/remote.rs",
    "exchange/seat.rs",
    "halves.rs",
    "turns.rs",
    "wait.rs",
    "ring/account.rs",
    "ring/ledger.rs",
    "ring/mod.rs",
    "ring/reader.rs",
    "ring/recover.rs",
    "ring/writer.rs"
);

impl Site {
    /// The line of `file` on which the text `code` ends, which stands there exactly once.
    ///
    /// # Panics
    /// When it does not.
    pub fn find(file: &str, code: &str) -> Self {
        let (file, text) = SOURCES.iter().find(|(name, _)| *name == file).expect("a file of src/shm");
        let found: Vec<usize> = text.match_indices(code).map(|(at, _)| at).collect();
        assert_eq!(found.len(), 1, "`{code}` stands {} times in src/shm/{file}, not once", found.len());
        let line = text[..found[0] + code.len()].lines().count() as u32;
        Self { file, line }
    }

    fn is(&self, at: &Location<'_>) -> bool {
        let here = at.line() == self.line && at.file().ends_with(self.file);
        if here {
            EXECUTED.with_borrow_mut(|executed| executed.insert(*self));
        }
        here
    }
}

impl Plant {
    fn sites(&self) -> Vec<Site> {
        match self {
            Self::Weaken(sites, _) => sites.clone(),
            Self::Late(store, after) => vec![*store, *after],
            Self::Skip(site) => vec![*site],
            Self::OneBuffer => Vec::new(),
        }
    }
}

/// Runs `body` with `bug` in the code.
///
/// # Panics
/// When part of the bug was never executed.
pub fn with<R>(bug: Plant, body: impl FnOnce() -> R) -> R {
    PLANTED.set(Some(bug.clone()));
    EXECUTED.take();
    let result = body();
    PLANTED.set(None);
    LATE.take();
    let executed = EXECUTED.take();
    for site in bug.sites() {
        assert!(executed.contains(&site), "the model never comes to {site:?} of {bug:?}");
    }
    result
}

pub(crate) fn order(at: &Location<'_>, order: Ordering) -> Ordering {
    PLANTED.with_borrow(|planted| match planted {
        Some(Plant::Weaken(sites, to)) if sites.iter().any(|site| site.is(at)) => *to,
        _ => order,
    })
}

pub(crate) fn skipped(at: &Location<'_>) -> bool {
    PLANTED.with_borrow(|planted| matches!(planted, Some(Plant::Skip(site)) if site.is(at)))
}

pub(crate) fn store(at: &Location<'_>, make: impl FnOnce() + 'static) {
    let (mut late, mut last) = (false, false);
    PLANTED.with_borrow(|planted| {
        if let Some(Plant::Late(store, after)) = planted {
            (late, last) = (store.is(at), after.is(at));
        }
    });
    if late {
        LATE.with_borrow_mut(|stores| stores.push(Box::new(make)));
    } else if !skipped(at) {
        make();
    }
    if last {
        LATE.take().into_iter().for_each(|store| store());
    }
}

pub(crate) fn one_buffer() -> bool {
    PLANTED.with_borrow(|planted| matches!(planted, Some(Plant::OneBuffer)))
}
