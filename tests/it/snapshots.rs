//! Snapshots on disk, whatever happens: stopped between any two operations, power lost in any legal way, damaged at any byte.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use admix::nodes::Node;
use admix::policy::TrainerState;
use admix::run::snapshot::files::{Disk, Files};
use admix::run::snapshot::{
    EvaluatorState, PoolBlock, Publications, RankPart, RankState, RngState, RunState, SnapshotFolder, folder, newest,
};
use admix::shm::Ledger;
use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

fn state(updates: u64) -> RunState {
    RunState {
        format: RunState::FORMAT,
        updates,
        samples: 100 * updates,
        blocks: updates,
        elapsed_s: 0.5,
        rollbacks: 0,
        rolled_back: 0,
        trainer: TrainerState { actor: vec![updates as f32; 20], ..TrainerState::default() },
        rng: RngState::of(&ChaCha8Rng::seed_from_u64(updates)),
        publications: Publications::default(),
        evaluator: EvaluatorState::default(),
        ledger: Ledger::default(),
        ledger_before: Ledger::default(),
        explorers: vec![],
    }
}

fn pool(updates: u64) -> Vec<PoolBlock> {
    (0..updates % 4).map(|i| PoolBlock { index: i, samples: 10, bytes: vec![updates as u8; 30] }).collect()
}

/// The part of a further rank.
fn rank_part(updates: u64) -> RankPart {
    let state = RankState {
        format: RankState::FORMAT,
        updates,
        samples: 40 * updates,
        blocks: 2,
        rng: RngState::of(&ChaCha8Rng::seed_from_u64(updates + 1)),
        explorers: vec![],
    };
    let pool = (0..2).map(|i| PoolBlock { index: i, samples: 7, bytes: vec![!updates as u8; 20] }).collect();
    RankPart { state, pool }
}

fn bytes_of(blocks: &[PoolBlock]) -> Vec<u8> {
    blocks.iter().flat_map(|block| [&block.head()[..], &block.bytes].concat()).collect()
}

/// Commits the snapshot of so many updates under the same number.
fn commit<F: Files>(folder: &SnapshotFolder<'_, F>, updates: u64, best: Option<&Path>) -> anyhow::Result<u64> {
    let part = rank_part(updates);
    let [pool, other] = [&pool(updates), &part.pool].map(|blocks| bytes_of(blocks));
    let rank = part.state.encode().unwrap();
    let ranks = [(&rank[..], vec![&other[..]])];
    let bytes = folder.commit(updates, updates, &state(updates).encode().unwrap(), &[&pool], &ranks, best)?;
    folder.prune(updates, 2)?;
    Ok(bytes)
}

/// What is found must be exactly what was committed under its number; that number, 0 for none.
fn found(root: &Path) -> u64 {
    let Some(snapshot) = newest(root).unwrap() else { return 0 };
    assert_eq!(snapshot.state, state(snapshot.number));
    assert_eq!(snapshot.pool, pool(snapshot.number));
    assert_eq!(snapshot.ranks, [rank_part(snapshot.number)]);
    if let Some(best) = snapshot.best() {
        assert_eq!(std::fs::read(best).unwrap(), b"the best policy");
    }
    snapshot.number
}

/// An operation that took place. Paths are relative to the folder above `checkpoints`.
#[derive(Debug, Clone)]
enum Op {
    CreateFolder(PathBuf),
    Write(PathBuf, Vec<u8>),
    SyncFile(PathBuf),
    SyncFolder(PathBuf),
    Rename(PathBuf, PathBuf),
    RemoveFolder(PathBuf),
}

/// Carries operations out, writes them down, and fails from one of them on, as if the process had died.
struct Recorder {
    top: PathBuf,
    ops: RefCell<Vec<Op>>,
    left: Cell<Option<usize>>,
    /// The planted bugs.
    forget_files: bool,
    forget_folders: bool,
}

impl Recorder {
    fn new(top: &Path, left: Option<usize>) -> Self {
        let ops = RefCell::new(vec![]);
        Self { top: top.to_owned(), ops, left: Cell::new(left), forget_files: false, forget_folders: false }
    }

    fn did(&self, op: impl FnOnce(&dyn Fn(&Path) -> PathBuf) -> Op) -> io::Result<()> {
        if let Some(left) = self.left.get() {
            if left == 0 {
                return Err(io::Error::other("dead"));
            }
            self.left.set(Some(left - 1));
        }
        let short = |path: &Path| path.strip_prefix(&self.top).unwrap().to_owned();
        self.ops.borrow_mut().push(op(&short));
        Ok(())
    }
}

