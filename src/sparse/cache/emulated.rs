//! GPUs for tests of the cache: copies go and come as with real ones, rows are gathered and updated on the host.

use std::sync::{Arc, Mutex};

use crate::sparse::cache::memory::{ABSENT, DeviceMemory, DeviceStep, Memory, Taken};
use crate::sparse::table::TableShape;

/// What lies on the devices.
#[derive(Default)]
pub struct Devices {
    /// Records of each device, one after another.
    records: Vec<Vec<u32>>,
    /// Of the batch that was gathered last.
    places: Vec<(u32, u32)>,
    pub rows: Vec<f32>,
    /// Gradients of its rows.
    pub gradients: Vec<f32>,
}

/// The memory of one device.
struct Arena {
    devices: Arc<Mutex<Devices>>,
    number: usize,
    width: usize,
}

/// The memory of all of them.
pub struct Emulated {
    devices: Arc<Mutex<Devices>>,
    shape: TableShape,
    capacity: usize,
    arenas: Vec<Arena>,
}

impl Emulated {
    pub fn new(shape: TableShape, capacity: usize, arenas: usize) -> Self {
        let records = vec![vec![0; capacity * shape.words()]; arenas];
        let devices = Arc::new(Mutex::new(Devices { records, ..Devices::default() }));
        let arena = |number| Arena { devices: devices.clone(), number, width: shape.words() };
        Self { arenas: (0..arenas).map(arena).collect(), devices, shape, capacity }
    }

    pub fn devices(&self) -> Arc<Mutex<Devices>> {
        self.devices.clone()
    }
}

impl Devices {
    fn record(&mut self, (device, place): (u32, u32), width: usize) -> &mut [u32] {
        &mut self.records[device as usize][place as usize * width..][..width]
    }
}

impl Memory for Arena {
    fn put(&mut self, places: &[u32], words: &[u32]) {
        let mut devices = self.devices.lock().unwrap();
        for (place, record) in places.iter().zip(words.chunks_exact(self.width)) {
            devices.record((self.number as u32, *place), self.width).copy_from_slice(record);
        }
    }

    fn take(&mut self, places: &[u32]) -> Taken {
        let mut devices = self.devices.lock().unwrap();
        let place = |place: &u32| devices.record((self.number as u32, *place), self.width).to_vec();
        let taken: Vec<u32> = places.iter().flat_map(place).collect();
        Box::new(|| taken)
    }
}

impl DeviceMemory for Emulated {
    fn arenas(&self) -> usize {
        self.arenas.len()
    }

    fn capacity(&self) -> usize {
        self.capacity
    }

    fn arena(&mut self, number: usize) -> &mut dyn Memory {
        &mut self.arenas[number]
    }

    fn gather(&mut self, _slot: usize, places: &[(u32, u32)], firsts: &[f32]) {
        let TableShape { dim, .. } = self.shape;
        let mut devices = self.devices.lock().unwrap();
        let mut firsts = firsts.chunks_exact(dim);
        devices.rows = vec![];
        for &at in places {
            let row = match at.1 {
                ABSENT => firsts.next().expect("a first value for each").to_vec(),
                _ => bytemuck::cast_slice(&devices.record(at, self.shape.words())[..dim]).to_vec(),
            };
            devices.rows.extend(row);
        }
        devices.places = places.to_vec();
    }

    fn update(&mut self, _slot: usize, step: &DeviceStep) {
        let devices = &mut *self.devices.lock().unwrap();
        let rows = std::mem::take(&mut devices.places).into_iter().zip(devices.gradients.chunks_exact(self.shape.dim));
        for ((device, place), gradient) in rows.filter(|((_, place), _)| *place != ABSENT) {
            let width = self.shape.words();
            let record = &mut devices.records[device as usize][place as usize * width..][..width];
            self.shape.update(record, gradient, step.rate);
        }
    }
}
