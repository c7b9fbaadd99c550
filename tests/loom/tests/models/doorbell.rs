//! The doorbell: no ring is missed, by however many sleepers, and who hears it sees the news.

use std::sync::Arc;

use admix_loom::plant::{Plant, Site};
use admix_loom::sync::{AtomicU64, Ordering};
use admix_loom::wait::Doorbell;
use loom::thread;

use super::support::{FOREVER, caught, explore};

#[derive(Default)]
struct Post {
    bell: Doorbell,
    /// Letters delivered; nothing but the bell orders it.
    letters: AtomicU64,
}

fn collect(post: &Post, letters: u64) {
    loop {
        let seen = post.bell.value();
        if post.letters.load(Ordering::Relaxed) == letters {
            return;
        }
        post.bell.wait(seen, FOREVER);
    }
}

fn two_sleepers_and_two_letters() {
    let post = Arc::new(Post::default());
    let sleepers = [post.clone(), post.clone()].map(|post| thread::spawn(move || collect(&post, 2)));
    for letter in 1..=2 {
        post.letters.store(letter, Ordering::Relaxed);
        post.bell.ring();
    }
    for sleeper in sleepers {
        sleeper.join().unwrap();
    }
}

/// Both ring: two processes announce to the same learner.
fn two_ringers() {
    let (bell, news) = (Arc::new(Doorbell::default()), [(); 2].map(|()| Arc::new(AtomicU64::default())));
    let ringers = news.clone().map(|news| {
        let bell = bell.clone();
        thread::spawn(move || {
            news.store(1, Ordering::Relaxed);
            bell.ring();
        })
    });
    loop {
        let seen = bell.value();
        if news.iter().all(|n| n.load(Ordering::Relaxed) == 1) {
            break;
        }
        bell.wait(seen, FOREVER);
    }
    for ringer in ringers {
        ringer.join().unwrap();
    }
}

#[test]
fn no_ring_is_missed() {
    explore(2, two_sleepers_and_two_letters);
    explore(2, two_ringers);
}

#[test]
fn planted_bugs_are_found() {
    let ring = "self.word.compare_exchange(word, next, Ordering::Release";
    let value = "self.word.load(Ordering::Acquire)";
    for bug in [
        Plant::Weaken(vec![Site::find("wait.rs", ring)], Ordering::Relaxed),
        Plant::Weaken(vec![Site::find("wait.rs", value)], Ordering::Relaxed),
        Plant::Skip(Site::find("wait.rs", ring)),
    ] {
        caught(bug, 2, two_sleepers_and_two_letters, &["deadlock"]);
    }
}
