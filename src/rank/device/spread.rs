//! Which of a batch's rows lie on which device.
//!
//! The first arena is that of the device that computes. Rows of the others come there over the host and their gradients go back the same way,
//! owner after owner, those of an owner in the order of the batch.

use crate::sparse::cache::memory::ABSENT;

/// A batch's rows by the device that owns them.
#[derive(Debug, PartialEq, Eq)]
pub struct Spread {
    /// Of each row its place in the first arena; behind the arena, those without a record are counted, and those that lie elsewhere
    /// have the next number.
    pub places: Vec<u32>,
    /// Numbers of the rows that lie elsewhere, owner after owner.
    pub elsewhere: Vec<u32>,
    /// Places of an owner's rows, of each arena but the first.
    pub owned: Vec<Vec<u32>>,
}

impl Spread {
    /// Divides rows by the arena of each and their place in it, among `arenas` arenas of `capacity` places.
    pub fn of(rows: &[(u32, u32)], arenas: usize, capacity: usize) -> Self {
        let absent = rows.iter().filter(|(_, place)| *place == ABSENT).count();
        let left_out = (capacity + absent) as u32;
        let mut next = capacity as u32;
        let (mut numbers, mut owned) = (vec![vec![]; arenas - 1], vec![vec![]; arenas - 1]);
        let place = |(number, &(arena, place)): (usize, &(u32, u32))| {
            if place == ABSENT {
                next += 1;
                return next - 1;
            }
            let Some(owner) = (arena as usize).checked_sub(1) else { return place };
            numbers[owner].push(number as u32);
            owned[owner].push(place);
            left_out
        };
        let places = rows.iter().enumerate().map(place).collect();
        Self { places, elsewhere: numbers.concat(), owned }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const CAPACITY: usize = 50;

    proptest! {
        #[test]
        fn every_row_is_read_where_it_lies(
            arenas in 1usize..5,
            rows in prop::collection::vec((0u32..4, prop::option::weighted(0.8, 0..CAPACITY as u32)), 0..60),
        ) {
            let rows: Vec<(u32, u32)> =
                rows.into_iter().map(|(arena, place)| (arena % arenas as u32, place.unwrap_or(ABSENT))).collect();
            let Spread { places, elsewhere, owned } = Spread::of(&rows, arenas, CAPACITY);
            // What comes from elsewhere, as it comes.
            let mut came = owned.iter().zip(1..).flat_map(|(places, arena)| places.iter().map(move |place| (arena, *place)));
            let mut found: Vec<Option<(u32, u32)>> = vec![None; rows.len()];
            elsewhere.iter().for_each(|number| found[*number as usize] = came.next());
            prop_assert_eq!(came.next(), None);
            let absent = rows.iter().filter(|(_, place)| *place == ABSENT).count();
            let mut firsts = 0;
            for ((row, place), found) in rows.iter().zip(places).zip(found) {
                let place = place as usize;
                match found {
                    Some(found) => prop_assert_eq!((found, place), (*row, CAPACITY + absent)),
                    None if row.1 == ABSENT => {
                        prop_assert_eq!(place, CAPACITY + firsts);
                        firsts += 1;
                    }
                    None => prop_assert_eq!((0, place as u32), *row),
                }
            }
            prop_assert!(owned.len() == arenas - 1 && firsts == absent);
        }
    }
}
