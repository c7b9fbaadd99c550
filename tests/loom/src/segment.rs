//! Stands in for `src/shm/segment.rs`: a segment on the heap.
//!
//! loom has to make each of its atomics, and asks that everybody who uses one comes after its making. So typed objects
//! are made when they are first asked for, and a model lets its main thread do that before it starts any other.
//! Payload bytes are real memory, with a cell of loom's for each page: a slice for reading counts as a read of its page,
//! one for writing as a write, and two that no ordering separates are a race.

use std::any::{Any, TypeId};
use std::cell::UnsafeCell;
use std::sync::Mutex;

use super::error::ShmError;
use super::plant;
use super::pod::Shareable;
use super::sync::AtomicU32;

const PAGE: usize = 4096;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kind(pub u32);

pub struct Segment {
    name: String,
    /// Where they lie and what they are: boxed slices of `Shareable`s, never taken out again.
    objects: Mutex<Vec<(usize, Box<dyn Any + Send + Sync>)>>,
    pages: Vec<Page>,
}

struct Page {
    watch: loom::cell::UnsafeCell<()>,
    bytes: UnsafeCell<Aligned>,
}

/// Floats may lie in it.
#[repr(align(64))]
struct Aligned([u8; PAGE]);

// SAFETY: objects are behind a mutex and `Sync` themselves; the pages' bytes are handed out by unsafe functions only.
unsafe impl Sync for Segment {}
// SAFETY: as above.
unsafe impl Send for Segment {}

impl Segment {
    /// # Errors
    /// Never; it has the signature of what it stands in for.
    pub fn create(name: &str, _: Kind, _: u64, body_len: usize) -> Result<Self, ShmError> {
        let page = || Page { watch: loom::cell::UnsafeCell::new(()), bytes: UnsafeCell::new(Aligned([0; PAGE])) };
        let pages = (0..body_len.div_ceil(PAGE)).map(|_| page()).collect();
        Ok(Self { name: name.into(), objects: Mutex::default(), pages })
    }

    /// # Errors
    /// Always: models hand the segment itself around.
    pub fn open(name: &str, _: Kind, _: u64, _: usize) -> Result<Self, ShmError> {
        Err(ShmError::Missing { name: name.into() })
    }

    /// # Errors
    /// As [`Segment::open`].
    pub fn observe(name: &str, _: Kind, _: u64, _: usize) -> Result<Self, ShmError> {
        Err(ShmError::Missing { name: name.into() })
    }

    pub fn footprint(body_len: usize) -> u64 {
        body_len as u64
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn body_len(&self) -> usize {
        self.pages.len() * PAGE
    }

    pub fn at<T: Shareable>(&self, offset: usize) -> &T {
        &self.array::<T>(offset, 1)[0]
    }

    /// # Panics
    /// When the objects there are of another type or fewer.
    pub fn array<T: Shareable>(&self, offset: usize, count: usize) -> &[T] {
        let mut objects = self.objects.lock().unwrap();
        let shared = plant::one_buffer() && TypeId::of::<T>() == TypeId::of::<AtomicU32>();
        let found = objects.iter().position(|(at, of)| *at == offset || shared && of.is::<Box<[T]>>());
        let index = found.unwrap_or_else(|| {
            let made: Box<[T]> = (0..count).map(|_| T::default()).collect();
            objects.push((offset, Box::new(made)));
            objects.len() - 1
        });
        let all: *const [T] = &raw const **objects[index].1.downcast_ref::<Box<[T]>>().expect("one type at an offset");
        // SAFETY: the boxed slice stays where it is until the segment is dropped.
        let all = unsafe { &*all };
        &all[..count]
    }

    /// # Safety
    /// As in `src/shm/segment.rs`; here loom checks it.
    pub unsafe fn slice(&self, offset: usize, len: usize) -> &[u8] {
        let (page, start) = self.page(offset);
        if !std::thread::panicking() {
            page.watch.with(|_| ());
        }
        // SAFETY: the caller's promise.
        unsafe { &(&*page.bytes.get()).0[start..start + len] }
    }

    /// # Safety
    /// As in `src/shm/segment.rs`; here loom checks it.
    #[expect(clippy::mut_from_ref, reason = "as what it stands in for")]
    pub unsafe fn slice_mut(&self, offset: usize, len: usize) -> &mut [u8] {
        let (page, start) = self.page(offset);
        if !std::thread::panicking() {
            page.watch.with_mut(|_| ());
        }
        // SAFETY: the caller's promise.
        unsafe { &mut (&mut *page.bytes.get()).0[start..start + len] }
    }

    /// A range of payload lies within one page: models are small.
    fn page(&self, offset: usize) -> (&Page, usize) {
        let index = if plant::one_buffer() { self.pages.len() - 1 } else { offset / PAGE };
        (&self.pages[index], offset % PAGE)
    }
}

/// Layouts of this build are compared with nobody's.
pub fn layout_hash(_: &[usize]) -> u64 {
    0
}