impl Files for &Recorder {
    fn create_folder(&self, path: &Path) -> io::Result<()> {
        self.did(|s| Op::CreateFolder(s(path)))?;
        Disk.create_folder(path)
    }

    fn write(&self, path: &Path, pieces: &[&[u8]]) -> io::Result<()> {
        self.did(|s| Op::Write(s(path), pieces.concat()))?;
        Disk.write(path, pieces)
    }

    fn sync_file(&self, path: &Path) -> io::Result<()> {
        if self.forget_files { Ok(()) } else { self.did(|s| Op::SyncFile(s(path))) }
    }

    fn sync_folder(&self, path: &Path) -> io::Result<()> {
        if self.forget_folders { Ok(()) } else { self.did(|s| Op::SyncFolder(s(path))) }
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.did(|s| Op::Rename(s(from), s(to)))?;
        Disk.rename(from, to)
    }

    fn remove_folder(&self, path: &Path) -> io::Result<()> {
        self.did(|s| Op::RemoveFolder(s(path)))?;
        Disk.remove_folder(path)
    }
}

struct World {
    folder: tempfile::TempDir,
}

impl World {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("checkpoints")).unwrap();
        std::fs::write(folder.path().join("best"), b"the best policy").unwrap();
        Self { folder }
    }

    fn root(&self) -> PathBuf {
        self.folder.path().join("checkpoints")
    }

    fn best(&self) -> PathBuf {
        self.folder.path().join("best")
    }
}

const COMMITS: u64 = 4;

/// Commits until it fails; the number of the last snapshot whose commit came back.
fn commit_all(world: &World, recorder: &Recorder) -> u64 {
    let root = world.root();
    let folder = SnapshotFolder::new(&root, recorder);
    (1..=COMMITS).take_while(|&n| commit(&folder, n, Some(&world.best())).is_ok()).last().unwrap_or(0)
}

#[test]
fn a_checkpointer_that_dies_between_any_two_operations_leaves_the_last_snapshot_or_the_next() {
    for step in 0.. {
        let world = World::new();
        let recorder = Recorder::new(world.folder.path(), Some(step));
        let last = commit_all(&world, &recorder);
        let left = found(&world.root());
        assert!(left == last || left == last + 1, "step {step}: {left} after {last}");
        // Its successor goes on, over whatever is left.
        let root = world.root();
        commit(&SnapshotFolder::new(&root, Disk), left + 1, Some(&world.best())).unwrap();
        assert_eq!(found(&root), left + 1);
        let names = std::fs::read_dir(&root).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
        assert!(names.into_iter().all(|name| !name.starts_with('.')), "step {step}: half a snapshot stays");
        if last == COMMITS {
            assert!(step > 40, "every operation was a step");
            break;
        }
    }
}

/// A file system after power was lost. Contents are durable once their file is synced, names once their folder is. What is
/// not durable may be there or not: each change of a name by itself, contents whole, half or not at all.
struct Storage {
    /// Of each file's or folder's number: its content.
    contents: BTreeMap<usize, Content>,
}

#[derive(Debug, Clone)]
enum Content {
    File { durable: Vec<u8>, written: Vec<u8> },
    Folder { durable: Names, pending: Vec<Change> },
}

type Names = BTreeMap<String, usize>;

#[derive(Debug, Clone)]
enum Change {
    Add(String, usize),
    Remove(String),
    Rename(String, String, usize),
}

impl Change {
    fn apply(&self, names: &mut Names) {
        match self {
            Self::Add(name, file) => {
                names.insert(name.clone(), *file);
            }
            Self::Remove(name) => {
                names.remove(name);
            }
            Self::Rename(from, to, file) => {
                names.remove(from);
                names.insert(to.clone(), *file);
            }
        }
    }
}

const TOP: usize = 0;

impl Storage {
    /// With an empty, durable `checkpoints` folder and a durable `best`.
    fn new() -> Self {
        let names = Names::from([("checkpoints".into(), 1), ("best".into(), 2)]);
        let folder = |durable| Content::Folder { durable, pending: vec![] };
        let best = b"the best policy".to_vec();
        let best = Content::File { durable: best.clone(), written: best };
        Self { contents: BTreeMap::from([(TOP, folder(names)), (1, folder(Names::new())), (2, best)]) }
    }

    /// Names in a folder as its processes see them.
    fn names(&self, folder: usize) -> Names {
        let Content::Folder { durable, pending } = &self.contents[&folder] else { panic!("no folder") };
        let mut names = durable.clone();
        pending.iter().for_each(|change| change.apply(&mut names));
        names
    }

    fn find(&self, path: &Path) -> usize {
        path.components().fold(TOP, |at, part| self.names(at)[part.as_os_str().to_str().unwrap()])
    }

