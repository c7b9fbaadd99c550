//! The thread that calls MPI.
//!
//! Nothing blocks inside MPI: a blocking call would take a whole core while it waits, and could not be left when the job has lost a
//! node. Requests are tested instead, at first without a pause, then several thousand times a second.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use mpi::Threading;
use mpi::datatype::PartitionMut;
use mpi::environment::Universe;
use mpi::request::{Request, scope};
use mpi::topology::SimpleCommunicator;
use mpi::traits::{Communicator as _, CommunicatorCollectives as _};

use crate::cancel;
use crate::shm::{Given, Remote};

use super::node::{JobError, MOST_BYTES, Node};

/// How often a waiting main process looks whether it was asked to end.
const LOOK: Duration = Duration::from_millis(100);
/// Tests of a request without a pause, and the pause between those that follow.
const EAGER_TESTS: u32 = 200;
const PAUSE: Duration = Duration::from_micros(50);
/// The first byte of a message says what it is. Nodes that are not at the same point are found by it.
const TOLD: u8 = b'T';
const CARRIED: u8 = b'C';

enum Ask {
    Tell(Vec<u8>),
    Carry(Remote),
    Leave,
}

enum Answer {
    Joined(Option<Node>),
    Told(Vec<Vec<u8>>),
    /// This node was carrying when the others told something.
    OutOfStep(usize),
    /// No message of ranks is carried any more.
    Stopped,
    Left,
    /// The thread calls nothing any more.
    GaveUp,
}

/// What main and the thread share beside their channels.
#[derive(Default)]
struct Flags {
    /// The thread ends its carrying.
    stop: AtomicBool,
    /// The process ends without the other nodes: the thread calls nothing any more.
    give_up: AtomicBool,
}

/// Main's side of the thread.
pub struct Link {
    asks: Sender<Ask>,
    answers: Receiver<Answer>,
    flags: Arc<Flags>,
    /// It has taken leave of the other nodes.
    left: bool,
}

impl Link {
    /// Starts the thread, which initialises MPI.
    ///
    /// # Errors
    /// [`JobError`].
    pub fn open() -> Result<(Self, Node), JobError> {
        let (asks, of_main) = channel();
        let (to_main, answers) = channel();
        let flags = Arc::<Flags>::default();
        let caller = Caller { asks: of_main, answers: to_main, flags: flags.clone() };
        let thread = std::thread::Builder::new().name("mpi".into());
        thread.spawn(move || caller.run()).map_err(|_| JobError::NotInitialised)?;
        let link = Self { asks, answers, flags, left: false };
        match link.answer()? {
            Answer::Joined(Some(node)) => Ok((link, node)),
            _ => Err(JobError::NotInitialised),
        }
    }

    pub fn tell(&self, mine: Vec<u8>) -> Result<Vec<Vec<u8>>, JobError> {
        self.ask(Ask::Tell(mine))?;
        loop {
            return match self.answer()? {
                Answer::Told(all) => Ok(all),
                Answer::OutOfStep(node) => Err(JobError::OutOfStep { node }),
                // Late, of a carrying that main did not wait for.
                Answer::Stopped => continue,
                _ => Err(JobError::Ended),
            };
        }
    }

    pub fn carry(&self, remote: Remote) {
        self.flags.stop.store(false, Ordering::Relaxed);
        // A thread that has ended shows in what is asked next.
        let _ = self.ask(Ask::Carry(remote));
    }

    /// Stops after the ranks have ended well: nothing is under way then, and the thread answers soon.
    pub fn end_carrying(&self) {
        self.flags.stop.store(true, Ordering::Relaxed);
        while self.answer().is_ok_and(|answer| !matches!(answer, Answer::Stopped)) {}
    }

    /// Stops after a failure.
    pub fn stop_carrying(&self) {
        self.flags.stop.store(true, Ordering::Relaxed);
        // Where another node is gone it may be waiting for a message from there, for ever.
        let _ = self.answers.recv_timeout(10 * LOOK);
    }

    pub fn leave(mut self) {
        let left = |link: &Self| loop {
            match link.answer() {
                Ok(Answer::Left) => return true,
                Ok(Answer::Stopped) => {}
                _ => return false,
            }
        };
        self.left = self.ask(Ask::Leave).is_ok() && left(&self);
    }

