//! Shared memory of every kind: segments with hostile headers and bodies, opened, read, written and recovered.

use std::cell::RefCell;
use std::path::{Path, PathBuf};

use admix::shm::{Control, Overflow, ParamCell, RingShape, RunNames, SampleRing, ShmError};

use super::Target;
use super::Verdict::{Accepted, Refused};

/// A name in `/dev/shm` whose file goes with this.
struct Place {
    name: String,
    /// Its lock tells a start in another pid namespace, as a test beside this makes, that the file is not a dead run's.
    _main: Control,
}

impl Place {
    fn new(target: &str) -> Self {
        let names = RunNames::for_this_process("hostile").unwrap();
        Self { name: names.part(target), _main: Control::create(&names.part("control")).unwrap() }
    }

    fn path(&self) -> PathBuf {
        Path::new("/dev/shm").join(&self.name)
    }

    /// A new file under the name: maps of the last one keep theirs.
    fn hold(&self, bytes: &[u8]) {
        let _ = std::fs::remove_file(self.path());
        std::fs::write(self.path(), bytes).unwrap();
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(self.path());
    }
}

/// A run's bells, for who needs one.
fn bells() -> Control {
    thread_local!(static NEXT: std::cell::Cell<u32> = const { std::cell::Cell::new(0) });
    let n = NEXT.replace(NEXT.get() + 1);
    let thread = format!("{:?}", std::thread::current().id()).replace(['(', ')'], "_");
    Control::create(&RunNames::for_this_process("hostile").unwrap().part(&format!("bells{n}{thread}"))).unwrap()
}

#[test]
fn control_blocks() {
    let made = Place::new("controlseed");
    let control = Control::create(&made.name).unwrap();
    control.processes[3].sign_in(admix::shm::ProcessKind::Actor);
    control.learner.lag.record(17);
    control.evaluator.best_benefit.set(1.5);
    let seed = std::fs::read(made.path()).unwrap();
    drop(control);
    let place = Place::new("controlfuzz");
    let last = RefCell::new(None);
    Target {
        name: "control-block",
        seeds: vec![seed],
        most: (1 << 16, 0),
        one_in: 1,
        forge: |bytes| bytes.resize(bytes.len().next_multiple_of(4096), 0),
        read: &mut |bytes| {
            place.hold(bytes);
            let observed = Control::observe(&place.name);
            let opened = Control::open(&place.name);
            assert_eq!(observed.is_ok(), opened.is_ok());
            *last.borrow_mut() = opened.ok();
            if observed.is_ok() { Accepted } else { Refused }
        },
        used: &mut || {
            let control: Control = last.take().unwrap();
            for slot in &control.processes {
                let _ = (slot.kind(), slot.pid(), slot.silent_ms(), slot.incarnation());
            }
            let lag = control.learner.lag.read();
            assert!(lag.bins.len() <= 22);
            let _ = (control.evaluator.progress(), control.evaluator.best_share.get());
            control.data.wait(control.data.value(), std::time::Duration::ZERO);
            control.request_stop(3);
            assert!(control.stop_level() >= 3);
            control.processes[0].sign_in(admix::shm::ProcessKind::Learner);
        },
    }
    .run();
}

#[test]
fn parameter_cells() {
    const WORDS: usize = 500;
    let bells = bells();
    let made = Place::new("cellseed");
    let cell = ParamCell::create(&made.name, WORDS).unwrap();
    for version in [3, 4] {
        cell.publish(version, &[version as u32; WORDS], &bells.params).unwrap();
    }
    let seed = std::fs::read(made.path()).unwrap();
    drop(cell);
    let place = Place::new("cellfuzz");
    let last = RefCell::new(None);
    Target {
        name: "param-cell",
        seeds: vec![seed],
        most: (1 << 16, 8),
        one_in: 1,
        forge: |bytes| bytes.resize(bytes.len().next_multiple_of(4096), 0),
        read: &mut |bytes| {
            place.hold(bytes);
            let Ok(cell) = ParamCell::open(&place.name) else { return Refused };
            let mut words = Vec::new();
            let (version, read) = (cell.version(), cell.read(&mut words));
            assert!(words.len() <= cell.capacity() && words.len() * 4 <= bytes.len());
            if let Some(read) = read {
                assert_eq!(read, version, "nobody publishes meanwhile");
            }
            *last.borrow_mut() = Some(cell);
            Accepted
        },
        used: &mut || {
            let cell: ParamCell = last.take().unwrap();
            assert_eq!(ParamCell::observe(&place.name).unwrap().version(), cell.version());
            let words = vec![7; cell.capacity().min(WORDS)];
            if cell.publish(u64::MAX, &words, &bells.params).is_ok() {
                cell.read(&mut Vec::new());
            }
        },
    }
    .run();
}

#[test]
fn sample_rings() {
    let bells = bells();
    let made = Place::new("ringseed");
    let shape = RingShape { actor: 2, regions: 4, capacity: 600 };
    let ring = SampleRing::create(&made.name, shape).unwrap();
    let (mut writer, mut reader) = (ring.writer().unwrap(), ring.reader().unwrap());
    for i in 0..3 {
        let mut region = writer.claim(10 + i, Overflow::Wait).unwrap();
        region.payload().fill(i as u8);
        region.commit(500, 9, &bells.data);
    }
    reader.take().unwrap().unwrap().release();
    let seed = std::fs::read(made.path()).unwrap();
    drop((writer, reader));
    let free = std::fs::read(made.path()).unwrap();
    drop(ring);
    let place = Place::new("ringfuzz");
    let last = RefCell::new(None);
    Target {
        name: "sample-ring",
        seeds: vec![seed, free],
        most: (1 << 16, 1),
        // Figures that do not add up are looked at again after a while.
        one_in: 5,
        forge: |bytes| bytes.resize(bytes.len().next_multiple_of(4096), 0),
        read: &mut |bytes| {
            place.hold(bytes);
            let Ok(ring) = SampleRing::open(&place.name) else { return Refused };
            let view = SampleRing::observe(&place.name).unwrap().view();
            assert!(view.regions.len() <= 64 && view.capacity <= bytes.len());
            *last.borrow_mut() = Some(ring);
            Accepted
        },
        used: &mut || {
            let ring: SampleRing = last.take().unwrap();
            let _ = ring.ledger().balance().map_err(|e| e.to_string());
            ring.recover_writer(&bells.data);
            ring.recover_reader();
            let mut reader = ring.reader().unwrap();
            // Each take frees a region or finds it damaged, and frees it too.
            for _ in 0..64 {
                match reader.take() {
                    Ok(Some(block)) => {
                        assert!(block.payload().len() <= ring.capacity());
                        block.release();
                    }
                    Ok(None) => break,
                    Err(ShmError::Torn { .. }) => {}
                    Err(e) => panic!("{e}"),
                }
            }
            assert!(reader.take().unwrap().is_none(), "a ring gives no more blocks than it has regions");
            let mut writer = ring.writer().unwrap();
            let mut region = writer.claim(5, Overflow::Overwrite).expect("every region is free");
            region.payload().fill(1);
            region.commit(ring.capacity(), 1, &bells.data);
            let block = reader.take().unwrap().expect("the block just written");
            assert_eq!((block.info().samples, block.payload().len()), (5, ring.capacity()));
            block.release();
            writer.discard(3);
        },
    }
    .run();
}
