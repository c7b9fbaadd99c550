//! Targeting of contracts: `region:1,3|gender:1|age:2,3|slot:7`, AND across names, OR within.

use std::collections::HashMap;
use std::fmt;
use std::ops::Range;

use foldhash::fast::RandomState;

use super::viewer::check_viewer;

/// Allowed values per attribute; an empty list allows everything.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Targeting {
    pub region: Vec<u32>,
    pub gender: Vec<u32>,
    pub age: Vec<u32>,
    pub slot: Vec<u32>,
}

impl Targeting {
    /// Parses the text form; empty text targets everything.
    ///
    /// # Errors
    /// The malformed part: an unknown name, a repeated name, or a value that is not a number or out of range.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut targeting = Self::default();
        for part in text.split('|').filter(|p| !p.trim().is_empty()) {
            let (name, values) = part.split_once(':').ok_or_else(|| format!("`{part}` is not `name:value,value`"))?;
            let list = match name.trim() {
                "region" => &mut targeting.region,
                "gender" => &mut targeting.gender,
                "age" => &mut targeting.age,
                "slot" => &mut targeting.slot,
                other => {
                    return Err(format!("unknown attribute `{other}`; use region, gender, age or slot"));
                }
            };
            if !list.is_empty() {
                return Err(format!("`{name}` is named twice; join its values with commas"));
            }
            for value in values.split(',') {
                let number =
                    value.trim().parse().map_err(|_| format!("`{value}` in `{part}` is not a whole number"))?;
                let checked = match name.trim() {
                    "gender" => check_viewer(u8::try_from(number).unwrap_or(u8::MAX), 0),
                    "age" => check_viewer(0, u8::try_from(number).unwrap_or(u8::MAX)),
                    _ => Ok(()),
                };
                checked.map_err(|bad| format!("`{value}` in `{part}` {}", bad.rule))?;
                list.push(number);
            }
        }
        Ok(targeting)
    }

    /// Returns whether a request with these attributes matches.
    pub fn matches(&self, slot: u32, region: u32, gender: u8, age: u8) -> bool {
        let within = |list: &[u32], value: u32| list.is_empty() || list.contains(&value);
        within(&self.slot, slot)
            && within(&self.region, region)
            && within(&self.gender, gender.into())
            && within(&self.age, age.into())
    }
}

/// Index that finds which of many contracts match a request, without testing each of them.
///
/// Contracts are bits. Each attribute has the set of contracts that accept any value and, for every value that some contract names, the
/// contracts that accept it: as a set where they are many, as a list beside the set of those that accept any value where they are few. The
/// contracts that match a request are the intersection for its four values. Memory grows with the values that contracts name, never with
/// values times contracts.
#[derive(Debug, Clone, Default)]
pub struct TargetingIndex {
    words: usize,
    attributes: [Allowed; 4],
}

/// Contracts by value of one attribute.
#[derive(Debug, Clone, Default)]
struct Allowed {
    any: Vec<u64>,
    named: HashMap<u32, Named, RandomState>,
    /// Contracts of all lists, ascending within each.
    listed: Vec<u32>,
}

/// Contracts that name a value.
#[derive(Debug, Clone)]
enum Named {
    /// Those in this part of `listed`.
    Few(Range<usize>),
    /// A set that includes those of `any`.
    Many(Vec<u64>),
}

impl Allowed {
    fn of<'a>(lists: impl Iterator<Item = &'a [u32]>, words: usize) -> Self {
        let mut any = vec![0; words];
        let mut pairs = Vec::new();
        for (j, list) in lists.enumerate() {
            if list.is_empty() {
                any[j / 64] |= 1 << (j % 64);
            }
            pairs.extend(list.iter().map(|&value| (value, j as u32)));
        }
        pairs.sort_unstable();
        pairs.dedup();
        let (mut named, mut listed) = (HashMap::default(), Vec::new());
        for of_value in pairs.chunk_by(|a, b| a.0 == b.0) {
            let contracts = of_value.iter().map(|&(_, j)| j);
            let shorter = size_of_val(of_value) / 2 < size_of::<u64>() * words;
            let found = if shorter {
                let start = listed.len();
                listed.extend(contracts);
                Named::Few(start..listed.len())
            } else {
                let mut set = any.clone();
                contracts.for_each(|j| set[j as usize / 64] |= 1 << (j % 64));
                Named::Many(set)
            };
            named.insert(of_value[0].0, found);
        }
        Self { any, named, listed }
    }

    fn of_value(&self, value: u32) -> Accepting<'_> {
        match self.named.get(&value) {
            Some(Named::Many(set)) => Accepting { set, list: &[] },
            Some(Named::Few(list)) => Accepting { set: &self.any, list: &self.listed[list.clone()] },
            None => Accepting { set: &self.any, list: &[] },
        }
    }
}

/// Contracts that accept a value: those of a set and those of a list, read word by word.
#[derive(Debug, Clone, Copy)]
struct Accepting<'a> {
    set: &'a [u64],
    list: &'a [u32],
}