    fn change(&mut self, path: &Path, change: impl FnOnce(String) -> Change) {
        let folder = self.find(path.parent().unwrap());
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        let Some(Content::Folder { pending, .. }) = self.contents.get_mut(&folder) else { panic!("no folder") };
        pending.push(change(name));
    }

    fn apply(&mut self, op: &Op) {
        let new = self.contents.len();
        match op {
            Op::CreateFolder(path) => {
                self.contents.insert(new, Content::Folder { durable: Names::new(), pending: vec![] });
                self.change(path, |name| Change::Add(name, new));
            }
            Op::Write(path, bytes) => {
                self.contents.insert(new, Content::File { durable: vec![], written: bytes.clone() });
                self.change(path, |name| Change::Add(name, new));
            }
            Op::SyncFile(path) => {
                let file = self.find(path);
                if let Some(Content::File { durable, written }) = self.contents.get_mut(&file) {
                    durable.clone_from(written);
                }
            }
            Op::SyncFolder(path) => {
                let folder = self.find(path);
                let now = self.names(folder);
                self.contents.insert(folder, Content::Folder { durable: now, pending: vec![] });
            }
            Op::Rename(from, to) => {
                let file = self.find(from);
                let to = to.file_name().unwrap().to_str().unwrap().to_owned();
                self.change(from, |name| Change::Rename(name, to, file));
            }
            Op::RemoveFolder(path) => self.change(path, Change::Remove),
        }
    }

    /// Writes one of the states that may be found after a loss of power.
    fn after_loss(&self, to: &Path, choose: &mut dyn FnMut(usize) -> usize) {
        self.write_folder(TOP, to, choose);
    }

    fn write_folder(&self, folder: usize, to: &Path, choose: &mut dyn FnMut(usize) -> usize) {
        let Content::Folder { durable, pending } = &self.contents[&folder] else { panic!("no folder") };
        let mut names = durable.clone();
        for change in pending {
            if choose(2) == 1 {
                change.apply(&mut names);
            }
        }
        for (name, file) in names {
            let path = to.join(name);
            match &self.contents[&file] {
                Content::Folder { .. } => {
                    std::fs::create_dir(&path).unwrap();
                    self.write_folder(file, &path, choose);
                }
                Content::File { durable, written } if durable == written => std::fs::write(&path, durable).unwrap(),
                Content::File { durable, written } => {
                    let bytes = match choose(3) {
                        0 => durable.clone(),
                        1 => written[..written.len() / 2].to_vec(),
                        _ => written.clone(),
                    };
                    std::fs::write(&path, bytes).unwrap();
                }
            }
        }
    }
}

/// Loses power after each operation in `draws` random ways and in the two extreme ones; what goes wrong first.
fn lose_power(recorder: &Recorder, draws: usize) -> Result<usize, String> {
    let ops = recorder.ops.borrow();
    let mut states = 0;
    let mut rng = ChaCha8Rng::seed_from_u64(8);
    for cut in 0..=ops.len() {
        let mut storage = Storage::new();
        // A commit has come back once the folder of snapshots was synced.
        let mut committed = 0;
        let mut renamed = 0;
        for op in &ops[..cut] {
            storage.apply(op);
            match op {
                Op::Rename(_, to) => renamed = to.file_name().unwrap().to_str().unwrap().parse().unwrap(),
                Op::SyncFolder(path) if path.as_os_str() == "checkpoints" => committed = renamed,
                _ => {}
            }
        }
        if recorder.forget_folders && cut == ops.len() {
            committed = renamed;
        }
        for draw in 0..draws + 2 {
            let scratch = tempfile::tempdir().unwrap();
            storage.after_loss(scratch.path(), &mut |options| match draw {
                0 => 0,
                1 => options - 1,
                _ => rng.random_range(0..options),
            });
            states += 1;
            let left = newest(&scratch.path().join("checkpoints")).unwrap();
            let number = left.as_ref().map_or(0, |s| s.number);
            if number < committed {
                return Err(format!("after operation {cut}: {number} is left of {committed}"));
            }
            if left.is_some_and(|s| {
                s.state != state(s.number) || s.pool != pool(s.number) || s.ranks != [rank_part(s.number)]
            }) {
                return Err(format!("after operation {cut}: snapshot {number} is not what was committed"));
            }
        }
    }
    Ok(states)
}

#[test]
fn no_loss_of_power_loses_a_committed_snapshot() {
    let world = World::new();
    let recorder = Recorder::new(world.folder.path(), None);
    assert_eq!(commit_all(&world, &recorder), COMMITS);
    let states = lose_power(&recorder, 40).unwrap();
    assert!(states > 1500, "{states}");
}

