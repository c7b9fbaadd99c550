//! One part of a study's plans and runs, for engines that start the same command on many machines.
//!
//! Parts share the study's folder, or have folders of the same path that are copied together afterwards. The assignment to parts
//! depends on the study file alone, so parts need no communication. A later run without a part finds everything there and makes the
//! table.

use std::fmt;
use std::str::FromStr;

/// Part `index` of `count`, from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shard {
    index: usize,
    count: usize,
}

impl FromStr for Shard {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wanted = || format!("`{text}` is not a shard; write I/N, from 1/N to N/N, for example 2/8");
        let (index, count) = text.split_once('/').ok_or_else(wanted)?;
        let parse = |part: &str| part.parse::<usize>().map_err(|_| wanted());
        let (index, count) = (parse(index)?, parse(count)?);
        if index == 0 || index > count { Err(wanted()) } else { Ok(Self { index, count }) }
    }
}

impl fmt::Display for Shard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.index, self.count)
    }
}

impl Shard {
    /// Returns whether item `i` of a list belongs to this part.
    pub fn has(self, i: usize) -> bool {
        i % self.count == self.index - 1
    }

    /// Returns the number of parts.
    pub fn number_of_parts(self) -> usize {
        self.count
    }

    /// Returns the name of this part's lock.
    pub fn lock(self) -> String {
        format!("lock-{}-of-{}", self.index, self.count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_item_is_one_shards() {
        for count in 1..6 {
            for i in 0..40 {
                let shards = (1..=count).filter(|index| format!("{index}/{count}").parse::<Shard>().unwrap().has(i));
                assert_eq!(shards.count(), 1);
            }
        }
        for text in ["", "1", "0/2", "3/2", "a/2", "1/0", "-1/2", "1/2/3"] {
            assert!(text.parse::<Shard>().is_err(), "{text}");
        }
    }
}
