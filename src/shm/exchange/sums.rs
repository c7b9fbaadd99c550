//! Means of floats over ranks, summed in the order of the ranks.

/// Floats that are averaged at a time: they stay in the first-level cache.
const CHUNK: usize = 1024;

/// The mean of two, whose sum does not depend on their order.
pub fn average_two(mine: &mut [f32], other: &[f32], result: &mut [f32]) {
    for ((mine, other), result) in mine.iter_mut().zip(other).zip(result) {
        *mine = (*mine + other) * 0.5;
        *result = *mine;
    }
}

/// The mean of rank `rank`'s floats, `mine`, and those of the `others` in their order; into `mine` and `result`.
pub fn average_all(rank: usize, mine: &mut [f32], others: &[&[f32]], result: &mut [f32]) {
    let ranks = others.len() + 1;
    let mut sums = [0.0f32; CHUNK];
    for (chunk, (mine, result)) in mine.chunks_mut(CHUNK).zip(result.chunks_mut(CHUNK)).enumerate() {
        let range = chunk * CHUNK..chunk * CHUNK + mine.len();
        let sums = &mut sums[..mine.len()];
        let of = |of: usize| -> &[f32] {
            match of.cmp(&rank) {
                std::cmp::Ordering::Less => &others[of][range.clone()],
                std::cmp::Ordering::Equal => mine,
                std::cmp::Ordering::Greater => &others[of - 1][range.clone()],
            }
        };
        for ((sum, a), b) in sums.iter_mut().zip(of(0)).zip(of(1)) {
            *sum = a + b;
        }
        for rank in 2..ranks {
            sums.iter_mut().zip(of(rank)).for_each(|(sum, addend)| *sum += addend);
        }
        for ((mine, result), sum) in mine.iter_mut().zip(result).zip(sums) {
            // The same bits where the divisor is a power of two, and several times faster.
            *mine = if ranks.is_power_of_two() { *sum * (1.0 / ranks as f32) } else { *sum / ranks as f32 };
            *result = *mine;
        }
    }
}
