//! Where a device keeps records: plain memory on the CPU, and what a GPU has to offer.

/// Records on their way to the host, one after another; whoever calls it waits for them.
pub type Taken = Box<dyn FnOnce() -> Vec<u32> + Send>;

/// The memory of one GPU, in places of one record each.
///
/// Everything happens in the order of the calls: what is taken is as it was before what is put afterwards.
pub trait Memory: Send {
    /// Copies records, one after another in `words`, to places, no two of which are the same.
    fn put(&mut self, places: &[u32], words: &[u32]);

    /// Begins to copy the records of places to the host.
    fn take(&mut self, places: &[u32]) -> Taken;
}

/// The place of an id that is not on the devices, and whose row is read at its first value.
pub const ABSENT: u32 = u32::MAX;

/// The memory of GPUs, an arena on each, on which the rows of batches are gathered and updated too. A batch under way is named by its
/// slot.
pub trait DeviceMemory: Send {
    /// Number of arenas.
    fn arenas(&self) -> usize;

    /// Places of each arena.
    fn capacity(&self) -> usize;

    /// The memory of arena `number`.
    fn arena(&mut self, number: usize) -> &mut dyn Memory;

    /// Gathers the rows of a batch's unique ids, each of which lies in an arena at a place of it. The rows of those at [`ABSENT`] are in
    /// `firsts`, one after another.
    fn gather(&mut self, slot: usize, places: &[(u32, u32)], firsts: &[f32]);

    /// Moves the rows of a batch along the gradients that were computed for its slot. Rows in `firsts` are not moved.
    fn update(&mut self, slot: usize, step: &DeviceStep);
}

/// A step of a batch's rows on a device.
#[derive(Debug, Clone, PartialEq)]
pub struct DeviceStep {
    /// Rate of the rows' optimiser.
    pub rate: f32,
    /// Passes over the exposures so far.
    pub passes: f32,
    /// The prior's precision for the two direct elements of each row and for the others, three numbers a row; empty without a prior.
    pub precisions: Vec<f32>,
}

/// Records of all devices.
pub(super) enum Records {
    Host(Vec<HostMemory>),
    Device(Box<dyn DeviceMemory>),
}

impl Records {
    /// Plain memory, whose records can be looked at.
    pub(super) fn plain(&self, device: u32) -> &HostMemory {
        let Self::Host(memories) = self else { panic!("the records are on a GPU") };
        &memories[device as usize]
    }

    pub(super) fn plain_mut(&mut self, device: u32) -> &mut HostMemory {
        let Self::Host(memories) = self else { panic!("the records are on a GPU") };
        &mut memories[device as usize]
    }

    /// The memory of GPUs.
    pub(super) fn on_device(&mut self) -> &mut dyn DeviceMemory {
        let Self::Device(memory) = self else { panic!("the records are in plain memory") };
        &mut **memory
    }
}

/// Plain memory.
pub struct HostMemory {
    words: Vec<u32>,
    /// Words of a record.
    width: usize,
}

impl HostMemory {
    pub fn new(capacity: usize, width: usize) -> Self {
        Self { words: vec![0; capacity * width], width }
    }

    pub fn record(&self, place: u32) -> &[u32] {
        &self.words[place as usize * self.width..][..self.width]
    }

    pub fn record_mut(&mut self, place: u32) -> &mut [u32] {
        &mut self.words[place as usize * self.width..][..self.width]
    }
}