#[test]
fn a_forgotten_sync_is_found_by_the_loss_of_power() {
    for (files, folders) in [(true, false), (false, true)] {
        let world = World::new();
        let mut recorder = Recorder::new(world.folder.path(), None);
        recorder.forget_files = files;
        recorder.forget_folders = folders;
        assert_eq!(commit_all(&world, &recorder), COMMITS);
        lose_power(&recorder, 40).expect_err("the planted bug");
    }
}

/// They were one file under several names: damage to one was damage to all.
#[test]
fn the_best_policy_and_its_copies_in_snapshots_are_files_of_their_own() {
    let world = World::new();
    let root = world.root();
    let folder = SnapshotFolder::new(&root, Disk);
    commit(&folder, 6, Some(&world.best())).unwrap();
    commit(&folder, 7, Some(&world.best())).unwrap();
    let copies = ["00000006", "00000007"].map(|name| root.join(name).join("best.safetensors"));
    let inode = |path: &Path| std::os::unix::fs::MetadataExt::ino(&std::fs::metadata(path).unwrap());
    let inodes: std::collections::BTreeSet<u64> =
        copies.iter().chain([&world.best()]).map(|path| inode(path)).collect();
    assert_eq!(inodes.len(), 3);
    std::fs::write(world.best(), b"damaged").unwrap();
    std::fs::write(&copies[1], b"damaged").unwrap();
    assert_eq!(found(&root), 6);
}

#[test]
fn damage_at_any_byte_and_any_truncation_is_noticed() {
    let world = World::new();
    let root = world.root();
    let folder = SnapshotFolder::new(&root, Disk);
    commit(&folder, 6, Some(&world.best())).unwrap();
    commit(&folder, 7, Some(&world.best())).unwrap();
    let path = root.join("00000007");
    for name in ["manifest.json", "state.bin", "pool.bin", "rank-1.bin", "pool-1.bin", "best.safetensors"] {
        let file = path.join(name);
        let whole = std::fs::read(&file).unwrap();
        let replace = |bytes: &[u8]| std::fs::write(&file, bytes).unwrap();
        for at in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[at] ^= 1 << (at % 8);
            replace(&damaged);
            assert_eq!(found(&root), 6, "{name}: byte {at}");
            replace(&whole[..at]);
            assert_eq!(found(&root), 6, "{name}: truncated at {at}");
        }
        replace(&whole);
        assert_eq!(found(&root), 7);
        std::fs::remove_file(&file).unwrap();
        assert_eq!(found(&root), 6, "{name}: missing");
        std::fs::write(&file, &whole).unwrap();
        assert_eq!(folder::verify(&path).unwrap().updates, 7);
    }
}

#[test]
fn a_snapshot_is_dealt_to_another_number_of_ranks_without_losing_a_block_or_a_sample() {
    let world = World::new();
    let root = world.root();
    let folder = SnapshotFolder::new(&root, Disk);
    commit(&folder, 7, None).unwrap();
    let read = || newest(&root).unwrap().unwrap();
    let one = Node::default();
    assert_eq!(read().dealt_to(one.world(2)), read(), "as many ranks");
    let contents = |pools: &[&[PoolBlock]]| {
        let mut all: Vec<Vec<u8>> =
            pools.iter().flat_map(|pool| pool.iter().map(|block| block.bytes.clone())).collect();
        all.sort();
        all
    };
    let before = read();
    let expected = contents(&[&before.pool, &before.ranks[0].pool]);
    for ranks in [1, 3, 4, 8] {
        let dealt = read().dealt_to(one.world(ranks));
        assert_eq!(dealt.ranks.len() + 1, ranks);
        let parts: Vec<_> = (0..ranks).map(|rank| dealt.part_of(rank).unwrap()).collect();
        assert_eq!(contents(&parts.iter().map(|part| part.2).collect::<Vec<_>>()), expected);
        assert_eq!(parts.iter().map(|part| part.1).sum::<u64>(), before.state.samples);
        for (rank, (rng, _, pool)) in parts.iter().enumerate() {
            assert!(pool.iter().zip(0..).all(|(block, index)| block.index == index), "numbered from 0");
            assert_eq!(dealt.blocks_of(rank), pool.len() as u64);
            assert!(parts[..rank].iter().all(|(other, ..)| other != rng), "two ranks draw alike");
        }
        assert!(dealt.part_of(ranks).is_none());
        // On another node the same blocks, and streams that no rank of the first one has.
        let there = read().dealt_to(Node { index: 1, of: 2 }.world(ranks));
        for (rank, (.., expected)) in parts.iter().enumerate() {
            let (rng, _, pool) = there.part_of(rank).unwrap();
            assert_eq!((rng.rank(), pool), (ranks + rank, *expected));
        }
    }
}