impl Accepting<'_> {
    /// Returns word `w` of the contracts. Words are asked for in ascending order.
    fn word(&mut self, w: usize) -> u64 {
        let mut bits = self.set[w];
        while let Some((&j, rest)) = self.list.split_first()
            && j as usize / 64 == w
        {
            bits |= 1 << (j % 64);
            self.list = rest;
        }
        bits
    }
}

impl TargetingIndex {
    /// Builds the index; contracts are numbered in the order of the iterator.
    pub fn new<'a>(contracts: impl ExactSizeIterator<Item = &'a Targeting> + Clone) -> Self {
        let words = contracts.len().div_ceil(64);
        let by = |list: fn(&Targeting) -> &[u32]| Allowed::of(contracts.clone().map(list), words);
        Self { words, attributes: [by(|t| &t.slot), by(|t| &t.region), by(|t| &t.gender), by(|t| &t.age)] }
    }

    /// Returns the numbers of the contracts that match a request with these attributes, ascending.
    pub fn matching(&self, slot: u32, region: u32, gender: u8, age: u8) -> impl Iterator<Item = usize> + '_ {
        let values = [slot, region, gender.into(), age.into()];
        let mut accepting: [_; 4] = std::array::from_fn(|i| self.attributes[i].of_value(values[i]));
        (0..self.words).flat_map(move |w| {
            let mut bits = accepting.iter_mut().fold(u64::MAX, |bits, accepting| bits & accepting.word(w));
            std::iter::from_fn(move || {
                let bit = bits.trailing_zeros() as usize;
                // Clears the lowest bit.
                (bits != 0).then(|| bits &= bits - 1).map(|()| 64 * w + bit)
            })
        })
    }
}

impl fmt::Display for Targeting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut first = true;
        for (name, list) in
            [("region", &self.region), ("gender", &self.gender), ("age", &self.age), ("slot", &self.slot)]
        {
            if list.is_empty() {
                continue;
            }
            if !first {
                f.write_str("|")?;
            }
            first = false;
            let values: Vec<String> = list.iter().map(u32::to_string).collect();
            write!(f, "{name}:{}", values.join(","))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn text_form_round_trips_and_matches_as_and_of_ors() {
        let t = Targeting::parse("region:1,3|gender:1").unwrap();
        assert_eq!(Targeting::parse(&t.to_string()).unwrap(), t);
        assert!(t.matches(9, 3, 1, 0) && t.matches(9, 1, 1, 5));
        assert!(!t.matches(9, 2, 1, 0) && !t.matches(9, 1, 2, 0));
        assert!(Targeting::parse("").unwrap().matches(1, 2, 0, 9));
    }

    /// Values that many contracts name, and values that few do.
    fn value() -> impl Strategy<Value = u8> {
        prop_oneof![0u8..5, 0u8..5, 5u8..30]
    }

    proptest::proptest! {
        #[test]
        fn the_index_finds_who_matches(
            lists in vec(vec(vec(value().prop_map(u32::from), 0..3), 4), 0..200),
            asked in vec((value(), value(), value(), value()), 20),
        ) {
            let targeting = |l: &Vec<Vec<u32>>| {
                let [region, gender, age, slot] = std::array::from_fn(|i| l[i].clone());
                Targeting { region, gender, age, slot }
            };
            let all: Vec<Targeting> = lists.iter().map(targeting).collect();
            let index = TargetingIndex::new(all.iter());
            for (slot, region, gender, age) in asked {
                let [slot, region] = [slot, region].map(u32::from);
                let found: Vec<usize> = index.matching(slot, region, gender, age).collect();
                let want: Vec<usize> = (0..all.len()).filter(|&j| all[j].matches(slot, region, gender, age)).collect();
                proptest::prop_assert_eq!(found, want);
            }
        }
    }

    #[test]
    fn values_that_few_contracts_name_take_no_memory_for_all_contracts() {
        let targeting =
            |j: u32| Targeting { slot: (100 * j..100 * (j + 1)).chain([7]).collect(), ..Targeting::default() };
        let all: Vec<Targeting> = (0..2000).map(targeting).collect();
        let index = TargetingIndex::new(all.iter());
        let slots = &index.attributes[0];
        let sets = slots.named.values().filter(|named| matches!(named, Named::Many(_))).count();
        assert_eq!((slots.named.len(), sets), (200_000, 1));
        assert!(index.matching(7, 0, 0, 0).eq(0..2000));
        assert!(index.matching(150_012, 0, 0, 0).eq([1500]));
    }

    #[test]
    fn malformed_targeting_names_the_part() {
        for (text, part) in [("city:3", "city"), ("region:x", "`x`"), ("region", "`region`"), ("age:1|age:2", "age")] {
            assert!(Targeting::parse(text).unwrap_err().contains(part), "{text}");
        }
    }
}