    fn ask(&self, ask: Ask) -> Result<(), JobError> {
        self.asks.send(ask).map_err(|_| JobError::Ended)
    }

    /// Waits for an answer; unwinds when the process is asked to end.
    fn answer(&self) -> Result<Answer, JobError> {
        loop {
            match self.answers.recv_timeout(LOOK) {
                Ok(answer) => return Ok(answer),
                Err(RecvTimeoutError::Timeout) => cancel::point(),
                Err(RecvTimeoutError::Disconnected) => return Err(JobError::Ended),
            }
        }
    }
}

impl Drop for Link {
    /// A process that has not taken leave ends without MPI's own end, which tells the launcher to end the job. The thread must not be
    /// inside MPI meanwhile.
    fn drop(&mut self) {
        if !self.left {
            self.flags.give_up.store(true, Ordering::Relaxed);
            while self.answers.recv_timeout(10 * LOOK).is_ok_and(|answer| !matches!(answer, Answer::GaveUp)) {}
        }
    }
}

/// The thread.
struct Caller {
    asks: Receiver<Ask>,
    answers: Sender<Answer>,
    flags: Arc<Flags>,
}

/// Why the thread cannot go on.
enum Stop {
    /// The process ends without the other nodes.
    GivenUp,
    /// Bytes of the messages of all nodes, more than MPI counts.
    TooLong(u64),
}

impl Caller {
    fn run(self) {
        let Some((universe, _)) = mpi::initialize_with_threading(Threading::Funneled) else {
            let _ = self.answers.send(Answer::Joined(None));
            return;
        };
        if self.serve(&universe).is_ok() {
            drop(universe);
            let _ = self.answers.send(Answer::Left);
        } else {
            std::mem::forget(universe);
        }
    }

    /// Does what main asks until it takes leave.
    fn serve(&self, universe: &Universe) -> Result<(), Stop> {
        let world = universe.world();
        let node = Node { index: world.rank() as usize, of: world.size() as usize };
        self.answer(Answer::Joined(Some(node)))?;
        loop {
            let ask = match self.asks.recv_timeout(LOOK) {
                Ok(ask) => ask,
                Err(RecvTimeoutError::Timeout) if !self.flags.give_up.load(Ordering::Relaxed) => continue,
                Err(_) => return Err(Stop::GivenUp),
            };
            match ask {
                Ask::Tell(mut mine) => {
                    let mut all = Messages::default();
                    mine.insert(0, TOLD);
                    self.all_gather(&world, &mine, &mut all)?;
                    let told = |of: usize| all.of(of).strip_prefix(&[TOLD]).map(<[u8]>::to_vec).ok_or(of);
                    let all: Result<_, usize> = (0..node.of).map(told).collect();
                    self.answer(all.map_or_else(Answer::OutOfStep, Answer::Told))?;
                }
                Ask::Carry(mut remote) => {
                    self.carry(&world, node, &mut remote)?;
                    self.answer(Answer::Stopped)?;
                }
                Ask::Leave => return Ok(()),
            }
        }
    }

    fn answer(&self, answer: Answer) -> Result<(), Stop> {
        self.answers.send(answer).map_err(|_| Stop::GivenUp)
    }

    /// Carries what ranks exchange until main says that it is over, or the exchange breaks.
    fn carry(&self, world: &SimpleCommunicator, node: Node, remote: &mut Remote) -> Result<(), Stop> {
        let shape = remote.exchange().shape();
        let (mut mine, mut all) = (Vec::new(), Messages::default());
        let ends = || self.flags.stop.load(Ordering::Relaxed) || self.flags.give_up.load(Ordering::Relaxed);
        loop {
            mine.clear();
            mine.push(CARRIED);
            mine.extend_from_slice(&remote.number().to_le_bytes());
            let taken = remote.collect(ends, |given| {
                for part in [given.floats, given.bytes] {
                    mine.extend_from_slice(&(part.len() as u64).to_le_bytes());
                }
                mine.extend_from_slice(given.floats);
                mine.extend_from_slice(given.bytes);
            });
            if !taken.unwrap_or(false) {
                return Ok(());
            }
            match self.all_gather(world, &mine, &mut all) {
                Err(Stop::TooLong(bytes)) => {
                    tracing::error!("the ranks exchange {bytes} bytes at once, MPI counts to {MOST_BYTES}");
                    remote.lost((shape.here().end) % shape.ranks);
                    return Ok(());
                }
                gathered => gathered?,
            }
            for of in (0..node.of).filter(|of| *of != node.index) {
                let first = of * shape.local;
                if let Err(why) = deliver(remote, first, shape.local, all.of(of)) {
                    tracing::error!("what the ranks of node {of} gave cannot be used: {why}");
                    remote.lost(first);
                    return Ok(());
                }
            }
            remote.proceed();
        }
    }

