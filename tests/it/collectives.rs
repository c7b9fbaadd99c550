//! Ranks in processes of their own that are killed: all others get an error that names the dead one, and nothing is left behind.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use admix::shm::{Control, Exchange, ExchangeShape, RunNames, Seat, sweep};
use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

const EXCHANGE: &str = "ADMIX_TEST_EXCHANGE";
const RANK: &str = "ADMIX_TEST_RANK";
const RANKS: usize = 3;
const WORDS: usize = 20_000;
/// Far beyond what any step takes: who waits for it, waits for a dead rank.
const PATIENT: Duration = Duration::from_secs(600);

/// A rank's process; killed if it is still there when dropped.
struct Rank(Child);

impl Rank {
    fn spawn(exchange: &str, rank: usize) -> Self {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "collectives::takes_part_until_killed", "--ignored", "--nocapture"])
            .env(EXCHANGE, exchange)
            .env(RANK, rank.to_string())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        Self(child)
    }

    /// What the rank says last.
    fn said(mut self) -> String {
        let lines = BufReader::new(self.0.stdout.take().unwrap()).lines().map(Result::unwrap);
        let said = lines.filter(|line| line.starts_with("broken: ")).last().unwrap_or_default();
        self.0.wait().unwrap();
        said
    }
}

impl Drop for Rank {
    fn drop(&mut self) {
        // Both fail when it is over already, as they should.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn round(seat: &mut Seat, number: u32) -> Result<(), admix::shm::Broken> {
    let rank = seat.rank();
    let mut values: Vec<f32> = (0..WORDS).map(|i| (rank + i % 5) as f32 + number as f32).collect();
    let mine = vec![rank as u8; 1000 * (1 + (rank + number as usize) % 3)];
    let mut bytes = 0;
    seat.exchange(&mut values, &mine, &mut |from, theirs| {
        assert!(theirs.iter().all(|byte| usize::from(*byte) == from));
        bytes += theirs.len();
    })?;
    assert!(values.iter().enumerate().all(|(i, value)| *value == 1.0 + (i % 5) as f32 + number as f32));
    assert_eq!(bytes, 6000);
    Ok(())
}

#[test]
#[ignore = "a process that the tests below start and kill"]
fn takes_part_until_killed() {
    let Ok(name) = std::env::var(EXCHANGE) else { return };
    let rank = std::env::var(RANK).unwrap().parse().unwrap();
    let exchange = Arc::new(Exchange::open(&name).unwrap());
    let mut seat = exchange.join(rank, PATIENT).unwrap();
    let broken = (0..1 << 20).find_map(|number| round(&mut seat, number).err());
    println!("broken: {}", broken.expect("more rounds than anybody lets it make"));
}

/// Nobody tells the others: they see for themselves that the process is gone.
#[test]
fn a_killed_rank_is_an_error_in_all_others_that_names_it() {
    let mut rng = ChaCha8Rng::seed_from_u64(11);
    for kill in 0..20 {
        let names = RunNames::for_this_process("collectives").unwrap();
        let _control = Control::create(&names.part("control")).unwrap();
        let name = names.part("exchange");
        let shape = ExchangeShape::of_one_machine(RANKS, WORDS, 3000);
        let exchange = Arc::new(Exchange::create(&name, shape).unwrap());
        let victim = 1 + kill % 2;
        let mut others: Vec<Option<Rank>> = (1..RANKS).map(|rank| Some(Rank::spawn(&name, rank))).collect();
        let mut seat = exchange.join(0, PATIENT).unwrap();
        // All take part by now.
        for number in 0..3 {
            round(&mut seat, number).unwrap();
        }
        let mut dead = others[victim - 1].take().unwrap();
        let killer = std::thread::spawn({
            let pause = Duration::from_micros(rng.random_range(0..3000));
            move || {
                std::thread::sleep(pause);
                dead.0.kill().unwrap();
                dead.0.wait().unwrap();
            }
        });
        let broken = (3..1 << 20).find_map(|number| round(&mut seat, number).err()).expect("a broken exchange");
        killer.join().unwrap();
        assert_eq!(broken.to_string(), format!("rank {victim} died"));
        for other in others.into_iter().flatten() {
            assert_eq!(other.said(), format!("broken: rank {victim} died"));
        }
    }
}

#[test]
fn what_ranks_of_a_dead_main_leave_is_swept() {
    let names = RunNames::for_this_process("collectives-swept").unwrap();
    let name = names.part("exchange");
    let exchange = Exchange::create(&name, ExchangeShape::of_one_machine(2, 8, 8)).unwrap();
    // As if the process had been killed: nothing removes the name. Sweeping goes by the control segment's lock and the pid in the name.
    let dead = name.replace(&format!("-{}-", std::process::id()), "-4194305-");
    std::fs::copy(format!("/dev/shm/{name}"), format!("/dev/shm/{dead}")).unwrap();
    sweep();
    // By whom does not matter: a run that another test starts may have come before.
    assert!(!std::path::Path::new("/dev/shm").join(&dead).exists());
    drop(exchange);
    assert!(Exchange::open(&name).is_err());
}
