//! Signs of life of whoever works on a whole table, which takes minutes where it is large.

/// Steps between two signs: a few milliseconds of work.
const STEPS: u32 = 1 << 16;

/// Returns what is to be called at every step of a long work; it calls `beat` once in many steps.
pub fn now_and_then(mut beat: impl FnMut()) -> impl FnMut() {
    let mut steps = 0;
    move || {
        steps += 1;
        if steps == STEPS {
            steps = 0;
            beat();
        }
    }
}
