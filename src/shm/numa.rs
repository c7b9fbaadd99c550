//! Where shared memory lies, and who works beside it, on machines with several NUMA nodes.
//!
//! Main reserves all pages of a segment when it creates it, so without a word from us all of them lie beside the core that main happened to
//! run on. Memory that a group of processes has to itself is to lie beside the cores of that group, and the group is to stay there. On a
//! machine with one node, or where a process may use the cores of one node alone, nothing of this happens. The system's refusal costs speed
//! only, so it is not an error.

use std::io;
use std::mem::size_of;
use std::path::Path;

/// Where Linux lists its nodes.
const NODES: &str = "/sys/devices/system/node";
/// Most nodes that are told apart.
const MOST_NODES: usize = 1024;
const BITS: usize = u64::BITS as usize;

/// Nodes of this machine that belong together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NumaNodes {
    numbers: Vec<usize>,
    /// Their cores, as far as this process may use them.
    cores: Vec<usize>,
}

impl NumaNodes {
    /// Returns the nodes for `part` of `parts` groups of processes: neighbouring ones, or one node for several groups. `None` where there is
    /// nothing to choose.
    pub fn of_part(part: usize, parts: usize) -> Option<Self> {
        let nodes = if parts > 1 { read(Path::new(NODES), &own_cores().ok()?).ok()? } else { vec![] };
        split(nodes, part, parts)
    }

    /// Keeps this thread, and those that it starts, on the cores of these nodes.
    pub fn stay(&self) {
        // SAFETY: all zeroes are an empty set.
        let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
        for core in self.cores.iter().filter(|core| **core < 8 * size_of::<libc::cpu_set_t>()) {
            // SAFETY: the core is within the set.
            unsafe { libc::CPU_SET(*core, &mut set) };
        }
        // SAFETY: it reads a set of the size that is given. 0 is this thread.
        if unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set) } != 0 {
            tracing::debug!("this process stays on all cores: {}", io::Error::last_os_error());
        }
    }

    /// Runs `allocate`; the pages that this thread reserves meanwhile lie on these nodes, where these have room.
    pub fn prefer<T>(&self, allocate: impl FnOnce() -> T) -> T {
        let mode = if self.numbers.len() == 1 { libc::MPOL_PREFERRED } else { libc::MPOL_INTERLEAVE };
        set_policy(mode, &self.numbers);
        let made = allocate();
        set_policy(libc::MPOL_DEFAULT, &[]);
        made
    }
}

impl std::fmt::Display for NumaNodes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "NUMA nodes {:?}, cores {:?}", self.numbers, self.cores)
    }
}

fn set_policy(mode: libc::c_int, nodes: &[usize]) {
    let mut mask = [0u64; MOST_NODES / BITS];
    nodes.iter().for_each(|node| mask[node / BITS] |= 1 << (node % BITS));
    let (address, bits) = if nodes.is_empty() { (std::ptr::null(), 0) } else { (mask.as_ptr(), MOST_NODES) };
    // SAFETY: it reads as many bits of the mask as are given. This thread's policy alone changes.
    if unsafe { libc::syscall(libc::SYS_set_mempolicy, mode, address, bits) } != 0 {
        tracing::debug!("shared memory lies where it comes to lie: {}", io::Error::last_os_error());
    }
}

/// The cores that this thread may use.
fn own_cores() -> io::Result<Vec<usize>> {
    // SAFETY: all zeroes are an empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: it writes a set of the size that is given.
    if unsafe { libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &raw mut set) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the core is within the set.
    Ok((0..8 * size_of::<libc::cpu_set_t>()).filter(|core| unsafe { libc::CPU_ISSET(*core, &set) }).collect())
}

/// Reads the nodes that have cores among `own`.
fn read(root: &Path, own: &[usize]) -> io::Result<Vec<NumaNodes>> {
    let mut nodes = Vec::new();
    for number in list(&std::fs::read_to_string(root.join("online"))?).into_iter().filter(|node| *node < MOST_NODES) {
        let mut cores = list(&std::fs::read_to_string(root.join(format!("node{number}/cpulist")))?);
        cores.retain(|core| own.contains(core));
        if !cores.is_empty() {
            nodes.push(NumaNodes { numbers: vec![number], cores });
        }
    }
    Ok(nodes)
}