    /// Gives `mine` to all nodes and gathers what they gave.
    fn all_gather(&self, world: &SimpleCommunicator, mine: &[u8], all: &mut Messages) -> Result<(), Stop> {
        let nodes = world.size() as usize;
        all.lens.clear();
        all.lens.resize(nodes, 0u64);
        let len = [mine.len() as u64];
        scope(|scope| self.wait(world.immediate_all_gather_into(scope, &len[..], &mut all.lens[..])))?;
        let total = all.lens.iter().sum::<u64>();
        if total > MOST_BYTES {
            // In all nodes alike.
            return Err(Stop::TooLong(total));
        }
        all.place();
        all.bytes.resize(total as usize, 0);
        let Messages { counts, starts, bytes, .. } = all;
        let mut whole = PartitionMut::new(&mut bytes[..], &counts[..], &starts[..]);
        scope(|scope| self.wait(world.immediate_all_gather_varcount_into(scope, mine, &mut whole)))
    }

    /// Tests a request until it is complete. Where the process gives up first the request stays for ever, and so does this thread.
    fn wait<'a, D: ?Sized, S: mpi::request::Scope<'a>>(&self, mut request: Request<'a, D, S>) -> Result<(), Stop> {
        let mut tests = 0;
        loop {
            match request.test() {
                Ok(_) => return Ok(()),
                Err(pending) => request = pending,
            }
            tests += 1;
            if tests < EAGER_TESTS {
                std::thread::yield_now();
                continue;
            }
            std::thread::sleep(PAUSE);
            if self.flags.give_up.load(Ordering::Relaxed) {
                let _ = self.answers.send(Answer::GaveUp);
                loop {
                    std::thread::park();
                }
            }
        }
    }
}

/// What the nodes gave.
#[derive(Default)]
struct Messages {
    lens: Vec<u64>,
    /// As MPI counts them.
    counts: Vec<i32>,
    starts: Vec<i32>,
    bytes: Vec<u8>,
}

impl Messages {
    /// Places the messages one behind another; together they have no more than [`MOST_BYTES`] bytes.
    fn place(&mut self) {
        self.counts.clear();
        self.counts.extend(self.lens.iter().map(|len| *len as i32));
        self.starts.clear();
        let ends = self.counts.iter().scan(0, |end, count| {
            *end += count;
            Some(*end)
        });
        self.starts.extend(ends.zip(&self.counts).map(|(end, count)| end - count));
    }

    fn of(&self, node: usize) -> &[u8] {
        let start = self.starts[node] as usize;
        &self.bytes[start..start + self.counts[node] as usize]
    }
}

/// Puts what the ranks of another node gave, from rank `first` on, into their seats.
fn deliver(remote: &Remote, first: usize, ranks: usize, message: &[u8]) -> Result<(), String> {
    let short = || "it is too short".to_owned();
    let mut rest = message;
    let mut take = |len: usize| -> Result<&[u8], String> {
        let (part, behind) = rest.split_at_checked(len).ok_or_else(short)?;
        rest = behind;
        Ok(part)
    };
    let number = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("8 bytes"));
    if take(1)? != [CARRIED] {
        return Err("its main process was not carrying any more: its ranks have ended".into());
    }
    let exchange = number(take(8)?);
    if exchange != remote.number() {
        return Err(format!("it is of exchange {exchange}, this is {}", remote.number()));
    }
    for rank in first..first + ranks {
        let (floats, bytes) = (number(take(8)?) as usize, number(take(8)?) as usize);
        let (floats, bytes) = (take(floats)?, take(bytes)?);
        remote.deliver(rank, Given { floats, bytes }).map_err(|e| e.to_string())?;
    }
    if rest.is_empty() { Ok(()) } else { Err("it is too long".into()) }
}