/// The numbers of a list as the system writes it: `0-3,8`.
fn list(text: &str) -> Vec<usize> {
    let parts = text.trim().split(',').filter_map(|part| {
        let (from, to) = part.split_once('-').unwrap_or((part, part));
        Some(from.parse::<usize>().ok()?..=to.parse::<usize>().ok()?)
    });
    parts.flatten().collect()
}

fn split(nodes: Vec<NumaNodes>, part: usize, parts: usize) -> Option<NumaNodes> {
    if nodes.len() < 2 {
        return None;
    }
    let first = part * nodes.len() / parts;
    let end = ((part + 1) * nodes.len() / parts).max(first + 1);
    let nodes = &nodes[first..end];
    Some(NumaNodes {
        numbers: nodes.iter().flat_map(|node| node.numbers.clone()).collect(),
        cores: nodes.iter().flat_map(|node| node.cores.clone()).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine with these cores on its nodes.
    fn machine(cores: &[&str]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        std::fs::write(root.path().join("online"), format!("0-{}\n", cores.len() - 1)).unwrap();
        for (node, cores) in cores.iter().enumerate() {
            let folder = root.path().join(format!("node{node}"));
            std::fs::create_dir(&folder).unwrap();
            std::fs::write(folder.join("cpulist"), format!("{cores}\n")).unwrap();
        }
        root
    }

    fn parts(cores: &[&str], own: &[usize], parts: usize) -> Vec<Option<(Vec<usize>, Vec<usize>)>> {
        let root = machine(cores);
        let of = |part| split(read(root.path(), own).unwrap(), part, parts).map(|of| (of.numbers, of.cores));
        (0..parts).map(of).collect()
    }

    #[test]
    fn every_group_has_nodes_and_every_node_a_group() {
        let all: Vec<usize> = (0..16).collect();
        let two = ["0-3,8-11", "4-7,12-15"];
        assert_eq!(
            parts(&two, &all, 2),
            [Some((vec![0], vec![0, 1, 2, 3, 8, 9, 10, 11])), Some((vec![1], vec![4, 5, 6, 7, 12, 13, 14, 15]))]
        );
        let numbers = |cores: &[&str], own: &[usize], count| -> Vec<Vec<usize>> {
            parts(cores, own, count).into_iter().map(|of| of.map_or(vec![], |of| of.0)).collect()
        };
        assert_eq!(numbers(&two, &all, 3), [vec![0], vec![0], vec![1]]);
        assert_eq!(numbers(&["0", "1", "2", "3"], &all, 2), [[0, 1], [2, 3]]);
        // A node without cores, one without cores that may be used, and a single one.
        assert_eq!(numbers(&["0-1", "", "2-3"], &all, 2), [[0], [2]]);
        let nothing = [Vec::<usize>::new(), vec![]];
        assert_eq!(numbers(&two, &[0, 1], 2), nothing);
        assert_eq!(numbers(&["0-15"], &all, 2), nothing);
    }

    #[test]
    fn a_thread_stays_where_it_is_told_to_and_its_pages_are_reserved_all_the_same() {
        let own = own_cores().unwrap();
        let last = *own.last().unwrap();
        let cores = std::thread::spawn(move || {
            let nodes = NumaNodes { numbers: vec![0], cores: vec![last] };
            nodes.stay();
            // Nodes that are not there, too.
            let pages =
                NumaNodes { numbers: vec![0, 1000], cores: vec![] }.prefer(|| nodes.prefer(|| vec![1u8; 1 << 20]));
            (own_cores().unwrap(), pages.len())
        });
        assert_eq!(cores.join().unwrap(), (vec![last], 1 << 20));
        assert_eq!(own_cores().unwrap(), own, "other threads are free");
    }
}
